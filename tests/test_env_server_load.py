"""pytest -m slow tests/test_env_server_load.py: the server under load and abuse; a minute.

Asserted is behaviour: each reply to a good client, no trace, no hanging request, memory, that the
server lives.
"""
import json
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from env_server import Service, local_server, respond
from envs import known_envs, open_env
from envs.parts.wires import wire_of

pytestmark = pytest.mark.slow
NAMES = [name for name in known_envs() if name != "sciworld"]    # it does not repeat itself exactly
JSON = "Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def modules():
    found = {}
    for name in NAMES:
        with suppress(ValueError):          # its engine is not installed
            found[name] = open_env(name)
    return found


def record(name, module, task, turns=12):
    """An episode of the random player: (task, [(action, the server's answer to it)])."""
    env, rng, steps, done = module.Env(), random.Random(f"{name} {task}"), [], False
    first = env.reset(task, 3)
    while not done and len(steps) < turns:
        action = env.random_action(rng)
        observation, reward, done, info = env.step(action)
        steps.append((action, {"observation": observation, "reward": reward, "done": done,
                               "info": info}))
    env.close()
    return name, task, first, json.loads(json.dumps(steps, default=lambda number: number.item()))


@pytest.fixture(scope="module")
def episodes(modules):
    return [record(name, module, task) for name, module in modules.items()
            for task in (*module.TRAIN[:6], *module.TEST[:6])]


class Good:
    """A good client: what it is answered must be what was recorded without a server."""

    def __init__(self, url):
        self.url, self.http = url, requests.Session()

    def post(self, path, body):
        return self.http.post(self.url + path, json=body, timeout=60).json()

    def health(self):
        return self.http.get(f"{self.url}/health", timeout=60).json()

    def play(self, episodes, way="steps"):
        """These episodes of one environment side by side, and closed; asserts every reply."""
        name, wire = episodes[0][0], wire_of(episodes[0][0])
        tasks = [{"task": task, "stream": 3} for _, task, _, _ in episodes]
        replies = self.post(f"/{name}/resets", {"items": tasks})["items"]
        assert [reply["observation"] for reply in replies] == [first for _, _, first, _ in episodes]
        ids = [reply["id"] for reply in replies]
        for turn in range(max(len(steps) for *_, steps in episodes)):
            playing = [(number, steps[turn]) for number, (*_, steps) in zip(ids, episodes)
                       if turn < len(steps)]
            key = "id" if way == "steps" else wire.id_key
            items = [{key: number, "action": action} for number, (action, _) in playing]
            if way == "steps":
                replies = self.post(f"/{name}/steps", {"items": items})["items"]
                assert replies == [{"id": number} | answer for number, (_, answer) in playing]
            else:
                for item, (_, (_, answer)) in zip(items, playing):
                    reply = self.post(f"/{name}/step", item)
                    shared = reply.keys() & answer.keys()
                    assert {"reward", "info"} <= shared
                    assert all(reply[key] == answer[key] for key in shared)
        assert self.post(f"/{name}/closes", {"ids": ids}) == {"items": [True] * len(ids)}


@contextmanager
def good_clients(url, episodes, threads=32):
    """Good clients that play meanwhile, shuffled tasks, one step or many in a request, for as long
    as the block takes and once at least."""
    over, by_name = threading.Event(), {}
    for episode in episodes:
        by_name.setdefault(episode[0], []).append(episode)

    def play_on(number):
        client, rng = Good(url), random.Random(number)
        while True:
            some = rng.sample(by_name[rng.choice(list(by_name))], 4)
            client.play(some, rng.choice(["step", "steps"]))
            if over.is_set():
                return
    with ThreadPoolExecutor(threads) as pool:
        playing = [pool.submit(play_on, number) for number in range(threads)]
        try:
            yield
        finally:
            over.set()
        for future in playing:
            future.result()


# ---- Abuse ----

