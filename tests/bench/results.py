"""Tables of results, made from run folders: what is missing is run, what is there is not.

    python -m tests.bench.results worlds --seeds 7            each world by its own settings
    python -m tests.bench.results tries --seeds 10,11,12 --jobs 2 --only "K = 1"

A table is a dict of rows: title -> commands, of which the last is a run of train.py or agentevol.py
and those before it make what it needs. {seed} is the seed, {run} the row's folder and {at} the
table's, so that rows can share a clone; under {starts} all tables do. A row shows, in %, the mean
over the seeds and its standard error (of one seed that over tasks) of held-out success before and
after, greedy and at T=1; then the step of each seed's first warning. The picture has a panel for
each row, or one for all: greedy success, its band over the seeds, the random player, the expert.
Minutes are of CPU time, servers included: on two free cores a run needs half. An interrupted table
goes on.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envs.parts.players import mean_and_error

TRAIN = "train.py --resume --name {run} --seed {seed} "
EVOLVE = ("agentevol.py evolve --resume --out runs/{run} --seed {seed} --explore 400 "
          "--eval-tasks 256 ")
CLONE = "agentevol.py clone --out {at}/clone-{seed} --seed {seed} "
FEW = {"textcraft_small": 60, "frozenlake": 300, "sokoban": 300, "maze": 60}
SMALL = EVOLVE.replace("400", "1200") + "--env textcraft_small --n 8000 --goal other --skill 0.9 "


def from_start(env):
    """The commands of which a table of docs/results.md is made: a clone that has the language and
    no idea of the goal, the same one for all tables; RL from it; AgentEvol from it."""
    start = f"{{starts}}-{env}-{{seed}}"
    return (f"agentevol.py clone --out {start} --seed {{seed}} --env {env}",
            TRAIN + f"--env {env} --model {start} --eval-tasks 256 --eval-every 20 ",
            EVOLVE + f"--env {env} --model {start} --n 1 --steps 1 ")


def rules(env, steps):
    """Learning rules from the same start in as many episodes: steps x 32 x 8."""
    clone, rl, evolve = from_start(env)
    rl += f"--steps {steps} "
    return {title: [clone, command] for title, command in {
        "GRPO": rl, "Dr. GRPO": rl + "--algo dr_grpo", "RLOO": rl + "--algo rloo",
        "PPO": rl + "--algo ppo", "PPO, bi-level GAE": rl + "--algo ppo --advantage turn_gae",
        "REINFORCE++": rl + "--algo reinforce_pp",
        "REINFORCE++, baseline": rl + "--algo reinforce_pp_baseline",
        "GiGPO": rl + "--algo gigpo", "MT-GRPO": rl + "--algo mt_grpo",
        "GSPO": rl + "--algo gspo", "MaxRL": rl.replace("train.py", "recipes/maxrl.py"),
        "ECHO": rl.replace("train.py", "recipes/echo.py"),
        **{f"AgentEvol, from the {start} policy": evolve.replace("400", f"{32 * steps // 3}")
           + f"--samples 8 --iterations 3 --start {start}" for start in ("base", "last")}}.items()}


def claims(env="textcraft_small"):
    """Tables of what the papers claim, from the same start, and of what is wrong in their code."""
    clone, rl, _ = from_start(env)
    hot = rl + "--lr 2e-3 --lr-end 1 --steps 60 "
    wrong = rl.replace("train.py", "recipes/upstream_faults.py") + "--steps 60 "
    tables = dict(
        horizons={          # as many turns as 60 steps of 10 turns have, GRPO's row of `rules`
            "4 turns": rl + "--horizons 4,10 --switch-every 9999 --steps 118",
            "4, 7, 10 turns": rl + f"--horizons {'4,' * 8}{'7,' * 5}10 --switch-every 5 --steps 87",
            "drawn from 4, 7, 10 turns": rl.replace("train.py", "recipes/random_horizons.py")
            + "--horizons 4,7,10 --steps 76"},
        starpo={
            "StarPO": hot + "--algo starpo", "StarPO-S": hot + "--algo starpo_s",
            "StarPO-S, all groups": hot + "--algo starpo_s --filter none --mini-batches 4",
            "StarPO-S, with the KL": hot + "--algo starpo_s --kl-coef 0.001 --kl reward",
            "StarPO-S, clipped at 0.2": hot + "--algo starpo_s --clip-high 0.2"},
        way_back={          # after `starpo`: from its first row's checkpoint before a warning
            title: TRAIN + f"--env {env} --model runs/starpo-StarPO-{{seed}}/step_20 --eval-every "
            f"20 --steps 40 --algo {algo}" for title, algo in {
                "StarPO-S": "starpo_s", "StarPO": "starpo", "GRPO": "grpo"}.items()},
        ragen={             # in as many episodes as GRPO's row of `rules`, or in as many updates
            "64 tasks, 4 tries": rl + "--steps 60 --tasks-per-step 64 --group-size 4",
            "16 tasks, 16 tries": rl + "--steps 60 --tasks-per-step 16 --group-size 16",
            "8 tasks, 32 tries": rl + "--steps 60 --tasks-per-step 8 --group-size 32",
            "learned from 4 times": rl + "--steps 60 --epochs 4",
            "learned from 4 times, 15 steps": rl + "--steps 15 --epochs 4 --eval-every 5"},
        upstream={
            "GRPO on observations, too": wrong + "--fault observations",
            "PPO, reward on an observation": wrong + "--fault reward --algo ppo"})
    return {table: {title: [clone, command] for title, command in rows.items()}
            for table, rows in tables.items()}


TABLES = {
    **claims(),
    "rules": rules("textcraft_small", 60),
    "rules_sokoban": {title: row for title, row in rules("sokoban", 40).items()
                      if title != "MaxRL"},     # divides by a mean return, which is below 0 here
    "main": {           # the same clone, as many episodes in both: 150 x 256 = 4 x 1200 x 8
        "GRPO": [TRAIN + "--env textcraft_small --control"],
        "AgentEvol": [SMALL + "--samples 8 --iterations 4"],
    },
    "worlds": {
        **{name: [TRAIN + f"--env {name}"] for name in (
            "textcraft_small", "frozenlake", "sokoban", "babyai", "maze", "wordle", "textcraft",
            "alfworld", "bandit", "webshop_small", "webshop", "academia", "searchqa_small",
            "weather_small")},
        "textcraft_small, think": [
            CLONE.replace("clone-", "think-") + "--env textcraft_small --format think --goal task "
            "--skill 0.6 --max-turn-tokens 72 --max-context 1024 --horizon 10 --steps 450",
            TRAIN + "--env textcraft_small --model {at}/think-{seed} --steps 40 "
            "--tasks-per-step 16 --horizons 6,10 --kl-coef 0"],
        "frozenlake, reflect": [
            CLONE.replace("clone-", "reflect-") + "--env frozenlake --format reflect --goal task "
            "--skill 0.6 --max-turn-tokens 48 --max-context 1280 --horizon 10 --steps 350",
            TRAIN + "--env frozenlake --model {at}/reflect-{seed} --steps 24 --tasks-per-step 16"],
    },
    "agentevol": {      # AgentEvol; its base policy, cloned on for as many steps; BC-large
        f"{env}{title}": commands for env, n in FEW.items() for title, commands in (
            ("", [EVOLVE + f"--env {env} --n {n} --steps 300 --learn-steps 150 --iterations 4"]),
            (", same steps", [
                CLONE.replace("clone-", f"{env}-")
                + f"--env {env} --n {n} --goal task --skill 1 --steps 300",
                EVOLVE + f"--env {env} --n {n} --model {{at}}/{env}-{{seed}} --steps 600 --lr 1e-3 "
                "--iterations 0"]),
            (", BC-large", [EVOLVE + f"--env {env} --n 8000 --steps 900 --iterations 0"]))
    },
    "tries": {
        f"K = {k}": [EVOLVE + f"--env textcraft_small --n 60 --steps 300 --learn-steps 150 "
                     f"--iterations 6 --samples {k}"] for k in ("1", "2", "4", "4,1,1")
    },
    "leave_out": {
        f"explored: {explored}": [
            EVOLVE.replace("agentevol.py evolve", "recipes/unexplored.py")
            .replace("256", "600") + "--env textcraft_small,frozenlake,sokoban --n 60 "
            f"--steps 300 --learn-steps 150 --iterations 4 --unexplored {unexplored!r}"]
        for explored, unexplored in (
            ("all three", ""), ("without textcraft_small", "textcraft_small"),
            ("without frozenlake", "frozenlake"), ("without sokoban", "sokoban"))
    },
}
QUICK = {           # what makes a command with this word small; "": those of train.py's flags
    "clone": "--steps 5 --batch 4", "": "--steps 1 --tasks-per-step 2 --eval-tasks 4",
    **dict.fromkeys(("evolve", "recipes/unexplored.py"),
                    "--steps 5 --batch 4 --learn-steps 5 --explore 4 --samples 1")}
MAKING = defaultdict(threading.Lock)


def run(table, title, seed, quick=False):
    """The row's run with this seed -> its result.json, with the minutes of CPU time."""
    at = "quick-" * quick + table
    name = f"{at}-{title}-{seed}".replace(", ", "-").replace(" ", "_")
    spent = Path("runs", name, "cpu_minutes.json")
    if not spent.exists():
        minutes = 0.0
        for command in TABLES[table][title]:
            words = shlex.split(command.format(
                seed=seed, run=name, at=f"runs/{at}", starts="runs/" + "quick-" * quick + "start"))
            made = words[words.index("--out") + 1] if "clone" in words else ""
            with MAKING[made or name]:          # a clone that rows share is made once
                if not (made and os.path.exists(made)):
                    small = next(QUICK[word] for word in [*words, ""] if word in QUICK)
                    more = shlex.split(small) if quick else []
                    minutes += spend([sys.executable, *words, *more], f"runs/{name}.log")
        spent.write_text(json.dumps(minutes))
    result = json.loads(Path("runs", name, "result.json").read_text())
    before, after = (result["evaluations"][i][1] for i in (0, -1))      # of no iteration the same
    return result | dict(before=before, after=after, minutes=json.loads(spent.read_text()))


