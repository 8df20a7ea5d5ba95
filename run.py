"""run: what train.py, agentevol.py and eval.py share: a run's parts, its folder, its checkpoints.

    runs/<name>/
        config.json             the flags
        metrics.jsonl, ...      what is watched: see metrics.py
        lock                    which process writes here
        step_<n>/               a checkpoint: an ordinary Hugging Face folder, for --model and vLLM,
                                in the dtype of the computations
            prompt.txt          the rules: the system message that the policy was trained with
            trainer/            optimizer, critic, value head: each rank's rows in a file of its own
            trainer.json        what else the run remembers; all of it is data, no pickle is read
            defaults.json       flags for who goes on with this policy: how it speaks, ...

Two rules keep it simple. A run's folder is new, or resumed: nothing in it is ever overwritten by
another run. A checkpoint is whole because it was written aside, synced and renamed.
"""
import fcntl
import functools
import inspect
import json
import math
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import parallel
from chat import Agent, Speaks
from client import EnvClient, EnvError
from curriculum import choose_tasks, families_of, shares_of
from env_server import local_server
from envs import as_flag, load_env
from episode import World
from evaluation import players_of
from flags import part_of, told
from lora import adapters, base_of, save_adapters, tokenizer_path
from policy import load_tokenizer, longest_text, parameters_of

# ---- the parts of a run -------------------------------------------------------------------------

@dataclass
class Run:
    """The parts of a run, and what it remembers from step to step: REMEMBERED goes into every
    checkpoint."""
    cfg: object                   # its settings
    folder: str
    worlds: list                  # rollout.World of each environment
    tasks: dict                   # {world: ids of its training tasks}
    eval_tasks: list              # held-out tasks: [(world, id)]
    start_model: str = ""         # folder or hub id of the policy before any RL
    policy: object = None
    critic: object = None         # a transformer of its own (--critic own)
    optimizer: object = None      # of the policy and that critic
    reference: object = None      # the starting policy, frozen; None without a KL or LoRA
    began: float = 0.0            # when the process began, by time.perf_counter
    ending: int = 0               # the signal that asked this rank to end: see `ending_softly`
    control: dict = None          # the control's rates
    step: int = 0                 # the next one
    history: list = field(default_factory=list)         # a dict of metrics for each step
    evaluations: list = field(default_factory=list)     # [(step, rates)]: metrics.evaluate
    warnings: list = field(default_factory=list)        # [(step, signal, sentence)]
    written: dict = field(default_factory=dict)         # {name of a growing file: its bytes}

    @property
    def valuer(self):
        """What predicts values: a critic of its own, or the policy by its value head."""
        return self.critic or self.policy

    @property
    def trained(self):
        """{its name in a checkpoint: a model that the optimizer changes}."""
        models = {}
        if self.optimizer:
            models["policy"] = self.policy
        if self.critic:
            models["critic"] = self.critic
        return models

    @property
    def modules(self):
        """{name: the environment's file, or what its data make of it}."""
        return {world.module.NAME: world.module for world in self.worlds}

    @functools.cached_property
    def players(self):
        """{"random", "expert": the rates of each on the held-out tasks}, to judge a curve by. They
        play once."""
        return players_of(self.eval_tasks, self.cfg.horizons[-1])

    @property
    def rl_seconds(self):
        """Of all steps so far, those before a resume included."""
        return sum(line["seconds"] for line in self.history)

    def append(self, name, lines):
        """Add lines of JSON to a file of the folder, null for numbers that are not finite. What a
        killed run wrote after its last checkpoint is played again, so it is cut off."""
        if parallel.rank() != 0:
            return
        with open(os.path.join(self.folder, name), "a") as file:
            file.truncate(min(file.tell(), self.written.get(name, 0)))
            for line in lines:
                file.write(json.dumps(with_nulls(line)) + "\n")
            self.written[name] = file.tell()


REMEMBERED = ("step", "history", "evaluations", "warnings", "written")


@contextmanager
def connected(env_url, modules):
    """[an EnvClient of each environment] at these addresses (comma-separated), or at a local server
    that is started and ended. EnvError: nobody answers there; ValueError: why none can start."""
    names = [module.NAME for module in modules]
    server = nullcontext(env_url)
    if not env_url:
        server = local_server(*names, data=as_flag(modules))
    with server as urls:
        yield [EnvClient(urls, name) for name in names]


