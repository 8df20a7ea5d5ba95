"""pytest tests/test_client.py: batches, lost answers, dead servers, the protocols of both servers.

Our server runs in this process. The original's are played back from recorded exchanges: their
routes and key names, no /health, no /steps, no `turn`, no `info`.
"""
import functools
import http.client
import itertools
import json
import math
import os
import random
import signal
import socket
import socketserver
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
import urllib3

import client as client_file
import env_server
from client import EnvClient, EnvError, ServersGone, connected
from env_server import HttpServer, local_server
from envs import maze, textcraft_small, wordle
from fakes import LocalClient, Toy, chat_tokenizer, collect, twins
from chat import Agent
from rollout import make_engine

STARTS = [maze.Env().reset(task) for task in range(25)]


@contextmanager
def serving(server):
    """The address at which this server, of any kind, answers meanwhile."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url():
    with serving(HttpServer(["maze", "frozenlake"])) as address:
        yield address


@pytest.fixture
def posts(monkeypatch):
    """The (path, items) that arrived, in order; `posts.lose` answers are not sent."""
    class Posts(list):
        lose = 0
    seen, respond, reply = Posts(), env_server.respond, env_server.HttpRequest.reply

    def noting(services, method, target, body):
        if method == "POST":
            seen.append((target, json.loads(body).get("items")))
        return respond(services, method, target, body)

    def perhaps(handler, status, text):
        if handler.command == "POST" and seen.lose:
            seen.lose -= 1
            handler.close_connection = True
            return handler.connection.shutdown(socket.SHUT_RDWR)
        reply(handler, status, text)
    monkeypatch.setattr(env_server, "respond", noting)
    monkeypatch.setattr(env_server.HttpRequest, "reply", perhaps)
    return seen


def opened(client, tasks):
    replies = client.answer([(None, "reset", task) for task in tasks])
    assert not any(isinstance(reply, EnvError) for reply in replies), replies
    return replies


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text and len(text) < 250, text
    return text


# ---- our server ----

def test_answer_keeps_the_order_of_many_episodes(url, posts):
    client = EnvClient(url, "maze")
    tasks = [7, 3, 24, 0, 7]
    replies = opened(client, tasks)
    assert [r.observation for r in replies] == [STARTS[t] for t in tasks]
    assert len({r.session for r in replies}) == 5 and len(posts) == 1
    actions = ["move up", "move down", "nonsense", "move left", "move up"]
    expected = []
    for task, action in zip(tasks, actions):
        env = maze.Env()
        env.reset(task)
        expected.append(env.step(action))
    replies = client.answer([(r.session, "step", a) for r, a in zip(replies, actions)])
    assert [(r.observation, r.reward, r.done, r.info) for r in replies] == expected
    assert len(posts) == 2
    client.close()


@pytest.mark.parametrize("task, sentence", [
    (9999, "maze: no task 9999"), (-1, "maze: no task -1"), ("7", "Input should be int")])
def test_a_wrong_task_is_the_users_mistake_and_not_tried_again(url, posts, task, sentence):
    client = EnvClient(url, "maze")
    with pytest.raises(ValueError, match=sentence) as error:
        client.answer([(None, "reset", 3), (None, "reset", task)])
    one_sentence(error)
    assert len(posts) == 1


def test_a_server_that_dies_in_mid_episode_is_never_a_reward():
    with local_server("maze") as urls:
        client = EnvClient(urls, "maze")
        replies = opened(client, [1, 2, 3])
    answers = client.answer([(r.session, "step", "move up") for r in replies])
    assert all(isinstance(answer, EnvError) for answer in answers)
    client.close()      # gone already; not an error


def test_two_servers_share_the_episodes_and_answer_side_by_side(monkeypatch):
    arrived, respond = threading.Barrier(2, timeout=5), env_server.respond

    def together(services, method, target, body):
        if method == "POST" and "steps" in target:
            arrived.wait()              # breaks if one server is asked after the other
        return respond(services, method, target, body)
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(HttpServer(["maze"]))) for _ in range(2)]
        client = EnvClient(urls, "maze")
        replies = opened(client, [0, 1, 2, 3, 4])
        assert [r.session[0] for r in replies] == [f"{urls[i]}/maze" for i in (0, 1, 0, 1, 0)]
        assert [r.observation for r in replies] == STARTS[:5]
        monkeypatch.setattr(env_server, "respond", together)
        replies = client.answer([(r.session, "step", "look") for r in replies])
        assert [r.session[0] for r in replies] == [f"{urls[i]}/maze" for i in (0, 1, 0, 1, 0)]


def test_a_slow_server_is_given_up_in_time(monkeypatch):
    respond = env_server.respond

    def slow(services, method, target, body):
        if "steps" in target:
            time.sleep(0.6)
        return respond(services, method, target, body)
    with serving(HttpServer(["maze"])) as url:
        client = EnvClient(url, "maze", timeout=0.1)
        (reply,) = opened(client, [0])
        monkeypatch.setattr(env_server, "respond", slow)
        began = time.perf_counter()
        (error,) = client.answer([(reply.session, "step", "move up")])
        assert isinstance(error, EnvError) and "Timeout" in str(error)
        assert time.perf_counter() - began < 0.5


# ---- who is there? ----

@pytest.mark.parametrize("address", ["127.0.0.1:8000", "", "http://", "ftp://127.0.0.1"])
def test_an_address_that_is_none(address):
    with pytest.raises(EnvError, match="give the address it prints") as error:
        EnvClient(address, "maze")
    one_sentence(error)


def test_the_wrong_environment_on_our_server(url):
    with pytest.raises(EnvError, match="serves maze, frozenlake, not wordle.*server.py w") as e:
        EnvClient(url, "wordle")
    one_sentence(e)


def canned(answer):
    """A server whose `answer(method, path, body)` -> (status, text) is all it does."""
    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())
        do_GET = do_POST

        def log_message(self, *_):
            pass
    Server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 256})   # not just 5
    return Server(("127.0.0.1", 0), Handler)


@pytest.mark.parametrize("page", [
    "<html>It works!</html>", '{"status": "fine"}', "[1, 2]", "17", "null", "", '"hello"',
    '{"server": "nginx"}'])
def test_a_server_that_is_not_ours(page):
    with serving(canned(lambda *_: (200, page))) as address:
        with pytest.raises(EnvError, match="not as an environment server.*server.py maze") as error:
            EnvClient(address, "maze")
    one_sentence(error)


@pytest.mark.parametrize("status", [200, 502])
def test_a_page_of_html_in_mid_episode_is_an_outage(url, status):
    client = EnvClient(url, "maze")
    (reply,) = opened(client, [0])
    with serving(canned(lambda *_: (status, "<html>A proxy</html>"))) as broken:
        client.urls = [broken]
        (error,) = client.answer([((broken, 0), "step", "move up")])
    assert isinstance(error, EnvError) and f"no JSON (status {status})" in str(error)


def test_servers_of_two_kinds_are_refused(url):
    with serving(original("babyai")) as other:
        with pytest.raises(EnvError, match="addresses of one kind"):
            EnvClient([url, other], "maze")


def test_connected_starts_and_ends_a_server_of_its_own():
    with connected("", [maze, textcraft_small]) as (client, other):
        assert opened(other, [0])[0].observation == textcraft_small.Env().reset(0)
        port = int(client.urls[0].split(":")[2].split("/")[0])
        assert opened(client, [3])[0].observation == STARTS[3]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/")


# ---- the original AgentGym ----

DONE = {"error": "The task with environment 0 has finished."}
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
    """Sent by `original` as it stands."""


def original(name, plays=()):
    """An original AgentGym server: its routes and keys, FastAPI's 404 and 422. plays[action]: what
    a step answers; server.instead[verb]: what it answers in place of the right thing. server.log:
    what arrived; server.sessions: ids that were given."""
    greeting, keys, create, reset = ORIGINALS[name]
    id_key = min(keys & {"id", "env_idx"})
    wanted = {"/create": set(), "/reset": keys, "/step": {id_key, "action"}, "/close": {id_key}}
    if id_key == "env_idx":
        del wanted["/close"]

    def answer(method, path, body):
        body = json.loads(body) if body else None
        server.log.append((method, path, body))
        if (method, path) == ("GET", "/"):
            return 200, greeting
        if method == "GET" or path not in wanted:
            return 404, {"detail": "Not Found"}
        if body is None or not wanted[path] <= set(body):
            return 422, {"detail": [{"type": "missing", "loc": ["body", *wanted[path]]}]}
        if path == "/create":
            server.sessions.append(len(server.sessions))
            return 200, create(server.sessions[-1])
        if body[id_key] not in server.sessions:
            return 200, {"error": f"The id {body[id_key]} is not valid."}
        return 200, reset(body[id_key]) if path == "/reset" else \
            True if path == "/close" else plays[body["action"]]

    def as_text(method, path, body):
        status, value = answer(method, path, body)
        value = server.instead.get(path.strip("/"), value)
        return status, value if isinstance(value, Raw) else json.dumps(value)
    server = canned(as_text)
    server.log, server.sessions, server.instead = [], [], {}
    return server


def test_the_original_babyai_is_played_as_recorded():
    won = {"observation": "The task is completed.", "reward": 0.8875, "score": 0.8875, "done": True}
    server = original("babyai", {"go to red ball 1": won, "turn left": DONE})
    with serving(server) as address:
        client = EnvClient(address, "babyai", success=0.1)
        assert client.original and not client.batched
        (reply,) = opened(client, [7])
        assert reply.observation.startswith("Your goal") and reply.session == (address, 0)
        (reply,) = client.answer([(reply.session, "step", "go to red ball 1")])
        assert (reply.reward, reply.done, reply.info) == (
            0.8875, True, {"success": True, "valid": None, "score": 0.8875})
        (error,) = client.answer([(reply.session, "step", "turn left")])
        assert isinstance(error, EnvError) and "has finished" in str(error)
        client.close()
    assert [entry for entry in server.log if entry[0] == "POST"] == [
        ("POST", "/create", {}), ("POST", "/reset", {"id": 0, "data_idx": 7}),
        ("POST", "/step", {"id": 0, "action": "go to red ball 1"}),
        ("POST", "/step", {"id": 0, "action": "turn left"}), ("POST", "/close", {"id": 0})]


def test_the_original_sciworld_puts_its_task_before_the_room():
    server = original("sciworld", {"focus on apple": {
        "observation": "You focus on the apple.", "reward": -100, "score": -100, "done": True},
        "wait": {"observation": "It boils.", "reward": 83, "score": 100, "done": True}})
    with serving(server) as address:
        client = EnvClient(address, "sciworld", success=100)
        first, second = opened(client, [0, 1])
        assert first.observation == "Boil water.\nThis room is called the hallway."
        lost, won = client.answer([(first.session, "step", "focus on apple"),
                                   (second.session, "step", "wait")])
        assert (lost.reward, lost.done, lost.info["success"]) == (-100, True, False)
        assert (won.reward, won.info["score"], won.info["success"]) == (83, 100, True)


def test_the_original_alfworld_is_told_its_world_and_tells_its_actions():
    server = original("alfworld")
    with serving(server) as address:
        (reply,) = opened(EnvClient(address, "alfworld"), [2420])
    assert reply.observation == "You are in a room.\nAVAILABLE ACTIONS: go to bed 1,look"
    assert server.log[-1][2] == {"id": 0, "game": 2420, "world_type": "Text"}


def test_the_original_second_dialect_is_played():
    server = original("webshop", {"search[chair]": {"state": "Page 1", "reward": 0.0,
                                                      "done": False, "info": None},
                                    "click[Buy Now]": {"state": "Thank you!", "reward": 0.75,
                                                       "done": True, "info": None}})
    with serving(server) as address:
        client = EnvClient(address, "webshop", success=1.0)
        (reply,) = opened(client, [3])
        assert reply.observation == "WebShop [SEP] Find a red chair"
        (reply,) = client.answer([(reply.session, "step", "search[chair]")])
        assert (reply.observation, reply.reward, reply.done) == ("Page 1", 0.0, False)
        (reply,) = client.answer([(reply.session, "step", "click[Buy Now]")])
        assert (reply.reward, reply.done, reply.info) == (
            0.75, True, {"success": False, "valid": None, "score": 0.75})
        client.close()       # the original has no /close here
    assert server.log[-1][1] == "/close"


def test_the_original_tools_are_played():
    """A whole reply goes there; a result that equals the answer is paid before finish is called."""
    call = "Thought: I ask.\n\nAction: get_user_current_location with Action Input: {}"
    server = original("weather", {call: {"observation": "Observation: Oslo\nGive me one action.",
                                         "reward": 1, "done": False}})
    with serving(server) as address:
        client = EnvClient(address, "weather", success=1.0)
        (reply,) = opened(client, [7])
        assert reply.observation.endswith("Is it warm?\nGive me one action.")
        (reply,) = client.answer([(reply.session, "step", call)])
        assert (reply.reward, reply.done, reply.info["success"]) == (1.0, True, True)
    assert [body for method, _, body in server.log if method == "POST"][:3] == [
        {"id": 0}, {"env_idx": 0, "id": 7}, {"env_idx": 0, "action": call}]


def test_a_step_is_never_sent_twice_to_an_original():
    steps = []

    def answer(method, path, body):
        if path == "/":
            return 200, '"This is environment BabyAI."'
        if path == "/step":
            steps.append(body)
            time.sleep(0.5)
        return (404, '{"detail": "Not Found"}') if method == "GET" else (
            200, json.dumps({"id": 0, **BABYAI}))
    with serving(canned(answer)) as address:
        client = EnvClient(address, "babyai", timeout=0.1)
        (reply,) = opened(client, [0])
        (error,) = client.answer([(reply.session, "step", "turn left")])
    assert isinstance(error, EnvError) and len(steps) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_original_that_refuses_a_step_has_failed(status):
    """Any text may be sent as an action, so the refusal is not the user's mistake."""
    good = original_toy()
    with serving(canned(lambda method, path, body: (status, '{"detail": "bad"}')
                        if path == "/step" else good(method, path, body))) as address:
        client = EnvClient(address, "textcraft")
        (reply,) = opened(client, [0])
        (error,) = client.answer([(reply.session, "step", "turn left")])
    assert isinstance(error, EnvError) and f"/step: bad (status {status})" in str(error)


