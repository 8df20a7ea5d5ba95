"""The clients: of environments, on our servers or the original AgentGym's, and of a model's API.

    client = EnvClient("http://127.0.0.1:8000", "textcraft")
    (reply,) = client.answer([(None, "reset", 7)])               # Reply: session, observation, ...
    (reply,) = client.answer([(reply.session, "step", "inventory")])
    client.close()

EnvClient speaks the protocol of env_server.py; OriginalServer translates it for a server of the
original. Nothing that such a server sends is used before `field` has checked it. Api, at the end,
is a policy for `rollout.collect`.
"""
import itertools
import json
import math
import re
import reprlib
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from urllib.parse import urlsplit


from env_server import MAX_BODY, local_server
from envs.parts.wires import WIRES, Wire

BATCH = 256                         # most episodes in one request
MAX_ANSWER = 2**25                  # bytes of an answer: 32 MiB
RESET_ALSO = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}   # only the originals
LMRL_GYM = ("maze", "wordle")       # an original that greets at its root, and plays below it
NO_ANSWER = OSError, HTTPException  # nothing came, or not all of it in time
ITEM = {"id": int, "observation": str, "reward": float, "done": bool, "info": dict}


class EnvError(RuntimeError):
    """The environment or its server failed: never the agent's doing, never a reward."""
    away = False                # the server cannot be reached


class ServerAway(EnvError):
    """A server cannot be reached: its episodes are played again elsewhere, or when it is back."""
    away = True


class ServersGone(EnvError):
    """No server could be reached for as long as the client waits: the run cannot go on."""


@dataclass
class Reply:
    session: tuple              # (number of the server, id on that server, number of the episode)
    observation: str
    reward: float
    done: bool
    info: dict                  # success, valid (None: an original does not say), score


@contextmanager
def connected(env_url, modules, workers=1, batched=True, patience=60.0):
    """[an EnvClient of each environment] at these addresses (comma-separated), or at local ones it
    starts and ends. EnvError: nobody answers there; ValueError: why no local server can start."""
    with nullcontext(env_url) if env_url else \
            local_server([module.NAME for module in modules], workers) as urls:
        yield [EnvClient(urls, module.NAME, module.SUCCESS, batched=batched, patience=patience)
               for module in modules]


