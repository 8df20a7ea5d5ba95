"""How AgentGym's clients talk to a model: `--format agentgym`, for models that were trained there;
at the end its files of trajectories.

    user:       the rules of the environment
    assistant:  OK. I'll follow your instructions and try my best to solve the task.
    user:       the first observation; maze and wordle put their long instructions before it
    assistant:  Thought:
                The walls leave one way.

                Action:
                move down

The words, and what is taken for an action, are a protocol: those of agentenv/agentenv/envs and
controller/utils.py in github.com/WooooDyy/AgentGym as of 3ef9235, with which AgentGym-RL (82402a9)
trains. AgentEvol-7B was trained with an older version (f434743), which differs: textcraft's rules
are shorter, sciworld's lack `examine`, the first of two actions counts and a bare reply is one.
Commit 0412982, which also takes "up" in maze and "look" in textcraft, is later than both.
"""
import copy
import importlib
import json
import os
import random
import re
import reprlib
from typing import NamedTuple

from envs import Move, webarena, wordle
from envs.parts import tool_rules

AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SEVERAL = "Error: Only one 'Action' is allowed per response. Please adjust your response."


# Readers of replies: text -> (action, complaint). A complaint is all that the model gets to see.

def read_line(reply):
    """The line behind "Action:", of which letters, digits, spaces and commas stay; without it "".
    """
    actions = re.findall(r"Action:\s*([^\n]*)", reply)
    if len(actions) > 1:
        return "", SEVERAL
    return " ".join(re.sub("[^A-Za-z0-9, ]", "", "".join(actions)).split()), ""


def read_last(reply):
    """All behind the last "Action:". A reply without it is none, unless it holds a call of webshop,
    whose client shares this reader."""
    action = reply.rpartition("Action:")[2]
    whole = action == reply and "search[" not in reply and "click[" not in reply
    return "" if whole else action.strip(), ""


def read_whole(reply):
    """The reply as it is: the server looks for the action in it."""
    return reply, ""


def read_first(reply):
    """What stands behind the first "Action:", up to the next; without it the whole reply."""
    return reply.split("Action:")[:2][-1].strip(), ""


def read_tool(reply):
    """The whole reply: the server looks for the last line. A call on the line below "Action:", as
    the others write it, moves up, where the original's server finds it."""
    return re.sub(r"Action:\s*\n\s*", "Action: ", reply), ""


def read_block(reply):
    """What the last block ```sql holds; without one the whole reply."""
    return reply.split("```sql")[-1].split("```")[0].strip(), ""


def read_fenced(reply):
    """The first block between triple backticks, which its server takes."""
    found = re.search("```.*?```", reply, re.DOTALL)
    return (found[0], "") if found else ("", webarena.UNPARSED)


BABYAI = """\
You are an exploration master that wants to finish every goal you are given. Every round I will \
give you an observation, and you have to respond an action and your thought based on the \
observation to finish the given task. You are placed in a room and you need to accomplish the \
given goal with actions.

You can use the following actions: \n
- turn right \n
- turn left \n
- move forward \n
- go to <obj> <id> \n
- pick up <obj> <id> \n
- go through <door> <id>: <door> must be an open door. \n
- toggle and go through <door> <id>: <door> can be a closed door or a locked door. If you want to \
open a locked door, you need to carry a key that is of the same color as the locked door. \n
- toggle: there is a closed or locked door right in front of you and you can toggle it.
Your response should use the following format:
Thought:
<Your Thought>

Action:
<Your Action>"""

TEXTCRAFT = """\
You are given few useful crafting recipes to craft items in Minecraft. Crafting commands are of \
the format "craft [target object] using [input ingredients]".
Every round I will give you an observation, you have to respond an action based on the state and \
instruction. You can "get" an object (ingredients) from the inventory or the environment, look-up \
the game inventory by "inventory", or "craft" (target) using any of the crafting commands.
Your output must strictly follow this format:"Thought:
your thoughts.

Action:
your next action"

Reminder: \n\
1. Always specify the quantity when using "get" and "craft" commands. - Example of get: get 1 \
lapis lazuli - Example1 of craft: craft 1 blue dye using 1 lapis lazuli - Example2 of craft: craft \
1 golden carrot using 8 gold nugget, 1 carrot
2. When using "get" command, do not specify whether the item comes from the inventory or the \
environment.
3. You can use ONLY crafting commands provided, do not use your own crafting commands. However, if \
the crafting command uses a generic ingredient like "planks", you can use special types of the \
same ingredient e.g. "dark oak planks" in the command instead.

"""

