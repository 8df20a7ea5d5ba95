"""The environments of envs/ as HTTP services: AgentGym's protocol, and many episodes per request.

    python env_server.py textcraft                 answers at http://127.0.0.1:8000/textcraft and /
    python env_server.py maze wordle --port 9000   answers at .../maze and .../wordle
    with local_server("textcraft", workers=2) as urls: ...     from a script: started, then ended

A session is one Env object under an integer id, in one process: --workers N starts N of them, on
successive ports. The verbs of the original, in textcraft's words (others have other words, see
envs/parts/wires.py; `info` and all below /close are our additions):

    POST /create {}                                -> {"id": 0, ...}
    POST /reset  {"id": 0, "data_idx": 7}          -> {"id": 0, "observation": "Crafting ...", ...}
    POST /step   {"id": 0, "action": "get 1 log"}  -> {"observation": "Got 1 log", "reward": 0,
                           "done": false, "info": {"success": false, "valid": true, "score": 0}}
    GET  /observation?id=0                         -> "Got 1 log"
    POST /close  {"id": 0}                         -> true; false if there was nothing to close

Many at once, answered in order. A good answer has the same five keys in every environment:

    POST /resets {"items": [{"data_idx": 7}, {"id": 0, "data_idx": 9}]}    no id: a new session
    POST /steps  {"items": [{"id": 1, "action": "get 1 log", "turn": 0}, {"id": 99, "action": ""}]}
              -> {"items": [{"id": 1, "observation": "Got 1 log", "reward": 0, "done": false,
                             "info": {"success": false, "valid": true, "score": 0}},
                            {"error": "The id 99 is not valid.", "status": 404}]}
    POST /closes {"ids": [0, 1]} -> {"items": [true, true]}
    GET  /health -> {"server": "nanoAgentGym", "environments": ["textcraft"], "sessions": 1, ...}

All optional: `turn`, the number of this episode's steps whose answers the client has seen: a step
sent again because its answer got lost does not act twice. `episode`, a number for a reset and its
steps, keeps a late step out of the next episode. `stream` seeds a reset's luck: envs/__init__.py.

A failure is answered by {"error": sentence}, never by a reward. Its HTTP status is 200 in the first
dialect of AgentGym (`id`); in the second (`env_idx`) 400 wrong request, 404 unknown id, 409 not now
(finished, not reset, wrong turn), 410 closed or expired, 500 the environment broke (until its next
reset), 503 too many sessions or bytes. In both: 404 no such path, 422 a wrong field (with FastAPI's
"detail"), 403 to 415 HttpRequest.refusal.
"""
import argparse
import contextlib
import json
import math
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from envs import folders_of, known_envs, open_env
from envs.parts.wires import WIRES, Wire

MAX_BODY = 2**20            # bytes of a request
MAX_REPLY = 2**22           # bytes after which no further item of a request is executed
MAX_ITEMS = 256             # of a request, and so the most sessions that it opens
MAX_SESSIONS = 4096         # of one environment in one process
IDLE_SECONDS = 1800.0       # a session without a request for this long is closed


# ---- Environments and their sessions ----

LOOK = {"observation": "observation", "detail": "{id observation reward done deleted}"}


def shaped(shape, session):
    """The session's last answer in the shape that the environment's own clients expect."""
    answer, values = session.answer, {}
    words = {**answer, "env_idx": session.id, "null": None, "deleted": False, "truncated": False,
             "state": answer["observation"], "terminated": answer["done"],
             "score": answer["info"]["score"]}
    for word in shape.strip("{[]}").split():
        value = words[word] if word in words else getattr(session.env, word)
        values[word] = value() if callable(value) else value
    if shape[0] == "{":
        return values
    return list(values.values()) if shape[0] == "[" else values[shape]


class Refused(Exception):
    """A request that gets no ordinary answer: its status, one sentence, FastAPI's "detail"."""

    def __init__(self, status, sentence, detail=None):
        super().__init__(sentence)
        self.status, self.detail = status, detail


