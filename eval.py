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
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import torch
from transformers import AutoTokenizer

from client import EnvError, connected
from curriculum import choose_tasks
from engine import load_policy
from env_server import open_env
from metrics import builtin_rate, mean_and_error, play_builtin
from parallel import cloned_settings
from rollout import Agent, ContextMode, FormatName, collect, progress


@dataclass
class Config:
    env: str = "textcraft_small"  # a file of envs/
    model: str = ""               # folder or hub id of a policy
    policy: str = ""              # random | expert: a built-in player instead of a model
    split: str = "test"           # test | train
    families: str = ""            # comma-separated; empty: all
    n: int = 200                  # tasks, a fixed sample of the split (0: all of them)
    k: int = 1                    # samples of each task
    horizon: int = 0              # most turns; 0: the environment's own
    temperature: float = 1.0      # 0: greedy
    format: FormatName = "act"    # form of a reply; chat models: react
    context: ContextMode = "full"      # what stays in view
    max_turn_tokens: int = 32     # a longer reply is cut (chat models: 512)
    max_context: int = 1024       # tokens in view (chat models: 8192)
    max_concurrent: int = 256     # episodes at a time
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    device: str = "auto"          # auto | cpu | cuda | cuda:1
    attention: Literal["auto", "flash2", "flash4", "torch"] = "auto"  # auto: the fastest installed
    seed: int = 0                 # of the policy's samples and the random player
    json: str = ""                # also write the figures to this file


def evaluate(policy, agent, client, tasks, horizon, key, k=1, max_concurrent=None):
    """Play every task k times -> (trajectories, k adjacent for each task that could be played;
    number of tasks that could not)."""
    trajectories, stats = collect(policy, agent, client, tasks, k, horizon, key,
                                  max_concurrent=max_concurrent)
    return trajectories, stats.dropped


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


def play_model(cfg, module, horizon):
    """Every task cfg.k times by the policy of cfg.model -> (tasks, plays as `summarise` takes them,
    number of tasks that could not be played, whether the original AgentGym's server played)."""
    device = cfg.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    print(f"format {cfg.format}, context {cfg.context} of {cfg.max_context} tokens, replies of at "
          f"most {cfg.max_turn_tokens}", file=sys.stderr)
    policy = load_policy(cfg.model, device, dtype, cfg.attention).eval()
    with connected(cfg.env_url, cfg.env, module.SUCCESS) as client:
        prompt, known = client.servers[0].game(module)
        tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families, known)
        agent = Agent(AutoTokenizer.from_pretrained(cfg.model), prompt, cfg.format, cfg.context,
                      max_turn_tokens=cfg.max_turn_tokens, max_context=cfg.max_context,
                      temperature=cfg.temperature)
        trajectories, dropped = evaluate(policy, agent, client, tasks, horizon, (cfg.seed,),
                                         cfg.k, cfg.max_concurrent)
    plays = [(t.task_id, t.success, t.score, len(t.turns)) for t in trajectories]
    return tasks, plays, dropped, client.original