@pytest.mark.parametrize("address", ["", "foo", "ftp://x", "http://", "http:///maze"])
def test_find_server_names_what_is_no_address(address):
    with pytest.raises(EnvError, match="is no address, such as http://127.0.0.1:8000; start one"):
        EnvClient(address, "maze")


# ---- the maze and wordle of the original, one server for both ----

def lmrl_gym(words=("c r a n e",)):
    """The original's LMRL-Gym: it greets at its root; its routes lie below /maze and /wordle; there
    is no /close. server.log: what arrived."""
    sessions = {"maze": 0, "wordle": 0}

    def answer(method, path, body):
        server.log.append((method, path, json.loads(body) if body else None))
        name, _, verb = path.strip("/").partition("/")
        if (method, path) == ("GET", "/"):
            return 200, '"This is environment LMRL-Gym."'
        if (method, path) == ("GET", "/wordle/filtered_vocab?id=0"):
            return 200, json.dumps(words)
        if name not in sessions or (method, verb) not in (
                ("POST", "create"), ("POST", "reset"), ("POST", "step")):
            return 404, '{"detail": "Not Found"}'
        if verb == "create":
            sessions[name] += 1
            return 200, json.dumps({"id": sessions[name] - 1})
        if verb == "reset" and name == "maze":
            return 200, json.dumps({"observation": f"task {json.loads(body)['game']}"})
        if verb == "reset":
            return 200, json.dumps({"id": json.loads(body)["id"],
                                    "observation": "Let's start Wordle!"})
        return 200, json.dumps({"observation": "Success", "reward": 1, "done": True})
    server = canned(answer)
    server.log = []
    return server


