"""What the tests of the environments share: episodes, calls of tools, a wire, BM25."""
import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import fmean

from env_server import Service, respond

ROOT = Path(__file__).parent.parent


def printed(program, **variables):
    """What this Python program prints in a fresh process with these variables of the environment;
    it must succeed."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def children(pid):
    """The processes that descend from this one (Linux)."""
    own = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children")
           for child in file.read_text().split()]
    return own + [below for child in own for below in children(child)]


def living(pids):
    """Those processes that have not ended (a zombie has)."""
    def state(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return "Z"
    return [pid for pid in pids if state(pid) != "Z"]


def play(env, task_id=None, most=100, choose=None):
    """An episode, or the rest of one, by the expert or as choose(env) says, of at most so many
    turns -> [(action, observation, reward, done, info), ...]"""
    if task_id is not None:
        env.reset(task_id)
    turns, done = [], False
    while not done and len(turns) < most:
        action = choose(env) if choose else env.expert()[1]
        turns.append((action, *env.step(action)))
        done = turns[-1][3]
    return turns


def solved(env, task_id=None, most=100):
    """Does `play` by the expert end in success?"""
    return play(env, task_id, most)[-1][-1]["success"]


def ask(env, tool, **arguments):
    """A tool's result, or the text that it refuses with."""
    from envs.parts import tools        # not every fork has worlds with tools
    observation, *_, info = env.step(tools.written(tool, arguments))
    assert observation.endswith("\nGive me one action.")
    if info["valid"]:
        result = env.results[env.written(tool, arguments)]
        assert observation == f"Observation: {result}\nGive me one action."
        return result
    return observation.removeprefix("Observation: ").removesuffix("\nGive me one action.")


def first_of(table, text):
    """What a table of {regular expression: value} has for a text."""
    return next((value for words, value in table.items() if re.search(words, text)), None)


def asked(services, path, body=None, status=200):
    """GET without a body, POST with one, JSON or bytes; asserts the status -> the reply."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    got, text = respond(services, "GET" if body is None else "POST", path, raw)
    assert got == status, text
    return json.loads(text)


def wire(name, data=""):
    """A server of this environment, without a socket: `asked` of it."""
    return partial(asked, {name: Service(name, data)})


def bm25(docs, words):
    """Okapi's formula as SQLite's FTS5 has it (k1 1.2, b 0.75). docs: (Counter of words, size)
    each -> the numbers of those that hold a word, best first."""
    mean, scores = fmean(size for _, size in docs), [0.0] * len(docs)
    for word in words:
        n = sum(doc[word] > 0 for doc, _ in docs)
        idf = max(math.log((len(docs) - n + 0.5) / (n + 0.5)), 1e-6)
        for i, (doc, size) in enumerate(docs):
            scores[i] += idf * doc[word] * 2.2 / (doc[word] + 1.2 * (0.25 + 0.75 * size / mean))
    return sorted((i for i in range(len(docs)) if scores[i]), key=lambda i: (-scores[i], i))
