"""The horizon grows when success has stopped rising, not at fixed steps: a rule of our own.

    python recipes/adaptive.py --horizons 6,10,15              any flag of train.py

The history of success rates alone decides, so a resumed run takes the stages of an unbroken one.
"""
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import train


def stopped_rising(successes, window=10, min_steps=30):
    """Whether success has stopped rising, so that a stage may end.

    successes: the success rate of every step of the current stage, oldest first. With min_steps of
    them (and two windows), compare the last k = `window` with the k before: success still rises
    only if its mean rose by more than one standard error of the difference, sqrt(s1^2 / k + s2^2 /
    k). So a curve that is flat or falling, or stays at 0 or 1, has stopped.
    """
    if len(successes) < max(min_steps, 2 * window):
        return False
    before, last = successes[-2 * window:-window], successes[-window:]
    rise = statistics.fmean(last) - statistics.fmean(before)
    error = ((statistics.variance(before) + statistics.variance(last)) / window) ** 0.5
    return rise <= error


def stage_after(successes, stages):
    """The stage, from 0, after these success rates, one for each step so far; the last of the
    `stages` never ends."""
    stage, since = 0, 0
    for steps in range(1, len(successes) + 1):
        if stage < stages - 1 and stopped_rising(successes[since:steps]):
            stage, since = stage + 1, steps
    return stage


def current_horizon(run):
    """Turns an episode may take at this step."""
    successes = [line["success"] for line in run.history]
    return run.cfg.horizons[stage_after(successes, len(run.cfg.horizons))]


if __name__ == "__main__":
    train.current_horizon = current_horizon
    train.main()
