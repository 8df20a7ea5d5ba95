"""metrics: what is watched: a step's figures, the log line, samples, warnings, the final table.

train.py calls `record` after each step, agentevol.py `record_iteration`; nothing here changes what
is learned. docs/metrics.md says of each figure what it is and when it is healthy.
"""
import os
import sys
import time
from dataclasses import dataclass

import torch

import algos
import parallel
import report
from batch import Batch, on_all_rows, to_batch
from envs.parts.players import mean_and_error
from evaluation import greedy_and_sampled, limits_told, means
from panel import collapse_warnings
from rollout import Stats
from run import last_checkpoint, with_nulls, write_json


@dataclass
class Outcome:
    """What one step of RL came to."""
    horizon: int            # turns that its episodes could take
    played: list            # Trajectories, whole groups with their members adjacent
    stats: Stats            # of playing them
    kept: list              # those that were chosen to train on
    batch: Batch | None     # of them, with advantages; None: nothing was trained on
    figures: dict           # of the update, see train.means_of
    seconds: float          # of the whole step


# ---- what happens to a run ----------------------------------------------------------------------

def describe(policy, step):
    """Say what is trained where."""
    size = sum(p.numel() for p in policy.parameters()) / 1e6
    text = (f"{size:.2f}M parameters on {policy.device} x {parallel.world_size()}, attention "
            f"{policy.kernel} ({policy.kernel_reason})")
    if step:
        text += f", going on at step {step}"
    parallel.say(text)


def evaluate(run):
    """Measure the policy as it is after run.step steps, for the table and the page."""
    rates, sampled = greedy_and_sampled(run, run.policy)
    run.evaluations.append((run.step, rates))
    hopeless = nothing_to_learn(sampled, run.cfg.env, run.start_model)
    if hopeless:
        parallel.say(hopeless)
    turns = [turn for t in sampled for turn in t.turns]
    limited = sum(turn.limited for turn in turns)
    wordless = sum(turn.wordless for turn in turns)
    for sentence in limits_told(len(turns), limited, wordless, run.cfg.max_turn_tokens):
        parallel.say(f"WARNING: {sentence}")
    write_samples(run, run.step, "test", sampled, 1, 1.0)
    write_results(run)


def nothing_to_learn(sampled, env, model):
    """A sentence for a policy that always fails and always earns the same; "" for all others."""
    if any(t.success for t in sampled) or len({t.reward for t in sampled}) > 1:
        return ""
    return (f"0 of {len(sampled)} tries succeed and all earn the same: RL learns nothing from such "
            f"groups. {clone_first(env, model)}")


def clone_first(env, model):
    """What helps a policy that never succeeds."""
    return ("Show games of the expert (--shots 2), or clone first: python agentevol.py clone "
            f"--env {env} --model {model}")


def idle(history, env, model, steps=2):
    """A sentence for a run whose tries at a task all earned the same in its last steps, so that
    none taught anything; "" for all others."""
    last = history[-steps:]
    if len(last) < steps or any(line["constant_groups"] < 1 for line in last):
        return ""
    if min(line["success"] for line in last) == 1:
        return (f"for {steps} steps every try has succeeded: nothing is left to learn here; take "
                "harder tasks, or other worlds")
    return (f"for {steps} steps the tries at each task have earned the same: nothing can be "
            f"learned from them. {clone_first(env, model)}")


