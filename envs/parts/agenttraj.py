"""Files of trajectories as AgentTraj and AgentTraj-L are, and what AgentGym's papers do with them.

    [{"item_id": "maze_3", "conversations": [{"from": "human", "value": text, "loss": null},
                                             {"from": "gpt", "value": text, "loss": false}, ...]},
     ...]

A conversation is the rules and the model's consent, then observations and replies by turns. loss
true: the reply is learned. An environment's file may say how many trajectories of it the two sets
hold (SET_SIZES; arXiv:2406.04151, table 2), its name there (ITEM_NAME) and from which score on
AgentEvol learns (KEPT_ABOVE).
"""
import copy
import json
import re
import reprlib

from envs import Move, load_env
from envs.parts.agentgym import Manner
from envs.parts.answers import fits


def threshold(env):
    """A trajectory with a score above this is kept: the values of the authors' released code."""
    return getattr(load_env(env), "KEPT_ABOVE", 0.99)


def read_trajectories(path, names):
    """The trajectories of these environments in a file, as successes in the form of `envs.record`,
    with "opening", the rules and the consent if it has them, and "trained", a bool for each turn; a
    turn's thought is None, its action the whole reply. ValueError: the item and the field that are
    wrong, and what was expected."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            items = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        expected = "a list of trajectories as in AgentTraj-L"
        raise ValueError(f"{path}: no JSON file: {error}; expected {expected}") from None
    if type(items) is not list or not items:
        raise ValueError(f"{path}: {str(items)[:60]}; expected a list of one item or more")
    # A file may call an environment by another name than ours.
    own_name = {}
    for name in names:
        there = getattr(load_env(name), "ITEM_NAME", name)
        own_name[there] = name
    demos = []
    others = set()
    for i, item in enumerate(items):
        demo = read_item(item, f"{path}: item {i}")
        demo["env"] = own_name.get(demo["env"], demo["env"])
        if demo["env"] in names:
            demos.append(demo)
        else:
            others.add(demo["env"])
    if not demos:
        only = ", ".join(sorted(others))
        wanted = ", ".join(names)
        raise ValueError(f"{path}: only {only}, nothing of {wanted}; give --env")
    return demos


def read_item(item, where):
    """One item of a file as `read_trajectories` gives it. ValueError; where: for its sentence."""
    name, messages = checked_item(item, where)
    env, _, number = name.rpartition("_")
    env = re.sub("^(lmrlgym|tool)_", "", env)
    said = [message["value"] for message in messages]
    trained = [message.get("loss") is True for message in messages[1::2]]

    # If the first reply is not learned, it is the consent, and what stands before it the rules.
    opening = []
    if not trained[0]:
        opening = said[:2]
        del said[:2], trained[0]
    turns = []
    for seen, reply in zip(said[::2], said[1::2]):
        info = dict(success=False, valid=True, score=0.0)
        turns.append(Move(seen, None, reply, 0.0, False, info))
    won = dict(success=True, valid=True, score=1.0)
    turns[-1] = turns[-1]._replace(reward=1.0, done=True, info=won)

    # An observation that nobody answered, if it ends with one.
    last = "".join(said[2 * len(turns):])
    return dict(env=env, task_id=int(number), turns=turns, opening=opening, success=True,
                last=last, trained=trained)


def checked_item(item, where):
    """(item_id, conversations) of an item in which every field is as it must be. ValueError."""
    def expect(right, name, value, expected):
        if not right:
            raise ValueError(f"{where}: {name} is {reprlib.repr(value)}; expected {expected}")

    expect(fits(item, dict), "it", item, "an object with item_id and conversations")
    name = item.get("item_id")
    numbered = fits(name, str) and re.fullmatch(r"\w+_\d{1,9}", name)
    expect(numbered, "item_id", name, '"<environment>_<number>"')
    where = f"{where} ({name})"
    messages = item.get("conversations")
    several = fits(messages, list) and len(messages) > 1
    expect(several, "conversations", messages, "a list of two messages or more")
    for i, message in enumerate(messages):
        at = f"conversations[{i}]"
        expect(fits(message, dict), at, message, "an object with from, value, loss")
        who = ("human", "gpt")[i % 2]
        speaker = message.get("from")
        turn = f'"{who}": human and gpt speak by turns'
        expect(speaker == who, f"{at}.from", speaker, turn)
        value = message.get("value")
        expect(fits(value, str), f"{at}.value", value,
               "a text of at most a million characters, without half a one")
        loss = message.get("loss")
        expect(fits(loss, bool | None), f"{at}.loss", loss, "true, false or null")
        expect(not loss or who == "gpt", f"{at}.loss", loss, "false or null")
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