class Session:
    """One Env, made when first needed, and where its episode stands."""

    def __init__(self, session_id, client):
        self.id, self.client, self.env, self.lock = session_id, client, None, threading.Lock()
        self.turns = self.episode = None    # steps of this episode (None: none began); its number
        self.broken = ""        # why it cannot step until its next reset
        self.used = time.monotonic()
        self.keep("")

    def keep(self, observation, reward=0, done=False, info=None):
        """The session's last answer; with the observation alone, that of an episode's beginning."""
        info = info or {"success": False, "valid": True, "score": getattr(self.env, "score", 0)}
        self.answer = {"id": self.id, "observation": observation, "reward": reward,
                       "done": bool(done), "info": info}
        return self.answer

    def check_started(self):
        if self.broken:
            raise Refused(500, self.broken)
        if self.turns is None:
            raise Refused(409, f"Environment not initialized: reset id {self.id} first.")

    def close_env(self):
        """Close the environment, if one was made; a failure of it is printed, not raised."""
        env, self.env = self.env, None
        try:
            if env is not None:
                env.close()
        except Exception as failure:    # the other sessions must still be closed
            print(f"env_server: closing id {self.id}: {failure!r}", file=sys.stderr)


class Service:
    """One environment and its sessions."""

    def __init__(self, name, max_sessions=MAX_SESSIONS, idle_seconds=IDLE_SECONDS):
        self.name, self.max_sessions, self.idle_seconds = name, max_sessions, idle_seconds
        self.module, self.wire = open_env(name), WIRES.get(name, Wire())
        self.lock, self.next_id, self.sessions = threading.Lock(), 0, {}
        # PARALLEL = True in an env file: its engine works outside Python's lock (sciworld's JVM).
        self.pool = ThreadPoolExecutor() if getattr(self.module, "PARALLEL", False) else None

    def find(self, session_id):
        """The session of this id, or the sentence why there is none."""
        if session := self.sessions.get(session_id):
            return session
        if 0 <= session_id < self.next_id:
            raise Refused(410, f"The id {session_id} is not valid any more: it was closed, or "
                               f"expired after {self.idle_seconds:g} s without a request.")
        raise Refused(404, f"The id {session_id} is not valid.")

    def open(self, client):
        """A new session. One client, that is one address, may hold three times what is left."""
        with self.lock:
            clients = [session.client for session in list(self.sessions.values())]
            if clients.count(client) >= 3 * (self.max_sessions - len(clients)):
                raise Refused(503, f"{self.name}: {len(clients)} sessions are open, "
                    f"{clients.count(client)} of them yours; close some or raise --max-sessions")
            session = self.sessions[self.next_id] = Session(self.next_id, client)
            self.next_id += 1
            return session

    @contextlib.contextmanager
    def hold(self, body, client=None):
        """The session that the body names, locked; for a client, if it names none, a new one that
        is gone again when its first request fails. A ValueError of the environment refuses the
        request; any other exception breaks the session, and no other session."""
        session_id = field_of(body, self.wire.id_key, int, required=client is None)
        session = self.open(client) if session_id is None else self.find(session_id)
        try:
            with session.lock:
                try:
                    yield self.find(session.id)     # it may have been closed while we waited
                except Refused:
                    raise
                except ValueError as refusal:
                    raise Refused(400, str(refusal)) from refusal
                except Exception as crash:
                    traceback.print_exc()
                    session.broken = (f"The environment of id {session.id} broke and needs a reset:"
                                      f" {type(crash).__name__}: {crash}")
                    session.close_env()
                    raise Refused(500, session.broken) from crash
                finally:
                    session.used = time.monotonic()
        except Refused:
            if session_id is None:
                self.close(session.id)
            raise

    def close(self, session_id):
        """Whether there was one to close. A request it is just serving is finished first."""
        if session := self.sessions.pop(session_id, None):
            with session.lock:
                session.close_env()
        return session is not None

    def close_idle(self):
        for session in list(self.sessions.values()):
            idle = time.monotonic() - session.used > self.idle_seconds
            if idle and not session.lock.locked():      # at work is not idle
                self.close(session.id)


# ---- One function per verb: (service, body, address of the client) -> JSON value ----

def field_of(body, key, kind, required=True):
    """body[key] of exactly this type, or a 422 in the form of the original's FastAPI."""
    value = body.get(key) if isinstance(body, dict) else body
    if isinstance(body, dict) and (type(value) is kind or value is None and not required):
        return value
    problem, words = ("missing", "Field required") if value is None else \
        (f"{kind.__name__}_type", f"Input should be {kind.__name__}")
    raise Refused(422, f"body.{key}: {words}",
                  [{"type": problem, "loc": ["body", key], "msg": words}])


def start_episode(service, session, body):
    """Reset the session to the task that the body names; -> its first answer."""
    session.turns = None        # even if this fails, the episode before it is over
    session.episode = field_of(body, "episode", int, required=False)
    task_id = field_of(body, service.wire.task_key, int, service.wire.task_required)
    task_id = service.module.TRAIN[0] if task_id is None else task_id
    session.env = session.env or service.module.Env()
    if service.wire.task_wraps:
        task_id %= 1 + max(service.module.TRAIN[-1], service.module.TEST[-1])
    observation = session.env.reset(task_id, body.get("stream"))
    session.turns, session.broken = 0, ""
    return session.keep(observation)


