"""curriculum: how long an episode may be and which tasks are played: pure functions of the step.

train.py asks at the start of every step; nothing is remembered here, so a resumed run is given what
the unbroken run would have been given. Steps and stages count from 0.

    for step in range(start, steps):
        horizon = horizon_at(step, (6, 13, 20), 100)     # turns: 6, from step 100 13, from 200 20
        tasks = sample_tasks(env.TRAIN, 32, step, seed)
"""
import random
import statistics


def check_horizons(horizons):
    """Raise ValueError unless horizons are whole numbers of turns, at least 1, never decreasing."""
    if len(horizons) == 0:
        raise ValueError("no horizon: expected a number of turns, or several such as 6,13,20")
    if any(type(turns) is not int or turns < 1 for turns in horizons):
        raise ValueError(f"horizons {tuple(horizons)}: each is a whole number of turns, 1 or more")
    if any(later < earlier for earlier, later in zip(horizons, horizons[1:])):
        raise ValueError(f"horizons {tuple(horizons)}: they may not decrease")


def horizon_at(step, horizons, switch_every):
    """Turns an episode may take at this step. ScalingInter-RL (arXiv:2509.08755).

    Short episodes first, in which acting well pays quickly; longer ones leave room to explore.
    switch_every: steps per stage, h_k from step k * switch_every on, the last horizon for good; or
    a tuple with the step at which each later horizon begins. One horizon alone is fixed.
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
        if len(switches) != len(horizons) - 1 or switches != sorted(set(switches)):
            raise ValueError(f"switch steps {tuple(switches)}: {len(horizons)} horizons need "
                             f"{len(horizons) - 1} of them, increasing")
    return horizons[sum(step >= switch for switch in switches)]


def next_stage(stage, successes, stages, window=10, min_steps=30):
    """The stage to play next, moved on by one when success has stopped rising. Ours, adaptive.

    successes: success rate of every step of the PRESENT stage, oldest first. Once there are
    min_steps of them, mean(last `window`) must beat mean(the `window` before) by one standard error
    of that difference, sqrt(s1^2 / k + s2^2 / k), or the stage is over; so noise alone does not
    hold it, and a curve that is flat, falling, or at 0 or 1 ends it. The last of `stages` stays.
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
    """The stage that next_stage leads to after these success rates of all steps so far: replayed
    from the start, so that nothing but the history has to be kept."""
    stage, since = 0, 0
    for step in range(len(successes)):
        later = next_stage(stage, successes[since:step + 1], stages)
        if later != stage:
            stage, since = later, step + 1
    return stage


def choose_tasks(module, split, n, families=""):
    """n task ids of the split (0: all), of the given families only: always the same sample. Every
    k-th id would not do, since families take turns."""
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
    if not tasks:
        raise ValueError(f"{module.NAME}: the {split} split has no task of {families}")
    if not 0 < n < len(tasks):
        return tasks
    return sorted(random.Random(f"{module.NAME} {split}").sample(tasks, n))


def sample_tasks(task_ids, count, step, seed):
    """`count` task ids for this step, in random order, each task exactly once per epoch.

    The tasks are dealt like a deck of cards shuffled anew every epoch: step s takes the cards
    s * count up to (s + 1) * count. A step that lies across two epochs may hold one task twice, and
    count may exceed the deck. Depends on its arguments alone.
    """
    if len(task_ids) == 0 or count < 1 or step < 0:
        raise ValueError(f"{len(task_ids)} tasks, count={count}, step={step}: expected a task or "
                         "more, count >= 1 and step >= 0")
    tasks, epoch, deck = [], None, None
    for position in range(step * count, (step + 1) * count):
        if position // len(task_ids) != epoch:
            epoch, deck = position // len(task_ids), list(task_ids)
            random.Random(f"{seed} epoch {epoch}").shuffle(deck)
        tasks.append(deck[position % len(task_ids)])
    return tasks
