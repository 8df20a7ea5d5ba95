"""The horizon of each step is drawn from --horizons: what ScalingInter-RL is compared with.

    python recipes/random_horizons.py --horizons 4,7,10         any flag of train.py
"""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import train


def current_horizon(run):
    """Turns an episode may take at this step; of step and seed alone, so a run can be resumed."""
    return random.Random(f"{run.cfg.seed} {run.step}").choice(run.cfg.horizons)


if __name__ == "__main__":
    train.current_horizon = current_horizon
    train.main()