@pytest.mark.parametrize("name, task_key, first", [("maze", "game", "task 3"),
                                                   ("wordle", "seed", "Let's start Wordle!")])
@pytest.mark.parametrize("below", [False, True])
def test_the_original_maze_and_wordle_are_played_as_recorded(name, task_key, first, below):
    server = lmrl_gym()
    with serving(server) as address:
        client = EnvClient(address + f"/{name}" * below, name)
        (reply,) = opened(client, [3])
        assert reply.observation == first
        (reply,) = client.answer([(reply.session, "step", "move up")])
        assert (reply.observation, reply.reward, reply.done, reply.info) == (
            "Success", 1, True, {"success": True, "valid": None, "score": 1})
    assert [entry for entry in server.log if entry[0] == "POST"] == [
        ("POST", f"/{name}/create", {}), ("POST", f"/{name}/reset", {"id": 0, task_key: 3}),
        ("POST", f"/{name}/step", {"id": 0, "action": "move up"})]


def test_game_of_an_original_wordle_lists_its_words(url):
    with serving(lmrl_gym(["adieu", "stone"])) as address:
        prompt = EnvClient(address, "wordle").game(wordle)[0]
        assert EnvClient(address, "maze").game(maze)[0] == maze.PROMPT
    assert "the vocabulary is: adieu, stone." in prompt and "abbey" not in prompt
    assert prompt.partition("vocabulary is")[0] == wordle.PROMPT.partition("vocabulary is")[0]
    assert EnvClient(url, "maze").game(maze)[0] == maze.PROMPT