def open_worlds(policy, path, modules, clients, speaks):
    """[World], how a policy plays each environment. Of several none is played longer than its own
    HORIZON. path: the folder or hub id that the policy is of; policy: None for a built-in player or
    an API. speaks: settings, among them those of chat.Speaks. ValueError."""
    settings = part_of(vars(speaks), Speaks)
    tokenizer = None
    if policy:
        tokenizer = load_tokenizer(tokenizer_path(path))
        settings["max_context"] = longest_context(policy, path, speaks.max_context)
        ends = policy.model.generation_config.eos_token_id        # None, an id, or several
        settings["stop_ids"] = tuple(ends) if isinstance(ends, list) else (ends,)
    worlds = []
    for module, client in zip(modules, clients, strict=True):
        agent = Agent(tokenizer, module.PROMPT, module=module, **settings)
        most_turns = math.inf if len(modules) == 1 else module.HORIZON
        worlds.append(World(client, agent, most_turns))
    return worlds


def longest_context(policy, path, max_context):
    """max_context, or the length that the policy was made for, if that is less."""
    most = longest_text(policy.config)
    if max_context <= most:
        return max_context
    parallel.say(f"{path} was made for texts of up to {most} tokens: --max-context is {most}")
    return most


def both_splits(worlds, families, n, seen=()):
    """The tasks of these families -> ({world: ids of its training tasks}, [(world, id) of n
    held-out tasks, 0: all]). Training tasks (env, id) that were `seen` are left out, if others are
    there. ValueError."""
    counts = [0] * len(worlds)
    if n:
        counts = shares_of(n, len(worlds))
    tasks, eval_tasks = {}, []
    each = families_of([world.module for world in worlds], families)
    for world, own, count in zip(worlds, each, counts):
        every = choose_tasks(world.module, "train", 0, own)
        tasks[world] = [t for t in every if (world.module.NAME, t) not in seen] or every
        eval_tasks += [(world, t) for t in choose_tasks(world.module, "test", count, own)]
    return tasks, eval_tasks


@contextmanager
def ending_softly(run):
    """Within, SIGTERM or Ctrl-C asks the run to end after its step, by run.ending; a second Ctrl-C
    ends it at once."""
    def asked(number, _):
        run.ending = number
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            parallel.say("Ctrl-C: this step is finished and saved; once more ends the run at once")

    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        # A shell's job in the background does not hear Ctrl-C.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def asked_to_end(run):
    """The signal that came to one of the ranks, or 0. One that comes while they ask each other
    waits for the next step."""
    return max(parallel.gathered(run.ending))


def end_saved(run, number):
    """End the process after a save, for this signal."""
    word = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    parallel.say(f"{word}: saved at step {run.step}, --resume goes on from there, in {run.folder}")
    sys.exit(128 + number)


