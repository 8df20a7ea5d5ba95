"""pytest tests/more/test_original.py: worlds played on a server of the original AgentGym, behind
ours.

The original's servers are played back from recorded exchanges: their routes and key names, no
/health, no /steps, no `info`.
"""
import itertools
import json
import time
from types import SimpleNamespace

import pytest
from fakes import canned, serving
from test_client import BROKEN, WRONG_FIELDS

import env_server
from client import EnvClient, EnvError, Reset, Step
from env_server import HttpServer
from envs import load_env, open_env, wordle
from envs.parts import original
from envs.parts.wires import wire_of

TEXTCRAFT = {"observation": "Crafting commands:\n...\n\nGoal: craft light blue dye.", "done": False,
             "reward": 0}
BABYAI = {"observation": "Your goal: go to the red ball\n...", "reward": 0, "score": 0,
          "deleted": False, "done": False}
# environment: (greeting, the answers to /create and /reset)
RECORDED = {
    "babyai": ("This is environment BabyAI.", {"id": 0}, BABYAI),
    "textcraft": ("This is environment TextCraft.", {"id": 0} | TEXTCRAFT, {"id": 0} | TEXTCRAFT),
    "sciworld": ("This is environment ScienceWorld.", {"id": 0}, {
        "task_name": "boil", "var_num": 0, "task_description": "Boil water.",
        "observation": "This room is called the hallway.", "reward": 0, "score": 0,
        "deleted": False, "done": False}),
    "alfworld": ("This is environment AlfWorld.", {"id": 0}, {
        "id": 0, "observation": "You are in a room.", "task_type": "look",
        "available_actions": ["go to bed 1", "look"]}),
    "webshop": ("ok", 0, ["WebShop [SEP] Find a red chair", None]),
    "weather": ("ok", 0, "Now new trial starts.\nYou should perform actions to accomplish the "
                         "goal: Is it warm?\nGive me one action."),
    "maze": ("This is environment LMRL-Gym.", {"id": 0}, {"observation": "You are here."}),
    "wordle": ("This is environment LMRL-Gym.", {"id": 0}, {
        "id": 0, "observation": "Let's start Wordle!"})}


def answering(answers):
    """A server with these routes and FastAPI's 404. answers[path]: a JSON value, or (status, text),
    or a function of the request's body that returns one. server.log: the POSTs that arrived."""
    def answer(method, path, body, _):
        value = server.answers.get(path.partition("?")[0])
        if method == "POST":
            body = json.loads(body)
            server.log.append((path, body))
        value = value(body) if callable(value) else value
        value = (404, '{"detail": "Not Found"}') if value is None else value
        return value if isinstance(value, tuple) else (200, json.dumps(value))
    server = canned(answer)
    server.log, server.answers = [], dict(answers)
    return server


def recorded(name, step):
    """An original server of this world, below /maze and /wordle in LMRL-Gym's; it has no /close, as
    many. step: what it answers to a step."""
    greeting, created, started = RECORDED[name]
    root = f"/{name}" if name in ("maze", "wordle") else ""
    return answering({"/": greeting, f"{root}/create": created, f"{root}/reset": started,
                      f"{root}/step": step})


def played(name, address, success=1.0):
    """A session of a module of this name, as far as its episodes elsewhere need one."""
    module = SimpleNamespace(NAME=name, SUCCESS=success, TRAIN=range(2000), TEST=range(2000, 3000),
                             WIRE=wire_of(load_env(name)))
    return original.served(module, address)()


# ---- the protocols, as recorded -----------------------------------------------------------------

CALL = "Thought: I ask.\n\nAction: get_user_current_location with Action Input: {}"


