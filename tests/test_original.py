"""pytest tests/test_original.py: worlds played on a server of the original AgentGym, behind ours.

The original's servers are played back from recorded exchanges: their routes and key names, no
/health, no /steps, no `info`.
"""
import json
import os
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import env_server
from client import EnvClient, EnvError
from curriculum import choose_tasks
from env_server import HttpServer
from envs import maze, open_env, wordle
from envs.parts import original
from fakes import canned, serving
from test_client import BROKEN, WRONG_FIELDS

TEXTCRAFT = {"observation": "Crafting commands:\n...\n\nGoal: craft light blue dye.", "done": False,
             "reward": 0}
BABYAI = {"observation": "Your goal: go to the red ball\n...", "reward": 0, "score": 0,
          "deleted": False, "done": False}
# environment: (greeting, keys of /reset, what /create and /reset answer to the session n)
ORIGINALS = {
    "babyai": ("This is environment BabyAI.", {"id", "data_idx"},
               lambda n: {"id": n}, lambda n: BABYAI),
    "textcraft": ("This is environment TextCraft.", {"id", "data_idx"},
                  lambda n: {"id": n, **TEXTCRAFT}, lambda n: {"id": n, **TEXTCRAFT}),
    "sciworld": ("This is environment ScienceWorld.", {"id", "data_idx"},
                 lambda n: {"id": n}, lambda n: {
                     "task_name": "boil", "var_num": 0, "task_description": "Boil water.",
                     "observation": "This room is called the hallway.", "reward": 0,
                     "score": 0, "deleted": False, "done": False}),
    "alfworld": ("This is environment AlfWorld.", {"id", "game", "world_type"},
                 lambda n: {"id": n}, lambda n: {
                     "id": n, "observation": "You are in a room.", "task_type": "look",
                     "available_actions": ["go to bed 1", "look"]}),
    "webshop": ("ok", {"env_idx", "session_id"},
                lambda n: n, lambda n: ["WebShop [SEP] Find a red chair", None]),
    "weather": ("ok", {"env_idx", "id"}, lambda n: n, lambda n: (
        "Now new trial starts.\nYou should perform actions to accomplish the goal: Is it warm?\n"
        "Give me one action.")),
}


class Raw(str):
    """Sent by `recorded` as it stands."""


def recorded(name, plays=()):
    """An original AgentGym server: its routes and keys, FastAPI's 404 and 422. plays[action]: what
    a step answers; server.instead[verb]: what it answers in place of the right thing. server.log:
    the POSTs that arrived; server.sessions: ids that were given."""
    greeting, keys, create, reset = ORIGINALS[name]
    id_key = min(keys & {"id", "env_idx"})
    wanted = {"/create": set(), "/reset": keys, "/step": {id_key, "action"}, "/close": {id_key}}
    if id_key == "env_idx":
        del wanted["/close"]

    def answer(method, path, body):
        if method == "GET":
            return (200, greeting) if path == "/" else (404, {"detail": "Not Found"})
        body = json.loads(body)
        server.log.append((path, body))
        if path not in wanted:
            return 404, {"detail": "Not Found"}
        if not wanted[path] <= set(body):
            return 422, {"detail": [{"type": "missing", "loc": ["body", *wanted[path]]}]}
        if path == "/create":
            server.sessions.append(len(server.sessions))
            return 200, create(server.sessions[-1])
        if body[id_key] not in server.sessions:
            return 200, {"error": f"The id {body[id_key]} is not valid."}
        return 200, reset(body[id_key]) if path == "/reset" else \
            True if path == "/close" else plays[body["action"]]

    def as_text(method, path, body, _):
        status, value = answer(method, path, body)
        value = server.instead.get(path.strip("/"), value)
        return status, value if isinstance(value, Raw) else json.dumps(value)
    server = canned(as_text)
    server.log, server.sessions, server.instead = [], [], {}
    return server


def world(name, success=1.0):
    """A module of this name, as far as its episodes elsewhere need one."""
    return SimpleNamespace(NAME=name, SUCCESS=success, TRAIN=range(2000), TEST=range(2000, 3000))


