"""MaxRL (arXiv:2602.02710): a task weighs by 1 / success, so rare successes count most.

    python recipes/maxrl.py                     any flag of train.py
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import algos
import train


def maxrl_advantages(rewards, group_size):
    """A_i = (r_i - mean(r)) / mean(r), 0 in a group that earned nothing. Rewards: (B,), none below
    0; ValueError. In expectation the gradient is that of sum_k pass@k / k, k = 1..G: with groups of
    one REINFORCE, with large ones maximum likelihood."""
    if rewards.min() < 0:
        raise ValueError(f"MaxRL divides by the mean return, and one is {rewards.min():.3g}: it "
                         "needs an environment whose returns are 0 or more")
    mean = rewards.view(-1, group_size).double().mean(1, keepdim=True)
    centred = algos.group_centred(rewards, group_size)
    return torch.where(mean > 0, centred / mean.clamp(min=1e-12), 0.0).flatten().float()


if __name__ == "__main__":
    train.ADVANTAGES["maxrl"] = lambda b, cfg: maxrl_advantages(
        b.paid.sum(1), cfg.group_size)[:, None]
    train.ALGOS["maxrl"] = dict(advantage="maxrl", weights="sequence_sum")
    train.main(["--algo", "maxrl", *sys.argv[1:]])
