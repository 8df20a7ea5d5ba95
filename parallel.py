"""parallel: a run: its flags and parts, its processes, their shares of the work, checkpoints.

Under torchrun each rank (a process, with a GPU of its own) holds a shard of the weights (FSDP2),
plays its share of the tasks and computes its share of every mini-batch. The sums over ranks are
those of one process, so 1, 2, 4 or 8 ranks take the same steps. One process on a CPU shares
nothing, and every function here does the plain thing.
"""
import argparse
import fcntl
import inspect
import itertools
import json
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import AutoTokenizer

from client import EnvError, ServersGone
from curriculum import choose_tasks, shares_of
from engine import (FORWARD_METHODS, add_value_head, from_pretrained, load_policy,
                    longest_text)
from env_server import load_env
from envs._agentgym import manner_of
from rollout import Agent, Stats, World, collect


# ---- a run --------------------------------------------------------------------------------------

@dataclass
class Notes:
    """What the final table and the curve show; kept in every checkpoint."""
    before: dict = None       # {"sampled": rate, "greedy": rate}, see held_out
    after: dict = None
    control: dict = None
    players: dict = None      # {"random", "expert": rate}
    curve: list = field(default_factory=list)       # [(step, held-out success at T=1, by env)]
    warnings: list = field(default_factory=list)    # [(step, signal, sentence)]
    written: dict = field(default_factory=dict)     # {name of a growing file: its bytes}


@dataclass
class Run:
    """The parts of a run, and what it remembers from step to step."""
    cfg: object                   # its flags
    worlds: list                  # rollout.World of each environment
    tasks: dict                   # {world: ids of its training tasks}
    eval_tasks: list              # held-out tasks: [(world, id)]
    start_model: str = ""         # folder or hub id of the policy before any RL
    policy: object = None
    optimizer: object = None
    critic: object = None         # a transformer of its own (--critic own)
    critic_optimizer: object = None
    reference: object = None      # the starting policy, frozen; None without a KL
    step: int = 0                 # the next one
    skipped_in_a_row: int = 0     # updates that were not finite
    history: list = field(default_factory=list)       # a dict of metrics for each step
    notes: Notes = field(default_factory=Notes)       # what the final table needs
    began: float = field(default_factory=time.perf_counter)   # as if never interrupted

    @property
    def device(self):
        return self.policy.device

    @property
    def rl_seconds(self):         # of all steps so far, those before a resume included
        return sum(line["seconds"] for line in self.history)


def both_splits(worlds, families, n, seen=()):
    """The tasks of each World's families -> ({world: ids of its training tasks}, [(world, id) of n
    held-out tasks, 0: all]). Training tasks (env, id) that were `seen` are left out, if others are
    there."""
    counts = shares_of(n, [1] * len(worlds)) if n else [0] * len(worlds)
    tasks, eval_tasks = {}, []
    for world, own, count in zip(worlds, families, counts):
        every = choose_tasks(world.module, "train", 0, own, world.known)
        tasks[world] = [t for t in every if (world.module.NAME, t) not in seen] or every
        eval_tasks += [(world, task) for task in
                       choose_tasks(world.module, "test", count, own, world.known)]
    return tasks, eval_tasks


def open_worlds(policy, path, modules, clients, cfg):
    """[World], how the policy of `path`, a folder or a hub id, plays each environment; without a
    policy, how an API's does. Of several environments none is played longer than its own HORIZON.
    ValueError."""
    tokenizer = from_pretrained(AutoTokenizer, path) if policy else None
    ends = policy and policy.generation_config.eos_token_id         # None, an id, or several
    most = longest_text(policy.config) if policy else math.inf
    if cfg.max_context > most:
        say(f"{path} was made for texts of up to {most} tokens: --max-context is {most}")
    worlds = []
    for module, client in zip(modules, clients, strict=True):
        prompt, known = client.servers[0].game(module)
        agent = Agent(tokenizer, prompt, cfg.format, cfg.context, history=cfg.history,
                      max_context=min(cfg.max_context, most), max_turn_tokens=cfg.max_turn_tokens,
                      temperature=cfg.temperature, thinking=cfg.thinking, module=module,
                      stop_ids=tuple(ends) if isinstance(ends, list) else (ends,))
        worlds.append(World(client, agent, math.inf if len(modules) == 1 else module.HORIZON,
                            known))
    return worlds


