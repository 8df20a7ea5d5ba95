"""AgentEval: how often does a player succeed?

    python eval.py --env textcraft --policy expert                    or random, a built-in player
    python eval.py --env textcraft_small --model runs/NAME/step_80    any checkpoint or hub model
    python eval.py --env babyai --model Qwen/Qwen2.5-3B-Instruct --format react --horizon 20

prints success and score with n and standard error, per family of tasks, beside the random player
and the expert on the very same tasks. Success: the final score reaches the environment's threshold.
Success is the mean over the k samples of each task (Avg@k); Pass@k the share of tasks with a
success among them.
"""
import argparse
import inspect
import math
import os
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import torch
from transformers import AutoTokenizer

from client import EnvError, connected
from curriculum import choose_tasks
from engine import load_policy
from env_server import load_env, open_env
from envs._agentgym import manner_of
from metrics import builtin_rate, mean_and_error, play_builtin
from parallel import cloned_settings, write_json
from rollout import (HISTORY, Agent, ContextMode, FormatName, History, Thinking, collect, progress)

# What a flag may be: a type, a range in words and as a function, which NaN never passes.
Count = Annotated[int, "1 or more", lambda x: x >= 1]
Natural = Annotated[int, "0 or more", lambda x: x >= 0]
Seed = Annotated[int, "from 0 to 2**63 - 1", lambda x: 0 <= x < 2**63]
Finite = Annotated[float, "a finite number", math.isfinite]
Positive = Annotated[float, "above 0", lambda x: 0 < x < math.inf]
NonNegative = Annotated[float, "0 or more", lambda x: 0 <= x < math.inf]
NoneOrAboveOne = Annotated[float, "above 1, or 0 for none", lambda x: x == 0 or 1 < x < math.inf]
Share = Annotated[float, "from 0 to 1", lambda x: 0 <= x <= 1]
Portion = Annotated[float, "above 0, at most 1", lambda x: 0 < x <= 1]
Limit = Annotated[float, "above 0; inf for no clipping", lambda x: x > 0]
Device = Annotated[str, "auto, cpu, or a device that torch finds here: cuda, cuda:0, ...", lambda x:
                   x in ("auto", "cpu") or re.fullmatch(r"cuda(:\d+)?", x) and
                   int(x[5:] or 0) < torch.cuda.device_count()]
NewFile = Annotated[str, "a file in a folder that exists", lambda x: not x or (
    os.path.isdir(os.path.dirname(x) or ".") and not os.path.isdir(x))]
Numbers = Annotated[tuple, "whole numbers, comma-separated", lambda x: {*map(type, x)} <= {int}]


@dataclass
class Config:
    env: str = "textcraft_small"  # a file of envs/
    recipes: str = ""             # textcraft: a folder of Minecraft recipe files it plays by
    model: str = ""               # folder or hub id of a policy
    policy: str = ""              # random | expert: a built-in player instead of a model
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


def agent_for(policy, path, prompt, cfg):
    """How the policy of `path`, a folder or a hub id, speaks -> Agent. ValueError."""
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    ends = policy.generation_config.eos_token_id            # None, an id, or several
    return Agent(tokenizer, prompt, cfg.format, cfg.context, max_context=cfg.max_context,
                 max_turn_tokens=cfg.max_turn_tokens, temperature=cfg.temperature,
                 history=cfg.history, thinking=cfg.thinking, world=load_env(cfg.env),
                 stop_ids=tuple(ends) if isinstance(ends, list) else (ends,))


def play_model(cfg, module, horizon):
    """Every task cfg.k times by the policy of cfg.model -> (tasks, plays as `summarise` takes them,
    number of tasks that could not be played, whether the original AgentGym's server played)."""
    device = cfg.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    print(f"format {cfg.format}, context {cfg.context} of {cfg.max_context} tokens, replies of at "
          f"most {cfg.max_turn_tokens}; history {cfg.history}: {HISTORY[cfg.history]}",
          file=sys.stderr)
    policy = load_policy(cfg.model, device, dtype, cfg.attention).eval()
    with connected(cfg.env_url, cfg.env, module.SUCCESS) as client:
        prompt, known = client.servers[0].game(module)
        tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families, known)
        agent = agent_for(policy, cfg.model, prompt, cfg)
        trajectories, stats = collect(policy, agent, client, tasks, cfg.k, horizon, (cfg.seed,),
                                      max_concurrent=cfg.max_concurrent)
    plays = [(t.task_id, t.success, t.score, len(t.turns)) for t in trajectories]
    return tasks, plays, stats.dropped, client.original