@contextmanager
def one_sentence(script):
    """Within, an error that a user can mend ends the process with one sentence (python -X dev: and
    its place in the code)."""
    try:
        yield
    except (ValueError, OSError, EnvError, FloatingPointError, SafetensorError) as error:
        place = ""
        if sys.flags.dev_mode:
            place = f" {inspect.trace()[-1][1:4]}"
        sys.exit(f"{script}: {error}{place}")
    except KeyboardInterrupt as error:
        print(f"\n{script}: ended by Ctrl-C{error}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except dcp.CheckpointException as error:        # of the ranks that could not write or read
        sys.exit(f"{script}: " + "; ".join(str(why) for why, _ in error.failures.values()))
    except torch.OutOfMemoryError as error:
        sys.exit(f"{script}: {error}\n`python recipes/plan.py` with the run's flags tells what "
                 "each part of it needs")


# ---- the folder and its files -------------------------------------------------------------------

def new_folder(path):
    """Make a folder -> its name: `path` or, if that is there, path-2, path-3, ... Making it is the
    lock: nothing is ever overwritten."""
    path = os.path.normpath(path)           # x/ is x, and the next is not x/-2
    folder, number = path, 1
    while True:
        try:
            os.makedirs(folder)
            break
        except FileExistsError:
            number += 1
            folder = f"{path}-{number}"
    if folder != path:
        parallel.say(f"{path} is there: the folder of this run is {folder}; --resume needs that")
    return folder


def open_folder(path, resume):
    """Make the folder of a run, a new one or with `resume` the one that is there -> its name."""
    folder = path if resume else parallel.by_first(new_folder, path)
    if not os.path.exists(folder):
        parallel.say(f"--resume: {folder} is not there, so it begins")
    if parallel.rank() == 0:
        os.makedirs(folder, exist_ok=True)
        lock(folder)
    return folder


LOCKED = {}         # the folders that this process writes to: {real path: an open file}


def lock(folder):
    """Keep other processes out of a run's folder until this one ends, however it ends. ValueError:
    another one is at work there, such as a job that Slurm has queued twice."""
    path = os.path.realpath(folder)
    if path in LOCKED:
        return
    file = open(os.path.join(folder, "lock"), "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise ValueError(f"{folder}: another process writes to this run, {file.read().strip()}; "
                         "wait until it ends, or end it") from None
    except OSError:         # this file system has no locks
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    LOCKED[path] = file


def keep_settings(folder, settings, origins):
    """Write a run's config.json, and print which settings are not their fields' defaults, with the
    places that they are from: see flags.settle."""
    if parallel.rank() == 0:
        write_json(os.path.join(folder, "config.json"), asdict(settings))
    parallel.say(f"{folder}\n{told(settings, origins)}")


def with_nulls(value):
    """The value as JSON holds it, with null for numbers that are not finite."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def write_json(path, content):
    """Aside, on the disk, then renamed: a full disk leaves the file that was there."""
    aside = f"{path}.part"
    with open(aside, "w") as file:
        json.dump(content, file, indent=1)
    sync(aside)
    os.replace(aside, path)


def sync(*paths):
    """Wait until these files and folders are on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


@contextmanager
def written_whole(folder):
    """Within, all ranks write a folder aside, at the path that is given. Then it is on the disk,
    and gets its name: a killed run leaves no half of it."""
    aside = Path(f"{folder}.part")
    if parallel.rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)        # of a killed run
    parallel.wait_for_all()
    yield aside
    parallel.wait_for_all()
    if parallel.rank() == 0:
        sync(*aside.rglob("*"), aside)
        os.replace(aside, folder)
        sync(aside.parent)
    parallel.wait_for_all()


# ---- checkpoints --------------------------------------------------------------------------------

def checkpoints(folder):
    """The paths of a run's checkpoints, step_<n>, the newest last."""
    return sorted(Path(folder).glob("step_*[0-9]"), key=lambda path: int(path.name[5:]))


def full_weights(policy):
    """{name: tensor}, whole and on the CPU, without a critic's head; of tied weights the first. On
    rank 0: the others may get less. None of a policy whose adapters alone are kept."""
    if adapters(policy):
        return None
    weights = get_model_state_dict(policy.model, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True))
    once = dict(policy.model.named_parameters()) | dict(policy.model.named_buffers())
    return {k: v for k, v in weights.items() if k in once}


def write_policy(policy, weights, tokenizer, folder, dtype=torch.float32):
    """Make `folder` an ordinary model, its numbers of this dtype, or one of adapters. weights: its
    `full_weights`, which all ranks gather together; one of them writes."""
    if weights is None:
        save_adapters(policy, folder)
    else:
        weights = {name: x.to(dtype) if x.is_floating_point() else x for name, x in weights.items()}
        policy.model.save_pretrained(folder, state_dict=weights)
        # A server computes in the dtype that is written here.
        config = json.loads(Path(folder, "config.json").read_text())
        config["dtype"] = str(dtype).removeprefix("torch.")
        write_json(Path(folder, "config.json"), config)
    tokenizer.save_pretrained(folder)
    # Who serves it may be another user, and safetensors writes for this one alone.
    for path in Path(folder).iterdir():
        if path.is_file():
            path.chmod(0o644)


