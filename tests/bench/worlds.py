"""A gallery, to be run by hand: what a tiny policy learns from nothing in each environment.

    python -m tests.bench.worlds --seed 7 --jobs 1              runs train.py in every world
    python -m tests.bench.worlds --seed 7 --only maze "frozenlake, reflect"

Each run is `python train.py --env NAME --seed SEED`, with the settings of the environment's TINY;
two begin from a clone that `python agentevol.py clone` made with other settings. It prints a row
for each, in %, and draws docs/worlds.png: held-out success over steps of RL, with the random player
and the expert. Minutes are of CPU time, those of the environment's server
included, so that other work on the machine does not count: one core needs as many, two fewer.
What is in --folder already is not run again.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

WORLDS = {      # title -> flags of train.py
    **{name: f"--env {name}" for name in (
        "textcraft_small", "frozenlake", "sokoban", "babyai", "maze", "wordle", "textcraft",
        "alfworld", "bandit", "webshop_small", "webshop", "academia")},
    "textcraft_small, think": "--env textcraft_small --steps 40 --tasks-per-step 16",
    "frozenlake, reflect": "--env frozenlake --steps 24 --tasks-per-step 16",
}
CLONES = {      # title -> flags of agentevol.py clone, where train.py's own clone will not do
    "textcraft_small, think": "--env textcraft_small --format think --max-turn-tokens 72 "
                              "--max-context 1024 --horizon 10 --steps 450",
    "frozenlake, reflect": "--env frozenlake --format reflect --max-turn-tokens 48 "
                           "--max-context 1280 --horizon 10 --steps 350",
}
QUICK = " --steps 1 --tasks-per-step 2 --eval-tasks 4"


def run(folder, title, seed, more):
    """train.py with the flags of this title, unless that is done -> its result.json, with the
    minutes of CPU time."""
    name = f"{folder}-{title.replace(', ', '-')}-{seed}"
    path, spent = (os.path.join("runs", name, x) for x in ("result.json", "cpu_minutes.json"))
    if not os.path.exists(spent):
        flags, minutes = f"{WORLDS[title]}{more} --name {name}", 0.0
        if title in CLONES:
            out = os.path.join("runs", f"{name}-clone")
            minutes += spend(name, f"agentevol.py clone {CLONES[title]} --out {out}", seed)
            flags += f" --model {out}"
        minutes += spend(name, f"train.py {flags}", seed)
        with open(spent, "w") as file:
            json.dump(minutes, file)
    with open(path) as file, open(spent) as minutes:
        return json.load(file) | dict(minutes=json.load(minutes))


def spend(name, command, seed):
    """Run this command -> its minutes of CPU time."""
    with open(os.path.join("runs", f"{name}.log"), "a") as log:
        process = subprocess.Popen([sys.executable, *shlex.split(command), "--seed", str(seed)],
                                   stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)     # its own time, and its children's
    if status:
        raise SystemExit(f"{command} failed, see runs/{name}.log")
    return (usage.ru_utime + usage.ru_stime) / 60


def row(title, result):
    before, after = result["before"], result["after"]
    return (f"| {title} | {100 * result['random']:.1f} | {100 * before['sampled']:.1f} ± "
            f"{100 * before['stderr']:.1f}, {100 * before['greedy']:.1f} | "
            f"{100 * after['sampled']:.1f} ± {100 * after['stderr']:.1f}, "
            f"{100 * after['greedy']:.1f} | {100 * result['expert']:.0f} | {after['n']} | "
            f"{result['minutes']:.1f} | `python train.py {WORLDS[title]}` |")


def draw(path, results):
    from matplotlib.figure import Figure
    columns = 3
    figure = Figure((9, 2.3 * -(-len(results) // columns)), dpi=110, layout="tight")
    for i, (title, result) in enumerate(results.items()):
        axes = figure.add_subplot(-(-len(results) // columns), columns, i + 1)
        axes.plot(*zip(*[(step, success) for step, success, _ in result["curve"]]), "o-", ms=3)
        axes.axhline(result["random"], color="C3", ls=":", label="random player")
        axes.axhline(result["expert"], color="C2", ls=":", label="expert")
        axes.set(title=title, ylim=(0, 1.04))
        axes.title.set_size(9)
    axes.legend(fontsize=7)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[*WORLDS], choices=WORLDS, metavar="TITLE",
                        help="of these: " + "; ".join(WORLDS))
    parser.add_argument("--folder", default="worlds", help="the runs are runs/FOLDER-...")
    parser.add_argument("--picture", default="docs/worlds.png")
    parser.add_argument("--quick", action="store_true", help="one step of RL, to try this file")
    args = parser.parse_args()
    os.makedirs("runs", exist_ok=True)
    results = {}
    print("| world | random | clone: T=1 ± se, greedy | after RL | expert | n | CPU min | run |")
    print("|---|---|---|---|---|---|---|---|")
    with ThreadPoolExecutor(args.jobs) as pool:
        for title, result in zip(args.only, pool.map(
                lambda title: run(args.folder, title, args.seed, QUICK * args.quick), args.only)):
            results[title] = result
            print(row(title, result), flush=True)
    draw(args.picture, results)


if __name__ == "__main__":
    main()
