"""DAPO's penalty for long episodes (arXiv:2503.14476): they lose up to 1 before the token limit.

    python recipes/overlong.py --overlong-buffer 120           any flag of train.py

The limit is what a policy can sample in an episode: turns times tokens of a turn.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import train
from chat import longest_episode
from flags import Count, flag


@dataclass
class Config(train.Config):
    overlong_buffer: Count = flag(
        120, "sampled tokens before the limit over which the penalty rises",
        heading="long episodes")


def overlong_penalty(response_lengths, max_length, buffer):
    """-clip((L - (L_max - L_buf)) / L_buf, 0, 1), added to a reward. response_lengths: (B,), of
    action tokens alone. Returns (B,): 0 up to L_max - L_buf tokens, then linear down to -1."""
    return -((response_lengths - (max_length - buffer)) / buffer).clamp(0, 1)


plain_credit = train.credit


def credit(run, batch):
    """train.credit, of rewards from which the penalty is taken at the last sampled token."""
    cfg, mask = run.cfg, batch.response_mask
    longest = longest_episode(cfg.format, cfg.max_turn_tokens, cfg.horizons[-1])
    penalty = overlong_penalty(mask.sum(1), longest, cfg.overlong_buffer)
    batch.token_rewards = batch.token_rewards + penalty[:, None] * train.last_action(mask)
    plain_credit(run, batch)


if __name__ == "__main__":
    train.credit = credit
    train.main(kind=Config)
