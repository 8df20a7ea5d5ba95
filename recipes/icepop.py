"""An inexact sampler is corrected: tokens on which it and the trainer disagree weigh otherwise.

    python recipes/icepop.py --compute bfloat16                any flag of train.py
    python recipes/icepop.py --rule tis --importance-cap 2
    python recipes/icepop.py --rule mis --importance-low 0 --importance-cap 3

rho = pi_old / pi_sampler, both at the weights that sampled; pi_old is the trainer's. The masked
tokens stay in the loss's denominators.
"""
import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import train  # before torch: see there
from algos import check_aligned
from batch import logprobs_under
from flags import Positive, Share, flag


@dataclass
class Config(train.Config):
    rule: str = flag("icepop", "of RULES in recipes/icepop.py", ("icepop", "mis", "tis"),
                     heading="an inexact sampler")
    importance_low: Share = flag(0.5, "icepop, mis: a rho below it counts as 0")
    importance_cap: Positive = flag(5.0, "icepop, mis: a rho above counts as 0; tis: is cut to it")


@torch.no_grad()
def truncated_weights(old_logprobs, rollout_logprobs, response_mask, low, cap):
    """min(rho, cap): (B, T), 0 off the mask. Truncated importance sampling, TRL's `token_truncate`;
    `low` is not used."""
    check_aligned(old_logprobs, rollout_logprobs, response_mask)
    rho = (old_logprobs - rollout_logprobs).exp()
    return torch.where(response_mask.bool(), rho.clamp(max=cap), 0.0)


def masked_weights(old_logprobs, rollout_logprobs, response_mask, low, cap):
    """rho if low <= rho <= cap, else 0: (B, T). IcePop (arXiv:2510.18855). NaN stays."""
    rho = truncated_weights(old_logprobs, rollout_logprobs, response_mask, low, math.inf)
    return torch.where((rho < low) | (rho > cap), 0.0, rho)


def sequence_masked_weights(old_logprobs, rollout_logprobs, response_mask, low, cap):
    """The same with one rho per row, exp(sum_t log rho_t), at each of its tokens. TRL's
    `sequence_mask`, cap 3; MIS (J. Liu, Y. Li et al., "When Speed Kills Stability", 2025)."""
    check_aligned(old_logprobs, rollout_logprobs, response_mask)
    log_rho = torch.where(response_mask.bool(), old_logprobs - rollout_logprobs, 0.0)
    log_rho = log_rho.sum(1, keepdim=True).expand_as(log_rho)
    return masked_weights(log_rho, torch.zeros_like(log_rho), response_mask, low, cap)


RULES = {"icepop": masked_weights, "mis": sequence_masked_weights, "tis": truncated_weights}
plain_credit = train.credit


def credit(run, batch):
    """train.credit with the trainer's pi_old, also where it computes in 32 bit; then the weights
    of this rule."""
    cfg, sampled = run.cfg, batch.old_logprobs
    if run.policy.compute_dtype == torch.float32:       # in 16 bit train.credit does it
        batch.old_logprobs = logprobs_under(
            run.policy, batch, cfg.micro_tokens, cfg.temperature)
    plain_credit(run, batch)
    batch.rollout_logprobs = sampled
    batch.weights = RULES[cfg.rule](batch.old_logprobs, sampled, batch.response_mask,
                                    cfg.importance_low, cfg.importance_cap)


if __name__ == "__main__":
    train.credit = credit
    train.main(kind=Config)
