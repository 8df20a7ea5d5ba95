"""Does a change leave what is learned as it was? The same runs in two checkouts, number by number.

    git worktree add ../before HEAD~1                         a checkout of the commit before
    python tests/compare.py ../before .                       every case, 6 minutes on two cores
    python tests/compare.py ../before . --only grpo resume    these cases
    python tests/compare.py ../before . --tolerance 1e-6      after a change of the arithmetic

A refactor must leave every number as it was, to the bit, and the tests alone would not notice:
without gradient clipping, say, a policy still learns. So each case plays a few small steps with the
same flags in both checkouts, on this machine, one thread each; the weights after every step and all
metrics are compared. No expected numbers are stored, because they differ between processors. Do not
edit the checkouts meanwhile.

    grpo                   same
    gspo                   DIFFERS: weights by 0.0021, first in step_2: lm_head.weight; metrics by
                           0.13, first in step 1: entropy 0.512 -> 0.498

Given are the largest difference of a weight and of a metric (above 1: relative to its size), and
where each begins. Step n leads from the weights step_<n> to step_<n+1>; of its metrics
those of the rollout come first. If reward or turns are the first to differ, look at the rollout; if
grad_norm or kl, at what is made of it. `within`: nothing differs by more than --tolerance. Clock
readings are left out; a metric that only one side has is noted. If a case differs or fails, the
exit status is 1, and the files and the log of each side are kept.

Only the command line and the files of a run are used, so the script outlives what it compares. A
flag whose default follows the model is given here; what a preset sets is left to the preset. All
policies are those that the old checkout clones; the cases `clone...` compare them with the new's.
"""
import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

CLONE = """agentevol.py clone --out policy --env frozenlake --families= --n 400 --skill 0.8
    --format act --context full --steps 60 --batch 8 --lr 1e-2 --vocabulary 600 --width 48
    --layers 2 --heads 4 --seed 0 """
TRAIN = """train.py --env frozenlake --families= --model ../../old/clone/policy --name run --seed 1
    --device cpu --attention torch --steps 5 --tasks-per-step 6 --group-size 4 --epochs 1 --lr 2e-3
    --lr-end 0.2 --max-grad-norm 0.1 --micro-tokens 8192 --no-checkpointing --max-concurrent 256
    --horizons 3,5 --switch-every 2 --format act --context full --max-turn-tokens 16
    --max-context 512 --temperature 1 --eval-every 0 --eval-tasks 8 --save-every 1 --no-control """
TALK = TRAIN + "--max-turn-tokens 32 --tasks-per-step 3 --model ../../old/"
EVAL = """eval.py --env frozenlake --families= --split test --n 40 --k 2 --horizon 6 --format act
    --context full --max-turn-tokens 16 --max-context 512 --temperature 1 --max-concurrent 256
    --device cpu --attention torch --seed 1 --out figures """