def test_game_says_when_an_original_names_no_words():
    with serving(lmrl_gym({"error": "The id 0 is not valid."})) as address:
        with pytest.raises(EnvError, match="not valid"):
            EnvClient(address, "wordle").game(wordle)[0]
    with serving(lmrl_gym([["adieu"], 3])) as address:
        with pytest.raises(EnvError, match="words is .*expected list"):
            EnvClient(address, "wordle").game(wordle)[0]


def test_game_of_an_original_has_its_own_tasks_only(url):
    def known(address, **only):
        return EnvClient(address, "maze").game(SimpleNamespace(PROMPT="", **only))[1]
    assert known(url, ORIGINAL=range(26)) is None
    with serving(lmrl_gym()) as address:
        assert known(address, ORIGINAL=range(26)) == range(26)
        assert known(address) is None


def test_an_original_babyai_pays_a_success_once():
    """Its level is not done after a small success, and pays again for every further action."""
    paid = {"observation": "You see ...", "reward": 0.325, "score": 0.325, "done": False}
    missed = {"observation": "You see ...", "reward": 0, "score": 0, "done": False}
    with serving(original("babyai", {"go": paid, "look": missed})) as address:
        client = EnvClient(address, "babyai", success=0.05)
        (reply,) = opened(client, [7])
        (reply,) = client.answer([(reply.session, "step", "look")])
        assert (reply.done, reply.info["success"]) == (False, False)
        (reply,) = client.answer([(reply.session, "step", "go")])
        assert (reply.reward, reply.done, reply.info["success"]) == (0.325, True, True)


