"""pytest -m slow tests/more/test_env_server_load.py: the server under load and abuse; a minute.

Asserted is behaviour: each reply to a good client, no trace, no hanging request, memory, that the
server lives.
"""
import json
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from players import play
from test_envs import checked_step

from client import INFO, Answer, EnvClient, Reset, Step
from env_server import Service, local_server, respond
from envs import known_envs, open_env

pytestmark = pytest.mark.slow
NAMES = [name for name in known_envs() if name != "sciworld"]    # it does not repeat itself exactly
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def modules():
    found = {}
    for name in NAMES:
        with suppress(ValueError):          # its engine is not installed
            found[name] = open_env(name)
    return found


def recorded(module, task):
    """An episode of the random player -> (task, its first observation, [(action, observation,
    reward, done, info)])."""
    env, rng = module.Env(), random.Random(f"{module.NAME} {task}")
    first = env.reset(task, 3)
    turns = play(env, most=12, choose=lambda env: env.random_action(rng))
    env.close()
    return task, first, turns


def play_again(client, episodes):
    """These episodes of one environment side by side; each answer must be the recorded one."""
    begun = client.answer([(None, Reset(task, 3)) for task, _, _ in episodes])
    assert [reply.observation for reply in begun] == [first for _, first, _ in episodes]
    for number in range(12):
        playing = [(reply.session, *turns[number]) for reply, (*_, turns) in zip(begun, episodes)
                   if number < len(turns)]
        replies = client.answer([(session, Step(action)) for session, action, *_ in playing])
        assert replies == [Answer(session, *answer, {name: info[name] for name in INFO})
                           for session, _, *answer, info in playing]
    client.close()


# ---- Abuse ----

def malformed(rng, names):
    """One bad request as bytes; not all are bad to the end: a mutation may leave one as it was."""
    verb = rng.choice(["create", "reset", "step", "close", "resets", "steps", "closes", "fly", ""])
    value = rng.choice([None, True, -1, 10**30, 1.5, "0", "x" * 99, [], {}, [[]], {"id": 0}, "\0"])
    key = rng.choice(["id", "task", "data_idx", "game", "action", "stream", "items", "ids"])
    body = json.dumps(rng.choice([value, [value], {key: value}, {"items": [value, {key: value}]},
                                  {"id": 99_999, "action": "x", key: value}])).encode()
    name, size, more, kind = rng.choice(names), f"{len(body)}", [], rng.randrange(7)
    line = f"POST /{name}/{verb} HTTP/1.1"
    if kind == 0:                                       # bytes of the body flipped
        body = bytes(byte ^ (rng.randrange(256) if rng.random() < 0.2 else 0) for byte in body)
    elif kind == 1:
        size = rng.choice(["-1", "x", "", "9" * 30, "1e3", "0x10", f"{size}, {size}"])
    elif kind == 2:
        line = rng.choice(["GET", "POST / HTTP/9.9", "PUT / HTTP/1.1", "\0\xff",
                           f"GET /{name}/{verb}?id={value} HTTP/1.1",
                           f"GET /{'a/' * 9000} HTTP/1.1", "GET /%00%ff?id=%00 HTTP/1.0"])
    elif kind == 3:
        more = [rng.choice(["x" * 70_000, "Transfer-Encoding: chunked", "a b c", ": v",
                            "A: b\r\n" * 200, "Content-Length: 1", "Host : x",
                            "Expect: 100-continue"])]
    lines = [line, "Host: localhost", JSON, f"Content-Length: {size}", *more, "", ""]
    request = "\r\n".join(lines).encode("latin-1") + body
    if kind == 4:
        request = request[:rng.randrange(len(request))]         # cut
    elif kind == 5:
        request = rng.randbytes(rng.randrange(1, 400))
    return request


def abuse(address, names, seed):
    """Send 600 bad requests -> the statuses of their answers."""
    rng, statuses = random.Random(seed), set()
    for _ in range(600):
        with socket.create_connection(address, 30) as raw, suppress(ConnectionError):
            raw.sendall(malformed(rng, names))
            raw.shutdown(socket.SHUT_WR)
            answer = raw.makefile("rb").read()          # a TimeoutError here: it hangs
            assert b"Traceback" not in answer
            statuses.add(answer[9:12])
    return statuses