@pytest.mark.parametrize("name, success, reset, first, turns", [
    # turns: (action, its answer there, our observation, reward, done, success, score)
    ("babyai", 0.05, {"id": 0, "data_idx": 7}, BABYAI["observation"], [
        ("look", {"observation": "A ball.", "reward": 0, "score": 0, "done": False},
         "A ball.", 0, False, False, 0),
        # not done after a small success, it would pay again for every further action
        ("go", {"observation": "Done.", "reward": 0.325, "score": 0.325, "done": False},
         "Done.", 0.325, True, True, 0.325)]),
    ("sciworld", 100, {"id": 0, "data_idx": 7}, "Boil water.\nThis room is called the hallway.", [
        ("wait", {"observation": "It boils.", "reward": 83, "score": 100, "done": True},
         "It boils.", 83, True, True, 100)]),
    ("alfworld", 1, {"id": 0, "game": 7, "world_type": "Text"},
     "You are in a room.\nAVAILABLE ACTIONS: go to bed 1,look", [
        ("look", {"observation": "A bed.", "reward": 0, "available_actions": [], "done": False},
         "A bed.", 0, False, False, 0)]),
    ("webshop", 1, {"env_idx": 0, "session_id": 7}, "WebShop [SEP] Find a red chair", [
        ("search[chair]", {"state": "Page 1", "reward": 0.0, "done": False, "info": None},
         "Page 1", 0, False, False, 0),
        ("click[Buy Now]", {"state": "Thank you!", "reward": 0.75, "done": True, "info": None},
         "Thank you!", 0.75, True, False, 0.75)]),
    # a whole reply goes there; a result that equals the answer is paid before finish is called
    ("weather", 1, {"env_idx": 0, "id": 7}, RECORDED["weather"][2], [
        (CALL, {"observation": "Observation: Oslo\nGive me one action.", "reward": 1,
                "done": False}, "Observation: Oslo\nGive me one action.", 1, True, True, 1)]),
    ("maze", 1, {"id": 0, "game": 7}, "You are here.", [
        ("move up", {"observation": "Success", "reward": 0, "done": True},
         "Success", 0, True, False, 0)]),
    ("wordle", 1, {"id": 0, "seed": 7}, "Let's start Wordle!", [
        ("crane", {"observation": "g g g g g", "reward": 1, "done": True},
         "g g g g g", 1, True, True, 1)])])
@pytest.mark.parametrize("below", [False, True])
def test_a_world_is_played_as_recorded(name, success, reset, first, turns, below):
    replies = {action: reply for action, reply, *_ in turns}
    server = recorded(name, lambda body: replies[body["action"]])
    with serving(server) as address:
        env = played(name, address + f"/{name}" * below, success)
        assert env.reset(7) == env.reset(7) == first            # the session stays
        for action, _, observation, reward, done, won, score in turns:
            assert env.step(action) == (observation, reward, done, {
                "success": won, "valid": None, "score": score})
        env.close()
    key = next(iter(reset))
    root = f"/{name}" if name in ("maze", "wordle") else ""
    assert server.log == [
        (f"{root}/create", {"id": 0} if key == "env_idx" else {}), *[(f"{root}/reset", reset)] * 2,
        *((f"{root}/step", {key: 0, "action": action}) for action, *_ in turns),
        (f"{root}/close", {key: 0})]


# ---- behind our server --------------------------------------------------------------------------

def lmrl_gym(words=("c r a n e",)):
    """The original's server of mazes and words; every step wins."""
    numbers, answers = itertools.count(), {"/": "This is environment LMRL-Gym.",
                                           "/wordle/filtered_vocab": words}
    for root in ("/maze", "/wordle"):
        answers |= {f"{root}/create": lambda _: {"id": next(numbers)},
                    f"{root}/reset": lambda body: body | {
                        "observation": f"task {body.get('game')}"},
                    f"{root}/step": {"observation": "Success", "reward": 1, "done": True}}
    return answering(answers)


@pytest.mark.parametrize("words", [{"error": "The id 0 is not valid."}, [["adieu"], 3]])
def test_use_says_when_an_original_names_no_words(words):
    with serving(lmrl_gym(words)) as address:
        with pytest.raises(ValueError, match="not valid|words is .*expected list"):
            original.use(wordle, address)


