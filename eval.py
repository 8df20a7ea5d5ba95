"""AgentEval: how often does a player succeed?

    python eval.py --env textcraft --policy expert                    or random, a built-in player
    python eval.py --env textcraft_small,maze --model runs/NAME/step_80    any checkpoint, hub model
    python eval.py --env babyai --model Qwen/Qwen2.5-3B-Instruct --format react --horizon 20
    python eval.py --suite agenteval --model runs/NAME/step_80        AgentGym's 1,160 tasks

prints success and score with n and standard error, by environment and family of tasks, beside the
random player and the expert on the very same tasks. Success: the final score reaches the
environment's threshold. Success is the mean over the k samples of each task (Avg@k); Pass@k the
share of tasks with a success among them. docs/evaluation.md says what the folder keeps.
"""
import json
import math
import os
import random
import re
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields

import before_torch  # noqa: F401  its name says why
import torch

import report
from chat import Speaks
from client import EnvError
from curriculum import choose_tasks, families_of
from envs import open_envs
from envs.parts.players import builtin_rate, mean_and_error, play_builtin
from envs.parts.suites import SUITES, open_suite, suite_tasks
from flags import Count, Natural, NonNegative, Plays, Worlds, flag, parse_flags, part_of
from lora import load_policy
from parallel import device_of, progress
from rollout import collect
from run import (
    begun,
    connected,
    keep_settings,
    model_settings,
    one_sentence,
    open_folder,
    open_worlds,
    with_nulls,
    write_json,
)


@dataclass
class Config(Plays, Speaks, Worlds):
    model: str = flag("", "folder or hub id of a policy", heading="who plays")
    policy: str = flag("", "a built-in player instead of a model", ("", "random", "expert"))
    device: str = flag("auto", "auto: cuda if there is one; cpu, cuda, cuda:1")
    attention: str = flag("auto", "auto: the fastest", ("auto", "flash2", "varlen", "torch"))
    temperature: NonNegative = flag(1.0, "0: greedy")
    seed: Natural = flag(0, "of the policy's samples and the random player")

    suite: str = flag("", "AgentGym's worlds, tasks and turns: envs/parts/suites.py", ("", *SUITES),
                      heading="which tasks, and where they are kept")
    split: str = flag("test", "which tasks", ("train", "test"))
    n: Natural = flag(200, "tasks of each environment, a fixed sample (0: all)")
    k: Count = flag(1, "samples of each task")
    horizon: Natural = flag(0, "most turns; 0: the environment's own, never exceeded by several")
    out: str = flag("", "the folder; empty: runs/ and what is played by whom")
    resume: bool = flag(False, "continue the evaluation that the folder holds")

    @property
    def path(self):
        name = "-".join(os.path.normpath(self.policy or self.model).split(os.sep)[-2:])
        return self.out or os.path.join("runs", f"{self.suite or self.env}-{name}")


def tasks_asked(cfg, worlds, families):
    """[(World, id)] of the tasks to play. Sets the most turns of each World."""
    tasks = []
    for world, own in zip(worlds, families):
        world.most_turns = min(cfg.horizon or world.module.HORIZON, world.most_turns)
        ids = choose_tasks(world.module, cfg.split, cfg.n, own)
        if cfg.suite:
            n, world.most_turns = SUITES[cfg.suite][world.module.NAME]
            ids = suite_tasks(world.module, n)
        tasks += [(world, task) for task in sorted(ids)]
    return tasks


# ---- playing ------------------------------------------------------------------------------------

