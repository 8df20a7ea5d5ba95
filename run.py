"""run: a run: its flags, its parts, its folder, its checkpoints.
"""
import argparse
import fcntl
import hashlib
import inspect
import itertools
import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections import ChainMap
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict)
from transformers import AutoTokenizer

import parallel
from chat import Agent
from curriculum import choose_tasks, shares_of
from engine import (from_pretrained, longest_text)
from envs import load_env
from envs.parts.agentgym import manner_of
from lora import adapters, save_adapters
from rollout import World


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
    reference: object = None      # the starting policy, frozen; None without a KL or LoRA
    step: int = 0                 # the next one
    skipped_in_a_row: int = 0     # updates that were not finite
    history: list = field(default_factory=list)       # a dict of metrics for each step
    notes: Notes = field(default_factory=Notes)       # what the final table needs
    ending: bool = False          # SIGTERM came to this rank: see ends_after_step
    began: float = field(default_factory=time.perf_counter)   # as if never interrupted

    @property
    def device(self):
        return self.policy.device

    @property
    def trained(self):            # [(its name in a checkpoint, a model, the model's optimizer)]
        every = (("policy", self.policy, self.optimizer),
                 ("critic", self.critic, self.critic_optimizer))
        return [each for each in every if each[2]]

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
        parallel.say(f"{path} was made for texts of up to {most} tokens: --max-context is {most}")
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


# ---- checkpoints --------------------------------------------------------------------------------
# runs/<name>/step_<n>/ is an ordinary Hugging Face folder (policy and tokenizer). Beside these lie
# trainer/ (optimizer, critic, value head: each rank's rows in a safetensors file of its own, in a
# folder of their own, as vLLM reads all that lie beside the policy's) and trainer.json (what the
# run remembers, each file's checksum). All is data: to read it runs no code, unlike unpickling.