def malformed(rng, names):
    """One bad request as bytes; not all are bad to the end: a mutation may leave one as it was."""
    verb = rng.choice(["create", "reset", "step", "close", "resets", "steps", "closes", "fly", ""])
    value = rng.choice([None, True, -1, 10**30, 1.5, "0", "x" * 99, [], {}, [[]], {"id": 0}, "\0"])
    key = rng.choice(["id", "task", "data_idx", "game", "action", "stream", "items", "ids"])
    body = json.dumps(rng.choice([value, [value], {key: value}, {"items": [value, {key: value}]},
                                  {"id": 99_999, "action": "x", key: value}])).encode()
    size = str(len(body))
    kind = rng.randrange(7)
    if kind == 0:                                       # bytes of the body flipped
        body = bytes(byte ^ (rng.randrange(256) if rng.random() < 0.2 else 0) for byte in body)
    elif kind == 1:
        size = rng.choice(["-1", "x", "", "9" * 30, "1e3", "0x10", f"{size}, {size}"])
    line = f"POST /{rng.choice(names)}/{verb} HTTP/1.1\r\n"
    if kind == 2:
        line = rng.choice(["GET\r\n", "POST / HTTP/9.9\r\n", "PUT / HTTP/1.1\r\n", "\0\xff\r\n",
                           f"GET /{rng.choice(names)}/{verb}?id={value} HTTP/1.1\r\n",
                           f"GET /{'a/' * 9000} HTTP/1.1\r\n", "GET /%00%ff?id=%00 HTTP/1.0\r\n"])
    head = line + "Host: localhost\r\n" + JSON + f"Content-Length: {size}\r\n"
    if kind == 3:
        head += rng.choice(["x" * 70_000, "Transfer-Encoding: chunked", "a b c", ": v",
                            "A: b\r\n" * 200, "Content-Length: 1", "Host : x",
                            "Expect: 100-continue"]) + "\r\n"
    request = head.encode("latin-1") + b"\r\n" + body
    if kind == 4:
        request = request[:rng.randrange(len(request))]         # cut
    if kind == 5:
        request = rng.randbytes(rng.randrange(1, 400))
    return request


def test_malformed_requests_are_answered_and_disturb_nobody(modules, episodes, capfd):
    """6,000 of them; each gets an answer or the end of its connection, none a trace or a 500; 32
    good clients see their own episodes only."""
    with local_server(*modules) as url, good_clients(url, episodes):
        address = url.removeprefix("http://").split(":")

        def abuse(seed):
            rng, statuses = random.Random(seed), set()
            for _ in range(1500):
                with socket.create_connection(address, 30) as raw, suppress(ConnectionError):
                    raw.sendall(malformed(rng, list(modules)))
                    raw.shutdown(socket.SHUT_WR)
                    answer = raw.makefile("rb").read()          # a TimeoutError here: it hangs
                    assert b"Traceback" not in answer
                    statuses.add(answer[9:12])
            return statuses
        with ThreadPoolExecutor(4) as pool:
            statuses = set().union(*pool.map(abuse, range(4)))
        assert {b"200", b"400", b"404", b"411", b"422"} <= statuses and b"500" not in statuses
        assert Good(url).health()["pid"]
    assert "Traceback" not in capfd.readouterr().err


# ---- Memory ----