class EnvClient:
    """Episodes of one environment on one or several servers, all ours or all the original's.

    A request without an answer in `timeout` seconds is sent again, `retries` times: our server sees
    by the numbers of episode and turn whether it has acted already; to an original a step is never
    sent twice. `success`: the score that counts as success on an original. `batched`: many episodes
    in one request, to ours; else one in each, `connections` at a time: a slow one holds up no
    other. `patience`: seconds without any server until ServersGone."""

    def __init__(self, urls, name, success=1.0, timeout=120.0, retries=2, batched=True,
                 patience=60.0):
        http = Http(timeout, retries)
        urls = urls.split(",") if isinstance(urls, str) else urls
        self.servers = [find_server(url, name, success, http) for url in urls]
        self.urls = ", ".join(server.url for server in self.servers)
        if len({type(server) for server in self.servers}) > 1:
            raise EnvError(f"{self.urls}: give addresses of one kind, ours or the original's")
        self.wire, self.patience, self.opened = self.servers[0].wire, patience, itertools.count()
        self.episodes = itertools.count(time.time_ns())     # other numbers than other clients'
        self.pool = ThreadPoolExecutor(2 * len(self.servers))     # they answer side by side
        self.original = isinstance(self.servers[0], OriginalServer)
        self.batched = batched and not self.original
        self.connections = 2 if self.batched else 32

    def answer(self, items):
        """[(session or None, "reset", task_id) | (session, "step", action)] -> one Reply or
        EnvError each, in order; ValueError when a server refuses one as wrong (no such task). None
        opens a session. A task may be (task_id, stream), a number that seeds the episode's luck."""
        bodies, replies = defaultdict(list), {}     # (server, verb) -> [(place in items, body)]
        for place, (session, verb, argument) in enumerate(items):
            try:
                body = self.body(session, verb, argument)
                bodies[session[0] if session else self.next_server(), verb].append((place, body))
            except ServerAway as error:
                replies[place] = error
        calls = [(*key, part) for key, mine in bodies.items()
                 for part in split(mine, BATCH if self.batched else 1)]
        run = self.pool.map if len(self.servers) > 1 and len(calls) > 1 else map
        replies.update(itertools.chain(*run(lambda call: self.call(*call), calls)))
        return [replies[place] for place in range(len(items))]

    def body(self, session, verb, argument):
        """One episode's item in a request. session: None if it is to be opened."""
        body = {}
        if session:
            server, body = self.servers[session[0]], {self.wire.id_key: session[1]}
            episode, turn = server.playing.get(session[1], (None, 0))
            if episode != session[2]:
                raise ServerAway(f"{server.url}: id {session[1]} was lost")
            if verb == "step":
                return body | {"action": argument, "turn": turn, "episode": episode}
        task_id, stream = argument if isinstance(argument, tuple) else (argument, None)
        body |= {self.wire.task_key: task_id, "episode": next(self.episodes)}
        return body | ({} if stream is None else {"stream": stream})

    def next_server(self):
        """The number of the server for a new session: each in its turn, but those that are away."""
        for turn in self.opened:
            number = turn % len(self.servers)
            if self.servers[number].since == math.inf or self.servers[number].lives():
                return number
            seconds = time.monotonic() - max(server.since for server in self.servers)
            if seconds > self.patience:
                raise ServersGone(f"{self.urls}: no server has answered for {self.patience:g} s; "
                                  "start one and repeat the command (train.py: with --resume)")
            time.sleep(0.02 if seconds >= 0 else 0)     # below 0: another one lives

    def call(self, number, verb, part):
        """One request -> [(place, Reply or EnvError)]. If it fails, all its episodes fail."""
        server = self.servers[number]
        try:
            items = server.answer(verb, [body for _, body in part])
        except EnvError as error:
            if isinstance(error, ServerAway) and server.lives():
                error = EnvError(str(error))        # then the fault is in this request
            return [(place, error) for place, _ in part]
        return [(place, self.reply(number, verb, body, item))
                for (place, body), item in zip(part, items)]

    def reply(self, number, verb, body, item):
        """One episode's item in an answer -> Reply or EnvError."""
        server = self.servers[number]
        try:
            checked(200, item, f"{server.url}/{verb}")
            session_id, *values, info = (field(item, *each, server.url) for each in ITEM.items())
            if session_id != body.get(self.wire.id_key, session_id):
                raise EnvError(f"{server.url}: an answer of id {session_id} to {brief(body)}")
            info = {key: field(info, key, kind, server.url) for key, kind in server.info.items()}
        except EnvError as error:
            return error
        server.playing[session_id] = body["episode"], 0 if verb == "reset" else body["turn"] + 1
        return Reply((number, session_id, body["episode"]), *values, info)

    def close(self):
        """Close all sessions; a server that is gone has closed them already."""
        for server in self.servers:
            with suppress(EnvError):    # maze, wordle and the tools of the original have no /close
                server.close(sorted(server.playing))
            server.playing.clear()