@pytest.mark.parametrize("page", ["<html>It works!</html>", "null", "", '{"server": "nginx"}'])
def test_an_address_where_no_original_answers_is_refused(page):
    with serving(canned(lambda *_: (200, page))) as address:
        with pytest.raises(ValueError, match="not as an original AgentGym server of maze"):
            open_env("maze", address)
    with pytest.raises(ValueError, match="no server|refused|Error"):
        open_env("maze", address)           # nobody is there any more


def test_a_whole_episode_goes_through_our_server():
    """And a server that is started as a process of its own plays there, too."""
    with serving(lmrl_gym()) as address:
        with serving(HttpServer(["maze"], data=address)) as ours, \
                env_server.local_server("maze", data=address) as other:
            for url in (ours, other):
                client = EnvClient(url, "maze")
                replies = client.answer([(None, Reset(task, 5)) for task in range(5)])
                assert [r.observation for r in replies] == [f"task {task}" for task in range(5)]
                replies = client.answer([(r.session, Step("move up")) for r in replies])
                assert {(r.reward, r.done, r.info["valid"]) for r in replies} == {(1, True, None)}
                client.close()


# ---- what is no answer is an outage, never a reward ---------------------------------------------

FINE = {"babyai": {"observation": "Fine.", "reward": 0, "score": 0, "done": False},
        "webshop": {"state": "Fine.", "reward": 0, "done": False}}


def outages(name, verb, wrong):
    """Each of these is one answer of an original, in turn; the same session then goes on."""
    server = recorded(name, FINE[name])
    right = dict(server.answers)
    with serving(server) as address:
        for answer in wrong:
            env = played(name, address)
            if verb != "create":
                env.reset(1)
            server.answers[f"/{verb}"] = answer
            with pytest.raises(EnvError):
                env.step("go") if verb == "step" else env.reset(1)
            server.answers.update(right)
            env.reset(1)
            assert env.step("go")[:3] == ("Fine.", 0, False)


def test_an_outage_is_one_line_in_the_terminal(capfd):
    """Four episodes meet it, twice each; the client is told every time."""
    server = recorded("babyai", FINE["babyai"])
    with serving(server) as address:
        service = env_server.Service("babyai", address)
        server.answers["/reset"] = (503, "down")
        for _ in range(8):
            answer = env_server.VERBS["resets"](service, {"items": [{"task": 1}]})["items"][0]
            assert answer["status"] == 500 and "/reset: " in answer["error"]
    said = capfd.readouterr().err
    assert said.startswith(f"env_server: babyai: {address}/reset: ") and said.count("\n") == 1


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("verb", ["create", "reset", "step"])
def test_a_broken_answer_is_an_outage(name, verb):
    right = {"create": "5", "reset": '["x"]' * (name == "webshop")}.get(verb)
    outages(name, verb, [(200, text) for text in BROKEN if text != right])


@pytest.mark.parametrize("name", FINE["babyai"])
def test_a_wrong_field_is_an_outage(name):
    right = FINE["babyai"]
    wrong = [right | {name: value} for field, value in WRONG_FIELDS if field == name]
    outages("babyai", "step", [*wrong, {key: right[key] for key in right if key != name}])


@pytest.mark.parametrize("answer, sentence", [
    (TEXTCRAFT | {"id": 7}, "an answer of id 7 to 0"),          # of another session
    # any text may be sent as an action, so a refusal is not the user's mistake
    *(((status, '{"detail": "bad"}'), rf"/step: bad \(status {status}\)") for status in (400, 422)),
    (lambda _: time.sleep(0.5), "Timeout")])
def test_a_step_that_fails_is_an_outage_and_never_sent_twice(monkeypatch, answer, sentence):
    monkeypatch.setattr(original, "TIMEOUT", 0.2)
    server = recorded("textcraft", answer)
    with serving(server) as address:
        env = played("textcraft", address)
        env.reset(0)
        with pytest.raises(EnvError, match=sentence):
            env.step("turn left")
    assert server.log[2:] == [("/step", {"id": 0, "action": "turn left"})]
