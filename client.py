"""The environment's client: episodes on one server or several, ours or the original AgentGym's.

    client = EnvClient("http://127.0.0.1:8000", "textcraft")
    (reply,) = client.answer([(None, "reset", 7)])               # Reply: session, observation, ...
    (reply,) = client.answer([(reply.session, "step", "inventory")])
    client.close([reply.session])
"""
import itertools
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import requests

from env_server import MAX_BODY, WIRES, Wire, local_server

BATCH = 256                 # episodes in one request, and less where their text is long
WRONG = (400, 413, 422)     # statuses of a request that sending again would not mend
ALSO = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}    # the originals' /reset


class EnvError(RuntimeError):
    """The environment or its server failed: never the agent's doing, never a reward."""


@dataclass
class Reply:
    session: tuple              # (address, id) on that server
    observation: str
    reward: float
    done: bool
    info: dict                  # success, valid, score


@contextmanager
def connected(env_url, name, success, workers=1, batched=True):
    """An EnvClient at these addresses (comma-separated), or at a server started for the while."""
    with ExitStack() as stack:
        try:
            urls = env_url.split(",") if env_url else \
                stack.enter_context(local_server(name, workers))
        except RuntimeError as reason:
            raise EnvError(f"no local server: {reason}") from None
        yield EnvClient(urls, name, success, batched=batched)