# ---- flags: of eval.py, agentevol.py and train.py ------------------------------------------------

# What a flag may be: a type, a range in words and as a function, which NaN never passes.
Count = Annotated[int, "1 or more", lambda x: x >= 1]
Natural = Annotated[int, "0 or more", lambda x: x >= 0]
Seed = Annotated[int, "from 0 to 2**63 - 1", lambda x: 0 <= x < 2**63]
Finite = Annotated[float, "a finite number", math.isfinite]
Positive = Annotated[float, "above 0", lambda x: 0 < x < math.inf]
NonNegative = Annotated[float, "0 or more", lambda x: 0 <= x < math.inf]
NoneOrAboveOne = Annotated[float, "above 1, or 0 for none", lambda x: x == 0 or 1 < x < math.inf]
Share = Annotated[float, "from 0 to 1", lambda x: 0 <= x <= 1]
Portion = Annotated[float, "above 0, at most 1", lambda x: 0 < x <= 1]
Limit = Annotated[float, "above 0; inf for no clipping", lambda x: x > 0]
Device = Annotated[str, "auto, cpu, or a device that torch finds here: cuda, cuda:0, ...", lambda x:
                   x in ("auto", "cpu") or re.fullmatch(r"cuda(:\d+)?", x) and
                   int(x[5:] or 0) < torch.cuda.device_count()]
Url = Annotated[str, "an address such as https://api.openai.com/v1", lambda x:
                not x or re.match("https?://[^/]", x)]
NewFile = Annotated[str, "a file in a folder that exists", lambda x: x and os.path.isdir(
    os.path.dirname(x) or ".") and not os.path.isdir(x)]
Folder = Annotated[str, "a folder, new or not, and not in a file", lambda x: x and not any(
    map(os.path.isfile, [x, *map(str, Path(x).parents)]))]
Vocabulary = Annotated[int, "259 or more", lambda x: x >= 259]
Counts = Annotated[tuple, "numbers of 1 or more, comma-separated", lambda x: x and
                   {*map(type, x)} <= {int} and min(x) > 0]
Numbers = Annotated[tuple, "whole numbers, comma-separated", lambda x: {*map(type, x)} <= {int}]


def parse_flags(kind, argv=None, description="", preset=None):
    """The flags --field-name VALUE of a dataclass -> one of it; an unknown flag is an error.

    The comment behind a field is its help, with the range that its type declares. preset(given) ->
    values between the defaults and the flags. All values pass `checked`: ValueError.
    """
    source = "".join(inspect.getsource(part) for part in kind.__mro__[-2::-1])
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", source, re.MULTILINE))
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--FLAG VALUE ...]; --help lists all")
    for f in fields(kind):
        base = getattr(f.type, "__origin__", f.type)    # int of Annotated[int, ...]; Literal, tuple
        if base is bool:
            extra = dict(action=argparse.BooleanOptionalAction)
        elif base is Literal:
            extra = dict(metavar=" | ".join(get_args(f.type)))
        elif base is tuple:
            extra = dict(type=whole_numbers, metavar="INT,INT,...")
        else:
            extra = dict(type=base, metavar=base.__name__.upper())
        default = ",".join(map(str, f.default)) if type(f.default) is tuple else repr(f.default)
        words = [comments.get(f.name, ""), *getattr(f.type, "__metadata__", [])[:1]]
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, **extra,
                            help=f"{'; '.join(words)} ({default})".replace("%", "%%"),
                            default=argparse.SUPPRESS)
    given = vars(parser.parse_args(argv))
    return checked(kind, (preset(given) if preset else {}) | given)


