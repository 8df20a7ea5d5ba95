"""The environment's client: episodes on one server or several, ours or the original AgentGym's.

    client = EnvClient("http://127.0.0.1:8000", "textcraft")
    (reply,) = client.answer([(None, "reset", 7)])               # Reply: session, observation, ...
    (reply,) = client.answer([(reply.session, "step", "inventory")])
    client.close([reply.session])

EnvClient speaks the protocol of env_server.py to its `servers`: OurServer sends that as it is,
OriginalServer translates it for a server of the original.
"""
import itertools
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import requests

from env_server import MAX_BODY, WIRES, Wire, local_server

BATCH = 256                         # most episodes in one request
RESET_ALSO = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}   # only the originals


class EnvError(RuntimeError):
    """The environment or its server failed: never the agent's doing, never a reward."""


class ServersGone(EnvError):
    """No environment server has answered for `patience` seconds."""


@dataclass
class Reply:
    session: tuple              # (number of the server, id on that server)
    observation: str
    reward: float
    done: bool
    info: dict                  # success, valid, score


@contextmanager
def connected(env_url, name, success, workers=1, batched=True, patience=60.0):
    """An EnvClient at these addresses (comma-separated), or at local ones it starts and ends."""
    with ExitStack() as stack:
        try:
            urls = env_url.split(",") if env_url else \
                stack.enter_context(local_server(name, workers))
        except RuntimeError as reason:
            raise EnvError(f"no local server: {reason}") from None
        yield EnvClient(urls, name, success, batched=batched)


class EnvClient:
    """Episodes of one environment on one or several servers, all ours or all the original's.

    A request without an answer in `timeout` seconds is sent again, `retries` times: our server
    sees by the turn's number whether it has acted already; to an original a step is never sent
    twice. `success`: the score that counts as success on an original. `batched`: many episodes in
    one request, if the servers are ours; otherwise one in each, `connections` at a time, so that a
    slow one holds up no other.
    """

    def __init__(self, urls, name, success=1.0, timeout=120.0, retries=2, batched=True):
        http = Http(timeout, retries)
        self.servers = [find_server(url, name, success, http)
                        for url in ([urls] if isinstance(urls, str) else urls)]
        if len({type(server) for server in self.servers}) > 1:
            raise EnvError(f"{', '.join(server.url for server in self.servers)}: some are servers "
                           "of ours, some the original AgentGym's; give addresses of one kind")
        self.wire = WIRES.get(name, Wire())
        self.turns = {}                         # session -> steps answered in its episode
        self.opened = itertools.count()
        self.pool = ThreadPoolExecutor(2 * len(self.servers))     # they answer side by side
        self.batched = batched and isinstance(self.servers[0], OurServer)
        self.connections = 2 if self.batched else 32

    def answer(self, items):
        """[(session or None, "reset", task_id) | (session, "step", action)] -> one Reply or
        EnvError each, in order; ValueError when a server refuses one as wrong (no such task). None
        opens a session. A task may be (task_id, stream): stream is a number that seeds the
        episode's luck where an environment has some (bandit, frozenlake)."""
        bodies = defaultdict(list)              # (server, verb) -> [(place in items, body)]
        for place, (session, verb, argument) in enumerate(items):
            server = session[0] if session else next(self.opened) % len(self.servers)
            bodies[server, verb].append((place, self.body(session, verb, argument)))
        calls = [(*key, part) for key, mine in bodies.items()
                 for part in split(mine, BATCH if self.batched else 1)]
        run = self.pool.map if len(self.servers) > 1 and len(calls) > 1 else map
        replies = dict(itertools.chain(*run(lambda call: self.call(*call), calls)))
        return [replies[place] for place in range(len(items))]

    def body(self, session, verb, argument):
        """One episode's item in a request. session: None if it is to be opened."""
        body = {} if session is None else {self.wire.id_key: session[1]}
        if verb == "step":
            return body | {"action": argument, "turn": self.turns[session]}
        task_id, stream = argument if isinstance(argument, tuple) else (argument, None)
        return body | {self.wire.task_key: task_id} | ({} if stream is None else {"stream": stream})

    def call(self, server, verb, part):
        """One request -> [(place, Reply or EnvError)]. If it fails, all its episodes fail."""
        try:
            items = self.servers[server].answer(verb, [body for _, body in part])
        except EnvError as error:
            return [(place, error) for place, _ in part]
        return [(place, self.read(server, verb, item)) for (place, _), item in zip(part, items)]

    def read(self, server, verb, item):
        """One episode's item in an answer, of either kind of server: checked, then a Reply."""
        try:
            checked(item.get("status", 200), item, self.servers[server].url)
        except EnvError as error:
            return error
        session = (server, item["id"])
        self.turns[session] = 0 if verb == "reset" else self.turns[session] + 1
        return Reply(session, item["observation"], item["reward"], item["done"], item["info"])

    def close(self, sessions):
        """Close those that are open; a server that is gone has closed them already."""
        for number, server in enumerate(self.servers):
            if ids := [session[1] for session in sessions if session and session[0] == number]:
                server.close(ids)
        for session in sessions:
            self.turns.pop(session, None)


