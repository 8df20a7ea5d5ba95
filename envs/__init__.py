"""The environments: one file each, and here what all of them do alike.

    env = bandit.Env()
    observation = env.reset(7)                                # task 7, one of bandit.TRAIN
    observation, reward, done, info = env.step("dragon")

An environment is some constants (tests/envs/test_envs.py checks them) and a class Env(envs.Base) with

    start(task_id)          the first observation of a task: the same text whenever it is asked for
    act(action)             one turn: (observation, reward, done, info). Any text may come;
                            nonsense is answered, changes nothing and costs the turn
    expert()                (thought, action) of a player that succeeds from here
    random_action(rng)      an action that looks legal, drawn with rng
    other_goal(rng)         (thought, action) of a player who knows the rules and plays for
                            something that the task does not ask for; not in every environment
    close()                 only where something is held: a process, a file

More may be there: ENGINE, the program that plays it, if not ours; ORIGINAL, the task ids that the
original AgentGym's server has as well (without it: all); TOOLS, the forms of the actions, for
models that call tools: `tools_of`; ONE_WORD, a regular expression of what is a single token to a
tiny policy, such as a grid's row; TINY, the flags that suit a tiny policy; PARALLEL = True: a step
may take long, and many can be taken at once; use(folder): plays with a user's data;
exact_success(task, player, horizon): of a built-in player, computed in place of being played.

info is {"success": bool, "valid": bool, "score": float}: the task is solved, which is the same as
score >= SUCCESS; the action was understood; the score of the episode so far.
"""
import importlib
import math
import multiprocessing
import os
import random
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm


class Base:
    """`reset` and `step` around an environment's own `start` and `act`."""
    done = None         # is the episode over? None: none has begun

    def reset(self, task_id, stream=None):
        """Begin an episode of this task; -> its first observation. ValueError: no such task.

        Chance within the episode is drawn from self.luck, a function of task and stream: a group
        shares its task, and so its prompt, but each trajectory has a stream of its own."""
        name, last = self.module.NAME, self.last_task()
        if type(task_id) is not int or not 0 <= task_id <= last:
            raise ValueError(f"{name}: no task {task_id!r}; tasks are 0..{last}")
        self.luck = random.Random(f"{name} {task_id} {stream}")
        observation, self.done = self.start(task_id), False
        return observation

    def step(self, action):
        """Play one turn: (observation, reward, done, info). ValueError: no episode is under way."""
        if self.done is not False:
            problem = "the episode is over; reset first" if self.done else "call reset first"
            raise ValueError(f"{self.module.NAME}: {problem}")
        action = action.encode(errors="replace").decode()   # half a surrogate pair: no tokenizer
        observation, reward, self.done, info = self.act(action)         # takes it once echoed
        return observation, reward, self.done, info

    def close(self):
        """Give back what is held: here nothing."""

    def last_task(self):
        """The largest task id; the smallest is 0."""
        return max(self.module.TRAIN[-1], self.module.TEST[-1])

    @property
    def module(self):
        """The file that defines this Env, for its NAME, TRAIN and TEST."""
        return sys.modules[type(self).__module__]

    @staticmethod
    def split_actions(reply, known, most=5):
        """Several actions in one reply (RAGEN): "Up || fly || left" -> (["up", "left"], False). The
        first `most` parts count. The flag: there was an action, and all were known."""
        parts = [part.strip().lower() for part in reply.split("||") if part.strip()][:most]
        actions = [part for part in parts if part in known]
        return actions, 0 < len(actions) == len(parts)


def tools_of(module):
    """{name: (form, JSON schema)}. A form is an action with its arguments in braces: "craft {items}
    using {ingredients}" is a tool `craft` with two strings. TOOLS maps forms to descriptions; an
    environment without it has one tool, `act`, which takes the whole action."""
    tools = {}
    for form, description in getattr(module, "TOOLS", {"{action}": "Take one action."}).items():
        name = re.sub(r"\W+", "_", form.partition("{")[0]).strip("_") or "act"     # search[{words}]
        arguments = re.findall(r"{(\w+)}", form)
        tools[name] = form, dict(type="function", function=dict(
            name=name, description=description, parameters=dict(
                type="object", properties={x: dict(type="string") for x in arguments},
                required=arguments)))
    return tools


# ---- opening one by its name --------------------------------------------------------------------

def known_envs():
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load_env(name):
    """The module envs.<name>. ValueError: there is none."""
    try:
        if not name.startswith("_"):
            return importlib.import_module(f"envs.{name}")
    except ModuleNotFoundError as missing:
        if not missing.name.startswith("envs."):
            raise       # a library that the environment needs
    raise ValueError(f"unknown environment {name!r}; there are: {', '.join(known_envs())}")


