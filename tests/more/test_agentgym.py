"""pytest tests/more/test_agentgym.py: --format agentgym, against the texts and the parsing of
AgentGym's own clients (agentenv/agentenv in github.com/WooooDyy/AgentGym at 3ef9235)."""
import hashlib
import importlib
import re

import pytest

from chat import Agent
from envs import known_envs, load_env, textcraft, webarena, wordle
from envs.parts import maze_prompt, searchqa_prompt, wordle_prompt
from envs.parts.agentgym import manner_of
from envs.parts.tools import arguments_of
from episode import Episode

MANNERS = {name: manner_of(load_env(name)) for name in known_envs()
           if hasattr(load_env(name), "AGENTGYM")}
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
TOOLS = "weather", "movie", "academia", "todo", "sheet"      # their clients have own words
SAY_OK = "searchqa", "webarena", "webshop", "bird", *TOOLS
SEVERAL = "Error: Only one 'Action' is allowed per response. Please adjust your response."


def begun(world, task_id, **settings):
    """(an episode after its first observation, its environment); skips where an engine lacks."""
    try:
        env = world.Env()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    agent = Agent(None, world.PROMPT, format="agentgym", module=world, **settings)
    episode = Episode(agent, task_id, (0,), 5)
    episode.observe(env.reset(task_id))
    return episode, env


def exchange(episode, env, text):
    """The policy's reply and the environment's answer to it -> the message that the policy sees."""
    episode.trajectory.add_action([0], [0.0])
    episode.replied(text, dict(role="assistant", content=text))
    episode.observe(*env.step(episode.request.action))
    return episode.messages[-1]


# ---- the words ----

@pytest.mark.parametrize("text, length, digest", [
    (MANNERS["babyai"].rules, 860, "f03929db839c07bee233b770"),
    (MANNERS["textcraft"].rules, 1156, "e4a4271272c21bf80bcd9ae5"),
    (MANNERS["sciworld"].rules, 2042, "a342b760a710ee216007ace7"),
    (MANNERS["alfworld"].rules, 1330, "ac0d1c2f1a9c9e3e2f14cb98"),
    (MANNERS["webshop"].rules, 740, "5dd9cb5a21953f4560e4fb68"),
    (MANNERS["bird"].rules, 617, "50b479503fa97b1153f50ef0"),
    (maze_prompt.MAZE.removesuffix("\n"), 2973, "da663c708260bf6abdbf49d0"),
    (wordle_prompt.WORDLE.replace("{vocabulary}", "{{vocab}}"), 3017, "6e797b2ad5947f3738617746"),
    (MANNERS["webarena"].rules, 3118, "76b9c42998b992672bf8594a"),
    (MANNERS["searchqa"].rules, 343, "ab80b9d09d68048a5b6ef548"),
    (searchqa_prompt.TASK, 672, "33ddd4c0519509cd264b76af"),     # its server's
])
def test_manner_has_the_clients_words(text, length, digest):
    """Length and SHA-256 of the strings in the clients' files."""
    assert len(text) == length
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)


@pytest.mark.parametrize("name, length, kept", [    # kept: tools that the client tells nobody of
    ("weather", 9276, ()), ("movie", 5736, ()), ("todo", 4602, ()),
    ("academia", 3292, ("paperEdgeCheck", "check_valid_actions")),
    ("sheet", 10448, ("check_valid_actions",))])                # which is ours there
def test_manner_of_tools_names_the_tools_in_as_many_words_as_the_clients(name, length, kept):
    """The clients' files have 12130, 8519, 7352, 6004 and 13336 characters; less those around the
    rules, and escapes."""
    rules, tools = MANNERS[name].rules, importlib.import_module(f"envs.{name}").Env
    assert len(rules) == length
    plain = rules.replace("\n  - ", "\n- ")                     # of which todo's lists consist
    assert "  " not in plain and "\n\n\n" not in plain
    told = dict(re.findall(r"^Name: (\w+)\((.*)\)$", rules, re.M))
    for tool, arguments in told.items():
        assert arguments == ", ".join(arguments_of(getattr(tools, tool)))
    assert {*tools.tools, "finish", "check_valid_actions"} - {*told} == {*kept}


# ---- a reply ----

@pytest.mark.parametrize("reply, line, last, first", [
    ("Thought:\nI need it.\n\nAction:\nget 2 wax", *["get 2 wax"] * 3),
    ("Action: get 2 wax", *["get 2 wax"] * 3),
    ("Action:\n`get 2 wax`.\nThen I craft.", "get 2 wax", *["`get 2 wax`.\nThen I craft."] * 2),
    ("Action: craft 1 a using [2 b], (1 c)", "craft 1 a using 2 b, 1 c",
     *["craft 1 a using [2 b], (1 c)"] * 2),
    ("Action:\n\n  go to  red ball 1.\n", "go to red ball 1", *["go to  red ball 1."] * 2),
    ("get 2 wax", "", "", "get 2 wax"),
    ("Thought: I wait.", "", "", "Thought: I wait."),
    ("action: a", "", "", "action: a"),
    ("", "", "", ""),
    ("Action:", "", "", ""),
    ("Action: a\nAction: b", None, "b", "a"),
    ("Action: a Action: b", "a Action b", "b", "a"),
    ("Thought: Action: a\n\nAction:\nput mug 1 in/on desk 1", None, "put mug 1 in/on desk 1", "a"),
    ("I use search[x]", "", "I use search[x]", "I use search[x]"),
])
def test_manner_read_takes_the_action_that_the_client_takes(reply, line, last, first):
    """What the clients' step() posts for these replies; None: it answers by itself."""
    read = {name: manner.read(reply) for name, manner in MANNERS.items()}
    assert read["babyai"] == read["textcraft"] == (("", SEVERAL) if line is None else (line, ""))
    assert read["alfworld"] == read["sciworld"] == read["webshop"] == (last, "")
    assert read["maze"] == read["wordle"] == (first, "")
    assert read["searchqa"] == (reply, "")


