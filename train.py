"""Reinforcement learning of a language-model agent over many turns. Without arguments:

    python train.py

starts an environment server, clones its expert into a tiny policy, trains that by GRPO with
ScalingInter-RL, and prints how often it succeeds before and after on tasks it has never seen. The
same script under torchrun trains a large model on many GPUs:

    torchrun --nproc_per_node 8 train.py --algo grpo --env textcraft --model Qwen/Qwen2.5-3B

A run is a function of its flags and its seed. runs/<name>/ holds config.json, metrics.jsonl (a line
a step), samples.txt (episodes as text), curve.png, result.json and step_<n>/ (an ordinary Hugging
Face folder, and what --resume needs to go on as if nothing had happened).
"""
import json
import math
import os
import sys
import textwrap
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import engine  # noqa: F401  before torch: its threads must not spin (see there)
import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_
from transformers import AutoTokenizer

import algos
from agentevol import Clone, clone, continue_cloning
from client import EnvClient, EnvError, connected
from curriculum import check_horizons, horizon_at, next_stage, sample_tasks
from engine import (add_value_head, check_folder, load_policy, machine_rates, token_logprobs,
                    token_values)
from eval import builtin_rate, choose_tasks, mean_and_error, open_env, parse_flags
from rollout import FORMATS, Agent, Trajectory, collect, to_batch


@dataclass
class Config:
    # what is learned, and from what
    env: str = "textcraft_small"
    families: str = ""            # only these families of tasks, comma-separated; empty: all
    model: str = ""               # folder or hub id; empty: a tiny policy cloned from the expert
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    env_workers: int = 1          # processes of the local server
    env_batched: bool = True      # many episodes a request; no: one each, for slow environments
    algo: str = "grpo"            # a preset of the fields from `advantage` on: see ALGOS
    name: str = ""                # the run's folder is runs/<name>; empty: <env>-<algo>-<seed>
    seed: int = 0
    resume: bool = False          # go on from the last checkpoint of runs/<name>
    device: str = "auto"          # auto | cpu | cuda
    attention: str = "auto"       # auto | flash2 | flash4 | torch

    # one step
    steps: int = 80
    tasks_per_step: int = 32
    group_size: int = 8           # trajectories per task, G
    mini_batches: int = 4         # optimizer steps per pass over a step's trajectories
    epochs: int = 1               # passes over them
    lr: float = 6e-4              # of the first step; falls in a line
    lr_end: float = 0.2           # to this share of it at the last
    max_grad_norm: float = 1.0
    micro_tokens: int = 8192      # tokens whose activations are in memory at a time
    checkpointing: bool = False   # recompute activations in the backward pass
    max_concurrent: int = 256     # episodes in play at a time

    # how long an episode may be: ScalingInter-RL
    horizons: str = "6,10"        # turns; rises through these
    switch_every: str = "20"      # steps per horizon, or the steps of the switches: "30,80"
    curriculum: str = "scaling"   # scaling | adaptive: moves on when success stops rising

    # how the agent speaks
    format: str = "act"           # act | react | think | plan | reflect
    context: str = "full"         # full | window | memory
    max_turn_tokens: int = 24     # a longer reply is cut; give a model that thinks 512
    max_context: int = 512        # tokens in view; an episode that would not fit is truncated
    temperature: float = 1.0      # 1: otherwise old_logprobs is not the policy we differentiate

    # the learning rule: set by --algo, each also by its own flag
    advantage: str = "grpo"       # a key of ADVANTAGES
    surrogate: str = "token"      # token | sequence (GSPO): what the ratio is of
    weights: str = "sequence"     # token | sequence | sequence_sum | constant
    filter: str = "varied"        # none | varied | refill | uncertain | top_p: which groups train
    keep: float = 0.25            # of the groups (uncertain), of their summed std (top_p)
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0        # > 1: bound of the loss where the advantage is negative; 0: none
    kl_coef: float = 0.0          # against the starting policy; 0: no reference model is loaded
    kl_in: str = "loss"           # loss | reward
    kl: str = "k3"                # k2 | k3, the estimator in the loss; in the reward it is k1
    entropy_coef: float = 0.0
    gamma: float = 1.0            # per action token
    lam: float = 1.0
    turn_gamma: float = 0.95      # per turn (turn_gae, gigpo)
    turn_level: bool = False      # PPO: rewards stay at their turns' ends, bi-level GAE
    critic: str = "none"          # none | own | shared: a transformer of its own, or a head
    critic_lr: float = 1e-3
    critic_warmup: int = 0        # first steps in which only the critic learns
    value_clip: float = 0.5
    value_coef: float = 0.5       # of the value loss where the trunk is shared
    reuse: int = 1                # Online-k: updates made from the same trajectories
    importance_cap: float = 0.0   # > 0: tokens weigh pi_old / pi_sampler, at most this; 0: off
    overlong_buffer: int = 0      # DAPO: action tokens before the limit over which a penalty rises
    train_env_tokens: bool = False   # the upstream fault: observations are trained on as well

    # what is watched
    eval_every: int = 20          # steps
    eval_tasks: int = 256
    save_every: int = 20
    sample_every: int = 10        # steps between episodes in samples.txt
    probe_every: int = 20         # steps between measures of how far thoughts depend on prompts
    stop_on_collapse: bool = False
    control: bool = True          # also measure more cloning for the same seconds, no RL

    # the tiny policy, when there is no model yet
    clone_steps: int = 800
    clone_episodes: int = 8000
    clone_skill: float = 0.6      # the imitated player takes the expert's action this often
    clone_lr: float = 4e-3        # at its peak
    clone_width: int = 64         # hidden size
    clone_layers: int = 2
    clone_heads: int = 4

    @property
    def folder(self):
        return os.path.join("runs", self.name or f"{self.env}-{self.algo}-{self.seed}")

    @property
    def horizon_list(self):
        return whole_numbers("horizons", self.horizons)

    @property
    def switches(self):
        steps = whole_numbers("switch_every", self.switch_every)
        return steps[0] if len(steps) == 1 else steps


def whole_numbers(field, text):
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"{field}={text!r}: expected whole numbers, comma-separated") from None


# ---- the learning rules -------------------------------------------------------------------------
# A preset is what a paper ran; README.md's table names it. What it does not say stays as in Config.

