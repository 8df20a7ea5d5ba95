"""One request to a server and its answer: for client.py, and for environments played elsewhere.

    status, answer = exchange(http, "POST", "http://127.0.0.1:8000/maze/steps", {"items": []})
    items = field(checked(status, answer, url), "items", list, url)

Nothing that a server sends is used before `fields` has checked it. What is wrong is an EnvError.
"""
import json
import reprlib
from typing import get_args

import urllib3

# Items of one request, and so the most sessions that it opens.
MAX_ITEMS = 256
# Bytes of an answer: 32 MiB.
MAX_ANSWER = 2**25


class EnvError(RuntimeError):
    """The environment or its server failed: never the agent's doing, never a reward. away: the
    server cannot be reached."""

    def __init__(self, sentence, away=False):
        super().__init__(sentence)
        self.away = away


class NoAnswer(EnvError):
    """Nothing came, or too late, or without an end."""


def connections(timeout, attempts):
    """A pool of connections that sends a request once: `attempts` are those to connect, after
    pauses of 0, 0.2, 0.4, 0.8, ... seconds. timeout: seconds for an answer."""
    seconds = urllib3.Timeout(connect=min(10, timeout), read=timeout)
    retries = urllib3.Retry(None, connect=attempts - 1, read=0, redirect=False, status=0, other=0,
                            backoff_factor=0.1)
    return urllib3.PoolManager(maxsize=32, timeout=seconds, retries=retries)


def exchange(http, method, url, body=None):
    """Send once -> (HTTP status, JSON or None if the answer is none). NoAnswer; EnvError."""
    try:
        response = http.request(method, url, json=body, preload_content=False)
        text = response.read(MAX_ANSWER + 1, decode_content=False)
        if len(text) > MAX_ANSWER:
            response.close()
            raise OSError(f"an answer of more than {MAX_ANSWER} bytes")
    except (OSError, urllib3.exceptions.HTTPError) as error:
        # An answer that is late may be the fault of an episode, not of the server.
        late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
        why = f"{type(error).__name__}: {brief(str(error))}"
        raise NoAnswer(f"{url}: {why}", away=not late) from error
    response.release_conn()
    status = response.status
    if 300 <= status < 400:
        place = brief(response.headers["Location"])
        raise EnvError(f"{url} redirects to {place}; give the server's own address")
    try:
        # NaN, which is no number, is no JSON either: int does not take it.
        return status, json.loads(text, parse_constant=int)
    except (ValueError, RecursionError):
        return status, None


def fits(value, kind):
    """Whether a value that was sent is taken for one of this kind."""
    own = type(value)
    if kind is float:
        # Even a sum of them is finite.
        return own in (int, float) and abs(value) < 1e30
    if kind is str:
        # Half a character, a surrogate without its other, is taken by no tokenizer.
        short = own is str and len(value) <= 2**20
        return short and value == value.encode(errors="replace").decode()
    if kind == list[str]:
        return own is list and all(fits(text, str) for text in value)
    return own is kind or own in get_args(kind)


def fields(answer, kinds, url):
    """{name: answer[name]} for kinds, {name: kind}, if each is of its kind, else EnvError: what a
    server sends is read here."""
    found = {}
    for name, kind in kinds.items():
        value = None
        if isinstance(answer, dict):
            value = answer.get(name)
        if not fits(value, kind):
            expected = getattr(kind, "__name__", kind)
            if kind is float:
                expected = "a finite float"
            came = f"{name} is {brief(value)} in {brief(answer)}"
            raise EnvError(f"{url}: {came}; expected {expected}")
        found[name] = value
    return found


def field(answer, name, kind, url):
    """One of them."""
    return fields(answer, {name: kind}, url)[name]


def checked(status, answer, url):
    """The answer (JSON, None if it was none), unless it reports a failure, with whatever status:
    then ValueError if the request was wrong, else EnvError. A step never is: any text is one."""
    told = {}
    if isinstance(answer, dict):
        told = answer
    if answer is not None and "error" not in told and status < 300:
        return answer
    # Of one item in an answer.
    status = told.get("status", status)
    why = told.get("error", told.get("detail", "an answer that is no JSON"))
    sentence = f"{url}: {brief(why)} (status {brief(status)})"
    if status in (400, 413, 422) and not url.endswith(("/step", "/steps")):
        raise ValueError(sentence)
    raise EnvError(sentence)


def brief(value):
    """What a server sent, on one line and cut, for a sentence."""
    if isinstance(value, str):
        return " ".join(value[:300].split())
    return reprlib.repr(value)