def resident(pid):
    """This process's memory in kB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def test_sessions_closed_and_abandoned_leave_no_memory_behind(modules):
    """10,000 sessions closed, 10,000 abandoned; after a first thousand, memory stays as it is."""
    name = "textcraft_small"
    impatient = "import env_server; env_server.IDLE_SECONDS = 1; env_server.main()"
    with subprocess.Popen([sys.executable, "-c", impatient, name, "--port=0", "--child"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        good = Good(server.stdout.readline().split()[-1].removesuffix(f"/{name}"))
        pid, sizes = good.health()["pid"], {True: [], False: []}
        for closing in (True, False):
            for number in range(44):            # 44 times 256
                reset = {"items": [{"task": task} for task in range(256)]}
                while True:
                    replies = good.post("/resets", reset)["items"]
                    ids = [reply["id"] for reply in replies if "id" in reply]
                    if len(ids) == 256:
                        break
                    assert {reply["status"] for reply in replies if "error" in reply} == {503}
                    good.post("/closes", {"ids": ids})
                    time.sleep(0.2)             # until those abandoned before have expired
                good.post("/steps", {"items": [{"id": one, "action": "inventory"} for one in ids]})
                if closing:
                    good.post("/closes", {"ids": ids})
                if number % 4 == 3:
                    sizes[closing].append(resident(pid))
        deadline = time.monotonic() + 30
        while good.health()["sessions"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        closed, abandoned = sizes[True], sizes[False]
        assert closed[-1] - closed[1] < 3000, sizes             # kB
        assert resident(pid) - max(abandoned[:4]) < 3000, sizes


# ---- What is written in a field is text ----

PAYLOADS = [
    "__import__('os').system('touch owned')", "eval('7919*7907')", "{{7919*7907}}", "${7919*7907}",
    "$(touch owned)", "`touch owned`", "{0.__class__.__mro__}", "{self.env.__dict__}", "%s%s%n%x",
    "../../../../etc/passwd", "file:///etc/passwd", "/dev/zero", "<script>alert(1)</script>",
    "'; drop table sessions; --", "!!python/object/apply:os.system ['touch owned']",
    "cos\nsystem\n(S'touch owned'\ntR.", "lambda: open('owned', 'w')", "\x00", "\x1b[2J",
    "\r\nX: y", "get 1 log; import os", "craft 1 x using __import__('os')", "__class__",
    "__dict__", "close"]
_events = None                                  # a list while they are noted


def _note(event, arguments):
    if event == "sqlite3.connect/handle" or arguments == (":memory:",):     # webarena's: no file
        return
    if _events is not None and event.partition(".")[0] in (
            "open", "exec", "compile", "import", "os", "subprocess", "socket", "ctypes", "pickle",
            "shutil", "tempfile", "urllib", "sqlite3", "marshal"):
        _events.append((event, arguments))


def test_code_and_paths_in_every_field_are_only_text(modules):
    """Under Python's audit hook: nothing is evaluated, imported, opened or run."""
    global _events
    sys.addaudithook(_note)                     # for good: it cannot be taken away again
    services = {name: Service(name) for name in modules}
    rng, asked = random.Random(0), 0
    for noting in (False, True):                # the first time loads what the environments need
        _events = [] if noting else None
        for name, service in services.items():
            wire = service.wire
            task = service.module.TRAIN[0]
            good = {"id": 0, "task": task, wire.id_key: 0, wire.task_key: task, "action": "x",
                    "stream": 0}
            post(services, f"/{name}/resets", {"items": [{"task": task}]})
            for payload in PAYLOADS:
                reset = {"id": max(service.sessions, default=0), "task": task, "stream": payload}
                (reply,) = post(services, f"/{name}/resets", {"items": [reset]})["items"]
                assert "observation" in reply
                for key in good:
                    for verb in ("reset", "step", "resets", "steps", "close", "create"):
                        last = max(service.sessions, default=0)
                        body = good | {wire.task_key: task, "id": last, wire.id_key: last,
                                       key: payload}
                        body = {"items": [body]} if verb in ("resets", "steps") else body
                        reply = json.dumps(post(services, f"/{name}/{verb}", body))
                        assert "62615533" not in reply and "Traceback" not in reply
                        assert '"status": 500' not in reply and "broke" not in reply
                        asked += 1
                for target in (f"/{name}/{payload}", f"/{payload}",
                               f"/{name}/observation?id={payload}"):
                    status, text = respond(services, rng.choice(["GET", "POST"]), target, b"{}")
                    assert status in (200, 404, 422) and "root:" not in text, text
                post(services, f"/{name}/closes", {"ids": list(service.sessions)[:-1]})
    seen, _events = _events, None
    assert seen == [] and asked > 10_000


def post(services, target, body):
    status, text = respond(services, "POST", target, json.dumps(body).encode())
    assert status in (200, 409, 422), text     # 409: created and not yet reset
    return json.loads(text)


def mutated(rng, action):
    """Some letters exchanged, doubled, left out, or put in from far away."""
    letters = list(action) or [""]
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(letters))
        letters[place] = rng.choice([
            "", letters[place] * 2, letters[place].upper(), " ", "\n", "\u212a", "\ud800", "\u8bf7",
            "\U0001f600", "||", "0", "-", ",", "\u0661", "\x00"])
    return "".join(letters)


def test_mutated_and_huge_actions_are_answered_by_every_environment(modules):
    """1,500 mutated actions an environment, and actions of 1 MB: none breaks one."""
    services = {name: Service(name) for name in modules}
    for name, module in modules.items():
        rng, env = random.Random(name), module.Env()
        tasks = (*module.TRAIN[:20], *module.TEST[:20])
        huge = [piece * (2**20 // len(piece)) for piece in (
            "a", ",", " ", "get 1 log, ", "|| up ", "{", "9", "\n", "using ", "\u8bf7")]
        done = True
        for number in range(1500 + len(huge)):
            if number % 10 == 0 or done:
                task = rng.choice(tasks)
                env.reset(task)
                reset = {"items": [{"task": task}]}
                session = post(services, f"/{name}/resets", reset)["items"][0]["id"]
            action = huge[number - 1500] if number >= 1500 else mutated(rng, env.random_action(rng))
            item = {"id": session, "action": action}
            (reply,) = post(services, f"/{name}/steps", {"items": [item]})["items"]
            assert "error" not in reply, (name, action[:100], reply)
            done = reply["done"]
