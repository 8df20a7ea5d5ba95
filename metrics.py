"""metrics: what is watched: the step's figures, the probe, the log line, the final table, pictures.

train.py calls `record` after each step, agentevol.py `record_iteration`, both `report` at the end;
nothing here changes what is learned. docs/metrics.md says of each of train.py's figures what it is
and when it is healthy.
"""
import functools
import json
import math
import os
import random
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict

import torch

import run as runs
import algos
import parallel
from curriculum import choose_tasks
from engine import kv_shape, machine_rates
from chat import HISTORY, assistant, said
from rollout import Trajectory, to_batch

EVALUATION = 987_654_321      # stands for (step, wave) in the key of a held-out episode


# ---- players to compare with --------------------------------------------------------------------

def mean_and_error(values):
    """Mean, and its standard error sqrt(var / n) with Bessel's correction; nan where undefined."""
    n = len(values)
    mean = sum(values) / n if n else math.nan
    if n < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)


def play_builtin(module, player, task_id, horizon, seed=0, stream=None):
    """One episode of the "random" or the "expert" player -> (Trajectory without tokens, messages).
    seed: of the random player's actions; stream: of the environment's luck, see envs.Base.reset."""
    env, rng = module.Env(), random.Random(f"{seed} {task_id}")
    messages = said("user", env.reset(task_id, stream))
    played = Trajectory(task_id, env=module.NAME)
    while not played.done and len(played.turns) < horizon:
        action = env.expert()[1] if player == "expert" else env.random_action(rng)
        observation, reward, played.done, info = env.step(action)
        played.add_action([], [])
        played.turns[-1].reward, played.turns[-1].valid = float(reward), info.get("valid", True)
        played.success, played.score = bool(info["success"]), float(info["score"])
        messages += [assistant(action), *said("user", observation)]
    env.close()
    return played, messages


def builtin_rate(module, player, tasks, horizon, seed=0):
    """-> (success rate, standard error): exact where the environment can be solved, else played."""
    if hasattr(module, "exact_success"):
        rates = [module.exact_success(t, player, horizon) for t in tasks]
        return sum(rates) / len(rates), 0.0
    successes = []
    for task in tasks:
        with suppress(RuntimeError):        # of the engine: a task that it refuses is left out
            successes.append(play_builtin(module, player, task, horizon, seed)[0].success)
    return mean_and_error(successes)


@functools.cache
def random_rate(module, known, horizon):
    """The random player's success on 200 of these training tasks, a frozenset, at this horizon:
    without it no success curve means anything."""
    tasks = choose_tasks(module, "train", 200, only=known)
    return builtin_rate(module, "random", tasks, horizon)[0]


def player_rate(player, tasks, horizon):
    """`builtin_rate` on the tasks [(World, id)] of several environments -> {"success", "stderr",
    "n", "envs"}, as `held_out` has them."""
    ids = defaultdict(list)
    for world, task in tasks:
        ids[world].append(task)
    rates = [(len(own) / len(tasks), *builtin_rate(world.module, player, own,
                                                   min(horizon, world.most_turns)))
             for world, own in ids.items()]
    return dict(success=sum(share * rate for share, rate, _ in rates), n=len(tasks),
                stderr=math.hypot(*(share * error for share, _, error in rates)),
                envs={world.module.NAME: rate for world, (_, rate, _) in zip(ids, rates)})


def players(run):
    """{"random", "expert": `player_rate` on the held-out tasks}, found once in a run."""
    run.notes.players = run.notes.players or {
        who: player_rate(who, run.eval_tasks, run.cfg.horizons[-1]) for who in ("random", "expert")}
    return run.notes.players


# ---- held-out tasks -----------------------------------------------------------------------------

def held_out(run, temperature, policy=None):
    """Success on held-out tasks at the last horizon -> {"success", "stderr", "n", "unseen",
    "unseen_n", "envs"}: unseen, of the tasks whose goal no training task has; envs, the success in
    each environment. Every evaluation of a run draws the same random numbers."""
    heated = {world: world.at_temperature(temperature) for world in run.worlds}
    played, _ = parallel.play_tasks(
        run, policy or run.policy, [(heated[world], task) for world, task in run.eval_tasks], 1,
        run.cfg.horizons[-1], (run.cfg.seed, EVALUATION))
    success, error = mean_and_error([t.success for t in played])
    new = {world.module.NAME: getattr(world.module, "unseen_goal", lambda task_id: False)
           for world in run.worlds}
    unseen = [t.success for t in played if new[t.env](t.task_id)]
    return dict(success=success, stderr=error, n=len(played), unseen=mean_and_error(unseen)[0],
                unseen_n=len(unseen), envs=by_env(played, "success"))