def test_malformed_requests_are_answered_and_disturb_nobody(modules, capfd):
    """2,400 of them; each gets an answer or the end of its connection, none a trace or a 500; 32
    good clients see their own episodes only."""
    episodes = {name: [recorded(module, task) for task in (*module.TRAIN[:6], *module.TEST[:6])]
                for name, module in modules.items()}
    with local_server(*modules) as url, ThreadPoolExecutor(4 + 32) as pool:
        address = url.removeprefix("http://").split(":")
        abusing = [pool.submit(abuse, address, [*modules], seed) for seed in range(4)]

        def play_on(number):
            name, rng, over = [*modules][number % len(modules)], random.Random(number), False
            client = EnvClient(url, name)
            while not over:             # once more behind the last bad request
                over = all(bad.done() for bad in abusing)
                play_again(client, rng.sample(episodes[name], 4))
        list(pool.map(play_on, range(32)))              # raises what was asserted there
        statuses = set().union(*(bad.result() for bad in abusing))
        assert {b"200", b"400", b"404", b"411", b"422"} <= statuses and b"500" not in statuses
    assert "Traceback" not in capfd.readouterr().err


# ---- Memory ----

def resident(pid):
    """This process's memory in kB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


@pytest.mark.parametrize("closed", [True, False])
def test_sessions_closed_or_abandoned_leave_no_memory_behind(closed):
    """11,000 of them; after the first 4,000, when some have expired, memory stays as it is."""
    impatient = "import env_server; env_server.IDLE_SECONDS = 1; env_server.main()"
    name, sizes = "textcraft_small", []
    with subprocess.Popen([sys.executable, "-c", impatient, name, "--port=0", "--child"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        client = EnvClient(server.stdout.readline().split()[-1], name)
        for _ in range(44):
            begun = client.answer([(None, Reset(task)) for task in range(256)])
            client.answer([(reply.session, Step("inventory")) for reply in begun])
            if closed:
                client.close()
            else:
                time.sleep(0.15)        # so that no more than 4096 are open, the server's limit
            sizes.append(resident(server.pid))
    assert sizes[-1] - max(sizes[:16]) < 3000, sizes            # kB


# ---- What is written in a field is text ----

PAYLOADS = [
    "__import__('os').system('touch owned')", "eval('7919*7907')", "{{7919*7907}}", "${7919*7907}",
    "$(touch owned)", "`touch owned`", "{0.__class__.__mro__}", "{self.env.__dict__}", "%s%s%n%x",
    "../../../../etc/passwd", "file:///etc/passwd", "/dev/zero", "<script>alert(1)</script>",
    "'; drop table sessions; --", "!!python/object/apply:os.system ['touch owned']",
    "cos\nsystem\n(S'touch owned'\ntR.", "lambda: open('owned', 'w')", "\x00", "\x1b[2J",
    "\r\nX: y", "get 1 log; import os", "craft 1 x using __import__('os')", "__class__",
    "__dict__", "close"]


def test_code_and_paths_in_every_field_are_only_text(modules):
    """Under Python's audit hook: nothing is evaluated, imported, opened or run."""
    noting, events = False, []

    def note(event, arguments):
        if noting and event.partition(".")[0] in (
                "open", "exec", "compile", "import", "os", "subprocess", "socket", "ctypes",
                "pickle", "shutil", "tempfile", "urllib", "sqlite3", "marshal") and (
                event != "sqlite3.connect/handle" and arguments != (":memory:",)):  # webarena's
            events.append((event, arguments))
    sys.addaudithook(note)                      # for good: it cannot be taken away again
    services = {name: Service(name) for name in modules}
    rng, asked = random.Random(0), 0
    for again in (False, True):
        noting = again                          # the first time loads what the environments need
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
    noting = False
    assert events == [] and asked > 10_000


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
    for name, module in modules.items():
        rng, env = random.Random(name), module.Env()
        tasks = (*module.TRAIN[:20], *module.TEST[:20])
        huge = [piece * (2**20 // len(piece)) for piece in (
            "a", ",", " ", "get 1 log, ", "|| up ", "{", "9", "\n", "using ", "\u8bf7")]
        done = True
        for number in range(1500 + len(huge)):
            if number % 10 == 0 or done:
                env.reset(rng.choice(tasks))
            action = huge[number - 1500] if number >= 1500 else mutated(rng, env.random_action(rng))
            _, _, done, _ = checked_step(module, env, action)
