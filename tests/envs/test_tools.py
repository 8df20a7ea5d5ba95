"""pytest tests/envs/test_tools.py: what the worlds with named tools share; envs/parts/tools.py.

A tool set made here, whose results are known, stands for them where a rule is at stake; those that
are there are played where each must hold it: their answers against their experts', and every kind
of arguments that a hostile or confused agent might write.
"""
import contextlib
import importlib
import json
import random
import re
import time

import pytest
from players import play

from envs import known_envs
from envs.parts import tools
from envs.parts.tools import Refused, parse, read_arguments, same

TOOL_WORLDS = ("weather", "movie", "academia", "todo", "sheet")
WORLDS = [name for name in TOOL_WORLDS if name in known_envs()]
ASKING = [name for name in WORLDS if name != "sheet"]       # whose answers are texts and numbers
NAME, SUCCESS = "test", 1.0             # this file stands for an environment's, see `Toy.module`
TRAIN, TEST = range(3), range(3, 4)
AGAIN = "\nGive me one action."
FORMAT = 'Format error, please response in the format of  "Action: [your action] with Action ' \
         "Input: [your action input]"
PARAMETERS = "Observation: ERROR | Exception(Parameters in action input are not valid, please " \
             "change your action input.)" + AGAIN


class Task(tools.Draw):
    goal, answer = "How much is the sum of 2 and 3?", 5

    def steps(self, say):
        first = yield "I start.", "add", {"a": 2, "b": 1}
        second = yield say("On.", "Next."), "add", {"a": first, "b": 1}
        return (yield "Last.", "add", {"a": second, "b": 1})


def task(task_id):
    return Task(NAME, task_id, 0)


class Toy(tools.Env):
    tools = "add", "spell", "anything"

    def add(self, a: float, b: float):
        return a + b

    def spell(self, word: str, times: int = 1):
        if not word:
            raise Refused("There is no word.")
        return {"spelt": list(word) * times}

    def anything(self, thing: object):
        return [thing]

    def draw(self, key, rng):
        return rng.randint(0, 9)


def started():
    env = Toy()
    assert env.reset(0).startswith("Now new trial starts.\nYou should perform actions to "
                                   "accomplish the goal: ")
    return env


def said(env, action):
    """(what it answers, reward, done, valid)"""
    observation, reward, done, info = env.step(action)
    assert info["success"] == (reward == 1.0) and info["score"] == reward
    return observation, reward, done, info["valid"]


# ---- the action line ----

@pytest.mark.parametrize("reply, call", [
    ('Thought: I add.\n\nAction: add with Action Input: {"a": 1}\n', ("add", '{"a": 1}')),
    ("I deal with it. Action: add with Action Input: {}", ("add", "{}")),
    ("Action:\nadd with Action Input: {}", ("add", "{}")),
    ("add with\nAction Input: {}", ("add", "{}")),
    ("add with Action Input:", ("add", "")),
    ('Action: add with Action Input:\n{"a": 1}', ("add", '{"a": 1}')),     # as the original's \s*
    (" with Action Input: {}", ("", "{}")),
    ("", None), ("add {}", None), ("add Action Input: {}", None),
    ("add with action input: {}", None), ("Action: add\nAction Input: {}", None),
    ("add with Action Input: {\n}", None),
    ("add with Action Input: {}\nObservation: 3", None),            # made up by the agent
    ("add with Action Input: {}\nadd with Action Input: {}", None),
])
def test_parse_reads_the_last_line(reply, call):
    assert parse(reply) == call
    if call is None:
        assert said(started(), reply) == (FORMAT, 0.0, False, False)


# ---- arguments ----