def checked(kind, values):
    """{field: value}, of flags, a preset or a JSON file, as the dataclass `kind`. ValueError: a
    field that it has not, or a value that is not what its field declares."""
    unknown = values.keys() - {f.name for f in fields(kind)}
    if unknown:
        raise ValueError(f"no such flags: {', '.join(sorted(unknown))}")
    values = {k: tuple(v) if type(v) is list else v for k, v in values.items()}     # of JSON
    for f in fields(kind):
        value, base = values.get(f.name, f.default), getattr(f.type, "__origin__", f.type)
        expected, fits = getattr(f.type, "__metadata__", (base.__name__, lambda x: True))
        if base is Literal:
            if value not in get_args(f.type):
                raise ValueError(f"{f.name}={value!r}; known: "
                                 f"{', '.join(filter(None, get_args(f.type)))}")
        elif type(value) not in (base, int if base is float else base) or not fits(value):
            raise ValueError(f"{f.name}={value!r}: expected {expected}")
    names = values.get("env", getattr(kind, "env", "")).split(",")
    if len({*names}) < len(names):
        raise ValueError(f"env={','.join(names)!r}: expected each environment once")
    if values.get("format") == "agentgym" and not values.get("suite"):      # all have one
        for name in names:
            manner_of(name)
    return kind(**values)


def whole_numbers(text):
    return tuple(map(int, text.split(",")))


SPEAKS = "format", "context", "history", "thinking", "max_turn_tokens", "max_context"
CHAT_MODEL = dict(format="react", max_turn_tokens=512, max_context=8192)


def model_defaults(model):
    """How a model speaks unless flags say otherwise: as it was trained or cloned, or as suits a
    pretrained chat model -> {field of SPEAKS: value}."""
    trained, cloned = (read_json(os.path.join(model, name), {})
                       for name in ("trainer.json", "clone.json"))
    return trained.get("speaks") or {k: cloned[k] for k in SPEAKS if k in cloned} or CHAT_MODEL


def begun(kind, folder, given, same):
    """{field: value} with which the run to be resumed was begun. ValueError if flags would make it
    another run: same, the fields that must not change."""
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        raise ValueError(f"--resume: no {path}; start without it, or give the run's own name")
    values = vars(checked(kind, read_json(path)))
    for name in same:
        old, new = values[name], given.get(name, values[name])
        if new != old:
            raise ValueError(f"--resume: {name}={new!r}, but {folder} was begun with {name}="
                             f"{old!r}; leave it out, or start another run")
    return values


def tiny_settings(env, defaults):
    """What the environments ask of a tiny policy (their TINY), in train.py's flags. Of several: all
    families, the lower learning rate, the longer horizons, of other numbers the larger, and texts
    only if they agree. defaults: {flag: value} where an environment asks for nothing."""
    asked = [getattr(load_env(name), "TINY", {}) for name in env.split(",")]
    settings = {}
    for flag in {flag for tiny in asked for flag in tiny}:
        values = [v for v in (tiny.get(flag, defaults.get(flag)) for tiny in asked)
                  if v not in (None, "")]
        if flag == "families":
            settings[flag] = ",".join(values)
        elif type(values[0]) is not str or len({*values}) == 1:
            best = min if flag in ("lr", "clone_lr") else max
            settings[flag] = best(values, key=lambda v: v[-1] if type(v) is tuple else v)
    return settings


# ---- ranks --------------------------------------------------------------------------------------

def rank():
    """Which of the processes this is, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world():
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def say(text):
    """Print at once, by one rank for all, above a progress bar if there is one."""
    if rank() == 0:
        tqdm.write(text)
        sys.stdout.flush()


def start(device="auto"):
    """Join the other ranks, if torchrun started some -> this process's device, "cpu" or "cuda:n".

    One process on a GPU is a group of one, so that FSDP keeps float32 weights and computes in
    bfloat16.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    cuda = device.startswith("cuda")
    if cuda or "RANK" in os.environ:
        alone = {} if "RANK" in os.environ else dict(store=dist.HashStore(), rank=0, world_size=1)
        # Ranks play at their own pace, and all wait while one writes a checkpoint: NCCL's own 10
        # minutes are too few. If a rank dies, torchrun ends the others at once.
        dist.init_process_group(backend="nccl" if cuda else "gloo", timeout=timedelta(hours=2),
                                device_id=torch.device(device) if cuda else None, **alone)
    return device


def end():
    """Leave the other ranks; whatever happened, at the end of a run."""
    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_all():
    if world() > 1:
        dist.barrier()


def summed(x):
    """The tensor x added up over the ranks, in place and returned."""
    if world() > 1:
        dist.all_reduce(x)
    return x


