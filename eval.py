"""AgentEval: how often does a player succeed?

    python eval.py --env textcraft --policy expert                    or random, a built-in player
    python eval.py --env textcraft_small,maze --model runs/NAME/step_80    any checkpoint, hub model
    python eval.py --env babyai --model Qwen/Qwen2.5-3B-Instruct --format react --horizon 20
    python eval.py --env wordle --api-base https://api.openai.com/v1 --api-model NAME    any API's
    python eval.py --suite agenteval --model runs/NAME/step_80        AgentGym's 1,160 tasks
    python -m envs                                     every environment, and what it lacks here

prints success and score with n and standard error, by environment and family of tasks, beside the
random player and the expert on the very same tasks. Success: the final score reaches the
environment's threshold. Success is the mean over the k samples of each task (Avg@k); Pass@k the
share of tasks with a success among them. docs/evaluation.md says what --out FOLDER keeps.
"""
import hashlib
import json
import math
import os
import random
import re
import time
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields
from typing import Literal

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import torch

from api import Api, collect_by_api
from chat import Agent
from client import EnvError, ServersGone, connected
from curriculum import choose_tasks, families_of
from envs import folders_of, known_envs, open_env
from envs.parts.players import builtin_rate, mean_and_error, play_builtin
from envs.parts.suites import SUITES, suite_tasks
from lora import load_policy
from metrics import with_nulls
from parallel import device_of
from rollout import World, collect, progress
from run import (CHAT_MODEL, Count, Natural, NonNegative, Plays, Speaks, Worlds, begun,
                 model_settings, one_sentence, open_folder, open_worlds, parse_flags, part_of,
                 read_json, write_json)


@dataclass
class Config(Plays, Speaks, Worlds):
    # who plays
    model: str = ""               # folder or hub id of a policy
    policy: Literal["", "random", "expert"] = ""  # a built-in player instead of a model
    api_base: str = ""            # an OpenAI-compatible API; its key is read from OPENAI_API_KEY
    api_model: str = ""           # the model's name there
    concurrency: Count = 16       # episodes at a time that the API plays
    device: str = "auto"          # auto: cuda if there is one; cpu, cuda, cuda:1
    attention: Literal["auto", "flash2", "varlen", "torch"] = "auto"     # auto: the fastest
    temperature: NonNegative = 1.0     # 0: greedy
    seed: Natural = 0             # of the policy's samples and the random player

    # which tasks, and where they are kept
    suite: Literal[("", *SUITES)] = ""  # AgentGym's tasks and turns instead, see envs/parts/
    split: Literal["train", "test"] = "test"  # which tasks
    n: Natural = 200              # tasks of each environment, a fixed sample (0: all)
    k: Count = 1                  # samples of each task
    horizon: Natural = 0          # most turns; 0: the environment's own, which limits several's
    out: str = ""                 # also keep it all in this folder; of a suite: runs/SUITE-PLAYER
    resume: bool = False          # continue the evaluation that this folder holds

    @property
    def player(self):
        return self.policy or self.model or self.api_model

    @property
    def path(self):
        name = "-".join(os.path.normpath(self.player).split(os.sep)[-2:])
        return self.out or self.suite and os.path.join("runs", f"{self.suite}-{name}")


# ---- which tasks --------------------------------------------------------------------------------

def envs_asked_for(cfg):
    """-> ([module], {name: (tasks asked of it, most turns)}, {name of a suite's environment that is
    not here: the sentence why}). ValueError: one of --env is not here."""
    asked, modules, missing = dict(SUITES.get(cfg.suite, {})), [], {}
    names = sorted(asked or {*cfg.env.split(",")})
    folders = folders_of(names, cfg.data)
    for name in names:
        try:
            modules.append(open_env(name, folders.get(name, "")))
        except (ValueError, ImportError) as error:
            if not cfg.suite:
                raise
            missing[name] = str(error) if name in known_envs() else "no such environment here yet"
    for module in modules if not cfg.suite else ():
        turns = cfg.horizon or module.HORIZON
        asked[module.NAME] = cfg.n, min(turns, module.HORIZON) if len(modules) > 1 else turns
    return modules, asked, missing


