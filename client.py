"""client: the environment client, of our servers or of the original AgentGym's.

    client = EnvClient("http://127.0.0.1:8000", "textcraft")
    (reply,) = client.answer([(None, "reset", 7)])               # Reply: session, observation, ...
    (reply,) = client.answer([(reply.session, "step", "inventory")])
    client.close()

Many episodes are answered by one request of one wire: POST /resets, /steps, /closes, see
env_server.py; for a server of the original, envs/parts/wires.py translates. A request is sent once.
If it fails, its episodes get an EnvError, and whoever plays them plays them again from their reset.
Nothing that a server sends is used before `field` has checked it.
"""
import itertools
import json
import re
import reprlib
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

import urllib3

from env_server import MAX_ITEMS, local_server
from envs.parts import wires

MAX_ANSWER = 2**25                  # bytes of an answer: 32 MiB
NO_ANSWER = OSError, urllib3.exceptions.HTTPError
ITEM = {"id": int, "observation": str, "reward": float, "done": bool, "info": dict}


class EnvError(RuntimeError):
    """The environment or its server failed: never the agent's doing, never a reward. away: the
    server cannot be reached."""

    def __init__(self, sentence, away=False):
        super().__init__(sentence)
        self.away = away


class ServersGone(EnvError):
    """No server has answered for as long as the client waits: the run cannot go on."""


@dataclass
class Reply:
    session: tuple              # (URL of the server, id there)
    observation: str
    reward: float
    done: bool
    info: dict                  # success, valid (None: an original does not say), score


@contextmanager
def connected(env_url, modules):
    """[an EnvClient of each environment] at these addresses (comma-separated), or at a local server
    that is started and ended. EnvError: nobody answers there; ValueError: why none can start."""
    with nullcontext(env_url.split(",")) if env_url else \
            local_server([module.NAME for module in modules]) as urls:
        yield [EnvClient(urls, module.NAME, module.SUCCESS) for module in modules]