PPO = dict(advantage="gae", critic="own", weights="token", filter="none", clip_high=0.2)
ALGOS = {
    "grpo": dict(advantage="grpo", weights="sequence"),
    "dr_grpo": dict(advantage="dr_grpo", weights="constant", clip_high=0.2),
    "rloo": dict(advantage="rloo", weights="sequence_sum", filter="none", clip_high=0.2),
    "ppo": PPO,
    "reinforce_pp": dict(advantage="reinforce_pp", weights="token", filter="none", clip_high=0.2),
    "reinforce_pp_baseline": dict(advantage="reinforce_pp_baseline", weights="token",
                                  filter="none", clip_high=0.2),
    "gigpo": dict(advantage="gigpo", weights="token", filter="none", clip_high=0.2),
    "mt_grpo": dict(advantage="mt_grpo", weights="sequence", filter="none", clip_high=0.2),
    "gspo": dict(advantage="grpo", surrogate="sequence", weights="sequence",
                 clip_low=3e-4, clip_high=4e-4),
    "starpo": PPO | dict(kl_coef=0.001, kl_in="reward", entropy_coef=0.001),
    "starpo_s": PPO | dict(filter="uncertain", keep=0.25, clip_high=0.28, entropy_coef=0.001,
                           mini_batches=1),     # a quarter of the groups: as large as one of four
}

# What a tiny policy of its own needs where the texts are longer; with --model nothing is set.
TINY = {
    "babyai": dict(       # the ten levels of one room
        families="GoToRedBallGrey,GoToRedBall,GoToRedBallNoDists,GoToObjS6,GoToLocalS8N7,"
                 "GoToRedBlueBall,OpenRedDoor,OpenDoorLoc,PickupLoc,PickupDistDebug",
        horizons="3,6", max_context=2048, steps=60, clone_steps=500, clone_width=96,
        clone_heads=3, clone_lr=2e-3),
}