def play_turn(service, session, body):
    """Execute the body's action, unless `turn` says that this was done before; -> the answer."""
    action = field_of(body, "action", str)
    turn, episode = (field_of(body, key, int, required=False) for key in ("turn", "episode"))
    session.check_started()
    if episode not in (None, session.episode):
        raise Refused(409, f"Id {session.id} is in episode {session.episode}, not {episode}.")
    if turn == session.turns - 1 >= 0:
        return session.answer           # that step was executed, and its answer got lost
    if turn not in (None, session.turns):
        raise Refused(409, f"Id {session.id} is at turn {session.turns}, not {turn}.")
    if session.answer["done"]:
        raise Refused(409, f"The task with environment {session.id} has finished.")
    observation, reward, done, info = session.env.step(action)
    if not math.isfinite(reward) or not math.isfinite(info["score"]):
        raise ArithmeticError(f"reward {reward}, score {info['score']}")
    session.turns += 1
    return session.keep(observation, reward, done, info)


def create(service, body, client):
    with service.hold({}, client) as session:
        if "observation" in service.wire.create:
            train = service.module.TRAIN
            start_episode(service, session, {service.wire.task_key: train[session.id % len(train)]})
        return shaped(service.wire.create, session)


def reset(service, body, client):
    """The original's clients join sciworld's task and room, alfworld's room and commands."""
    with service.hold(body) as session:
        start_episode(service, session, body)
        reply = shaped(service.wire.reset, session)
        if "task_description" in service.wire.reset:
            room = reply["observation"].removeprefix(reply["task_description"])
            reply |= {"observation": room.lstrip(), "reward": reply["score"]}   # as the original
        if "available_actions" in service.wire.reset:
            reply["observation"] = reply["observation"].partition("\nAVAILABLE ACTIONS: ")[0]
        return reply


def step(service, body, client):
    with service.hold(body) as session:
        play_turn(service, session, body)
        return {**shaped(service.wire.step, session), "info": session.answer["info"]}


def close(service, body, client):
    return service.close(field_of(body, service.wire.id_key, int)) and service.wire.closed


def for_each(act, service, body, client):
    """Answers in the order of the items. They are executed in that order, too, or side by side in
    threads where the engine frees Python's lock and no two are of one session."""
    items, sizes, key = field_of(body, "items", list), [], service.wire.id_key
    if len(items) > MAX_ITEMS:
        raise Refused(422, f"{len(items)} items; {MAX_ITEMS} are the most", "too many items")

    def answer_one(item):
        """One item's answer; a refusal is {"error", "status"}."""
        try:
            if sum(sizes) > MAX_REPLY:
                raise Refused(503, f"Not executed: the reply has {MAX_REPLY} bytes already.")
            with service.hold(item, client if act is start_episode else None) as session:
                answer = act(service, session, item)
        except Refused as refusal:
            answer = {"error": str(refusal), "status": refusal.status}
        sizes.append(len(encode(answer)))
        return answer
    ids = [str(item[key]) for item in items if isinstance(item, dict) and key in item]
    side_by_side = service.pool and len(ids) == len(set(ids))
    return {"items": list((service.pool.map if side_by_side else map)(answer_one, items))}


def closes(service, body, client):
    return {"items": [type(session_id) is int and service.close(session_id)
                      for session_id in field_of(body, "ids", list)]}


def look(service, path, query):
    """GET: whether the server lives, and what a session shows."""
    key = service.wire.id_key
    if path == "":
        return f"This is environment {service.name}." if key == "id" else "ok"
    if path == "list_envs":
        return list(service.sessions)
    shape = (LOOK | service.wire.look).get(path)
    if shape is None:
        raise Refused(404, f"there is no GET /{service.name}/{path}", "Not Found")
    if shape.isupper():
        return list(getattr(service.module, shape))
    number = re.search(rf"\b{key}=([0-9]{{1,18}})(&|$)", query)
    with service.hold({key: int(number[1])} if number else {}) as session:
        if shape != "filtered_vocab":       # wordle's client asks for the words before it resets
            session.check_started()
        session.env = session.env or service.module.Env()
        return shaped(shape, session)


# ---- HTTP ----

VERBS = dict(create=create, reset=reset, step=step, close=close, closes=closes,
             resets=partial(for_each, start_episode), steps=partial(for_each, play_turn))