def by_env(played, name):
    """{environment: the mean of this figure over its trajectories}."""
    return {env: mean_and_error([getattr(t, name) for t in played if t.env == env])[0]
            for env in sorted({t.env for t in played})}


def sampled_and_greedy(run, policy=None):
    """held_out at T=1 and at T=0."""
    sampled, greedy = (held_out(run, temperature, policy) for temperature in (1.0, 0.0))
    parallel.say(f"held out: {sampled['success']:.1%} at T=1, {greedy['success']:.1%} greedy")
    return dict(sampled=sampled, greedy=greedy)


def expected_minutes(run, seconds):
    """Minutes of RL with its evaluations, guessed from the seconds of the first two; learning from
    an episode takes half as long again as playing it, as measured on the default run."""
    cfg = run.cfg
    evaluations = 2 + (cfg.steps - 1) // cfg.eval_every if cfg.eval_every else 2
    episodes = 1.5 * cfg.steps * cfg.tasks_per_step * cfg.group_size
    return seconds * (evaluations / 2 + episodes / (2 * len(run.eval_tasks))) / 60


# ---- one step -----------------------------------------------------------------------------------

rates = functools.cache(machine_rates)      # measured when the first step is recorded


def record(run, horizon, played, batch, stats, figures, seconds):
    """Add the step's line to run.history and metrics.jsonl, print it, name new warnings."""
    cfg = run.cfg
    line = measure(run, horizon, played, batch, stats, figures, seconds)
    if cfg.probe_every and run.step % cfg.probe_every == 0:
        line |= probe(run, played)
    remember(run, line)
    parallel.say(log_line(line))
    if run.step % cfg.sample_every == 0:
        write_samples(run, played)
        parallel.say(where_time_went(run, line))
    for signal, sentence in algos.collapse_warnings(run.history):
        if signal not in {name for _, name, _ in run.notes.warnings}:
            run.notes.warnings.append((run.step, signal, sentence))
            parallel.say(f"WARNING at step {run.step}: {sentence}")


def record_iteration(run, explored, kept, stats, held, seconds):
    """The same for an iteration of AgentEvol. held: what `held_out` found; seconds: without it."""
    line = dict(
        step=run.step, explored=len(explored), kept=len(kept), dropped=stats.dropped,
        success=mean_and_error([t.success for t in explored])[0], seconds=seconds,
        random=players(run)["random"]["success"],
        held_out=held["success"], held_out_stderr=held["stderr"],
        **{f"held_out_{env}": rate for env, rate in held["envs"].items()})
    remember(run, line)
    write_samples(run, explored)
    parallel.say(f"iteration {run.step + 1} | explored {len(explored)} | success "
                 f"{line['success']:.0%} | kept {len(kept)}"
                 f"{'' if kept else ': no success among them'} | held out "
                 f"{held['success']:.1%} ± {held['stderr']:.1%} | {seconds:.0f} s | dropped "
                 f"{stats.dropped}")


def remember(run, line):
    """Add a line of metrics to run.history and to metrics.jsonl, there with null for not finite."""
    run.history.append(line)
    numbers = {k: v if math.isfinite(v) else None for k, v in line.items()}
    append(run, "metrics.jsonl", json.dumps(numbers) + "\n")


def append(run, name, text):
    """Add text to a file of the run's folder. What a killed run wrote after its last checkpoint is
    played again, so it is cut off."""
    if parallel.rank() == 0:
        with open(os.path.join(run.cfg.folder, name), "a") as file:
            file.truncate(min(file.tell(), run.notes.written.get(name, 0)))
            file.write(text)
            run.notes.written[name] = file.tell()


