"""batch: trajectories as tensors, micro-batches, what is computed of all rows."""
import itertools
from dataclasses import dataclass

import numpy as np
import torch

from parallel import rank, summed, world_size


def micro_batches(batch, max_tokens, whole_rows=False):
    """This rank's share of a batch: (what Batch.rows takes, real) for each micro-batch of about
    max_tokens: see Batch.parts.

    Every rank gets the same number of them, because FSDP gathers the weights together. A rank that
    runs out repeats a part with real = 0, by which its loss is multiplied; otherwise real is 1.
    """
    total = int((batch.token_ids >= 0).sum())
    parts = batch.parts(min(max_tokens, -(-total // world_size())), whole_rows)
    for i in range(rank(), -(-len(parts) // world_size()) * world_size(), world_size()):
        rows, begin, end = parts[i % len(parts)]
        rows = torch.tensor(rows, device=batch.token_ids.device)
        yield (rows, begin, end), int(i < len(parts))


@torch.no_grad()
def on_all_rows(method, batch, max_tokens, *more):
    """What a model's method(token_ids, response_mask, position_ids, *more) says of each sampled
    token, (A,) numbers or several kinds of them (kinds, A), computed by the ranks together
    -> (B, T) or (kinds, B, T) on all of them, 0 where none was sampled."""
    out = None
    for (rows, begin, end), real in micro_batches(batch, max_tokens):
        part = batch.rows(rows, begin, end)
        found = method(part.token_ids, part.response_mask, part.position_ids, *more)
        if out is None:
            out = torch.zeros((*found.shape[:-1], *batch.token_ids.shape), device=found.device)
        if real:
            row, column = part.response_mask.nonzero(as_tuple=True)
            out[..., rows[row], column + begin] = found
    return summed(out)


def logprobs_under(model, batch, micro_tokens, temperature):
    """log pi(token) of every sampled token under `model`, 0 elsewhere: (B, T), no gradient."""
    return on_all_rows(model.action_logprobs, batch, micro_tokens, temperature)


@dataclass
class Batch:
    """Trajectories as tensors: (B, T) unless said, column t speaks of token t. x[response_mask] are
    the (A,) numbers of the sampled tokens, response_mask.nonzero()[:, 0] their rows."""
    token_ids: torch.Tensor          # -1 after a row's end
    position_ids: torch.Tensor       # place in its context; a 0 begins a new context
    response_mask: torch.Tensor      # bool: the policy sampled this token
    old_logprobs: torch.Tensor
    token_rewards: torch.Tensor      # a turn's reward on its last sampled token
    turn_ids: torch.Tensor           # index of the turn, -1 off the mask
    rewards: torch.Tensor            # (B,): their sums
    observation_hashes: torch.Tensor     # (B, N): see Turn; -1 after the last turn
    advantages: torch.Tensor = None  # from here on: added by the training step
    weights: torch.Tensor = None
    rollout_logprobs: torch.Tensor = None   # the sampler's; old_logprobs may become the trainer's
    ref_logprobs: torch.Tensor = None
    values: torch.Tensor = None
    returns: torch.Tensor = None
    value_weights: torch.Tensor = None

    def rows(self, index, begin=0, end=None):
        """The rows of `index`, of each its tokens begin:end -> Batch."""
        picked = {name: x[index] for name, x in vars(self).items() if x is not None}
        for name, x in picked.items():
            if x.dim() == 2 and name != "observation_hashes":
                picked[name] = x[:, begin:end]
        return Batch(**picked)

    def parts(self, tokens, whole_rows=False):
        """What to compute at a time: arguments of `rows`, for at most `tokens` tokens, longest rows
        first: attention pads the rows of a part, so their lengths should be alike. A longer row is
        a part alone if whole_rows; else it is cut between contexts, which are independent."""
        lengths = (self.token_ids >= 0).sum(1)
        parts, room = [], 0
        for row in lengths.argsort(descending=True, stable=True).tolist():
            if lengths[row] > tokens and not whole_rows:
                starts = (self.position_ids[row, :lengths[row]] == 0).nonzero()[:, 0].tolist()
                begin = 0
                for start, end in itertools.pairwise([*starts, int(lengths[row])]):
                    if begin < start and end - begin > tokens:
                        parts.append(([row], begin, start))
                        begin = start
                parts.append(([row], begin, end))
                continue
            if room < lengths[row]:
                parts.append(([], 0, None))
                room = tokens
            parts[-1][0].append(row)
            room -= int(lengths[row])
        return parts


def to_batch(trajectories, device="cpu"):
    """Trajectories, members of a group adjacent -> Batch, on the device of the training."""
    B, T = len(trajectories), max(len(t.token_ids) for t in trajectories)
    token_ids, turn_ids = np.full((B, T), -1), np.full((B, T), -1)
    position_ids, mask = np.zeros((B, T), int), np.zeros((B, T), bool)
    old_logprobs, token_rewards = np.zeros((B, T), np.float32), np.zeros((B, T), np.float32)
    hashes = np.full((B, max(len(t.turns) for t in trajectories)), -1)
    for row, trajectory in enumerate(trajectories):
        n = len(trajectory.token_ids)
        token_ids[row, :n] = trajectory.token_ids
        mask[row, :n] = trajectory.response_mask
        old_logprobs[row, :n] = trajectory.old_logprobs
        for start, end in itertools.pairwise([*trajectory.contexts, n]):
            position_ids[row, start:end] = range(end - start)
        for index, turn in enumerate(trajectory.turns):
            turn_ids[row, turn.start:turn.end] = index
            token_rewards[row, turn.end - 1] = turn.reward
            hashes[row, index] = turn.observation_hash
    return Batch(*(torch.from_numpy(x).to(device) for x in (
        token_ids, position_ids, mask, old_logprobs, token_rewards, turn_ids,
        token_rewards.sum(1), hashes)))
