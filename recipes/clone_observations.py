"""Cloning learns what environments answer, too: who can foretell answers may know the world better.

    OBSERVATIONS=0.3 python recipes/clone_observations.py clone --env maze       or evolve ...

A token that is read weighs OBSERVATIONS (0.3) times as much as an action of its episode. The loss
is divided by the weight of the actions alone.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import agentevol  # before torch: see there
import cloning

plain_learn_step = cloning.learn_step


def learn_step(policy, optimizer, batch, micro_tokens):
    """cloning.learn_step, of the actions and of what is read between them."""
    share = float(os.environ.get("OBSERVATIONS", 0.3))
    # A context's first token follows nothing.
    read = (batch.token_ids >= 0) & (batch.position_ids > 0) & ~batch.response_mask
    batch.weights += share * read * batch.weights.amax(1, keepdim=True)
    batch.response_mask |= read
    return plain_learn_step(policy, optimizer, batch, micro_tokens)


if __name__ == "__main__":
    cloning.learn_step = learn_step
    agentevol.main()