def record(run, outcome):
    """Add the step's line to run.history and metrics.jsonl, print it, name new warnings. Every
    eval_every steps, from the first on, keep some episodes that it trained on (if none: played)."""
    cfg = run.cfg
    line = measure(run, outcome)
    run.history.append(line)
    run.append("metrics.jsonl", [line])
    parallel.say(log_line(line))

    if cfg.eval_every and run.step % cfg.eval_every == 0:
        shown = outcome.kept if outcome.batch else outcome.played
        write_samples(run, run.step, "train", shown, cfg.group_size, cfg.temperature,
                      outcome.batch)
    if run.step == 0:
        so_far = time.perf_counter() - run.began
        # Evaluations take a tenth more.
        total = so_far + 1.1 * (cfg.steps - 1) * outcome.seconds
        parallel.say(f"the whole run takes about {total / 60:.1f} minutes")

    named = {signal for _, signal, _ in run.warnings}
    nothing = idle(run.history, cfg.env, run.start_model)
    if nothing and "idle" not in named:
        named.add("idle")
        run.warnings.append((run.step, "idle", nothing))
        parallel.say(f"WARNING at step {run.step}: {nothing}")
    for signal, sentence in collapse_warnings(run.history):
        if signal in named:
            continue
        named.add(signal)
        last = last_checkpoint(run.folder) or run.start_model
        advice = f"Go on at a third of the rate: --lr {cfg.lr / 3:.2g} --model {last}"
        run.warnings.append((run.step, signal, f"{sentence} {advice}"))
        parallel.say(f"WARNING at step {run.step}: {sentence} {advice}")


def record_iteration(run, explored, kept, stats, seconds):
    """The same for an iteration of AgentEvol, when run.step is already the next one. seconds: of
    playing and learning."""
    step = run.step - 1
    success, _ = mean_and_error([t.success for t in explored])
    line = dict(
        step=step, explored=len(explored), kept=len(kept), dropped=stats.dropped,
        success=success, seconds=seconds,
        random=run.players["random"]["success"])
    run.history.append(line)
    run.append("metrics.jsonl", [line])
    write_samples(run, step, "train", explored, 1, run.cfg.temperature)
    text = (f"iteration {run.step} | explored {len(explored)} | success {success:.1%} "
            f"| kept {len(kept)} | {seconds:.0f} s")
    if stats.dropped:
        text += f" | dropped {stats.dropped}"
    parallel.say(text)
    if not kept:
        parallel.say("WARNING: no try was kept, so only the demonstrations teach. More of them "
                     "(--n), or longer cloning (--steps), may give a policy that succeeds now and "
                     "then")


# ---- a step's figures ---------------------------------------------------------------------------

def measure(run, outcome):
    """A step's figures, {name: number}: docs/metrics.md has a row for each."""
    played = outcome.played
    stats = outcome.stats
    trained_tokens = 0
    trained = dict(trained=0)
    if outcome.batch:
        trained_tokens = run.cfg.epochs * int((outcome.batch.token_ids >= 0).sum())
        trained = of_batch(outcome.batch)
    line = dict(
        step=run.step, horizon=outcome.horizon,
        random=run.players["random"]["success"],
        **of_trajectories(played, run.cfg.group_size),
        **outcome.figures,
        **trained,
        dropped=stats.dropped, pages=stats.pages, preempted=stats.preempted,
        **speeds(played, stats, outcome.seconds, trained_tokens))
    if len(run.worlds) > 1:
        for name in ("success", "reward"):
            for env, mean in means(played, name, [t.env for t in played]).items():
                line[f"{name}_{env}"] = mean
    return line


def of_trajectories(played, group_size):
    """Figures of what was played: whole groups, their members adjacent."""
    n = len(played)
    rewards = torch.tensor([t.reward for t in played])
    spread = algos.group_std(rewards, group_size)
    turns = []
    sampled = []            # the token ids of each reply
    for t in played:
        turns += t.turns
        sampled += [t.token_ids[turn.start:turn.end] for turn in t.turns]
    told = [turn.valid for turn in turns if turn.valid is not None]
    return dict(
        trajectories=n,
        reward=rewards.mean().item(),
        success=sum(t.success for t in played) / n,
        reward_std=spread.mean().item(),
        constant_groups=(spread <= 1e-6).float().mean().item(),
        valid=mean_and_error(told)[0],          # NaN if nobody says
        turns=len(turns) / n,
        cut_thoughts=sum(turn.cut for turn in turns) / max(len(turns), 1),
        limited=sum(turn.limited for turn in turns) / max(len(turns), 1),
        wordless=sum(turn.wordless for turn in turns) / max(len(turns), 1),
        response_length=sum(map(len, sampled)) / max(len(turns), 1),
        distinct_3gram=distinct_ngrams(sampled),
        truncated=sum(t.truncated != "" for t in played) / n,
        out_of_context=sum(t.truncated == "context" for t in played) / n)