# ---- the protocols, as recorded -----------------------------------------------------------------

def test_babyai_is_played_as_recorded():
    won = {"observation": "The task is completed.", "reward": 0.8875, "score": 0.8875, "done": True}
    server = recorded("babyai", {"go to red ball 1": won})
    with serving(server) as address:
        env = original.served(world("babyai", 0.1), address)()
        assert env.reset(7).startswith("Your goal")
        assert env.step("go to red ball 1") == (
            "The task is completed.", 0.8875, True, {"success": True, "valid": None,
                                                     "score": 0.8875})
        env.close()
    assert server.log == [
        ("/create", {}), ("/reset", {"id": 0, "data_idx": 7}),
        ("/step", {"id": 0, "action": "go to red ball 1"}), ("/close", {"id": 0})]


def test_babyai_pays_a_success_once():
    """Its level is not done after a small success, and pays again for every further action."""
    paid = {"observation": "You see ...", "reward": 0.325, "score": 0.325, "done": False}
    missed = {"observation": "You see ...", "reward": 0, "score": 0, "done": False}
    with serving(recorded("babyai", {"go": paid, "look": missed})) as address:
        env = original.served(world("babyai", 0.05), address)()
        env.reset(7)
        _, _, done, info = env.step("look")
        assert (done, info["success"]) == (False, False)
        _, reward, done, info = env.step("go")
        assert (reward, done, info["success"]) == (0.325, True, True)
        with pytest.raises(ValueError, match="over; reset first"):
            env.step("go")


def test_sciworld_puts_its_task_before_the_room():
    server = recorded("sciworld", {"focus on apple": {
        "observation": "You focus on the apple.", "reward": -100, "score": -100, "done": True},
        "wait": {"observation": "It boils.", "reward": 83, "score": 100, "done": True}})
    with serving(server) as address:
        env = original.served(world("sciworld", 100), address)()
        assert env.reset(0) == "Boil water.\nThis room is called the hallway."
        _, reward, done, info = env.step("focus on apple")
        assert (reward, done, info["success"]) == (-100, True, False)
        env.reset(1)
        _, reward, done, info = env.step("wait")
        assert (reward, info["score"], info["success"]) == (83, 100, True)
    assert server.sessions == [0]           # a reset keeps the session


def test_alfworld_is_told_its_world_and_tells_its_actions():
    server = recorded("alfworld")
    with serving(server) as address:
        observation = original.served(world("alfworld"), address)().reset(2420)
    assert observation == "You are in a room.\nAVAILABLE ACTIONS: go to bed 1,look"
    assert server.log[-1][1] == {"id": 0, "game": 2420, "world_type": "Text"}


def test_the_second_dialect_is_played():
    server = recorded("webshop", {"search[chair]": {"state": "Page 1", "reward": 0.0,
                                                    "done": False, "info": None},
                                  "click[Buy Now]": {"state": "Thank you!", "reward": 0.75,
                                                     "done": True, "info": None}})
    with serving(server) as address:
        env = original.served(world("webshop"), address)()
        assert env.reset(3) == "WebShop [SEP] Find a red chair"
        assert env.step("search[chair]")[:3] == ("Page 1", 0.0, False)
        assert env.step("click[Buy Now]")[1:] == (
            0.75, True, {"success": False, "valid": None, "score": 0.75})
        env.close()       # the original has no /close here
    assert server.log[-1][0] == "/close"


def test_the_tools_are_played():
    """A whole reply goes there; a result that equals the answer is paid before finish is called."""
    call = "Thought: I ask.\n\nAction: get_user_current_location with Action Input: {}"
    server = recorded("weather", {call: {"observation": "Observation: Oslo\nGive me one action.",
                                         "reward": 1, "done": False}})
    with serving(server) as address:
        env = original.served(world("weather"), address)()
        assert env.reset(7).endswith("Is it warm?\nGive me one action.")
        _, reward, done, info = env.step(call)
        assert (reward, done, info["success"]) == (1.0, True, True)
    assert [body for _, body in server.log] == [
        {"id": 0}, {"env_idx": 0, "id": 7}, {"env_idx": 0, "action": call}]


