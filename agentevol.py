"""AgentEvol: clone, explore, filter, learn, repeat (AgentGym, arXiv:2406.04151).

    python agentevol.py evolve --env textcraft_small,maze --iterations 4 --samples 1
    python agentevol.py clone --env textcraft_small --out runs/clone       its first part alone
    python agentevol.py clone --demos AgentTraj-L.json --env maze --format agentgym --model FOLDER
    python agentevol.py demos --env maze --set agenttraj --out maze.json   AgentGym's own JSON

The loop is `evolve`, below; the authors' own code has cloning alone. A base policy imitates experts
or a file, plays tasks beyond those and learns from what succeeded, too. Without --model it is a
small Llama with random weights. Policies are folders for train.py and eval.py: `--model runs/clone`
"""
import copy
import itertools
import math
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import torch
from transformers import AutoTokenizer

import run as runs
import algos
import metrics
import parallel
from client import EnvError, connected
from curriculum import choose_tasks, families_of, sample_tasks, shares_of
from engine import check_heads, check_model, from_pretrained, make_policy
from envs import demonstrations, load_env, open_envs
from envs.parts.agentgym import SET_SIZES, Manner, read_trajectories, threshold, write_trajectories
from run import (Count, Counts, Device, Folder, Natural, NewFile, NonNegative, Positive, Run, Seed,
                 Share, Vocabulary, both_splits, model_defaults, open_worlds, parse_flags,
                 tiny_settings)
from chat import (FORMATS, Agent, ContextMode, FormatName, History, Thinking, make_tokenizer)
from rollout import Episode, progress, to_batch


@dataclass
class Demos:
    """Settings of a file of demonstrations."""
    out: NewFile = "demos.json"   # the file
    env: str = "textcraft_small"  # a file of envs/, or several, comma-separated
    data: str = ""                # FOLDER to play with, or NAME=FOLDER,... (docs/environments.md)
    families: str = ""            # task families, comma-separated; empty: all
    n: Natural = 300              # demonstrations of each env, as far as there are training tasks
    set: Literal["", "agenttraj", "agenttraj_l"] = ""   # instead: as many as AgentGym's set has
    seed: Seed = 0                # of everything random
    skill, demos, horizon = 1.0, "", 0      # no flags here


@dataclass
class Clone(Demos):
    """Settings of behavioural cloning."""
    out: Folder = "runs/clone"    # the policy's folder; of evolve: the run's
    n: Natural = 8000             # with luck (skill below 1) all tasks as many whole times as fit
    demos: str = ""               # a file of demonstrations, all of it; empty: the experts play
    skill: Share = 0.6            # probability of the expert's action; else a random legal one
    model: str = ""               # folder or hub id to begin with; empty: a tiny policy
    format: FormatName = "act"    # form of the replies
    context: ContextMode = "full"      # what stays in view
    history: History = "keep"     # earlier turns: as sampled, or rendered anew by the template
    thinking: Thinking = ""       # on, off: the template's switch; empty: as it has it
    max_turn_tokens: Count = 24   # kept for playing, not used in cloning: a longer reply is cut
    max_context: Count = 512      # kept for playing, not used in cloning: tokens in view
    horizon: Natural = 0          # most turns; 0: each environment's own
    steps: Count = 800            # optimizer steps
    batch: Count = 32             # episodes per step
    lr: Positive = 4e-3           # at its peak, after 5% of the steps; falls to a tenth by a cosine
    vocabulary: Vocabulary = 600  # tokens, the 256 bytes and 3 marks of the chat included
    width: Count = 64             # of the tiny model: hidden size
    layers: Count = 2             # of the tiny model: decoder layers
    heads: Count = 4              # query heads; half as many for keys and values
    micro_tokens: Count = 8192    # tokens whose activations are in memory at a time
    checkpointing: bool = False   # recompute activations in the backward pass
    device: Device = "auto"       # auto: cuda if there is one
    attention: Literal["auto", "flash2", "flash4", "varlen", "torch"] = "auto"  # auto: the fastest
    compute: Literal["auto", "float32", "bfloat16"] = "auto"   # auto: bfloat16 on cuda
    shard: Literal["full", "none"] = "full"     # none: each rank holds all weights, not a share
    normalise = "weights"         # no flag: here all weights are 1