SCIWORLD = """\
You are an agent for science world. Every round I will give you an observation, you have to \
respond an action based on the observation to finish the given task. Here are the actions you may \
take: [\
{"action": "open/close OBJ", "description": "open/close a container"}, \
{"action": "de/activate OBJ", "description": "activate/deactivate a device"}, \
{"action": "connect OBJ to OBJ", "description": "connect electrical components"}, \
{"action": "disconnect OBJ", "description": "disconnect electrical components"}, \
{"action": "use OBJ [on OBJ]", "description": "use a device/item"}, \
{"action": "look around", "description": "describe the current room"}, \
{"action": "look at OBJ", "description": "describe an object in detail"}, \
{"action": "look in OBJ", "description": "describe a container's contents"}, \
{"action": "read OBJ", "description": "read a note or book"}, \
{"action": "move OBJ to OBJ", "description": "move an object to a container"}, \
{"action": "pick up OBJ", "description": "move an object to the inventory"}, \
{"action": "put down OBJ", "description": "drop an inventory item"}, \
{"action": "pour OBJ into OBJ", "description": "pour a liquid into a container"}, \
{"action": "dunk OBJ into OBJ", "description": "dunk a container into a liquid"}, \
{"action": "mix OBJ", "description": "chemically mix a container"}, \
{"action": "go to LOC", "description": "move to a new location"}, \
{"action": "eat OBJ", "description": "eat a food"}, \
{"action": "flush OBJ", "description": "flush a toilet"}, \
{"action": "focus on OBJ", "description": "signal intent on a task object"}, \
{"action": "wait", "description": "take no action for 10 iterations"}, \
{"action": "wait1", "description": "take no action for 1 iteration"}, \
{"action":"examine OBJ","description":"provides a description of the objects present on or in a \
receptacle."}, \
{"action": "task", "description": "describe current task"}, \
{"action": "inventory", "description": "list your inventory"}]
Your response should use the following format:
Thought:
your thoughts.

Action:
your next action"""

ALFWORLD = """\
Interact with a household to solve a task. Imagine you are an intelligent agent in a household \
environment and your target is to perform actions to complete the task goal. At the beginning of \
your interactions, you will be given the detailed description of the current environment and your \
goal to accomplish. For each of your turn, you will be given a list of actions which you can \
choose one to perform in this turn. You should choose from two actions: "THOUGHT" or "ACTION". If \
you choose "THOUGHT", you should first think about the current condition and plan for your future \
actions, and then output your action in this turn. Your output must strictly follow this \
format:"Thought:
your thoughts.

Action:
your next action"; If you choose "ACTION", you should directly output the action in this turn. \
Your output must strictly follow this format:"Action:
your next action". After your each turn, the environment will give you immediate feedback based on \
which you plan your next few steps. if the envrionment output "Nothing happened", that means the \
previous action is invalid and you should try more options.
 Reminder: \n\
1. the action must be chosen from the given available actions. Any actions except provided \
available actions will be regarded as illegal. \n\
2. Think when necessary, try to act directly more in the process."""

WEBSHOP = """\
You are web shopping.
I will give you instructions about what to do.
You have to follow the instructions.
Every round I will give you an observation and a list of available actions, you have to respond an \
action based on the state and instruction.
You can use search action if search is available.
You can click one of the buttons in clickables.
An action should be of the following structure:
search[keywords]
click[value]
If the action is not valid, perform nothing.
Keywords in search are up to you, but the value in click must be a value in the list of available \
actions.
Remember that your keywords in search should be carefully designed.
Your response should use the following format:

Thought:
I think ... \n
Action: \nclick[something]"""