CASES = {       # name: command; of a flag that is given twice the last counts
    "clone": CLONE,
    "clone_think": CLONE + "--format think --skill 0 --steps 90",   # 0: its thoughts are short
    "clone_plan": CLONE + "--format plan --skill 0 --steps 90",
    "clone_memory": CLONE + "--context memory --skill 0",
    "clone_sokoban": CLONE + "--env sokoban",
    **{algo: TRAIN + f"--algo {algo}" for algo in (
        "grpo", "dr_grpo", "rloo", "ppo", "reinforce_pp", "reinforce_pp_baseline", "gigpo",
        "mt_grpo", "gspo", "starpo", "starpo_s")},
    "kl_k2": TRAIN + "--kl-coef 0.1 --kl k2",
    "kl_k3": TRAIN + "--kl-coef 0.1 --kl k3",
    "kl_reward": TRAIN + "--algo reinforce_pp --kl-coef 0.1 --kl reward",
    "filter_none": TRAIN + "--filter none",             # "varied" is in grpo
    "filter_refill": TRAIN.replace("train.py", "recipes/refill.py"),
    "filter_uncertain": TRAIN + "--filter uncertain --keep 0.5",
    "filter_top_p": TRAIN + "--filter top_p --keep 0.5",
    "window": TRAIN + "--context window",
    "memory": TALK + "clone_memory/policy --context memory",
    "think": TALK + "clone_think/policy --format think",
    "react": TALK + "clone_plan/policy --format react",
    "plan": TALK + "clone_plan/policy --format plan --context window",
    "reflect": TALK + "clone_plan/policy --format reflect",
    "sokoban": TALK + "clone_sokoban/policy --env sokoban",
    "importance_cap": TRAIN.replace("train.py", "recipes/icepop.py --rule tis")
    + "--importance-cap 2",
    "overlong": TRAIN.replace("train.py", "recipes/overlong.py") + "--overlong-buffer 78",
    "turn_gae": TRAIN + "--algo ppo --advantage turn_gae",
    "critic_shared": TRAIN + "--algo ppo --critic shared",
    "epochs": TRAIN + "--epochs 3",
    "micro_tokens": TRAIN + "--micro-tokens 300 --max-concurrent 5",
    "checkpointing": TRAIN + "--checkpointing",
    "several": TRAIN + "--env frozenlake,bandit --filter none",
    "temperature": TRAIN + "--temperature 0.7",
    "resume": TRAIN + "--algo ppo",                     # and once more from step_4
    "ranks": TRAIN + "--algo ppo --filter varied --kl-coef 0.1 --micro-tokens 500",   # two, by gloo
    "eval": EVAL + "--model ../../old/clone/policy",
    **{f"env_{env}": EVAL + f"--policy random --env {env}" for env in (
        "alfworld", "bandit", "maze", "sokoban", "textcraft", "textcraft_small", "wordle")},
}
CLOCKS = re.compile("seconds|tokens_per_second|bandwidth_share|flop_share")


def play(name, checkout, folder):
    """Run a case of this checkout in a new folder -> "", or the last line of its log."""
    script, *flags = CASES[name].split()
    ranks = "-m torch.distributed.run --standalone --nproc_per_node 2".split() * (name == "ranks")
    folder.mkdir()
    with open(folder / "log.txt", "w") as log:
        for more in [[], ["--resume"]][:1 + (name == "resume")]:
            if more:
                shutil.rmtree(folder / "runs/run/step_5")
            done = subprocess.run([sys.executable, *ranks, checkout / script, *flags, *more],
                                  cwd=folder, stdout=log, stderr=log)
            if done.returncode:
                return (folder / "log.txt").read_text().splitlines()[-1]
    # Which defaults a checkout hands on with a policy is its own affair: both get one without.
    for file in ("policy/clone.json", "policy/defaults.json"):
        (folder / file).unlink(missing_ok=True)
    return ""


# ---- the comparison -----------------------------------------------------------------------------

def read(folder):
    """What a case has left: ({"step_1": {name: array}}, {"step 0": {metric: number or None}})."""
    files = sorted(folder.glob("**/model.safetensors"), key=lambda f: (len(f.parent.name), f))
    rows = {f"step {row['step']}": row for file in folder.glob("runs/run/metrics.jsonl")
            for row in map(json.loads, file.open())}
    rows |= {file.name: json.loads(file.read_text()) for file in
             (*folder.glob("runs/run/result.json"), *folder.glob("figures/results.json"))}
    return ({file.parent.name: load_file(file) for file in files},
            {place: dict(numbers(row)) for place, row in rows.items()})


def numbers(value, key=""):
    """(key.key, number or None) of all in a JSON value that is neither text nor a clock reading."""
    if isinstance(value, (dict, list)):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(v, f"{key}.{k}" if key else str(k))
    elif not isinstance(value, str) and not CLOCKS.search(key):
        yield key, value


