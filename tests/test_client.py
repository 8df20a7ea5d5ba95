"""pytest tests/test_client.py: batches, lost answers, dead servers, the protocols of both servers.

Our server runs in this process. The original's are played back from recorded exchanges: their
routes and key names, no /health, no /steps, no `turn`, no `info`.
"""
import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import client as client_file
import env_server
from client import EnvClient, EnvError, OriginalServer, connected, split
from env_server import HttpServer, local_server
from envs import maze

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
    client.close([r.session for r in replies])


def test_answer_mixes_resets_and_steps(url):
    client = EnvClient(url, "maze")
    first, second = opened(client, [18, 5])
    items = [(first.session, "step", "move up"), (None, "reset", 6), (second.session, "reset", 8)]
    stepped, fresh, again = client.answer(items)
    assert stepped.observation != STARTS[18] and fresh.observation == STARTS[6]
    assert again.observation == STARTS[8] and again.session[:2] == second.session[:2]
    assert {session[:2] + (episode,): turns for session, (episode, turns)
            in client.playing.items()} == {first.session: 1, again.session: 0, fresh.session: 0}
    client.close(list(client.playing))
    assert client.playing == {}


def test_answer_gives_an_episode_its_stream(url, posts):
    client = EnvClient(url, "frozenlake")
    reply, _ = opened(client, [(3, 77), 3])
    episodes = [item.pop("episode") for item in posts[0][1]]
    assert posts[0][1] == [{"data_idx": 3, "stream": 77}, {"data_idx": 3}]
    assert len(set(map(int, episodes))) == 2
    client.close([reply.session])


def test_answer_cuts_a_batch_that_one_request_cannot_hold(url, posts):
    client = EnvClient(url, "maze")
    replies = opened(client, [i % 25 for i in range(600)])
    assert [r.observation for r in replies] == [STARTS[i % 25] for i in range(600)]
    assert [len(items) for _, items in posts] == [256, 256, 88]
    # 600 x 10 kB are 6 MB, six times what the server reads
    replies = client.answer([(r.session, "step", "x" * 10_000) for r in replies])
    assert all(r.info["valid"] is False for r in replies)
    client.close([r.session for r in replies])


def test_answer_gives_each_episode_its_own_request_unless_batched(url, posts):
    client = EnvClient(url, "maze", batched=False)
    replies = opened(client, [7, 3, 24])
    assert [r.observation for r in replies] == [STARTS[t] for t in (7, 3, 24)]
    assert [len(items) for _, items in posts] == [1, 1, 1]
    client.close([r.session for r in replies])


def test_split_counts_what_is_sent():
    assert split([]) == []
    snowmen = [(i, {"action": "☃" * 1000}) for i in range(200)]     # 6 bytes each in JSON: 1.2 MB
    parts = split(snowmen)
    assert [pair for part in parts for pair in part] == snowmen
    assert len(parts) == 3
    assert all(len(json.dumps(part)) < env_server.MAX_BODY for part in parts)


@pytest.mark.parametrize("retries, lose", [(1, 1), (2, 2)])
def test_a_lost_answer_is_asked_for_again_and_acts_once(url, posts, retries, lose):
    client = EnvClient(url, "maze", retries=retries)
    (reply,) = opened(client, [18])
    posts.clear()
    posts.lose = lose
    (reply,) = client.answer([(reply.session, "step", "move up")])
    env = maze.Env()
    env.reset(18)
    assert reply.observation == env.step("move up")[0]      # moved one cell up, not two
    assert [items[0]["turn"] for _, items in posts] == [0] * (lose + 1)
    (reply,) = client.answer([(reply.session, "step", "move up")])
    assert reply.observation == env.step("move up")[0]
    client.close([reply.session])