def gathered(thing):
    """[thing of rank 0, thing of rank 1, ...] on every rank; things are pickled."""
    things = [thing] * world()
    if world() > 1:
        dist.all_gather_object(things, thing)
    return things


# ---- models -------------------------------------------------------------------------------------

def load(path, device, cfg, value_head=False):
    """A model as it is trained: float32 weights, perhaps with a critic's head; sharded where there
    are ranks, computing in bfloat16 on CUDA. path: a folder or a hub id."""
    compute = torch.bfloat16 if str(device).startswith("cuda") else torch.float32
    model = load_policy(path, str(device), torch.float32, cfg.attention, compute)
    model.eval()
    if value_head:
        add_value_head(model)
    if cfg.checkpointing:
        model.activation_checkpointing_enable(dict(use_reentrant=False))
    for module in model.modules():      # the sampler's policy is the trainer's
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if dist.is_initialized():
        shard(model, compute)
    return model


def shard(model, compute):
    """FSDP2: a unit for each decoder layer, one for the rest; gradients are averaged in float32."""
    from torch.distributed.fsdp import (MixedPrecisionPolicy, fully_shard,
                                        register_fsdp_forward_method)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    for method in FORWARD_METHODS:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)


@contextmanager
def gathered_weights(model):
    """Within, every rank holds all the weights, so that each can sample at its own pace."""
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


# ---- shares of the work --------------------------------------------------------------------------

def play_tasks(run, policy, tasks, group_size, horizon, key):
    """Each task [(World, id)] `group_size` times, dealt over the ranks -> (trajectories, Stats) of
    all ranks.

    Groups come in the order of `tasks`; one whose environment failed is left out and counted. key:
    the ints from which all random numbers of these episodes follow. On every rank alike: EnvError
    if none was played or one rank's servers are gone, ValueError if no prompt fits.
    """
    places = range(rank(), len(tasks), world())
    with gathered_weights(policy):
        try:
            mine = collect(policy, [tasks[place] for place in places], group_size, horizon, key,
                           places, max_concurrent=run.cfg.max_concurrent)
        except EnvError as error:           # the other ranks wait for this one's share
            mine = [], Stats(dropped=len(places), failures=[error])
    parts = gathered(mine)
    played = sorted((t for part, _ in parts for t in part), key=lambda t: t.key)
    stats = sum((counted for _, counted in parts), Stats())
    gone = [error for error in stats.failures if isinstance(error, ServersGone)]
    if gone or not played:
        raise (gone or stats.failures)[-1]
    if not any(t.turns for t in played):
        agent = tasks[0][0].agent
        raise ValueError(f"no prompt fits: the shortest has {min(len(t.token_ids) for t in played)}"
                         f" tokens, with a reply of {agent.max_turn_tokens} more than max_context="
                         f"{agent.max_context}; give a larger --max-context")
    return played, stats


