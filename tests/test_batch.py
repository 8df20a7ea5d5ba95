"""pytest tests/test_batch.py: trajectories as tensors, and how a batch is cut."""
import torch

from batch import to_batch
from episode import Trajectory


def test_to_batch_aligns_everything_with_its_token():
    """a: two contexts, two turns; b: one turn; c: a prompt that did not fit."""
    a, b, c = Trajectory(1), Trajectory(1), Trajectory(2)
    a.begin_context([5, 6, 7])
    a.add_action([8, 0], [-0.1, -0.2])
    a.add_observation([9])
    a.begin_context([5, 1])
    a.add_action([2], [-0.3])
    a.add_observation([0])
    a.turns[0].reward, a.turns[0].observation_hash = 0.5, 11
    a.turns[1].reward, a.turns[1].observation_hash = -1.0, 12
    b.begin_context([5])
    b.add_action([3, 3, 0], [-0.4, -0.5, -0.6])
    b.turns[0].reward, b.turns[0].observation_hash = 2.0, 11
    c.begin_context([5, 5])
    batch = to_batch([a, b, c])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 0, 9, 5, 1, 2, 0],
                                        [5, 3, 3, 0] + [-1] * 6, [5, 5] + [-1] * 8]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3],
                                           [0, 1, 2, 3] + [0] * 6, [0, 1] + [0] * 8]
    assert batch.response_mask.int().tolist() == [[0, 0, 0, 1, 1, 0, 0, 0, 1, 0],
                                                  [0, 1, 1, 1] + [0] * 6, [0] * 10]
    assert batch.response_mask.dtype == torch.bool
    want = [[0, 0, 0, -0.1, -0.2, 0, 0, 0, -0.3, 0], [0, -0.4, -0.5, -0.6] + [0] * 6, [0] * 10]
    assert torch.equal(batch.old_logprobs, torch.tensor(want))
    assert batch.turn_ids.tolist() == [[-1, -1, -1, 0, 0, -1, -1, -1, 1, -1],
                                       [-1, 0, 0, 0] + [-1] * 6, [-1] * 10]
    # the reward of a turn sits on its last sampled token, the stop token where there is one
    assert batch.token_rewards.tolist() == [[0, 0, 0, 0, 0.5, 0, 0, 0, -1, 0],
                                            [0, 0, 0, 2] + [0] * 6, [0] * 10]
    assert batch.rewards.tolist() == [-0.5, 2.0, 0.0]
    assert batch.observation_hashes.tolist() == [[11, 12], [11, -1], [-1, -1]]
    assert all(x.dtype == torch.float32 for x in (batch.old_logprobs, batch.token_rewards,
                                                  batch.rewards))


def test_batch_parts_keep_to_the_budget_and_cut_a_long_row_between_its_contexts():
    """Contexts of 4, 3, 2 and 6 tokens; beside them rows of 3, 5 and 4 that are one context each.
    Rows of like length lie together, the longest first."""
    long, *others = (Trajectory() for _ in range(4))
    for ids in ([10, 11, 12], [20, 21], [30], [40, 41, 42, 43, 44]):
        long.begin_context(ids)
        long.add_action([ids[0] + 9], [-1.0])
    for trajectory, length in zip(others, (3, 5, 4)):
        trajectory.begin_context([50] * length)
    batch = to_batch([*others, long])
    assert batch.parts(10_000) == [([3, 1, 2, 0], 0, None)]
    assert batch.parts(15) == [([3], 0, None), ([1, 2, 0], 0, None)]
    assert batch.parts(11) == [([3], 0, 9), ([3], 9, 15), ([1, 2], 0, None), ([0], 0, None)]
    assert batch.parts(7) == [([3], 0, 7), ([3], 7, 9), ([3], 9, 15),
                              ([1], 0, None), ([2, 0], 0, None)]
    assert batch.parts(1) == [([3], 0, 4), ([3], 4, 7), ([3], 7, 9), ([3], 9, 15),
                              ([1], 0, 5), ([2], 0, 4), ([0], 0, 3)]
    assert batch.parts(9, whole_rows=True) == [([3], 0, None), ([1, 2], 0, None), ([0], 0, None)]
    middle = batch.rows([3], 4, 9)
    assert middle.token_ids.tolist() == [[20, 21, 29, 30, 39]]
    assert middle.position_ids.tolist() == [[0, 1, 2, 0, 1]] and middle.rewards.shape == (1,)
    assert middle.response_mask.tolist() == [[False, False, True, False, True]]