def spend(command, log):
    """Run this command -> its minutes of CPU time."""
    with open(log, "a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)     # its own time, and its children's
    if status:
        raise SystemExit(f"{shlex.join(command)} failed, see {log}")
    return (usage.ru_utime + usage.ru_stime) / 60


def shown(results, key, how):
    """Mean and standard error in %, over the seeds or, of one seed, over its tasks; "" if none."""
    rates = [result[key][how] for result in results if result[key]]
    if not rates:
        return ""
    mean, error = mean_and_error([rate["success"] for rate in rates])
    error = error if len(rates) > 1 else rates[0]["stderr"]
    return f"{100 * mean:.1f} ± {100 * error:.1f}"


def row(title, results):
    cells = [shown(results, key, how) for key in ("before", "after", "control")
             for how in ("greedy", "sampled")]
    cells += [f"{100 * results[0]['players'][who]['success']:.0f}" for who in ("random", "expert")]
    cells.append(", ".join(str(result["warnings"][0][0]) if result["warnings"] else "no"
                           for result in results))
    return f"| {title} | " + " | ".join(
        [*cells, str(results[0]["after"]["greedy"]["n"]),
         f"{mean_and_error([result['minutes'] for result in results])[0]:.1f}"]) + " |"


def points(results, how="greedy"):
    """[(step, mean success, its standard error over the seeds)] of each evaluation."""
    return [(seeds[0][0], *mean_and_error([rates[how]["success"] for _, rates in seeds]))
            for seeds in zip(*(result["evaluations"] for result in results), strict=True)]


# Okabe and Ito's colours, which differ for the colour-blind as well; beyond them lines differ, too.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
DASHES = ["-", "--", "-."]


def draw(path, table, together):
    """table: {title: results}. Together: one panel for all rows, over the share of their steps."""
    from matplotlib.figure import Figure
    columns, rows = (1, 1) if together else (min(3, len(table)), -(-len(table) // 3))
    size = (8, 4.5) if together else (3.2 * columns, 2.6 * rows)
    panels = Figure(size, dpi=110, layout="tight").subplots(rows, columns, squeeze=False).flat
    for i, (title, results) in enumerate(table.items()):
        axes = panels[0 if together else i]
        steps, means, errors = zip(*points(results))
        steps = [step / steps[-1] for step in steps] if together else steps
        color = COLORS[i % len(COLORS) if together else 0]
        dashes = DASHES[i // len(COLORS) % len(DASHES) if together else 0]
        axes.plot(steps, [100 * m for m in means], "o", ls=dashes, ms=3, color=color,
                  label=title if together else "greedy")
        if len(results) > 1:
            axes.fill_between(steps, [100 * (m - e) for m, e in zip(means, errors)],
                              [100 * (m + e) for m, e in zip(means, errors)], color=color,
                              alpha=0.15)
        if not together or i == len(table) - 1:
            for who, line in (("random", ":"), ("expert", "--")):
                axes.axhline(100 * results[0]["players"][who]["success"], color="#555555", ls=line,
                             lw=1, zorder=0, label=f"{who} player")
        axes.set(title="" if together else title, ylim=(0, 104), ylabel="greedy success, %",
                 xlabel="share of the steps" if together else "steps")
        axes.title.set_size(9)
    if together:
        axes.set(ylabel="greedy success on held-out tasks, %")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        axes.legend(fontsize=7)
    for empty in list(panels)[len(table) if not together else 1:]:
        empty.set_axis_off()
    axes.figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", default="7", help="comma-separated")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--only", nargs="*", metavar="TITLE", help="rows; without it all")
    parser.add_argument("--picture", default="", help="a file; without it none")
    parser.add_argument("--together", action="store_true", help="one panel for all rows")
    parser.add_argument("--curve", action="store_true", help="also every evaluation's mean")
    parser.add_argument("--quick", action="store_true", help="a step of each, to try this file")
    args = parser.parse_args()
    os.makedirs("runs", exist_ok=True)
    titles, seeds, table = args.only or [*TABLES[args.table]], args.seeds.split(","), {}
    print("| | before: greedy | T=1 | after: greedy | T=1 | control: greedy | T=1 | random | "
          "expert | warned at | n | CPU min |\n|" + "---|" * 12)
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {title: [pool.submit(run, args.table, title, seed, args.quick) for seed in seeds]
                   for title in titles}
        for title, of_seeds in futures.items():
            table[title] = [future.result() for future in of_seeds]
            print(row(title, table[title]), flush=True)
            if args.curve:
                for how in ("greedy", "sampled"):
                    print(f"   {how} after " + ", ".join(
                        f"{step}: {100 * mean:.1f} ± {100 * error:.1f}"
                        for step, mean, error in points(table[title], how)))
    if args.picture:
        draw(args.picture, table, args.together)


if __name__ == "__main__":
    main()