def measure(run, horizon, played, batch, stats, figures, seconds):
    """The step's line of metrics, {name: number}: the panel on which a dying run shows first."""
    rewards = torch.tensor([t.reward for t in played])
    spread = algos.group_std(rewards, run.cfg.group_size)
    std = spread.mean().item()
    first_stds = [line["reward_std"] for line in run.history[:5]] or [std]
    turns = [turn for t in played for turn in t.turns]
    sampled = [t.token_ids[turn.start:turn.end] for t in played for turn in t.turns]
    return dict(
        step=run.step, horizon=horizon,
        random=sum(random_rate(world.module, frozenset(tasks), min(horizon, world.most_turns))
                   * sum(t.env == world.module.NAME for t in played) / len(played)
                   for world, tasks in run.tasks.items()),
        reward=rewards.mean().item(), success=sum(t.success for t in played) / len(played),
        reward_std=std, reward_std_share=std / max(sum(first_stds) / len(first_stds), 1e-9),
        constant_groups=(spread <= 1e-6).float().mean().item(),
        valid=mean_and_error([t.valid for t in turns if t.valid is not None])[0],   # NaN: none
        turns=len(turns) / len(played), cut_thoughts=sum(t.cut for t in turns) / max(len(turns), 1),
        response_length=sum(map(len, sampled)) / max(len(sampled), 1),
        distinct_3gram=algos.distinct_ngrams(sampled),
        truncated=sum(bool(t.truncated) for t in played) / len(played),
        masked=(batch.weights[batch.response_mask] == 0).float().mean().item() if batch else 0.0,
        trajectories=len(played), trained=len(batch.rewards) if batch else 0,
        dropped=stats.dropped, **asdict(figures), **kl_to_start(batch),
        pages=stats.pages, preempted=stats.preempted,
        **speeds(run, played, batch, stats, seconds),
        **{f"{name}_{env}": value for name in ("success", "reward") if len(run.worlds) > 1
           for env, value in by_env(played, name).items()})


def speeds(run, played, batch, stats, seconds):
    """Seconds (of a phase: mean over the ranks), tokens/s of all ranks, and shares of what the
    machine can do (`machine_rates`).

    decode_bandwidth_share: bytes read, (weights once a decode step + keys and values of all cached
    tokens), over seconds of decoding and sampling, over the rate of a large copy.
    update_flop_share: FLOP, 6 per weight (frozen: 4) and trained token + 6 * layers * width *
    length^2 of each row for causal attention, over seconds, over the rate of a large matrix product
    """
    config, number_bytes = run.policy.config, run.policy.compute_dtype.itemsize
    weights = sum(p.numel() for p in run.policy.parameters())
    trained = sum(p.numel() for p in run.policy.parameters() if p.requires_grad)
    layers, kv_heads, head_dim = kv_shape(config)
    flops, bandwidth = rates(run.device, run.policy.compute_dtype)
    updating = seconds - stats.seconds["rollout"]
    read = number_bytes * (stats.tokens["decode_steps"] * weights
                           + stats.tokens["decode_read"] * 2 * layers * kv_heads * head_dim)
    forwarded = stats.tokens["prefill"] + stats.tokens["decode"]
    decoding = stats.seconds["decode"] + stats.seconds["sampling"]
    figures = dict(
        {f"seconds_{phase}": stats.seconds[phase] / parallel.world()
         for phase in ("prefill", "decode", "sampling", "environment")},
        seconds=seconds, seconds_rollout=stats.seconds["rollout"], seconds_update=updating,
        tokens_per_second=sum(len(t.token_ids) for t in played) / seconds,
        rollout_tokens=forwarded,
        decode_bandwidth_share=read / max(decoding, 1e-9) / bandwidth,
        rollout_tokens_per_second=forwarded / stats.seconds["rollout"])
    if batch:
        lengths, passes = (batch.token_ids >= 0).sum(1).double(), run.cfg.epochs * run.cfg.reuse
        flop = passes * ((4 * weights + 2 * trained) * lengths.sum()
                         + 6 * layers * config.hidden_size * (lengths ** 2).sum()).item()
        figures |= dict(update_flop_share=flop / parallel.world() / updating / flops,
                        update_tokens_per_second=passes * lengths.sum().item() / updating)
    return figures


def describe(run):
    """Say what is trained where."""
    policy, size = run.policy, sum(p.numel() for p in run.policy.parameters()) / 1e6
    parallel.say(f"{run.cfg.folder}: {size:.2f}M parameters on {run.device} x {parallel.world()}, "
                 f"attention {policy.kernel} ({policy.kernel_reason})"
                 + f", going on at step {run.step}" * (run.step > 0)
                 + f"\nhistory {run.cfg.history}: {HISTORY[run.cfg.history]}")


