"""pytest tests/test_client.py: batches, lost answers, dead servers; each value that
comes is checked.

The servers play test_env_server's toy, in this process or as children of it.
"""
import copy
import functools
import gc
import itertools
import json
import math
import os
import random
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
import urllib3
from fakes import LocalClient, canned, chat_tokenizer, collect, serving, twins
from test_env_server import TOY, toy, toy_path  # noqa: F401  fixtures
from test_rollout import same

from chat import Agent
from client import EnvClient, EnvError, Reset, ServersGone, Silence, Step
from env_server import HttpServer, Service, local_server, respond
from envs.parts import answers as answers_file
from rollout import Slots, make_engine
from run import connected

STARTS = {task: f"To {task}." for task in range(5, 99)}


@pytest.fixture
def url():
    with serving(HttpServer(["toy"])) as address:
        yield address


@contextmanager
def server(posts=None, lost=None, change=None):
    """The address of a server of the toy. posts: gets the paths of the POSTs that arrive, in order;
    the answer to number `lost` is lost. change(target, body, status, text) -> the answer."""
    services = {"toy": Service("toy")}
    posts = [] if posts is None else posts

    def answer(method, target, body, handler):
        answer = respond(services, method, target, body)
        if change:
            answer = change(target, body, *answer)
        if method == "POST":
            posts.append(target)
            if len(posts) == lost:
                return None             # the connection ends without an answer
        return answer
    with serving(canned(answer)) as address:
        yield address


def opened(client, tasks):
    replies = client.answer([(None, Reset(task)) for task in tasks])
    assert not any(isinstance(reply, EnvError) for reply in replies), replies
    return replies


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text and len(text) < 250, text
    return text


# ---- our server ----

def test_answer_asks_two_servers_at_a_time_and_keeps_the_order():
    arrived = threading.Barrier(2, timeout=5)

    def together(target, body, *answer):
        if "steps" in target:
            arrived.wait()              # breaks if one server is asked after the other
        return answer
    tasks = [7, 15, 24, 5, 7]
    actions = ["1", "2", "nonsense", "5", "7"]
    posts = [], []
    with ExitStack() as stack:
        urls = [stack.enter_context(server(own, change=together)) for own in posts]
        client = EnvClient(",".join(urls), "toy")
        answers = opened(client, tasks)
        assert [answer.observation for answer in answers] == [STARTS[task] for task in tasks]
        sessions = [answer.session for answer in answers]
        assert [url for url, _ in sessions] == [f"{urls[i]}/toy" for i in (0, 1, 0, 1, 0)]
        assert len(set(sessions)) == 5 and posts == (["/toy/resets"], ["/toy/resets"])
        answers = client.answer([(s, Step(action)) for s, action in zip(sessions, actions)])
        assert [answer.session for answer in answers] == sessions
        assert [(a.observation, a.reward, a.done, a.info["valid"]) for a in answers] == [
            ("1: 1", 0, False, True), ("2: 2", 0, False, True), ("0: nonsense", 0, False, False),
            ("5: 5", 1, True, True), ("7: 7", 1, True, True)]
        assert answers[3].info == {"success": True, "valid": True, "score": 1}
        client.close()
        client.close()                  # with no session open nothing is asked
    asked = ["/toy/resets", "/toy/steps", "/toy/closes"]
    assert posts == (asked, asked)


@pytest.mark.parametrize("task, sentence", [
    (9999, "toy: no task 9999"), (-1, "toy: no task -1"), ("7", "Input should be int")])
def test_a_wrong_task_is_the_users_mistake_and_not_tried_again(task, sentence):
    posts = []
    with server(posts) as url:
        client = EnvClient(url, "toy")
        with pytest.raises(ValueError, match=sentence) as error:
            client.answer([(None, Reset(8, 5)), (None, Reset(task, 5))])
    one_sentence(error)
    assert posts == ["/toy/resets"]


# ---- who is there? ----

@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "", "http://", "ftp://x", "http://[::1"])
def test_an_address_where_nobody_answers(address):
    with pytest.raises(EnvError, match="no environment server at .*the address it prints") as error:
        EnvClient(address, "toy")
    one_sentence(error)


