"""client: the environment client: many episodes, on one or several of our servers.

    client = EnvClient("http://127.0.0.1:8000", "textcraft")
    (reply,) = client.answer([(None, "reset", (7, None))])       # Reply: session, observation, ...
    (reply,) = client.answer([(reply.session, "step", "inventory")])
    client.close()

One request holds many episodes: POST /resets, /steps, /closes, see env_server.py. It is sent once.
If it fails, its episodes get an EnvError, and whoever plays them plays them again from their reset.
A server of the original AgentGym is played through one of ours: envs/parts/original.py.
"""
import itertools
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import urllib3

from envs.parts.answers import NO_ANSWER, EnvError, brief, checked, connections, exchange, field
from envs.parts.wires import MAX_ITEMS

ITEM = {"id": int, "observation": str, "reward": float, "done": bool, "info": dict}
INFO = {"success": bool, "valid": bool | None, "score": float}


class ServersGone(EnvError):
    """No server has answered for as long as the client waits: the run cannot go on."""


@dataclass
class Reply:
    session: tuple              # (URL of the server, id there)
    observation: str
    reward: float
    done: bool
    info: dict                  # success, valid (None: an original does not say), score


class EnvClient:
    """Episodes of one environment on the servers at these addresses (comma-separated). patience:
    seconds without an answer of any of them until ServersGone. timeout: seconds for one answer.
    EnvError: it is not played at one of them."""

    def __init__(self, urls, name, patience=60.0, timeout=120.0):
        self.patience, self.http = patience, connections(timeout, attempts=3)
        self.urls = [find_server(self.http, url, name) for url in urls.split(",")]
        self.silent = {}        # URL -> (since when it gives no answer, when it is asked again)
        self.open = set()               # sessions (URL, id)
        self.turns = itertools.count()  # whose turn it is to get the next session
        self.pool = ThreadPoolExecutor(2 * len(self.urls))      # servers answer side by side

    def answer(self, items):
        """[(session or None, "reset", (task id, stream)) | (session, "step", action)] -> one Reply
        or EnvError each, in order; ValueError when a server refuses one as wrong (no such task). A
        session of None opens one. stream: a number that seeds the episode's luck, or None."""
        bodies, replies = defaultdict(list), {}     # (URL, verb) -> [(place in items, body)]
        for place, (session, verb, argument) in enumerate(items):
            url = session[0] if session else self.live_url()
            body = {"id": session[1]} if session else {}
            if verb == "reset":
                body["task"], body["stream"] = argument
            else:
                body["action"] = argument
            bodies[url, verb].append((place, body))
        calls = [(*key, mine[i:i + MAX_ITEMS]) for key, mine in bodies.items()
                 for i in range(0, len(mine), MAX_ITEMS)]
        run = map if len(self.urls) == 1 else self.pool.map         # one server: in their order
        replies.update(itertools.chain(*run(lambda call: self.call(*call), calls)))
        return [replies[place] for place in range(len(items))]

    def live_url(self):
        """Where to open a session: each server in its turn, but those that rest (see `post`).
        ServersGone."""
        while True:
            now = time.monotonic()
            if due := [url for url in self.urls if self.silent.get(url, (0, 0))[1] <= now]:
                return due[next(self.turns) % len(due)]
            gone = [since for since, _ in list(self.silent.values())]
            if len(gone) == len(self.urls) and now - max(gone) > self.patience:
                raise ServersGone(f"{', '.join(self.urls)}: no server has answered for "
                                  f"{self.patience:g} s; start one and repeat the command "
                                  "(train.py: with --resume)")
            time.sleep(0.05)

    def call(self, url, verb, part):
        """One request -> (place, Reply or EnvError)s. If it fails, all its episodes fail."""
        bodies = [body for _, body in part]
        try:
            items = field(self.post(url, f"{verb}s", {"items": bodies}), "items", list, url)
            if len(items) != len(bodies):
                raise EnvError(f"{url}: {len(items)} items in answer to {len(bodies)}")
        except EnvError as error:
            return [(place, error) for place, _ in part]
        replies = [reply_of(url, verb, body, item) for body, item in zip(bodies, items)]
        self.open |= {reply.session for reply in replies if isinstance(reply, Reply)}
        return zip([place for place, _ in part], replies)

    def post(self, url, verb, body):
        """Send once -> the answer, `checked`. EnvError: none came. A server that gave none is left
        alone for as long as the failure took, a second at least, half of the patience at most."""
        began = time.monotonic()
        try:
            status, answer = exchange(self.http, "POST", f"{url}/{verb}", body)
        except NO_ANSWER as error:
            now, late = time.monotonic(), isinstance(error, urllib3.exceptions.ReadTimeoutError)
            since, _ = self.silent.get(url, (now, 0))       # the first failure's time stays
            self.silent[url] = since, now + min(max(1, now - began), self.patience / 2)
            raise EnvError(f"{url}/{verb}: {type(error).__name__}: {brief(str(error))}",
                           away=not late) from None     # late: it may be the episode's fault
        self.silent.pop(url, None)
        return checked(status, answer, f"{url}/{verb}")

    def close(self):
        """Close all sessions; a server that is gone has closed them already."""
        for url in self.urls:
            if ids := [number for root, number in self.open if root == url]:
                with suppress(EnvError):
                    self.post(url, "closes", {"ids": ids})
        self.open.clear()


def reply_of(url, verb, body, item):
    """One episode's item in an answer to `body` -> Reply or EnvError; ValueError: a wrong task."""
    try:
        checked(200, item, f"{url}/{verb}")
        got = {name: field(item, name, kind, url) for name, kind in ITEM.items()}
        if got["id"] != body.get("id", got["id"]):
            raise EnvError(f"{url}: an answer of id {got['id']} to {brief(body)}")
        got["info"] = {name: field(got["info"], name, kind, url) for name, kind in INFO.items()}
    except EnvError as error:
        return error
    return Reply((url, got.pop("id")), **got)


def find_server(http, url, name):
    """Where this environment plays on the server at `url`. EnvError: it does not."""
    root = url.rstrip("/").removesuffix(f"/{name}")
    how = f"start one, python env_server.py {name}, and give the address it prints"
    try:
        _, health = exchange(http, "GET", f"{root}/health")
    except NO_ANSWER as error:
        raise EnvError(f"no environment server at {root} ({type(error).__name__}); {how}") from None
    if not isinstance(health, dict) or health.get("server") != "nanoAgentGym":
        raise EnvError(f"{root} answers, but not as our server; {how}, or give the address of an "
                       "original AgentGym server as --data")
    names = field(health, "environments", list[str], root)
    if name not in names:
        raise EnvError(f"{root} serves {', '.join(names)}, not {name}; {how}")
    return f"{root}/{name}"
