"""AgentEvol's three tables for tiny policies, to be run by hand.

    python -m tests.bench.agentevol base         BC-base, with more steps, BC-large, AgentEvol
    python -m tests.bench.agentevol samples      M = 1 to 6 iterations of K = 1, 2 and 4 tries
    python -m tests.bench.agentevol leave_out    all but one environment are explored

Each row is the mean over --seeds of the success on 256 held-out tasks at temperature 1, in %, with
the standard error over the seeds. Every figure is of a run of agentevol.py in --folder; what is
there already is not run again, so that an interrupted table goes on. --jobs runs side by side.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from metrics import mean_and_error

STEPS, LEARN, M = 300, 150, 4
FEW = {"textcraft_small": 60, "frozenlake": 300, "sokoban": 300, "maze": 60}
EVOLVE = f"--steps {STEPS} --learn-steps {LEARN} --explore 400 --eval-tasks 256"
LARGE = f"--iterations 0 --n 8000 --steps {STEPS + M * LEARN} --eval-tasks 256"
TOGETHER = ("textcraft_small", "frozenlake", "sokoban")
QUICK = " --steps 5 --learn-steps 5 --explore 4 --eval-tasks 4 --iterations 1"


def run(folder, name, flags):
    """agentevol.py evolve with these flags, unless it is done -> (result.json, metrics.jsonl)."""
    out = os.path.join(folder, name)
    if not os.path.exists(os.path.join(out, "result.json")):
        command = [sys.executable, "agentevol.py", "evolve", "--out", out, *shlex.split(flags)]
        with open(f"{out}.log", "w") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True)
    with open(os.path.join(out, "result.json")) as file:
        result = json.load(file)
    path = os.path.join(out, "metrics.jsonl")
    if not os.path.exists(path):            # no iterations
        return result, []
    with open(path) as file:
        return result, [json.loads(line) for line in file]


def shown(values):
    mean, error = mean_and_error(values)
    return f"{100 * mean:.1f} ± {100 * error:.1f}"


def base(play, seeds, few):
    yield "| environment | demonstrations | BC-base | BC-base, same steps | AgentEvol | " \
          "BC-large | random | expert |"
    for env, n in few.items():
        evolved = play([(f"{env}-{seed}", f"--env {env} --n {n} --seed {seed} --iterations {M} "
                         f"--control {EVOLVE}") for seed in seeds])
        large = play([(f"{env}-large-{seed}", f"--env {env} --seed {seed} {LARGE}")
                      for seed in seeds])
        row = [shown([r[key]["sampled"] for r, _ in evolved])
               for key in ("before", "control", "after")]
        row.append(shown([r["before"]["sampled"] for r, _ in large]))
        row += [f"{100 * evolved[0][0][who]:.1f}" for who in ("random", "expert")]
        yield f"| {env} | {n} | {' | '.join(row)} |"


def samples(play, seeds, few):
    env = "textcraft_small"
    yield "| K | BC-base | " + " | ".join(f"M = {m}" for m in range(1, 7)) + " |"
    for k in ("1", "2", "4", "4,1,1"):
        runs = play([(f"{env}-k{k.replace(',', '_')}-{seed}",
                      f"--env {env} --n {few[env]} --seed {seed} --iterations 6 --samples {k} "
                      f"{EVOLVE}") for seed in seeds])
        row = [shown([r["before"]["sampled"] for r, _ in runs])]
        row += [shown([lines[m]["held_out"] for _, lines in runs]) for m in range(6)]
        yield f"| {k} | {' | '.join(row)} |"


def leave_out(play, seeds, few):
    yield "| environment | BC-base of all three | AgentEvol without it | AgentEvol with it |"
    n, envs = few["textcraft_small"], ",".join(TOGETHER)
    flags = f"--env {envs} --n {n} --iterations {M} {EVOLVE.replace('256', '600')}"
    every = play([(f"all-{seed}", f"{flags} --seed {seed}") for seed in seeds])
    for env in TOGETHER:
        runs = play([(f"without-{env}-{seed}", f"{flags} --seed {seed} --unexplored {env}")
                     for seed in seeds])
        row = [shown([r["before"]["envs"][env] for r, _ in every]),
               *(shown([r["after"]["envs"][env] for r, _ in those]) for those in (runs, every))]
        yield f"| {env} | {' | '.join(row)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("base", "samples", "leave_out"))
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", default="runs/agentevol")
    parser.add_argument("--quick", action="store_true", help="one small world, to try this file")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        def play(runs):
            more = QUICK * args.quick
            return list(pool.map(lambda named: run(args.folder, named[0], named[1] + more), runs))
        few = {"textcraft_small": 8} if args.quick else FEW
        for line in globals()[args.table](play, args.seeds.split(","), few):
            print(line, flush=True)


if __name__ == "__main__":
    main()