@dataclass
class Evolve(Clone):
    """Settings of AgentEvol; those of Clone are of the base policy."""
    out: Folder = "runs/evolve"
    n: Natural = 300
    skill: Share = 1.0
    iterations: Natural = 4       # M
    samples: Counts = (1,)        # K, tries at a task, or its schedule over the iterations: 4,1,1
    explore: Natural = 0          # tasks explored in each iteration and env; 0: all
    unexplored: str = ""          # environments, with commas: cloned and evaluated, not explored
    temperature: NonNegative = 1.0     # of exploration
    adaptive: bool = False        # one try a task, then the rest of K tries a task where it failed
    dedupe: bool = True           # keep the first success of each task; no: all
    weight: Literal["reward", "filter"] = "reward"  # of a kept trajectory: its score, or 1
    normalise: Literal["tokens", "weights"] = "weights"     # the loss is divided by their sum
    start: Literal["base", "last"] = "base"     # what every iteration begins to learn from
    learn_steps: Count = 400      # optimizer steps of an iteration
    learn_lr: Positive = 1e-3     # at its peak
    eval_tasks: Natural = 256     # held-out tasks of an evaluation; 0: all
    control: bool = False         # afterwards clone on for as many steps, as a comparison
    max_concurrent: Count = 256   # episodes in play at a time
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    env_workers: Count = 1        # processes of the local server
    resume: bool = False          # go on after the last finished iteration
    keep_checkpoints: Natural = 0     # the last so many are kept; 0: all

    algo = "AgentEvol"              # no flag: for the table and the curve

    @property
    def folder(self):
        return os.path.normpath(self.out)

    @property
    def horizons(self):
        return (self.horizon,)


# ---- the algorithm ------------------------------------------------------------------------------

def evolve(run, base_set):
    """AgentEvol (arXiv:2406.04151, Algorithm 1). base_set: what the base policy has imitated."""
    cfg = run.cfg
    while run.step < cfg.iterations:
        began = time.perf_counter()
        explored, stats = explore(run)                      # tau ~ pi_m, K for each task
        kept = successes(explored, cfg.dedupe)              # r(tau) above a threshold
        data = base_set + kept                              # D_m = D_base + kept
        weights = [reward(t) if cfg.weight == "reward" else 1.0 for t in data]
        if cfg.start == "base":
            device, run.policy = run.device, None           # makes room for the next
            run.policy = parallel.load(run.start_model, device, cfg)
        if any(weights):                                    # max of the sum of r(tau) log pi(tau)
            learn(run.policy, data, weights, cfg.learn_steps, cfg.learn_lr, cfg,
                  cfg.seed + 1 + run.step)
        seconds = time.perf_counter() - began
        held = metrics.held_out(run, 1.0)                   # on tasks that nobody learns from
        metrics.record_iteration(run, explored, kept, stats, held, seconds)
        run.step += 1
        run.notes.curve.append((run.step, held["success"], held["envs"]))
        runs.save(run)


def explore(run):
    """This iteration's tries at tasks beyond the demonstrations -> (trajectories, Stats). Adaptive:
    of K tries a task on average, each gets one, and those that failed share the others."""
    cfg, samples = run.cfg, run.cfg.samples[min(run.step, len(run.cfg.samples) - 1)]
    tasks = [(world.at_temperature(cfg.temperature), task) for world in run.worlds
             if world.module.NAME not in cfg.unexplored.split(",") for task in sample_tasks(
                 run.tasks[world], cfg.explore or len(run.tasks[world]), run.step, cfg.seed)]

    def play(tasks, samples, wave=0):
        return parallel.play_tasks(run, run.policy, tasks, samples, cfg.horizon,
                                   (cfg.seed, run.step, wave))
    if not cfg.adaptive:
        return play(tasks, samples)
    explored, stats = play(tasks, 1)
    won = {(t.env, t.task_id) for t in successes(explored, dedupe=True)}
    failed = [(world, task) for world, task in tasks if (world.module.NAME, task) not in won]
    more = (samples - 1) * len(tasks) // max(len(failed), 1)
    if not failed or not more:
        return explored, stats
    again, counted = play(failed, more, wave=1)
    return explored + again, stats + counted