# batch, cfg -> (B, T); gae, which needs a critic, is in `credit`. Rewards of a whole trajectory are
# spread over its tokens.
ADVANTAGES = {
    "grpo": lambda b, c: algos.grpo_advantages(b.rewards, c.group_size)[:, None],
    "dr_grpo": lambda b, c: algos.dr_grpo_advantages(b.rewards, c.group_size)[:, None],
    "rloo": lambda b, c: algos.rloo_advantages(b.rewards, c.group_size)[:, None],
    "reinforce_pp": lambda b, c: algos.reinforce_pp_advantages(
        b.token_rewards, b.response_mask, c.gamma),
    "reinforce_pp_baseline": lambda b, c: algos.reinforce_pp_baseline_advantages(
        b.rewards, c.group_size, b.response_mask),
    "gigpo": lambda b, c: algos.gigpo_advantages(
        b.token_rewards, b.response_mask, b.turn_ids, b.observation_hashes, c.group_size,
        c.turn_gamma),
    "mt_grpo": lambda b, c: algos.mt_grpo_advantages(
        b.token_rewards, b.response_mask, b.turn_ids, c.group_size),
}
WEIGHTS = {
    "token": lambda mask, c: algos.token_weights(mask),
    "sequence": lambda mask, c: algos.sequence_weights(mask),
    "sequence_sum": lambda mask, c: algos.sequence_sum_weights(mask),
    "constant": lambda mask, c: algos.constant_weights(
        mask, c.max_turn_tokens * c.horizon_list[-1]),
}
FILTERS = {
    "none": lambda rewards, c: torch.arange(len(rewards) // c.group_size),
    "varied": lambda rewards, c: algos.keep_varied(rewards, c.group_size),
    "refill": lambda rewards, c: algos.keep_varied(rewards, c.group_size),
    "uncertain": lambda rewards, c: algos.keep_most_uncertain(rewards, c.group_size, c.keep),
    "top_p": lambda rewards, c: algos.keep_top_p(rewards, c.group_size, c.keep),
}


def check(cfg):
    """Refuse in one sentence, before anything is loaded, what cannot work. ValueError."""
    def known(field, choices):
        if getattr(cfg, field) not in choices:
            raise ValueError(f"{field}={getattr(cfg, field)!r}; known: {', '.join(choices)}")
    known("advantage", (*ADVANTAGES, "gae"))
    known("weights", WEIGHTS)
    known("filter", FILTERS)
    known("surrogate", ("token", "sequence"))
    known("kl", ("k2", "k3"))
    known("kl_in", ("loss", "reward"))
    known("critic", ("none", "own", "shared"))
    known("curriculum", ("scaling", "adaptive"))
    known("format", FORMATS)
    known("context", ("full", "window", "memory"))
    if cfg.model:
        check_folder(cfg.model)
    check_horizons(cfg.horizon_list)
    horizon_at(0, cfg.horizon_list, cfg.switches)
    alone = cfg.filter == "none" and cfg.advantage in ("gae", "reinforce_pp")
    if cfg.group_size < 2 and not alone:
        raise ValueError(f"group_size={cfg.group_size} with advantage={cfg.advantage}, filter="
                         f"{cfg.filter}: both compare the members of a group; use 2 or more")
    if (cfg.advantage == "gae") != (cfg.critic != "none"):
        raise ValueError(f"advantage={cfg.advantage} with critic={cfg.critic}: gae needs a critic "
                         "(own or shared), and nothing else uses one")
    if cfg.turn_level and cfg.critic == "none":
        raise ValueError("turn_level: bi-level GAE needs a critic (own or shared)")
    if cfg.kl_coef < 0 or cfg.importance_cap < 0 or cfg.temperature <= 0:
        raise ValueError(f"kl_coef={cfg.kl_coef}, importance_cap={cfg.importance_cap}, temperature="
                         f"{cfg.temperature}: expected 0 or more, the temperature above 0")
    if cfg.dual_clip and cfg.dual_clip <= 1:
        raise ValueError(f"dual_clip={cfg.dual_clip}: expected above 1, or 0 for none")
    for field in ("steps", "tasks_per_step", "group_size", "mini_batches", "epochs", "reuse",
                  "micro_tokens", "save_every", "sample_every"):
        if getattr(cfg, field) < 1:
            raise ValueError(f"{field}={getattr(cfg, field)}: expected 1 or more")
    if not 0 < cfg.keep <= 1:
        raise ValueError(f"keep={cfg.keep}: expected a share above 0, at most 1")


# ---- setting up ---------------------------------------------------------------------------------

@dataclass
class Run:
    """What a run holds: made once by `setup`, changed only by `train`."""
    cfg: Config
    module: object                # of the environment
    client: EnvClient
    agent: Agent = None
    policy: object = None
    reference: object = None      # the starting policy, frozen; None without a KL
    critic: object = None
    optimizer: object = None
    critic_optimizer: object = None
    start_model: str = ""         # folder or hub id of the policy before any RL
    tasks: list = None            # of training
    eval_tasks: list = None
    step: int = 0                 # the next one
    stage: int = 0                # adaptive curriculum: the present stage, and
    stage_successes: list = None  # the success rates measured in it
    history: list = None          # one dict of metrics a step
    notes: dict = None            # what the final table needs: before, seconds of RL
    warned: set = None            # signals of the panel that have been named
    skipped_in_a_row: int = 0     # updates that were not finite

    @property
    def rank(self):
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world(self):
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def device(self):
        return self.policy.device

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    @cached_property
    def random_rates(self):       # horizon -> the random player's success
        return {}

    @cached_property
    def rates(self):              # FLOP/s and bytes/s of this machine
        return machine_rates(self.device, self.policy.compute_dtype)


def setup(cfg, module, client):
    """Everything before the first step -> Run. Under torchrun every rank holds a shard."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{local}"
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    elif device.startswith("cuda"):     # one GPU: FSDP keeps float32 weights beside the bfloat16
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    run = Run(cfg, module, client, history=[], notes={}, warned=set(), stage_successes=[])
    run.tasks = choose_tasks(module, "train", 0, cfg.families)
    run.eval_tasks = choose_tasks(module, "test", cfg.eval_tasks, cfg.families)
    last = last_checkpoint(cfg.folder) if cfg.resume else None
    torch.manual_seed(cfg.seed)         # only the critic's head is drawn from it
    if last or cfg.model:               # it may be refused: before the run's folder is touched
        run.policy = load(last or cfg.model, device, cfg, value_head=cfg.critic == "shared")
    prepare_folder(run)
    run.start_model = cfg.model or cloned(run)
    if run.policy is None:
        run.policy = load(run.start_model, device, cfg, value_head=cfg.critic == "shared")
    run.agent = Agent(AutoTokenizer.from_pretrained(run.start_model), module.PROMPT, cfg.format,
                      cfg.context, max_turn_tokens=cfg.max_turn_tokens,
                      max_context=cfg.max_context, temperature=cfg.temperature)
    run.optimizer = torch.optim.AdamW(run.policy.parameters(), lr=cfg.lr, betas=(0.9, 0.95),
                                      weight_decay=0.0)
    if cfg.kl_coef:
        run.reference = load(run.start_model, device, cfg).requires_grad_(False)
    if cfg.critic == "own":
        run.critic = load(run.start_model, device, cfg, value_head=True)
        run.critic_optimizer = torch.optim.AdamW(run.critic.parameters(), lr=cfg.critic_lr,
                                                 betas=(0.9, 0.95), weight_decay=0.0)
    if last:
        restore(run, last)
    size = sum(p.numel() for p in run.policy.parameters()) / 1e6
    run.say(f"{cfg.folder}: {size:.2f}M parameters on {device} x {run.world}, attention "
            f"{run.policy.kernel} ({run.policy.kernel_reason})"
            + (f", going on at step {run.step}" if last else ""))
    return run


def prepare_folder(run):
    """runs/<name>, with the config. A folder from an earlier run is moved aside, never lost."""
    cfg = run.cfg
    if run.rank == 0:
        if os.path.exists(cfg.folder) and not cfg.resume:
            number = 1
            while os.path.exists(f"{cfg.folder}.old{number}"):
                number += 1
            os.rename(cfg.folder, f"{cfg.folder}.old{number}")
            run.say(f"{cfg.folder} was there: moved to {cfg.folder}.old{number}")
        os.makedirs(cfg.folder, exist_ok=True)
        run.say(textwrap.fill(" ".join(f"{k}={v}" for k, v in asdict(cfg).items()), 100))
        with open(os.path.join(cfg.folder, "config.json"), "w") as file:
            json.dump(asdict(cfg), file, indent=1)
    if run.world > 1:
        dist.barrier()


def cloned(run):
    """The folder of the tiny policy of this run; the expert is cloned if it is not there yet."""
    cfg, out = run.cfg, os.path.join(run.cfg.folder, "clone")
    if run.rank == 0 and not os.path.exists(os.path.join(out, "clone.json")):
        run.say(f"no --model: a tiny policy is cloned from {cfg.env}'s expert "
                f"({cfg.clone_steps} steps)")
        clone(Clone(env=cfg.env, families=cfg.families, episodes=cfg.clone_episodes,
                    skill=cfg.clone_skill, steps=cfg.clone_steps, lr=cfg.clone_lr,
                    width=cfg.clone_width, layers=cfg.clone_layers, heads=cfg.clone_heads,
                    format=cfg.format, context=cfg.context, seed=cfg.seed), out, run.say)
    if run.world > 1:
        dist.barrier()
    return out


def load(path, device, cfg, value_head=False):
    """A model as it is trained: float32 weights, perhaps with a value head; sharded where there are
    ranks, computing in bfloat16 on CUDA."""
    compute = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = load_policy(path, device, torch.float32, cfg.attention, compute)
    model.eval()                        # no dropout: the sampler's policy is the trainer's
    if value_head:
        add_value_head(model)
    if cfg.checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None) or \
            model.gradient_checkpointing_enable                       # its name before 5.23
        enable(dict(use_reentrant=False))
        model.train()
    if dist.is_initialized():
        from torch.distributed.fsdp import (MixedPrecisionPolicy, fully_shard,
                                            register_fsdp_forward_method)
        precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=precision)
        fully_shard(model, mp_policy=precision)
        for method in ("action_logprobs", "action_values"):
            if hasattr(model, method):
                register_fsdp_forward_method(model, method)
    return model


@contextmanager
def whole(model):
    """Within, every rank holds all the weights, so that each may sample at its own pace."""
    from torch.distributed.fsdp import FSDPModule
    shards = [m for m in model.modules() if isinstance(m, FSDPModule)]
    for m in shards:
        m.set_reshard_after_forward(False, recurse=False)
        m.unshard()
    try:
        yield
    finally:
        for m in shards:
            m.set_reshard_after_forward(m is not model, recurse=False)
            m.reshard()


# ---- one step -----------------------------------------------------------------------------------

def play_tasks(run, tasks, group_size, horizon, seed, temperature=None):
    """Every task `group_size` times, dealt over the ranks -> the same trajectories on all of them,
    groups in the order of `tasks`, and a report. A task met twice is played with other numbers."""
    cfg = run.cfg
    agent = run.agent if temperature is None else replace(run.agent, temperature=temperature)
    seen, firsts = {}, []
    for task in tasks:
        firsts.append(seen.get(task, 0) * group_size)
        seen[task] = seen.get(task, 0) + 1
    mine = range(run.rank, len(tasks), run.world)
    with whole(run.policy):
        try:
            trajectories, report = collect(
                run.policy, agent, run.client, [tasks[i] for i in mine], group_size, horizon, seed,
                first_members=[firsts[i] for i in mine], max_concurrent=cfg.max_concurrent)
        except EnvError as error:           # the other ranks wait for this one: tell them first
            trajectories, report = [], dict(groups=[], dropped=len(mine), failures=[str(error)],
                                            seconds=Counter(), tokens=Counter(), pages=0,
                                            preempted=0)
    groups = {mine[g]: trajectories[i * group_size:(i + 1) * group_size]
              for i, g in enumerate(report["groups"])}
    if run.world > 1:
        everybody = [None] * run.world
        dist.all_gather_object(everybody, (groups, report))
        groups = {i: g for part, _ in everybody for i, g in part.items()}
        report["dropped"] = sum(r["dropped"] for _, r in everybody)
        report["failures"] = [failure for _, r in everybody for failure in r["failures"]]
    if tasks and not groups:
        raise EnvError(report["failures"][-1])
    return [t for i in sorted(groups) for t in groups[i]], report


def rollout(run, horizon):
    """The step's trajectories, whole groups -> (trajectories to train on, all of them, report).
    With filter "refill" (DAPO) constant groups are replaced by further tasks, at most 3 times."""
    cfg, kept, played, reports = run.cfg, [], [], []
    wanted = cfg.tasks_per_step * cfg.group_size
    for extra in range(4 if cfg.filter == "refill" else 1):
        tasks = sample_tasks(run.tasks, cfg.tasks_per_step, run.step, cfg.seed + 1_000_003 * extra)
        trajectories, report = play_tasks(run, tasks, cfg.group_size, horizon,
                                          (cfg.seed, run.step, extra))
        played += trajectories
        reports.append(report)
        rewards = torch.tensor([t.reward for t in trajectories])
        for g in FILTERS[cfg.filter](rewards, cfg).tolist():
            kept += trajectories[g * cfg.group_size:(g + 1) * cfg.group_size]
        if len(kept) >= wanted:
            break
    return kept[:wanted], played, joined(reports)


def joined(reports):
    """Several reports of `collect` as one."""
    def added(key):
        return sum((Counter(r[key]) for r in reports), Counter())
    return dict(dropped=sum(r["dropped"] for r in reports), seconds=added("seconds"),
                tokens=added("tokens"), pages=max(r["pages"] for r in reports),
                preempted=sum(r["preempted"] for r in reports))


def deal(run, batch):
    """This rank's share of a batch: (row indices, whether they count) by micro-batch. Every rank
    gets as many, because FSDP gathers weights together; a spare one counts nothing."""
    total = int((batch.token_ids >= 0).sum())
    parts = batch.split(min(run.cfg.micro_tokens, -(-total // run.world)))
    for i in range(run.rank, -(-len(parts) // run.world) * run.world, run.world):
        yield torch.tensor(parts[i % len(parts)], device=run.device), i < len(parts)


@torch.no_grad()
def on_all_rows(run, function, batch):
    """function(part) -> (b, t) computed over the ranks' shares -> (B, T) on all of them."""
    out = torch.zeros(batch.token_ids.shape, device=run.device)
    for rows, counts in deal(run, batch):
        part = function(batch.rows(rows))
        if counts:
            out[rows, :part.shape[1]] = part
    if run.world > 1:
        dist.all_reduce(out)
    return out


def logprobs_under(run, model, batch):
    """log pi(token) of everything sampled, under `model`: (B, T), no gradient."""
    return on_all_rows(run, lambda b: token_logprobs(
        model, b.token_ids, b.response_mask, b.position_ids, run.cfg.temperature), batch)


def credit(run, batch):
    """Fill in batch.advantages (and returns, where a critic learns): plain (B, T) arithmetic."""
    cfg, mask = run.cfg, batch.response_mask
    batch.weights = mask.float()        # of each token's sample
    if cfg.importance_cap:              # in bfloat16 the sampler's numbers are not the trainer's
        sampled, batch.old_logprobs = batch.old_logprobs, logprobs_under(run, run.policy, batch)
        batch.weights = algos.importance_weights(batch.old_logprobs, sampled, cfg.importance_cap)
    if cfg.overlong_buffer:
        limit = cfg.max_turn_tokens * cfg.horizon_list[-1]
        penalty = algos.overlong_penalty(mask.sum(1), limit, cfg.overlong_buffer)
        batch.token_rewards = batch.token_rewards + penalty[:, None] * last_action(mask)
    if cfg.kl_coef:
        batch.ref_logprobs = logprobs_under(run, run.reference, batch)
        if cfg.kl_in == "reward":
            batch.token_rewards = algos.kl_penalised_rewards(
                batch.token_rewards, batch.old_logprobs, batch.ref_logprobs, mask, cfg.kl_coef)
    batch.rewards = batch.token_rewards.sum(1)
    if cfg.critic != "none":
        critic = run.critic or run.policy
        batch.values = on_all_rows(run, lambda b: token_values(
            critic, b.token_ids, b.response_mask, b.position_ids), batch)
        if cfg.turn_level:
            advantages, batch.returns = algos.turn_gae(
                batch.token_rewards, batch.values, mask, batch.turn_ids, cfg.gamma, cfg.lam,
                cfg.turn_gamma)
        else:       # the return of the whole episode on its last action token
            at_end = batch.rewards[:, None] * last_action(mask)
            advantages, batch.returns = algos.gae(at_end, batch.values, mask, cfg.gamma, cfg.lam)
        batch.advantages = algos.masked_whiten(advantages, mask)
    else:
        batch.advantages = ADVANTAGES[cfg.advantage](batch, cfg).expand(mask.shape)


def last_action(mask):
    """(B, T): 1 at each row's last action token, 0 elsewhere."""
    later = mask.long().flip(1).cumsum(1).flip(1)
    return (mask & (later == 1)).float()


def update(run, batch):
    """The policy's gradient steps on one batch -> {metric: value}.

    The gradient of a mini-batch does not depend on how it is cut into micro-batches or dealt over
    ranks: all weights are those of the whole, and the parts are summed.
    """
    cfg, sums, norms = run.cfg, torch.zeros(6, device=run.device), []
    for epoch in range(cfg.epochs * cfg.reuse):
        shuffle = torch.Generator().manual_seed(hash((cfg.seed, run.step, epoch)) % 2**31)
        for rows in torch.randperm(len(batch.rewards), generator=shuffle).chunk(cfg.mini_batches):
            mini = batch.rows(rows.to(run.device))
            mini.weights = mini.weights * WEIGHTS[cfg.weights](mini.response_mask, cfg)
            if cfg.critic != "none":
                mini.value_weights = algos.token_weights(mini.response_mask)
            total = torch.zeros((), device=run.device)
            for part_rows, counts in deal(run, mini):
                loss, figures = part_loss(run, mini.rows(part_rows))
                (loss * run.world * counts).backward()      # FSDP takes the mean over the ranks
                total += loss.detach() * counts
                sums += figures * counts
            if run.world > 1:
                dist.all_reduce(total)
            norms.append(optimizer_step(run, total))
    if run.world > 1:
        dist.all_reduce(sums)
    tokens, clipped_high, clipped_low, kl, entropy, value_loss = sums.tolist()
    tokens = max(tokens, 1)
    finite = [n for n in norms if math.isfinite(n)]
    return dict(grad_norm=sum(finite) / max(len(finite), 1), skipped=len(norms) - len(finite),
                clipped=(clipped_high + clipped_low) / tokens, clipped_high=clipped_high / tokens,
                clipped_low=clipped_low / tokens, kl=kl / tokens, entropy=entropy / tokens,
                value_loss=value_loss / max(len(norms), 1))


def part_loss(run, part):
    """The loss of a micro-batch, a sum whose weights are the mini-batch's; and sums to be logged:
    tokens, clipped above, clipped below, k3 to the sampling policy, entropy, value loss."""
    cfg, mask = run.cfg, part.response_mask
    logprobs, entropy = token_logprobs(run.policy, part.token_ids, mask, part.position_ids,
                                       cfg.temperature, entropy=True)
    if cfg.surrogate == "sequence":
        loss = algos.gspo_surrogate(logprobs, part.old_logprobs, part.advantages, mask,
                                    cfg.clip_low, cfg.clip_high)
    else:
        loss = algos.clipped_surrogate(logprobs, part.old_logprobs, part.advantages,
                                       cfg.clip_low, cfg.clip_high, cfg.dual_clip or None)
    if cfg.kl_coef and cfg.kl_in == "loss":
        penalty = {"k2": algos.kl_k2, "k3": algos.kl_k3}[cfg.kl]
        loss = loss + cfg.kl_coef * penalty(logprobs, part.ref_logprobs)
    loss = loss - cfg.entropy_coef * entropy
    total = algos.weighted_sum(loss, part.weights)
    if run.step < cfg.critic_warmup:
        total = total * 0
    value_total = torch.zeros((), device=run.device)
    if cfg.critic != "none":
        values = token_values(run.critic or run.policy, part.token_ids, mask, part.position_ids)
        value_loss = algos.clipped_value_loss(values, part.values, part.returns, cfg.value_clip)
        value_total = algos.weighted_sum(value_loss, part.value_weights)
        total = total + (1.0 if run.critic else cfg.value_coef) * value_total
    with torch.no_grad():
        log_ratio = logprobs - part.old_logprobs
        if cfg.surrogate == "sequence":
            log_ratio = (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        ratio = log_ratio.exp()
        above = (ratio > 1 + cfg.clip_high) & (part.advantages > 0) & mask
        below = (ratio < 1 - cfg.clip_low) & (part.advantages < 0) & mask
        kl = torch.where(mask, algos.kl_k3(part.old_logprobs, logprobs), 0)
        figures = torch.stack([mask.sum().float(), above.sum(), below.sum(), kl.sum(),
                               torch.where(mask, entropy, 0).sum(), value_total.detach()])
    return total, figures


def optimizer_step(run, loss):
    """Clip and step -> the gradient's norm. A loss or gradient that is not finite changes nothing
    and is counted; five in a row end the run."""
    norm = clip_gradient(run.policy, run.cfg.max_grad_norm)
    norms, optimizers = [norm, loss], [run.optimizer]
    if run.critic:
        norms.append(clip_gradient(run.critic, run.cfg.max_grad_norm))
        optimizers.append(run.critic_optimizer)
    finite = all(bool(x.isfinite()) for x in norms)
    for optimizer in optimizers:
        if finite:
            optimizer.step()
        optimizer.zero_grad()
    run.skipped_in_a_row = 0 if finite else run.skipped_in_a_row + 1
    if run.skipped_in_a_row == 5:
        raise FloatingPointError(
            f"step {run.step}: five updates in a row were not finite and have been skipped; lower "
            "--lr, or go back to a checkpoint: the last good one is in the run's folder")
    return norm.item() if finite else math.nan


def clip_gradient(model, limit):
    """The norm that the gradient had before."""
    norm = clip_grad_norm_(model.parameters(), limit)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm     # a sharded model's


def nothing_learned(trajectories):
    """What `update` would say of a step without a group to learn from. The entropy is estimated
    from what was sampled: the mean of -log pi."""
    logprobs = [p for t in trajectories for p, sampled in zip(t.old_logprobs, t.response_mask)
                if sampled]
    return dict(grad_norm=0.0, skipped=0, clipped=0.0, clipped_high=0.0, clipped_low=0.0, kl=0.0,
                entropy=-sum(logprobs) / len(logprobs), value_loss=0.0)


# ---- what is watched ----------------------------------------------------------------------------

def measure(run, trajectories, batch, report, horizon, updated):
    """The step's line of metrics: the panel on which a dying run shows first."""
    rewards = torch.tensor([t.reward for t in trajectories])
    spread = algos.group_std(rewards, run.cfg.group_size)
    turns = [turn for t in trajectories for turn in t.turns]
    sampled = [t.token_ids[turn.start:turn.end] for t in trajectories for turn in t.turns]
    start = [m["reward_std"] for m in run.history[:5]] or [spread.mean().item()]
    share = report["seconds"]
    return dict(
        step=run.step, horizon=horizon, random=random_rate(run, horizon),
        reward=rewards.mean().item(),
        success=sum(t.success for t in trajectories) / len(trajectories),
        reward_std=spread.mean().item(),
        reward_std_share=spread.mean().item() / max(sum(start) / len(start), 1e-9),
        constant_groups=(spread <= 1e-6).float().mean().item(),
        valid=sum(turn.valid for turn in turns) / max(len(turns), 1),
        turns=len(turns) / len(trajectories),
        response_length=sum(map(len, sampled)) / max(len(sampled), 1),
        distinct_3gram=algos.distinct_ngrams(sampled),
        truncated=sum(bool(t.truncated) for t in trajectories) / len(trajectories),
        trajectories=len(trajectories), trained=len(batch.rewards) if batch else 0,
        dropped=report["dropped"], **updated, **kl_to_start(batch),
        rollout_tokens=report["tokens"]["prefill"] + report["tokens"]["decode"],
        pages=report["pages"], preempted=report["preempted"],
        **{f"seconds_{k}": v for k, v in share.items()},
        **speeds(run, report, batch, updated))


def speeds(run, report, batch, updated):
    """Tokens/s of rollout and update, and achieved shares of what this machine can do
    (`machine_rates`, measured at the start).

    decode: bytes read, (weights once a step + keys and values of all cached tokens), over seconds
    of decoding and sampling, over the rate of a copy. update: FLOP, 6 per weight and trained token
    + 6 * layers * width * length^2 of each row for causal attention, over seconds, over the rate of
    a matrix product.
    """
    config, kind = run.policy.config, run.policy.compute_dtype.itemsize
    weights = sum(p.numel() for p in run.policy.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head * kind
    tokens, seconds = report["tokens"], report["seconds"]
    read = tokens["decode_steps"] * weights * kind + tokens["decode_read"] * cached
    decoding = seconds["decode"] + seconds["sampling"]
    figures = dict(
        decode_bandwidth_share=read / max(decoding, 1e-9) / run.rates[1],
        rollout_tokens_per_second=(tokens["prefill"] + tokens["decode"])
        / updated["seconds_rollout"])
    if batch:
        lengths, passes = (batch.token_ids >= 0).sum(1).double(), run.cfg.epochs * run.cfg.reuse
        flop = passes * (
            6 * weights * lengths.sum() + 6 * config.num_hidden_layers * config.hidden_size
            * (lengths ** 2).sum()).item() / run.world
        figures |= dict(
            update_flop_share=flop / updated["seconds_update"] / run.rates[0],
            update_tokens_per_second=passes * lengths.sum().item() / updated["seconds_update"])
    return figures


def random_rate(run, horizon):
    """The random player's success at this horizon: without it no success curve means anything."""
    if horizon not in run.random_rates:
        tasks = choose_tasks(run.module, "train", 200, run.cfg.families)
        run.random_rates[horizon] = builtin_rate(run.module, "random", tasks, horizon)[0]
    return run.random_rates[horizon]


@torch.no_grad()
def probe(run, trajectories):
    """How far do first replies depend on their prompts, and how far has the policy moved? Mutual
    information and retrieval accuracy (RAGEN-2) from 32 replies under 16 prompts; k3 to the start,
    whose weights are read from disk for this and dropped again."""
    firsts = [(tuple(t.token_ids[:t.turns[0].start]), t.token_ids[t.turns[0].start:t.turns[0].end])
              for t in trajectories if t.turns]
    prompts = list(dict.fromkeys(prompt for prompt, _ in firsts))[:16]
    replies = [(reply, prompts.index(prompt)) for prompt, reply in firsts if prompt in prompts]
    replies = replies[::max(1, len(replies) // 32)][:32]
    pairs = [list(x) + z for z, _ in replies for x in prompts]
    lengths = [len(z) for z, _ in replies for _ in prompts]
    scores = logprobs_under(run, run.policy, rows_of(pairs, lengths, run.device))
    scores = scores.sum(1).view(len(replies), len(prompts)).cpu()
    own = torch.tensor([column for _, column in replies])
    figures = dict(mutual_information=algos.mutual_information(scores, own),
                   retrieval_accuracy=algos.retrieval_accuracy(scores, own),
                   retrieval_chance=1 / len(prompts))
    if not run.reference:               # with one, the KL to the start is measured every step
        batch = to_batch(trajectories[:64], run.device)
        start = load(run.start_model, str(run.device), run.cfg)
        batch.ref_logprobs = logprobs_under(run, start, batch)
        figures |= kl_to_start(batch)
    return figures


def kl_to_start(batch):
    """k3 of the sampling policy to the one that training began with, where that is at hand."""
    if batch is None or batch.ref_logprobs is None:
        return {}
    mask, kl = batch.response_mask, algos.kl_k3(batch.old_logprobs, batch.ref_logprobs)
    return dict(kl_start=(torch.where(mask, kl, 0).sum() / mask.sum()).item())


def rows_of(token_lists, sampled, device):
    """Rows whose last `sampled` tokens count, as a batch for token_logprobs."""
    trajectories = []
    for ids, n in zip(token_lists, sampled):
        trajectory = Trajectory()
        trajectory.begin_context(ids[:-n])
        trajectory.add_action(ids[-n:], [0.0] * n)
        trajectories.append(trajectory)
    return to_batch(trajectories, device)


def log(run, metrics):
    """One aligned line, the same numbers as a JSON line (null: not finite), and each warning of the
    panel once -> the signals named for the first time."""
    cfg = run.cfg
    run.history.append(metrics)
    if run.rank == 0:
        with open(os.path.join(cfg.folder, "metrics.jsonl"), "a") as file:
            file.write(json.dumps({k: v if math.isfinite(v) else None for k, v in metrics.items()})
                       + "\n")
    m = metrics
    run.say(f"step {m['step']:4d} | horizon {m['horizon']:2d} | reward {m['reward']:5.2f} | "
            f"success {m['success']:4.0%} (random {m['random']:.0%}) | std {m['reward_std']:.2f} | "
            f"turns {m['turns']:4.1f} | valid {m['valid']:4.0%} | entropy {m['entropy']:.2f} | "
            f"kl {m['kl']:.4f} | clipped {m['clipped']:3.0%} | grad {m['grad_norm']:5.2f} | "
            f"{m['tokens_per_second']:6.0f} tok/s | dropped {m['dropped']}"
            + (f" | skipped {m['skipped']}" if m["skipped"] else ""))
    if m["step"] % cfg.sample_every == 0:
        parts = "  ".join(f"{k} {m[f'seconds_{k}'] / m['seconds']:.0%}" for k in
                          ("prefill", "decode", "sampling", "environment", "update"))
        run.say(f"     time: {parts} | {m['pages']} pages | rollout "
                f"{m['rollout_tokens_per_second']:.0f} tok/s, decode at "
                f"{m['decode_bandwidth_share']:.0%} of {run.rates[1] / 1e9:.0f} GB/s | update "
                f"{m.get('update_tokens_per_second', 0):.0f} tok/s, at "
                f"{m.get('update_flop_share', 0):.0%} of {run.rates[0] / 1e9:.0f} GFLOP/s")
    new = {signal: sentence for signal, sentence in algos.collapse_warnings(run.history)
           if signal not in run.warned}
    for signal, sentence in new.items():
        run.say(f"WARNING at step {m['step']}: {sentence}")
        run.notes.setdefault("warnings", []).append((m["step"], signal, sentence))
    run.warned |= set(new)
    return new


def write_samples(run, trajectories):
    """A few episodes as text, the trained tokens marked: most failures show here first."""
    if run.rank == 0:
        with open(os.path.join(run.cfg.folder, "samples.txt"), "a") as file:
            for t in trajectories[:2]:
                file.write(f"---- step {run.step} ----\n{t.text(run.agent.tokenizer)}\n")


def held_out(run, temperature, policy=None):
    """Success on held-out tasks -> {"success", "stderr", "n", "unseen", "unseen_n"}."""
    cfg, mine = run.cfg, run.policy
    run.policy = policy or mine
    trajectories, _ = play_tasks(run, run.eval_tasks, 1, cfg.horizon_list[-1],
                                 (cfg.seed, 987_654_321), temperature)
    run.policy = mine
    success, error = mean_and_error([t.success for t in trajectories])
    unseen = [t.success for t in trajectories if is_unseen(run.module, t.task_id)]
    return dict(success=success, stderr=error, n=len(trajectories),
                unseen=mean_and_error(unseen)[0], unseen_n=len(unseen))


def is_unseen(module, task_id):
    return hasattr(module, "unseen_goal") and module.unseen_goal(task_id)


def both(run, policy=None):
    """held_out as sampled (T=1) and greedy."""
    return dict(sampled=held_out(run, 1.0, policy), greedy=held_out(run, 0.0, policy))


# ---- checkpoints --------------------------------------------------------------------------------

def last_checkpoint(folder):
    """The newest whole checkpoint of a run's folder. ValueError if there is none."""
    found = [name for name in os.listdir(folder) if name.startswith("step_") and
             name[5:].isdigit()] if os.path.isdir(folder) else []
    if not found:
        raise ValueError(f"--resume: no checkpoint in {folder}; start without it, or give --name")
    return os.path.join(folder, max(found, key=lambda name: int(name[5:])))


def full_state(model, optimizer):
    """(weights, optimizer state) whole, on the CPU, under the weights' names."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True,
                                                                     cpu_offload=True))


def save(run):
    """runs/<name>/step_<n>: written aside and renamed, so that a killed run keeps the last one."""
    folder = os.path.join(run.cfg.folder, f"step_{run.step}")
    weights, optimizer = full_state(run.policy, run.optimizer)
    critic = full_state(run.critic, run.critic_optimizer) if run.critic else None
    if run.rank == 0:
        aside = folder + ".part"
        heads = {k: v for k, v in weights.items() if k.startswith("value_head")}
        weights = {k: v for k, v in weights.items() if k not in heads}
        run.policy.save_pretrained(aside, state_dict=weights)
        run.agent.tokenizer.save_pretrained(aside)
        torch.save(dict(step=run.step, optimizer=optimizer, value_head=heads, critic=critic,
                        stage=run.stage, stage_successes=run.stage_successes, notes=run.notes,
                        warned=run.warned, skipped_in_a_row=run.skipped_in_a_row),
                   os.path.join(aside, "trainer.pt"))
        os.replace(aside, folder)
    if run.world > 1:
        dist.barrier()


def restore(run, folder):
    """Everything that `save` kept; the policy's weights are loaded already."""
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, set_model_state_dict,
                                                         set_optimizer_state_dict)
    options = StateDictOptions(full_state_dict=True, strict=False)
    state = torch.load(os.path.join(folder, "trainer.pt"), weights_only=False)
    set_optimizer_state_dict(run.policy, run.optimizer, state["optimizer"], options=options)
    if state["value_head"]:
        set_model_state_dict(run.policy, state["value_head"], options=options)
    if run.critic:
        set_model_state_dict(run.critic, state["critic"][0], options=options)
        set_optimizer_state_dict(run.critic, run.critic_optimizer, state["critic"][1],
                                 options=options)
    for name in ("step", "stage", "stage_successes", "notes", "warned", "skipped_in_a_row"):
        setattr(run, name, state[name])
    path = os.path.join(run.cfg.folder, "metrics.jsonl")
    with open(path) as file:
        run.history = [m for m in map(json.loads, file) if m["step"] < run.step]
    if run.world > 1:
        dist.barrier()                          # all have read it
    if run.rank == 0:
        with open(path, "w") as file:           # what came after the checkpoint is played again
            file.writelines(json.dumps(m) + "\n" for m in run.history)


# ---- the algorithm ------------------------------------------------------------------------------

def train(run):
    """AgentGym-RL's algorithm box; `run` is changed in place."""
    cfg = run.cfg
    while run.step < cfg.steps:
        began = time.perf_counter()
        for group in run.optimizer.param_groups:
            group["lr"] = cfg.lr * (1 - (1 - cfg.lr_end) * run.step / cfg.steps)
        horizon = cfg.horizon_list[run.stage] if cfg.curriculum == "adaptive" else \
            horizon_at(run.step, cfg.horizon_list, cfg.switches)                 # 1. turns allowed
        chosen, played, report = rollout(run, horizon)            # 2. x ~ D, tau ~ pi_old, filter
        rolled = time.perf_counter()
        batch, updated = None, nothing_learned(played)
        if chosen:
            batch = to_batch(chosen, run.device)         # below here: only (B, T) arithmetic
            if cfg.train_env_tokens:
                train_on_everything(run, batch)
            credit(run, batch)                                                   # 3. A
            updated = update(run, batch)                                         # 4. pi_old <- pi
        ended = time.perf_counter()
        updated |= dict(seconds=ended - began, seconds_rollout=rolled - began,
                        seconds_update=ended - rolled,
                        tokens_per_second=sum(len(t.token_ids) for t in played) / (ended - began))
        metrics = measure(run, played, batch, report, horizon, updated)
        if cfg.probe_every and run.step % cfg.probe_every == 0:
            metrics |= probe(run, played)
        if run.step % cfg.sample_every == 0:
            write_samples(run, played)
        warnings = log(run, metrics)
        run.notes["rl_seconds"] = run.notes.get("rl_seconds", 0.0) + ended - began
        if cfg.curriculum == "adaptive":
            run.stage_successes.append(metrics["success"])
            stage = next_stage(run.stage, run.stage_successes, len(cfg.horizon_list))
            run.stage, run.stage_successes = stage, run.stage_successes * (stage == run.stage)
        run.step += 1
        if cfg.eval_every and run.step % cfg.eval_every == 0 and run.step < cfg.steps:
            run.notes["curve"].append((run.step, held_out(run, 1.0)["success"]))
            run.say(f"held out: {run.notes['curve'][-1][1]:.1%} after {run.step} steps")
        stop = cfg.stop_on_collapse and warnings
        if run.step % cfg.save_every == 0 or run.step == cfg.steps or stop:
            save(run)
        if stop:
            run.say(f"stopped at step {run.step}: --stop-on-collapse, {', '.join(warnings)}")
            break


@torch.no_grad()
def train_on_everything(run, batch):
    """--train-env-tokens, RAGEN's first code: the observations are trained on as if the policy had
    written them. An exercise: watch the panel."""
    batch.response_mask = (batch.token_ids >= 0) & (batch.position_ids > 0)
    batch.old_logprobs = logprobs_under(run, run.policy, batch)
    batch.turn_ids = torch.where(batch.response_mask, batch.turn_ids.clamp(min=0), -1)


def report(run, seconds):
    """The table at the end, result.json and curve.png."""
    cfg, notes = run.cfg, run.notes
    players = {who: builtin_rate(run.module, who, run.eval_tasks, cfg.horizon_list[-1])
               for who in ("random", "expert")}
    result = dict(env=cfg.env, algo=cfg.algo, seed=cfg.seed, seconds=round(seconds, 1),
                  steps=run.step, rl_seconds=round(notes["rl_seconds"], 1))
    rows = [("before RL", notes["before"]), ("after RL", notes["after"])]
    if "control" in notes:
        rows.append((f"control: {notes['rl_seconds']:.0f} s more cloning", notes["control"]))
    for (_, b), key in zip(rows, ("before", "after", "control")):
        s, g = b["sampled"], b["greedy"]
        result[key] = dict(sampled=s["success"], greedy=g["success"], stderr=s["stderr"], n=s["n"])
        if s["unseen_n"]:
            result.setdefault("unseen_goals", {})[key] = dict(
                sampled=s["unseen"], greedy=g["unseen"], n=s["unseen_n"])
    result |= {who: rate for who, (rate, _) in players.items()}
    result["warnings"] = notes.get("warnings", [])
    lines = [f"held-out tasks of {cfg.env}, horizon {cfg.horizon_list[-1]}, seed {cfg.seed}, "
             f"{run.step} steps of {cfg.algo}, {seconds:.0f} s in all",
             f"{'success':32} {'T=1':>7} {'± se':>6} {'greedy':>7} {'n':>4}   "
             "goals never trained on: T=1, greedy"]
    for who, b in rows:
        s, g = b["sampled"], b["greedy"]
        unseen = f"{s['unseen']:7.1%} {g['unseen']:7.1%} (n {s['unseen_n']})" * (s["unseen_n"] > 0)
        lines.append(f"{who:32} {s['success']:7.1%} {s['stderr']:6.1%} {g['success']:7.1%} "
                     f"{s['n']:4d}   {unseen}")
    for who, (rate, error) in players.items():
        lines.append(f"{who + ' player':32} {rate:7.1%} {error:6.1%} {'':7} "
                     f"{len(run.eval_tasks):4d}")
    if run.rank == 0:
        print("\n".join(lines))
        with open(os.path.join(cfg.folder, "result.json"), "w") as file:
            json.dump(result, file, indent=1)
        draw(run, result)
        print(f"{cfg.folder}: result.json, metrics.jsonl, samples.txt, curve.png, step_{run.step}/")


def draw(run, result):
    """curve.png: success while training, on held-out tasks, and the lines to judge them by."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    cfg, notes = run.cfg, run.notes
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    steps = [m["step"] + 1 for m in run.history]
    axes.plot(steps, [m["success"] for m in run.history], color="0.75", lw=1,
              label="training tasks, horizon rising")
    curve = [(0, result["before"]["sampled"]), *notes["curve"],
             (run.step, result["after"]["sampled"])]
    axes.plot(*zip(*curve), "o-", color="C0", lw=2, label="held-out tasks, T=1")
    axes.plot([0, run.step], [result["before"]["greedy"], result["after"]["greedy"]], "^--",
              color="C0", label="held-out tasks, greedy")
    if "control" in result:
        axes.axhline(result["control"]["sampled"], color="C1", ls="--",
                     label="control: cloning for the same seconds, T=1")
    axes.plot(steps, [m["random"] for m in run.history], color="C3", ls=":",
              label="random player at this horizon")
    axes.axhline(result["expert"], color="C2", ls=":", label="expert")
    axes.set(xlabel=f"steps of {cfg.algo} ({cfg.tasks_per_step} tasks x {cfg.group_size})",
             ylabel="success", ylim=(0, 1.04), title=f"{cfg.env}, seed {cfg.seed}")
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.17))
    figure.tight_layout()
    figure.savefig(os.path.join(cfg.folder, "curve.png"))
    plt.close(figure)


def main(argv=None):
    """Flags -> a run -> its result. Errors a user can mend are one sentence."""
    began = time.perf_counter()
    try:
        cfg = parse_flags(Config, argv, __doc__.split("\n")[0], preset)
        check(cfg)
        module = open_env(cfg.env)
        with connected(cfg.env_url, cfg.env, module.SUCCESS, cfg.env_workers,       # under torchrun
                       cfg.env_batched) as client:                # a local server for each rank
            run = setup(cfg, module, client)
            if "before" not in run.notes:
                run.notes |= dict(before=both(run), curve=[])
                b = run.notes["before"]
                run.say(f"before RL: {b['sampled']['success']:.1%} at T=1, "
                        f"{b['greedy']['success']:.1%} greedy; {b['sampled']['n']} held-out tasks")
            train(run)
            run.notes["after"] = both(run)
            if cfg.control and os.path.exists(os.path.join(run.start_model, "clone.json")) \
                    and run.world == 1 and run.notes.get("rl_seconds"):
                run.say(f"control: cloning on for {run.notes['rl_seconds']:.0f} s, without RL")
                more = continue_cloning(run.start_model, run.notes["rl_seconds"], run.say)
                run.notes["control"] = both(run, more)
            report(run, time.perf_counter() - began)
    except (ValueError, EnvError, FloatingPointError) as error:
        sys.exit(f"train.py: {error}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def preset(given):
    """What --algo, --env and --resume set where no flag says otherwise. ValueError."""
    algo = given.get("algo", Config.algo)
    if algo not in ALGOS:
        raise ValueError(f"algo={algo!r}; known: {', '.join(ALGOS)}")
    values = ALGOS[algo] | ({} if given.get("model") else TINY.get(given.get("env"), {}))
    saved = os.path.join(Config(**given).folder, "config.json")
    if given.get("resume") and os.path.exists(saved):
        with open(saved) as file:
            values = json.load(file)
        if given.get("algo", values["algo"]) != values["algo"]:
            raise ValueError(f"--resume --algo {algo}: this is a run of {values['algo']}")
    if given.keys() & {"kl", "kl_in"} and not (values | given).get("kl_coef", Config.kl_coef):
        raise ValueError("--kl and --kl-in do nothing while kl_coef is 0: give --kl-coef as well, "
                         "and the starting policy is kept as reference")
    return values


if __name__ == "__main__":
    main()
