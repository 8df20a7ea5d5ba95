"""curriculum: how long an episode may be, and which tasks are played.

Pure functions of the step, which train.py calls anew at each step. Nothing is stored between the
calls, so a resumed run gets the horizons and tasks that an unbroken run would have got. Steps and
stages count from 0.

    tasks = choose_tasks(env, "train", 0)                # all of the training split
    for step in range(start, steps):
        horizon = horizon_at(step, (6, 13, 20), 100)     # 6 turns; 13 from step 100; 20 from 200
        played = sample_tasks(tasks, 32, step, seed)     # 32 task ids
"""
import random
import statistics


def check_horizons(horizons):
    """ValueError unless horizons are one or more whole numbers of turns >= 1, never decreasing."""
    if len(horizons) == 0:
        raise ValueError("no horizon: expected a number of turns, or several such as 6,13,20")
    if any(type(turns) is not int or turns < 1 for turns in horizons):
        raise ValueError(f"horizons {tuple(horizons)}: each is a whole number of turns, 1 or more")
    if any(later < earlier for earlier, later in zip(horizons, horizons[1:])):
        raise ValueError(f"horizons {tuple(horizons)}: they may not decrease")


def horizon_at(step, horizons, switch_every):
    """The number of turns an episode may take at this step. ScalingInter-RL (arXiv:2509.08755).

    Short episodes come first: they teach the policy to act well with what it knows. Longer ones
    then leave it room to explore. horizons: (h_0, h_1, ...), see check_horizons.
    switch_every: steps per stage, so that h_k holds from step k * switch_every on; or a tuple, the
    step at which h_1 begins, the step at which h_2 begins, ... The last horizon holds to the end.
    """
    check_horizons(horizons)
    if step < 0:
        raise ValueError(f"step={step}: steps count from 0")
    if isinstance(switch_every, int):
        if switch_every < 1:
            raise ValueError(f"switch_every={switch_every}: expected 1 step or more")
        switches = [switch_every * stage for stage in range(1, len(horizons))]
    else:
        switches = list(switch_every)
        if len(switches) != len(horizons) - 1 or [0, *switches] != sorted({0, *switches}):
            raise ValueError(f"switch steps {tuple(switches)}: {len(horizons)} horizons need "
                             f"{len(horizons) - 1} of them, increasing, the first above 0")
    return horizons[sum(step >= switch for switch in switches)]


def next_stage(stage, successes, stages, window=10, min_steps=30):
    """This stage, or the next one if success has stopped rising. An adaptive schedule of our own.

    successes: the success rate of every step of the CURRENT stage, oldest first. With min_steps of
    them (and two windows), compare the last k = `window` with the k before: the schedule stays in
    this stage only if the mean rose by more than one standard error of the difference, sqrt(s1^2 /
    k + s2^2 / k). So a curve that is flat or falling, or stays at 0 or 1, ends the stage. The last
    of the `stages` stages never ends.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"stage={stage}: expected 0..{stages - 1}")
    if window < 2:
        raise ValueError(f"window={window}: a standard error needs 2 steps or more")
    if stage == stages - 1 or len(successes) < max(min_steps, 2 * window):
        return stage
    before, last = successes[-2 * window:-window], successes[-window:]
    rise = statistics.fmean(last) - statistics.fmean(before)
    error = ((statistics.variance(before) + statistics.variance(last)) / window) ** 0.5
    return stage if rise > error else stage + 1


def stage_after(successes, stages):
    """The stage to which next_stage leads after these success rates, one for each step so far.

    It is computed from the history alone, so a resumed run has nothing else to remember.
    """
    stage, since = 0, 0
    for step in range(len(successes)):
        later = next_stage(stage, successes[since:step + 1], stages)
        if later != stage:
            stage, since = later, step + 1
    return stage


def choose_tasks(module, split, n, families="", only=None):
    """n task ids of an environment's split, always the same ones; all of them for n = 0.

    module: the environment's (envs/<name>.py). split: train | test. families: comma-separated; only
    their tasks, "" for all. only: the ids that the server knows; None: all. The n are a random
    sample, in ascending order: every k-th id would not be fair, since families take turns.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r}; known: train, test")
    known = set(module.FAMILIES)
    wanted = set(filter(None, families.split(",")))
    if wanted - known:
        raise ValueError(f"{module.NAME}: no families {sorted(wanted - known)}; known: "
                         f"{', '.join(module.FAMILIES)}")
    tasks = list({"train": module.TRAIN, "test": module.TEST}[split])
    if wanted:
        tasks = [t for t in tasks if module.family(t) in wanted]
    if only is not None:
        tasks = [t for t in tasks if t in only]
    if not tasks:
        raise ValueError(f"{module.NAME}: the {split} split has no task of {families}")
    if not 0 < n < len(tasks):
        return tasks
    return sorted(random.Random(f"{module.NAME} {split}").sample(tasks, n))


def sample_tasks(task_ids, count, step, seed):
    """`count` task ids for this step; every task is played exactly once per epoch.

    Each epoch is a new shuffle of task_ids, and the epochs follow each other in one long sequence,
    of which step s takes positions s * count to (s + 1) * count - 1. A step that spans two epochs
    may contain a task twice; count may exceed the number of tasks. The global random generator is
    neither read nor changed.
    """
    if len(task_ids) == 0 or count < 1 or step < 0:
        raise ValueError(f"{len(task_ids)} tasks, count={count}, step={step}: expected a task or "
                         "more, count >= 1 and step >= 0")
    tasks, epoch, shuffled = [], None, None
    for position in range(step * count, (step + 1) * count):
        if position // len(task_ids) != epoch:
            epoch, shuffled = position // len(task_ids), list(task_ids)
            random.Random(f"{seed} epoch {epoch}").shuffle(shuffled)
        tasks.append(shuffled[position % len(task_ids)])
    return tasks
