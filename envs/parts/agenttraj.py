"""Files of trajectories as AgentTraj and AgentTraj-L are, and what AgentGym's papers do with them.

    [{"item_id": "maze_3", "conversations": [{"from": "human", "value": text, "loss": null},
                                             {"from": "gpt", "value": text, "loss": false}, ...]},
     ...]

A conversation is the rules and the model's consent, then observations and replies by turns. loss
true: the reply is learned; where no reply has a loss, all are. Read as well, as a JSON list or a
line each, also packed by gzip: ShareGPT's form, this without item_id and loss, and OpenAI's,

    {"messages": [{"role": "system", "content": rules}, {"role": "user", "content": text},
                  {"role": "assistant", "content": text, "tool_calls": [...]}, ...]}

An environment's file may say how many trajectories of it the two sets hold (SET_SIZES;
arXiv:2406.04151, table 2), its name there (ITEM_NAME) and from which score on AgentEvol learns
(KEPT_ABOVE).
"""
import copy
import gzip
import json
import os
import random
import re
import reprlib

from envs import Move, load_env, tools_of
from envs.parts.agentgym import Manner
from envs.parts.tool_calls import action_of


def threshold(env):
    """A trajectory with a score above this is kept: the values of the authors' released code."""
    return getattr(load_env(env), "KEPT_ABOVE", 0.99)


# ---- reading ------------------------------------------------------------------------------------

def read_trajectories(path, names):
    """The trajectories of these environments in a file, as successes in the form of `envs.record`,
    with "opening", the rules and the consent if it has them, and "trained", a bool for each turn; a
    turn's thought is None, its action the whole reply. ValueError: the item and the field that are
    wrong, and what was expected."""
    items = read_items(path)
    if type(items) is not list or not items:
        raise ValueError(f"{path}: {str(items)[:60]}; expected a list of one item or more")
    demos = []
    for i, item in enumerate(items):
        where = f"{path}: item {i}"
        demos.append(read_item(in_this_form(item, names, where), where))
    own_name = {getattr(load_env(name), "ITEM_NAME", name): name for name in names}
    for demo in demos:
        demo["env"] = own_name.get(demo["env"], demo["env"])
    found = {demo["env"] for demo in demos}
    if not found & {*names}:
        raise ValueError(f"{path}: only {', '.join(sorted(found))}, nothing of "
                         f"{', '.join(names)}; give --env")
    return [demo for demo in demos if demo["env"] in names]


def read_items(path):
    """What a file holds, JSON or a line of it for each item. ValueError: neither."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
        first, _, more = text.strip().partition("\n")
        # Lines that are objects, the first one too.
        if first.startswith("{") and first.endswith("}") and (more or str(path).endswith("l")):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON file: {error}; expected a list of trajectories as in "
                         "AgentTraj-L, or one a line") from None


# Who speaks, in other forms: "human" is all that a policy reads.
SPEAKERS = dict(system="system", user="human", human="human", tool="human", function="human",
                observation="human", assistant="gpt", gpt="gpt")


def in_this_form(item, names, where):
    """An item of OpenAI's or ShareGPT's form as one of AgentTraj's; anything else as it is. names:
    the environments asked for. ValueError: it could be of several."""
    if type(item) is not dict:
        return item
    messages = item.get("messages", item.get("conversations"))
    if type(messages) is not list or not all(type(message) is dict for message in messages):
        return item
    same = []
    for message in messages:
        who = message.get("from", message.get("role"))
        text = message.get("value", message.get("content"))
        loss = message.get("loss")
        if message.get("weight") is not None:           # OpenAI's mark: 0 or 1
            loss = bool(message["weight"])
        calls = message.get("tool_calls")
        if calls and text is None:
            text = ""
        same.append({"from": SPEAKERS.get(who, who), "value": text, "loss": loss, "calls": calls})

    replies = [message for message in same if message["from"] == "gpt"]
    if all(message["loss"] is None for message in replies):
        for message in replies:
            message["loss"] = True
    item = dict(item, conversations=same)
    if same and same[0]["from"] == "system":
        item |= dict(rules=same[0]["value"], conversations=same[1:])
    if "item_id" not in item:
        if len(names) > 1:
            raise ValueError(f"{where}: it has no item_id; it could be of {', '.join(names)}: give "
                             "one environment by --env")
        item["item_id"] = f"{names[0]}_{NO_TASK}"
    return item


NO_TASK = 999_999_999       # the number of an item that has none


def read_item(item, where):
    """One item of a file as `read_trajectories` gives it. ValueError; where: for its sentence."""
    name, messages = checked_item(item, where)
    said = [message["value"] for message in messages]
    trained = [message.get("loss") is True for message in messages[1::2]]

    env, _, number = name.rpartition("_")
    env = re.sub("^(lmrlgym|tool)_", "", env)

    # If the first reply is not learned, it is the consent, and what stands before it the rules.
    opening = 0 if trained[0] or "rules" in item else 2
    turns = []
    for i in range(opening, len(said) - 1, 2):
        info = dict(success=False, valid=True, score=0.0)
        thought, action = None, said[i + 1]
        if messages[i + 1].get("calls"):
            thought = action
            action = action_called(messages[i + 1]["calls"], env, f"{where}: message {i + 1}")
        turns.append(Move(said[i], thought, action, 0.0, False, info))
    won = dict(success=True, valid=True, score=1.0)
    turns[-1] = turns[-1]._replace(reward=1.0, done=True, info=won)

    last = said[-1] if len(said) % 2 else ""
    told = said[:opening]
    if "rules" in item:
        told = [item["rules"], ""]      # a system message, to which nobody agrees
    return dict(env=env, task_id=int(number), turns=turns, opening=told, success=True, last=last,
                trained=trained[opening // 2:])


def action_called(calls, env, where):
    """The action that a reply's tool calls mean. ValueError: they are several, or mean none."""
    try:
        (call,) = calls
        action, complaint = action_of({"tool_calls": [call]}, tools_of(load_env(env)))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ValueError(f"{where}: tool_calls is {reprlib.repr(calls)}; expected one call, in "
                         "OpenAI's form") from None
    if complaint:
        raise ValueError(f"{where}: {complaint}")
    return action