def reward(trajectory):
    """r(tau) from 0 to 1: the score, of sciworld in hundredths."""
    return max(trajectory.score, 0.0) / max(load_env(trajectory.env).SUCCESS, 1.0)


def successes(explored, dedupe):
    """The trajectories above their environment's threshold; of each task the first, if deduped."""
    kept = {}
    for i, t in enumerate(explored):
        if t.turns and t.score > threshold(t.env):
            kept.setdefault((t.env, t.task_id) if dedupe else i, t)
    return [*kept.values()]


# ---- learning -----------------------------------------------------------------------------------

NORMALISE = {"tokens": algos.over_tokens, "weights": algos.over_weights}


def learn(policy, trajectories, weights, steps, lr, cfg, seed, seconds=math.inf, say=parallel.say):
    """Maximise the weighted mean of log pi over trajectories, by AdamW.

    weights: 0 or more for each trajectory. The learning rate rises shortly, then falls by a cosine.
    The ranks share each batch. Stops after `seconds`, as if that had been the plan.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    rng, order, began = random.Random(seed), [], time.perf_counter()
    for step in progress(range(steps), "learning, steps", **dict(disable=True) if seconds <
                         math.inf else {}):
        spent = time.perf_counter() - began
        done = max(step / steps, spent / seconds)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = lr * min(done / 0.05 + 0.02, 1) * \
                (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * done)))
        if len(order) < cfg.batch:
            order = rng.sample(range(len(trajectories)), len(trajectories))
        chosen, order = order[:cfg.batch], order[cfg.batch:]
        loss = learn_step(policy, optimizer, [trajectories[i] for i in chosen],
                          [weights[i] for i in chosen], cfg)
        if step == 5 and seconds == math.inf:
            say(f"this learning takes about {spent / 5 * steps / 60:.1f} minutes")
        if step % 100 == 0 or step == steps - 1:
            say(f"learn {step:5d} | loss {loss:.3f} | {spent:.0f} s")


def learn_step(policy, optimizer, trajectories, weights, cfg):
    """One step on -sum w log pi, normalised over this batch -> that loss, before the step."""
    batch, total = to_batch(trajectories, policy.device), 0.0
    batch.weights = NORMALISE[cfg.normalise](batch.response_mask,
                                             torch.tensor(weights, device=policy.device))
    for rows, real in parallel.micro_batches(batch, cfg.micro_tokens):
        part = batch.rows(*rows)
        logprobs = policy.action_logprobs(part.token_ids, part.response_mask, part.position_ids)
        loss = -(logprobs * part.weights[part.response_mask]).sum() * real
        (loss * parallel.world()).backward()                # FSDP takes the mean over the ranks
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return parallel.summed(total).item()


def clone(cfg, out, device="cpu", say=parallel.say, demos=None):
    """Behavioural cloning of `demos`, by default `lesson`'s -> the folder `out`, made by all ranks
    together -> what was imitated, as Trajectories. ValueError."""
    demos, start = lesson(cfg, say) if demos is None else demos, cfg.model or out
    if not cfg.model:           # a tiny policy
        tokenizer = tokenizer_of(demos, cfg)
        policy = make_policy(len(tokenizer), cfg.width, cfg.layers, cfg.heads, cfg.seed)
        say(f"a Llama of {policy.num_parameters() / 1e6:.2f}M weights, {len(tokenizer)} tokens")
        runs.save_clone(policy, tokenizer, start)
    policy = parallel.load(start, device, cfg)
    tokenizer = from_pretrained(AutoTokenizer, start)
    trajectories = trajectories_of(demos, tokenizer, cfg)
    if demos:
        say(f"{sum(len(t.token_ids) for t in trajectories) / len(demos):.0f} tokens an episode")
        learn(policy, trajectories, [1.0] * len(demos), cfg.steps, cfg.lr, cfg, cfg.seed, say=say)
    runs.save_clone(policy, tokenizer, out, {f.name: getattr(cfg, f.name)
                                                 for f in fields(Clone)})
    return trajectories


def lesson(cfg, say=parallel.say):
    """What is to be imitated, in the form of `envs.record`, on all ranks: games of the experts, or
    the file cfg.demos. ValueError: the file is wrong, or nothing in it is of cfg.env."""
    if parallel.rank():
        return parallel.gathered(None)[0]
    modules, demos = open_envs(cfg.env, cfg.data), []
    if cfg.demos:
        demos = read_trajectories(cfg.demos, cfg.env.split(","))
        say(f"{cfg.demos}: {len(demos)} demonstrations of {cfg.env}")
    families = families_of(modules, cfg.families)
    for module, own in () if cfg.demos else zip(modules, families):
        began, skill = time.perf_counter(), 1.0 if cfg.set else cfg.skill
        most = SET_SIZES.get(cfg.set, {}).get(module.NAME, cfg.n)
        tasks = choose_tasks(module, "train", 0, own)
        if most < len(tasks):       # a fair choice: families may lie one behind the other
            tasks = random.Random(cfg.seed).sample(tasks, len(tasks))
        played = demonstrations(module.NAME, tasks, most, skill, cfg.seed, cfg.horizon)
        demos += played
        say(f"{module.NAME}: {len(played)} demonstrations of {most} wanted, skill {skill:g}, "
            f"{sum(d['success'] for d in played)} succeed ({time.perf_counter() - began:.1f} s)")
    return parallel.gathered(demos)[0]


# ---- demonstrations -----------------------------------------------------------------------------
# As `envs.record` and envs/parts/agentgym.py's `read_trajectories` give them.

def agents_of(cfg, tokenizer=None):
    """{environment: an Agent that truncates nothing}."""
    return {name: Agent(tokenizer, load_env(name).PROMPT, cfg.format, cfg.context,
                        max_turn_tokens=1, max_context=10**9, history=cfg.history,
                        thinking=cfg.thinking, module=load_env(name))
            for name in cfg.env.split(",")}


def tokenizer_of(demos, cfg):
    """A tokenizer of what a tiny policy reads and writes in these demonstrations; TINY_TEMPLATE
    leaves the rules out."""
    agents, texts = agents_of(cfg), []
    for demo in demos:
        agent = quoting(agents[demo["env"]], demo)
        texts += [m["content"] for m in agent.start() if m["role"] != "system"]
        for i, (observation, thought, action, *_) in enumerate(demo["turns"]):
            texts += [observation if i else agent.first(observation),
                      FORMATS[agent.format].compose(thought, action, i)]
    return make_tokenizer(texts, cfg.vocabulary, *(
        agent.module.ONE_WORD for agent in agents.values() if hasattr(agent.module, "ONE_WORD")))


def trajectories_of(demos, tokenizer, cfg):
    """Demonstrations as Trajectories. ValueError: half of them do not fit into cfg's limits, so
    that a policy which imitates them would be cut when it plays."""
    agents = agents_of(cfg, tokenizer)
    trajectories = [imitated(agents[demo["env"]], demo) for demo in demos]
    for name, lengths in (
            ("max_turn_tokens", [turn.end - turn.start for t in trajectories for turn in t.turns]),
            ("max_context", [b - a for t in trajectories for a, b in itertools.pairwise(
                [*t.contexts, len(t.token_ids)])])):
        if lengths and statistics.median(lengths) > getattr(cfg, name):
            raise ValueError(f"{name}={getattr(cfg, name)}: half of the demonstrations need more, "
                             f"up to {max(lengths)}; give --{name.replace('_', '-')}")
    return trajectories


def quoting(agent, demo):
    """The agent; for a demonstration of a file one that takes every reply as it is and, in the
    format agentgym, opens with the file's words. ValueError: the format would change its words."""
    if "opening" not in demo:
        return agent
    own = copy.copy(agent)
    own.read = lambda words, message: (words, "")
    if agent.manner:
        rules, agreed = demo["opening"] or (agent.manner.rules, agent.manner.agreed)
        own.manner = Manner(rules, None, agreed=agreed)
    elif demo["env"] in ("maze", "wordle"):
        raise ValueError(f"{demo['env']}: its files hold AgentGym's rules within the first "
                         "observation; use --format agentgym")
    return own