def gap(a, b):
    """The largest |a - b| of two arrays or numbers, above 1 relative to the larger. Infinite where
    the two cannot be subtracted."""
    a, b = np.asarray(a, float), np.asarray(b, float)       # None becomes NaN
    if a.shape != b.shape:
        return math.inf
    apart = np.nan_to_num(abs(a - b) / np.fmax(1, np.fmax(abs(a), abs(b))), nan=np.inf)
    return np.where((a == b) | np.isnan(a) & np.isnan(b), 0, apart).max().item()


def differences(old, new):
    """Two {place: {key: value}} -> (the largest gap, in words where the first is, the keys that one
    side has nowhere)."""
    largest, first = 0.0, ""
    for place in {**old, **new}:
        a, b = old.get(place, {}), new.get(place, {})
        gaps = {key: gap(a[key], b[key]) for key in a if key in b}
        worst = max(gaps.values(), default=math.inf)        # no key in common: a file is missing
        if worst and not first:
            key = next((key for key in gaps if gaps[key]), "only one side has it")
            number = gaps and not isinstance(a[key], np.ndarray)
            first = f"{place}: {key}" + (f" {a[key]} -> {b[key]}" if number else "")
        largest = max(largest, worst)
    keys = [{key for row in side.values() for key in row} for side in (old, new)]
    return largest, first, sorted(keys[0] ^ keys[1])


def compare(old, new, tolerance):
    """What two sides have left of a case -> (verdict, is it within the tolerance)."""
    parts, notes, worst = [], [], 0.0
    for what, *sides in zip(("weights", "metrics"), old, new):
        largest, first, alone = differences(*sides)
        worst = max(worst, largest)
        parts += [f"{what} by {largest:.2g}, first in {first}"] * (largest > 0)
        notes += [f"; {what} of one side alone: {', '.join(alone)}"] * bool(alone)
    steps = list(old[0].values())
    if len(steps) > 1 and not differences({"": steps[0]}, {"": steps[-1]})[0]:
        notes.append("; nothing was learned, so that little was compared")
    verdict = "same" if not parts else "within: " if worst <= tolerance else "DIFFERS: "
    return verdict + "; ".join(parts) + "".join(notes), worst <= tolerance


def compare_all(names, checkouts, folders, tolerance):
    """Play and compare these cases, a line each -> how many differ or failed."""
    wrong = 0
    with ThreadPoolExecutor(2) as pool:
        for name in names:
            places = [folder / name for folder in folders]
            errors = zip(("old", "new"), pool.map(play, [name] * 2, checkouts, places))
            failed = [f"FAILED in {side}: {error}" for side, error in errors if error]
            verdict, good = ("; ".join(failed), False) if failed else compare(
                *map(read, places), tolerance)
            print(f"{name:22} {verdict}", flush=True)
            wrong += not good
            for place in places * verdict.startswith("same"):
                shutil.rmtree(place / "runs", ignore_errors=True)
    return wrong


def main():
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout of this project")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=CASES, default=[*CASES],
                        help=", ".join(CASES))
    parser.add_argument("--tolerance", type=float, default=0.0, help="0: equal to the bit")
    args = parser.parse_args()
    policies = {policy for name in args.only
                for policy in re.findall(r"old/(\w+)/policy", CASES[name])[-1:]}
    names = [name for name in CASES if name in args.only or name in policies]
    top = Path(tempfile.mkdtemp(prefix="compare-"))
    folders = top / "old", top / "new"
    for folder in folders:
        folder.mkdir()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    wrong = compare_all(names, (args.old.resolve(), args.new.resolve()), folders, args.tolerance)
    print(f"{len(names)} cases, {wrong} differ or failed, {time.perf_counter() - began:.0f} s"
          + (f"; see {top}" if wrong else ""))
    if wrong:
        sys.exit(1)
    shutil.rmtree(top)


if __name__ == "__main__":
    main()