@contextmanager
def ends_after_step(run):
    """Within, SIGTERM lets the loop finish its step and save it; then the process ends."""
    before = signal.signal(signal.SIGTERM, lambda *_: setattr(run, "ending", True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if any(parallel.gathered(run.ending)):
        parallel.say(f"SIGTERM: saved at step {run.step}, --resume goes on from there")
        sys.exit(128 + signal.SIGTERM)


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
    if parallel.rank() == 0:
        if os.path.exists(cfg.folder) and not cfg.resume:
            number = next(n for n in itertools.count(1)
                          if not os.path.exists(f"{cfg.folder}.old{n}"))
            os.rename(cfg.folder, f"{cfg.folder}.old{number}")
            parallel.say(f"{cfg.folder} was there: moved to {cfg.folder}.old{number}")
        os.makedirs(cfg.folder, exist_ok=True)
        write_json(os.path.join(cfg.folder, "config.json"), asdict(cfg) | more)
    parallel.wait_for_all()
    parallel.say(textwrap.fill(" ".join(f"{k}={v}" for k, v in asdict(cfg).items()), 100))


def cloned_settings(model):
    """The settings with which a folder's tiny policy was cloned by agentevol.py (its clone.json,
    which is handed on to the checkpoints trained from it); {} of any other checkpoint."""
    settings = read_json(os.path.join(model, "clone.json"), {})
    return {} if settings.get("model") else settings


def last_checkpoint(folder):
    """The newest whole checkpoint of a run's folder: every file is as `save` left it, which the
    ranks share to check. What is broken in newer ones is said. ValueError if none is whole."""
    for step in reversed(steps_in(folder)):
        checkpoint, broken = os.path.join(folder, f"step_{step}"), "trainer.json"
        with suppress(OSError, ValueError, LookupError):
            kept = read_json(os.path.join(checkpoint, broken))["checksums"]
            found = ChainMap(*parallel.gathered(checksums(checkpoint, [*kept])))
            broken = next((name for name in kept if found[name] != kept[name]), "")
        if not broken:
            return checkpoint
        parallel.say(f"{os.path.join(checkpoint, broken)} is missing or not whole, or an older "
                     "version made it: the checkpoint before is tried")
    raise ValueError(f"--resume: no whole checkpoint in {folder}; start without --resume")


def steps_in(folder):
    """The n of each checkpoint step_<n> in a run's folder, rising."""
    return sorted(int(name[5:]) for name in os.listdir(folder) if re.fullmatch(r"step_\d+", name))


def checksums(folder, names):
    """{name: SHA-256 of that file, None if it is missing} of this rank's share of them."""
    found = dict.fromkeys(names[parallel.rank()::parallel.world()])
    for name in found:
        with suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def read_json(path, missing=None):
    """The object in a JSON file; where there is no file, `missing`. ValueError: no object in it."""
    if missing is not None and not os.path.exists(path):
        return missing
    with suppress(ValueError), open(path) as file:
        if isinstance(content := json.load(file), dict):
            return content
    raise ValueError(f"{path} is not whole: no JSON object; put it back, or start anew")


def write_json(path, content):
    """Aside, on the disk, then renamed: a full disk leaves the file that was there."""
    with open(path + ".part", "w") as file:
        json.dump(content, file, indent=1)
    sync(path + ".part")
    os.replace(path + ".part", path)


def full_weights(model):
    """{name: tensor}, whole and on the CPU, without a critic's head; of tied weights the first. On
    rank 0: the others may get less."""
    weights = get_model_state_dict(model, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True))
    tied = {k for k, _ in model.named_parameters(remove_duplicate=False)} - {
        k for k, _ in model.named_parameters()}
    return {k: v for k, v in weights.items()                        # buffers stay
            if k not in tied and not k.startswith("value_head")}


def save_clone(policy, tokenizer, folder, settings=None):
    """A cloned policy as a Hugging Face folder, by all ranks; its settings come last: then it is
    complete. Without settings it is still to be cloned, and is no shard."""
    path = os.path.join(folder, "clone.json")
    weights = full_weights(policy) if settings else None
    if parallel.rank() == 0:
        with suppress(FileNotFoundError):
            os.remove(path)
        policy.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
        if settings:
            write_json(path, settings)
    parallel.wait_for_all()


def trainer_state(run):
    """{name: tensor} of what a checkpoint keeps beside the policy's weights: the live tensors, into
    which `restore` reads; of sharded ones this rank's rows."""
    state = {}
    for part, model, optimizer in run.trained:
        for name, weights in model.named_parameters():
            if weights.requires_grad and (part == "critic" or name.startswith("value_head")):
                state[f"{part}/{name}"] = weights.detach()
            state |= {f"{part}_optimizer/{name}/{key}": x
                      for key, x in optimizer.state.get(weights, {}).items()}
    return state


def save(run):
    """Write the checkpoint step_<n> of the run after its last finished step: aside, on the disk,
    then renamed, so that a killed run keeps the one before. OSError: it could not be written."""
    folder = Path(run.cfg.folder, f"step_{run.step}")
    aside = Path(f"{folder}.part")
    weights = None if adapters(run.policy) else full_weights(run.policy)
    for left in Path(run.cfg.folder).glob("step_*.part") if parallel.rank() == 0 else ():
        shutil.rmtree(left)             # by a killed run
    parallel.wait_for_all()
    try:
        dcp.save(trainer_state(run), storage_writer=dcp.HuggingFaceStorageWriter(
            str(aside / "trainer"), save_distributed=True))
        if parallel.rank() == 0:
            if adapters(run.policy):
                save_adapters(run.policy, aside, run.start_model)
            else:
                run.policy.save_pretrained(aside, state_dict=weights)
            run.worlds[0].agent.tokenizer.save_pretrained(aside)
            if cloned_settings(run.start_model):    # how a tiny policy speaks goes with its weights
                shutil.copy(os.path.join(run.start_model, "clone.json"), aside)
        parallel.wait_for_all()
        names = sorted(str(x.relative_to(aside)) for x in aside.rglob("*") if x.is_file())
        sums = dict(ChainMap(*parallel.gathered(checksums(aside, names))))
        if parallel.rank() == 0:
            speaks = {name: getattr(run.cfg, name) for name in SPEAKS}
            write_json(str(aside / "trainer.json"), dict(
                step=run.step, speaks=speaks, skipped_in_a_row=run.skipped_in_a_row,
                seconds=time.perf_counter() - run.began, notes=asdict(run.notes),
                history=run.history, checksums=sums))
            sync(*aside.rglob("*"), aside)
            shutil.rmtree(folder, ignore_errors=True)       # what --resume found broken
            os.replace(aside, folder)
            sync(run.cfg.folder)
            whole = [path for n in steps_in(run.cfg.folder) if n <= run.step
                     and (path := folder.with_name(f"step_{n}") / "trainer.json").exists()]
            for path in whole[:-run.cfg.keep_checkpoints] if run.cfg.keep_checkpoints else ():
                path.unlink()           # first: half a checkpoint is none
                shutil.rmtree(path.parent, ignore_errors=True)
    except (OSError, SafetensorError, dcp.CheckpointException) as error:
        first, _ = [*getattr(error, "failures", {0: (error, None)}).values()][0]    # of its ranks
        raise OSError(f"{folder} could not be written ({first}); the checkpoints before it are "
                      "whole: make room and --resume") from error
    parallel.wait_for_all()


def sync(*paths):
    """Wait until these files and folders are on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def restore(run, folder):
    """Put back everything that `save` kept, but the policy's weights, which are loaded already;
    each rank reads its own rows, whatever the number of ranks that wrote them. Learning rates and
    the like stay as the optimizers have them."""
    reader = dcp.HuggingFaceStorageReader(os.path.join(folder, "trainer"))
    kept = reader.read_metadata().state_dict_metadata
    for part, model, optimizer in run.trained:
        get_optimizer_state_dict(model, optimizer)      # makes the moments, all 0
        for name, weights in model.named_parameters():
            if f"{part}_optimizer/{name}/step" not in kept:
                optimizer.state.pop(weights, None)      # without a gradient so far
    if kept:
        dcp.load(trainer_state(run), storage_reader=reader)
    memory = read_json(os.path.join(folder, "trainer.json"))
    run.step, run.history = memory["step"], memory["history"]
    run.skipped_in_a_row = memory["skipped_in_a_row"]
    run.began -= memory["seconds"]
    vars(run.notes).update(memory["notes"])