def load(cfg):
    """The policy of cfg.model; None of a built-in player."""
    if cfg.policy:
        return None
    device = device_of(cfg.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return load_policy(cfg.model, device, dtype, cfg.attention).eval()


def play(cfg, policy, tasks, groups, path):
    """Play the tasks [(World, id)] that `groups` lacks. As soon as a task's k plays are there, they
    are added to `groups` and, as a line, to the file at `path`; a task that could not be played is
    left out. EnvError: the policy could play none, or the servers are gone."""
    done = {(group[0]["env"], group[0]["task_id"]) for group in groups}
    left = [i for i, (world, task) in enumerate(tasks) if (world.module.NAME, task) not in done]
    random.Random(cfg.seed).shuffle(left)       # all environments are played at once
    mine = [tasks[i] for i in left]

    def keep(group):
        groups.append(group)
        with open(path, "a") as file:
            file.write(json.dumps(group) + "\n")

    if cfg.policy:
        return play_by_itself(cfg, mine, keep)
    _, stats = collect(         # horizon: a World has its own most_turns
        policy, mine, cfg.k, horizon=math.inf, key=(cfg.seed,), places=left,
        temperature=cfg.temperature, max_concurrent=cfg.max_concurrent,
        finished=lambda episodes: keep([*map(play_of, episodes)]))
    if not groups:
        raise EnvError(f"no task could be played: {stats.failures[-1]}")


def play_by_itself(cfg, tasks, keep):
    """Play by a built-in player. A task that the environment's engine refuses is left out."""
    for world, task in progress(tasks, f"{cfg.policy} player"):
        with suppress(RuntimeError):
            keep([play_builtin(world.module, cfg.policy, task, world.most_turns,
                               (cfg.seed, member), member or None) | dict(tokens=None)
                  for member in range(cfg.k)])


def play_of(episode):
    """An episode as it is kept."""
    t, tokenizer = episode.trajectory, episode.agent.tokenizer
    valid = [turn.valid for turn in t.turns if turn.valid is not None]
    return with_nulls(dict(
        env=t.env, task_id=t.task_id, success=t.success, score=t.score, reward=t.reward,
        turns=len(t.turns), valid=sum(valid) if valid or not t.turns else None,
        tokens=sum(t.response_mask),
        conversation=report.sample_of(t, tokenizer) if tokenizer else episode.messages))


def kept_groups(path):
    """The plays of each task that a killed evaluation has left; a torn last line is cut off."""
    with open(path, "a+b") as file:
        file.seek(0)
        lines = [line for line in file if line.endswith(b"\n")]
        file.truncate(sum(map(len, lines)))
    return [*map(json.loads, lines)]


# ---- the table ----------------------------------------------------------------------------------

def figures_of(groups):
    """A row's figures, of the k plays of each task; nan where one is undefined or not known.
    Standard errors are over tasks: samples of one task are not independent."""
    plays = [play for group in groups for play in group]

    def by_task(name):
        return mean_and_error([sum(play[name] for play in group) / len(group) for group in groups])

    def total(name):
        return sum(math.nan if play[name] is None else play[name] for play in plays)

    (success, stderr), (score, score_stderr) = by_task("success"), by_task("score")
    return dict(
        n=len(groups), success=success, stderr=stderr,
        passed=sum(any(play["success"] for play in group) for group in groups) / len(groups),
        score=score, score_stderr=score_stderr, turns=total("turns") / len(plays),
        tokens=total("tokens") / len(plays),
        valid=total("valid") / total("turns") if total("turns") else math.nan)


def rows_of(cfg, worlds, groups):
    """The table, a dict for each row: of each environment "all", its families if several were
    played, and the built-in players on the same tasks; the mean of several environments."""
    rows = []
    for world in worlds:
        module, env, turns = world.module, world.module.NAME, world.most_turns
        own = [group for group in groups if group[0]["env"] == env]
        if not own:
            continue
        rows.append(dict(env=env, row="all", title=f"{env}, {turns} turns", **figures_of(own)))
        for name in module.FAMILIES:
            part = [group for group in own if module.family(group[0]["task_id"]) == name]
            if 0 < len(part) < len(own):
                rows.append(dict(env=env, row=name, title=f"  {name}", **figures_of(part)))
        how = ", our local game" * hasattr(module, "Served")
        how += " (exact)" * hasattr(module, "exact_success")
        for player in ("random", "expert"):
            tasks = progress([group[0]["task_id"] for group in own], f"{player} player, {env}")
            rate, error = builtin_rate(module, player, tasks, turns, (cfg.seed, 0))
            rows.append(dict(env=env, row=f"{player} player", n=len(own), success=rate,
                             title=f"  {player} player{how}", stderr=error))
    every = [row for row in rows if row["row"] == "all"]
    if len(every) > 1:
        rows.append(dict(env="mean", row="all", title="mean over environments", n=len(every),
                         success=sum(row["success"] for row in every) / len(every),
                         stderr=math.hypot(*(row["stderr"] for row in every)) / len(every)))
    return rows


def table(rows, k):
    """The rows as text; "-" where a figure is not defined."""
    width = max(len(row["title"]) for row in rows)
    lines = [f"{'':{width}} {'n':>5} {'success':>8} {'± se':>6} {f'Pass@{k}':>7} {'score':>8} "
             f"{'± se':>7} {'turns':>5} {'tokens':>6} {'valid':>5}"]
    for row in rows:
        f = defaultdict(lambda: math.nan, row)
        lines.append(f"{f['title']:{width}} {f['n']:5d} {f['success']:8.1%} {f['stderr']:6.1%} "
                     f"{f['passed']:7.1%} {f['score']:8.3f} {f['score_stderr']:7.3f} "
                     f"{f['turns']:5.1f} {f['tokens']:6.0f} {f['valid']:5.0%}")
    return re.sub(r"\bnan\b%?", lambda found: "-".rjust(len(found[0])), "\n".join(lines))


def notes_on(cfg, tasks, groups):
    """What has to be said above the table, as sentences."""
    notes, turns = [], [play["turns"] for group in groups for play in group]
    if len(groups) < len(tasks):
        notes.append(f"{len(tasks) - len(groups)} tasks could not be played and are left out")
    if 0 in turns:
        notes.append(f"{turns.count(0)} of {len(turns)} episodes had no turn and count as "
                     f"failures: their prompt and a reply of {cfg.max_turn_tokens} exceed "
                     f"--max-context {cfg.max_context} tokens")
    return notes


def run(cfg, origins=None):
    """Play, print the table, keep it in the folder -> what results.json holds. ValueError: what
    cannot be played."""
    if bool(cfg.policy) == bool(cfg.model):
        raise ValueError("give --model FOLDER_OR_ID or --policy random or expert")
    began = time.perf_counter()
    modules = open_suite(cfg.suite, cfg.data) if cfg.suite else open_envs(cfg.env, cfg.data)
    modules.sort(key=lambda module: module.NAME)
    families, policy = families_of(modules, cfg.families), load(cfg)
    nobody = nullcontext([None] * len(modules))         # whom a built-in player asks
    with nobody if cfg.policy else connected(cfg.env_url, modules) as clients:
        worlds = open_worlds(policy, cfg.model, modules, clients, cfg)
        tasks = tasks_asked(cfg, worlds, families)
        folder = open_folder(cfg.path, cfg.resume)
        keep_settings(folder, cfg, origins or {})
        path = os.path.join(folder, "trajectories.jsonl")
        groups = kept_groups(path)
        play(cfg, policy, tasks, groups, path)
    if not groups:
        raise EnvError(f"{cfg.suite or cfg.env}: no task could be played")
    groups.sort(key=lambda group: (group[0]["env"], group[0]["task_id"]))
    rows, notes = rows_of(cfg, worlds, groups), notes_on(cfg, tasks, groups)
    print(f"{cfg.suite or cfg.env}, {cfg.split} split, {cfg.policy or cfg.model}, "
          f"temperature {cfg.temperature:g}, seed {cfg.seed}\nsuccess: the final score reaches the "
          "environment's threshold; score: the environment's own, at the end", *notes,
          table(rows, cfg.k), sep="\n")
    results = with_nulls(dict(rows=rows, notes=notes, seconds=time.perf_counter() - began))
    write_json(os.path.join(folder, "results.json"), results)
    report.write(folder)
    return results


# ---- flags --------------------------------------------------------------------------------------

MAY_CHANGE = {"out", "resume"} | {f.name for f in fields(Plays)}


def layers(kind, given):
    """What is asked for beside the flags `given`, as `parse_flags` wants it: how a model speaks;
    what an evaluation to be resumed was begun with. ValueError."""
    found = []
    if given.get("model"):
        where, settings = model_settings(given["model"])
        found.append((where, part_of(settings, Speaks)))
    if given.get("resume"):
        found.append(("resumed", begun(kind(**given).path, given, kind, MAY_CHANGE)))
    return found


def main(kind=Config):
    with one_sentence("eval.py"):
        cfg, origins = parse_flags(kind, None, __doc__, layers)
        run(cfg, origins)


if __name__ == "__main__":
    main()
