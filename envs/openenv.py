"""openenv: any server that speaks OpenEnv's wire (0.10) and whose action is a text.

    python train.py --env openenv --model NAME --data ws://HOST:PORT
    python eval.py --env openenv --model NAME --data "ws://HOST:PORT?field=guess&reward=last"

    ours:    {"type": "reset", "data": {"seed": 7}}
    server:  {"type": "observation", "data": {"observation": {"prompt": "Guess the word.",
                                              "metadata": {}}, "reward": null, "done": false}}
    ours:    {"type": "step", "data": {"guess": "crane"}}
    server:  {"type": "observation", "data": {"observation": ..., "reward": 0.2, "done": false}}

field: the action's text field; needed where the server's /schema has several. reward: an episode's
score is the `sum` of its steps' rewards, or the `last` of them; a turn's reward is what it adds to
the score. success: the score that counts as one (1). https://X has its server at wss://X.

A task is its seed. TRAIN and TEST have different seeds; whether they differ in content depends on
the server. It must allow as many sessions as --max-concurrent says. There is no built-in player to
clone, so a run needs --model.
"""
import json
from contextlib import ExitStack, suppress
from urllib.parse import parse_qsl, urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

import envs
from envs.parts.answers import (MAX_ANSWER, EnvError, brief, checked, connections,
                                exchange, field)

NAME, HORIZON, SUCCESS, FAMILIES = "openenv", 20, 1.0, ("seeds",)
TRAIN, TEST = range(0, 9000), range(9000, 10_000)
ENGINE, PARALLEL = "a server of the user's", True       # its steps take their time
PROMPT = HOW = "Each turn you read an observation. Take one action a turn."
SEVERAL_LINES = True
URL, FIELD, REWARD = "", "", "sum"      # where it plays and how: see `use`
TIMEOUT = 50.0              # seconds for an answer; our own client waits 120 s for ours
CLOSING = 2.0               # seconds that the server gets to end a session


def use(address):
    """What differs when it plays on this server: envs.with_data. ValueError: it cannot be played.
    """
    parts, asked = urlsplit(address), dict(field="", success="1", reward="sum")
    asked |= parse_qsl(parts.query)
    if (parts.scheme not in ("ws", "wss") or not parts.netloc or len(asked) > 3
            or asked["reward"] not in ("sum", "last")):
        raise ValueError(f"openenv: {address!r}: expected ws://HOST:PORT, or with what has to be "
                         "said ws://HOST:PORT?field=NAME&success=NUMBER&reward=sum or last")
    where = f"://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"
    http, pages = connections(TIMEOUT, attempts=1), parts.scheme.replace("ws", "http") + where
    try:
        schema = checked(*exchange(http, "GET", f"{pages}/schema"), f"{pages}/schema")
        _, about = exchange(http, "GET", f"{pages}/metadata")
        name = text_field(field(schema, "action", dict, pages), asked["field"], pages)
        prompt = f"{field(about, 'description', str, pages)}\n{HOW}"
    except EnvError as error:
        raise ValueError(f"openenv: no OpenEnv server is at {address}: {error}") from None
    return dict(URL=f"{parts.scheme}{where}/ws", FIELD=name, SUCCESS=float(asked["success"]),
                REWARD=asked["reward"], PROMPT=prompt)


def text_field(action, named, url):
    """The action's one text field, by its JSON schema: the one that was named, or is needed, or is
    there. ValueError: none, several, or another is needed beside it."""
    fields = field(action, "properties", dict, url)
    texts = {name for name in fields if field(fields, name, dict, url).get("type") == "string"}
    needed = {*action.get("required", ())}
    found = texts & {named} if named else texts & needed or texts
    if len(found) != 1 or needed - found:
        raise ValueError(f"openenv: {url}: an action has the fields {', '.join(fields)}, of which "
                         f"{', '.join(texts) or 'none'} are texts; expected one text field and no "
                         "other that is required; of several name one: ?field=NAME")
    return found.pop()


