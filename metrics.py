"""metrics: what is watched: a step's figures, the log line, samples, warnings, the final table.

train.py calls `record` after each step, agentevol.py `record_iteration`; nothing here changes what
is learned. docs/metrics.md says of each figure what it is and when it is healthy.
"""
from collections import defaultdict
from dataclasses import replace
import parallel
import rollout
from envs.parts.players import mean_and_error, player_rate
import json
import os
import sys
import time

import torch

import algos
import report
from batch import on_all_rows, to_batch
from envs import load_env
from panel import collapse_warnings
from run import last_checkpoint, with_nulls, write_json

MOST_PARTS = 6                # families or environments that are told one by one


# ---- held-out tasks -----------------------------------------------------------------------------


def evaluate(run):
    """Measure the policy as it is after run.step steps, for the table and the page."""
    run.evaluations.append((run.step, greedy_and_sampled(run)))
    write_results(run)


# ---- one step -----------------------------------------------------------------------------------

def record(run, horizon, played, kept, batch, stats, figures, seconds):
    """Add the step's line to run.history and metrics.jsonl, print it, name new warnings. Every
    eval_every steps, from the first on, keep some episodes that it trained on (if none: played)."""
    line = measure(run, horizon, played, batch, stats, figures, seconds)
    run.history.append(line)
    append(run, "metrics.jsonl", [line])
    parallel.say(log_line(line))
    if run.cfg.eval_every and run.step % run.cfg.eval_every == 0:
        write_samples(run, run.step, "train", kept if batch else played, run.cfg.group_size,
                      run.cfg.temperature, batch)
    if run.step == 0:
        total = time.perf_counter() - run.began + 1.1 * (run.cfg.steps - 1) * seconds
        parallel.say(f"the whole run takes about {total / 60:.1f} minutes")     # evaluations: 10%
    for signal, sentence in collapse_warnings(run.history):
        if signal not in {name for _, name, _ in run.warnings}:
            last = last_checkpoint(run.folder) or run.start_model
            run.warnings.append((run.step, signal, f"{sentence} Go on at a third of the rate: "
                                 f"--lr {run.cfg.lr / 3:.2g} --model {last}"))
            parallel.say("WARNING at step {0}: {2}".format(*run.warnings[-1]))


def record_iteration(run, explored, kept, stats, seconds):
    """The same for an iteration of AgentEvol. seconds: without its """
    line = dict(
        step=run.step - 1, explored=len(explored), kept=len(kept), dropped=stats.dropped,
        success=mean_and_error([t.success for t in explored])[0], seconds=seconds,
        random=players(run)["random"]["success"])
    run.history.append(line)
    append(run, "metrics.jsonl", [line])
    write_samples(run, line["step"], "train", explored, 1, run.cfg.temperature)
    parallel.say(f"iteration {run.step} | explored {len(explored)} | success "
                 f"{line['success']:.1%} | kept {len(kept)} | {seconds:.0f} s"
                 + f" | dropped {stats.dropped}" * (stats.dropped > 0))


def append(run, name, lines):
    """Add lines of JSON to a file of the run's folder, null for numbers that are not finite. What
    a killed run wrote after its last checkpoint is played again, so it is cut off."""
    if parallel.rank() == 0:
        with open(os.path.join(run.folder, name), "a") as file:
            file.truncate(min(file.tell(), run.written.get(name, 0)))
            file.writelines(json.dumps(with_nulls(line)) + "\n" for line in lines)
            run.written[name] = file.tell()


def measure(run, horizon, played, batch, stats, figures, seconds):
    """A step's figures, {name: number}: docs/metrics.md has a row for each."""
    rewards = torch.tensor([t.reward for t in played])
    spread = algos.group_std(rewards, run.cfg.group_size)
    turns = [turn for t in played for turn in t.turns]
    sampled = [t.token_ids[turn.start:turn.end] for t in played for turn in t.turns]
    return dict(
        step=run.step, horizon=horizon, random=players(run)["random"]["success"],
        reward=rewards.mean().item(), success=sum(t.success for t in played) / len(played),
        reward_std=spread.mean().item(), constant_groups=(spread <= 1e-6).float().mean().item(),
        valid=mean_and_error([t.valid for t in turns if t.valid is not None])[0],   # NaN: none
        turns=len(turns) / len(played), cut_thoughts=sum(t.cut for t in turns) / max(len(turns), 1),
        response_length=sum(map(len, sampled)) / max(len(sampled), 1),
        distinct_3gram=distinct_ngrams(sampled),
        truncated=sum(bool(t.truncated) for t in played) / len(played),
        out_of_context=sum(t.truncated == "context" for t in played) / len(played),
        trajectories=len(played), dropped=stats.dropped, **figures, **of_batch(batch),
        pages=stats.pages, preempted=stats.preempted,
        **speeds(played, batch, stats, seconds, run.cfg.epochs),
        **{f"{name}_{env}": value for name in ("success", "reward") if len(run.worlds) > 1
           for env, value in means(played, name, lambda t: t.env).items()})


