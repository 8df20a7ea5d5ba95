"""A fault to try: observations are trained on, as if the policy had written them.

    python recipes/train_on_observations.py --env textcraft_small        any flag of train.py

RAGEN's first code did so. Every token but the first counts as sampled.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import parallel
import train

credit = train.credit


def credit_everything(run, batch):
    batch.response_mask = (batch.token_ids >= 0) & (batch.position_ids > 0)
    batch.old_logprobs = parallel.logprobs_under(run, run.policy, batch)
    batch.turn_ids = torch.where(batch.response_mask, batch.turn_ids.clamp(min=0), -1)
    credit(run, batch)


if __name__ == "__main__":
    train.credit = credit_everything
    train.main()
