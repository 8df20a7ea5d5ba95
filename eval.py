"""AgentEval: how often does a player succeed?

    python eval.py --env textcraft --policy expert                    or random, a built-in player
    python eval.py --env textcraft_small --model runs/NAME/step_80    any checkpoint or hub model
    python eval.py --env babyai --model Qwen/Qwen2.5-3B-Instruct --format react --horizon 20
    python eval.py --env wordle --api-base https://api.openai.com/v1 --api-model NAME    any API's

prints success and score with n and standard error, per family of tasks, beside the random player
and the expert on the very same tasks. Success: the final score reaches the environment's threshold.
Success is the mean over the k samples of each task (Avg@k); Pass@k the share of tasks with a
success among them.
"""
import json
import math
import os
import re
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import requests
import torch
import urllib3
from transformers import AutoTokenizer

from client import MAX_ANSWER, EnvError, brief, connected
from curriculum import choose_tasks
from engine import from_pretrained, load_policy, longest_text
from env_server import open_env
from metrics import builtin_rate, mean_and_error, play_builtin
from parallel import (Count, Device, Natural, NewFile, NonNegative, Seed, Url, parse_flags, say,
                      spoken_settings, write_json)
from rollout import (HISTORY, Agent, ContextMode, FormatName, History, Stats, Thinking, World,
                     assistant, collect, progress, read_call)


@dataclass
class Config:
    env: str = "textcraft_small"  # a file of envs/
    recipes: str = ""             # textcraft: a folder of Minecraft recipe files it plays by
    model: str = ""               # folder or hub id of a policy
    policy: Literal["", "random", "expert"] = ""  # a built-in player instead of a model
    api_base: Url = ""            # an OpenAI-compatible API; its key is read from OPENAI_API_KEY
    api_model: str = ""           # the model's name there
    concurrency: Count = 16       # episodes at a time that the API plays
    split: Literal["train", "test"] = "test"  # which tasks
    families: str = ""            # comma-separated; empty: all
    n: Natural = 200              # tasks, a fixed sample of the split (0: all of them)
    k: Count = 1                  # samples of each task
    horizon: Natural = 0          # most turns; 0: the environment's own
    temperature: NonNegative = 1.0     # 0: greedy
    format: FormatName = "act"    # form of a reply; chat models: react
    context: ContextMode = "full"      # what stays in view
    history: History = "keep"     # earlier turns: as sampled, or rendered anew by the template
    thinking: Thinking = ""       # on, off: the template's switch; empty: as it has it
    max_turn_tokens: Count = 32   # a longer reply is cut (chat models: 512)
    max_context: Count = 1024     # tokens in view (chat models: 8192)
    max_concurrent: Count = 256   # episodes at a time
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    device: Device = "auto"       # auto: cuda if there is one
    attention: Literal["auto", "flash2", "flash4", "torch"] = "auto"  # auto: the fastest installed
    seed: Seed = 0                # of the policy's samples and the random player
    json: NewFile = ""            # also write the figures to this file


def summarise(module, plays, k=1):
    """plays: (task_id, success, score, turns) rows, the k of a task adjacent -> {family: figures},
    "all" among them. The standard error is over tasks: samples of one task are not independent."""
    families = defaultdict(list)
    for i in range(0, len(plays), k):
        group = plays[i:i + k]
        for name in ("all", module.family(group[0][0])):
            families[name].append(group)
    figures = {}
    for name, groups in families.items():
        success, error = mean_and_error([sum(p[1] for p in g) / k for g in groups])
        figures[name] = dict(
            n=len(groups), success=success, stderr=error,
            score=mean_and_error([sum(p[2] for p in g) / k for g in groups])[0],
            passed=sum(any(p[1] for p in g) for g in groups) / len(groups),
            turns=sum(p[3] for g in groups for p in g) / (k * len(groups)))
    return figures