WALK = """\
5, 6. There is a wall above you. left
5, 5. There are walls above you, below you. left
5, 4. There are walls above you, below you. up
5, 4. There are walls above you, below you. left
5, 3. There are walls to your left, below you. down
5, 3. There are walls to your left, below you. left
5, 3. There are walls to your left, below you. down
5, 3. There are walls to your left, below you. left
5, 3. There are walls to your left, below you. right
5, 4. There are walls above you, below you. down
5, 4. There are walls above you, below you. right
5, 5. There are walls above you, below you. right
5, 6. There is a wall above you. down
6, 6. There are walls to your right, to your left. down
7, 6. There are walls to your right, to your left. right
7, 6. There are walls to your right, to your left. down"""
EXAMPLE = re.sub("(?m)^(.*) ([a-z]+)$", r"environment: The goal is at position 8, 6. Your current "
                 r"position is at position \1\naction: move \2", WALK)
MAZE = f"""\
Your objective is to reach the goal in as few steps as possible. At each step you will be given \
information about where the goal is, your current position,
and the walls that surround you. \n
When you move right you increase your y position by 1, when you move down you increase your x \
position by 1. \n
Here is an example.

```
{EXAMPLE}
environment: Success
```

Your possible actions are "move up", "move down", "move left", "move right". Formally, your return \
should be in this format:
Thought:
<Your Thought>

Action:
<Your Action>

Now let's start a new game. Return your action and your thought in the format above strictly. Now, \
make the optimal action given the current environment state:
"""

WORDLE = """\
Welcome to the game of Wordle. Your objective is to guess a hidden 5 letter word. You have 6 \
attempts to guess it correctly and you should try to guess it in as few attempts as possible. When \
guessing the word, you should format your word as a space separated sequence of letters, like \
"s h i r e" for example. After guessing the word, you will receive feedback from the game \
environment in the form of a sequence of 5 space separated letters like "b y g g b", where each \
letter indicates some information about the hidden word. The environment will return one of three \
letters – "b", "g", or "y" – for each letter in the word you guessed. We describe the meaning of \
each letter below:

"b": If the environment returns a "b", it means that the letter at that position in your guessed \
word is not in the hidden word.
"y": If the environment returns a "y", it means that the letter at that position in your guessed \
word is in the hidden word but is not in the correct position.
"g": If the environment returns a "g", it means that the letter at that position in your guessed \
word is in the hidden word and is in the correct position.

As a note, if you guess an invalid word (e.g. not a 5 letter word or a word not in the \
vocabulary), the environment will respond with an "invalid word" message. In general though, you \
should use this information returned by the environment to update your belief about what the \
hidden word might be and adjust your next guess accordingly.

Here is the complete list of valid vocabulary words that are accepted by the game:
```
{vocabulary}
```

Here is an example. If the current status of the game is given as:
```
guess 1: p a n i c
feedback 1: b b y b b
guess 2: f e l o n
feedback 2: g b b y g
```
Based on the feedback from the environment, you know that the first letter is "f", the last letter \
is "n", and there is an "o" somewhere in the word, but it is not in the second to last position. \
You also know that there is not a "p", "a", "i", "c", "e", or "l" in the word. Knowing this, you \
might guess the next word to be:
Thought:
I know that the first letter is "f", the last letter is "n", and there is an "o" somewhere in the \
word, but it is not in the second to last position. I also know that there is not a "p", "a", "i", \
"c", "e", or "l" in the word. A good word from the vocabulary to try might therefore be \
"f r o w n", since it is in the vocabulary, meets all known letter constraints, and we get to gain \
more information about the position of "o". Therefore this is a good guess to try next.

Action:
f r o w n

Formally, your return should be in this format:
Thought:
<Your Thought>

Action:
<The Word You Guess>

The guessed word is in the vocabulary, meets all known letter constraints, and we get to gain more \
information about the position of "o", so it is a good guess to try next.

Now let's start a new game. Remember, the word you guess should be strictly in the vocabulary. You \
should return your thought and your word strictly in the formation mentioned above."""