class EnvClient:
    """Episodes of one environment on one or several servers, all ours or all the original's.

    success: the score that counts as success on an original. patience: seconds without an answer of
    any server until ServersGone. timeout: seconds for one answer."""

    def __init__(self, urls, name, success=1.0, patience=60.0, timeout=120.0):
        self.name, self.success, self.patience = name, success, patience
        self.id_key = wires.wire_of(name).id_key        # of an original
        self.http = urllib3.PoolManager(
            maxsize=32, timeout=urllib3.Timeout(connect=min(10, timeout), read=timeout),
            retries=urllib3.Retry(None, connect=2, read=0, redirect=False, status=0, other=0,
                                  backoff_factor=0.1))      # again only what was never sent
        self.urls, self.original = find_servers(self.http, urls, name)
        self.batched = not self.original                # one request holds many episodes
        self.connections = 2 if self.batched else 32    # requests under way at a time
        self.silent = {}        # URL -> (since when it gives no answer, when it is asked again)
        self.open, self.turn = set(), itertools.count()     # sessions (URL, id); of the next one
        self.pool = ThreadPoolExecutor(2 * len(self.urls))      # servers answer side by side

    def game(self, module):
        """(what the agent is told, the task ids that are known here or None for all). An original's
        wordle has words of its own, which stand in the place of ours."""
        if not self.original:
            return module.PROMPT, None
        prompt, url = module.PROMPT, self.urls[0]
        if self.name == "wordle":
            words = {"words": self.post(f"{url}/filtered_vocab?id={self.create(url)}", None)}
            prompt = prompt.replace(", ".join(module.LISTED), ", ".join(
                field(words, "words", list[str], url)))
        return prompt, getattr(module, "ORIGINAL", None)

    def answer(self, items):
        """[(session or None, "reset", task_id) | (session, "step", action)] -> one Reply or
        EnvError each, in order; ValueError when a server refuses one as wrong (no such task). None
        opens a session. A task may be (task_id, stream), a number that seeds the episode's luck."""
        bodies, replies = defaultdict(list), {}     # (URL, verb) -> [(place in items, body)]
        for place, (session, verb, argument) in enumerate(items):
            url = session[0] if session else self.live_url()
            bodies[url, verb].append((place, body_of(session, verb, argument)))
        most = MAX_ITEMS if self.batched else 1
        calls = [(*key, mine[i:i + most]) for key, mine in bodies.items()
                 for i in range(0, len(mine), most)]
        run = map if len(self.urls) == 1 else self.pool.map         # one server: in their order
        replies.update(itertools.chain(*run(lambda call: self.call(*call), calls)))
        return [replies[place] for place in range(len(items))]

    def live_url(self):
        """Where to open a session: each server in its turn, but those that gave no answer within
        the last second. ServersGone."""
        while True:
            now = time.monotonic()
            if due := [url for url in self.urls if self.silent.get(url, (0, 0))[1] <= now]:
                return due[next(self.turn) % len(due)]
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
            items = [self.ask_original(url, verb, bodies[0])] if self.original else \
                field(self.post(f"{url}/{verb}s", {"items": bodies}), "items", list, url)
            if len(items) != len(bodies):
                raise EnvError(f"{url}: {len(items)} items in answer to {len(bodies)}")
        except EnvError as error:
            return [(place, error) for place, _ in part]
        replies = [reply_of(url, verb, body, item, self.original)
                   for body, item in zip(bodies, items)]
        self.open |= {reply.session for reply in replies if isinstance(reply, Reply)}
        return zip([place for place, _ in part], replies)

    def ask_original(self, url, verb, body):
        """The item of one episode, as ours would answer it; EnvError."""
        if "id" not in body:
            body = body | {"id": self.create(url)}
        answer = self.post(f"{url}/{verb}", wires.request_of(self.name, verb, body))
        try:
            return wires.item_of(self.name, verb, body["id"], answer, self.success)
        except (LookupError, TypeError):
            raise EnvError(f"{url}/{verb}: {brief(answer)} is no answer of {self.name}") from None

    def create(self, url):
        """The id of a new session of an original."""
        made, key = self.post(f"{url}/create", wires.create_of(self.name)), self.id_key
        number = field(made if isinstance(made, dict) else {key: made}, key, int, url)
        self.open.add((url, number))
        return number

    def post(self, url, body):
        """Send once -> the answer, `checked`. EnvError: none came. A server that gave none is left
        alone for as long as the failure took, a second at least, half of the patience at most."""
        root = next((root for root in self.urls if url.startswith(f"{root}/")), url)
        began = time.monotonic()
        try:
            status, answer = exchange(self.http, "GET" if body is None else "POST", url, body)
        except NO_ANSWER as error:
            now, late = time.monotonic(), isinstance(error, urllib3.exceptions.ReadTimeoutError)
            rest = min(max(1, now - began), self.patience / 2)
            self.silent[root] = self.silent.get(root, (now,))[0], now + rest
            raise EnvError(f"{url}: {type(error).__name__}: {brief(str(error))}",
                           away=not late) from None     # late: it may be the episode's fault
        self.silent.pop(root, None)
        return checked(status, answer, url)

    def close(self):
        """Close all sessions; a server that is gone has closed them already."""
        sessions, self.open = self.open, set()
        for url in self.urls:
            ids = sorted(number for root, number in sessions if root == url)
            with suppress(EnvError, ValueError):    # some originals have no /close
                if ids and not self.original:
                    self.post(f"{url}/closes", {"ids": ids})
                for number in ids if self.original else ():
                    self.post(f"{url}/close", {self.id_key: number})


def body_of(session, verb, argument):
    """An item of EnvClient.answer in the words of the wire."""
    body = {"id": session[1]} if session else {}
    if verb == "step":
        return body | {"action": argument}
    task, stream = argument if isinstance(argument, tuple) else (argument, None)
    return body | {"task": task} | ({} if stream is None else {"stream": stream})


def reply_of(url, verb, body, item, original):
    """One episode's item in an answer to `body` -> Reply or EnvError; ValueError: a wrong task."""
    try:
        checked(200, item, f"{url}/{verb}")
        got = {name: field(item, name, kind, url) for name, kind in ITEM.items()}
        if got["id"] != body.get("id", got["id"]):
            raise EnvError(f"{url}: an answer of id {got['id']} to {brief(body)}")
        kinds = dict(success=bool, valid=type(None) if original else bool, score=float)
        got["info"] = {key: field(got["info"], key, kind, url) for key, kind in kinds.items()}
    except EnvError as error:
        return error
    return Reply((url, got.pop("id")), **got)