def run(cfg):
    """Play, print the table -> {family: figures}. ValueError: what cannot be played."""
    if cfg.k < 1 or cfg.n < 0 or cfg.horizon < 0:
        raise ValueError(f"k={cfg.k}, n={cfg.n}, horizon={cfg.horizon}: expected k of 1 or more, "
                         "the others 0 or more")
    if cfg.policy not in ("random", "expert") and (cfg.policy or not cfg.model):
        raise ValueError(f"policy={cfg.policy!r}, model={cfg.model!r}: give --model FOLDER_OR_ID, "
                         "or --policy random or expert")
    module, dropped, original = open_env(cfg.env), 0, False
    horizon = cfg.horizon or module.HORIZON
    tasks = choose_tasks(module, cfg.split, cfg.n, cfg.families)
    if cfg.policy:
        plays = [(t, *play_builtin(module, cfg.policy, t, horizon, (cfg.seed, i)))
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
    print(table(module, figures, len(tasks), cfg.k, original))
    if cfg.json:
        with open(cfg.json, "w") as file:
            json.dump(figures, file, indent=1)
    return figures


def table(module, figures, n, k, original=False):
    """The figures as text: a line for each family, in the environment's order, "all", and the
    built-in players on the same n tasks, of our own game if the original's server played."""
    width = max(40 if original else 24, *map(len, figures))
    lines = [f"{'family':{width}} {'n':>5} {'success':>8} {'± se':>6} {'Pass@' + str(k):>8} "
             f"{'score':>8} {'turns':>6}"]
    for name in [*filter(figures.get, module.FAMILIES), "all"]:
        f = figures[name]
        error = f"{f['stderr']:6.1%}" if f["n"] > 1 else "     -"
        lines.append(f"{name:{width}} {f['n']:5d} {f['success']:8.1%} {error} {f['passed']:8.1%} "
                     f"{f['score']:8.3f} {f['turns']:6.1f}")
    exact = ", our local game" * original + " (exact)" * hasattr(module, "exact_success")
    for player in ("random", "expert"):
        lines.append(f"{player + ' player' + exact:{width}} {n:5d} {figures['all'][player]:8.1%} "
                     f"{figures['all'][f'{player}_stderr']:6.1%}")
    return "\n".join(lines)


# ---- flags: eval.py's, agentevol.py's and train.py's --------------------------------------------

CHAT_MODEL = dict(format="react", max_turn_tokens=512, max_context=8192)


def model_defaults(model):
    """How a model speaks unless flags say otherwise: as it was cloned, or as suits a pretrained
    chat model -> {"format", "max_turn_tokens", "max_context", ...}."""
    settings = cloned_settings(model)
    speech = {*CHAT_MODEL, "context"}
    return {k: v for k, v in settings.items() if k in speech} if settings else dict(CHAT_MODEL)


def parse_flags(kind, argv=None, description="", preset=None):
    """The flags --field-name VALUE of a dataclass -> one of it; an unknown flag is an error.

    The comment behind a field is its help; the choices of a Literal and the whole numbers of a
    tuple are checked (ValueError). preset(given) -> values between the defaults and the flags.
    """
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--FLAG VALUE ...]; --help lists all")
    for f in fields(kind):
        if f.type is bool:
            extra = dict(action=argparse.BooleanOptionalAction)
        elif get_origin(f.type) is Literal:
            extra = dict(metavar=" | ".join(get_args(f.type)))
        elif get_origin(f.type) is tuple:
            extra = dict(metavar="INT,INT,...")
        else:
            extra = dict(type=f.type, metavar=f.type.__name__.upper())
        default = ",".join(map(str, f.default)) if type(f.default) is tuple else repr(f.default)
        text = f"{comments.get(f.name, '')} ({default})".replace("%", "%%")
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, help=text,
                            default=argparse.SUPPRESS, **extra)
    given = vars(parser.parse_args(argv))
    values = (preset(given) if preset else {}) | given
    for f in fields(kind):
        value, choices = values.get(f.name, f.default), get_args(f.type)
        if get_origin(f.type) is Literal and value not in choices:
            raise ValueError(f"{f.name}={value!r}; known: {', '.join(choices)}")
        if get_origin(f.type) is tuple:
            values[f.name] = whole_numbers(f.name, value)
    return kind(**values)


def whole_numbers(name, value):
    """"6,10", or a list of ints that config.json has kept, as a tuple of ints."""
    try:
        return tuple(map(int, value.split(",") if isinstance(value, str) else value))
    except ValueError:
        raise ValueError(f"{name}={value!r}: expected whole numbers, comma-separated") from None


def main():
    try:
        run(parse_flags(Config, description=__doc__, preset=lambda given: (
            model_defaults(given["model"]) if given.get("model") else {})))
    except (ValueError, EnvError) as error:
        sys.exit(f"eval.py: {error}")


if __name__ == "__main__":
    main()
