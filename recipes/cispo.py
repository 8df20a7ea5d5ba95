"""CISPO (arXiv:2506.13585): the ratio is clipped, but no token loses its gradient.

    python recipes/cispo.py                     any flag of train.py

A rule of one's own is a function of flat tensors, (K,), one number per sampled token, and an entry
of a table.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import train


def cispo(logprobs, old_logprobs, advantages, rows, cfg):
    """-stop_gradient(clip(rho, 1 - e_low, 1 + e_high)) A log pi, rho = pi / pi_old: (K,)."""
    ratio = (logprobs - old_logprobs).detach().exp()
    return -ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * advantages * logprobs


if __name__ == "__main__":
    train.SURROGATES["cispo"] = cispo
    train.ALGOS["cispo"] = dict(advantage="grpo", surrogate="cispo", weights="token", clip_low=1.0)
    train.main(["--algo", "cispo", *sys.argv[1:]])
