"""curriculum: how long an episode may be, and which tasks are played.

Functions of their arguments: nothing is remembered from one step to the next, so a resumed run gets
the horizons and tasks that an unbroken run would have got. Steps and stages count from 0.

    tasks = choose_tasks(maze, "train", 0)               # all of the training split
    for step in range(start, steps):
        horizon = horizon_at(step, (6, 13, 20), 100)     # 6 turns; 13 from step 100; 20 from 200
        played = sample_tasks(tasks, 32, step, seed)     # 32 task ids
"""
import random

from envs import playable


def horizon_at(step, horizons, switch_every):
    """The number of turns an episode may take at this step. ScalingInter-RL (arXiv:2509.08755).

    Short episodes come first: they teach the policy to act well with what it knows. Longer ones
    then leave it room to explore. horizons: (h_0, h_1, ...), 1 or more turns each, never falling:
    h_k holds from step k * switch_every on, the last one to the end. A horizon that stands twice,
    6,6,20, holds for two stages. ValueError: no horizons, one below 1 or falling.
    """
    if not horizons or min(horizons) < 1 or list(horizons) != sorted(horizons):
        raise ValueError(f"horizons {horizons}: expected one number of turns or several such as "
                         "6,13,20, each 1 or more and none below the one before it")
    stage = step // switch_every
    return horizons[min(stage, len(horizons) - 1)]


def choose_tasks(module, split, n, families=""):
    """n task ids of an environment's split, always the same ones; all of them for n = 0.

    module: the environment's (envs/<name>.py). split: train | test. families: comma-separated; only
    their tasks, "" for all. Tasks that an original server does not have (`playable`) are left out.
    The n are a random sample, in ascending order: every k-th id would not be fair, since
    families take turns.
    """
    tasks = list(playable(module, split))
    if families:
        wanted = families.split(",")
        tasks = [task for task in tasks if module.family(task) in wanted]
    if not tasks:
        raise ValueError(f"{module.NAME}: the {split} split has no task of {families}")
    if not 0 < n < len(tasks):
        return tasks
    rng = random.Random(f"{module.NAME} {split}")
    return sorted(rng.sample(tasks, n))


def families_of(modules, families):
    """[the comma-separated families that each environment has]; "", all, for an environment of
    which none is named. ValueError: a family that none has."""
    wanted = families.split(",")
    each = []
    known = []
    for module in modules:
        own = [name for name in wanted if name in module.FAMILIES]
        each.append(",".join(own))
        known.append(f"{module.NAME}: {', '.join(module.FAMILIES)}")
    found = ",".join(each).split(",")
    unknown = set(wanted) - set(found) - {""}
    if unknown:
        raise ValueError(f"no families {sorted(unknown)}; known: {'; '.join(known)}")
    return each


def shares_of(count, worlds):
    """`count` tasks dealt to so many worlds, the first ones get what is left over: 32 to 3 ->
    [11, 11, 10]. ValueError: one of them gets none."""
    if count < worlds:
        raise ValueError(f"{count} tasks for {worlds} environments: some environment gets none")
    shares = []
    for world in range(worlds):
        shares.append(len(range(world, count, worlds)))
    return shares


def sample_tasks(task_ids, count, step, seed):
    """`count` task ids for this step; every task is played exactly once per epoch.

    Each epoch is a new shuffle of task_ids, and the epochs follow each other in one long sequence,
    of which step s takes positions s * count to (s + 1) * count - 1. A step that spans two epochs
    may contain a task twice; count may exceed the number of tasks. The global random generator is
    neither read nor changed.
    """
    tasks = []
    start = step * count
    for position in range(start, start + count):
        epoch, place = divmod(position, len(task_ids))
        if not tasks or place == 0:
            shuffled = list(task_ids)
            random.Random(f"{seed} epoch {epoch}").shuffle(shuffled)
        tasks.append(shuffled[place])
    return tasks