encode = json.JSONEncoder(default=lambda numpy_number: numpy_number.item()).encode


def respond(services, method, target, body, client=""):
    """One request -> (HTTP status, reply as JSON text). Whatever happens, there is a reply."""
    path, _, query = target.partition("?")
    name, _, verb = path.strip("/").partition("/")
    if name not in services and len(services) == 1:
        (name,), verb = services, path.strip("/")
    service = services.get(name)
    try:
        if method == "GET" and "health" in (name, verb):
            return 200, encode({
                "server": "nanoAgentGym", "environments": list(services), "pid": os.getpid(),
                "sessions": sum(len(service.sessions) for service in services.values())})
        if service is None or method == "POST" and verb not in VERBS:
            raise Refused(404, f"there is no {method} {path}; the environments here: "
                               f"{', '.join(services)}", "Not Found")
        if method == "GET":
            return 200, encode(look(service, verb, query))
        try:
            body = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError) as problem:
            raise Refused(422, f"the body is not JSON: {problem}", [
                {"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"}]) from problem
        return 200, encode(VERBS[verb](service, body, client))
    except Refused as refusal:
        if refusal.detail:      # what FastAPI itself answers has its status in both dialects
            return refusal.status, encode({"detail": refusal.detail, "error": str(refusal)})
        status = 200 if service.wire.id_key == "id" else refusal.status
        return status, encode({"error": str(refusal)})
    except Exception as bug:
        traceback.print_exc()
        return 500, encode({"error": f"the server failed: {type(bug).__name__}: {bug}"})


class HttpRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"       # keep-alive
    disable_nagle_algorithm = True      # otherwise a reply may wait 40 ms for the client's ACK
    timeout = 30.0                      # seconds to wait for a client that asks, or takes, no more

    def do_POST(self):
        """Read the body, if it is one we want to read, and reply."""
        size = ",".join(self.headers.get_all("Content-Length", ["0"]))
        if refusal := self.refusal(size):
            self.close_connection = True        # what follows on it is no request
            self.reply(refusal[0], encode({"error": refusal[1]}))
            self.connection.settimeout(1.0)     # closing over unread bytes could reset the reply
            left = 0 if refusal[0] == 411 else min(int(size), 64 * MAX_BODY)
            while left > 0 and (piece := self.rfile.read1(2**16)):
                left -= len(piece)
        elif len(body := self.rfile.read(int(size))) == int(size):      # else the client hung up
            self.server.quiet_since[self.connection] = math.inf
            self.reply(*respond(self.server.services, self.command, self.path, body,
                                self.client_address[0]))

    do_GET = do_POST

    def reply(self, status, text):
        """Send this JSON text, in one packet with its head."""
        self.server.quiet_since[self.connection] = time.monotonic()
        closing = "Connection: close\r\n" if self.close_connection else ""
        self.wfile.write(f"HTTP/1.1 {status} {self.responses[status][0]}\r\n{closing}"
                         "Content-Type: application/json\r\n"     # the encoder writes ASCII
                         f"Content-Length: {len(text)}\r\n\r\n{text}".encode())

    def refusal(self, size):
        """(status, sentence) if this is not to be answered. A web page may not act here: it tells
        its Origin, sends no JSON unasked, and has its own name in Host (DNS rebinding)."""
        host = ",".join(self.headers.get_all("Host", ["localhost"])).lower()
        if ("Transfer-Encoding" in self.headers or self.headers.defects     # such as `Name : value`
                or not re.fullmatch("[0-9]{1,18}", size)):
            return 411, "send one Content-Length, the body's size in bytes, in well-formed headers"
        if int(size) > MAX_BODY:
            return 413, f"a body of {size} bytes; {MAX_BODY} are the most"
        if not re.fullmatch(f"({self.server.names})(:[0-9]*)?", host):
            return 403, f"Host is {host!r}; use the server's IP address, or start it with --host"
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return 403, f"Origin is {self.headers['Origin']!r}; web pages may not use this server"
        if int(size) and self.headers.get_content_type() != "application/json":
            return 415, "send the body with the header Content-Type: application/json"

    def log_message(self, *_):
        pass