def open_worlds(policy, path, modules, clients, cfg):
    """[World], how the policy of `path`, a folder or a hub id, plays each environment; without a
    policy, how an API's does. Of several environments none is played longer than its own HORIZON.
    ValueError."""
    tokenizer = from_pretrained(AutoTokenizer, path) if policy else None
    ends = policy and policy.generation_config.eos_token_id         # None, an id, or several
    most = longest_text(policy.config) if policy else math.inf
    if cfg.max_context > most:
        say(f"{path} was made for texts of up to {most} tokens: --max-context is {most}")
    worlds = []
    for module, client in zip(modules, clients, strict=True):
        prompt, known = client.servers[0].game(module)
        agent = Agent(tokenizer, prompt, cfg.format, cfg.context, history=cfg.history,
                      max_context=min(cfg.max_context, most), max_turn_tokens=cfg.max_turn_tokens,
                      temperature=cfg.temperature, thinking=cfg.thinking, module=module,
                      stop_ids=tuple(ends) if isinstance(ends, list) else (ends,))
        worlds.append(World(client, agent, math.inf if len(modules) == 1 else module.HORIZON,
                            known))
    return worlds


def play_model(cfg, module, horizon):
    """Every task cfg.k times by the policy of cfg.model, or by the API -> (tasks, plays as
    `summarise` takes them, Stats, whether the original AgentGym's server played)."""
    device = cfg.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    history = "kept by the API" if cfg.api_base else f"{cfg.history}: {HISTORY[cfg.history]}"
    print(f"format {cfg.format}, context {cfg.context} of {cfg.max_context} tokens, replies of at "
          f"most {cfg.max_turn_tokens}; history {history}", file=sys.stderr)
    policy = load_policy(cfg.model, device, dtype, cfg.attention).eval() if cfg.model else None
    with connected(cfg.env_url, [module]) as clients:
        (world,) = open_worlds(policy, cfg.model, [module], clients, cfg)
        tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families, world.known)
        trajectories, stats = collect(policy, [(world, task) for task in tasks], cfg.k, horizon,
                                      (cfg.seed,), engine=None if policy else Api(cfg),
                                      max_concurrent=cfg.max_concurrent)
    plays = [(t.task_id, t.success, t.score, len(t.turns)) for t in trajectories]
    return tasks, plays, stats, world.client.original


# ---- a policy behind an API ---------------------------------------------------------------------

RETRIES, PAUSE, TIMEOUT = 6, 1.0, 600     # of a request; seconds: the first pause, a whole answer
TOO_LONG = re.compile("context_length_exceeded|[Cc]ontext (length|size)")  # as vLLM, llama.cpp say