@pytest.mark.parametrize("page, sentence", [
    *((page, "not as our server.*original AgentGym") for page in (
        "<html>It works!</html>", "[1, 2]", "null", "", '{"server": "nginx"}')),
    ('{"server": "nanoAgentGym", "environments": ["toy", "bird"]}',
     "serves toy, bird, not wordle.*server.py w")])
def test_a_server_that_is_not_ours_or_plays_something_else(page, sentence):
    with serving(canned(lambda *_: (200, page))) as address:
        with pytest.raises(EnvError, match=sentence) as error:
            EnvClient(address, "wordle")
    one_sentence(error)


def test_connected_starts_a_server_of_its_own_and_ends_it_whatever_happens(toy_path):  # noqa: F811
    (toy_path / "other.py").write_text(TOY.replace('"toy"', '"other"').replace('"To ', '"At '))
    worlds = [SimpleNamespace(NAME=name) for name in ("toy", "other")]
    with pytest.raises(KeyError), connected("", worlds) as (client, other):
        assert opened(other, [7])[0].observation == "At 7."
        port = int(client.urls[0].split(":")[2].split("/")[0])
        assert opened(client, [8])[0].observation == STARTS[8]
        raise KeyError("the caller fails")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


# ---- every value that a server sends is checked ----

BROKEN = ["{}", "[]", "5", "true", "null", '["x"]', '"1"', "NaN", "", "no JSON", "[" * 200_000,
          '{"a":' * 100_000, '{"message": "internal error"}', '{"detail": "?"}', '{"error": "?"}',
          '{"error": ' + "[" * 900 + "]" * 900 + "}"]
WRONG_ITEMS = [None, [], "x", {}, {"error": None}, {"error": "x", "status": "y"},
               {"error": "x", "status": [400]}]
NO_NUMBERS = [None, "1", True, math.nan, math.inf, -math.inf, 10**400, [1], {}]
WRONG_FIELDS = [
    *(("reward", value) for value in NO_NUMBERS),
    *(("score", value) for value in (None, "1", math.nan)),
    *(("done", value) for value in (None, 0, 1, "false", [])),
    *(("success", value) for value in (None, 1, "false")),
    *(("valid", value) for value in (1, "false")),
    *(("id", value) for value in (None, 7, "0", True, 0.0)),
    *(("observation", value) for value in (None, 5, ["x"], "x" * (2**20 + 1), "\ud800")),
    *(("info", value) for value in (None, [], "x", {}))]


ITEM = {"id": 0, "observation": "You are here.", "reward": 0, "done": False,
        "info": {"success": False, "valid": True, "score": 0}}
HEALTH = '{"server": "nanoAgentGym", "environments": ["toy"]}'
MISSING = object()


def outage_of_ours(kind, wrong):
    """The EnvError of a request that is answered so; the same client then goes on."""
    gc.collect()        # what is left of other tests: deep in JSON its finalizers could not run
    answers = [HEALTH, wrong, json.dumps({"items": [ITEM]})]
    with serving(canned(lambda *_: (200, answers.pop(0)))) as address:
        client = EnvClient(address, "toy")
        item = (None, Reset(3)) if kind == "reset" else (
            (client.urls[0], 0), Step("look"))
        (error,) = client.answer([item])
        assert isinstance(error, EnvError) and not error.away, error
        assert len(str(error)) < 900 and "\n" not in str(error)
        (reply,) = client.answer([item])
        assert reply.observation == ITEM["observation"]


@pytest.mark.parametrize("kind", ["step", "reset"])
@pytest.mark.parametrize("text", [
    *BROKEN, '{"items": null}', '{"items": []}', '{"items": {}}', json.dumps({"items": [ITEM] * 2}),
    *(json.dumps({"items": [item]}) for item in WRONG_ITEMS)], ids=lambda text: text[:24])
def test_answer_makes_an_outage_of_a_broken_answer_of_ours(kind, text):
    outage_of_ours(kind, text)


@pytest.mark.parametrize("name, value", [
    *WRONG_FIELDS, *((name, MISSING) for name in dict(WRONG_FIELDS) if name != "valid")],
    ids=lambda x: "missing" if x is MISSING else repr(x)[:12])
def test_answer_makes_an_outage_of_a_wrong_field_of_ours(name, value):
    item = copy.deepcopy(ITEM)
    place = item if name in item else item["info"]
    place[name] = value
    if value is MISSING:
        del place[name]
    outage_of_ours("step", json.dumps({"items": [item]}))