class HttpServer(ThreadingHTTPServer):
    """Listens once it is made; `with` it, serve_forever() answers. limits: those of Service."""
    request_queue_size = 256
    server_bind = socketserver.TCPServer.server_bind    # HTTPServer's asks DNS for its own name

    def __init__(self, names, host="127.0.0.1", port=0, **limits):
        self.services = {name: Service(name, **limits) for name in names}
        self.names = r"localhost|[0-9.]+|\[[0-9a-f:.]+\]|" + (
            "[^.:]+" if host in ("", "0.0.0.0") else re.escape(host.lower()))   # no page has "gpu7"
        self.quiet_since = {}       # connection: when its last request was answered; inf: at work
        self.most = min(1024, os.sysconf("SC_OPEN_MAX") * 3 // 4)   # connections; files open too
        try:
            super().__init__((host, port), HttpRequest)
        except (OSError, OverflowError) as problem:
            raise ValueError(f"cannot listen on {host}:{port} ({problem}); choose another --port "
                             "or --host") from problem

    def service_actions(self):
        """Called twice a second, and after each new connection."""
        for service in self.services.values():
            service.close_idle()

    def process_request(self, connection, address):
        """A thread for it. Of too many, the one that is quiet for longest is cut, and its thread
        reads the end; while all others are being answered, that is the new one."""
        self.quiet_since[connection] = time.monotonic()
        if len(self.quiet_since) > self.most:
            self.shutdown_request(min(self.quiet_since, key=self.quiet_since.get))
        super().process_request(connection, address)

    def shutdown_request(self, connection):
        self.quiet_since.pop(connection, None)
        with contextlib.suppress(OSError):      # the client was first
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def server_close(self):
        super().server_close()
        for service in self.services.values():
            for session_id in list(service.sessions):
                service.close(session_id)

    def handle_error(self, *client):
        if not isinstance(sys.exception(), OSError):    # a client that hung up is no error
            super().handle_error(*client)


# ---- Starting and ending ----

@contextlib.contextmanager
def local_server(names, workers=1, host="127.0.0.1", port=0, **limits):
    """Start `workers` server processes, wait until they are ready, give the list of their base URLs
    (an environment is at url + "/" + name) and end them, whatever happens here: each ends when its
    pipe from this process closes. port 0: free ones; else port, port + 1, ... limits: of Service.
    ValueError: the reason why they cannot start."""
    names = [names] if isinstance(names, str) else list(names)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(
            [sys.executable, __file__, *names, "--child", f"--host={host}",
             f"--port={port and port + worker}", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True))    # Ctrl-C is for this process, which then ends them
            for worker in range(workers)]
        lines = [process.stdout.readline().strip() for process in processes]
        for process, line in zip(processes, lines):
            if " on http://" not in line:       # then it is the reason, or the child just died
                raise ValueError(line or f"the server ended with code {process.wait()} at once")
        yield [re.search("http://[^/]+", line)[0] for line in lines]


def end_with_parent():
    """In a child: wait until the pipe from its parent closes, then end, the hard way if need be."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)


def main():
    """The command line: serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(known_envs()))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one")
    parser.add_argument("--workers", type=int, default=1, help="processes, on successive ports")
    parser.add_argument("--max-sessions", type=int, default=MAX_SESSIONS)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument("--data", default="", metavar="[NAME=]FOLDER", help="yours, to play with")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.workers < 1 or args.max_sessions < 1 or not args.idle_seconds > 0:      # NaN too
        parser.error("--workers and --max-sessions are 1 or more, --idle-seconds above 0")
    limits = {"max_sessions": args.max_sessions, "idle_seconds": args.idle_seconds}

    def on_signal(then):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, then)
    on_signal(lambda *_: (on_signal(signal.SIG_IGN), sys.exit(0)))   # a second changes nothing
    if args.child:
        threading.Thread(target=end_with_parent, daemon=True).start()
    stdout = open(os.dup(1), "w")       # gets our one line; engines that print do so on stderr
    os.dup2(2, 1)
    with contextlib.ExitStack() as stack:
        try:
            for name, folder in folders_of(args.names, args.data).items():
                open_env(name, folder)
            if args.workers > 1:
                urls = stack.enter_context(
                    local_server(args.names, args.workers, args.host, args.port, **limits))
                serve = threading.Event().wait
            else:
                server = stack.enter_context(
                    HttpServer(args.names, args.host, args.port, **limits))
                urls = [f"http://{args.host}:{server.server_address[1]}"]
                serve = server.serve_forever
        except (ValueError, ImportError) as reason:
            on_signal(signal.SIG_IGN)
            print(reason, file=stdout if args.child else sys.stderr, flush=True)
            sys.exit(2)
        addresses = [f"{url}/{name}" for url in urls for name in args.names]
        print(", ".join(args.names), "on", " ".join(addresses), file=stdout, flush=True)
        serve()


if __name__ == "__main__":
    main()
