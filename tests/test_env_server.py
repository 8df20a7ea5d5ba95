"""pytest tests/test_env_server.py: the original's wire, our additions, bad input, start and end.

Most of it is asked of `respond`, the whole server but for the sockets; toy is its environment.
"""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import requests
from fakes import serving
from players import ROOT
from players import asked as ask

import env_server
import envs
from env_server import HttpServer, Service, local_server
from envs.parts.answers import MAX_ITEMS
from envs.parts.wires import Wire

TOY = '''
"""toy: a task is a number to reach by adding numbers up; "crash" is a bug, "nan", "inf"
and "score" (which is NaN) are worse ones."""
import threading
NAME, HORIZON, TRAIN, TEST, SUCCESS = "toy", 9, list(range(5, 90)), range(90, 99), 1.0
ACTIONS = ("1", "2")
closed = []

class Env:
    task_id, url = None, "u"

    def reset(self, task_id, stream=None):
        if task_id not in range(5, 99):
            raise ValueError(f"toy: no task {task_id!r}; tasks are 5..98")
        if task_id == 13:
            raise KeyError("unlucky")
        self.task_id, self.sum = task_id, stream or 0
        return f"To {task_id}."

    def step(self, action):
        if action == "crash":
            raise KeyError("a bug")
        valid = action.isdigit()
        before = self.sum
        if valid:                   # not atomic, on purpose: two threads at once would lose one
            threading.Event().wait(0.0001)
            self.sum = before + int(action)
        success = self.sum == self.task_id
        reward, score = {"nan": (float("nan"), 0.0), "inf": (float("inf"), 0.0), "score": (
            0.0, float("nan"))}.get(action, (float(success), float(success)))
        return f"{self.sum}: {action}", reward, success, {
            "success": success, "valid": valid, "score": score}

    def hints(self):
        return ["add up"]

    def close(self):
        closed.append(self.task_id)
'''
INFO = {"success": False, "valid": True, "score": 0}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    module = types.ModuleType("envs.toy")
    exec(TOY, module.__dict__)
    monkeypatch.setitem(sys.modules, "envs.toy", module)
    return module


@pytest.fixture
def services():
    return {"toy": Service("toy")}


@contextmanager
def served(host="127.0.0.1"):
    server = HttpServer(["toy"], host)
    with serving(server):
        yield server


def connect(server):
    return http.client.HTTPConnection(*server.server_address, timeout=5)


def exchange(connection, path, body=b"{}", method="POST", headers=()):
    """One request on this connection -> (status, reply)."""
    connection.request(method, path, body, {"Content-Type": "application/json"} | dict(headers))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


# ---- The original's wire ----

A = Wire(create="{id observation done reward}", task_required=False,
         look={"hints": "hints", "actions": "ACTIONS"})
B = Wire(id_key="env_idx", create="env_idx", task_key="item", task_wraps=True,
         reset="[observation null]", step="{state reward score terminated truncated}",
         closed={"closed": "closed"}, look={"page": "{url hints}"})


@pytest.fixture
def speak(toy):
    """speak(a Wire): a server whose toy uses it."""
    def start(wire):
        toy.WIRE = wire
        return {"toy": Service("toy")}
    return start


def test_wires_of_the_first_dialect(speak, toy):
    services = speak(A)
    session = {"id": 0}
    assert ask(services, "/create", {}) == {      # which resets, to the first task of TRAIN
        "id": 0, "observation": "To 5.", "done": False, "reward": 0}
    assert ask(services, "/toy/actions") == ["1", "2"]
    started = {"id": 0, "observation": "To 7.", "reward": 0, "done": False}
    assert ask(services, "/reset", {"id": 0, "data_idx": 7, "something": "else"}) == started
    assert ask(services, "/toy/detail?id=0") == started | {"deleted": False}
    toy.Env.step = lambda env, action: ("end", 0.25, True, INFO | {"score": 0.75})
    answer = {"observation": "end", "reward": 0.25, "done": True}
    assert ask(services, "/step", session | {"action": "2"}) == answer | {
        "info": INFO | {"score": 0.75}}
    assert ask(services, "/toy/observation?id=0") == "end"
    assert ask(services, "/toy/hints?id=0") == ["add up"]
    assert ask(services, "/step", session | {"action": "1"}) == {
        "error": "The task with environment 0 has finished."}
    assert ask(services, "/reset", session)["observation"] == "To 5."       # without a task
    assert ask(services, "/") == "This is environment toy."
    assert ask(services, "/close", session) is True
    assert ask(services, "/close", session) is False