def of_batch(batch):
    """Figures of what was trained on. Of its sampled tokens: mean, standard deviation and share of
    zeros of their advantages; k3 of the sampling policy to the one that RL began with, if that is
    at hand."""
    mask = batch.response_mask
    advantages = batch.advantages[mask]
    figures = dict(
        trained=len(batch.rewards),
        advantage_mean=advantages.mean().item(),
        advantage_std=advantages.std().item(),
        advantage_zeros=(advantages == 0).float().mean().item())
    if batch.ref_logprobs is not None:
        k3 = algos.kl_k3(batch.old_logprobs[mask], batch.ref_logprobs[mask])
        figures["kl_start"] = k3.mean().item()
    return figures


def speeds(played, stats, seconds, trained_tokens):
    """Seconds (of a phase: mean over the ranks) and tokens/s of all ranks. trained_tokens: a token
    counts as often as the update passed over it."""
    rollout = stats.seconds["rollout"]
    update = seconds - rollout
    forwarded = stats.tokens["prefill"] + stats.tokens["decode"]
    figures = dict(
        seconds=seconds,
        seconds_rollout=rollout,
        seconds_update=update,
        rollout_tokens=forwarded,
        tokens_per_second=sum(len(t.token_ids) for t in played) / seconds,
        rollout_tokens_per_second=forwarded / rollout,
        update_tokens_per_second=trained_tokens / update)
    for phase in ("prefill", "decode", "sampling", "environment"):
        figures[f"seconds_{phase}"] = stats.seconds[phase] / parallel.world_size()
    return figures


def distinct_ngrams(token_lists, n=3):
    """Distinct n-grams / all n-grams of the sampled texts (lists of token ids): 1 if none repeats,
    or none is there. More text repeats more, so compare steps of one run, not two runs."""
    ngrams = []
    for ids in token_lists:
        ngrams += [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]
    if not ngrams:
        return 1.0
    return len(set(ngrams)) / len(ngrams)


def log_line(m):
    """The line of metrics `m` for a person: what is rare stands in a second line."""
    line = (f"step {m['step']:4d} | turns {m['turns']:4.1f} of {m['horizon']} | reward "
            f"{m['reward']:5.2f} | success {m['success']:4.0%} (random {m['random']:.0%}) "
            f"| entropy {m['entropy']:.2f} | {m['tokens_per_second']:.0f} tok/s")
    rare = []
    for name in ("dropped", "skipped", "preempted"):
        if m[name] > 0:
            rare.append(f"{name} {m[name]}")
    if m["cut_thoughts"] > 0:
        rare.append(f"cut_thoughts {m['cut_thoughts']:.0%}")
    for name in ("limited", "wordless"):
        if m[name] > 0.1:
            rare.append(f"{name} {m[name]:.0%}")
    if m["valid"] < 0.5:
        rare.append(f"valid {m['valid']:.0%}")
    if m["kl"] > 0.05:
        rare.append(f"kl {m['kl']:.2f}")
    if rare:
        line += f"\n          {', '.join(rare)}"
    return line


# ---- sampled episodes ---------------------------------------------------------------------------

# What a sample tells of each token as the update had it, where the learning rule has it.
OF_THE_UPDATE = ("response_mask", "old_logprobs", "rollout_logprobs", "ref_logprobs",
                 "token_rewards", "values", "returns", "advantages", "weights")


