"""pytest tests/envs/test_openenv.py: OpenEnv's wire, in both directions.

The genuine package plays ours, and serves what we play, in the slow tests: pip install
openenv==0.10.0. The others have servers that the test writes, in the shapes of its 0.10.0.
"""
import importlib.util
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from unittest.mock import Mock

import pytest
from fakes import command, serving
from players import ROOT, play
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import serve

from client import EnvClient, EnvError, Reset, Step
from env_server import HttpServer
from envs import maze, open_env, openenv, with_data
from recipes import serve_openenv

WITHOUT = "openenv is not installed: pip install openenv==0.10.0"
genuine = pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason=WITHOUT)


@contextmanager
def listening(server):
    """The address of a server of the package websockets, meanwhile."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


# ---- ours, played by a client that knows nothing of us ------------------------------------------

class Client:
    """The genuine client's frames, one for one."""

    def __init__(self, address):
        self.socket = connect(f"{address}/ws", proxy=None, legacy=True)

    def ask(self, message):
        with suppress(ConnectionClosed):        # it may have said why
            self.socket.send(message if isinstance(message, str) else json.dumps(message))
        return json.loads(self.socket.recv(60))

    def reset(self, **data):
        return self.ask({"type": "reset", "data": data})["data"]

    def step(self, text):
        return self.ask({"type": "step", "data": {"text": text}})["data"]


def expected(task, luck):
    """An episode of maze by its expert, played without any wire -> (its actions, [(text, reward,
    done)] of the reset and of each)."""
    env = maze.Env()
    first = env.reset(task, luck)
    turns = play(env, most=40)
    return [action for action, *_ in turns], [(first, None, False), *(t[1:4] for t in turns)]


def told(answer):
    return answer["observation"]["text"], answer["reward"], answer["done"]


def test_ten_episodes_at_a_time_are_those_of_the_environment():
    with listening(serve_openenv.server(maze)) as address, ThreadPoolExecutor(10) as pool:
        def episode(index):
            client, (actions, wanted) = Client(address), expected(maze.TEST[index], 5)
            data = dict(split="test", index=index, seed=5, nobody="reads this")
            assert [told(client.reset(**data)), *(told(client.step(a)) for a in actions)] == wanted
            client.socket.close()
        list(pool.map(episode, range(20)))          # raises what was asserted there


def test_a_seed_chooses_the_task_and_metadata_stand_in_both_places():
    with listening(serve_openenv.server(maze)) as address:
        client = Client(address)
        assert told(client.reset(seed=807)) == told(client.reset(index=807 % len(maze.TRAIN)))
        assert client.reset()["observation"]["text"]
        answer = client.step("sing")
        assert answer["metadata"] == answer["observation"]["metadata"] == {
            "success": False, "valid": False, "score": 0.0}
        client.reset(episode_id="x")
        client.step("move up")
        assert client.ask({"type": "state"}) == {
            "type": "state", "data": {"episode_id": "x", "step_count": 1}}


@pytest.mark.parametrize("message, code", [
    ("{", "INVALID_JSON"), ("[" * 100_000, "INVALID_JSON"),
    ("[]", "UNKNOWN_TYPE"), ({"type": "dance"}, "UNKNOWN_TYPE"), ({"type": []}, "UNKNOWN_TYPE"),
    ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": 3}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": "", "speed": 1}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": []}, "VALIDATION_ERROR"),
    ({"type": "state", "data": {"x": 1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"split": "other"}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"index": 10**9}}, "EXECUTION_ERROR"),
    ({"type": "step", "data": {"text": "before any reset"}}, "EXECUTION_ERROR")])
def test_an_error_has_its_code_and_leaves_the_session_alive(message, code):
    with listening(serve_openenv.server(maze)) as address:
        client = Client(address)
        answer = client.ask(message)
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert answer["data"]["message"]
        assert told(client.reset(index=3))[2] is False and told(client.step("move up"))[1] == 0


def test_an_environment_that_breaks_is_an_error_and_never_a_reward(monkeypatch):
    message = {"type": "step", "data": {"text": "move up"}}
    with listening(serve_openenv.server(maze)) as address:
        client = Client(address)
        client.reset(index=3)
        with monkeypatch.context() as patch:
            patch.setattr(maze.Env, "act", Mock(side_effect=OSError("the disk is full")))
            assert client.ask(message)["data"]["code"] == "EXECUTION_ERROR"
        assert client.ask(message)["type"] == "error"
        client.reset(index=3)
        assert client.step("move up")["reward"] == 0