def imitated(agent, demo):
    """A demonstration as a Trajectory: its replies stand where a policy's own would, mask and all,
    because the same Episode writes it. Of a file's replies those are trained on that it marks."""
    agent = quoting(agent, demo)
    episode = Episode(agent, demo["task_id"], (0,), len(demo["turns"]))
    trajectory, turns = episode.trajectory, demo["turns"]
    episode.observe(turns[0][0])
    for i, (_, thought, action, reward, done, info) in enumerate(turns):
        if episode.over:
            break
        note = "; ".join(turn[2] for turn in turns[:i]) if agent.context == "memory" else None
        ids = agent.chat.encode(FORMATS[agent.format].compose(thought, action, i, note))
        episode.reply([*ids, agent.chat.stop_id], [0.0] * (len(ids) + 1))
        episode.observe(turns[i + 1][0] if i + 1 < len(turns) else demo["last"], reward, done, info)
    if "trained" in demo:
        trajectory.score = max(agent.module.SUCCESS, 1.0)
        for turn, trained in zip(trajectory.turns, demo["trained"]):
            if not trained:
                trajectory.response_mask[turn.start:turn.end] = [0] * (turn.end - turn.start)
        trajectory.turns = [t for t, trained in zip(trajectory.turns, demo["trained"]) if trained]
    return trajectory