SEARCHQA = """\
You must always reason inside <think>...</think> first; if you lack knowledge, issue a \
<search>...</search> and then stop; do not generate <information> or <answer> yet; wait for \
external input between <information>...</information> before continuing; resume only when new \
<information> is given; do not skip steps or anticipate answers early."""
SEARCHQA_TASK = """\
You must reason inside <think>...</think> first. If you do not have enough knowledge, issue a \
<search>...</search> and then STOP. Do not generate <information> or <answer> yet. Wait for \
external input wrapped in <information>...</information>. After receiving information, reason \
again in <think>. If confident, output your final answer in <answer>...</answer>. Do not output \
<answer> before receiving <information> unless you are fully confident. If you find no further \
external knowledge needed, you can directly provide the answer inside <answer> and </answer>, \
without detailed illustrations. For example, <answer> Beijing </answer>. Follow this process every \
time.\n\n """

BIRD = """\
Given you a description of a SQlite database system, I will ask you a question, then you should \
help me operate the SQLite database with SQL to answer the question.

You have to explain the problem and your solution to me and write down your thoughts.
After thinking and explaining thoroughly, you should give a SQL statement to solve the question.

your response should be like this:
Thought: Your thought here.

Action: ```sql
SELECT * FROM table WHERE condition;
```

You MUST put SQL in markdown format without any other comments. Your SQL should be in one line. \
Every time you can only execute one SQL statement."""       # as of f434743


WEBARENA = """\
You are an autonomous intelligent agent tasked with navigating a web browser. You will be given \
web-based tasks. These tasks will be accomplished through the use of specific actions you can \
issue.

Here's the information you'll have:
The user's objective: This is the task you're trying to complete.
The current web page's accessibility tree: This is a simplified representation of the webpage, \
providing key information.
The current web page's URL: This is the page you're currently navigating.
The open tabs: These are the tabs you have open.
The previous action: This is the action you just performed. It may be helpful to track your \
progress.

The actions you can perform fall into several categories:

Page Operation Actions:
```click [id]```: This action clicks on an element with a specific id on the webpage.
```type [id] [content] [0|1]```: Use this to type the content into the field with id. By \
default, the "Enter" key is pressed after typing unless the last parameter is set to 0.
```hover [id]```: Hover over an element with id.
`press [key_comb]`:  Simulates the pressing of a key combination on the keyboard (e.g., Ctrl+v).
```scroll [down|up]```: Scroll the page up or down to reveal content below or above the current \
view.

Tab Management Actions:
```new_tab```: Open a new, empty browser tab.
```tab_focus [tab_index]```: Switch the browser's focus to a specific tab using its index.
```close_tab```: Close the currently active tab.

URL Navigation Actions:
```goto [url]```: Navigate to a specific URL.
```go_back```: Navigate to the previously viewed page.
```go_forward```: Navigate to the next page (if a previous 'go_back' action was performed).

Completion Action:
```stop [answer]```: Issue this action when you believe the task is complete. If the objective \
is to find a text-based answer, provide the answer in the bracket. If you believe the task is \
impossible to complete, provide the answer as "N/A" in the bracket.

Homepage:
If you want to visit other websites, check out the homepage at http://homepage.com. It has a \
list of websites you can visit.

To be successful, it is very important to follow the following rules:
1. You should only issue an action that is valid given the current observation
2. You should only issue one action at a time.
3. You should follow the examples to reason step by step and then issue the next action.
4.For ALL actions that take parameters, you MUST enclose each parameter in square brackets [].
5. Generate the action in the correct format. Start with a "Let's think step-by-step...In \
summary, the next action I will perform is" phrase, followed by action inside triple backticks \
(```). For example, "Let's think step-by-step. This page has a search box whose ID is [164]. \
According to the nominatim rule of openstreetmap, I can search for the restaurants near a \
location by "restaurants near". I can submit my typing by pressing the Enter afterwards. In \
summary, the next action I will perform is ```type [164] [restaurants near CMU] [1]```".
6. Issue stop action when you think you have achieved the objective. Don't generate anything \
after stop."""


# First observations: (the environment's own, our PROMPT as the server changed it) -> text

def as_it_came(observation, prompt):
    return observation


def maze_first(observation, prompt):
    return MAZE + observation


def wordle_first(observation, prompt):
    """The vocabulary of this game, a word a line: an original's words are in the prompt, for our
    "open" tasks it is WORDS. The observation itself, a greeting, AgentGym's client never shows."""
    words = re.search(r"the vocabulary is: (.*)\.", prompt)[1].split(", ")
    words = wordle.WORDS if "vocabulary" in observation else words
    return WORDLE.format(vocabulary="\n".join(words))


