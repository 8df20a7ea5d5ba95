"""AgentEval: how often does a player succeed?

    python eval.py --env textcraft --policy expert                    or random, a built-in player
    python eval.py --env textcraft_small --model runs/NAME/step_80    any checkpoint or hub model
    python eval.py --env babyai --model Qwen/Qwen2.5-3B-Instruct --format react --horizon 20

prints success and score with n and standard error, per family of tasks, beside the random player
and the expert on the very same tasks. Success: the final score reaches the environment's threshold.
Avg@k is the mean over k samples of a task; Pass@k the share of tasks with a success among them.
"""
import argparse
import inspect
import json
import math
import random
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, fields

import engine  # noqa: F401  before torch: its threads must not spin (see there)
import torch
from transformers import AutoTokenizer

from client import EnvError, connected
from engine import load_policy
from env_server import load_env
from rollout import Agent, collect


@dataclass
class Config:
    env: str = "textcraft_small"
    model: str = ""               # folder or hub id of a policy, or
    policy: str = ""              # random | expert: a built-in player
    split: str = "test"           # test | train
    families: str = ""            # comma-separated; empty: all
    n: int = 200                  # tasks, a fixed sample of the split (0: all of them)
    k: int = 1                    # samples of each task
    horizon: int = 0              # most turns; 0: the environment's own
    temperature: float = 1.0      # 0: greedy
    format: str = "act"           # act | react | think | plan | reflect
    context: str = "full"         # full | window | memory
    max_turn_tokens: int = 32     # a longer reply is cut; give a model that thinks 512
    max_context: int = 1024       # tokens in view
    max_concurrent: int = 256     # episodes at a time
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    device: str = "auto"          # auto | cpu | cuda
    attention: str = "auto"       # auto | flash2 | flash4 | torch
    seed: int = 0
    json: str = ""                # also write the figures to this file


def open_env(name):
    """The module of an environment whose engine is here. ValueError: the sentence why not."""
    module = load_env(name)
    try:
        module.Env().close()
    except RuntimeError as missing:
        raise ValueError(str(missing)) from None
    return module


def choose_tasks(module, split, n, families=""):
    """n task ids of the split (0: all), of the given families only: always the same sample. Every
    k-th id would not do, since families take turns."""
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r}; known: train, test")
    known = set(module.FAMILIES)
    wanted = set(filter(None, families.split(",")))
    if wanted - known:
        raise ValueError(f"{module.NAME}: no families {sorted(wanted - known)}; known: "
                         f"{', '.join(module.FAMILIES)}")
    tasks = list({"train": module.TRAIN, "test": module.TEST}[split])
    if wanted:
        tasks = [t for t in tasks if module.family(t) in wanted]
    if not tasks:
        raise ValueError(f"{module.NAME}: the {split} split has no task of {families}")
    if not 0 < n < len(tasks):
        return tasks
    return sorted(random.Random(f"{module.NAME} {split}").sample(tasks, n))


def mean_and_error(values):
    """Mean, and its standard error sqrt(var / n) with Bessel's correction; nan where undefined."""
    n = len(values)
    mean = sum(values) / n if n else math.nan
    if n < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)


def evaluate(policy, agent, client, tasks, horizon, seed, k=1, max_concurrent=None):
    """Play every task k times -> (trajectories, k adjacent for each task that could be played;
    number of tasks that could not)."""
    trajectories, report = collect(policy, agent, client, tasks, k, horizon, seed,
                                   max_concurrent=max_concurrent)
    return trajectories, report["dropped"]


def play_builtin(module, player, task_id, horizon, seed=0):
    """One episode of the "random" or the "expert" player -> (success, score, turns)."""
    env, rng = module.Env(), random.Random(f"{seed} {task_id}")
    env.reset(task_id)
    done, turns, info = False, 0, {"success": False, "score": 0.0}
    while not done and turns < horizon:
        action = env.expert()[1] if player == "expert" else env.random_action(rng)
        _, _, done, info = env.step(action)
        turns += 1
    env.close()
    return bool(info["success"]), float(info["score"]), turns


def builtin_rate(module, player, tasks, horizon, seed=0):
    """-> (success rate, standard error): exact where the environment can be solved, else played."""
    if hasattr(module, "exact_success"):
        rates = [module.exact_success(t, player, horizon) for t in tasks]
        return sum(rates) / len(rates), 0.0
    return mean_and_error([play_builtin(module, player, t, horizon, seed)[0] for t in tasks])


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