def checked_item(item, where):
    """(item_id, conversations) of an item in which every field is as it must be. ValueError."""
    def expect(fits, name, value, expected):
        if not fits:
            raise ValueError(f"{where}: {name} is {reprlib.repr(value)}; expected {expected}")

    expect(type(item) is dict, "it", item, "an object with item_id and conversations")
    name = item.get("item_id")
    expect(type(name) is str and re.fullmatch(r"\w+_\d{1,9}", name), "item_id", name,
           '"<environment>_<number>"')
    where = f"{where} ({name})"
    messages = item.get("conversations")
    expect(type(messages) is list and len(messages) > 1, "conversations", messages,
           "a list of two messages or more")
    for i, message in enumerate(messages):
        at = f"conversations[{i}]"
        expect(type(message) is dict, at, message, "an object with from, value, loss")
        who = ("human", "gpt")[i % 2]
        expect(message.get("from") == who, f"{at}.from", message.get("from"),
               f'"{who}": human and gpt speak by turns')
        value = message.get("value")
        expect(type(value) is str and value == value.encode(errors="replace").decode(),
               f"{at}.value", value, "a text, without half a character")
        loss = message.get("loss")
        if who == "gpt":
            expect(loss is None or type(loss) is bool, f"{at}.loss", loss,
                   "false or null, or true")
        else:
            expect(loss is None or loss is False, f"{at}.loss", loss, "false or null")
    losses = [message.get("loss") for message in messages[1::2]]
    expect(True in losses, "loss of gpt's", losses, "a true")
    return name, messages


def opening(agent, demo):
    """The agent; for a demonstration of a file in the format agentgym one that opens with the
    file's words. ValueError: in another format these would not be the file's."""
    if "opening" not in demo:
        return agent
    if agent.format != "agentgym":
        manner = getattr(agent.module, "AGENTGYM", None)
        if manner and manner.rules_first:
            raise ValueError(f"{demo['env']}: its files hold AgentGym's rules within the first "
                             "observation; use --format agentgym")
        return agent
    own = copy.copy(agent)
    rules, agreed = demo["opening"] or (agent.manner.rules, agent.manner.agreed)
    own.manner = Manner(rules, lambda reply: (reply, ""), agreed=agreed)
    return own


# ---- writing ------------------------------------------------------------------------------------

WORDINGS = ("{}", "Let me think. {}", "{} So this is my next step.", "What do I know? {}",
            "{} That brings me closer to the goal.")
FORM = "Your response should use the following format:\nThought:\n<Your Thought>\n\n" \
       "Action:\n<Your Action>"


def write_trajectories(path, demos, seed):
    """Write the successes among an expert's demonstrations (envs.record) as such a file, its
    reasons in several wordings -> how many."""
    rng = random.Random(seed)
    items = []
    for demo in demos:
        module = load_env(demo["env"])
        texts = conversation(module, demo["turns"], rng)
        if demo["success"]:
            messages = []
            for i, text in enumerate(texts):
                if i % 2:
                    messages.append({"from": "gpt", "loss": i > 1, "value": text})
                else:
                    messages.append({"from": "human", "loss": None, "value": text})
            items.append(dict(item_id=f"{module.NAME}_{demo['task_id']}", conversations=messages))
    if not items:
        raise ValueError("no demonstration to write: the expert played none, or had no success")
    if os.path.exists(path):
        raise ValueError(f"{path} is there already; remove it, or give another --out")
    with open(path, "w") as file:
        json.dump(items, file, indent=1)
    return len(items)


def conversation(module, turns, rng):
    """The texts of a demonstration, human's and gpt's by turns."""
    manner = getattr(module, "AGENTGYM", None) or Manner(f"{module.PROMPT}\n{FORM}", None)
    texts = [manner.rules, manner.agreed]
    for i, move in enumerate(turns):
        observation = move.observation
        if i == 0:
            observation = manner.first(observation, module.PROMPT)
        thought = rng.choice(WORDINGS).format(move.thought)
        texts += [observation, manner.write.format(thought=thought, action=move.action)]
    return texts
