"""api: a policy behind an OpenAI-compatible API, which plays by `rollout.play`.

    POST {api_base}/chat/completions {"model": ..., "messages": [...], "seed": ..., "tools": ...}
      -> {"choices": [{"message": {"role": "assistant", "content": "..."}}], "usage": {...}}

An API takes the messages that a chat server would hold; their tokens stay with it.
"""
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

import requests

from client import EnvError, ServersGone, brief
from envs.parts.tool_calls import read_call
from rollout import Slots, play

PAUSES = 1, 2, 4, 8, 16, 32     # seconds before a request is sent again
TIMEOUT = 10, 600               # seconds: to connect, for the answer
SILENCE = 15                    # seconds without an answer before we say so
TOO_LONG = re.compile("context_length_exceeded|[Cc]ontext (length|size)")  # as vLLM, llama.cpp say
NO_ANSWER = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError,
             requests.exceptions.ContentDecodingError)
NO_COMPLETION = requests.JSONDecodeError, LookupError, TypeError, AttributeError, RecursionError


class Api:
    """A policy behind OpenAI's protocol, as vLLM and llama.cpp speak it too. ValueError: it gives
    no reply, and then nothing is scored."""

    def __init__(self, cfg):
        self.cfg, self.key = cfg, "".join(os.environ.get("OPENAI_API_KEY", "").split())
        self.told = defaultdict(Counter)    # episode -> the tokens that the server told
        self.heard = time.monotonic()       # when it gave its last answer
        self.body = dict(model=cfg.api_model, temperature=cfg.temperature,
                         max_tokens=cfg.max_turn_tokens)
        if cfg.thinking:
            self.body["chat_template_kwargs"] = dict(enable_thinking=cfg.thinking == "on")

    def speak(self, episode):
        """Give the episode its next reply. It is over, as with a model here, if the longest reply
        would not fit in view: the server refuses it, or tells the number of the prompt's tokens."""
        tools = [schema for _, schema in episode.agent.tools.values()]
        text, message, tokens = self.ask(
            messages=episode.messages, seed=int(2**31 * episode.uniforms[0]),
            **{"tools": tools} if tools else {})
        self.told[episode] += tokens
        if not message or tokens["prompt"] + self.cfg.max_turn_tokens > self.cfg.max_context:
            episode.trajectory.truncated, episode.over = "context", True
            return
        episode.trajectory.add_action([], [])           # a turn; its tokens stay with the server
        episode.answer(text, message)

    def ask(self, **more):
        """-> what `read_completion` gives; (None, None, no tokens): too long a prompt. On silence,
        nonsense, 408, 429 and 5xx the request is sent again, after pauses that grow."""
        for sent, pause in enumerate([*PAUSES, None], 1):
            body, status, after = self.body | more, None, ""
            try:
                answer, self.heard = self.post(body), time.monotonic()
                status, after = answer.status_code, answer.headers.get("Retry-After", "")
                said = answer.text or f"{answer.reason} {answer.headers.get('Location', '')}"
                if status == 200:
                    return read_completion(answer.json())
            except NO_ANSWER as error:
                said = f"{type(error).__name__}: {error}"
            except NO_COMPLETION:
                said = f"no chat completion: {said}"
            if status in (400, 500) and TOO_LONG.search(said):
                return None, None, Counter()
            if status == 400 and pause and "max_tokens" in body and "max_completion_tokens" in said:
                self.body.pop("max_tokens", None)       # OpenAI's newer models: from now on
                self.body["max_completion_tokens"] = self.cfg.max_turn_tokens
            elif pause is None or 200 < (status or 0) < 500 and status not in (408, 429):
                words = brief(said.replace(self.key or "OPENAI_API_KEY", "OPENAI_API_KEY"))
                raise ValueError(f"{self.cfg.api_base}: {words} (status {status or 'none'}, "
                                 f"requests: {sent}); nothing was scored")
            else:
                time.sleep(min(60, max(pause, int(after) if after.isdecimal() else 0)))

    def post(self, body):
        return requests.post(
            self.cfg.api_base.rstrip("/") + "/chat/completions", json=body, timeout=TIMEOUT,
            headers={"Authorization": f"Bearer {self.key}" if self.key else None},
            auth=lambda request: request,           # without, ~/.netrc would take the key's place
            allow_redirects=False)

    def next_of(self, queue):
        """The queue's next item. As long as no request is answered, that is said every 15 s."""
        while True:
            with suppress(Empty):
                return queue.get(timeout=SILENCE)
            silent = time.monotonic() - self.heard
            if silent > SILENCE:
                print(f"{self.cfg.api_base}: no answer for {silent:.0f} s", file=sys.stderr)


def read_completion(answer):
    """A chat completion -> (the reply's text with its thoughts, its message, Counter of tokens).
    LookupError, TypeError, AttributeError: it is none. Thoughts that the server tells apart are
    not in the message, which goes back to it: templates leave them out, some servers refuse."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    reply, tokens = choice["message"], [usage.get(f"{n}_tokens") for n in ("prompt", "completion")]
    content, calls = reply.get("content") or "", reply.get("tool_calls") or []
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    content = content.encode(errors="replace").decode()     # no environment takes half a character
    message = dict(role="assistant", content=content)
    if len(calls) == 1 and type(calls[0]["id"]) is str:
        name, arguments = (calls[0]["function"][x] for x in ("name", "arguments"))
        if read_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'):
            message["tool_calls"] = calls
    thoughts = reply.get("reasoning_content") or reply.get("reasoning") or ""
    cut = choice.get("finish_reason") == "length" and not content and not calls
    if thoughts or cut:
        content = f"<think>{thoughts}{'' if cut else '</think>'}{content}"
    if {*map(type, tokens)} != {int}:
        return content, message, Counter(untold=1)
    return content, message, Counter(prompt=tokens[0], completion=tokens[1])


def collect_by_api(api, tasks, group_size, horizon, key, places, finished):
    """As `rollout.collect`, but by an API: an episode a thread, cfg.concurrency at a time. The
    threads are daemons, so that Ctrl-C waits for no answer."""
    slots, ended = Slots(tasks, group_size, horizon, key, places, finished=finished), SimpleQueue()

    def attempt(slot):
        error = None
        try:
            slot.session = play(api.speak, slot.episode, slot.client, slot.session)
        except BaseException as failure:        # in a thread: the loop below raises it
            error = failure
        ended.put((slot, error))

    try:
        while slots["waiting"] or slots.playing:
            slots.start(api.cfg.concurrency)
            for slot in list(slots["asking"]):
                slots.move(slot, "in flight")
                Thread(target=attempt, args=(slot,), daemon=True).start()
            slot, error = api.next_of(ended)
            if isinstance(error, EnvError) and not isinstance(error, ServersGone):
                slots.fail(slot, error)
            elif error:
                raise error
            else:
                slots.finish(slot)
    finally:
        slots.close()
    return slots.played()
