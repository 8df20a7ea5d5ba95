"""cloning: demonstrations and behavioural cloning."""
import itertools
import math
import os
import random
import statistics
import time
from dataclasses import dataclass

import torch
from transformers import AutoTokenizer

import algos
import parallel
from batch import micro_batches, to_batch
from chat import FORMATS, Agent, Speaks, make_tokenizer
from curriculum import choose_tasks, families_of
from envs import demonstrations, load_env, open_envs
from envs.parts.agenttraj import opening, read_trajectories
from episode import Episode
from flags import Count, Machine, Natural, Positive, Share, Worlds, flag, part_of, settle
from lora import tokenizer_path
from parallel import progress
from policy import from_pretrained, make_policy
from run import (
    full_weights,
    model_settings,
    tiny_settings,
    write_json,
    written_whole,
)


@dataclass
class Clone(Machine, Speaks, Worlds):
    seed: Natural = flag(0, "of everything random", heading="behavioural cloning")
    out: str = flag("runs/clone", "the policy's folder")
    n: Natural = flag(8000, "games; with skill below 1 in whole rounds of all tasks")
    set: str = flag("", "not n: as many as its set has, all expert",
                    ("", "agenttraj", "agenttraj_l"))
    demos: str = flag("", "a file of demonstrations, all of it; empty: the experts play")
    goal: str = flag("task", "other: what is played for is not what is asked", ("task", "other"))
    skill: Share = flag(0.6, "probability of such a player's action; else a random legal one")
    model: str = flag("", "folder or hub id to begin with; empty: a tiny policy")
    horizon: Natural = flag(0, "most turns; 0: each environment's own")
    steps: Count = flag(800, "optimizer steps")
    batch: Count = flag(32, "episodes per step")
    lr: Positive = flag(4e-3, "at its peak, after 5% of the steps; falls to a tenth by a cosine")
    vocabulary: Count = flag(600, "tokens, the 256 bytes and 3 marks of the chat included")
    width: Count = flag(64, "of the tiny model: hidden size")
    layers: Count = flag(2, "of the tiny model: decoder layers")
    heads: Count = flag(4, "query heads; half as many for keys and values")


def learn(policy, trajectories, weights, steps, lr, cfg, seed, seconds=math.inf):
    """Maximise the weighted mean of log pi over trajectories, by AdamW.

    weights: 0 or more for each trajectory. The learning rate rises shortly, then falls by a cosine.
    The ranks share each batch. Stops after `seconds`, as if that had been the plan.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    rng, order, began = random.Random(seed), [], time.perf_counter()
    for step in progress(range(steps), "learning, steps"):
        spent = time.perf_counter() - began
        done = max(step / steps, spent / seconds)
        if done >= 1:
            break
        optimizer.param_groups[0]["lr"] = lr * min(done / 0.05 + 0.02, 1) * \
            (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * done)))
        if len(order) < cfg.batch:      # a rest smaller than a batch is dropped
            order = rng.sample(range(len(trajectories)), len(trajectories))
        chosen, order = order[:cfg.batch], order[cfg.batch:]
        loss = learn_step(policy, optimizer, [trajectories[i] for i in chosen],
                          [weights[i] for i in chosen], cfg)
        if step % 100 == 0 or step == steps - 1:
            parallel.say(f"learn {step:5d} | loss {loss:.3f} | {spent:.0f} s")


def learn_step(policy, optimizer, trajectories, weights, cfg):
    """One step on -sum w log pi / sum w over the actions of this batch -> that loss, before it."""
    batch, total = to_batch(trajectories, policy.device), 0.0
    batch.weights = algos.over_weights(batch.response_mask,
                                       torch.tensor(weights, device=policy.device))
    for where, real in micro_batches(batch, cfg.micro_tokens):
        part = batch.rows(*where)
        logprobs = policy.action_logprobs(part.token_ids, part.response_mask, part.position_ids)
        loss = -(logprobs * part.weights[part.response_mask]).sum() * real
        (loss * parallel.world_size()).backward()           # FSDP takes the mean over the ranks
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return parallel.summed(total).item()


def clone(cfg, demos, out, device):
    """Behavioural cloning of these demonstrations -> the folder `out`, made by all ranks together.
    ValueError."""
    if cfg.model:
        tokenizer = from_pretrained(AutoTokenizer, tokenizer_path(cfg.model))
        policy = parallel.load(cfg.model, device, cfg)
    else:
        tokenizer = tokenizer_of(demos, cfg)
        policy = make_policy(len(tokenizer), cfg.width, cfg.layers, cfg.heads, cfg.seed)
        parallel.say(f"no --model: cloned is a Llama of {policy.num_parameters() / 1e6:.2f}M "
                     f"random weights, {len(tokenizer)} tokens")
        policy = parallel.as_trained(policy, device, cfg)
    if demos:
        trajectories = trajectories_of(demos, tokenizer, cfg)
        learn(policy, trajectories, [1.0] * len(demos), cfg.steps, cfg.lr, cfg, cfg.seed)
    weights = full_weights(policy)
    settings = dict(tiny=True)
    if cfg.model:
        _, settings = model_settings(cfg.model)
    settings = settings | part_of(vars(cfg), Speaks) | dict(cloned=part_of(vars(cfg), Clone))
    with written_whole(out) as aside:
        if parallel.rank() == 0:
            policy.save_pretrained(aside, state_dict=weights)
            tokenizer.save_pretrained(aside)
            write_json(aside / "defaults.json", settings)


def cloned(cfg, folder, device, demos=None):
    """-> the folder of a run's own policy, cloned now if it was not, from demos or a `lesson`."""
    out = os.path.join(folder, "clone")
    if not any(parallel.gathered(os.path.exists(out))):
        clone(cfg, parallel.by_first(lesson, cfg) if demos is None else demos, out, device)
    return out


