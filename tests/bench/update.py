"""python -m tests.bench.update: an update against the padded way.

    python -m tests.bench.update                      shapes S and M; a minute
    python -m tests.bench.update --quick --shapes S

Against transformers' forward and backward over a padded batch (attention_mask, sdpa, float32) with
the same loss; target: ours faster by 1.4 (S), 1.8 (M). Sequences of 80 to 400 tokens in
micro-batches of about 8,000 tokens; tok/s count real tokens. Trained are the action tokens, 16 of
every 40 as in a ten-turn episode. The padded rows come in the order they were played. A ratio is
the median of the rounds' ratios.
"""
import time

import before_torch  # noqa: F401  its name says why
import numpy as np
import torch

from batch import to_batch
from episode import Trajectory
from tests.bench.engine import SHAPES, main, make_models, medians, race, ratio


def episodes(count, vocabulary):
    """`count` trajectories of random tokens, 80 to 400 long: 24 read, 16 trained, 24 read, ..."""
    rng, made = np.random.default_rng(0), []
    for length in rng.integers(80, 401, count):
        trajectory = Trajectory()
        trajectory.begin_context(rng.integers(3, vocabulary, 24).tolist())
        while (room := length - len(trajectory.token_ids)) > 0:
            n = min(16, room)
            trajectory.add_action(rng.integers(3, vocabulary, n).tolist(), [-6.0] * n)
            trajectory.add_observation(rng.integers(3, vocabulary, min(24, room - n)).tolist())
        made.append(trajectory)
    return made


def packed(model, batch):
    """Ours: log-probabilities of the trained tokens, and a gradient through them."""
    logprobs = model.action_logprobs(batch.token_ids, batch.response_mask, batch.position_ids)
    (-logprobs.sum() / batch.response_mask.sum()).backward()
    return logprobs


def padded(model, batch):
    """The same from transformers' own forward over the padded rows."""
    longest = int((batch.token_ids >= 0).sum(1).max())
    mask = batch.token_ids[:, :longest] >= 0
    ids = batch.token_ids[:, :longest].clamp(min=0)
    logits = model(ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
    logprobs = logprobs[batch.response_mask[:, 1:longest]]
    (-logprobs.sum() / batch.response_mask.sum()).backward()
    return logprobs


def bench_update(shape, args):
    ours, theirs = make_models(shape)
    made = episodes(16 if args.quick else 64, SHAPES[shape][-1])
    batch = to_batch(made)
    tokens, parts = int((batch.token_ids >= 0).sum()), batch.parts(8192)
    rows = [(part,) for part in torch.arange(len(made)).chunk(len(parts))]

    def pass_over(model, way, parts):
        began = time.perf_counter()
        for part in parts:
            way(model, batch.rows(*part))
        seconds = time.perf_counter() - began
        model.zero_grad()
        return dict(seconds=seconds)
    assert torch.allclose(packed(ours, batch.rows(torch.arange(8))),
                          padded(theirs, batch.rows(torch.arange(8))), atol=1e-4)
    seen = race(args.rounds, {"ours": lambda _: pass_over(ours, packed, parts),
                              "padded": lambda _: pass_over(theirs, padded, rows)})
    rates = {name: tokens / medians(figures)["seconds"] for name, figures in seen.items()}
    print(f"update {shape}, action tokens trained: {rates['ours']:.0f} tok/s = "
          f"{ratio(seen, 'padded'):.2f} x padded ({rates['padded']:.0f} tok/s; target "
          f"{dict(S=1.4, M=1.8)[shape]})", flush=True)


if __name__ == "__main__":
    main(__doc__, dict(update=(bench_update, [()])))