def test_a_request_is_sent_again_a_bounded_number_of_times(url, posts):
    client = EnvClient(url, "maze", retries=2)
    (reply,) = opened(client, [18])
    posts.clear()
    posts.lose = 3
    (error,) = client.answer([(reply.session, "step", "move up")])
    assert isinstance(error, EnvError) and len(posts) == 3
    assert client.playing[reply.session[:2]][1] == 0
    client.close([reply.session])


@pytest.mark.parametrize("task, sentence", [
    (9999, "maze: no task 9999"), (-1, "maze: no task -1"), ("7", "Input should be int")])
def test_a_wrong_task_is_the_users_mistake_and_not_tried_again(url, posts, task, sentence):
    client = EnvClient(url, "maze")
    with pytest.raises(ValueError, match=sentence) as error:
        client.answer([(None, "reset", 3), (None, "reset", task)])
    one_sentence(error)
    assert len(posts) == 1


def test_an_expired_session_is_an_outage(url):
    client = EnvClient(url, "maze")
    a, b = opened(client, [1, 2])
    client.close([a.session])
    client.playing[a.session[:2]] = a.session[2], 0
    gone, fine = client.answer([(s, "step", "move up") for s in (a.session, b.session)])
    assert isinstance(gone, EnvError) and "not valid any more" in str(gone)
    assert fine.observation.startswith("The goal")
    client.close([b.session])


def test_a_server_that_dies_in_mid_episode_is_never_a_reward():
    with local_server("maze") as urls:
        client = EnvClient(urls, "maze", retries=1)
        replies = opened(client, [1, 2, 3])
    answers = client.answer([(r.session, "step", "move up") for r in replies])
    assert all(isinstance(answer, EnvError) for answer in answers)
    client.close([r.session for r in replies])      # gone already; not an error


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
        assert [r.session[0] for r in replies] == [0, 1, 0, 1, 0]
        assert [r.observation for r in replies] == STARTS[:5]
        monkeypatch.setattr(env_server, "respond", together)
        replies = client.answer([(r.session, "step", "look") for r in replies])
        assert [r.session[0] for r in replies] == [0, 1, 0, 1, 0]


def test_a_slow_server_is_given_up_in_time(monkeypatch):
    respond = env_server.respond

    def slow(services, method, target, body):
        if "steps" in target:
            time.sleep(0.6)
        return respond(services, method, target, body)
    with serving(HttpServer(["maze"])) as url:
        client = EnvClient(url, "maze", timeout=0.1, retries=0)
        (reply,) = opened(client, [0])
        monkeypatch.setattr(env_server, "respond", slow)
        began = time.perf_counter()
        (error,) = client.answer([(reply.session, "step", "move up")])
        assert isinstance(error, EnvError) and "Timeout" in str(error)
        assert time.perf_counter() - began < 0.5


# ---- who is there? ----

def test_a_dead_server_at_the_start_says_what_to_start():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EnvError, match="no environment server at http.*env_server.py maze") as e:
        EnvClient(address, "maze")
    one_sentence(e)


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
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


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
        client.servers[0].url = broken
        (error,) = client.answer([(reply.session, "step", "move up")])
    assert isinstance(error, EnvError) and f"no JSON (status {status})" in str(error)


def test_servers_of_two_kinds_are_refused(url):
    with serving(original("babyai")) as other:
        with pytest.raises(EnvError, match="addresses of one kind"):
            EnvClient([url, other], "maze")


def test_connected_starts_and_ends_a_server_of_its_own():
    with connected("", "maze", 1.0) as client:
        port = int(client.servers[0].url.split(":")[2].split("/")[0])
        assert opened(client, [3])[0].observation == STARTS[3]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/")


def test_connected_takes_given_addresses(url):
    with connected(f"{url},{url}/maze/", "maze", 1.0) as client:
        assert [server.url for server in client.servers] == [f"{url}/maze"] * 2
        assert [r.observation for r in opened(client, [3, 4])] == STARTS[3:5]


def test_connected_tells_why_no_server_starts():
    with pytest.raises(EnvError, match="no local server: .*babylon") as error:
        with connected("", "babylon", 1.0):
            pass
    one_sentence(error)


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
}