def micro_batches(batch, max_tokens):
    """This rank's share of a batch: (row indices, real) for each micro-batch of about max_tokens.

    Every rank gets the same number of them, because FSDP gathers the weights together. A rank that
    runs out repeats a part with real = 0, by which its loss is multiplied; otherwise real is 1.
    """
    total = int((batch.token_ids >= 0).sum())
    parts = batch.parts(min(max_tokens, -(-total // world())))
    for i in range(rank(), -(-len(parts) // world()) * world(), world()):
        rows = torch.tensor(parts[i % len(parts)], device=batch.token_ids.device)
        yield rows, int(i < len(parts))


@torch.no_grad()
def on_all_rows(method, batch, max_tokens, *more):
    """A model's method(token_ids, response_mask, position_ids, *more), a number for each sampled
    token, computed by the ranks together -> (B, T) on all of them, 0 where none was sampled."""
    out = torch.zeros(batch.token_ids.shape, device=batch.token_ids.device)
    for rows, real in micro_batches(batch, max_tokens):
        part = batch.rows(rows)
        x = method(part.token_ids, part.response_mask, part.position_ids, *more)     # (A,)
        if real:
            row, column = part.response_mask.nonzero(as_tuple=True)
            out[rows[row], column] = x
    return summed(out)


def logprobs_under(run, model, batch):
    """log pi(token) of every sampled token under `model`, 0 elsewhere: (B, T), no gradient."""
    return on_all_rows(model.action_logprobs, batch, run.cfg.micro_tokens, run.cfg.temperature)


# ---- checkpoints --------------------------------------------------------------------------------
# runs/<name>/step_<n>/ is an ordinary Hugging Face folder (policy and tokenizer). Beside these lie
# trainer.safetensors (optimizer, critic, value head) and trainer.json (what the run remembers, and
# the size of each file). Both are data: to read them runs no code, as unpickling would.

@contextmanager
def claimed(folder):
    """Within, no other process can claim this run's folder: rank 0 holds a lock, which ends with
    its process however that ends. ValueError if another run holds it."""
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    with open(f"{folder}.lock", "a") as file:
        try:
            if os.environ.get("RANK", "0") == "0":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} belongs to a run that is still going on; wait for its end, "
                             "or give this run another (train.py: --name, else --out)") from None
        yield


def keep_input(cfg, *paths):
    """ValueError if a run's folder, which would be moved aside, is none of a run or holds what this
    run reads."""
    for path in filter(None, paths):
        if not cfg.resume and f"{os.path.realpath(path)}/".startswith(
                f"{os.path.realpath(cfg.folder)}/"):
            raise ValueError(f"{path} lies in this run's own folder, which would be moved aside; "
                             f"give the run another folder than {cfg.folder}")
    config = os.path.join(cfg.folder, "config.json")
    ours = os.path.exists(config) and "seed" in read_json(config)
    if os.path.exists(cfg.folder) and not (cfg.resume or ours):
        raise ValueError(f"{cfg.folder} is there, and is not the folder of a run; give another")


def prepare_folder(cfg, **more):
    """runs/<name>, with the config and more. An earlier run's folder is moved aside, never lost."""
    if rank() == 0:
        if os.path.exists(cfg.folder) and not cfg.resume:
            number = next(n for n in itertools.count(1)
                          if not os.path.exists(f"{cfg.folder}.old{n}"))
            os.rename(cfg.folder, f"{cfg.folder}.old{number}")
            say(f"{cfg.folder} was there: moved to {cfg.folder}.old{number}")
        os.makedirs(cfg.folder, exist_ok=True)
        write_json(os.path.join(cfg.folder, "config.json"), asdict(cfg) | more)
    wait_for_all()
    say(textwrap.fill(" ".join(f"{k}={v}" for k, v in asdict(cfg).items()), 100))


def cloned_settings(model):
    """The settings with which a folder's tiny policy was cloned by agentevol.py (its clone.json,
    which is handed on to the checkpoints trained from it); {} of any other checkpoint."""
    settings = read_json(os.path.join(model, "clone.json"), {})
    return {} if settings.get("model") else settings


def last_checkpoint(folder):
    """The newest whole checkpoint of a run's folder: every file is there, as long as `save` left
    it, safetensors with a whole head. What is broken in newer ones is said. ValueError if none."""
    steps = [int(name[5:]) for name in os.listdir(folder) if re.fullmatch(r"step_\d+", name)]
    for step in sorted(steps, reverse=True):
        checkpoint, name = os.path.join(folder, f"step_{step}"), "trainer.json"
        try:
            sizes = read_json(os.path.join(checkpoint, name))["sizes"]
            for name in ("trainer.safetensors", *sizes):
                path = os.path.join(checkpoint, name)
                if os.path.getsize(path) != sizes[name]:
                    raise ValueError
                if name.endswith(".safetensors"):
                    safe_open(path, "pt")
            return checkpoint
        except (OSError, ValueError, LookupError, SafetensorError):
            say(f"{os.path.join(checkpoint, name)} is missing or not whole, or an older version "
                "made it: the checkpoint before is tried")
    raise ValueError(f"--resume: no whole checkpoint in {folder}; start without --resume")


def read_json(path, missing=None):
    """The object in a JSON file; where there is no file, `missing`. ValueError: no object in it."""
    if missing is not None and not os.path.exists(path):
        return missing
    with suppress(ValueError), open(path) as file:
        if isinstance(content := json.load(file), dict):
            return content
    raise ValueError(f"{path} is not whole: no JSON object; put it back, or start anew")


def write_json(path, content):
    """Aside, then renamed: a full disk leaves the file that was there."""
    with open(path + ".part", "w") as file:
        json.dump(content, file, indent=1)
    os.replace(path + ".part", path)


def full_state(model, optimizer):
    """(weights, optimizer state), {name: tensor} each, whole and on the CPU; of tied weights the
    first. On rank 0: the others may get less."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    weights, state = get_state_dict(model, optimizer, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True))
    tied = {k for k, _ in model.named_parameters(remove_duplicate=False)} - {
        k for k, _ in model.named_parameters()}
    return ({k: v for k, v in weights.items() if k not in tied},      # buffers stay
            {k: v for k, v in state.items() if isinstance(v, torch.Tensor)})


def save_clone(policy, tokenizer, folder, settings=None):
    """A cloned policy as a Hugging Face folder, by all ranks; its settings come last: then it is
    complete. Without settings it is still to be cloned, and is no shard."""
    path = os.path.join(folder, "clone.json")
    weights = full_state(policy, [])[0] if settings else None
    if rank() == 0:
        with suppress(FileNotFoundError):
            os.remove(path)
        policy.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
        if settings:
            write_json(path, settings)
    wait_for_all()


def save(run):
    """Write the checkpoint step_<n> of the run after its last finished step: aside, then renamed,
    so that a killed run keeps the one before."""
    weights, optimizer = full_state(run.policy, run.optimizer or [])
    heads = {k: weights.pop(k) for k in [*weights] if k.startswith("value_head")}
    trainer = {"policy": heads, "optimizer": optimizer}
    if run.critic:
        trainer["critic"], trainer["critic_optimizer"] = full_state(
            run.critic, run.critic_optimizer)
    folder = os.path.join(run.cfg.folder, f"step_{run.step}")
    if rank() == 0:
        aside = folder + ".part"
        shutil.rmtree(aside, ignore_errors=True)        # what a killed run left
        run.policy.save_pretrained(aside, state_dict=weights)
        run.worlds[0].agent.tokenizer.save_pretrained(aside)
        if cloned_settings(run.start_model):    # how a tiny policy speaks goes with its weights
            shutil.copy(os.path.join(run.start_model, "clone.json"), aside)
        save_file({f"{part}/{name}": x.contiguous() for part, named in trainer.items()
                   for name, x in named.items()}, os.path.join(aside, "trainer.safetensors"))
        speaks = {name: getattr(run.cfg, name) for name in SPEAKS}
        memory = dict(step=run.step, speaks=speaks, skipped_in_a_row=run.skipped_in_a_row,
                      seconds=time.perf_counter() - run.began, notes=asdict(run.notes),
                      history=run.history,
                      sizes={f.name: f.stat().st_size for f in os.scandir(aside)})
        write_json(os.path.join(aside, "trainer.json"), memory)
        shutil.rmtree(folder, ignore_errors=True)       # what --resume found broken
        os.replace(aside, folder)
    wait_for_all()


def restore(run, folder):
    """Put back everything that `save` kept, but the policy's weights, which are loaded already.
    Learning rates and the like stay as the optimizers have them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict
    options, state = StateDictOptions(full_state_dict=True, strict=False), defaultdict(dict)
    for key, x in load_file(os.path.join(folder, "trainer.safetensors")).items():
        part, _, name = key.partition("/")
        state[part][name] = x
    for model, optimizer, weights, moments in (
            (run.policy, run.optimizer, state["policy"], state["optimizer"]),
            (run.critic, run.critic_optimizer, state["critic"], state["critic_optimizer"])):
        if optimizer:
            settings = {f"param_groups.{name}.{key}": x for name, _ in model.named_parameters()
                        for key, x in optimizer.param_groups[0].items() if key != "params"}
            set_state_dict(model, optimizer, model_state_dict=weights, options=options,
                           optim_state_dict=moments | settings)
    memory = read_json(os.path.join(folder, "trainer.json"))
    run.step, run.history = memory["step"], memory["history"]
    run.skipped_in_a_row = memory["skipped_in_a_row"]
    run.began -= memory["seconds"]
    vars(run.notes).update(memory["notes"])