@pytest.mark.parametrize("text, value", [
    ('{"a": 1000000000000000, "b": [true, "x", -2.5e3]}', {"a": 10**15, "b": [True, "x", -2500.0]}),
    ("{'a': 1, 'b': (True, None, 'x')}", {"a": 1, "b": [True, None, "x"]}),
    ('{"it\'s": "é \\u00e9"}', {"it's": "é é"}), ("{'a': '1' '2',}", {"a": "12"}), ("{}", {}),
    ("{'a': [[[[[[1]]]]]]}", {"a": [[[[[[1]]]]]]}), ('{"a": "NaN"}', {"a": "NaN"}),
])
def test_read_arguments_takes_json_and_pythons_literals(text, value):
    assert read_arguments(text) == value


HOSTILE = {
    "code": "{'a': __import__('os').system('touch EXECUTED')}",
    "comprehension": "{'a': [x for x in ().__class__.__bases__[0].__subclasses__()]}",
    "format string": "{'a': f'{open(chr(69))}'}",
    "power": "{'a': 9**9**9}", "repeated text": "{'a': 'x' * 10**10}",
    "no dict": "[1, 2]", "nothing": "", "half": '{"a": ', "bytes": "{'a': b'x'}",
    "complex": "{'a': 1+2j}", "key": "{1: 2}", "NaN": '{"a": NaN}', "infinite": '{"a": -Infinity}',
    "overflow": '{"a": 1e999}', "huge": '{"a": ' + "9" * 9000 + "}",
    "large": '{"a": 1' + "0" * 16 + "}", "long": '{"a": "' + "x" * 10_000 + '"}',
    "deep list": '{"a": ' + "[" * 8 + "]" * 8 + "}", "deep": '{"a":' * 1500 + "1" + "}" * 1500,
    "deep sums": "{'a': " + "-" * 9000 + "1}", "long sum": "{'a': 1" + "+1" * 4900 + "}",
    "backslashes": "{'a': '" + "\\" * 9001 + "'}", "NUL": "{'a': '\0'}" * 2,
    "half a pair": '{"a": "\\ud800"}', "half a pair in a literal": "{'a': ['\\ud83d']}",
}


@pytest.mark.parametrize("name", WORLDS)
def test_hostile_arguments_are_answered_run_nothing_and_change_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parsed, literal_eval = [], tools.ast.literal_eval
    monkeypatch.setattr(tools.ast, "literal_eval",
                        lambda text: parsed.append(text) or literal_eval(text))
    with contextlib.closing(importlib.import_module(f"envs.{name}").Env()) as env:
        env.reset(0)
        expected = env.expert()
        for tool in (*env.tools[::5], "finish", "eval", "__init__"):
            for kind, text in HOSTILE.items():
                began = time.monotonic()
                assert said(env, f"Action: {tool} with Action Input: {text}") == (
                    PARAMETERS, 0.0, False, False), kind
                assert time.monotonic() - began < 5, kind
        assert env.expert() == expected and not list(tmp_path.iterdir())
    for text in parsed:                         # no name, call or operator reaches Python's parser
        assert not re.search(r"[A-Za-z_]{2,}|[*@%/]", re.sub("True|False|None|'[^']*'", "", text))


# ---- what a call is answered ----

@pytest.mark.parametrize("call, answer, valid", [
    ('add with Action Input: {"a": "1", "b": "2.5", "c": 9}', "3.5", True),     # c: not known
    ('spell with Action Input: {"word": 12, "times": 2}', "{'spelt': ['1', '2', '1', '2']}", True),
    ('anything with Action Input: {"thing": {"a": [1]}}', "[{'a': [1]}]", True),
    ("check_valid_actions with Action Input: {}", "You can use following valid actions: ['add', "
     "'spell', 'anything', 'check_valid_actions', 'finish']", True),
    ("finish with Action Input: {}", "ERROR | KeyError('answer')", False),
    ('add with Action Input: {"a": 1, "b": "' + "x" * 9000 + '"}',
     "ERROR | TypeError(b must be float, not 'xxxxxxxxxxxx...xxxxxxxxxxxxx')", False),
    ('spell with Action Input: {"word": "n", "times": "2"}',
     "ERROR | TypeError(times must be int, not '2')", False),
    ('spell with Action Input: {"word": ""}', "There is no word.", False),
    ("act with Action Input: {}", "ERROR | Invalid action: act.", False),       # Env's, no tool
    (f"{'x' * 999} with Action Input: {{}}", f"ERROR | Invalid action: {'x' * 80}.", False),
    ("x\ud800 with Action Input: {}", "ERROR | Invalid action: x?.", False),    # half a pair
    ('finish with Action Input: {"answer": ["a", 1]}', "ERROR | TypeError('<' not supported "
     "between instances of 'int' and 'str')", False),
])
def test_act_answers_in_the_originals_shapes(call, answer, valid):
    assert said(started(), call) == (f"Observation: {answer}{AGAIN}", 0.0, False, valid)