def test_wires_of_the_second_dialect(speak, toy):
    services = speak(B)
    session = {"env_idx": 0}
    assert ask(services, "/create", {"id": 0}) == 0
    ask(services, "/toy/observation?env_idx=0", status=409)     # not before a reset
    assert ask(services, "/reset", session | {"item": 99 + 7}) == ["To 7.", None]
    assert ask(services, "/toy/page?env_idx=0") == {"url": "u", "hints": ["add up"]}
    toy.Env.step = lambda env, action: ("end", 0.25, True, INFO | {"score": 0.75})
    assert ask(services, "/step", session | {"action": "2"}) == {
        "state": "end", "reward": 0.25, "score": 0.75, "terminated": True, "truncated": False,
        "info": INFO | {"score": 0.75}}
    ask(services, "/step", session | {"action": "2"}, status=409)
    ask(services, "/reset", session, status=422)                # without a task
    assert ask(services, "/") == "ok"
    assert ask(services, "/toy/list_envs") == [0]
    assert ask(services, "/close", session) == {"closed": "closed"}
    assert ask(services, "/close", session) is False


# ---- Many at once, and the lost reply ----

def test_resets_and_steps_answer_in_order_and_each_apart(services):
    reply = ask(services, "/toy/resets", {"items": [
        {"task": 7}, {"task": 1000}, {"task": 8, "stream": 2}, {"task": 13},
        {"id": 50, "task": 7}, "x"]})
    seven, no_task, eight, broken, unknown, text = reply["items"]
    assert seven == {"id": 0, "observation": "To 7.", "reward": 0, "done": False,
                     "info": INFO}
    assert eight["observation"] == "To 8."
    assert no_task == {"error": "toy: no task 1000; tasks are 5..98", "status": 400}
    assert broken["status"] == 500 and "KeyError: 'unlucky'" in broken["error"]
    assert unknown["status"] == 404 and unknown["error"].startswith("The id 50 is not valid")
    assert text["status"] == 422
    assert ask(services, "/health")["sessions"] == 2        # those that failed left none behind
    reply = ask(services, "/toy/steps", {"items": [
        {"id": eight["id"], "action": "1"}, {"id": 99, "action": "3"}, {"id": 0, "action": "crash"},
        {"id": 0}, {"id": True, "action": "3"}, {"id": eight["id"], "action": "5"}]})
    assert [item.get("observation", item.get("status")) for item in reply["items"]] == [
        "3: 1", 404, 500, 422, 422, "8: 5"]         # 2, the stream, + 1 + 5
    assert reply["items"][-1]["done"] is True and reply["items"][-1]["reward"] == 1
    assert all("reward" not in item for item in reply["items"][1:5])
    again = {"items": [{"id": eight["id"], "task": 9}]}         # in the session it has
    assert ask(services, "/resets", again)["items"][0]["id"] == eight["id"]
    assert ask(services, "/closes", {"ids": [0, 0, "x", eight["id"]]}) == {
        "items": [True, False, False, True]}


def test_steps_of_a_parallel_engine_run_side_by_side_and_those_of_one_session_in_order(toy):
    toy.PARALLEL = True
    services = {"toy": Service("toy")}
    ask(services, "/resets", {"items": [{"task": 89}] * 3})
    items = [{"id": number % 3, "action": "1"} for number in range(180)]
    replies = ask(services, "/steps", {"items": items})["items"]
    assert [(reply.get("id"), reply.get("observation", reply)) for reply in replies] == [
        (number % 3, f"{number // 3 + 1}: 1") for number in range(180)]
    meeting = threading.Barrier(3, timeout=5)       # passed only by three steps at once
    toy.Env.step = lambda env, action: (meeting.wait() and "" or action, 0, False, INFO)
    items = [{"id": number, "action": str(number)} for number in (2, 0, 1)]
    replies = ask(services, "/steps", {"items": items})["items"]
    assert [reply["observation"] for reply in replies] == ["2", "0", "1"]


@pytest.mark.parametrize("verb", ["resets", "steps"])
def test_items_of_one_request_are_bounded(services, verb):
    items = [{"task": 7}] * (MAX_ITEMS + 1)
    assert "256 are the most" in ask(services, f"/{verb}", {"items": items}, status=422)["error"]
    assert ask(services, "/health")["sessions"] == 0
    assert len(ask(services, f"/{verb}", {"items": items[1:]})["items"]) == 256


@pytest.mark.parametrize("verb, body, status, broke", [
    ("reset", {"data_idx": 2000}, 200, False), ("reset", {}, 422, False),
    ("reset", {"data_idx": "7"}, 422, False), ("reset", {"data_idx": 13}, 200, True),
    *(("step", {"action": action}, 200, True) for action in ("crash", "nan", "inf", "score"))])