def test_a_session_beyond_the_limit_is_told_so_and_a_closed_one_leaves_its_place():
    with listening(serve_openenv.server(maze, sessions=1)) as address:
        first = Client(address)
        first.reset(index=3)                    # it has the place before the second asks for one
        second = Client(address)
        refusal = json.loads(second.socket.recv(60))
        assert refusal == {"type": "error", "data": {
            "message": refusal["data"]["message"], "code": "CAPACITY_REACHED",
            "active_sessions": 1, "max_sessions": 1}}
        with pytest.raises(ConnectionClosed):
            second.socket.recv(60)
        first.socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            first.socket.recv(60)
        assert Client(address).reset(index=3).get("done") is False


def test_a_web_page_may_not_play():
    with listening(serve_openenv.server(maze)) as address:
        with pytest.raises(InvalidStatus):
            connect(f"{address}/ws", proxy=None, legacy=True, origin="http://evil.example")


# ---- others, played by ours ---------------------------------------------------------------------

ACTION = {"type": "object", "additionalProperties": False, "required": ["guess"], "properties": {
    "metadata": {"type": "object", "default": {}}, "guess": {"type": "string"}}}


def sent(kind, text="Go on.", reward=None, done=False, **more):
    """An observation in the genuine server's frame, as text."""
    return json.dumps({"type": kind, "data": {
        "observation": {"text": text, "metadata": {}}, "reward": reward, "done": done} | more})


def error(code, **more):
    return json.dumps({"type": "error", "data": {"message": "Why.", "code": code} | more})


def game(messages):
    """Add the seed: a right step is paid 0.1; a third of them ends it and is paid 0.8."""
    reset, *steps = messages
    seed = reset["data"]["seed"]
    if not steps:
        return sent("observation", f"seed {seed}")
    right = [step["data"]["guess"] == str(seed) for step in steps]
    won = sum(right) == 3
    return sent("observation", f"{sum(right)} right", 0.8 if won else 0.1 * right[-1], won)


@contextmanager
def playing(answer, action=ACTION, query="", use=True):
    """The address of a server that sends `answer(messages of the session, the last one new)`: None,
    nothing; "", it closes. server.log: messages that came; .most: sessions that were open at a
    time; .world: our side."""
    log, open_now, most = [], set(), [0]

    def serve_one(session):
        messages = []
        open_now.add(session)
        most[0] = max(most[0], len(open_now))
        with suppress(ConnectionClosed, OSError):
            while True:
                messages.append(json.loads(session.recv()))
                log.append(messages[-1])
                if messages[-1]["type"] == "close":
                    break
                text = answer(messages)
                if text == "":
                    session.socket.shutdown(2)
                if text:
                    session.send(text)
        open_now.discard(session)

    def page(connection, request):
        pages = {"/schema": {"action": action, "observation": {}, "state": {}},
                 "/metadata": {"name": "adder", "description": "Say the seed."}}
        return None if request.path == "/ws" else connection.respond(
            200, json.dumps(pages[request.path]))
    server = serve(serve_one, "127.0.0.1", 0, process_request=page)
    with listening(server) as address:
        server.address, server.log, server.most = address + query, log, most
        if use:
            server.world = opened(server.address)
        yield server


def opened(address):
    """A world that plays there: not one of before, from a server that had this port."""
    with_data.cache_clear()
    return open_env("openenv", address)


def episode(world, seed, guesses):
    env = world.Env()
    turns = [env.reset(seed)] + [env.step(guess) for guess in guesses]
    env.close()
    return turns


def test_an_episode_is_the_frames_of_the_wire_and_gives_its_place_back_when_it_is_won():
    with playing(game) as server:
        world = server.world
        assert world.FIELD == "guess" and world.PROMPT.startswith("Say the seed.\nEach turn")
        env, guesses = world.Env(), ["seven", "7", "7", "7"]
        assert env.reset(7) == "seed 7"
        turns = [env.step(guess) for guess in guesses]
        assert server.log == [{"type": "reset", "data": {"seed": 7}}, *(
            {"type": "step", "data": {"guess": guess}} for guess in guesses), {"type": "close"}]
    assert turns[0] == ("0 right", 0, False, {"success": False, "valid": True, "score": 0})
    assert turns[3] == ("3 right", 0.8, True, {"success": True, "valid": True, "score": 1.0})