# ---- setting up ---------------------------------------------------------------------------------

def run_all(cfg):
    """AgentEvol from the demonstrations to the final table."""
    modules = open_envs(cfg.env, cfg.data)
    cfg = replace(cfg, horizon=cfg.horizon or max(module.HORIZON for module in modules))
    with runs.claimed(cfg.folder), connected(cfg.env_url, modules, cfg.env_workers) as clients:
        run, base_set = setup(cfg, modules, clients)
        run.notes.before = run.notes.before or metrics.sampled_and_greedy(run)
        evolve(run, base_set)
        run.notes.after = metrics.sampled_and_greedy(run)
        metrics.report(run)
        if cfg.control:         # as many steps on the demonstrations alone
            policy = parallel.load(run.start_model, run.device, cfg)
            learn(policy, base_set, [1.0] * len(base_set), cfg.iterations * cfg.learn_steps,
                  cfg.learn_lr, cfg, cfg.seed)
            run.notes.control = metrics.sampled_and_greedy(run, policy)
            metrics.report(run)


def setup(cfg, modules, clients):
    """Everything before the first iteration -> (Run, base set)."""
    device, base = parallel.start(cfg.device, cfg.compute), os.path.join(cfg.folder, "clone")
    kept = os.path.join(cfg.folder, "demonstrations.json")
    if cfg.resume:
        last, demos = runs.last_checkpoint(cfg.folder), runs.read_json(kept)["all"]
        base_set = trajectories_of(demos, from_pretrained(AutoTokenizer, base), cfg)
    else:
        last, demos = "", lesson(cfg)
        runs.prepare_folder(cfg)
        base_set = clone(cfg, base, device, demos=demos)
        if parallel.rank() == 0:
            runs.write_json(kept, {"all": demos})
    policy = parallel.load(last or base, device, cfg)
    worlds = open_worlds(policy, base, modules, clients, cfg)
    run = Run(cfg, worlds, *both_splits(worlds, families_of(modules, cfg.families), cfg.eval_tasks,
                                        {(t.env, t.task_id) for t in base_set}), base, policy)
    if last:
        runs.restore(run, last)
        runs.prepare_folder(cfg)        # what may change has perhaps changed
    else:
        runs.save(run)                  # to resume from
    metrics.describe(run)
    return run, base_set