def trainer_state(models, optimizer, rounded):
    """{name: tensor} of what a checkpoint keeps beside the policy's folder: the live tensors, into
    which `restore` reads; of sharded ones this rank's rows. rounded: the folder has the policy in
    16 bit, so that its weights as they are trained are kept as well."""
    state = {}
    for part, model in models.items():
        for name, weights in model.named_parameters():
            name = name.removeprefix("model.")          # what a Policy holds has names of its own
            beside = rounded or part == "critic" or name.startswith("value_head")
            if weights.requires_grad and beside:
                state[f"{part}/{name}"] = weights.detach()
            for key, x in optimizer.state.get(weights, {}).items():
                state[f"{part}_optimizer/{name}/{key}"] = x
    return state


def save(run):
    """Write the checkpoint step_<n> of the run after its last finished step, by all ranks. The last
    two keep what --resume needs; the last cfg.keep_last stay, of 0 all."""
    weights = full_weights(run.policy)
    _, settings = model_settings(run.start_model)
    settings |= part_of(vars(run.cfg), Speaks)
    memory = {name: getattr(run, name) for name in REMEMBERED}
    with written_whole(os.path.join(run.folder, f"step_{run.step}")) as aside:
        writer = dcp.HuggingFaceStorageWriter(str(aside / "trainer"), save_distributed=True)
        rounded = weights is not None and run.policy.compute_dtype != torch.float32
        dcp.save(trainer_state(run.trained, run.optimizer, rounded), storage_writer=writer)
        if parallel.rank() == 0:
            write_policy(run.policy, weights, run.worlds[0].agent.tokenizer, aside,
                         run.policy.compute_dtype)
            write_rules(run.worlds, aside)
            write_json(aside / "defaults.json", settings)
            memory["seconds"] = time.perf_counter() - run.began
            write_json(aside / "trainer.json", memory)
    if parallel.rank() == 0:
        for old in checkpoints(run.folder)[:-2]:
            shutil.rmtree(old / "trainer", ignore_errors=True)
        if run.cfg.keep_last:
            for old in checkpoints(run.folder)[:-run.cfg.keep_last]:
                shutil.rmtree(old, ignore_errors=True)


def write_rules(worlds, folder):
    """Write what the policy is told first, for who serves it: prompt.txt, or of several worlds
    prompt-<environment>.txt."""
    for world in worlds:
        name = "prompt.txt" if len(worlds) == 1 else f"prompt-{world.module.NAME}.txt"
        Path(folder, name).write_text(world.agent.start()[0]["content"])


def settings_of_model(folder):
    """A model's config.json; {} of adapters, which have none."""
    path = Path(folder, "config.json")
    return json.loads(path.read_text()) if path.exists() else {}


def last_checkpoint(folder):
    """The newest checkpoint of a run's folder, a path; None: there is none."""
    found = checkpoints(folder)
    return found[-1] if found else None


def restore(run, folder):
    """Put back everything that `save` kept, but the policy's weights, which are loaded already;
    each rank reads its own rows, whatever the number of ranks that wrote them. Learning rates and
    the like stay as the optimizer has them. ValueError: a file cannot be read."""
    try:
        memory = json.loads(Path(folder, "trainer.json").read_text())
        run.began -= memory.pop("seconds")
        vars(run).update(memory)
        reader = dcp.HuggingFaceStorageReader(os.path.join(folder, "trainer"))
        rounded = settings_of_model(folder).get("dtype", "float32") != "float32"
        dcp.load(trainer_state(run.trained, run.optimizer, rounded), storage_reader=reader)
    except (Exception, dcp.CheckpointException) as error:       # dcp's is a BaseException
        why = f"{type(error).__name__}: {error}".splitlines()[-1]       # of dcp's, the reason
        raise ValueError(f"{folder} cannot be read ({why}): damaged, or of other code? Without it "
                         "--resume goes on from the one before") from error


# ---- what models and environments ask for --------------------------------------------------------