def write_samples(run, step, split, trajectories, group_size, temperature, batch=None):
    """Add 16 episodes to samples.jsonl, or two whole groups, with what is known of each token: as
    their batch has it; the ratio pi / pi_old and the entropy of pi, the policy as it now is."""
    rows = rows_to_show(trajectories, group_size)
    if not rows:
        return
    shown = [trajectories[row] for row in rows]
    batch = batch.rows(rows) if batch else to_batch(shown, run.policy.device)
    logprobs, entropies = on_all_rows(run.policy.logprobs_and_entropy, batch,
                                      run.cfg.micro_tokens, temperature or 1)
    columns = {name: getattr(batch, name) for name in OF_THE_UPDATE}
    if batch.paid is not None:
        columns["token_rewards"] = batch.paid
    columns |= dict(ratios=(logprobs - batch.old_logprobs).exp(), entropies=entropies)
    lines = []
    for row, t in enumerate(shown):
        line = dict(step=step, split=split, family=run.modules[t.env].family(t.task_id))
        line |= report.sample_of(t, run.worlds[0].agent.tokenizer)
        for name, column in columns.items():
            if column is not None:
                figures = column[row, :len(t.token_ids)].double()
                line[name] = figures.round(decimals=3).tolist()
        lines.append(line)
    run.append("samples.jsonl", lines)


def rows_to_show(trajectories, group_size):
    """Which of them: whole groups, as many as hold 16 episodes but at least two, from all over the
    list; without episodes of no turn, whose prompt did not fit."""
    groups = range(0, len(trajectories), group_size)        # the first row of each
    count = max(2, 16 // group_size)
    stride = max(1, len(groups) // count)
    rows = []
    for first in groups[::stride][:count]:
        rows += [row for row in range(first, first + group_size) if trajectories[row].turns]
    return rows


# ---- the end ------------------------------------------------------------------------------------

def write_results(run):
    """result.json, as far as the run has come, and its page -> what result.json holds."""
    seconds = time.perf_counter() - run.began
    result = with_nulls(dict(
        env=run.cfg.env, algo=run.cfg.algo, seed=run.cfg.seed, steps=run.step,
        seconds=round(seconds, 1), rl_seconds=round(run.rl_seconds, 1), command=sys.argv,
        warnings=run.warnings, players=run.players, evaluations=run.evaluations,
        control=run.control))
    if parallel.rank() == 0:
        write_json(os.path.join(run.folder, "result.json"), result)
        report.write(run.folder)
    return result


def final_table(run):
    """The table at the end, result.json and the page."""
    cfg = run.cfg
    result = write_results(run)
    lines = [f"held-out tasks of {cfg.env}, horizon {cfg.horizons[-1]}, seed {cfg.seed}, "
             f"{run.step} steps of {cfg.algo}, {result['seconds']:.0f} s in all",
             f"{'success':32} {'greedy':>7} {'± se':>6} {'T=1':>7} {'± se':>6} {'n':>4}"]
    lines += rows_of_policy("before", run.evaluations[0][1])
    lines += rows_of_policy(f"after {cfg.algo}", run.evaluations[-1][1])
    if run.control:
        lines += rows_of_policy("control: more cloning instead", run.control)
    for who, rate in run.players.items():
        title = f"{who} player"
        if hasattr(run.worlds[0].module, "Served"):
            title += ", our local game"
        lines.append(table_row(title, rate))
    lines.append(f"{run.folder}: report.html, step_{run.step}/")
    parallel.say("\n".join(lines))


def rows_of_policy(title, rates):
    """A row of the table, and if they are few a line with the success in each part."""
    lines = [table_row(title, rates["greedy"], rates["sampled"])]
    parts = rates["greedy"]["parts"]
    if 1 < len(parts) <= 6:
        shares = [f"{part} {share:.0%}" for part, share in parts.items()]
        lines.append("    greedy: " + ", ".join(shares))
    return lines


def table_row(title, *rates):
    """A row of the table: of a policy greedy and sampled, of a player one rate."""
    shares = " ".join(f"{rate['success']:7.1%} {rate['stderr']:6.1%}" for rate in rates)
    return f"{title:32} {shares:29} {rates[0]['n']:4d}"