def test_what_fails_ends_its_episode_and_no_other(services, toy, verb, body, status, broke):
    """The original's clients pass over the error, and must not go on with the game before."""
    ask(services, "/resets", {"items": [{"task": 9}, {"task": 8}]})
    toy.closed.clear()
    reply = ask(services, f"/{verb}", {"id": 0} | body, status)
    assert ("id 0 broke, reset it first: " in reply["error"]) == broke and "reward" not in reply
    assert toy.closed == [9] * broke
    assert ask(services, "/step", {"id": 0, "action": "1"}) == {
        "error": "Environment not initialized: reset id 0 first."}
    assert "error" in ask(services, "/toy/observation?id=0")
    assert ask(services, "/step", {"id": 1, "action": "1"})["observation"] == "1: 1"
    ask(services, "/reset", {"id": 0, "data_idx": 9})
    assert ask(services, "/step", {"id": 0, "action": "9"})["done"] is True


@pytest.mark.parametrize("wire, statuses", [
    (Wire(), [200, 200, 200, 200]),                 # the first dialect: always 200
    (Wire(id_key="env_idx", create="env_idx"), [404, 409, 400, 500])])
def test_errors_in_the_manner_of_each_dialect(speak, wire, statuses):
    services = speak(wire)
    key, task_key = wire.id_key, wire.task_key
    ask(services, "/create", {})
    for status, (verb, body, sentence) in zip(statuses, [
            ("step", {key: 99, "action": "1"}, "The id 99 is not valid"),
            ("step", {key: 0, "action": "1"}, "Environment not initialized"),
            ("reset", {key: 0, task_key: 99}, "no task 99; tasks are 5..98"),
            ("reset", {key: 0, task_key: 13}, "KeyError: 'unlucky'")]):
        reply = ask(services, f"/{verb}", body, status)
        assert list(reply) == ["error"] and sentence in reply["error"]
        assert "Traceback" not in reply["error"] and "\n" not in reply["error"]


@pytest.mark.parametrize("verb, body", [
    *(("step", body) for body in (
        b"{", b"\xff\xfe", b'{"id": 0, "action": "1"}}', b"[" * 100_000, b"[]", b"null",
        b'{"id": "0", "action": "1"}', b'{"id": 0.0, "action": "1"}',
        b'{"id": true, "action": "1"}', b'{"id": 1' + b"0" * 5000 + b', "action": "1"}',
        b'{"action": "1"}', b'{"id": 0, "action": null}', b'{"id": 0, "action": 7}')),
    ("steps", {}), ("steps", {"items": 3}), ("resets", {"items": {"id": 0}}),
    ("closes", {"ids": 0}), ("close", {"ids": 0})])
def test_malformed_bodies_are_answered_and_touch_nothing(services, verb, body):
    ask(services, "/resets", {"items": [{"task": 7}]})
    reply = ask(services, f"/toy/{verb}", body, status=422)
    assert reply["detail"][0]["type"] and reply["error"]
    assert ask(services, "/toy/step", {"id": 0, "action": "1"})["observation"] == "1: 1"


@pytest.mark.parametrize("target, body", [
    ("/toy/fly", {}), ("/toy/fly", None), ("/toy/step/more", {}), ("/other/step", {})])
def test_unknown_paths_are_404(services, target, body):
    assert "there is no" in ask(services, target, body, status=404)["error"]


def test_session_limit_and_room_after_a_close(services, monkeypatch):
    monkeypatch.setattr(env_server, "MAX_SESSIONS", 2)
    ask(services, "/create", {})
    reply = ask(services, "/resets", {"items": [{"task": 7}, {"task": 8}]})["items"]
    assert reply[0]["id"] == 1 and reply[1]["status"] == 503 and "2 sessions" in reply[1]["error"]
    assert "2 sessions" in ask(services, "/create", {})["error"]
    ask(services, "/close", {"id": 0})
    assert ask(services, "/create", {}) == {"id": 2}


def test_idle_sessions_expire_and_busy_ones_do_not(toy, monkeypatch):
    monkeypatch.setattr(env_server, "IDLE_SECONDS", 0.2)
    with served() as server:
        services = server.services
        ask(services, "/resets", {"items": [{"task": 7}, {"task": 8}, {"task": 9}]})
        with services["toy"].hold(1):       # its step takes long
            deadline = time.monotonic() + 3
            while ask(services, "/health")["sessions"] > 2 and time.monotonic() < deadline:
                ask(services, "/toy/observation?id=2")
                time.sleep(0.02)
            assert toy.closed == [None, 7]      # None: the one that tried the engine at the start
        assert "expired after 0.2 s" in ask(services, "/step", {"id": 0, "action": "1"})["error"]
        assert ask(services, "/step", {"id": 1, "action": "1"})["observation"] == "1: 1"


