"""Tokens on which an inexact sampler and the trainer disagree are masked, not clipped.

    python recipes/icepop.py --compute bfloat16                any flag of train.py
    python recipes/icepop.py --rule mis --importance-low 0 --importance-cap 3

rho = pi_old / pi_sampler, both at the weights that sampled; pi_old is the trainer's. The masked
tokens stay in the loss's denominators.
"""
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import train
from algos import check_aligned, importance_weights
from run import Positive, Share


@dataclass
class Config(train.Config):
    # an inexact sampler
    rule: Literal["icepop", "mis"] = "icepop"   # rho of each token, or one for a whole episode
    importance_low: Share = 0.5       # a rho below it counts as 0
    importance_cap: Positive = 5.0    # a rho above it counts as 0


def masked_weights(old_logprobs, rollout_logprobs, response_mask, low, cap):
    """rho if low <= rho <= cap, else 0: (B, T). IcePop (arXiv:2510.18855). NaN stays."""
    rho = importance_weights(old_logprobs, rollout_logprobs, response_mask, math.inf)
    return torch.where((rho < low) | (rho > cap), 0.0, rho)


def sequence_masked_weights(old_logprobs, rollout_logprobs, response_mask, low, cap):
    """The same with one rho per row, exp(sum_t log rho_t), at each of its tokens. TRL's
    `sequence_mask`, cap 3; MIS (J. Liu, Y. Li et al., "When Speed Kills Stability", 2025)."""
    check_aligned(old_logprobs, rollout_logprobs, response_mask)
    log_rho = torch.where(response_mask.bool(), old_logprobs - rollout_logprobs, 0.0)
    log_rho = log_rho.sum(1, keepdim=True).expand_as(log_rho)
    return masked_weights(log_rho, torch.zeros_like(log_rho), response_mask, low, cap)


RULES = {"icepop": masked_weights, "mis": sequence_masked_weights}
clipped_credit = train.credit


def credit(run, batch):
    """train.py's, which has pi_old computed since there is a cap; then this rule's weights."""
    clipped_credit(run, batch)
    cfg = run.cfg
    batch.weights = RULES[cfg.rule](batch.old_logprobs, batch.rollout_logprobs,
                                    batch.response_mask, cfg.importance_low, cfg.importance_cap)


if __name__ == "__main__":
    train.credit = credit
    train.main(kind=Config)