# As TINY is, of pretrained models: (most parameters, settings). The first row was found by trials
# with SmolLM2-135M, the last is AgentGym-RL's of 3B and more, the one between them was not tried.
# Small models act without a thought; docs/pretrained.md has the figures.
CHAT_MODELS = [
    (4e8, dict(format="act", max_turn_tokens=48, max_context=4096, lr=5e-5, mini_batches=2,
               clone=dict(n=400, skill=1.0, steps=50, batch=8, lr=2e-4,
                          learn_steps=60, learn_lr=1e-4))),
    (2e9, dict(format="react", max_turn_tokens=128, max_context=8192, lr=5e-6,
               clone=dict(n=400, skill=1.0, steps=100, batch=16, lr=5e-5,
                          learn_steps=100, learn_lr=2e-5))),
    (math.inf, dict(format="react", max_turn_tokens=512, max_context=8192, lr=1e-6,
                    clone=dict(n=400, skill=1.0, steps=100, lr=1e-5, learn_steps=100,
                    learn_lr=1e-5))),
]


def settings_for(model, env):
    """[(where, {flag of train.py: value}, {flag of agentevol.py: value})], the weakest first: what
    the environments ask for, of a tiny policy much, of others the turns, and what the model
    brings."""
    brought = model_settings(model)
    if "tiny" in brought[1]:
        asked = [(f"environment (TINY of {env})", tiny_settings(env)), brought]
    else:
        turns = max(load_env(name).HORIZON for name in env.split(","))
        asked = [(f"environment (HORIZON of {env})", dict(horizons=(turns,))), brought]
    found = []
    for where, settings in asked:
        settings = dict(settings)
        cloning = settings.pop("clone", {})
        for note in ("tiny", "cloned"):
            settings.pop(note, None)
        found.append((where, settings, cloning))
    return found


def model_settings(model):
    """(where, how a model speaks and its rates): folders that we write bring their own, others get
    those of CHAT_MODELS. There "clone" holds flags of agentevol.py, "cloned" those by which it was cloned,
    and "tiny" says that it was from nothing, as a policy without --model is."""
    if not model:
        return "", dict(tiny=True)
    path = os.path.join(model, "defaults.json")
    if os.path.exists(path):
        return f"model ({path})", read_settings(path)
    try:
        size = parameters_of(base_of(model))
    except ValueError:          # behind an API, or refused by who loads it
        return "model", dict(CHAT_MODELS[-1][1])
    for most, settings in CHAT_MODELS:
        if size <= most:
            return f"model ({size / 1e9:.2g}B parameters)", dict(settings)


def tiny_settings(env):
    """What an environment's TINY asks for when a tiny policy plays it. Of several environments the
    first one's, with texts as long as any of them needs and the families that they name."""
    each = [getattr(load_env(name), "TINY", {}) for name in env.split(",")]
    settings = dict(each[0])
    for name in ("max_turn_tokens", "max_context"):
        settings[name] = max(tiny.get(name, getattr(Speaks, name)) for tiny in each)
    settings["families"] = ",".join(tiny["families"] for tiny in each if "families" in tiny)
    return settings


def begun(folder, given, kind, may_change):
    """{field: value} with which a run to be resumed was begun; {} if none has begun in `folder`.
    ValueError: a flag that may not change, or one of a recipe that `kind` lacks: another run."""
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        if not given.keys() - {"resume", "name", "out"}:
            there = sorted(str(run.parent) for run in Path(folder).parent.glob("*/config.json"))
            raise ValueError(f"--resume: {folder} holds no run; there are "
                             f"{', '.join(there) or 'none'}. With other flags it would begin")
        return {}
    was = read_settings(path)
    of_a_recipe = was.keys() - {setting.name for setting in fields(kind)}
    for name in (given.keys() - may_change) | of_a_recipe:
        if given.get(name) != was.get(name):
            raise ValueError(f"--resume: {name}={given.get(name)!r}, but {folder} was begun with "
                             f"{name}={was.get(name)!r}; leave it out, or start another run")
    return was


def read_settings(path):
    """{flag: value} of a JSON file, whose lists were tuples. ValueError: it is something else."""
    with open(path) as file:
        try:
            settings = dict(json.load(file))
        except (ValueError, TypeError):
            raise ValueError(f"{path} holds no JSON object; put it back, or start anew") from None
    for name, value in settings.items():
        if type(value) is list:
            settings[name] = tuple(value)
    return settings