class EnvClient:
    """Episodes on one or several servers of an environment: ours, or one of the original AgentGym.

    answer([(session or None, "reset", task_id) | (session, "step", action)]) -> one Reply or
    EnvError each, in order; ValueError when a server refuses one as wrong (no such task). A task
    may be (task_id, stream): stream is the number that decides the episode's hidden luck where an
    environment has some (bandit, frozenlake). Connections are kept alive. A request that got no
    answer is sent again `retries` times: our server knows by the turn's number whether it has acted
    already; to an original server a step is never sent twice. `batched`: many episodes in one
    request; otherwise each has its own, `connections` at a time, so that a slow episode holds up
    nobody.
    """

    def __init__(self, urls, name, success=1.0, timeout=120.0, retries=2, batched=True,
                 connections=None):
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.urls = [f"{url.rstrip('/').removesuffix(f'/{name}')}/{name}" for url in self.urls]
        self.name, self.success = name, success
        self.wire = WIRES.get(name, Wire())
        self.timeout, self.retries = timeout, retries
        self.turns = {}                         # session -> steps answered in this episode
        self.thread = threading.local()         # a requests.Session is for one thread
        self.opened = itertools.count()
        kinds = [self._greet(i) for i in range(len(self.urls))]
        if len(set(kinds)) > 1:
            raise EnvError(f"{', '.join(self.urls)}: some are servers of ours, some the original "
                           "AgentGym's; give addresses of one kind")
        self.ours = kinds[0]
        self.pool = ThreadPoolExecutor(2 * len(self.urls))   # the servers answer side by side
        self.batched = batched and self.ours
        self.connections = connections or (2 if self.batched else 32)

    def _greet(self, i):
        """Who answers at urls[i]? True: our server. An original serves its environment at the root
        (maze and wordle apart), so the name is taken off the path again."""
        url, root = self.urls[i], self.urls[i].removesuffix(f"/{self.name}")
        try:
            health = self._http("GET", f"{root}/health")[1]
            if isinstance(health, dict) and health.get("server") == "nanoAgentGym":
                if self.name not in health["environments"]:
                    raise EnvError(f"{root} serves {', '.join(health['environments'])}, not "
                                   f"{self.name}; start: python env_server.py {self.name}")
                return True
            for base in (url, root):
                greeting = self._http("GET", f"{base}/")[1]
                if isinstance(greeting, str) and (greeting.lower().startswith("this is environment")
                                                  or greeting == "ok"):
                    self.urls[i] = base
                    return False
        except requests.RequestException as error:
            raise EnvError(f"no environment server at {root} ({type(error).__name__}); start one, "
                           f"python env_server.py {self.name}, and give the address it prints"
                           ) from None
        raise EnvError(f"{root} answers, but not as an environment server; start one, python "
                       f"env_server.py {self.name}, and give the address it prints")

    def _http(self, method, url, body=None):
        """One exchange -> (status, JSON or None if it is none). requests.RequestException."""
        if not hasattr(self.thread, "http"):
            self.thread.http = requests.Session()
            self.thread.http.trust_env = False       # no proxy between us and our own machine
        response = self.thread.http.request(method, url, json=body,
                                            timeout=(min(10, self.timeout), self.timeout))
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

    def _post(self, address, verb, body, again=True):
        """POST, with `retries` if need be -> the answer. An error, or no answer, raises EnvError;
        the refusal of a wrong request ValueError."""
        url = f"{self.urls[address]}/{verb}"
        for attempt in range(self.retries + 1 if again else 1):
            if attempt:
                time.sleep(0.1 * 2 ** attempt)
            try:
                status, answer = self._http("POST", url, body)
                break
            except requests.RequestException as error:
                failure = error
        else:
            raise EnvError(f"{url}: {type(failure).__name__}: {failure}")
        fields = answer if isinstance(answer, dict) else {}
        if status < 400 and answer is not None and "error" not in fields:
            return answer
        why = fields.get("error", fields.get("detail", "an answer that is no JSON"))
        raise (ValueError if status in WRONG else EnvError)(f"{url}: {why} (status {status})")

    def answer(self, items):
        if not self.ours:
            return [self._original(*item) for item in items]
        groups = defaultdict(list)              # (address, verb) -> [(place in items, body)]
        for i, (session, kind, argument) in enumerate(items):
            address = session[0] if session else next(self.opened) % len(self.urls)
            groups[address, kind].append((i, self._body(session, kind, argument)))
        parcels = [(*key, part) for key, bodies in groups.items() for part in split(bodies)]
        run = self.pool.map if len(self.urls) > 1 else map
        answers = {i: answer for part in run(self._send, parcels) for i, answer in part}
        return [answers[i] for i in range(len(items))]

    def _send(self, parcel):
        """One request for many episodes -> [(place in items, Reply or EnvError)]."""
        address, kind, bodies = parcel
        try:
            replies = self._post(address, f"{kind}s", {"items": [body for _, body in bodies]})
        except EnvError as error:
            return [(i, error) for i, _ in bodies]
        return [(i, self._read(address, kind, reply))
                for (i, _), reply in zip(bodies, replies["items"])]

    def _body(self, session, kind, argument):
        body = {} if session is None else {self.wire.id_key: session[1]}
        if kind == "reset":
            task_id, stream = argument if isinstance(argument, tuple) else (argument, None)
            return body | {self.wire.task_key: task_id} | ({} if stream is None
                                                           else {"stream": stream})
        return body | {"action": argument, "turn": self.turns[session]}

    def _read(self, address, kind, reply):
        if "error" in reply:
            text = f"{self.urls[address]}: {reply['error']}"
            if reply.get("status") in WRONG:
                raise ValueError(text)
            return EnvError(text)
        session = (address, reply["id"])
        self.turns[session] = 0 if kind == "reset" else self.turns[session] + 1
        return Reply(session, reply["observation"], reply["reward"], reply["done"], reply["info"])

    def _original(self, session, kind, argument):
        """One verb in the words of AgentGym's own server -> Reply or EnvError."""
        id_key, task_key, opened = self.wire.id_key, self.wire.task_key, None
        try:
            if session is None:
                address = next(self.opened) % len(self.urls)
                made = self._post(address, "create", {"id": 0} if id_key == "env_idx" else {})
                session = opened = (address, made[id_key] if isinstance(made, dict) else made)
            if kind == "reset":
                task_id = argument[0] if isinstance(argument, tuple) else argument
                body = {task_key: task_id} | ALSO.get(self.name, {})
            else:
                body = {"action": argument}
            reply = self._post(session[0], kind, {id_key: session[1]} | body, again=kind == "reset")
        except EnvError as error:
            self.close([opened])
            return error
        reply = reply[0] if isinstance(reply, list) else reply
        reply = reply if isinstance(reply, dict) else {"observation": reply}
        observation = reply.get("observation", reply.get("state"))
        if kind == "reset" and "task_description" in reply:
            observation = f"{reply['task_description']}\n{observation}"
        if kind == "reset" and "available_actions" in reply:
            observation += f"\nAVAILABLE ACTIONS: {','.join(reply['available_actions'])}"
        score = reply.get("score", reply.get("reward", 0))
        info = dict(success=score >= self.success, valid=True, score=score)
        return Reply(session, observation, reply.get("reward", 0),
                     reply.get("done", reply.get("terminated", False)), info)

    def close(self, sessions):
        """Close what is open; a server that is gone has closed it already."""
        by_address = defaultdict(list)
        for session in sessions:
            if session is not None:
                self.turns.pop(session, None)
                by_address[session[0]].append(session[1])
        for address, ids in by_address.items():
            try:
                if self.ours:
                    self._post(address, "closes", {"ids": ids})
                else:
                    for number in ids:
                        self._post(address, "close", {self.wire.id_key: number}, again=False)
            except EnvError:
                continue            # maze, wordle and the tools of the original have no /close


def split(bodies):
    """[(place, body)] cut into requests of at most BATCH bodies and half of what a server takes."""
    parts, room = [], 0
    for place, body in bodies:
        size = len(json.dumps(body))
        if not parts or len(parts[-1]) == BATCH or size > room:
            parts.append([])
            room = MAX_BODY // 2
        parts[-1].append((place, body))
        room -= size
    return parts