@pytest.mark.parametrize("answer, reward, shown", [
    ("5", 1.0, "5"), ("5.004", 1.0, "5.004"), ('"5"', 1.0, "5"), ("4", 0.0, "4"),
    ("null", 0.0, "None"), ("true", 0.0, "True"), ('["b", "a"]', 0.0, "['a', 'b']"),
])
def test_finish_ends_the_task_and_is_the_only_reward(answer, reward, shown):
    env = started()
    assert said(env, 'add with Action Input: {"a": 2, "b": 3}')[1:3] == (0.0, False)    # it is 5
    assert said(env, 'anything with Action Input: {"thing": "finish"}')[1:3] == (0.0, False)
    assert said(env, f'finish with Action Input: {{"answer": {answer}}}') == (
        f"Observation: {shown}{AGAIN}", reward, True, True)


@pytest.mark.parametrize("given, wanted, right", [
    (" New  york", "New York", True), ("", "Yes", False), (True, "Yes", False),
    (None, "None", False), (2021, "2021", True), (["Yes"], "Yes", False),
    (1.4901, 1.5, True), (1.52, 1.5, False), ("1.5", 1.5, True), ("1.5 km", 1.5, False),
    ("nan", 1.5, False), (True, 1, False), (None, 0, False), (-1, 1, False),
    (["b", "A"], ["a", "b"], True), (["a"], ["a", "b"], False), ("a", ["a"], False),
    (["a", "a", "b"], ["a", "b"], False), (["a", "a"], ["a", "b"], False),
    (["1", 3.004], [3, 1], True), (["x", 1], [3, 1], False), ({"a": 1}, ["a"], False),
])
def test_same_compares_answers(given, wanted, right):
    assert same(given, wanted) is right


@pytest.mark.parametrize("name", ASKING)
def test_the_clients_rules_say_of_each_tool_what_its_name_says(name):
    """And list the arguments that it takes."""
    module = importlib.import_module(f"envs.{name}")
    env = module.Env
    for tool, description, rest in re.findall(
            r"Name: (\w+)\(.*\)\nDescription: (.*)\n((?:.+\n)*)", module.AGENTGYM.rules):
        listed = re.findall(r"- (\w+) \(Type", rest.partition("Returns")[0])
        assert listed == [*tools.arguments_of(getattr(env, tool))], tool
        for word in re.findall("rain|snow|temp|forecast|histor|current|air|paper|author|person|"
                               "movie|task|project", tool.lower()):
            assert word in description.lower(), (tool, description)


# ---- the expert ----

def test_expert_goes_on_where_the_results_end():
    env = started()
    assert env.expert() == ("I start.", 'add with Action Input: {"a": 2.0, "b": 1.0}')
    env.step('add with Action Input: {"a": 3, "b": 1}')         # the second call, too early
    env.step("nonsense")
    assert env.expert()[1] == 'add with Action Input: {"a": 2.0, "b": 1.0}'
    env.step('Action: add with Action Input: {"b": "1", "a": 2, "c": 0}')      # the first, oddly
    assert env.expert() == ("Last.", 'add with Action Input: {"a": 4.0, "b": 1.0}')
    for n in range(1000):
        env.step(f'add with Action Input: {{"a": {n}, "b": 7}}')
    assert len(env.results) <= 100              # they do not pile up: its own are gone
    env.step(env.expert()[1])
    assert {env.expert()[0] for _ in range(50)} < {"On.", "Next."}      # the same, asked again
    for _ in range(2):
        env.step(env.expert()[1])
    assert env.expert()[1] == 'finish with Action Input: {"answer": 5.0}'
    assert env.step(env.expert()[1])[1] == 1.0