def original(name, plays=()):
    """An original AgentGym server: its routes and keys, FastAPI's 404 and 422. plays[action]: what
    a step answers. server.log: what arrived; server.sessions: ids that were given."""
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

    def as_text(*request):
        status, value = answer(*request)
        return status, json.dumps(value)
    server = canned(as_text)
    server.log, server.sessions = [], []
    return server


def test_the_original_babyai_is_played_as_recorded():
    won = {"observation": "The task is completed.", "reward": 0.8875, "score": 0.8875, "done": True}
    server = original("babyai", {"go to red ball 1": won, "turn left": DONE})
    with serving(server) as address:
        client = EnvClient(address, "babyai", success=0.1)
        assert isinstance(client.servers[0], OriginalServer) and not client.batched
        (reply,) = opened(client, [7])
        assert reply.observation.startswith("Your goal") and reply.session[:2] == (0, 0)
        (reply,) = client.answer([(reply.session, "step", "go to red ball 1")])
        assert (reply.reward, reply.done, reply.info) == (
            0.8875, True, {"success": True, "valid": None, "score": 0.8875})
        (error,) = client.answer([(reply.session, "step", "turn left")])
        assert isinstance(error, EnvError) and "has finished" in str(error)
        client.close([reply.session])
    assert [entry for entry in server.log if entry[0] == "POST"] == [
        ("POST", "/create", {}), ("POST", "/reset", {"id": 0, "data_idx": 7}),
        ("POST", "/step", {"id": 0, "action": "go to red ball 1"}),
        ("POST", "/step", {"id": 0, "action": "turn left"}), ("POST", "/close", {"id": 0})]


def test_the_original_textcraft_is_played_as_recorded():
    server = original("textcraft", {
        "get 1 blue orchid": {"observation": "Got 1 blue orchid", "reward": 0, "done": False},
        "craft": {"observation": "Crafted 1 minecraft:light_blue_dye", "reward": 1, "done": True}})
    with serving(server) as address:
        client = EnvClient(f"{address}/", "textcraft")
        a, b = opened(client, [0, (5, 123)])            # a stream means nothing to the original
        assert (a.session[:2], b.session[:2]) == ((0, 0), (0, 1))
        assert a.observation == TEXTCRAFT["observation"]
        got, crafted = client.answer([(a.session, "step", "get 1 blue orchid"),
                                      (b.session, "step", "craft")])
        assert (got.observation, got.done, got.info["success"]) == ("Got 1 blue orchid", 0, False)
        assert (crafted.reward, crafted.done, crafted.info["success"]) == (1, True, True)
    assert ("POST", "/reset", {"id": 1, "data_idx": 5}) in server.log


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
        client.close([reply.session])       # the original has no /close here
    assert server.log[-1][1] == "/close"


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
        client = EnvClient(address, "babyai", timeout=0.1, retries=3)
        (reply,) = opened(client, [0])
        (error,) = client.answer([(reply.session, "step", "turn left")])
    assert isinstance(error, EnvError) and len(steps) == 1


def test_an_original_is_not_asked_again_for_what_it_calls_wrong(monkeypatch):
    with serving(original("alfworld")) as address:
        client = EnvClient(address, "alfworld")
        monkeypatch.setattr(client_file, "RESET_ALSO", {})  # then world_type is missing: status 422
        with pytest.raises(ValueError, match="world_type.*422"):
            client.answer([(None, "reset", 3)])


class Forgetful(list):
    def __contains__(self, session):
        return False


def test_an_original_whose_reset_fails_keeps_no_session_open():
    server = original("babyai")
    with serving(server) as address:
        client = EnvClient(address, "babyai")
        server.sessions = Forgetful()        # no id is valid: the reset answers an error
        (error,) = client.answer([(None, "reset", 0)])
    assert isinstance(error, EnvError) and server.log[-1][1] == "/close"