def run(cfg):
    if cfg.k < 1 or cfg.n < 0 or cfg.horizon < 0:
        raise ValueError(f"k={cfg.k}, n={cfg.n}, horizon={cfg.horizon}: expected k of 1 or more, "
                         "the others 0 or more")
    module = open_env(cfg.env)
    horizon = cfg.horizon or module.HORIZON
    tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families)
    dropped = 0
    if cfg.policy in ("random", "expert"):
        plays = [(t, *play_builtin(module, cfg.policy, t, horizon, (cfg.seed, i)))
                 for t in tasks for i in range(cfg.k)]
    elif cfg.policy or not cfg.model:
        raise ValueError(f"policy={cfg.policy!r}, model={cfg.model!r}: give --model FOLDER_OR_ID, "
                         "or --policy random or expert")
    else:
        device = "cuda" if cfg.device == "auto" and torch.cuda.is_available() else \
            "cpu" if cfg.device == "auto" else cfg.device
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        policy = load_policy(cfg.model, device, dtype, cfg.attention).eval()
        agent = Agent(AutoTokenizer.from_pretrained(cfg.model), module.PROMPT, cfg.format,
                      cfg.context, max_turn_tokens=cfg.max_turn_tokens,
                      max_context=cfg.max_context, temperature=cfg.temperature)
        with connected(cfg.env_url, cfg.env, module.SUCCESS) as client:
            trajectories, dropped = evaluate(policy, agent, client, tasks, horizon, (cfg.seed,),
                                             cfg.k, cfg.max_concurrent)
        plays = [(t.task_id, t.success, t.score, len(t.turns)) for t in trajectories]
    figures = summarise(module, plays, cfg.k)
    for player in ("random", "expert"):
        own = player == cfg.policy and not hasattr(module, "exact_success")
        figures["all"][player], figures["all"][f"{player}_stderr"] = \
            (figures["all"]["success"], figures["all"]["stderr"]) if own else \
            builtin_rate(module, player, tasks, horizon, cfg.seed)
    print(f"{cfg.env}, {cfg.split} split, horizon {horizon}, {cfg.policy or cfg.model}, "
          f"temperature {cfg.temperature:g}")
    if dropped:
        print(f"{dropped} tasks could not be played and are left out")
    width = max(24, *map(len, figures))
    print(f"{'family':{width}} {'n':>5} {'success':>8} {'± se':>6} {'Pass@' + str(cfg.k):>8} "
          f"{'score':>8} {'turns':>6}")
    for name in sorted(figures, key=lambda f: (f == "all", module.FAMILIES.index(f)
                                               if f in module.FAMILIES else -1)):
        f = figures[name]
        error = f"{f['stderr']:6.1%}" if f["n"] > 1 else "     -"
        print(f"{name:{width}} {f['n']:5d} {f['success']:8.1%} {error} {f['passed']:8.1%} "
              f"{f['score']:8.3f} {f['turns']:6.1f}")
    for player in ("random", "expert"):
        exact = " (exact)" if hasattr(module, "exact_success") else ""
        print(f"{player + ' player' + exact:{width}} {len(tasks):5d} {figures['all'][player]:8.1%} "
              f"{figures['all'][f'{player}_stderr']:6.1%}")
    if cfg.json:
        with open(cfg.json, "w") as file:
            json.dump(figures, file, indent=1)
    return figures


def parse_flags(kind, argv=None, description="", preset=None):
    """The flags --field-name VALUE of a dataclass -> one of it; an unknown flag is an error. The
    comment behind a field is its help. preset(given) -> values between defaults and flags."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     usage="%(prog)s [--FLAG VALUE ...]; --help lists all")
    for f in fields(kind):
        extra = dict(action=argparse.BooleanOptionalAction) if f.type is bool else \
            dict(type=f.type, metavar=f.type.__name__.upper())
        text = f"{comments.get(f.name, '')} ({f.default!r})".replace("%", "%%")
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, help=text,
                            default=argparse.SUPPRESS, **extra)
    given = vars(parser.parse_args(argv))
    return kind(**((preset(given) if preset else {}) | given))


def main():
    try:
        run(parse_flags(Config, description=__doc__.split("\n")[0]))
    except (ValueError, EnvError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