def family(task_id):
    return "seeds"


def read(answer, kind, url, name):
    """A server's answer to a reset or a step -> (observation, reward or None, done, valid: was it
    taken? False if the server finds the action's text, its field `name`, wrong and nothing else).
    EnvError."""
    told, data = field(answer, "type", str, url), field(answer, "data", dict, url)
    if (told, kind, data.get("code")) == ("error", "step", "VALIDATION_ERROR"):
        wrong = field(data, "errors", list, url)
        if wrong and all(type(e) is dict and e.get("loc") == [name] for e in wrong):
            return f"Refused: {brief(wrong[0].get('msg'))}", None, False, False
    if told == "error":
        raise EnvError(f"{url}: {brief(data.get('code'))}: {brief(data.get('message'))}")
    if told != "observation":
        raise EnvError(f"{url}: {kind} was answered by {brief(answer)}")
    reward = data.get("reward", "no reward")
    if reward is not None:
        reward = int(reward) if type(reward) is bool else reward
        reward = field({"reward": reward}, "reward", float, url)
    text = {"observation": text_of(field(data, "observation", dict, url))}
    return field(text, "observation", str, url), reward, field(data, "done", bool, url), True


def text_of(observation):
    """What the agent reads: the only field, if that is a text, else all of them as JSON. Those
    that are null and `metadata` are not shown."""
    shown = {name: value for name, value in observation.items()
             if value is not None and name != "metadata"}
    (only, *others) = shown.values() or [None]
    return only if type(only) is str and not others else json.dumps(shown, ensure_ascii=False)


class Env(envs.Base):
    """An episode has a session, a WebSocket, of its own: one that has waited may be gone. EnvError:
    the server is full, closes, fails, is silent, or sends what is no answer."""
    socket = None

    def __init__(self):
        self.url = self.module.URL
        if not self.url:
            raise RuntimeError("openenv: no server was named; give one, --data ws://HOST:PORT")
        self.held = ExitStack()         # holds the socket while it is open

    def start(self, task_id):
        self.close()
        self.score = 0.0
        try:
            self.socket = self.held.enter_context(connect(
                self.url, ping_interval=None, close_timeout=CLOSING, proxy=None,
                max_size=MAX_ANSWER))
        except (OSError, WebSocketException) as error:
            raise EnvError(f"{self.url}: {type(error).__name__}: {brief(str(error))}") from None
        observation, _, done, _ = self.ask("reset", {"seed": task_id})
        if done:
            raise EnvError(f"{self.url}: seed {task_id} is over before its first action")
        return observation

    def act(self, action):
        before = self.score
        observation, reward, done, valid = self.ask("step", {self.module.FIELD: action})
        if reward is not None:
            kept = before if self.module.REWARD == "sum" else 0.0
            self.score = round(reward + kept, 12)           # 10 x 0.1 is 1
        if done:
            self.close()            # another session may wait for the place
        info = {"success": self.score >= self.module.SUCCESS, "valid": valid, "score": self.score}
        return observation, round(self.score - before, 12), done, info

    def ask(self, kind, data):
        """Send once -> what is `read` of the answer."""
        try:
            with suppress(ConnectionClosed):        # it may have said why, unasked
                self.socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self.socket.recv(TIMEOUT), parse_constant=int)    # NaN: no answer
        except (OSError, WebSocketException, ValueError, RecursionError) as error:
            raise EnvError(f"{self.url}: {type(error).__name__}: {brief(str(error))}") from None
        return read(answer, kind, self.url, self.module.FIELD)

    def close(self):
        """End the session, and wait until the server has ended it: then its place is free."""
        if self.socket:
            with suppress(OSError, WebSocketException):
                self.socket.send(json.dumps({"type": "close"}))
                self.socket.recv(CLOSING)       # there is no answer: it closes
            self.held.close()
            self.socket = None