def find_servers(http, urls, name):
    """([where this environment plays on each], whether they are the original's). EnvError."""
    urls = [urls] if isinstance(urls, str) else urls
    found, kinds = zip(*(find_server(http, url, name) for url in urls))
    if len({*kinds}) > 1:
        raise EnvError(f"{', '.join(found)}: give addresses of one kind, ours or the original's")
    return list(found), kinds[0]


def find_server(http, url, name):
    """(where this environment plays, whether that is an original's server). EnvError."""
    root = url.rstrip("/").removesuffix(f"/{name}")
    how = f"start one, python env_server.py {name}, and give the address it prints"
    if not re.match("https?://[^/]", root):
        raise EnvError(f"{url!r} is no address, such as http://127.0.0.1:8000; {how}")
    try:
        _, health = exchange(http, "GET", f"{root}/health")
        if isinstance(health, dict) and health.get("server") == "nanoAgentGym":
            names = field(health, "environments", list[str], root)
            if name not in names:
                raise EnvError(f"{root} serves {', '.join(names)}, not {name}; {how}")
            return f"{root}/{name}", False
        for greets, plays in wires.addresses_of(root, name).items():
            _, greeting = exchange(http, "GET", greets)
            if re.match("(?i)this is environment|ok$", str(greeting)):
                return plays, True
    except NO_ANSWER as error:
        raise EnvError(f"no environment server at {root} ({type(error).__name__}); {how}") from None
    raise EnvError(f"{root} answers, but not as an environment server; {how}")


def exchange(http, method, url, body=None):
    """Send once -> (HTTP status, JSON or None if the answer is none)."""
    response = http.request(method, url, json=body, preload_content=False)
    text = response.read(MAX_ANSWER + 1, decode_content=False)
    if len(text) > MAX_ANSWER:
        response.close()
        raise OSError(f"an answer of more than {MAX_ANSWER} bytes")
    response.release_conn()
    if 300 <= response.status < 400:
        raise EnvError(f"{url} redirects to {brief(response.headers['Location'])}; give the "
                       "server's own address")
    try:
        return response.status, json.loads(text, parse_constant=int)    # NaN is no int: none
    except (ValueError, RecursionError):
        return response.status, None


TYPES = {       # what is taken for a value of these types; of any other, what is exactly that type
    float: lambda x: type(x) in (int, float) and abs(x) < 1e30,     # even a sum of them is finite
    str: lambda x: (type(x) is str and len(x) <= 2**20      # half a character, no tokenizer takes
                    and x == x.encode(errors="replace").decode()),
    list[str]: lambda x: type(x) is list and all(map(TYPES[str], x))}


def field(answer, name, kind, url):
    """answer[name], if it is of this kind, else EnvError: what a server sends is read here."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not TYPES.get(kind, lambda x: type(x) is kind)(value):
        raise EnvError(f"{url}: {name} is {brief(value)} in {brief(answer)}; expected "
                       f"{'a finite ' * (kind is float)}{kind.__name__}")
    return value


def checked(status, answer, url):
    """The answer (JSON, None if it was none), unless it reports a failure, with whatever status:
    then ValueError if the request was wrong, else EnvError. A step never is: any text is one."""
    fields = answer if isinstance(answer, dict) else {}
    if answer is not None and "error" not in fields and status < 300:
        return answer
    status = fields.get("status", status)           # of one item in an answer
    why = fields.get("error", fields.get("detail", "an answer that is no JSON"))
    wrong = status in (400, 413, 422) and not url.endswith(("/step", "/steps"))
    raise (ValueError if wrong else EnvError)(f"{url}: {brief(why)} (status {brief(status)})")


def brief(value):
    """What a server sent, on one line and cut, for a sentence."""
    return " ".join(value[:300].split()) if isinstance(value, str) else reprlib.repr(value)