def searchqa_first(observation, prompt):
    """With the words that an original server writes before the question; its own has them."""
    return SEARCHQA_TASK + observation.removeprefix(SEARCHQA_TASK)


class Manner(NamedTuple):
    """How AgentGym's client of one environment talks to a model."""
    rules: str
    read: object                        # reply -> (action, complaint)
    first: object = as_it_came          # (observation, prompt) -> what the model sees of it
    agreed: str = AGREED                # the model's first words
    write: str = "Thought:\n{thought}\n\nAction:\n{action}"     # a reply in its files


MANNERS = {
    "babyai": Manner(BABYAI, read_line), "textcraft": Manner(TEXTCRAFT, read_line),
    "sciworld": Manner(SCIWORLD, read_last), "alfworld": Manner(ALFWORLD, read_last),
    "webshop": Manner(WEBSHOP, read_last, agreed="Ok."),
    "maze": Manner("You are an expert maze solver.", read_first, maze_first),
    "wordle": Manner("You are an expert wordle player.", read_first, wordle_first),
    "searchqa": Manner(SEARCHQA, read_whole, searchqa_first, "Ok."),
    "bird": Manner(BIRD, read_block, agreed="Ok."),
    "webarena": Manner(WEBARENA, read_fenced, agreed="Ok.", write="Let's think step-by-step. "
                       "{thought} In summary, the next action I will perform is {action}"),
    **{name: Manner(rules, read_tool, agreed="Ok.", write="Thought: {thought}\n\nAction: {action}")
       for name, rules in tool_rules.RULES.items()}}


def manner_of(name):
    """The Manner for the environment of this name. ValueError: AgentGym does not have it."""
    if name not in MANNERS:
        raise ValueError(f"format='agentgym': AgentGym has no {name}, only {', '.join(MANNERS)}; "
                         "use another format")
    return MANNERS[name]


# ---- files of trajectories ----------------------------------------------------------------------
# [{"item_id": "maze_3", "conversations": [{"from": "human", "value": text, "loss": null}, {"from":
# "gpt", "value": text, "loss": false}, ...]}, ...], in AgentTraj and AgentTraj-L: the rules and the
# model's consent, then observations and replies by turns. loss true: the reply is learned.

# Trajectories of each environment in AgentTraj and AgentTraj-L (arXiv:2406.04151, table 2).
SET_SIZES = {
    "agenttraj": dict(webshop=1000, maze=100, wordle=500, alfworld=500, sciworld=1000, babyai=400,
                      textcraft=300, weather=160, movie=100, todo=70, bird=2000),
    "agenttraj_l": dict(webshop=3930, maze=215, wordle=955, alfworld=2420, sciworld=2120,
                        babyai=810, textcraft=374, weather=311, movie=215, todo=135, bird=3000)}


def threshold(env):
    """A trajectory with a score above this is kept: the values of the authors' released code."""
    return {"sciworld": 99, "babyai": 0}.get(env, 0.99)