def log_line(m):
    """The line of metrics `m` as one aligned line of text, for a person."""
    valid = "-" if math.isnan(m["valid"]) else f"{m['valid']:.0%}"
    return (f"step {m['step']:4d} | horizon {m['horizon']:2d} | reward {m['reward']:5.2f} | "
            f"success {m['success']:4.0%} (random {m['random']:.0%}) | std {m['reward_std']:.2f} | "
            f"turns {m['turns']:4.1f} | valid {valid:>4} | entropy {m['entropy']:.2f} | "
            f"kl {m['kl']:.4f} | mismatch {m['mismatch']:.0e} | clipped {m['clipped']:3.0%} | "
            f"grad {m['grad_norm']:5.2f} | {m['tokens_per_second']:6.0f} tok/s | "
            f"dropped {m['dropped']}" + f" | skipped {m['skipped']}" * (m["skipped"] > 0)
            + f" | masked {m['masked']:.0%}" * (m["masked"] > 0)
            + f" | cut in thoughts {m['cut_thoughts']:.0%}" * (m["cut_thoughts"] > 0))


def where_time_went(run, m):
    """Shares of the step's seconds, and speeds beside what this machine can do, as text."""
    flops, bandwidth = rates(run.device, run.policy.compute_dtype)
    shares = "  ".join(f"{phase} {m[f'seconds_{phase}'] / m['seconds']:.0%}" for phase in
                       ("prefill", "decode", "sampling", "environment", "update"))
    return (f"     time: {shares} | {m['pages']} pages | rollout "
            f"{m['rollout_tokens_per_second']:.0f} tok/s, decode at "
            f"{m['decode_bandwidth_share']:.0%} of {bandwidth / 1e9:.0f} GB/s | update "
            f"{m.get('update_tokens_per_second', 0):.0f} tok/s, at "
            f"{m.get('update_flop_share', 0):.0%} of {flops / 1e9:.0f} GFLOP/s")


def write_samples(run, trajectories):
    """A few episodes as text, the trained tokens marked: most failures show here first."""
    tokenizer = run.worlds[0].agent.tokenizer
    append(run, "samples.txt", "".join(f"---- step {run.step} ----\n{t.text(tokenizer)}\n"
                                       for t in trajectories[:2]))


# ---- the probe ----------------------------------------------------------------------------------