# ---- playing ------------------------------------------------------------------------------------

def load(cfg):
    """The policy of cfg.model, None of an API or a built-in player."""
    if not cfg.model:
        return None
    device = device_of(cfg.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return load_policy(cfg.model, device, dtype, cfg.attention).eval()


def play(cfg, policy, tasks, folder, plays):
    """Play the tasks [(World, id)] of which `plays` has none, and add their plays (see `play_of`)
    to it and to the folder, a task as soon as its k episodes are played. EnvError: no task could be
    played, or the servers are gone; a failure of some tasks leaves these out."""
    have, api = {(p["env"], p["task_id"]) for p in plays}, Api(cfg) if cfg.api_base else None
    left = [i for i, (world, task) in enumerate(tasks) if (world.module.NAME, task) not in have]
    random.Random(cfg.seed).shuffle(left)       # all environments are played at once
    mine, key = [tasks[i] for i in left], (cfg.seed,)

    def keep(new):
        plays.extend(new)
        if folder:
            with open(os.path.join(folder, "trajectories.jsonl"), "a") as file:
                file.write("".join(json.dumps(play) + "\n" for play in new))

    def finished(episodes):
        keep([play_of(e.trajectory, e.messages, member, api.told[e]) if api else
              play_of(e.trajectory, e.trajectory.text(e.agent.tokenizer), member,
                      {"completion": sum(e.trajectory.response_mask)})
              for member, e in enumerate(episodes)])

    if cfg.policy:
        for world, task in progress(mine, f"{cfg.policy} player"):
            with suppress(RuntimeError):        # of the engine: the task counts as dropped
                keep([play_builtin(world.module, cfg.policy, task, world.most_turns,
                                   (cfg.seed, member), member or None)
                      | dict(member=member, tokens={}) for member in range(cfg.k)])
        return
    try:
        if api and left:
            collect_by_api(api, mine, cfg.k, math.inf, key, left, finished)
        else:
            collect(policy, mine, cfg.k, horizon=math.inf, key=key, places=left,
                    max_concurrent=cfg.max_concurrent, finished=finished)
    except EnvError as error:
        if isinstance(error, ServersGone) or not plays:
            raise


def play_of(t, conversation, member, tokens):
    """A Trajectory as a line of trajectories.jsonl. conversation: text, or an API's messages;
    member: which of its task's k; tokens: {"completion": sampled}, or what an API told."""
    valid = [turn.valid for turn in t.turns if turn.valid is not None]
    told = valid or not t.turns             # else the server does not say
    return dict(env=t.env, task_id=t.task_id, member=member, success=t.success, score=t.score,
                reward=t.reward, turns=len(t.turns), valid=sum(valid) if told else None,
                tokens=tokens, conversation=conversation)


def kept_plays(folder, k):
    """The plays of whole tasks in an evaluation's folder, which --resume does not play again."""
    with open(os.path.join(folder, "trajectories.jsonl"), "a+b") as file:
        file.seek(0)
        lines = file.read().split(b"\n")[:-1]           # behind the last newline: torn
        del lines[len(lines) // k * k:]                 # the k of a task are written together
        file.truncate(sum(len(line) + 1 for line in lines))
    return [*map(json.loads, lines)]


# ---- the table ----------------------------------------------------------------------------------

def summarise(plays, k, names):
    """plays: as `play_of` makes them, the k of a task adjacent. names(play): for what it counts
    -> {name: figures}, nan where undefined. Standard errors are over tasks: samples of one task are
    not independent."""
    groups, figures = defaultdict(list), {}
    for i in range(0, len(plays), k):
        for name in names(plays[i]):
            groups[name].append(plays[i:i + k])
    for name, own in groups.items():
        every = [play for group in own for play in group]
        (success, stderr), (score, score_stderr) = (mean_and_error(
            [sum(p[x] for p in group) / k for group in own]) for x in ("success", "score"))
        turns = sum(p["turns"] for p in every)
        figures[name] = dict(
            n=len(own), success=success, stderr=stderr,
            passed=sum(any(p["success"] for p in group) for group in own) / len(own),
            score=score, score_stderr=score_stderr, turns=turns / len(every),
            tokens=sum(math.nan if p["tokens"].get("untold") else
                       p["tokens"].get("completion", math.nan) for p in every) / len(every),
            valid=sum(math.nan if p["valid"] is None else p["valid"] for p in every) / turns
            if turns else math.nan)
    return figures


def rows_of(cfg, worlds, plays, missing):
    """The table, a dict for each row: of each environment "all", its families if several were
    played, and the built-in players on the same tasks; what is missing, and why; the means of
    several environments. plays: all, by environment and task."""
    modules, rows = {world.module.NAME: world.module for world in worlds}, []
    figures = summarise(plays, cfg.k, lambda p: [
        (p["env"], "all"), (p["env"], modules[p["env"]].family(p["task_id"])), ("mean", "tasks")])
    for world in worlds:
        module, env, turns = world.module, world.module.NAME, world.most_turns
        tasks = [p["task_id"] for p in plays[::cfg.k] if p["env"] == env]
        if not tasks:
            missing = missing | {env: "none of its tasks could be played"}
            continue
        every, exact = figures[env, "all"], hasattr(module, "exact_success")
        rows.append(dict(env=env, row="all", title=f"{env}, {turns} turns", **every))
        families = [name for name in module.FAMILIES if (env, name) in figures]
        rows += [dict(env=env, row=name, title=f"  {name}", **figures[env, name])
                 for name in families if len(families) > 1]
        whose = ", our local game" * bool(world.client and world.client.original)
        for player in ("random", "expert"):
            rate, error = (every["success"], every["stderr"]) if player == cfg.policy and \
                not exact else builtin_rate(module, player, progress(
                    tasks, f"{player} player, {env}"), turns, (cfg.seed, 0))
            rows.append(dict(env=env, row=f"{player} player", n=len(tasks), success=rate,
                             title=f"  {player} player{whose}{' (exact)' * exact}", stderr=error))
    rows += [dict(env=env, row="missing", title=f"{env}: {why.removeprefix(f'{env}: ')}")
             for env, why in sorted(missing.items())]
    rates, errors = zip(*((row["success"], row["stderr"]) for row in rows if row["row"] == "all"))
    if (count := len(rates)) > 1:
        rows.append(dict(env="mean", row="environments", title="mean over environments", n=count,
                         success=sum(rates) / count, stderr=math.hypot(*errors) / count))
        rows.append({x: figures["mean", "tasks"][x] for x in ("n", "success", "stderr")}
                    | dict(env="mean", row="tasks", title="mean over tasks"))
    return rows


def table(rows, k):
    """The rows as text; "-" where a figure is not defined."""
    width = max(len(row["title"]) for row in rows if row["row"] != "missing")
    lines = [f"{'':{width}} {'n':>5} {'success':>8} {'± se':>6} {f'Pass@{k}':>7} {'score':>8} "
             f"{'± se':>7} {'turns':>5} {'tokens':>6} {'valid':>5}"]
    for row in rows:
        f = defaultdict(lambda: math.nan, row)
        lines.append(f["title"] if f["row"] == "missing" else
                     f"{f['title']:{width}} {f['n']:5d} {f['success']:8.1%} {f['stderr']:6.1%} "
                     f"{f['passed']:7.1%} {f['score']:8.3f} {f['score_stderr']:7.3f} "
                     f"{f['turns']:5.1f} {f['tokens']:6.0f} {f['valid']:5.0%}")
    return re.sub(r"\bnan%?", lambda found: "-".rjust(len(found[0])), "\n".join(lines))


def check(cfg):
    """ValueError: flags that do not go together."""
    if bool(cfg.api_base) != bool(cfg.api_model) or \
            [cfg.policy, cfg.model, cfg.api_model].count("") != 2:
        raise ValueError("give --model FOLDER_OR_ID, or --policy random or expert, or --api-base "
                         "URL and --api-model NAME")
    if cfg.resume and not cfg.path:
        raise ValueError("--resume: give --out FOLDER, where the evaluation was begun")


def run(cfg):
    """Play, print the table, keep it in the folder -> what results.json holds. ValueError: what
    cannot be played."""
    check(cfg)
    began = time.perf_counter()
    modules, asked, missing = envs_asked_for(cfg)
    families, policy = families_of(modules, cfg.families), load(cfg)
    notes, tasks = [], []
    with nullcontext() if cfg.policy else connected(cfg.env_url, modules) as clients:
        worlds = open_worlds(policy, cfg.model, modules, clients, cfg) if clients else \
            [World(None, Agent(None, module=module)) for module in modules]
        for world, own in zip(worlds, families):
            name = world.module.NAME
            n, world.most_turns = asked[name]       # `collect` gets no other horizon
            ids = suite_tasks(world.module, n, world.known) if cfg.suite else \
                choose_tasks(world.module, cfg.split, n, own, world.known)
            tasks += [(world, task) for task in sorted(ids)]
            if len(ids) < n:
                notes.append(f"{name}: {len(ids)} tasks, all there are of the {n} asked for")
        lines = "".join(f"{world.module.NAME} {task}\n" for world, task in tasks)
        digest = hashlib.sha256(lines.encode()).hexdigest()[:12]
        was = read_json(os.path.join(cfg.path, "config.json"), {}) if cfg.resume else {}
        if was.get("tasks", digest) != digest:
            raise ValueError(f"--resume: {cfg.path} was begun with other tasks; give another --out")
        folder = open_folder(cfg.path, cfg, tasks=digest) if cfg.path else ""
        plays = kept_plays(folder, cfg.k) if folder else []
        play(cfg, policy, tasks, folder, plays)
    if not plays:
        raise EnvError("; ".join([f"{cfg.suite or cfg.env}: no task could be played",
                                  *(f"{env}: {why}" for env, why in missing.items())]))
    plays.sort(key=lambda p: (p["env"], p["task_id"], p["member"]))
    rows = rows_of(cfg, worlds, plays, missing)
    notes += notes_on(cfg, plays, len(tasks) - len(plays) // cfg.k)
    print(f"{cfg.suite or cfg.env}, {cfg.split} split, {cfg.player}, temperature "
          f"{cfg.temperature:g}, seed {cfg.seed}; {len(tasks)} tasks, list {digest}\nsuccess: the "
          "final score reaches the environment's threshold; score: the environment's own, at the "
          "end", *notes, table(rows, cfg.k), sep="\n")
    results = with_nulls(dict(tasks=digest, rows=rows, notes=notes,
                              seconds=time.perf_counter() - began))
    if folder:
        write_json(os.path.join(folder, "results.json"), results)
    return results


def notes_on(cfg, plays, dropped):
    """What has to be said above the table, as sentences."""
    notes, silent = [], sum(p["turns"] == 0 for p in plays)
    if dropped:
        notes.append(f"{dropped} tasks could not be played and are left out")
    if silent:
        notes.append(f"{silent} of {len(plays)} episodes had no turn and count as failures: their "
                     f"prompt and a reply of {cfg.max_turn_tokens} exceed --max-context "
                     f"{cfg.max_context} tokens")
    if cfg.api_base:
        told = sum((Counter(p["tokens"]) for p in plays), Counter())
        notes.append(f"tokens: {told['prompt']} of prompts, {told['completion']} of replies; "
                     f"{told['untold']} answers of the API did not tell theirs")
    return notes


# ---- flags --------------------------------------------------------------------------------------

MAY_CHANGE = {"out", "resume", "concurrency"} | {f.name for f in fields(Plays)}


def preset(given):
    """What flags leave open: how a model speaks; what an evaluation to be resumed was begun with.
    ValueError."""
    settings = model_settings(given["model"]) if given.get("model") else \
        CHAT_MODEL if given.get("api_base") else {}
    speaks = part_of(settings, Speaks)
    if not given.get("resume"):
        return speaks
    was = begun(Config(**given).path, given, {f.name for f in fields(Config)} - MAY_CHANGE)
    return speaks | {name: x for name, x in was.items() if name != "tasks"}


def main():
    with one_sentence("eval.py"):
        cfg = parse_flags(Config, description=__doc__, preset=preset)
        run(cfg)


if __name__ == "__main__":
    main()