def lmrl_gym(words=("c r a n e",)):
    """The original's LMRL-Gym: it greets at its root; its routes lie below /maze and /wordle; there
    is no /close. server.log: the POSTs that arrived."""
    sessions = {"maze": 0, "wordle": 0}

    def answer(method, path, body, _):
        if method == "GET":
            return {"/": (200, '"This is environment LMRL-Gym."'),
                    "/wordle/filtered_vocab": (200, json.dumps(words))}.get(
                        path.partition("?")[0], (404, '{"detail": "Not Found"}'))
        body = json.loads(body)
        server.log.append((path, body))
        name, _, verb = path.strip("/").partition("/")
        if verb == "create":
            sessions[name] += 1
            return 200, json.dumps({"id": sessions[name] - 1})
        if verb == "reset" and name == "maze":
            return 200, json.dumps({"observation": f"task {body['game']}"})
        if verb == "reset":
            return 200, json.dumps({"id": body["id"], "observation": "Let's start Wordle!"})
        if verb != "step":
            return 404, '{"detail": "Not Found"}'
        return 200, json.dumps({"observation": "Success", "reward": 1, "done": True})
    server = canned(answer)
    server.log = []
    return server


@pytest.mark.parametrize("name, task_key, first", [("maze", "game", "task 3"),
                                                   ("wordle", "seed", "Let's start Wordle!")])
@pytest.mark.parametrize("below", [False, True])
def test_maze_and_wordle_are_played_as_recorded(name, task_key, first, below):
    server = lmrl_gym()
    with serving(server) as address:
        env = original.served(world(name), address + f"/{name}" * below)()
        assert env.reset(3) == first
        assert env.step("move up") == (
            "Success", 1, True, {"success": True, "valid": None, "score": 1})
    assert server.log == [
        (f"/{name}/create", {}), (f"/{name}/reset", {"id": 0, task_key: 3}),
        (f"/{name}/step", {"id": 0, "action": "move up"})]


# ---- behind our server --------------------------------------------------------------------------

@contextmanager
def as_before(*modules):
    """Afterwards these modules are as they were, whatever original.use made of them."""
    before = [dict(vars(module)) for module in modules]
    try:
        yield
    finally:
        for module, was in zip(modules, before):
            for name in vars(module).keys() - was.keys():
                delattr(module, name)
            vars(module).update(was)
            os.environ.pop(f"NANO_{module.NAME.upper()}_SERVER", None)


@pytest.fixture
def used():
    """original.use, undone after the test."""
    with as_before(maze, wordle):
        yield original.use


def test_use_takes_an_original_wordles_own_words(used):
    with serving(lmrl_gym(["adieu", "stone"])) as address:
        before = wordle.PROMPT
        used(wordle, address)
    assert "the vocabulary is: adieu, stone." in wordle.PROMPT and "abbey" not in wordle.PROMPT
    assert wordle.PROMPT.partition("vocabulary is")[0] == before.partition("vocabulary is")[0]


@pytest.mark.parametrize("words", [{"error": "The id 0 is not valid."}, [["adieu"], 3]])
def test_use_says_when_an_original_names_no_words(used, words):
    with serving(lmrl_gym(words)) as address:
        with pytest.raises(ValueError, match="not valid|words is .*expected list"):
            used(wordle, address)


def test_use_leaves_out_the_tasks_that_are_not_there(used):
    held_out = choose_tasks(maze, "test", 0)
    with serving(lmrl_gym()) as address:
        used(maze, address)
    assert choose_tasks(maze, "test", 0) == [t for t in held_out if t in maze.ORIGINAL] != held_out


@pytest.mark.parametrize("page", ["<html>It works!</html>", "null", "", '{"server": "nginx"}'])
def test_an_address_where_no_original_answers_is_refused(page):
    with serving(canned(lambda *_: (200, page))) as address:
        with pytest.raises(ValueError, match="not as an original AgentGym server of maze"):
            open_env("maze", address)
    with pytest.raises(ValueError, match="no server|refused|Error"):
        open_env("maze", address)           # nobody is there any more