def clone_flags(cfg):
    """-> Clone: how a run of train.py clones a policy of its own. ValueError: the environment's
    TINY has a name in `clone` that is no flag."""
    own = part_of(vars(cfg), Worlds, Speaks, Machine)
    own |= dict(seed=cfg.seed, horizon=cfg.horizons[-1])
    asked = tiny_settings(cfg.env).get("clone", {})
    layers = [("flags", own), (f"environment (TINY of {cfg.env}), clone,", asked)]
    cloning, _ = settle(Clone, layers)
    return cloning


def continue_cloning(run):
    """The policy that RL began with, cloned on, from the same demonstrations, for as many seconds
    as RL took -> policy."""
    parallel.say(f"control: cloning on for {run.rl_seconds:.0f} s, without RL")
    cfg, policy = clone_flags(run.cfg), parallel.load(run.start_model, run.policy.device, run.cfg)
    trajectories = trajectories_of(lesson(cfg), run.worlds[0].agent.tokenizer, cfg)
    learn(policy, trajectories, [1.0] * len(trajectories), 10**6, cfg.lr / 4, cfg, cfg.seed + 1,
          run.rl_seconds)
    return policy.eval()


def lesson(cfg):
    """What is to be imitated, in the form of `envs.record`: games of the experts, or the file
    cfg.demos. ValueError: the file is wrong, nothing in it is of cfg.env, or nobody demonstrates
    what cfg asks for."""
    modules = open_envs(cfg.env, cfg.data)
    each = families_of(modules, cfg.families)
    if cfg.format == "tool" or \
            cfg.demos and (cfg.format not in ("react", "agentgym") or cfg.context != "full"):
        raise ValueError(f"format={cfg.format}, context={cfg.context}: no demonstration calls tools"
                         "; those of a file need --format react or agentgym and --context full")
    if cfg.demos:
        demos = read_trajectories(cfg.demos, cfg.env.split(","))
        parallel.say(f"{cfg.demos}: {len(demos)} demonstrations of {cfg.env}")
        return demos
    demos = []
    for module, own in zip(modules, each):
        skill = 1.0 if cfg.set else cfg.skill
        most = getattr(module, "SET_SIZES", {}).get(cfg.set, cfg.n)
        tasks = choose_tasks(module, "train", 0, own)
        if most < len(tasks):       # a fair choice: families may lie one behind the other
            tasks = random.Random(cfg.seed).sample(tasks, len(tasks))
        if cfg.goal == "other" and not hasattr(module.Env, "other_goal"):
            raise ValueError(f"goal=other: {module.NAME} has no player for it; leave it out")
        played = demonstrations(module.NAME, tasks, most, skill, cfg.seed, cfg.horizon,
                                goal=cfg.goal)
        demos += played
        parallel.say(f"{module.NAME}: {len(played)} demonstrations of {most} wanted, skill "
                     f"{skill:g}, {sum(d['success'] for d in played)} succeed")
    return demos


def agents_of(cfg, tokenizer=None):
    """{environment: an Agent that truncates nothing}."""
    speaks = part_of(vars(cfg), Speaks) | dict(max_context=10**9)
    return {name: Agent(tokenizer, load_env(name).PROMPT, module=load_env(name), **speaks)
            for name in cfg.env.split(",")}


def tokenizer_of(demos, cfg):
    """A tokenizer of what a tiny policy reads and writes in these demonstrations; TINY_TEMPLATE
    leaves the rules out."""
    agents, texts = agents_of(cfg), []
    for demo in demos:
        agent = opening(agents[demo["env"]], demo)
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
    replies = [turn.end - turn.start for t in trajectories for turn in t.turns]
    contexts = [end - start for t in trajectories
                for start, end in itertools.pairwise([*t.contexts, len(t.token_ids)])]
    for name, lengths in ("max_turn_tokens", replies), ("max_context", contexts):
        if lengths and statistics.median(lengths) > getattr(cfg, name):
            raise ValueError(f"{name}={getattr(cfg, name)}: half of the demonstrations need more, "
                             f"up to {max(lengths)}; give --{name.replace('_', '-')}")
    return trajectories


def imitated(agent, demo):
    """A demonstration as a Trajectory: its replies stand where a policy's own would, mask and all,
    because the same Episode writes it. Of a file's replies those are trained on that it marks."""
    agent = opening(agent, demo)
    episode = Episode(agent, demo["task_id"], (0,), len(demo["turns"]))
    trajectory, turns = episode.trajectory, demo["turns"]
    episode.observe(turns[0][0])
    for i, (_, thought, action, reward, done, info) in enumerate(turns):
        note = "; ".join(turn[2] for turn in turns[:i]) if agent.context == "memory" else None
        ids = agent.chat.encode(FORMATS[agent.format].compose(thought, action, i, note))
        episode.reply([*ids, agent.chat.stop_id], [0.0] * (len(ids) + 1))
        episode.complaint = ""              # the observation that came is shown as it came
        episode.observe(turns[i + 1][0] if i + 1 < len(turns) else demo["last"], reward, done, info)
    if "trained" in demo:
        trajectory.score = max(agent.module.SUCCESS, 1.0)
        for turn, trained in zip(trajectory.turns, demo["trained"]):
            if not trained:
                trajectory.response_mask[turn.start:turn.end] = [0] * (turn.end - turn.start)
        trajectory.turns = [t for t, trained in zip(trajectory.turns, demo["trained"]) if trained]
    return trajectory
