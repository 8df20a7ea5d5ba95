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

import metrics
import train
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
plain_credit, plain_update, plain_log_line = train.credit, train.update, metrics.log_line


def credit(run, batch):
    """train.credit with the trainer's pi_old, also where it computes in 32 bit; batch.weights are
    those of this rule."""
    cfg, sampled = run.cfg, batch.old_logprobs
    if run.policy.compute_dtype == torch.float32:       # in 16 bit train.credit does it
        batch.old_logprobs = logprobs_under(
            run.policy, batch, cfg.micro_tokens, cfg.temperature)
    plain_credit(run, batch)
    batch.rollout_logprobs = sampled
    batch.weights = RULES[cfg.rule](batch.old_logprobs, sampled, batch.response_mask,
                                    cfg.importance_low, cfg.importance_cap)


def corrected(rule):
    """The rule for the weights of a mini-batch, times those that `credit` has put there."""
    def weights(mini, cfg):
        return mini.weights * rule(mini, cfg)
    return weights


def update(run, batch):
    """train.update, and the share of the tokens that weigh nothing."""
    figures = plain_update(run, batch)
    weights = batch.weights[batch.response_mask]
    return figures | dict(masked=(weights == 0).float().mean().item())


def log_line(m):
    """metrics.log_line, and that share."""
    masked = m.get("masked", 0)
    return plain_log_line(m) + (f"\n          masked {masked:.0%}" if masked else "")


if __name__ == "__main__":
    train.credit, train.update, metrics.log_line = credit, update, log_line
    for name, rule in train.WEIGHTS.items():
        train.WEIGHTS[name] = corrected(rule)
    train.main(kind=Config)