@torch.no_grad()
def probe(run, trajectories):
    """How far do first replies depend on their prompts, and how far has the policy moved?

    Mutual information and retrieval accuracy (RAGEN-2, arXiv:2604.06268) from 32 replies under 16
    prompts; k3 to the starting policy, whose weights are read from disk for this and dropped again.
    """
    firsts = [(tuple(t.token_ids[:t.turns[0].start]), t.token_ids[t.turns[0].start:t.turns[0].end])
              for t in trajectories if t.turns]
    prompts = list(dict.fromkeys(prompt for prompt, _ in firsts))[:16]
    replies = [(reply, prompts.index(prompt)) for prompt, reply in firsts if prompt in prompts]
    replies = replies[::max(1, len(replies) // 32)][:32]
    pairs = to_batch([pair(prompt, reply) for reply, _ in replies for prompt in prompts],
                     run.device)
    scores = parallel.logprobs_under(run, run.policy, pairs).sum(1)
    scores = scores.view(len(replies), len(prompts)).cpu()
    own = torch.tensor([column for _, column in replies])
    figures = dict(mutual_information=algos.mutual_information(scores, own),
                   retrieval_accuracy=algos.retrieval_accuracy(scores, own),
                   retrieval_chance=1 / len(prompts))
    if not run.cfg.kl_coef:             # with it, the KL to the start is measured every step
        batch = to_batch(trajectories[:64], run.device)
        start = run.reference or parallel.load(run.start_model, run.device, run.cfg, frozen=True)
        batch.ref_logprobs = parallel.logprobs_under(run, start, batch)
        figures |= kl_to_start(batch)
    return figures


def pair(prompt, reply):
    """A prompt and a reply to it (token ids) as a Trajectory of one turn."""
    trajectory = Trajectory()
    trajectory.begin_context(list(prompt))
    trajectory.add_action(reply, [0.0] * len(reply))
    return trajectory


def kl_to_start(batch):
    """k3 of the sampling policy to the one that training began with, where that is at hand."""
    if batch is None or batch.ref_logprobs is None:
        return {}
    mask = batch.response_mask
    return dict(kl_start=algos.kl_k3(batch.old_logprobs[mask], batch.ref_logprobs[mask])
                .mean().item())


# ---- the end ------------------------------------------------------------------------------------

def report(run):
    """The table at the end, result.json and curve.png."""
    cfg, notes, seconds = run.cfg, run.notes, time.perf_counter() - run.began
    local = ", our local game" * run.worlds[0].client.original
    result = dict(env=cfg.env, algo=cfg.algo, seed=cfg.seed, seconds=round(seconds, 1),
                  steps=run.step, rl_seconds=round(run.rl_seconds, 1), warnings=notes.warnings)
    lines = [f"held-out tasks of {cfg.env}, horizon {cfg.horizons[-1]}, seed {cfg.seed}, "
             f"{run.step} steps of {cfg.algo}, {seconds:.0f} s in all",
             f"{'success':32} {'T=1':>7} {'± se':>6} {'greedy':>7} {'n':>4}"]
    for key, title, rate in (("before", "before", notes.before),
                             ("after", f"after {cfg.algo}", notes.after),
                             ("control", "control: more cloning instead", notes.control)):
        if rate:
            s, g = rate["sampled"], rate["greedy"]
            result[key] = dict(sampled=s["success"], greedy=g["success"], stderr=s["stderr"],
                               n=s["n"], envs=s["envs"])
            lines.append(row(title, s, f"{g['success']:.1%}"))
            if s["unseen_n"]:
                result.setdefault("unseen_goals", {})[key] = dict(
                    sampled=s["unseen"], greedy=g["unseen"], n=s["unseen_n"])
                lines[-1] += (f"   goals never trained on{local}: T=1 {s['unseen']:.1%}, greedy "
                              f"{g['unseen']:.1%} (n {s['unseen_n']})")
    for who, rate in players(run).items():
        result[who] = rate["success"]
        lines.append(row(f"{who} player{local}", rate))
    before, after = result["before"], result["after"]
    result["curve"] = [(0, before["sampled"], before["envs"]),
                       *(point for point in notes.curve if point[0] < run.step),
                       (run.step, after["sampled"], after["envs"])]
    if parallel.rank() == 0:
        runs.write_json(os.path.join(cfg.folder, "result.json"), result)
        draw(run, result)
    parallel.say("\n".join([*lines, f"{cfg.folder}: result.json, metrics.jsonl, samples.txt, "
                                    f"curve.png, step_{run.step}/"]))


def row(title, rate, greedy=""):
    """A row of the table, with the success in each environment if there are several."""
    envs = ", ".join(f"{env} {success:.1%}" for env, success in rate["envs"].items())
    return (f"{title:32} {rate['success']:7.1%} {rate['stderr']:6.1%} {greedy:>7} {rate['n']:4d}"
            + f"   {envs}" * (len(rate["envs"]) > 1))


def draw(run, result):
    """curve.png: success while training, on held-out tasks, and the lines to judge them by."""
    from matplotlib.figure import Figure
    cfg, figure = run.cfg, Figure((9, 4), dpi=120, layout="tight")
    axes = figure.subplots()
    steps = [line["step"] + 1 for line in run.history]
    axes.plot(steps, [line["success"] for line in run.history], color="0.75", lw=1,
              label="training tasks")
    before, after, curve = result["before"], result["after"], result["curve"]
    evaluated, successes, by_envs = zip(*curve)
    axes.plot(evaluated, successes, "o-", color="C0", lw=2, label="held-out tasks, T=1")
    for i, env in enumerate(after["envs"]) if len(run.worlds) > 1 else ():
        axes.plot(evaluated, [envs.get(env) for envs in by_envs], f"C{4 + i}", lw=1, label=env)
    axes.plot([0, run.step], [before["greedy"], after["greedy"]], "^--", color="C0",
              label="held-out tasks, greedy")
    if "control" in result:
        axes.axhline(result["control"]["sampled"], color="C1", ls="--",
                     label="control: more cloning instead, T=1")
    axes.plot(steps, [line["random"] for line in run.history], color="C3", ls=":",
              label="random player")
    axes.axhline(result["expert"], color="C2", ls=":", label="expert")
    axes.set(xlabel=f"steps of {cfg.algo}", ylabel="success", ylim=(0, 1.04),
             title=f"{cfg.env}, seed {cfg.seed}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(os.path.join(cfg.folder, "curve.png"))