def test_random_action_draws_every_tool_and_finish():
    drawn = {parse(Toy().random_action(random.Random(n)))[0] for n in range(100)}
    assert drawn == {"add", "spell", "anything", "finish"}


def spoken(env):
    """The expert's action, after a look at its thought."""
    thought, action = env.expert()
    assert re.fullmatch(r"['A-Z].*[^.][.?]", thought), thought
    assert "[" not in re.sub(r"\[[0-9, ]+\]", "", thought), thought     # sheet lists its rows
    return action


@pytest.mark.parametrize("name", WORLDS)
def test_expert_succeeds_after_any_detour(name):
    """After some turns of a random player or of its own, and nonsense between; but for what cannot
    be taken back. What it concludes from the tools' replies is the answer from the data."""
    world, rng = importlib.import_module(f"envs.{name}"), random.Random(0)
    with contextlib.closing(world.Env()) as env:
        for task_id in [*world.TRAIN, *world.TEST][::23]:
            env.reset(task_id)
            for _ in range(rng.randrange(13)):
                action = env.expert()[1] if rng.random() < 0.2 else env.random_action(rng)
                if not action.startswith(("finish", "delete_task", "complete_task")):
                    env.step(action)
                env.step("nonsense")
            turns = play(env, most=world.HORIZON, choose=spoken)
            action, *_, info = turns[-1]
            assert info["success"], (task_id, env.task.goal, env.task.answer, action)
            assert all(info["valid"] for *_, info in turns), turns
            given = json.loads(action.partition("Action Input:")[2]).get("answer", env.task.answer)
            assert type(given) is type(env.task.answer) or type(given) in (int, float)


# What a goal is about, and how many such things the first 300 tasks of TRAIN and TEST name.
ABOUT = {
    "weather": (45, 9, lambda t: {t.home.name, *(
        city.name for city in importlib.import_module("envs.weather").cities().values()
        if city.name in t.goal)}),
    "movie": (150, 30, lambda t: {t.film.title, t.person.name}),
    "academia": (150, 30, lambda t: {t.paper.title, t.name}),
    "todo": (15, 6, lambda t: {project["name"] for project in t.projects.values()}),
    "sheet": (6, 2, lambda t: {t.about})}


@pytest.mark.parametrize("name", WORLDS)
def test_test_is_about_other_things_than_train(name):
    world, (of_train, of_test, about) = importlib.import_module(f"envs.{name}"), ABOUT[name]
    train, test = (set().union(*(about(world.task(task_id)) for task_id in ids[:300]))
                   for ids in (world.TRAIN, world.TEST))
    assert not train & test and len(train) >= of_train and len(test) >= of_test


@pytest.mark.parametrize("name", ASKING)
def test_goals_vary(name):
    """Nearly every task has a goal of its own; no answer is empty, and none that of many tasks."""
    world = importlib.import_module(f"envs.{name}")
    tasks = [world.task(task_id) for task_id in [*world.TRAIN][:300]]
    assert len({task.goal for task in tasks}) > 290
    for goal in (task.goal for task in tasks):
        assert re.fullmatch(r"[A-Z\"'].*[.?\]]", goal), goal
        assert not re.search(r"  |[{}]| [,.?]|,[.?]|\b(None|True|False)\b|\b(\w{2,}) \2\b", goal)
    answers = [str(task.answer) for task in tasks if task.answer != "done"]
    assert len(answers) > 150 and max(map(answers.count, answers)) < 45 and "[]" not in answers
    assert 0.4 < answers.count("Yes") / max(1, answers.count("No")) < 2.5