# ---- total time, size, place of an answer ----

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("start, piece", [
    (OK, b"X: " + b"y" * 60_000 + b"\r\n"),
    (OK + b"\r\n", b"1" * 2**20), (OK + b"Content-Length: 99999999999\r\n\r\n", b"1" * 2**20),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b"1" * 2**20 + b"\r\n")],
    ids=["headers", "until the end", "length", "chunks"])
def test_an_endless_stream_is_cut(monkeypatch, start, piece):
    monkeypatch.setattr(answers_file, "MAX_ANSWER", 2**22)
    sent = []

    def answer(method, path, body, handler):
        with suppress(OSError):
            handler.connection.sendall(start)
            while True:
                sent.append(len(piece))
                handler.connection.sendall(piece)
    with serving(canned(answer)) as address, pytest.raises(answers_file.NoAnswer):
        answers_file.exchange(urllib3.PoolManager(timeout=0.5, retries=False), "GET", address)
    if start.startswith(OK + b"\r\n"):
        assert sum(sent) < 2**25        # 4 MiB are read, some more wait in the connection


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_named_and_not_followed(status):
    posts = []
    with server(posts) as url, serving(canned(
            lambda *_: (status, "", {"Location": f"{url}/toy/steps"}))) as address:
        client = EnvClient(url, "toy")
        (error,) = client.answer([((address, 0), Step("1"))])
        assert isinstance(error, EnvError) and f"redirects to {url}/toy/steps" in str(error)
        with pytest.raises(EnvError, match="redirects to"):
            EnvClient(address, "toy")
    assert posts == []


# ---- servers that go away ----

def end(address):
    """Kill this server of local_server at once, as a crash would."""
    with urlopen(f"{address}/health") as answer:
        os.kill(json.load(answer)["pid"], signal.SIGKILL)
    with pytest.raises(OSError):
        while True:
            urlopen(f"{address}/health").close()        # until its port is free


def restarted(address):
    """A context: a new server where another was."""
    return serving(HttpServer(["toy"], port=int(address.rpartition(":")[2])))


def disturbed(client, before):
    """This client; before(number of the call) is called at each call of its answer."""
    answer, calls = client.answer, itertools.count(1)
    client.answer = lambda items: (before(next(calls)), answer(items))[1]
    return client


@functools.cache
def policy():
    tokenizer = chat_tokenizer()
    # Several lines, so that the policy's random tokens end no reply and all ask at a time.
    module = SimpleNamespace(NAME="toy", SEVERAL_LINES=True)
    return twins("llama", vocabulary=len(tokenizer), loud=[0], seed=4)[0], Agent(
        tokenizer, "Be quick.", max_turn_tokens=4, max_context=900, module=module)


def played(client, tasks=range(5, 9), group_size=2, horizon=4, **settings):
    return collect(*policy(), client, list(tasks), group_size, horizon, **settings)


@functools.cache
def undisturbed():
    with serving(HttpServer(["toy"])) as address:
        return played(EnvClient(address, "toy"))[0]


def undisturbed_by(got):
    return len(got) == len(undisturbed()) and all(map(same, got, undisturbed()))


def test_a_lost_answer_is_never_asked_for_again_its_episode_is_played_again():
    """By the same key, to the same tokens; the step that acted unseen is not sent twice."""
    posts = []
    with server(posts, lost=3) as address:
        got, stats = played(EnvClient(address, "toy"))
    assert undisturbed_by(got) and stats.dropped == 0 and len(stats.failures) == 8
    assert posts[:4] == ["/toy/resets", "/toy/steps", "/toy/steps", "/toy/resets"]


def test_collect_loses_nothing_when_one_of_two_servers_is_killed_and_comes_back(
        toy_path, monkeypatch):      # noqa: F811
    monkeypatch.setattr(Slots, "retries", 0)
    with local_server("toy") as one, local_server("toy") as other:
        client = disturbed(EnvClient(f"{one},{other}", "toy"),
                           lambda number: number == 3 and end(one))
        got, stats = played(client)
        assert undisturbed_by(got) and stats.dropped == 0 and stats.failures
        since, again = client.silent[f"{one}/toy"]
        assert again >= since + 1 and client.silent[f"{other}/toy"] == Silence()
        with restarted(one):
            time.sleep(1.1)
            got, stats = played(client)             # where it is asked again, and answers
            assert undisturbed_by(got) and stats.failures == []
            assert client.silent[f"{one}/toy"] == Silence()


