"""Faults of the papers' first code, to try.

    python recipes/upstream_faults.py --fault observations       any flag of train.py
    python recipes/upstream_faults.py --fault reward --algo ppo

observations: they are trained on, as if the policy had written them. Every token but the first
counts as sampled. (RAGEN)
reward: it stands on the observation that ends the episode, where rules that give each token a
return of its own do not look: `gae` and `reinforce_pp` see no reward. (AgentGym-RL)
"""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import train  # before torch: see there
from batch import logprobs_under
from flags import flag

plain_credit = train.credit


@dataclass
class Config(train.Config):
    fault: str = flag("observations", "see recipes/upstream_faults.py", ("observations", "reward"),
                      heading="what is wrong")


def credit(run, batch):
    """train.credit with the fault."""
    if run.cfg.fault == "observations":
        batch.response_mask = (batch.token_ids >= 0) & (batch.position_ids > 0)
        batch.old_logprobs = logprobs_under(
            run.policy, batch, run.cfg.micro_tokens, run.cfg.temperature)
        batch.turn_ids = torch.where(batch.response_mask, batch.turn_ids.clamp(min=0), -1)
    plain_credit(run, batch)


def of_sampled_tokens(rule):
    """The rule for advantages, where nothing of the reward stands on a sampled token."""
    def advantages(batch, cfg):
        if cfg.fault == "reward":
            batch.paid = torch.zeros_like(batch.paid)
        return rule(batch, cfg)
    return advantages


if __name__ == "__main__":
    train.credit = credit
    for name in ("gae", "turn_gae", "reinforce_pp"):
        train.ADVANTAGES[name] = of_sampled_tokens(train.ADVANTAGES[name])
    train.main(kind=Config)