def read_trajectories(path, names):
    """The trajectories of these environments in a file, as successes in the form of `envs.record`,
    with "opening", the rules and the consent if it has them, and "trained", a bool for each turn; a
    turn's thought is None, its action the whole reply. ValueError: the item and the field that are
    wrong, and what was expected."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            items = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON file: {error}; expected a list of trajectories as in "
                         "AgentTraj-L") from None
    if type(items) is not list or not items:
        raise ValueError(f"{path}: {str(items)[:60]}; expected a list of one item or more")
    demos = [read_item(item, f"{path}: item {i}") for i, item in enumerate(items)]
    if not {demo["env"] for demo in demos} & {*names}:
        raise ValueError(f"{path}: only {', '.join(sorted({d['env'] for d in demos}))}, nothing of "
                         f"{', '.join(names)}; give --env")
    return [demo for demo in demos if demo["env"] in names]


def read_item(item, where):
    """One item of a file as `read_trajectories` gives it. ValueError; where: for its sentence."""
    def expect(fits, name, value, expected):
        if not fits:
            raise ValueError(f"{where}: {name} is {reprlib.repr(value)}; expected {expected}")
    expect(type(item) is dict, "it", item, "an object with item_id and conversations")
    name = item.get("item_id")
    expect(type(name) is str and re.fullmatch(r"\w+_\d{1,9}", name), "item_id", name,
           '"<environment>_<number>"')
    where, messages = f"{where} ({name})", item.get("conversations")
    expect(type(messages) is list and len(messages) > 1, "conversations", messages,
           "a list of two messages or more")
    for i, message in enumerate(messages):
        at, fields = f"conversations[{i}]", message if type(message) is dict else {}
        expect(type(message) is dict, at, message, "an object with from, value, loss")
        who = ("human", "gpt")[i % 2]
        expect(fields.get("from") == who, f"{at}.from", fields.get("from"),
               f'"{who}": human and gpt speak by turns')
        value = fields.get("value")
        expect(type(value) is str and value == value.encode(errors="replace").decode(),
               f"{at}.value", value, "a text, without half a character")
        loss = fields.get("loss")
        expect(loss is None or loss is False or loss is True and who == "gpt", f"{at}.loss", loss,
               "false or null" + ", or true" * (who == "gpt"))
    said, trained = [m["value"] for m in messages], [m.get("loss") is True for m in messages[1::2]]
    expect(any(trained), "loss of gpt's", [m.get("loss") for m in messages[1::2]], "a true")
    opening = 0 if trained[0] else 2            # the rules, and the consent
    going, won = (dict(success=x, valid=True, score=float(x)) for x in (False, True))
    turns = [Move(said[i], None, said[i + 1], 0.0, False, going)
             for i in range(opening, len(said) - 1, 2)]
    turns[-1] = turns[-1]._replace(reward=1.0, done=True, info=won)
    env, _, number = name.rpartition("_")
    env = {"sqlgym": "bird"}.get(env, re.sub("^(lmrlgym|tool)_", "", env))
    return dict(env=env, task_id=int(number), turns=turns,
                opening=said[:opening], success=True,
                last=said[-1] if len(said) % 2 else "", trained=trained[opening // 2:])


WORDINGS = ("{}", "Let me think. {}", "{} So this is my next step.", "What do I know? {}",
            "{} That brings me closer to the goal.")
FORM = "Your response should use the following format:\nThought:\n<Your Thought>\n\n" \
       "Action:\n<Your Action>"


def opening(agent, demo):
    """The agent; for a demonstration of a file in the format agentgym one that opens with the
    file's words. ValueError: in another format these would not be the file's."""
    if "opening" not in demo:
        return agent
    if agent.format != "agentgym":
        if demo["env"] not in ("maze", "wordle"):
            return agent
        raise ValueError(f"{demo['env']}: its files hold AgentGym's rules within the first "
                         "observation; use --format agentgym")
    own = copy.copy(agent)
    rules, agreed = demo["opening"] or (agent.manner.rules, agent.manner.agreed)
    own.manner = Manner(rules, lambda reply: (reply, ""), agreed=agreed)
    return own


def write_trajectories(path, demos, seed):
    """Write the successes among an expert's demonstrations (envs.record) as such a file, its
    reasons in several wordings -> how many."""
    items, rng = [], random.Random(seed)
    for demo in demos:
        module = importlib.import_module(f"envs.{demo['env']}")
        manner = MANNERS.get(module.NAME) or Manner(f"{module.PROMPT}\n{FORM}", None)
        texts = [manner.rules, manner.agreed]
        for i, move in enumerate(demo["turns"]):
            thought = rng.choice(WORDINGS).format(move.thought)
            seen = move.observation if i else manner.first(move.observation, module.PROMPT)
            texts += [seen, manner.write.format(thought=thought, action=move.action)]
        if demo["success"]:
            items.append(dict(item_id=f"{module.NAME}_{demo['task_id']}", conversations=[
                {"from": ("human", "gpt")[i % 2], "loss": i > 1 if i % 2 else None, "value": text}
                for i, text in enumerate(texts)]))
    if not items:
        raise ValueError("no demonstration to write: the expert played none, or had no success")
    if os.path.exists(path):
        raise ValueError(f"{path} is there already; remove it, or give another --out")
    with open(path, "w") as file:
        json.dump(items, file, indent=1)
    return len(items)