def split(bodies, most=BATCH):
    """[(place, body)] cut into requests of at most `most` bodies and MAX_BODY / 2 bytes."""
    parts, room = [], 0
    for place, body in bodies:
        size = len(json.dumps(body))
        if size > room or len(parts[-1]) == most:
            parts.append([])
            room = MAX_BODY // 2
        parts[-1].append((place, body))
        room -= size
    return parts


def find_server(url, name, success, http):
    """OurServer or OriginalServer, whichever answers at this URL; EnvError if neither does."""
    root = url.rstrip("/").removesuffix(f"/{name}")
    how = f"start one, python env_server.py {name}, and give the address it prints"
    try:
        health = http.exchange("GET", f"{root}/health")[1]
        if isinstance(health, dict) and health.get("server") == "nanoAgentGym":
            if name not in health["environments"]:
                raise EnvError(f"{root} serves {', '.join(health['environments'])}, not {name}; "
                               f"start: python env_server.py {name}")
            return OurServer(f"{root}/{name}", http)
        for base in (f"{root}/{name}", root):   # most originals are at the root
            greeting = http.exchange("GET", f"{base}/")[1]
            if isinstance(greeting, str) and (greeting.lower().startswith("this is environment")
                                              or greeting == "ok"):
                return OriginalServer(base, name, success, http)
    except requests.RequestException as error:
        raise EnvError(f"no environment server at {root} ({type(error).__name__}); {how}") from None
    raise EnvError(f"{root} answers, but not as an environment server; {how}")


class OurServer:
    def __init__(self, url, http):
        self.url, self.http = url, http

    def answer(self, verb, bodies):
        return self.http.post(f"{self.url}/{verb}s", {"items": bodies})["items"]

    def close(self, ids):
        with suppress(EnvError):
            self.http.post(f"{self.url}/closes", {"ids": ids})


class OriginalServer:
    """A server of the original AgentGym, made to answer as ours does. It takes one episode in a
    request and names its fields differently in each environment; what success is, it never says."""

    def __init__(self, url, name, success, http):
        self.url, self.name, self.success, self.http = url, name, success, http
        self.id_key = WIRES.get(name, Wire()).id_key

    def answer(self, verb, bodies):
        # one body, by EnvClient.batched; the originals know neither turns nor streams
        body = {key: value for key, value in bodies[0].items() if key not in ("turn", "stream")}
        body |= RESET_ALSO.get(self.name, {}) if verb == "reset" else {}
        if created := self.id_key not in body:
            made = self.http.post(f"{self.url}/create",
                                  {"id": 0} if self.id_key == "env_idx" else {})
            body[self.id_key] = made[self.id_key] if isinstance(made, dict) else made
        try:
            answer = self.http.post(f"{self.url}/{verb}", body, again=verb == "reset")
        except EnvError:
            self.close([body[self.id_key]] if created else [])
            raise
        # {field: value}, [observation, null] or the observation alone -> our server's fields
        answer = answer[0] if isinstance(answer, list) else answer
        answer = answer if isinstance(answer, dict) else {"observation": answer}
        observation = answer.get("observation", answer.get("state"))
        if verb == "reset" and "task_description" in answer:
            observation = f"{answer['task_description']}\n{observation}"
        if verb == "reset" and "available_actions" in answer:
            observation += f"\nAVAILABLE ACTIONS: {','.join(answer['available_actions'])}"
        reward, done = answer.get("reward", 0), answer.get("done", answer.get("terminated", False))
        score = answer.get("score", reward)
        return [dict(id=body[self.id_key], observation=observation, reward=reward, done=done,
                     info=dict(success=score >= self.success, valid=True, score=score))]

    def close(self, ids):
        with suppress(EnvError):                # maze, wordle and the tools have no /close
            for number in ids:
                self.http.post(f"{self.url}/close", {self.id_key: number}, again=False)


class Http(threading.local):
    """Connections that are kept alive; each thread has its own: requests.Session is for one."""

    def __init__(self, timeout, retries):
        self.timeout, self.retries = (min(10, timeout), timeout), retries   # to connect, to answer
        self.session = requests.Session()
        self.session.trust_env = False           # never through a proxy of the environment's

    def exchange(self, method, url, body=None):
        """Send once -> (status, JSON or None if it is none); else requests.RequestException."""
        response = self.session.request(method, url, json=body, timeout=self.timeout)
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

    def post(self, url, body, again=True):
        """Send until an answer comes, which is `checked`; EnvError if none does."""
        for attempt in range(self.retries + 1 if again else 1):
            if attempt:
                time.sleep(0.1 * 2 ** attempt)
            try:
                return checked(*self.exchange("POST", url, body), url)
            except requests.RequestException as error:
                failure = error
        raise EnvError(f"{url}: {type(failure).__name__}: {failure}")


def checked(status, answer, url):
    """The answer (JSON, None if it was none), unless it reports a failure, with whatever status:
    then ValueError if the request was wrong, and would be again, else EnvError."""
    fields = answer if isinstance(answer, dict) else {}
    if status < 400 and answer is not None and "error" not in fields:
        return answer
    why = fields.get("error", fields.get("detail", "an answer that is no JSON"))
    raise (ValueError if status in (400, 413, 422) else EnvError)(f"{url}: {why} (status {status})")