def open_env(name, folder=""):
    """The module of an environment whose engine is here. ValueError: the sentence why not. folder:
    data of the user's that it plays with, here and in servers started from here; the head of its
    file says which files they are. Or the address of an original AgentGym server, where it is then
    played: envs/parts/original.py."""
    module = load_env(name)
    folder = str(folder or os.environ.get(f"NANO_{name.upper()}_SERVER", ""))
    if re.match("https?://", folder):
        from envs.parts import original         # which builds on this file
        original.use(module, folder)
    elif folder:
        if not hasattr(module, "use"):
            raise ValueError(f"data={folder!r}: {name} takes no data; leave it out")
        module.use(folder)
    try:
        module.Env().close()
    except RuntimeError as missing:
        raise ValueError(str(missing)) from None
    return module


def folders_of(names, data):
    """--data for these environments -> {name: folder}. ValueError: it fits none of them."""
    if len(names) == 1 and data and not re.match(r"\w+=", data):
        return {names[0]: data}
    folders = dict(part.partition("=")[::2] for part in data.split(",") if part)
    if not all(folders.values()) or not {*folders} <= {*names}:
        raise ValueError(f"data={data!r}: expected NAME=FOLDER, comma-separated, of "
                         f"{', '.join(names)}")
    return folders


def open_envs(names, data=""):
    """`open_env` for each of these names, comma-separated. ValueError: one stands there twice."""
    every = names.split(",")
    if len({*every}) < len(every):
        raise ValueError(f"env={names!r}: expected each environment once")
    folders = folders_of(every, data)
    return [open_env(name, folders.get(name, "")) for name in every]


# ---- games of the built-in players --------------------------------------------------------------

class Move(NamedTuple):
    """A turn of a game: what the player saw, thought and did, and what came of it."""
    observation: str
    thought: str | None     # None: a file's, whose action is the whole reply
    action: str
    reward: float
    done: bool
    info: dict


def play(env, task_id, choose, horizon, stream=None):
    """One episode of a player, choose() -> (thought, action) -> ([Move], the last observation).
    stream: of the environment's luck, see envs.Base.reset."""
    observation = env.reset(task_id, stream)
    moves, done = [], False
    while not done and len(moves) < horizon:
        thought, action = choose()
        answer, reward, done, info = env.step(action)
        moves.append(Move(observation, thought, action, reward, done, info))
        observation = answer
    env.close()
    return moves, observation


PATIENCE = 10        # seconds: below this estimate one process plays them all


def record(name, skill, seed, task_id, horizon=0, goal="task"):
    """One episode of a player of mixed skill, who takes the expert's action with the probability
    `skill` and else a random one -> {"env", "task_id", "turns": [Move], "last": the observation
    after them, "success"}. horizon: most turns; 0: the environment's own. goal: "other" puts
    `other_goal` in the expert's place."""
    module = importlib.import_module(f"envs.{name}")
    env = module.Env()
    rng = random.Random(f"{seed} {task_id}")

    def choose():
        thought, action = env.expert() if goal == "task" else env.other_goal(rng)
        if rng.random() > skill:
            return "I try something.", env.random_action(rng)
        return thought, action

    moves, last = play(env, task_id, choose, min(horizon or math.inf, module.HORIZON))
    return dict(env=name, task_id=task_id, turns=moves, last=last,
                success=moves[-1].info["success"])


def demonstrations(name, task_ids, count, skill, seed, horizon=0, goal="task"):
    """`count` games by `record` of the first tasks. Of an expert (skill 1) successes only, so that
    others may take the place of failures; a player with luck plays every task as often as fit whole
    rounds, each with other chances. Fewer where there are no more tasks."""
    left, games = list(task_ids), []
    if skill < 1 or goal == "other":
        for n in range(max(1, count // len(left))):
            play_one = partial(record, name, skill, seed + 1_000_003 * n, horizon=horizon,
                               goal=goal)
            games += play_all(play_one, left[:count])
        return games
    while left and len(games) < count:
        missing = count - len(games)
        played = play_all(partial(record, name, skill, seed, horizon=horizon), left[:missing])
        games += [game for game in played if game["success"]]
        left = left[missing:]
    return games


def play_all(play_one, task_ids):
    """[play_one(task id) for every task], by parallel processes where it is slow (babyai's bot)."""
    began = time.perf_counter()
    games = [play_one(task_id) for task_id in task_ids[:8]]
    others = task_ids[8:]
    seconds = (time.perf_counter() - began) / 8 * len(task_ids)
    bar = partial(tqdm, desc="demonstrations", total=len(others), leave=False, delay=2,
                  disable=None)
    if seconds <= PATIENCE:
        return games + [play_one(task_id) for task_id in bar(others)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        return games + list(bar(pool.imap(play_one, others, chunksize=4)))