# ---- every value that a server sends is checked ----

BROKEN = ["{}", "[]", "5", "true", "null", '["x"]', '"1"', "NaN", "", "no JSON", "[" * 200_000,
          '{"a":' * 100_000, '{"message": "internal error"}', '{"detail": "?"}', '{"error": "?"}',
          '{"error": ' + "[" * 900 + "]" * 900 + "}"]
WRONG_ITEMS = [None, [], "x", {}, {"error": None}, {"error": "x", "status": "y"},
               {"error": "x", "status": [400]}]
NO_NUMBERS = [None, "1", True, math.nan, math.inf, -math.inf, 10**400, [1], {}]
WRONG_FIELDS = [
    *(("reward", value) for value in NO_NUMBERS),
    *(("score", value) for value in (None, "1", math.nan)),
    *(("done", value) for value in (None, 0, 1, "false", [])),
    *(("success", value) for value in (None, 1, "false")),
    *(("valid", value) for value in (None, 1, "false")),
    *(("id", value) for value in (None, 7, "0", True, 0.0)),
    *(("observation", value) for value in (None, 5, ["x"], "x" * (2**20 + 1), "\ud800")),
    *(("info", value) for value in (None, [], "x", {}))]


@pytest.fixture
def answers(monkeypatch):
    """Set answers.change: what becomes of the text with which our server answers a step."""
    control, respond = SimpleNamespace(change=None), env_server.respond

    def changed(services, method, target, body):
        status, text = respond(services, method, target, body)
        if control.change and target.endswith(control.verb):
            text = control.change(text)
        return status, text
    monkeypatch.setattr(env_server, "respond", changed)
    return control


def outage_of_ours(url, answers, verb, change):
    """The EnvError of one request whose answer was changed; the same client then goes on."""
    client = EnvClient(url, "maze")
    (reply,) = opened(client, [18])
    answers.verb, answers.change = verb, change
    item = (reply.session, "step", "look") if verb == "steps" else (None, "reset", 3)
    (error,) = client.answer([item])
    answers.change = None
    assert isinstance(error, EnvError) and not error.away, error
    assert len(str(error)) < 900 and "\n" not in str(error)
    (fresh,) = opened(client, [5])
    assert fresh.observation == STARTS[5]
    client.close()


@pytest.mark.parametrize("verb", ["steps", "resets"])
@pytest.mark.parametrize("text", [*BROKEN, '{"items": null}', '{"items": []}', '{"items": {}}'],
                         ids=lambda text: text[:12])
def test_answer_makes_an_outage_of_a_broken_answer_of_ours(url, answers, verb, text):
    outage_of_ours(url, answers, verb, lambda _: text)


@pytest.mark.parametrize("item", WRONG_ITEMS, ids=repr)
def test_answer_makes_an_outage_of_a_broken_item_of_ours(url, answers, item):
    outage_of_ours(url, answers, "steps", lambda _: json.dumps({"items": [item]}))


def test_answer_takes_as_many_items_as_it_asked_for(url, answers):
    outage_of_ours(url, answers, "steps", lambda text: json.dumps(
        {"items": json.loads(text)["items"] * 2}))


MISSING = object()


@pytest.mark.parametrize("name, value", [
    *WRONG_FIELDS, *((name, MISSING) for name in dict(WRONG_FIELDS))],
    ids=lambda x: "missing" if x is MISSING else repr(x)[:12])
def test_answer_makes_an_outage_of_a_wrong_field_of_ours(url, answers, name, value):
    def change(text):
        item = json.loads(text)["items"][0]
        place = item if name in item else item["info"]
        assert name in place
        place[name] = value
        if value is MISSING:
            del place[name]
        return json.dumps({"items": [item]})
    outage_of_ours(url, answers, "steps", change)


