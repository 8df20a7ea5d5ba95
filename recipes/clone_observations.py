"""Cloning learns what environments answer, too: who can foretell answers may know the world better.

    OBSERVATIONS=0.3 python recipes/clone_observations.py clone --env maze       or evolve ...

A token that is read weighs OBSERVATIONS (0.3) times as much as an action of its episode. The loss
is divided by the weight of the actions alone.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import agentevol  # before torch: see there
import algos
import cloning
import parallel
from batch import micro_batches, to_batch


def learn_step(policy, optimizer, trajectories, weights, cfg):
    """cloning.learn_step, of the actions and of what is read between them."""
    batch, total = to_batch(trajectories, policy.device), 0.0
    batch.weights = algos.over_weights(batch.response_mask,
                                       torch.tensor(weights, device=policy.device))
    # from here on, what is read counts as well; a context's first token follows nothing
    read = (batch.token_ids >= 0) & (batch.position_ids > 0) & ~batch.response_mask
    share = float(os.environ.get("OBSERVATIONS", 0.3))
    batch.weights += share * read * batch.weights.amax(1, keepdim=True)
    batch.response_mask |= read
    for where, real in micro_batches(batch, cfg.micro_tokens):
        part = batch.rows(*where)
        logprobs = policy.action_logprobs(part.token_ids, part.response_mask, part.position_ids)
        loss = -(logprobs * part.weights[part.response_mask]).sum() * real
        (loss * parallel.world_size()).backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return parallel.summed(total).item()


if __name__ == "__main__":
    cloning.learn_step = learn_step
    agentevol.main()