# ---- flags --------------------------------------------------------------------------------------

SHARED = "families", "horizon", *runs.SPEAKS
MAY_CHANGE = """out iterations resume control max_concurrent env_url env_workers micro_tokens device
    checkpointing attention compute shard keep_checkpoints""".split()       # with --resume


def preset(kind, given):
    """What flags leave open: what a resumed run was begun with; what the environments ask of a tiny
    policy, as far as it concerns cloning; how a model speaks. ValueError."""
    if given.get("resume"):
        return runs.begun(kind, kind(**given).folder, given,
                              [f.name for f in fields(kind) if f.name not in MAY_CHANGE])
    model = given.get("model", "")
    speaks = model_defaults(model) if model else {}
    if model and not runs.cloned_settings(model):
        return speaks | {name: 1e-5 for name in ("lr", "learn_lr") if hasattr(kind, name)}
    asked = tiny_settings(given.get("env", kind.env), {
        f.name if f.name in SHARED else f"clone_{f.name}": f.default for f in fields(kind)})
    asked["horizon"] = asked.get("horizons", (0,))[-1]
    own = {"clone_n", "clone_skill"} if kind is Evolve else set()
    return {name.removeprefix("clone_"): value for name, value in asked.items()
            if name in SHARED or name.startswith("clone_") and name not in own} | speaks


def check(cfg):
    """Refuse in one sentence, before anything is made, what cannot work. ValueError."""
    names = cfg.env.split(",")
    families_of([load_env(name) for name in names], cfg.families)
    if type(cfg) is Evolve:
        runs.keep_input(cfg, cfg.model, cfg.demos)
        shares_of(cfg.eval_tasks or len(names), [1] * len(names))
        if not {*filter(None, cfg.unexplored.split(","))} < {*names}:
            raise ValueError(f"unexplored={cfg.unexplored!r}: expected some of {cfg.env}, not all")
    check_model(cfg.model) if cfg.model else check_heads(cfg.width, cfg.heads)
    if not (cfg.demos or cfg.n) and (not cfg.model or getattr(cfg, "control", False)):
        raise ValueError("n=0: a tiny policy and --control learn from demonstrations; give --n 1")
    if cfg.format == "tool" or \
            cfg.demos and (cfg.format not in ("react", "agentgym") or cfg.context != "full"):
        raise ValueError(f"format={cfg.format}, context={cfg.context}: no demonstration calls tools"
                         "; those of a file need --format react or agentgym and --context full")


def main():
    """A command and its flags -> a policy, a run or a file. Errors are one sentence."""
    kinds = {"evolve": Evolve, "clone": Clone, "demos": Demos}
    kind = kinds.get(" ".join(sys.argv[1:2]))
    try:
        if not kind:
            raise ValueError("expected: agentevol.py evolve, clone or demos, then flags")
        cfg = parse_flags(kind, sys.argv[2:], __doc__, kind is not Demos and partial(preset, kind))
        if kind is Demos:
            return print("successes written:", write_trajectories(cfg.out, lesson(cfg), cfg.seed))
        check(cfg)
        if kind is Evolve:
            return run_all(cfg)
        clone(cfg, cfg.out, parallel.start(cfg.device, cfg.compute))
        parallel.say(f"policy in {cfg.out}")
    except (ValueError, OSError, EnvError, FloatingPointError) as error:
        sys.exit(f"agentevol.py: {error}")
    finally:
        parallel.end()


if __name__ == "__main__":
    main()