def run(cfg):
    """Play, print the table -> {family: figures}. ValueError: what cannot be played."""
    if cfg.policy not in ("", "random", "expert") or bool(cfg.policy) == bool(cfg.model):
        raise ValueError("give --model FOLDER_OR_ID, or --policy random or expert")
    module, dropped, original = open_env(cfg.env, cfg.recipes), 0, False
    horizon = cfg.horizon or module.HORIZON
    tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families)
    if cfg.policy:
        plays = [(t, *play_builtin(module, cfg.policy, t, horizon, (cfg.seed, i), i or None))
                 for t in progress(tasks, f"{cfg.policy} player") for i in range(cfg.k)]
    else:
        tasks, plays, dropped, original = play_model(cfg, module, horizon)
    figures = summarise(module, plays, cfg.k)
    every = figures["all"]
    for player in ("random", "expert"):
        own = player == cfg.policy and not hasattr(module, "exact_success")
        every[player], every[f"{player}_stderr"] = (every["success"], every["stderr"]) if own \
            else builtin_rate(module, player, tasks, horizon, cfg.seed)
    print(f"{cfg.env}, {cfg.split} split, horizon {horizon}, {cfg.policy or cfg.model}, "
          f"temperature {cfg.temperature:g}")
    if dropped:
        print(f"{dropped} tasks could not be played and are left out")
    silent = sum(turns == 0 for *_, turns in plays)
    if silent:
        print(f"{silent} of {len(plays)} episodes had no turn and count as failures: their prompt "
              f"and a reply of {cfg.max_turn_tokens} exceed --max-context {cfg.max_context} tokens")
    print(table(module, figures, len(tasks), cfg.k, original))
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


# ---- flags: eval.py's, agentevol.py's and train.py's --------------------------------------------

CHAT_MODEL = dict(format="react", max_turn_tokens=512, max_context=8192)


def model_defaults(model):
    """How a model speaks unless flags say otherwise: as it was cloned, or as suits a pretrained
    chat model -> {"format", "max_turn_tokens", "max_context", ...}."""
    settings = cloned_settings(model) or CHAT_MODEL
    return {k: v for k, v in settings.items() if k in (*CHAT_MODEL, "context")}


def parse_flags(kind, argv=None, description="", preset=None):
    """The flags --field-name VALUE of a dataclass -> one of it; an unknown flag is an error.

    The comment behind a field is its help, with the range that its type declares. preset(given) ->
    values between the defaults and the flags. All values pass `checked`: ValueError.
    """
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--FLAG VALUE ...]; --help lists all")
    for f in fields(kind):
        base = getattr(f.type, "__origin__", f.type)    # int of Annotated[int, ...]; Literal, tuple
        if base is bool:
            extra = dict(action=argparse.BooleanOptionalAction)
        elif base is Literal:
            extra = dict(metavar=" | ".join(get_args(f.type)))
        elif base is tuple:
            extra = dict(type=whole_numbers, metavar="INT,INT,...")
        else:
            extra = dict(type=base, metavar=base.__name__.upper())
        default = ",".join(map(str, f.default)) if type(f.default) is tuple else repr(f.default)
        words = [comments.get(f.name, ""), *getattr(f.type, "__metadata__", [])[:1]]
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, **extra,
                            help=f"{'; '.join(words)} ({default})".replace("%", "%%"),
                            default=argparse.SUPPRESS)
    given = vars(parser.parse_args(argv))
    return checked(kind, (preset(given) if preset else {}) | given)


def checked(kind, values):
    """{field: value}, of flags, a preset or a JSON file, as the dataclass `kind`. ValueError: a
    field that it has not, or a value that is not what its field declares."""
    unknown = values.keys() - {f.name for f in fields(kind)}
    if unknown:
        raise ValueError(f"no such flags: {', '.join(sorted(unknown))}")
    values = {k: tuple(v) if type(v) is list else v for k, v in values.items()}     # of JSON
    for f in fields(kind):
        value, base = values.get(f.name, f.default), getattr(f.type, "__origin__", f.type)
        expected, fits = getattr(f.type, "__metadata__", (base.__name__, lambda x: True))
        if base is Literal:
            if value not in get_args(f.type):
                raise ValueError(f"{f.name}={value!r}; known: {', '.join(get_args(f.type))}")
        elif type(value) not in (base, int if base is float else base) or not fits(value):
            raise ValueError(f"{f.name}={value!r}: expected {expected}")
    if values.get("format") == "agentgym":
        manner_of(values.get("env", kind.env))
    return kind(**values)


def whole_numbers(text):
    return tuple(map(int, text.split(",")))


def main():
    try:
        run(parse_flags(Config, description=__doc__, preset=lambda given: (
            model_defaults(given["model"]) if given.get("model") else {})))
    except (ValueError, EnvError, FloatingPointError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
