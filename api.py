"""api: a policy behind an OpenAI-compatible API, for `rollout.collect`.
"""
import json
import os
import re
import time
from collections import Counter, defaultdict
from contextlib import suppress

import requests
import urllib3

from chat import read_call
from client import MAX_ANSWER, brief

# ---- a policy behind an API ---------------------------------------------------------------------
# POST {api_base}/chat/completions {"model": ..., "messages": [...], "seed": ..., "tools": ...}
#   -> {"choices": [{"message": {"role": "assistant", "content": "..."}}], "usage": {...}}

RETRIES, PAUSE, TIMEOUT = 6, 1.0, 600     # of a request; seconds: the first pause, a whole answer
TOO_LONG = re.compile("context_length_exceeded|[Cc]ontext (length|size)")  # as vLLM, llama.cpp say


class Api:
    """A policy behind OpenAI's protocol, as vLLM and llama.cpp speak it too; `collect` takes it for
    an engine. ValueError: it gives no reply, and then nothing is scored."""

    def __init__(self, cfg):
        self.cfg, self.rows, self.tokens = cfg, cfg.concurrency, Counter()
        self.told = defaultdict(Counter)    # episode -> the tokens that the server told
        self.key = "".join(os.environ.get("OPENAI_API_KEY", "").split())
        self.body = dict(model=cfg.api_model, temperature=cfg.temperature,
                         max_tokens=cfg.max_turn_tokens)
        if cfg.thinking:
            self.body["chat_template_kwargs"] = dict(enable_thinking=cfg.thinking == "on")

    def speak(self, episode):
        """Give the episode its next reply. It is over, as with a model here, if the longest reply
        would not fit in view: the server refuses it, or tells the number of the prompt's tokens."""
        tools = [schema for _, schema in episode.agent.tools.values()]
        text, message, tokens = self.ask(
            messages=episode.messages, seed=int(2**31 * episode.uniforms()[0]),
            **{"tools": tools} if tools else {})
        self.told[episode] += tokens
        if not message or tokens["prompt"] + self.cfg.max_turn_tokens > self.cfg.max_context:
            episode.trajectory.truncated, episode.over = "context", True
            return
        episode.trajectory.add_action([], [])           # a turn; its tokens stay with the server
        episode.answer(text, message)

    def ask(self, **more):
        """-> what `read_completion` gives, or Nones if the prompt is too long. On silence,
        nonsense, 408, 429 and 5xx the request is sent again, after pauses that grow."""
        pause = 0
        for attempt in range(1, RETRIES + 2):
            time.sleep(pause)
            body = self.body | more
            try:
                status, after, answer = self.post(body)
                if status == 200:
                    return read_completion(answer)
                pause = urllib3.Retry().parse_retry_after(after)
            except (OSError, urllib3.exceptions.HTTPError) as error:        # not all came in time
                status, answer = 0, f"{type(error).__name__}: {error}"
            except (LookupError, TypeError, AttributeError):
                answer = f"no chat completion: {answer}"
            if status in (400, 500) and TOO_LONG.search(f"{answer}"):
                return None, None, Counter()
            if status == 400 and "max_tokens" in body and "max_completion_tokens" in f"{answer}":
                self.body.pop("max_tokens", None)       # OpenAI's newer models: from now on
                self.body["max_completion_tokens"] = self.cfg.max_turn_tokens
            elif 200 < status < 500 and status not in (408, 429):
                break
            pause = min(60, max(pause, PAUSE * 2 ** (attempt - 1)))
        words = brief(f"{answer}".replace(self.key or "OPENAI_API_KEY", "OPENAI_API_KEY"))
        raise ValueError(f"{self.cfg.api_base}: {words} (status {status or 'none'}, requests: "
                         f"{attempt}); nothing was scored")

    def post(self, body):
        """Send once -> (status, Retry-After, JSON or the text that is none)."""
        ends, text = time.monotonic() + TIMEOUT, bytearray()
        with requests.post(
                self.cfg.api_base.rstrip("/") + "/chat/completions", json=body, stream=True,
                headers={"Authorization": f"Bearer {self.key}" if self.key else None,
                         "Accept-Encoding": "identity"},
                auth=lambda request: request,       # without, ~/.netrc would take the key's place
                timeout=(min(10, TIMEOUT), TIMEOUT), allow_redirects=False) as answer:
            while part := answer.raw.read1(2**16):
                text += part
                if len(text) > MAX_ANSWER or time.monotonic() > ends:
                    raise TimeoutError("the answer is too large or takes too long")
        text = text.decode(errors="replace") or \
            f"{answer.reason} {answer.headers.get('Location', '')}"
        with suppress(ValueError, RecursionError):
            text = json.loads(text)
        return answer.status_code, answer.headers.get("Retry-After", "0"), text


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
        if read_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}', "arguments"):
            message["tool_calls"] = calls
    thoughts = reply.get("reasoning_content") or reply.get("reasoning") or ""
    cut = choice.get("finish_reason") == "length" and not content and not calls
    if thoughts or cut:
        content = f"<think>{thoughts}{'' if cut else '</think>'}{content}"
    if {*map(type, tokens)} != {int}:
        return content, message, Counter(untold=1)
    return content, message, Counter(prompt=tokens[0], completion=tokens[1])