def outages_of_an_original(name, verb, wrong):
    """Each of these is one answer of an original, in turn; the same client then goes on."""
    fine = {"babyai": {"observation": "Fine.", "reward": 0, "score": 0, "done": False},
            "webshop": {"state": "Fine.", "reward": 0, "done": False}}[name]
    server = original(name, {"go": fine})
    with serving(server) as address:
        client = EnvClient(address, name)
        for answer in wrong:
            (reply,) = opened(client, [1])
            server.instead = {verb: answer}
            (first,) = client.answer([(reply.session, "step", "go") if verb == "step" else
                                      (None, "reset", 1)])
            assert isinstance(first, EnvError) and not first.away, answer
            server.instead = {}
            (reply,) = opened(client, [1])
            (reply,) = client.answer([(reply.session, "step", "go")])
            assert (reply.observation, reply.reward, reply.done) == ("Fine.", 0, False)


@pytest.mark.parametrize("name", ["babyai", "webshop"])
@pytest.mark.parametrize("verb", ["create", "reset", "step"])
def test_answer_makes_an_outage_of_a_broken_answer_of_an_original(name, verb):
    right = {"create": "5", "reset": '["x"]' * (name == "webshop")}.get(verb)
    outages_of_an_original(name, verb, [Raw(text) for text in BROKEN if text != right])


@pytest.mark.parametrize("name", ["observation", "reward", "score", "done"])
def test_answer_makes_an_outage_of_a_wrong_field_of_an_original(name):
    right = {"observation": "Fine.", "reward": 0, "score": 0, "done": False}
    wrong = [right | {name: value} for field, value in WRONG_FIELDS if field == name]
    wrong += [{field: value for field, value in right.items() if field != name}]
    outages_of_an_original("babyai", "step", wrong)


# ---- total time, size, place of an answer ----

@contextmanager
def raw_server(pieces, pause=0.0):
    """An address where every connection is answered by these bytes, with pauses between; pieces():
    an iterator. After the first one has been asked for, the client may hang up."""
    def handle(handler):
        request = piece = handler.request.recv(2**16)
        while piece and request.startswith(b"POST") and not request.endswith(b"}"):
            piece = handler.request.recv(2**16)         # to close over unread bytes is a reset
            request += piece
        with suppress(OSError):
            for piece in pieces():
                handler.request.sendall(piece)
                if stop.wait(pause):
                    return
    stop = threading.Event()
    Handler = type("Handler", (socketserver.BaseRequestHandler,), {"handle": handle})
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server) as address:
        try:
            yield address
        finally:
            stop.set()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("start, piece", [
    (OK, b"X: " + b"y" * 60_000 + b"\r\n"),
    (OK + b"\r\n", b"1" * 2**20), (OK + b"Content-Length: 99999999999\r\n\r\n", b"1" * 2**20),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b"1" * 2**20 + b"\r\n")],
    ids=["headers", "until the end", "length", "chunks"])
def test_an_endless_stream_is_cut(monkeypatch, start, piece):
    monkeypatch.setattr(client_file, "MAX_ANSWER", 2**22)
    sent = [0]

    def pieces():
        yield start
        while True:
            sent[0] += len(piece)
            yield piece
    with raw_server(pieces) as address:
        with pytest.raises(client_file.NO_ANSWER):
            client_file.exchange(urllib3.PoolManager(timeout=0.5, retries=False), "GET",
                                 f"{address}/health")
    if start.startswith(OK + b"\r\n"):
        assert sent[0] < 2**25          # 4 MiB are read, some more wait in the connection


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_named_and_not_followed(url, posts, status):
    client = EnvClient(url, "maze")
    (reply,) = opened(client, [0])
    posts.clear()
    head = f"HTTP/1.1 {status} Moved\r\nLocation: {url}/maze/steps\r\nContent-Length: 0\r\n\r\n"
    with raw_server(lambda: [head.encode()]) as address:
        (error,) = client.answer([((address, 0), "step", "move up")])
        assert isinstance(error, EnvError) and f"redirects to {url}/maze/steps" in str(error)
        with pytest.raises(EnvError, match="redirects to"):
            EnvClient(address, "maze")
    assert posts == []


# ---- servers that go away ----

def end(address):
    """Kill this server of local_server at once, as a crash would."""
    with urlopen(f"{address}/health") as answer:
        os.kill(json.load(answer)["pid"], signal.SIGKILL)


def restarted(address):
    """A context: a new server where another was."""
    return serving(HttpServer(["maze"], port=int(address.rpartition(":")[2])))