def speeds(played, batch, stats, seconds, passes):
    """Seconds (of a phase: mean over the ranks) and tokens/s of all ranks. passes: of the update
    over the batch."""
    updating = seconds - stats.seconds["rollout"]
    forwarded = stats.tokens["prefill"] + stats.tokens["decode"]
    trained = passes * int((batch.token_ids >= 0).sum()) if batch else 0
    return dict(
        {f"seconds_{phase}": stats.seconds[phase] / parallel.world_size()
         for phase in ("prefill", "decode", "sampling", "environment")},
        seconds=seconds, seconds_rollout=stats.seconds["rollout"], seconds_update=updating,
        tokens_per_second=sum(len(t.token_ids) for t in played) / seconds, rollout_tokens=forwarded,
        rollout_tokens_per_second=forwarded / stats.seconds["rollout"],
        update_tokens_per_second=trained / updating)


def describe(run):
    """Say what is trained where."""
    policy, size = run.policy, sum(p.numel() for p in run.policy.parameters()) / 1e6
    parallel.say(f"{size:.2f}M parameters on {policy.device} x {parallel.world_size()}, attention "
                 f"{policy.kernel} ({policy.kernel_reason})"
                 + f", going on at step {run.step}" * (run.step > 0))


def log_line(m):
    """The line of metrics `m` for a person: what is rare stands in a second line."""
    rare = [f"{name} {m[name]:{form}}" for name, form in (
        ("dropped", "d"), ("skipped", "d"), ("preempted", "d"), ("masked", ".0%"),
        ("cut_thoughts", ".0%")) if m[name] > 0]
    rare += [f"valid {m['valid']:.0%}"] * (m["valid"] < 0.5) + [f"kl {m['kl']:.2f}"] * (
        m["kl"] > 0.05)
    return (f"step {m['step']:4d} | turns {m['turns']:4.1f} of {m['horizon']} | reward "
            f"{m['reward']:5.2f} | success {m['success']:4.0%} (random {m['random']:.0%}) "
            f"| entropy {m['entropy']:.2f} | {m['tokens_per_second']:.0f} tok/s"
            + f"\n          {', '.join(rare)}" * bool(rare))