def test_close_waits_for_the_step_at_work(services, toy):
    ask(services, "/resets", {"items": [{"task": 7}]})
    with services["toy"].hold(0):
        closing = threading.Thread(target=ask, args=(services, "/close", {"id": 0}))
        closing.start()
        closing.join(0.05)
        assert 7 not in toy.closed
    closing.join()
    assert 7 in toy.closed


# ---- Over sockets ----

def test_http_keeps_the_connection_through_errors():
    with served() as server:
        connection = connect(server)
        exchange(connection, "/create")
        port = connection.sock.getsockname()[1]
        for path, body, status in (("/reset", b'{"id":0,"data_idx":7}', 200), ("/step", b"{", 422),
                                   ("/no", b"{}", 404), ("/step", b'{"id":7,"action":""}', 200)):
            assert exchange(connection, path, body)[0] == status
        reply = exchange(connection, "/toy/step", b'{"id":0,"action":"2"}')[1]
        assert reply["observation"] == "2: 2"
        assert exchange(connection, "/health", method="GET", body=None) == (200, {
            "server": "nanoAgentGym", "environments": ["toy"], "sessions": 1, "pid": os.getpid()})
        assert connection.sock.getsockname()[1] == port


def test_http_takes_a_body_of_exactly_the_limit_and_none_above():
    with served() as server:
        for more, expected in ((0, 200), (1, 413)):
            body = b'{"items": []' + b" " * (env_server.MAX_BODY + more - 13) + b"}"
            assert exchange(connect(server), "/steps", body)[0] == expected


@pytest.mark.parametrize("head", [
    "Content-Length: -5", "Content-Length: many", "Transfer-Encoding: chunked",
    "Content-Length: 99999999999999999999999", "Content-Length: 2\r\nContent-Length: 40",
    "Content-Length: 2\r\nContent-Length: 2", "Content-Length : 2", "X : y\r\nContent-Length: 2",
    "Content-Length: 2, 2", "no header", "Content-Length: 2\r\nHost: elsewhere"])
def test_http_refuses_bodies_of_no_known_size_and_reads_no_second_request(head):
    """Where a server and a proxy before it count differently, a request can hide in a body."""
    with served() as server, socket.create_connection(server.server_address, 3) as raw:
        raw.sendall(f"POST /create HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                    f"\r\n{head}\r\n\r\n{{}}POST /create HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    .encode())
        answer = b""
        with suppress(ConnectionResetError):    # the server hangs up over what it has not read
            while piece := raw.recv(2**16):
                answer += piece
        status = 403 if "elsewhere" in head else 411
        assert answer.startswith(b"HTTP/1.1 %d " % status) and b'{"error": ' in answer
        assert answer.count(b"HTTP/1.1") == 1 and not server.services["toy"].sessions


# ---- Web pages may not drive the server ----

@pytest.mark.parametrize("body, headers, status", [
    *((b"{}", headers, 200) for headers in (
        {}, {"Content-Type": "application/json; charset=utf-8"}, {"Host": "localhost:8000"},
        {"Host": "LOCALHOST"}, {"Host": "[::1]:80"},
        {"Host": "10.1.2.3:8000"},              # through a tunnel: an address cannot be rebound
        {"Host": "localhost:1", "Origin": "http://localhost:1"})),
    *((b"{}", {"Host": host}, 403) for host in (
        "evil.example", "evil.example:8000", "evil", "127.0.0.1.evil.example",
        "localhost.evil.example", "")),
    (b"{}", {"Host": "evil.example", "Origin": "http://evil.example"}, 403),
    *((b"{}", {"Content-Type": kind}, 415) for kind in (
        "text/plain", "", "application/x-www-form-urlencoded")),
    (b"{}", {"Content-Type": "multipart/form-data; boundary=x"}, 411),  # Python misses its parts
    # a page may send a POST without a body unasked; curl and the original's clients name no Origin
    (None, {"Content-Type": "text/plain"}, 200),
    (None, {"Content-Type": "text/plain", "Origin": "http://evil.example"}, 415)])
def test_http_refuses_what_a_web_page_of_another_origin_can_send(body, headers, status):
    with served() as server:
        assert exchange(connect(server), "/create", body, headers=headers)[0] == status
        assert len(server.services["toy"].sessions) == (status == 200)
        if status in (200, 403):
            assert exchange(connect(server), "/health", None, "GET", headers)[0] == status