class Disturbed(EnvClient):
    """An EnvClient that calls before(number of the call) at each call of answer."""

    def __init__(self, *args, before, **settings):
        super().__init__(*args, **settings)
        self.before, self.calls = before, itertools.count(1)

    def answer(self, items):
        self.before(next(self.calls))
        return super().answer(items)


@functools.cache
def policy():
    tokenizer = chat_tokenizer()
    return twins("llama", vocabulary=len(tokenizer), loud=[0], seed=4)[0], Agent(
        tokenizer, "Be quick.", max_turn_tokens=4, max_context=900)


def played(client, tasks=range(4), group_size=2, horizon=4, **settings):
    return collect(*policy(), client, list(tasks), group_size, horizon, **settings)


def same(a, b):
    """Token for token, turn for turn; log-probabilities to rounding."""
    return replace(a, old_logprobs=[]) == replace(b, old_logprobs=[]) and \
        a.old_logprobs == pytest.approx(b.old_logprobs, abs=1e-4)


@functools.cache
def undisturbed():
    with serving(HttpServer(["maze"])) as address:
        return played(EnvClient(address, "maze"))[0]


def undisturbed_by(got):
    return len(got) == len(undisturbed()) and all(map(same, got, undisturbed()))


def test_a_lost_answer_is_never_asked_for_again_its_episode_is_played_again(posts):
    """By the same key, to the same tokens; the step that acted unseen is not sent twice."""
    with serving(HttpServer(["maze"])) as address:
        client = Disturbed(address, "maze",
                           before=lambda number: number == 3 and setattr(posts, "lose", 1))
        got, stats = played(client)
    assert undisturbed_by(got) and stats.dropped == 0 and len(stats.failures) == 8
    steps = [json.dumps(items, sort_keys=True) for path, items in posts if path.endswith("steps")]
    assert len(steps) == len(set(steps)) or steps.count(steps[0]) < len(steps)


def test_collect_loses_nothing_when_one_of_two_servers_is_killed():
    with local_server("maze", workers=2) as urls:
        client = Disturbed(urls, "maze",
                           before=lambda number: end(urls[0]) if number == 3 else None)
        got, stats = played(client, retries=0)
        assert undisturbed_by(got) and stats.dropped == 0 and stats.failures
        assert [*client.silent] == [f"{urls[0]}/maze"]
        got, stats = played(client, retries=0)
        assert undisturbed_by(got) and stats.dropped == 0


def test_a_server_that_is_back_is_used_again():
    with local_server("maze", workers=2) as urls:
        client = EnvClient(urls, "maze")
        end(urls[1])
        replies = client.answer([(None, "reset", task) for task in range(4)])
        assert [isinstance(reply, EnvError) and reply.away for reply in replies] == [
            False, True, False, True]
        replies = opened(client, range(4))          # it is left alone for a second
        assert {reply.session[0] for reply in replies} == {f"{urls[0]}/maze"}
        with restarted(urls[1]):
            time.sleep(1.1)
            replies = opened(client, range(4))
            assert {reply.session[0] for reply in replies} == {f"{url}/maze" for url in urls}
            assert [reply.observation for reply in replies] == STARTS[:4]
            client.close()


def test_collect_outlives_the_absence_of_the_only_server():
    with local_server("maze") as urls, ExitStack() as stack:
        def before(number):
            if number == 3:
                end(urls[0])
                threading.Timer(1.0, lambda: stack.enter_context(restarted(urls[0]))).start()
        got, stats = played(Disturbed(urls, "maze", before=before), retries=0)
        assert undisturbed_by(got) and stats.dropped == 0 and stats.failures


def test_collect_raises_when_all_servers_are_gone():
    with local_server("maze", workers=2) as urls:
        client = Disturbed(urls, "maze", patience=0.5,
                           before=lambda n: [end(url) for url in urls] if n == 3 else None)
        engine = make_engine(*policy(), 8)
        began = time.perf_counter()
        with pytest.raises(ServersGone, match="no server has answered for 0.5 s") as error:
            played(client, engine=engine)
        assert time.perf_counter() - began < 10
        assert all(url in str(error.value) for url in urls) and "\n" not in str(error.value)
        assert engine.pages.in_use == 0 and client.open == set()


def test_a_server_that_kills_every_episode_is_given_up_in_time():
    """An episode that takes down each server it meets is not played for ever."""
    class Away(LocalClient):
        def one(self, session, kind, argument):
            if kind == "step":
                return EnvError("down again", away=True)
            return super().one(session, kind, argument)
    with pytest.raises(EnvError, match="no episode could be played: down again"):
        played(Away(), tasks=[1])