def split(bodies, most=BATCH):
    """[(place, body)] cut into requests of at most `most` bodies and MAX_BODY / 2 bytes."""
    if len(bodies) <= most and len(json.dumps(bodies)) <= MAX_BODY // 2 or len(bodies) == 1:
        return [bodies]
    half = min(most, len(bodies) // 2)
    return split(bodies[:half], most) + split(bodies[half:], most)


def find_server(url, name, success, http):
    """OurServer or OriginalServer, whichever answers at this URL; EnvError if neither does."""
    root = url.rstrip("/").removesuffix(f"/{name}")
    how = f"start one, python env_server.py {name}, and give the address it prints"
    if not re.match("https?://[^/]", root):
        raise EnvError(f"{url!r} is no address, such as http://127.0.0.1:8000; {how}")
    try:
        health = http.exchange(f"{root}/health")[1]
        if isinstance(health, dict) and health.get("server") == "nanoAgentGym":
            if name not in (names := field(health, "environments", list[str], root)):
                raise EnvError(f"{root} serves {brief(', '.join(names))}, not {name}; {how}")
            return OurServer(f"{root}/{name}", name, success, http)
        for base in (f"{root}/{name}", root):   # most originals are at the root
            greeting = http.exchange(f"{base}/")[1]
            if re.match("(?i)this is environment|ok$", str(greeting)):
                base = f"{root}/{name}" if name in LMRL_GYM else base
                return OriginalServer(base, name, success, http)
    except (*NO_ANSWER, ValueError, LookupError, OverflowError) as error:   # or it is no address
        raise EnvError(f"no environment server at {root} ({type(error).__name__}); {how}") from None
    raise EnvError(f"{root} answers, but not as an environment server; {how}")


class Server:
    """One address: its sessions that play, and whether it answers."""

    def __init__(self, url, name, success, http):
        self.url, self.name, self.success, self.http = url, name, success, http
        self.wire = WIRES.get(name, Wire())
        self.playing = {}       # id of a session -> (number of its episode, steps answered in it)
        self.since, self.due = math.inf, 0      # when it went away (inf: it lives), the next try

    def lives(self):
        """Does it answer? It is asked again after 0.1, 0.2, 0.4 s and so on up to 20 s. While it
        does not, no session is opened there, and what was played there is lost."""
        now = time.monotonic()
        if now < self.due:
            return False
        self.since = min(self.since, now)
        self.due = now + min(0.1 + now - self.since, 20)
        try:
            find_server(self.url, self.name, self.success, Http(min(2, self.http.timeout), 0))
        except EnvError:
            self.playing.clear()
            return False
        self.since, self.due = math.inf, 0
        return True


class OurServer(Server):
    info = {"success": bool, "valid": bool, "score": float}

    def game(self, module):
        """(what the agent is told, None: all task ids are known here)."""
        return module.PROMPT, None

    def answer(self, verb, bodies):
        """The items of many episodes in one request, in order; EnvError."""
        url = f"{self.url}/{verb}s"
        items = field(self.http.post(url, {"items": bodies}), "items", list, url)
        if len(items) != len(bodies):
            raise EnvError(f"{url}: {len(items)} items in answer to {len(bodies)}")
        return items

    def close(self, ids):
        if ids:
            self.http.post(f"{self.url}/closes", {"ids": ids})


class OriginalServer(Server):
    """A server of the original AgentGym, made to answer as ours does. It takes one episode in a
    request and names its fields differently in each environment; what success is, it never says."""
    info = {"success": bool, "valid": type(None), "score": float}

    def answer(self, verb, bodies):
        """[the item of one episode]: EnvClient never batches for an original; EnvError."""
        # the originals know neither turns, episodes nor streams
        body = {key: value for key, value in bodies[0].items()
                if key not in ("turn", "episode", "stream")}
        body |= RESET_ALSO.get(self.name, {}) if verb == "reset" else {}
        if (key := self.wire.id_key) not in body:
            body[key] = self.create()
        try:
            answer = self.http.post(f"{self.url}/{verb}", body, again=verb == "reset")
            return [self.translated(answer, verb, body[key])]
        except EnvError:
            if verb == "reset":         # its episode is played again in a new session
                with suppress(EnvError):
                    self.close([body[key]])
            raise

    def game(self, module):
        """(what the agent is told, the task ids that are known here or None for all). A wordle has
        words of its own here, which stand in the place of ours."""
        prompt = module.PROMPT
        if self.name == "wordle":
            words = self.http.post(f"{self.url}/filtered_vocab?id={self.create()}", None)
            words = field({"words": words}, "words", list[str], self.url)
            prompt = prompt.replace(", ".join(module.LISTED), ", ".join(words))
        return prompt, getattr(module, "ORIGINAL", None)

    def create(self):
        """The id of a new session."""
        key, url = self.wire.id_key, f"{self.url}/create"
        made = self.http.post(url, {"id": 0} if key == "env_idx" else {})
        return field({key: made} if self.wire.create == key else made, key, int, url)

    def translated(self, answer, verb, number):
        """{field: value}, [observation, null] or the observation alone, as our server puts it."""
        form, url = self.wire.reset if verb == "reset" else self.wire.step, f"{self.url}/{verb}"
        if form[0] == "[":
            answer = answer[0] if type(answer) is list and answer else None
        if form[0] != "{":
            answer = {"observation": answer}
        observation = field(answer, "state" if "state" in form else "observation", str, url)
        if verb == "reset":
            if "task_description" in form:
                observation = f"{field(answer, 'task_description', str, url)}\n{observation}"
            if "available_actions" in form:
                actions = field(answer, "available_actions", list[str], url)
                observation += f"\nAVAILABLE ACTIONS: {','.join(actions)}"
            answer = {"reward": 0, "done": False} | answer      # not every reset has them
        done = field(answer, "terminated" if "terminated" in form else "done", bool, url)
        score = field(answer, "score" if "score" in form else "reward", float, url)
        success = score >= self.success
        return dict(id=answer.get(self.wire.id_key, number), observation=observation,
                    reward=answer.get("reward"), done=done or success,  # or babyai pays twice
                    info=dict(success=success, valid=None, score=score))

    def close(self, ids):
        for number in ids:
            self.http.post(f"{self.url}/close", {self.wire.id_key: number}, again=False)


class Http(threading.local):
    """Connections that are kept alive; each thread has its own."""

    def __init__(self, timeout, retries):
        self.timeout, self.retries, self.kept = timeout, retries, {}    # seconds for an answer

    def exchange(self, url, body=None):
        """Send once, GET without a body, else POST -> (status, JSON or None if it is none).
        NO_ANSWER, also if it is too large; EnvError if it leads elsewhere."""
        at = urlsplit(url)
        if at[:2] not in self.kept:
            kind = {"http": HTTPConnection, "https": HTTPSConnection}[at.scheme]
            self.kept[at[:2]] = kind(at.netloc, timeout=min(10, self.timeout))      # to connect
        connection = self.kept[at[:2]]      # if closed, the request opens it again
        connection.response_class = partial(response_until, time.monotonic() + self.timeout)
        try:
            connection.request("GET" if body is None else "POST", url.partition(at.netloc)[2],
                               None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read(MAX_ANSWER + 1)
            if response.length or len(text) > MAX_ANSWER:
                raise IncompleteRead(text, response.length)
        except BaseException:
            connection.close()
            raise
        if 300 <= response.status < 400:
            raise EnvError(f"{url} redirects to {brief(response.headers['Location'])}; give the "
                           "server's own address")
        try:
            return response.status, json.loads(text, parse_constant=int)    # NaN is no int: none
        except (ValueError, RecursionError):
            return response.status, None

    def post(self, url, body, again=True):
        """Send until an answer comes, which is `checked`; ServerAway if none does."""
        if not again:
            self.kept.clear()       # the server may just be closing a kept connection
        for attempt in range(self.retries + 1 if again else 1):
            time.sleep(0.2 * max(attempt - 1, 0))
            try:
                return checked(*self.exchange(url, body), url)
            except NO_ANSWER as error:
                failure = error
        raise ServerAway(f"{url}: {type(failure).__name__}: {brief(str(failure))}")


def response_until(ends, sock, **options):
    """An HTTPResponse that raises TimeoutError at `ends`, even if bytes still trickle in."""
    response = HTTPResponse(sock, **options)
    read = response.fp.raw.readinto

    def readinto(buffer):
        if (left := ends - time.monotonic()) <= 0:
            raise TimeoutError("the answer takes too long")
        sock.settimeout(left)
        return read(buffer)
    response.fp.raw.readinto = readinto
    return response


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
    if answer is not None and "error" not in fields and status < 400:
        return answer
    status = fields.get("status", status)           # of one item in an answer
    why = fields.get("error", fields.get("detail", "an answer that is no JSON"))
    wrong = status in (400, 413, 422) and not url.endswith(("/step", "/steps"))
    raise (ValueError if wrong else EnvError)(f"{url}: {brief(why)} (status {brief(status)})")


def brief(value):
    """What a server sent, on one line and cut, for a sentence."""
    return " ".join(value[:300].split()) if isinstance(value, str) else reprlib.repr(value)
