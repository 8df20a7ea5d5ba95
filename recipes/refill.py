"""DAPO's dynamic sampling (arXiv:2503.14476): more tasks are played while too few groups differ.

    python recipes/refill.py                    any flag of train.py

Groups whose members all earned the same teach nothing (--filter varied, the default). So up to
three more waves of tasks are played, each with random numbers of its own, and of all groups that
teach something a step's worth is trained on.
"""
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import train
from rollout import Stats

plain_play_step, plain_keep_groups = train.play_step, train.keep_groups


def play_step(run, horizon):
    """train.play_step, until the batch is full or four waves were played."""
    cfg, played, stats = run.cfg, [], Stats()
    for wave in range(4):
        run.cfg = replace(cfg, seed=cfg.seed + 1_000_003 * wave)
        more, counted = plain_play_step(run, horizon)
        run.cfg = cfg
        played += more
        stats += counted
        if len(keep_groups(played, cfg)) == cfg.tasks_per_step * cfg.group_size:
            break
    return played, stats


def keep_groups(played, cfg):
    return plain_keep_groups(played, cfg)[:cfg.tasks_per_step * cfg.group_size]


if __name__ == "__main__":
    train.play_step, train.keep_groups = play_step, keep_groups
    train.main()
