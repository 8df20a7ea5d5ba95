"""An environment as a server of OpenEnv's wire (0.10), so that TRL and others train on it.

    python recipes/serve_openenv.py maze            at ws://127.0.0.1:8000/ws

A connection is a session. Its action and its observations have one field, `text`:

       {"type": "reset", "data": {"split": "train", "index": 7, "seed": 5}}
       {"type": "step", "data": {"text": "move up"}}
    -> {"type": "observation", "data": {"observation": {"text": "The goal ...", "metadata": INFO},
                                        "reward": 0.0, "done": false, "metadata": INFO}}
       {"type": "state"}  -> {"type": "state", "data": {"episode_id": null, "step_count": 1}}
       {"type": "close"}  -> the server closes the connection
    -> {"type": "error", "data": {"message": SENTENCE, "code": "EXECUTION_ERROR"}}

All fields of a reset are optional. split: train or test (train). index: a task's place in its
split; without it the seed chooses the task. seed: also that of the episode's luck; without it, a
random one. INFO: success, valid and score, see envs/__init__.py. GET /health, /schema, /metadata.
"""
import argparse
import json
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from curriculum import choose_tasks
from env_server import Session, encode
from envs import known_envs, open_env

TEXT = {"type": "object", "required": ["text"], "additionalProperties": False,
        "properties": {"text": {"type": "string"}, "metadata": {"type": "object"}}}
STATE = {"type": "object", "properties": {"step_count": {"type": "integer"}}}


class Player:
    """One connection's episodes."""

    def __init__(self, module):
        self.module, self.session, self.episode, self.steps = module, Session(0), None, 0

    def answer(self, message):
        """The answer to a client's message, a text; None: it leaves."""
        try:
            asked = json.loads(message)
        except (ValueError, RecursionError) as problem:
            return failure("INVALID_JSON", f"Invalid JSON: {problem}")
        kind, data = (asked.get("type"), asked.get("data", {})) if type(asked) is dict else ("", {})
        if kind not in ("reset", "step", "state", "close"):
            return failure("UNKNOWN_TYPE", f"Unknown message type: {kind}")
        if wrong := wrong_field(kind, data):
            return failure("VALIDATION_ERROR", "Invalid message", errors=[dict(
                type="value_error", loc=[wrong], msg=f"{wrong} is missing, unknown or wrong")])
        try:
            return None if kind == "close" else getattr(self, kind)(**data)
        except Exception as problem:        # no such task, the episode is over, a crash
            self.session.close_env()
            self.session.ready = False
            return failure("EXECUTION_ERROR", f"{type(problem).__name__}: {problem}")

    def reset(self, split="train", index=None, seed=None, episode_id=None, **_):
        tasks = choose_tasks(self.module, split, 0)
        seed = random.randrange(2**31) if seed is None else seed
        index = seed % len(tasks) if index is None else index
        if not 0 <= index < len(tasks):
            raise ValueError(f"{split} has no index {index}; there are 0..{len(tasks) - 1}")
        self.episode, self.steps = episode_id, 0
        kind = getattr(self.module, "Served", self.module.Env)
        return observation(self.session.reset(kind, tasks[index], seed) | {"reward": None})

    def step(self, text, metadata=None):
        self.steps += 1
        return observation(self.session.step(text))

    def state(self):
        return {"type": "state", "data": dict(episode_id=self.episode, step_count=self.steps)}


def observation(answer):
    """A session's answer in the words of the wire."""
    told = dict(observation=dict(text=answer["observation"], metadata=answer["info"]),
                reward=answer["reward"], done=answer["done"], metadata=answer["info"])
    return {"type": "observation", "data": told}


def failure(code, message, **more):
    return {"type": "error", "data": dict(message=message, code=code, **more)}


def wrong_field(kind, data):
    """The name of a field of a message's data that cannot be taken; None: there is none."""
    if type(data) is not dict:
        return "data"
    if kind == "reset":     # others are passed over
        right = {"split": data.get("split", "train") in ("train", "test")} | {
            name: data.get(name) is None or type(data[name]) is int for name in ("index", "seed")}
    else:
        right = {name: name == "metadata" for name in data}
        right |= {"text": type(data.get("text")) is str} if kind == "step" else {}
    return next((name for name in right if not right[name]), None)


def server(module, host="127.0.0.1", port=0, sessions=256):
    """A server of this environment that listens; serve_forever() answers."""
    places = threading.BoundedSemaphore(sessions)
    pages = {"/health": {"status": "healthy"},
             "/schema": dict(action=TEXT, observation=TEXT, reset_observation=TEXT, state=STATE),
             "/metadata": dict(name=module.NAME, description=module.PROMPT)}

    def play(socket):
        if not places.acquire(blocking=False):
            socket.send(encode(failure("CAPACITY_REACHED", f"{sessions} sessions are open",
                                       active_sessions=sessions, max_sessions=sessions)))
            return
        player = Player(module)
        try:
            with suppress(ConnectionClosed):
                while answer := player.answer(socket.recv()):
                    socket.send(encode(answer))
        finally:
            player.session.close_env()
            places.release()

    def page(connection, request):
        path = request.path.partition("?")[0].rstrip("/")
        if path == "/ws":
            return None         # go on: it is no page
        response = connection.respond(200 if path in pages else 404, encode(pages.get(path)))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response
    # A web page names its origin, and may not play. A trainer may be busy: no ping has to be heard.
    return serve(play, host, port, process_request=page, origins=[None], ping_timeout=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=known_envs(), metavar="NAME")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one")
    parser.add_argument("--sessions", type=int, default=256, help="at a time")
    parser.add_argument("--data", default="", metavar="FOLDER", help="yours, to play with")
    args = parser.parse_args()
    try:
        listening = server(open_env(args.name, args.data), args.host, args.port, args.sessions)
    except (ValueError, ImportError, OSError, OverflowError) as reason:
        sys.exit(str(reason))
    with listening, suppress(KeyboardInterrupt):
        print(f"{args.name} on ws://{args.host}:{listening.socket.getsockname()[1]}", flush=True)
        listening.serve_forever()


if __name__ == "__main__":
    main()