def test_an_answer_that_comes_too_late_counts_as_the_episodes_fault(monkeypatch):
    respond = env_server.respond

    def slow(services, method, target, body):
        if b"dream" in body:
            time.sleep(0.4)
        return respond(services, method, target, body)
    monkeypatch.setattr(env_server, "respond", slow)
    with serving(HttpServer(["maze"])) as address:
        client = EnvClient(address, "maze", timeout=0.1)
        a, b = opened(client, [1, 2])
        (late,) = client.answer([(a.session, "step", "dream")])
        (fine,) = client.answer([(b.session, "step", "look")])
    assert isinstance(late, EnvError) and not late.away
    assert fine.observation == STARTS[2] and client.silent == {}


# ---- no reward that nobody gave ----

GARBAGE = ['{"message": "internal error"}', "{}", "NaN", '"1"', "null", "[" * 200_000]


def garbling(answer, rng, thrown):
    """`answer(method, path, body)` with three of ten answers to a step replaced by garbage."""
    def garbled(method, path, body):
        status, text = answer(method, path, body)
        if "step" in path and rng.random() < 0.3:
            thrown.append(rng.choice(GARBAGE))
            text = thrown[-1]
        return status, text
    return garbled


def original_toy():
    """fakes.Toy behind the original textcraft's routes -> answer(method, path, body)."""
    worlds, lock = [], threading.Lock()

    def answer(method, path, body):
        body = json.loads(body) if body else {}
        if method == "GET":
            return (200, '"This is environment TextCraft."') if path == "/" else (404, "{}")
        if path == "/create":
            with lock:
                worlds.append(Toy())
                return 200, json.dumps({"id": len(worlds) - 1, **TEXTCRAFT})
        if path == "/close":
            return 200, "true"
        world = worlds[body["id"]]
        if path == "/reset":
            return 200, json.dumps(TEXTCRAFT | {"observation": world.reset(body["data_idx"])})
        observation, reward, done, _ = world.step(body["action"])
        return 200, json.dumps(dict(observation=observation, reward=1 + reward, done=done))
    return answer


@pytest.mark.parametrize("dialect, retries", [("original", 2), ("original", 50), ("ours", 50)])
def test_collect_returns_no_reward_that_the_server_did_not_give(dialect, retries, monkeypatch):
    """Rewards of the original toy are 1 to 2, so a 0 is nobody's; each episode that comes back is
    the one that an unbroken server plays, and what failed or was dropped is counted."""
    rng, thrown, respond = random.Random(3), [], env_server.respond
    if dialect == "original":
        name, healthy = "textcraft", canned(original_toy())
        broken = canned(garbling(original_toy(), rng, thrown))
    else:
        name, healthy, broken = "maze", HttpServer(["maze"]), HttpServer(["maze"])
    settings = dict(tasks=range(12), horizon=3)
    with serving(healthy) as address:
        want = {t.key: t for t in played(EnvClient(address, name, success=9), **settings)[0]}
    assert len(want) == 24
    if dialect != "original":
        monkeypatch.setattr(env_server, "respond", lambda services, *request: garbling(
            lambda *three: respond(services, *three), rng, thrown)(*request))
    with serving(broken) as address:
        client = EnvClient(address, name, success=9)
        got, stats = played(client, retries=retries, **settings)
    assert len(thrown) > 1
    assert all(same(t, want[t.key]) for t in got) and len(got) + 2 * stats.dropped == 24
    if retries == 2:
        assert stats.dropped > 0 and len(stats.failures) >= 3 * stats.dropped
    elif dialect == "original":
        assert stats.dropped == 0 and len(stats.failures) == len(thrown)
    if dialect == "original":
        assert all(turn.reward >= 1 and turn.valid is None for t in got for turn in t.turns)


@pytest.mark.parametrize("away", [60.0, 0.5])
def test_post_leaves_a_late_server_alone_for_half_of_the_patience_at_most(away, monkeypatch):
    """A wait of 120 s, the default, must not outlast a patience of 60."""
    with serving(canned(lambda *_: (200, '{"server": "nanoAgentGym", "environments": ["maze"]}'))) \
            as address:
        client, clock = EnvClient(address, "maze", patience=2 * away), [1000.0]
    monkeypatch.setattr(client_file.time, "monotonic", lambda: clock[0])

    def late(*_):
        clock[0] += 120
        raise urllib3.exceptions.ReadTimeoutError(None, address, "timed out")
    monkeypatch.setattr(client_file, "exchange", late)
    with pytest.raises(EnvError):
        client.post(f"{client.urls[0]}/steps", {})
    assert client.silent == {client.urls[0]: (1120.0, 1120.0 + away)}