def test_the_last_reward_is_the_score_and_turns_add_up_to_it():
    with playing(game, query="?reward=last&success=0.75") as server:
        turns = episode(server.world, 7, ["7", "no", "7", "7"])[1:]
    # rewards 0.1, 0, 0.1, 0.8: each turn's is the change
    assert [turn[1] for turn in turns] == [0.1, -0.1, 0.1, 0.7]
    assert [turn[3]["score"] for turn in turns] == [0.1, 0, 0.1, 0.8]
    assert [turn[3]["success"] for turn in turns] == [False, False, False, True]
    assert (server.world.SUCCESS, openenv.SUCCESS) == (0.75, 1)


@pytest.mark.parametrize("reward, paid", [(None, 0), (True, 1), (False, 0), (-2, -2), (0.25, 0.25)])
def test_a_reward_may_be_null_or_a_truth_value(reward, paid):
    with playing(lambda _: sent("observation", reward=reward)) as server:
        assert episode(server.world, 1, ["x"])[1][1] == paid


@pytest.mark.parametrize("observation, text", [
    ({"text": "Hi."}, "Hi."), ({"prompt": "Hi.", "metadata": {"a": 1}, "error": None}, "Hi."),
    ({"out": "Hi.", "code": 0}, '{"out": "Hi.", "code": 0}'), ({"n": 3}, '{"n": 3}'),
    ({"lines": ["é"]}, '{"lines": ["é"]}'), ({}, "{}")])
def test_an_observation_is_its_one_text_or_json(observation, text):
    with playing(lambda _: sent("observation", observation=observation)) as server:
        assert episode(server.world, 1, [])[0] == text


def play_thirty_episodes(address):
    """Ten at a time, through our server, on ten sessions; half are left before their third turn."""
    with serving(HttpServer(["openenv"], data=address)) as url:
        client, sessions = EnvClient(url, "openenv"), [None] * 10
        for round_ in range(3):
            seeds = range(10 * round_, 10 * round_ + 10)
            replies = client.answer([
                (s, Reset(seed)) for s, seed in zip(sessions, seeds)])
            assert [r.observation for r in replies] == [f"seed {seed}" for seed in seeds]
            sessions = [r.session for r in replies]
            for turn, reward in ((1, 0.1), (2, 0.1), (3, 0.8)):
                played = [(s, Step(str(n))) for s, n in zip(sessions, seeds)]
                replies = client.answer(played[::1 if turn < 3 else 2])
                assert len(replies) == (10 if turn < 3 else 5)
                assert {(r.observation, r.reward, r.done, r.info["success"]) for r in replies} == {
                    (f"{turn} right", reward, turn == 3, turn == 3)}
        client.close()


def test_ten_episodes_at_a_time_go_through_our_server():
    """The server has ten places, and all are taken."""
    with playing(game) as server:
        play_thirty_episodes(server.address)
    assert server.most == [10]


# ---- what is no answer is an outage, never a reward ---------------------------------------------

STEP = "observation"
OUTAGES = {         # wrong values of a field: test_client.py has more of them
    "closes": "", "is silent": None, "no JSON": "{", "deep JSON": "[" * 100_000, "a list": "[]",
    "no type": json.dumps({"data": {}}), "another type": sent("state"),
    "no data": json.dumps({"type": STEP}), "data is a list": json.dumps({"type": STEP, "data": []}),
    "error without a code": json.dumps({"type": "error", "data": {}}),
    "a crash": error("EXECUTION_ERROR"), "no such field": error("VALIDATION_ERROR"),
    "a field of ours": error("VALIDATION_ERROR", errors=[
        {"loc": ["guess"], "msg": "too long"}, {"loc": ["speed"], "msg": "extra"}]),
    "errors is 3": error("VALIDATION_ERROR", errors=3),
    "errors of texts": error("VALIDATION_ERROR", errors=["guess"]),
    "NaN": sent(STEP, reward=float("nan")), "a text reward": sent(STEP, reward="1"),
    "no reward": json.dumps({"type": STEP, "data": {"observation": {"text": ""}, "done": False}}),
    "done is null": sent(STEP, done=None), "no observation": sent(STEP, observation=None),
    "half a character": sent(STEP, "\ud800")}


@pytest.mark.parametrize("kind", ["reset", "step"])
@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_is_no_reward_and_the_next_episode_is_played(name, kind, monkeypatch):
    wrong = [OUTAGES[name]]

    def answer(messages):
        return wrong.pop() if wrong and messages[-1]["type"] == kind else game(messages)
    with playing(answer) as server:
        env = server.world.Env()
        with pytest.raises(EnvError), monkeypatch.context() as patch:
            if kind == "step":
                env.reset(7)
            if name == "is silent":
                patch.setattr(openenv, "TIMEOUT", 0.1)
            env.step("7") if kind == "step" else env.reset(7)
        assert env.reset(8) == "seed 8" and env.step("8")[1] == 0.1
        env.close()