def test_a_whole_episode_goes_through_our_server(used):
    """And a server that is started as a process of its own plays there, too."""
    gym = lmrl_gym()
    with serving(gym) as address:
        used(maze, address)
        with serving(HttpServer(["maze"])) as ours, env_server.local_server("maze") as other:
            for url in (ours, other):
                client = EnvClient(url, "maze")
                replies = client.answer([(None, "reset", (task, 5)) for task in range(5)])
                assert [r.observation for r in replies] == [f"task {task}" for task in range(5)]
                replies = client.answer([(r.session, "step", "move up") for r in replies])
                assert {(r.reward, r.done, r.info["valid"]) for r in replies} == {(1, True, None)}
                client.close()


# ---- what is no answer is an outage, never a reward ---------------------------------------------

def outages(name, verb, wrong):
    """Each of these is one answer of an original, in turn; the same session then goes on."""
    fine = {"babyai": {"observation": "Fine.", "reward": 0, "score": 0, "done": False},
            "webshop": {"state": "Fine.", "reward": 0, "done": False}}[name]
    server = recorded(name, {"go": fine})
    with serving(server) as address:
        kind = original.served(world(name), address)
        for answer in wrong:
            env = kind()
            if verb != "create":
                env.reset(1)
            server.instead = {verb: answer}
            with pytest.raises(EnvError):
                env.step("go") if verb == "step" else env.reset(1)
            server.instead = {}
            env.reset(1)
            assert env.step("go")[:3] == ("Fine.", 0, False)


@pytest.mark.parametrize("name", ["babyai", "webshop"])
@pytest.mark.parametrize("verb", ["create", "reset", "step"])
def test_a_broken_answer_is_an_outage(name, verb):
    right = {"create": "5", "reset": '["x"]' * (name == "webshop")}.get(verb)
    outages(name, verb, [Raw(text) for text in BROKEN if text != right])


@pytest.mark.parametrize("name", ["observation", "reward", "score", "done"])
def test_a_wrong_field_is_an_outage(name):
    right = {"observation": "Fine.", "reward": 0, "score": 0, "done": False}
    wrong = [right | {name: value} for field, value in WRONG_FIELDS if field == name]
    wrong += [{field: value for field, value in right.items() if field != name}]
    outages("babyai", "step", wrong)


def test_an_answer_of_another_session_is_an_outage():
    with serving(recorded("textcraft", {"go": TEXTCRAFT | {"id": 7}})) as address:
        env = original.served(world("textcraft"), address)()
        env.reset(0)
        with pytest.raises(EnvError, match="an answer of id 7 to 0"):
            env.step("go")


def test_a_step_is_never_sent_twice(monkeypatch):
    monkeypatch.setattr(original, "TIMEOUT", 0.1)
    steps = []

    def answer(method, path, body, _):
        if path == "/":
            return 200, '"This is environment BabyAI."'
        if path == "/step":
            steps.append(body)
            time.sleep(0.5)
        return (404, '{"detail": "Not Found"}') if method == "GET" else (
            200, json.dumps({"id": 0, **BABYAI}))
    with serving(canned(answer)) as address:
        env = original.served(world("babyai"), address)()
        env.reset(0)
        with pytest.raises(EnvError, match="Timeout"):
            env.step("turn left")
    assert len(steps) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_original_that_refuses_a_step_has_failed(status):
    """Any text may be sent as an action, so the refusal is not the user's mistake."""
    def answer(method, path, body, _):
        if path.endswith("/step"):
            return status, '{"detail": "bad"}'
        return 200, json.dumps({"id": 0} | TEXTCRAFT if body else ORIGINALS["textcraft"][0])
    with serving(canned(answer)) as address:
        env = original.served(world("textcraft"), address)()
        env.reset(0)
        with pytest.raises(EnvError, match=rf"/step: bad \(status {status}\)"):
            env.step("turn left")