def test_collect_outlives_the_absence_of_the_only_server(toy_path, monkeypatch):      # noqa: F811
    monkeypatch.setattr(Slots, "retries", 0)
    with local_server("toy") as url, ExitStack() as stack:
        def before(number):
            if number == 3:
                end(url)
                threading.Timer(1.0, lambda: stack.enter_context(restarted(url))).start()
        got, stats = played(disturbed(EnvClient(url, "toy"), before))
        assert undisturbed_by(got) and stats.dropped == 0 and stats.failures


def test_collect_raises_when_all_servers_are_gone(toy_path, monkeypatch):      # noqa: F811
    with local_server("toy") as one, local_server("toy") as other:
        monkeypatch.setattr(EnvClient, "patience", 0.5)
        client = disturbed(EnvClient(f"{one},{other}", "toy"),
                           lambda number: number == 3 and [end(one), end(other)])
        engine = make_engine(*policy(), 8)
        began = time.perf_counter()
        with pytest.raises(ServersGone, match="no server has answered for 0.5 s") as error:
            played(client, engine=engine)
        assert time.perf_counter() - began < 10
        assert f"{one}/toy, {other}/toy: no" in str(error.value) and "\n" not in str(error.value)
        assert engine.pages.in_use == 0 and client.open == set()


def test_a_server_that_kills_every_episode_is_given_up_in_time():
    """An episode that takes down each server it meets is not played for ever."""
    client = LocalClient(before=lambda _, request: (
        isinstance(request, Step) and EnvError("down again", True)))
    none, stats = played(client, tasks=[1])
    assert none == [] and {*stats.failures} == {"down again"} and stats.dropped == 1


def test_an_answer_that_comes_too_late_counts_as_the_episodes_fault(monkeypatch):
    def slow(target, body, *answer):
        if b"dream" in body:
            time.sleep(0.4)
        return answer
    with server(change=slow) as address:
        monkeypatch.setattr(EnvClient, "timeout", 0.1)
        client = EnvClient(address, "toy")
        a, b = opened(client, [7, 8])
        began = time.perf_counter()
        (late,) = client.answer([(a.session, Step("dream"))])
        assert time.perf_counter() - began < 0.35
        (fine,) = client.answer([(b.session, Step("look"))])
    assert isinstance(late, EnvError) and "Timeout" in str(late) and not late.away
    assert fine.observation == "0: look" and {*client.silent.values()} == {Silence()}


@pytest.mark.parametrize("patience, rest", [(120.0, 60.0), (1.0, 0.5), (600.0, 120.0)])
def test_a_late_server_is_left_alone_for_half_of_the_patience_at_most(url, patience, rest):
    """A wait of 120 s, the default, must not outlast a patience of 60."""
    client = EnvClient(url, "toy")
    client.patience = patience
    client.leave_alone(client.urls[0], time.monotonic() - 120)
    since, until = client.silent[client.urls[0]]
    assert since == pytest.approx(time.monotonic(), abs=1)
    assert until - since == pytest.approx(rest, abs=0.01)


# ---- no reward that nobody gave ----

@pytest.mark.parametrize("retries", [0, 50])
def test_collect_returns_no_reward_that_the_server_did_not_give(retries, monkeypatch):
    """Three of ten answers to a step are garbage. Each episode that comes back is the one that an
    unbroken server plays, and what failed or was dropped is counted."""
    rng, thrown = random.Random(3), []
    settings = dict(tasks=[*range(5, 13), *range(14, 18)], horizon=3, max_concurrent=4)

    def garbled(target, body, status, text):
        if "step" in target and rng.random() < 0.3:
            thrown.append(rng.choice(BROKEN))
            text = thrown[-1]
        return status, text
    with server() as address:
        want = {t.key: t for t in played(EnvClient(address, "toy"), **settings)[0]}
    assert len(want) == 24
    with server(change=garbled) as address:
        monkeypatch.setattr(Slots, "retries", retries)
        got, stats = played(EnvClient(address, "toy"), **settings)
    assert len(thrown) > 1 and stats.failures
    assert all(same(t, want[t.key]) for t in got) and len(got) + 2 * stats.dropped == 24
    assert (stats.dropped > 0) == (retries == 0)