def test_a_full_server_is_an_outage_that_tells_its_reason(monkeypatch):
    full = serve(lambda session: session.send(error("CAPACITY_REACHED")), "127.0.0.1", 0)
    with listening(full) as address:            # which says so unasked, and closes
        monkeypatch.setattr(openenv, "URL", address)
        with pytest.raises(EnvError, match="CAPACITY_REACHED"):
            openenv.Env().reset(1)
    with pytest.raises(EnvError, match="refused"):          # and now nobody is there
        openenv.Env().reset(1)


def test_an_outage_behind_our_server_is_an_error_of_its_episode_alone():
    def answer(messages):
        return "{" if messages[-1]["data"].get("guess") == "crash" else game(messages)
    with playing(answer) as server, serving(
            HttpServer(["openenv"], data=server.address)) as url:
        client = EnvClient(url, "openenv")
        one, two = client.answer([(None, Reset(1)), (None, Reset(2))])
        one, two = client.answer([(one.session, Step("crash")), (two.session, Step("2"))])
        assert isinstance(one, EnvError) and two.reward == 0.1
        client.close()


def test_a_text_that_the_server_refuses_is_the_agents_mistake():
    def answer(messages):
        return game(messages) if messages[-1]["data"].get("guess") != "" else error(
            "VALIDATION_ERROR", errors=[{"loc": ["guess"], "msg": "at least 1 character"}])
    with playing(answer) as server:
        turns = episode(server.world, 3, ["", "3"])
    assert turns[1] == ("Refused: at least 1 character", 0, False,
                        {"success": False, "valid": False, "score": 0.0})
    assert turns[2][1] == 0.1


def test_an_episode_that_is_over_at_once_is_an_outage():
    with playing(lambda _: sent("observation", done=True)) as server:
        with pytest.raises(EnvError, match="over before its first action"):
            server.world.Env().reset(1)


# ---- which servers are played, and how ----------------------------------------------------------

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize("properties, required, named, field", [
    ({"message": TEXT}, ["message"], "", "message"), ({"message": TEXT}, [], "", "message"),
    ({"message": TEXT, "note": TEXT, "speed": NUMBER}, ["message"], "", "message"),
    ({"message": TEXT, "note": TEXT}, [], "note", "note"),
    ({"message": TEXT, "note": TEXT}, [], "", None), ({"speed": NUMBER}, [], "", None),
    ({"message": TEXT, "speed": NUMBER}, ["message", "speed"], "", None),
    ({"message": TEXT, "note": TEXT}, ["message"], "note", None),
    ({"message": TEXT}, ["message"], "guess", None), ({"speed": NUMBER}, [], "speed", None),
    ({}, [], "", None), ({"message": 3}, [], "", None), (3, [], "", None)])
def test_the_text_field_is_the_only_one_or_needed_or_named(properties, required, named, field):
    action = {"properties": properties, "required": required}
    with playing(game, action, f"?field={named}" * bool(named), use=False) as server:
        if field:
            assert openenv.use(server.address)["FIELD"] == field
        else:
            with pytest.raises(ValueError, match="openenv: .*(expected|no OpenEnv server)"):
                openenv.use(server.address)