class Api:
    """A policy that answers POST {api_base}/chat/completions, as OpenAI's, vLLM and llama.cpp do.
    `collect` takes it for an engine. ValueError: it gives no reply, and then nothing is scored."""

    def __init__(self, cfg):
        self.cfg, self.rows, self.told = cfg, cfg.concurrency, []   # told: a Counter each answer
        self.key = "".join(os.environ.get("OPENAI_API_KEY", "").split())
        self.body = dict(model=cfg.api_model, temperature=cfg.temperature,
                         max_tokens=cfg.max_turn_tokens)
        if cfg.thinking:
            self.body["chat_template_kwargs"] = dict(enable_thinking=cfg.thinking == "on")

    @property
    def tokens(self):
        return sum(self.told, Counter())

    def speak(self, episode):
        """Give the episode its next reply. It is over, as with a model here, if the longest reply
        would not fit in view: the server refuses it, or tells the number of the prompt's tokens."""
        tools = [schema for _, schema in episode.agent.tools.values()]
        text, message, tokens = self.ask(
            messages=episode.messages, seed=int(2**31 * episode.uniforms()[0]),
            **{"tools": tools} if tools else {})
        self.told.append(tokens)
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
    not in the message, which goes back to it: templates leave them out, and some servers refuse.
    """
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    reply, tokens = choice["message"], [usage.get(f"{n}_tokens") for n in ("prompt", "completion")]
    content, calls = reply.get("content") or "", reply.get("tool_calls") or []
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    content = content.encode(errors="replace").decode()     # no environment takes half a character
    message = assistant(content)
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


def run(cfg):
    """Play, print the table -> {family: figures}. ValueError: what cannot be played."""
    if bool(cfg.api_base) != bool(cfg.api_model) or \
            [cfg.policy, cfg.model, cfg.api_model].count("") != 2:
        raise ValueError("give --model FOLDER_OR_ID, or --policy random or expert, or --api-base "
                         "URL and --api-model NAME")
    ours = "device", "attention", "history", "max_concurrent"
    for name in ours if cfg.api_base else ["concurrency"]:
        if getattr(cfg, name) != getattr(Config, name):
            raise ValueError(f"--{name.replace('_', '-')} has no effect "
                             f"{'with' if cfg.api_base else 'without'} an API; leave it out")
    module, stats, original = open_env(cfg.env, cfg.recipes), Stats(), False
    horizon = cfg.horizon or module.HORIZON
    tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families)
    if cfg.policy:
        plays = [(t, *play_builtin(module, cfg.policy, t, horizon, (cfg.seed, i), i or None))
                 for t in progress(tasks, f"{cfg.policy} player") for i in range(cfg.k)]
    else:
        tasks, plays, stats, original = play_model(cfg, module, horizon)
    figures = summarise(module, plays, cfg.k)
    every = figures["all"]
    for player in ("random", "expert"):
        own = player == cfg.policy and not hasattr(module, "exact_success")
        every[player], every[f"{player}_stderr"] = (every["success"], every["stderr"]) if own \
            else builtin_rate(module, player, tasks, horizon, cfg.seed)
    print(f"{cfg.env}, {cfg.split} split, horizon {horizon}, "
          f"{cfg.policy or cfg.model or cfg.api_model}, temperature {cfg.temperature:g}")
    if stats.dropped:
        print(f"{stats.dropped} tasks could not be played and are left out")
    silent = sum(turns == 0 for *_, turns in plays)
    if silent:
        print(f"{silent} of {len(plays)} episodes had no turn and count as failures: their prompt "
              f"and a reply of {cfg.max_turn_tokens} exceed --max-context {cfg.max_context} tokens")
    print(table(module, figures, len(tasks), cfg.k, original))
    if cfg.api_base:
        every |= {f"{name}_tokens": stats.tokens[name] for name in ("prompt", "completion")}
        print(f"tokens: {every['prompt_tokens']} of prompts, {every['completion_tokens']} of "
              f"replies; {stats.tokens['untold']} answers of the API did not tell theirs")
    if cfg.json:                                        # null: not defined, as an error of n = 1
        write_json(cfg.json, {name: {k: None if math.isnan(v) else v for k, v in f.items()}
                              for name, f in figures.items()})
    return figures


def table(module, figures, n, k, original=False):
    """The figures as text: a line for each family, in the environment's order, "all", and the
    built-in players on the same n tasks, of our own game if the original's server played."""
    width = max(40 if original else 24, *map(len, figures))
    lines = [f"{'family':{width}} {'n':>5} {'success':>8} {'± se':>6} {'Pass@' + str(k):>8} "
             f"{'score':>8} {'turns':>6}"]
    for name in [*filter(figures.get, module.FAMILIES), "all"]:
        f = figures[name]
        lines.append(f"{name:{width}} {f['n']:5d} {f['success']:8.1%} {f['stderr']:6.1%} "
                     f"{f['passed']:8.1%} {f['score']:8.3f} {f['turns']:6.1f}")
    exact = ", our local game" * original + " (exact)" * hasattr(module, "exact_success")
    for player in ("random", "expert"):
        lines.append(f"{player + ' player' + exact:{width}} {n:5d} {figures['all'][player]:8.1%} "
                     f"{figures['all'][f'{player}_stderr']:6.1%}")
    return "\n".join(lines).replace("  nan%", "     -")       # one task has no standard error


# ---- flags --------------------------------------------------------------------------------------

CHAT_MODEL = dict(format="react", max_turn_tokens=512, max_context=8192)


def model_defaults(model):
    """How a model speaks unless flags say otherwise: as it was trained or cloned, or as suits a
    pretrained chat model -> {"format", "max_turn_tokens", "max_context", ...}."""
    return spoken_settings(model) or CHAT_MODEL


def main():
    try:
        run(parse_flags(Config, description=__doc__, preset=lambda given: (
            model_defaults(given["model"]) if given.get("model") else
            CHAT_MODEL if given.get("api_base") else {})))
    except (ValueError, EnvError, FloatingPointError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