@pytest.mark.parametrize("name, reply, action", [
    ("bird", "Thought: I count.\n\nAction: ```sql\nSELECT 1;\n```", "SELECT 1;"),
    ("bird", "```sql SELECT 1```", "SELECT 1"), ("bird", "```sql\nSELECT 1", "SELECT 1"),
    ("bird", "```sql\nSELECT 1\n``` or rather ```sql\nSELECT 2\n``` I think", "SELECT 2"),
    ("bird", "Action: SELECT 1", "Action: SELECT 1"), ("bird", "SELECT 1", "SELECT 1"),
    ("bird", "```\nSELECT 1\n```", ""), ("bird", "", ""),
    ("webarena", MANNERS["webarena"].write.format(thought="I buy.", action="```click [5]```"),
     "```click [5]```"),
    ("webarena", "```click [5]``` or ```stop [7]```", "```click [5]```"),   # as its server does
    ("webarena", "```\ngoto [x]\n```", "```\ngoto [x]\n```"),
    ("webarena", "click [5]", ""), ("webarena", "```click [5]", ""),
    *((name, reply, reply) for name in TOOLS for reply in ("x", "Thought: I look.\n\nAction: f")),
    # below "Action:" their servers do not look: a call moves up
    *((name, "Thought: t\n\nAction:\n f", "Thought: t\n\nAction: f") for name in TOOLS)])
def test_manner_reads_birds_last_block_webarenas_first_and_of_tools_all(name, reply, action):
    complaint = webarena.UNPARSED if name == "webarena" and not action else ""
    assert MANNERS[name].read(reply) == (action, complaint)


# ---- a conversation ----

@pytest.mark.parametrize("name", MANNERS)
def test_episode_begins_as_agentgyms_conversation(name):
    world = importlib.import_module(f"envs.{name}")
    episode, env = begun(world, world.TEST[0])
    rules, agreed, first = episode.messages
    assert rules == dict(role="user", content=MANNERS[name].rules)
    assert agreed == dict(role="assistant", content="Ok." if name in SAY_OK else AGREED)
    assert first["role"] == "user"
    if name == "searchqa":
        assert first["content"] == env.prompted and "\n\n Question: " in env.prompted
        assert MANNERS[name].first(env.prompted, "") == env.prompted    # an original server's
    if name in ("babyai", "textcraft", "alfworld", "webshop", "bird", *TOOLS):
        assert first["content"] == env.reset(world.TEST[0])
    if name == "maze":
        assert first["content"] == f"{maze_prompt.MAZE.rstrip()}\n{env.reset(world.TEST[0])}"
    if name == "sciworld":                              # it lists things in changing order
        assert first["content"].startswith(f"{env.task_description}\nThis ")


def listed_in(text):
    return text.partition("accepted by the game:\n```\n")[2].partition("\n```\n")[0].split("\n")


def test_episode_of_wordle_begins_with_the_words_of_its_game():
    """Its greeting is not shown. An original's words are in the prompt: see EnvClient.game."""
    for task_id, words in ((0, wordle.LISTED), (44, wordle.WORDS)):
        episode, env = begun(wordle, task_id)
        rules, _, first = (message["content"] for message in episode.messages)
        assert rules == "You are an expert wordle player."
        assert listed_in(first) == list(words) and "Let's start" not in first
        assert all(env.words[i] == word for i, word in enumerate(listed_in(first)))
    answer = exchange(episode, env, "Thought:\nt\n\nAction:\ns h i r e")["content"]
    assert answer == f"{wordle.feedback('shire', wordle.WORDS[44])}\n"   # the client keeps its end
    prompt = wordle.PROMPT.replace(", ".join(wordle.LISTED), "adieu, s t o n e")
    agent = Agent(None, prompt, format="agentgym", module=wordle)
    assert listed_in(agent.first("Let's start Wordle!")) == ["adieu", "s t o n e"]


def test_episode_answers_a_refusal_alone_and_nothing_happens():
    episode, env = begun(textcraft, 0)
    raw = sorted(env.world.raw)[0]
    answer = exchange(episode, env, f"Action: get 1 {raw}\nAction: inventory")
    assert answer == dict(role="user", content=SEVERAL) and env.inventory == {}
    turn = episode.trajectory.turns[0]
    assert turn.reward == 0 and not turn.valid
    assert exchange(episode, env, f"Action: get 1 {raw}.")["content"] == f"Got 1 {raw}"


def test_episode_in_memory_mode_asks_for_a_note_behind_the_rules():
    episode, env = begun(textcraft, 0, context="memory")
    rules, agreed, _ = episode.messages
    assert rules["content"].startswith(MANNERS["textcraft"].rules) and "Note: " in rules["content"]
    exchange(episode, env, "Note: try 7\nThought:\nt\n\nAction:\ninventory")
    assert episode.state == "replying" and [m["role"] for m in episode.messages] == \
        ["user", "assistant", "user"]
    last = episode.messages[-1]["content"]
    assert "Your note: try 7" in last and last.endswith("You are not carrying anything.")


# ---- what AgentGym has not ----

@pytest.mark.parametrize("name", ["bandit", "textcraft_small"])
def test_manner_of_refuses_what_agentgym_does_not_have(name):
    with pytest.raises(ValueError, match=f"^format='agentgym': AgentGym has no {name}; "
                                         "use another format$"):
        manner_of(load_env(name))