@pytest.mark.parametrize("address", [
    "127.0.0.1:8000", "http://127.0.0.1:1", "ws://", "ws://h?reward=best", "ws://h?threshold=1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="expected ws://HOST:PORT"):
        openenv.use(address)


def test_an_address_where_nobody_or_another_answers_is_refused():
    with serving(HttpServer(["maze"])) as url:
        with pytest.raises(ValueError, match="no OpenEnv server is at ws://127"):
            open_env("openenv", url.replace("http", "ws"))
    with pytest.raises(ValueError, match="no OpenEnv server is at ws://127.*refused"):
        open_env("openenv", url.replace("http", "ws"))
    with pytest.raises(ValueError, match="give one, --data ws://HOST:PORT"):
        open_env("openenv")


# ---- the genuine package ------------------------------------------------------------------------

ADDER = '''
import socket
import uvicorn
from pydantic import Field
from openenv.core import Action, Environment, Observation, State, create_fastapi_app

class Guess(Action):
    guess: str = Field(min_length=1)

class Seen(Observation):
    text: str

class Adder(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None, episode_id=None, **_):
        self.seed, self.right = seed, 0
        return Seen(text=f"seed {seed}")

    def step(self, action, **_):
        if action.guess == "crash":
            raise RuntimeError("it broke")
        hit = action.guess == str(self.seed)
        self.right += hit
        done = self.right == 3
        return Seen(text=f"{self.right} right", reward=0.8 if done else 0.1 * hit, done=done,
                    metadata={"hit": hit})

app = create_fastapi_app(Adder, Guess, Seen, max_concurrent_envs=10)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])
'''


@pytest.fixture
def adder():
    """The address of the same game on the genuine server, which lets ten sessions play."""
    with subprocess.Popen([sys.executable, "-c", ADDER], text=True,
                          stdout=subprocess.PIPE) as process:
        yield f"ws://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


@genuine
@pytest.mark.slow
def test_the_genuine_server_is_played_ten_episodes_at_a_time(adder):
    """It has ten places: each episode leaves its place before the next."""
    assert opened(adder).FIELD == "guess"
    play_thirty_episodes(adder)


@genuine
@pytest.mark.slow
def test_the_genuine_server_is_an_outage_when_it_is_full_fails_or_dies(adder, monkeypatch):
    world = opened(adder)
    envs = [world.Env() for _ in range(11)]
    for env in envs[:10]:
        env.reset(1)
    with pytest.raises(EnvError, match="CAPACITY_REACHED"):
        envs[10].reset(1)
    with pytest.raises(EnvError, match="EXECUTION_ERROR.*it broke"):
        envs[0].step("crash")
    envs[1].close()
    assert envs[10].reset(4) == "seed 4"
    assert not envs[2].step("")[3]["valid"]         # a text that it refuses is the agent's mistake,
    monkeypatch.setattr(world, "FIELD", "word")       # a field that it lacks is not
    with pytest.raises(EnvError, match="VALIDATION_ERROR"):
        envs[2].step("1")
    for env in envs:
        env.close()


@genuine
@pytest.mark.slow
def test_the_genuine_client_plays_ours_ten_episodes_at_a_time():
    from openenv import GenericEnvClient
    with listening(serve_openenv.server(maze, sessions=10)) as address, \
            ThreadPoolExecutor(10) as pool:
        def episode(index):
            actions, wanted = expected(maze.TEST[index], 5)
            with GenericEnvClient(base_url=address).sync() as client:
                answers = [client.reset(split="test", index=index, seed=5)]
                answers += [client.step({"text": action}) for action in actions]
                assert client.state()["step_count"] == len(actions)
            assert [(a.observation["text"], a.reward, a.done) for a in answers] == wanted
        list(pool.map(episode, range(30)))          # raises what was asserted there
        with GenericEnvClient(base_url=address).sync() as client, \
                pytest.raises(Exception, match="reset id 0 first"):
            client.step({"text": "move up"})


@genuine
@pytest.mark.slow
def test_the_class_that_the_docs_print_for_trl_plays_ours():
    docs = (ROOT / "docs" / "protocol.md").read_text()
    code = re.search("```python\n(from openenv .*?)```", docs, re.DOTALL)[1]
    with listening(serve_openenv.server(maze)) as address:
        names = {}
        exec(code.replace("ws://127.0.0.1:8000", address), names)
        player, (actions, wanted) = names["Maze"](), expected(maze.TRAIN[3], None)
        for _ in range(2):
            texts = [player.reset(index=3, prompt="a column"), *(player.act(a) for a in actions)]
            assert texts == [text for text, *_ in wanted]
            assert player.get_reward() == 1 and player.act("move up") == "The episode is over."
        player.client.close()


@pytest.mark.slow
def test_a_run_learns_on_a_server(here, model):
    """A whole train.py, whose own server plays there; for want of players none is in its table."""
    with playing(lambda messages: sent("observation", reward=len(str(messages[-1])) % 3)) as server:
        flags = command(env="openenv", data=server.address, model=model, max_context=600,
                        filter="none", advantage="reinforce_pp")
        out = subprocess.run([sys.executable, ROOT / "train.py", *flags],
                             capture_output=True, text=True, timeout=300)
    assert out.returncode == 0 and "after grpo" in out.stdout, out.stdout + out.stderr
    seeds = {message["data"]["seed"] for message in server.log if message["type"] == "reset"}
    assert seeds & {*openenv.TRAIN} and seeds & {*openenv.TEST}