@pytest.mark.parametrize("name, status", [
    ("node7", 200), ("env-server:8000", 200), ("evil.example", 403)])   # as containers say it
def test_http_at_every_address_answers_to_names_without_a_dot(name, status):
    with served("0.0.0.0") as server:
        assert exchange(connect(server), "/create", headers={"Host": name})[0] == status


def test_http_answers_curl_as_documented():
    with served() as server:
        url = "http://{}:{}".format(*server.server_address)
        requests.post(f"{url}/create", timeout=5)
        commands = re.findall(r"^ *(curl .*)$", (ROOT / "docs/protocol.md").read_text(), re.M)
        assert commands
        for command in commands if shutil.which("curl") else []:
            words = shlex.split(command.replace("http://127.0.0.1:8000/textcraft", f"{url}/toy"))
            reply = subprocess.run([*words, "-s"], capture_output=True, text=True, timeout=5).stdout
            assert "error" not in json.loads(reply), command


# ---- Connections ----

@pytest.mark.parametrize("sent", [
    b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n{"])
def test_http_closes_a_connection_that_falls_silent(monkeypatch, sent):
    assert 5 <= env_server.HttpRequest.timeout <= 60        # seconds; here fewer
    monkeypatch.setattr(env_server.HttpRequest, "timeout", 0.05)
    with served() as server, socket.create_connection(server.server_address, 10) as raw:
        raw.sendall(sent)
        assert raw.recv(1) == b""


# ---- Processes ----

@pytest.fixture
def toy_path(tmp_path, monkeypatch):
    """Child processes find envs/toy.py there: Python runs sitecustomize.py as it starts."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "toy.py").write_text(TOY)
    (tmp_path / "sitecustomize.py").write_text(
        f"import envs; envs.__path__.append({str(tmp_path / 'envs')!r})")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return tmp_path / "envs"


@pytest.mark.parametrize("name, file, words, code", [
    ("nowhere", "", "unknown environment 'nowhere'; there are: ", 1),
    ("toy", "class Env:\n    def __init__(self):\n        raise RuntimeError('toy: needs Java')",
     "toy: needs Java", 1),
    ("toy", "import os; os._exit(9)", "", 9),
    ("toy", "import no_such_library", "No module named 'no_such_library'", 1)])
def test_local_server_tells_why_it_cannot_start(toy_path, capfd, name, file, words, code):
    (toy_path / "toy.py").write_text(file)
    with pytest.raises(ValueError, match=f"the server of {name} ended at once, with code {code}"):
        local_server(name).__enter__()
    said = capfd.readouterr().err
    assert said.startswith(words) and said.count("\n") == bool(words)


@contextmanager
def running(*arguments):
    """A Python process, ended in any case."""
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_main_prints_one_line_and_ends_on_sigterm(toy_path):
    (toy_path / "toy.py").write_text(TOY.replace(   # the print is an engine's chatter
        "closed.append(self.task_id)", 'print("closed", self.task_id, flush=True)'))
    with running("env_server.py", "toy", "--port", "0") as process:
        line = process.stdout.readline()
        url = line.removeprefix("toy on ").removesuffix("/toy\n")
        assert url.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        exchange(connection, "/resets", b'{"items":[{"task":7},{"task":8}]}')
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=5)
    assert (process.returncode, out) == (0, "")
    assert "closed 7\nclosed 8" in errors and "Traceback" not in errors


@pytest.mark.parametrize("done, over", [
    (np.False_, False), (np.True_, True), (0, False), (1, True), (False, False), (True, True)])
def test_done_may_be_of_numpy_or_a_number(done, over):
    """An environment of one's own, by envs.Base."""
    env = own_env(done)
    env.reset(0)
    assert env.step("go")[2] is over
    if over:
        with pytest.raises(ValueError, match="own: the episode is over; reset first"):
            env.step("go")
    else:
        assert env.step("go")[2] is False


@pytest.mark.parametrize("done", [None, "no", 2])
def test_done_that_says_nothing_is_told_as_it_came(done):
    env = own_env(done)
    env.reset(0)
    with pytest.raises(TypeError, match=f"own: act gave done={done!r}; expected True or False"):
        env.step("go")


def own_env(done):
    """An Env of a world of one's own, whose every answer has this `done`."""
    class Own(envs.Base):
        module = types.SimpleNamespace(NAME="own", TRAIN=[0], TEST=[1])

        def start(self, task_id):
            return "Go."

        def act(self, action):
            return "Gone.", 0.0, done, dict(success=False, valid=True, score=0.0)
    return Own()