def write_samples(run, step, split, trajectories, group_size, temperature, batch=None):
    """Add 16 episodes to samples.jsonl, or two whole groups, with what their batch holds of each
    token, the ratio pi / pi_old and the entropy of pi, the policy as it now is."""
    count, firsts = max(2, 16 // group_size), range(0, len(trajectories), group_size)
    rows = [row for first in firsts[::max(1, len(firsts) // count)][:count]
            for row in range(first, first + group_size) if trajectories[row].turns]
    if not rows:
        return
    picked = [trajectories[row] for row in rows]
    batch = batch.rows(rows) if batch else to_batch(picked, run.policy.device)
    logprobs, batch.entropies = on_all_rows(run.policy.action_logprobs, batch,
                                            run.cfg.micro_tokens, temperature or 1, "watched")
    batch.ratios = (logprobs - batch.old_logprobs).exp()
    columns = {name: x.double().round(decimals=3) for name, x in vars(batch).items()
               if x is not None and x.shape == logprobs.shape and x.dtype != torch.int64}
    append(run, "samples.jsonl", [
        dict(step=step, split=split, family=load_env(t.env).family(t.task_id))
        | report.sample_of(t, run.worlds[0].agent.tokenizer)
        | {name: x[row, :len(t.token_ids)].tolist() for name, x in columns.items()}
        for row, t in enumerate(picked)])


def of_batch(batch):
    """Of the sampled tokens: mean, standard deviation and share of zeros of their advantages; the
    share whose weight is 0; k3 of the sampling policy to the one that RL began with, if that is at
    hand. None: nothing was trained on."""
    if batch is None:
        return dict(trained=0, masked=0.0)
    mask = batch.response_mask
    advantages = batch.advantages[mask]
    figures = dict(advantage_mean=advantages.mean(), advantage_std=advantages.std(),
                   advantage_zeros=(advantages == 0).float().mean(),
                   masked=(batch.weights[mask] == 0).float().mean())
    if batch.ref_logprobs is not None:
        figures["kl_start"] = algos.kl_k3(batch.old_logprobs[mask], batch.ref_logprobs[mask]).mean()
    return dict(trained=len(batch.rewards)) | {name: x.item() for name, x in figures.items()}


# ---- the end ------------------------------------------------------------------------------------

def write_results(run):
    """result.json, as far as the run has come, and its page -> what result.json holds."""
    result = with_nulls(dict(
        env=run.cfg.env, algo=run.cfg.algo, seed=run.cfg.seed, steps=run.step,
        seconds=round(time.perf_counter() - run.began, 1), rl_seconds=round(run.rl_seconds, 1),
        command=sys.argv, warnings=run.warnings, players=players(run),
        evaluations=run.evaluations, control=run.control))
    if parallel.rank() == 0:
        write_json(os.path.join(run.folder, "result.json"), result)
        report.write(run.folder)
    return result


def final_table(run):
    """The table at the end, result.json and the page."""
    cfg, result = run.cfg, write_results(run)
    local = ", our local game" * hasattr(run.worlds[0].module, "Served")
    lines = [f"held-out tasks of {cfg.env}, horizon {cfg.horizons[-1]}, seed {cfg.seed}, "
             f"{run.step} steps of {cfg.algo}, {result['seconds']:.0f} s in all",
             f"{'success':32} {'greedy':>7} {'± se':>6} {'T=1':>7} {'± se':>6} {'n':>4}"]
    for title, rates in (("before", run.evaluations[0][1]),
                         (f"after {cfg.algo}", run.evaluations[-1][1]),
                         ("control: more cloning instead", run.control)):
        if rates:
            lines.append(row(title, rates["greedy"], rates["sampled"]))
            parts = rates["greedy"]["parts"]
            if 1 < len(parts) <= MOST_PARTS:
                lines.append("    greedy: " + ", ".join(
                    f"{part} {share:.0%}" for part, share in parts.items()))
    lines += [row(f"{who} player{local}", rate) for who, rate in players(run).items()]
    parallel.say("\n".join([*lines, f"{run.folder}: report.html, step_{run.step}/"]))


def row(title, *rates):
    """A row of the table: of a policy greedy and sampled, of a player one rate."""
    shares = " ".join(f"{rate['success']:7.1%} {rate['stderr']:6.1%}" for rate in rates)
    return f"{title:32} {shares:29} {rates[0]['n']:4d}"


# ---- the panel: signs that a run is about to collapse -------------------------------------------


def distinct_ngrams(token_lists, n=3):
    """Distinct n-grams / all n-grams of the sampled texts (lists of token ids): 1 if none repeats,
    or none is there. More text repeats more, so compare steps of one run, not two runs."""
    ngrams = [tuple(ids[i:i + n]) for ids in token_lists for i in range(len(ids) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 1.0


EVALUATION = 987_654_321      # in the key of a held-out episode, where training has (step, 0)


def players(run):
    """{"random", "expert": the success of each on the held-out tasks}, to judge a curve by. They
    play once: player_rate remembers."""
    return {who: player_rate(who, tuple(run.eval_tasks), run.cfg.horizons[-1])
            for who in ("random", "expert")}


def held_out(run, temperature, policy=None):
    """Success on held-out tasks at the last horizon -> {"success", "stderr", "n", "parts"}: parts,
    the success in each environment or, of a single one, in each family of tasks. Every evaluation
    of a run draws the same random numbers."""
    played, _ = rollout.play_tasks(
        policy or run.policy, run.eval_tasks, 1, run.cfg.horizons[-1], (run.cfg.seed, EVALUATION),
        temperature, run.cfg.max_concurrent)
    if temperature and not policy:
        write_samples(run, run.step, "test", played, 1, temperature)
    success, error = mean_and_error([t.success for t in played])
    parts = means(played, "success", lambda t: t.env if len(run.worlds) > 1 else
                  run.worlds[0].module.family(t.task_id))
    return dict(success=success, stderr=error, n=len(played), parts=parts)


def means(played, name, part):
    """{part(trajectory): the mean of this figure over its trajectories}."""
    figures = defaultdict(list)
    for t in played:
        figures[part(t)].append(getattr(t, name))
    return {key: mean_and_error(own)[0] for key, own in sorted(figures.items())}


def greedy_and_sampled(run, policy=None):
    """held_out at T=0 and at T=1."""
    greedy, sampled = (held_out(run, temperature, policy) for temperature in (0.0, 1.0))
    parallel.say(f"held out: {greedy['success']:.1%} greedy, {sampled['success']:.1%} at T=1")
    return dict(greedy=greedy, sampled=sampled)
