"""pytest tests/test_algos.py: each equation against arithmetic, a slow loop, or an identity."""
import itertools
import math
import random
from collections import defaultdict

import pytest
import torch

import algos

NAN = math.nan
HALF_SQRT = math.sqrt(0.5)   # std of {0, 1}, and of one step up from there


def tensor(*rows):
    return torch.tensor(rows if isinstance(rows[0], (list, tuple)) else list(rows),
                        dtype=torch.float32)


def same(got, expected, atol=1e-6):
    """Equal in shape, and in value to `atol` (or a millionth part of it); NaN equals nothing."""
    expected = torch.as_tensor(expected, dtype=torch.float32)
    assert got.shape == expected.shape
    assert torch.allclose(got.float(), expected, rtol=1e-6, atol=atol), f"{got}, not {expected}"


# ---- advantages of trajectories -----------------------------------------------------------------

def test_grpo_advantages_by_hand():
    # group 1: mean 0.5, deviations +-0.5, variance 4 * 0.25 / 3, std 0.57735
    # group 2: mean 4, deviations -3, -1, 1, 3, variance 20 / 3, std 2.58199
    got = algos.grpo_advantages(tensor(1, 0, 0, 1, 1, 3, 5, 7), 4)
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-6), 1 / (math.sqrt(20 / 3) + 1e-6)
    same(got, [a, -a, -a, a, -3 * b, -b, b, 3 * b])


def test_dr_grpo_advantages_by_hand():
    got = algos.dr_grpo_advantages(tensor(1, 0, 0, 1, 1, 3, 5, 7), 4)
    same(got, [0.5, -0.5, -0.5, 0.5, -3, -1, 1, 3])


def test_rloo_advantages_by_hand():
    # the first: 1 - (0 + 0 + 1) / 3 = 2/3; the second: 0 - (1 + 0 + 1) / 3 = -2/3
    # then 1 - (3 + 5 + 7) / 3 = -4;  3 - 13 / 3;  5 - 11 / 3;  7 - 9 / 3 = 4
    got = algos.rloo_advantages(tensor(1, 0, 0, 1, 1, 3, 5, 7), 4)
    same(got, [2 / 3, -2 / 3, -2 / 3, 2 / 3, -4, -4 / 3, 4 / 3, 4])


def test_group_std_by_hand():
    same(algos.group_std(tensor(1, 0, 0, 1, 1, 3, 5, 7), 4), [math.sqrt(1 / 3), math.sqrt(20 / 3)])


def test_grpo_advantages_of_constant_groups_and_of_one_are_exactly_zero():
    # in float32 the mean of eight 0.1 is not 0.1
    for advantages in (algos.grpo_advantages, algos.dr_grpo_advantages, algos.rloo_advantages):
        for value, size in ((0.1, 8), (0.7, 16), (0.3, 5), (0.0, 4), (-100.1, 7), (5.0, 1)):
            assert advantages(torch.full((3 * size,), value), size).tolist() == [0.0] * 3 * size
        summed_otherwise = torch.tensor([0.3, 0.1 + 0.2], dtype=torch.float64)   # not the same bits
        assert advantages(summed_otherwise, 2).tolist() == [0, 0]


def test_grpo_advantages_refuses_a_ragged_batch():
    for size in (0, 3, -1):
        with pytest.raises(RuntimeError):
            algos.grpo_advantages(torch.zeros(4), size)


# ---- advantages of tokens -----------------------------------------------------------------------
# One episode: two turns of two tokens, an observation between them, and one at the end, so that the
# last action token is not the last token. NaN stands wherever nothing may be read.

MASK = tensor([1, 1, 0, 1, 1, 0])
TURNS = torch.tensor([[0, 0, -1, 1, 1, -1]])
REWARDS = tensor([0, 0, NAN, 0, 1, NAN])
VALUES = tensor([0.5, 0.4, NAN, 0.2, 0.6, NAN])


def test_gae_by_hand():
    # gamma 0.9, lambda 0.8, product 0.72; from the right, over action tokens alone:
    # 1 - 0.6 = 0.4;  0.9 * 0.6 - 0.2 + 0.72 * 0.4 = 0.628;
    # 0.9 * 0.2 - 0.4 + 0.72 * 0.628 = 0.23216;  0.9 * 0.4 - 0.5 + 0.72 * 0.23216 = 0.0271552
    advantages, returns = algos.gae(REWARDS, VALUES, MASK, 0.9, 0.8)
    same(advantages, [[0.0271552, 0.23216, 0, 0.628, 0.4, 0]])
    same(returns, [[0.5271552, 0.63216, 0, 0.828, 1.0, 0]])   # plus the values


def test_gae_reads_no_value_of_an_observation():
    junk = torch.where(MASK > 0, VALUES, 50.0)
    advantages, _ = algos.gae(torch.where(MASK > 0, REWARDS, 7.0), junk, MASK, 0.9, 0.8)
    same(advantages, [[0.0271552, 0.23216, 0, 0.628, 0.4, 0]])


def test_gae_of_one_turn_is_the_textbook_sum():
    torch.manual_seed(0)
    rewards, values = torch.randn(3, 7), torch.randn(3, 7)
    gamma, lam = 0.97, 0.9
    delta = rewards + gamma * torch.cat([values[:, 1:], torch.zeros(3, 1)], 1) - values
    expected = torch.zeros(3, 7)
    for t in range(7):
        for later in range(t, 7):
            expected[:, t] += (gamma * lam) ** (later - t) * delta[:, later]
    same(algos.gae(rewards, values, torch.ones(3, 7), gamma, lam)[0], expected, 1e-5)


def test_gae_is_a_constant_of_the_gradient():
    values = VALUES.clone().requires_grad_()
    advantages, returns = algos.gae(REWARDS, values, MASK, 0.9, 0.8)
    assert not advantages.requires_grad and not returns.requires_grad


def test_turn_gae_by_hand():
    # gamma_H = 0.5. Turns: A_1 = 1 - 0.6 = 0.4, its target 0.4 + 0.6 = 1.0;
    # A_0 = 0 + 0.5 * 0.6 - 0.4 + 0.5 * 0.8 * 0.4 = 0.06, its target 0.46 (the turn earned 0: still
    # a turn). Tokens: turn 1 as in gae: 0.628, 0.4; turn 0: 0.46 - 0.4 = 0.06 and
    # 0.9 * 0.4 - 0.5 + 0.72 * 0.06 = -0.0968
    advantages, returns = algos.turn_gae(REWARDS, VALUES, MASK, TURNS, 0.9, 0.8, 0.5)
    same(advantages, [[-0.0968, 0.06, 0, 0.628, 0.4, 0]])
    same(returns, [[0.4032, 0.46, 0, 0.828, 1.0, 0]])


def test_turn_gae_of_one_turn_is_gae():
    torch.manual_seed(1)
    mask = (torch.rand(4, 9) < 0.6).int()
    rewards, values = torch.randn(4, 9), torch.randn(4, 9)
    got = algos.turn_gae(rewards, values, mask, torch.where(mask > 0, 0, -1), 0.9, 0.8, 0.3)
    for a, b in zip(got, algos.gae(rewards, values, mask, 0.9, 0.8)):
        same(a, b, 1e-5)


def test_reinforce_pp_advantages_by_hand():
    # gamma 0.5, rewards 0, 1 | 2: returns 2; 1 + 0.5 * 2 = 2; 0.5 * 2 = 1. Their mean is 5/3, the
    # variance (4/9 + 1/9 + 1/9) / 2 = 1/3
    got = algos.reinforce_pp_advantages(tensor([0, 1, NAN, 2, NAN]), tensor([1, 1, 0, 1, 0]), 0.5)
    s = math.sqrt(3)
    same(got, [[-2 / 3 * s, s / 3, 0, s / 3, 0]])


def test_reinforce_pp_baseline_advantages_by_hand():
    # one group, rewards 1 and 0, three tokens and one: 0.5, 0.5, 0.5, -0.5, mean 0.25, deviations
    # 0.25 three times and -0.75, variance (3 * 0.0625 + 0.5625) / 3 = 0.25
    got = algos.reinforce_pp_baseline_advantages(tensor(1, 0), 2, tensor([1, 1, 1], [0, 1, 0]))
    same(got, [[0.5, 0.5, 0.5], [0, -1.5, 0]])
    # two groups: 0.5, -0.5, 2, -2 keep their spread: mean 0, variance 8.5 / 3
    got = algos.reinforce_pp_baseline_advantages(tensor(1, 0, 4, 0), 2, torch.ones(4, 1))
    same(got.flatten(), tensor(0.5, -0.5, 2, -2) / math.sqrt(8.5 / 3))


def test_masked_whiten_by_hand():
    same(algos.masked_whiten(tensor([1, 2, NAN], [9, 3, 9]), tensor([1, 1, 0], [0, 1, 0])),
         [[-1, 0, 0], [0, 1, 0]])   # mean 2, variance (1 + 0 + 1) / 2


def test_masked_whiten_of_equal_one_or_no_values_is_zero():
    for mask in (torch.ones(2, 4), tensor([0, 1, 0, 0], [0, 0, 0, 0]), torch.zeros(2, 4)):
        assert algos.masked_whiten(torch.full((2, 4), 0.1), mask).tolist() == [[0.0] * 4] * 2


# ---- advantages of turns ------------------------------------------------------------------------

GIGPO_MASK = tensor([1, 1, 0, 1, 0], [1, 1, 0, 1, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 0])
GIGPO_TURNS = torch.tensor([[0, 0, -1, 1, -1], [0, 0, -1, 1, -1], [0, -1, -1, 1, -1],
                            [0, -1, -1, -1, -1]])
GIGPO_REWARDS = tensor([0, 0, NAN, 1, NAN], [0, 0, 5, 0, 5], [3, 0, 0, 2, 0], [5, 0, 0, 9, 9])


def test_gigpo_advantages_by_hand():
    # group 1 earns (0, 1) and (0, 0), gamma 0.5. Episodes 1 and 0: mean 0.5, std sqrt(0.5), A^E is
    # +-sqrt(0.5). Returns 0.5, 1 and 0, 0. Both answered 7 first: 0.5 against 0, A^S +-sqrt(0.5);
    # then 8 and 9, each seen once: 0. Group 2 earns 5 and 5 (A^E 0) and shares no anchor with
    # group 1: it answered 7, 8 (returns 3 + 0.5 * 2 = 4 and 2) and 7 (return 5): 4 against 5.
    hashes = torch.tensor([[7, 8], [7, 9], [7, 8], [7, -1]])
    got = algos.gigpo_advantages(GIGPO_REWARDS, GIGPO_MASK, GIGPO_TURNS, hashes, 2, gamma=0.5)
    s = HALF_SQRT
    same(got, [[2 * s, 2 * s, 0, s, 0], [-2 * s, -2 * s, 0, -s, 0], [-s, 0, 0, 0, 0],
               [s, 0, 0, 0, 0]], 1e-5)
    got = algos.gigpo_advantages(GIGPO_REWARDS, GIGPO_MASK, GIGPO_TURNS, hashes, 2, gamma=0.5,
                                 omega=2.0, normalise=False)   # A^E +-0.5, A^S +-0.25 and -+0.5
    same(got, [[1, 1, 0, 0.5, 0], [-1, -1, 0, -0.5, 0], [-1, 0, 0, 0, 0], [1, 0, 0, 0, 0]])


def test_gigpo_advantages_with_all_states_distinct_are_grpo():
    # four turns against one: statistics per turn instead of per episode would show here
    mask = tensor([1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0])
    turn_ids = torch.tensor([[0, 1, 2, 3], [0, -1, -1, -1], [0, 1, -1, -1]])
    rewards = tensor([0, 0, 0, 1], [0, 0, 0, 0], [0, 3, 0, 0])
    hashes = torch.tensor([[1, 2, 3, 4], [5, -1, -1, -1], [6, 2**62, -1, -1]])
    got = algos.gigpo_advantages(rewards, mask, turn_ids, hashes, 3)
    same(got, algos.grpo_advantages(tensor(1, 0, 3), 3)[:, None] * mask)


def test_gigpo_advantages_compares_a_state_visited_twice_by_one_trajectory():
    # returns 1 + 1 = 2 and 1 at the same state, gamma 1: +-0.5 without std; the episode alone: 0
    got = algos.gigpo_advantages(tensor([1, 1]), tensor([1, 1]), torch.tensor([[0, 1]]),
                                 torch.tensor([[4, 4]]), 1, gamma=1, normalise=False)
    same(got, [[0.5, -0.5]])


def test_gigpo_advantages_discounts_over_all_later_turns():
    # one trajectory meets one state three times and earns 8 in the third turn; gamma 0.5: its
    # returns are 2, 4, 8, their mean 14 / 3
    got = algos.gigpo_advantages(tensor([0, 0, 8]), tensor([1, 1, 1]), torch.tensor([[0, 1, 2]]),
                                 torch.tensor([[4, 4, 4]]), 1, gamma=0.5, normalise=False)
    same(got, [[-8 / 3, -2 / 3, 10 / 3]])


def test_mt_grpo_advantages_compares_turns_within_a_group_alone():
    # one turn; group 1 earns 0 and 2, group 2 earns 10 and 10: +-1 / sqrt(2) twice over, and 0
    got = algos.mt_grpo_advantages(tensor([0], [2], [10], [10]), torch.ones(4, 1),
                                   torch.zeros(4, 1, dtype=torch.long), 2)
    same(got, [[-2 * HALF_SQRT], [2 * HALF_SQRT], [0], [0]], 1e-5)


def test_mt_grpo_advantages_by_hand():
    # turns (1, 0), (0, 2), (0): episodes 1, 2, 0: mean 1, std 1, so 0, 1, -1. Turn 0: 1, 0, 0, mean
    # 1/3, variance (4/9 + 1/9 + 1/9) / 2 = 1/3. Turn 1, of the two that got there: 0, 2, std sqrt 2
    mask = tensor([1, 0, 1], [1, 0, 1], [1, 0, 0])
    turn_ids = torch.tensor([[0, -1, 1], [0, -1, 1], [0, -1, -1]])
    rewards = tensor([1, NAN, 0], [0, NAN, 2], [0, NAN, 5])
    a, s = math.sqrt(3) / 3, HALF_SQRT
    same(algos.mt_grpo_advantages(rewards, mask, turn_ids, 3),
         [[2 * a, 0, -s], [1 - a, 0, 1 + s], [-1 - a, 0, 0]], 1e-5)
    same(algos.mt_grpo_advantages(rewards, mask, turn_ids, 3, alpha=0.0),
         [[0, 0, 0], [1, 0, 1], [-1, 0, 0]], 1e-5)


# ---- what every (B, T) advantage must bear ------------------------------------------------------

def per_token_advantages(rewards, values, mask, turn_ids):
    hashes = torch.tensor([[1, 2], [1, 3], [1, 2], [-1, -1]])
    yield from algos.gae(rewards, values, mask, 0.9, 0.8)
    yield from algos.turn_gae(rewards, values, mask, turn_ids, 0.9, 0.8, 0.7)
    yield algos.reinforce_pp_advantages(rewards, mask, 0.9)
    yield algos.reinforce_pp_baseline_advantages(tensor(1, 0, 3, 2), 2, mask)
    yield algos.masked_whiten(rewards, mask)
    yield algos.gigpo_advantages(rewards, mask, turn_ids, hashes, 2)
    yield algos.mt_grpo_advantages(rewards, mask, turn_ids, 2)
    yield algos.kl_penalised_rewards(rewards, values, 2 * values, mask, 0.1)


def test_nan_and_junk_off_the_mask_change_nothing():
    torch.manual_seed(2)
    mask = tensor([1, 1, 0, 1, 0], [1, 0, 0, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0])
    turn_ids = torch.tensor([[0, 0, -1, 1, -1], [0, -1, -1, 1, 1], [-1, 0, -1, 1, -1], [-1] * 5])
    rewards, values = torch.randn(4, 5) * mask, torch.randn(4, 5) * mask
    clean = list(per_token_advantages(rewards, values, mask, turn_ids))
    for junk, turn, given in ((NAN, 99, mask.long()), (math.inf, -7, mask.int()),
                              (1e30, 1, mask.bool())):
        for got, expected in zip(per_token_advantages(
                torch.where(mask > 0, rewards, junk), torch.where(mask > 0, values, junk),
                given, torch.where(mask > 0, turn_ids, turn)), clean):
            assert torch.equal(got, expected)
            assert not got[mask == 0].any()   # exactly 0 there; the last row is all masked
        assert torch.equal(given.float(), mask)   # an input is never written to


def test_a_batch_without_action_tokens_gives_zeros():
    zeros = torch.zeros(4, 5)
    junk = torch.full((4, 5), NAN)
    for got in per_token_advantages(junk, junk, zeros, torch.full((4, 5), -1)):
        assert torch.equal(got.abs(), zeros)


# ---- losses: one number per sampled token, (A,) --------------------------------------------------

def test_clipped_surrogate_in_its_four_quadrants():
    for ratio, advantage, loss, slope in (
            (1.5, +1.0, -1.28, 0.0),    # good and already likelier: clipped at 1 + 0.28, no pull
            (0.5, +1.0, -0.50, -0.5),   # good but rarer: d/dlogp of -A rho is -A rho
            (1.5, -1.0, +1.50, 1.5),    # bad and likelier: the full push
            (0.5, -1.0, +0.80, 0.0),    # bad and already rarer: clipped at 1 - 0.2, no push
            (1.2, +2.0, -2.40, -2.4)):  # within the bounds
        logprobs = tensor(ratio).log().requires_grad_()
        got = algos.clipped_surrogate(logprobs, torch.zeros(1), tensor(advantage), 0.2, 0.28)
        same(got, [loss])
        got.sum().backward()
        same(logprobs.grad, [slope])


def test_clipped_surrogate_with_dual_clip():
    # c = 3: a bad token at ratio 10 costs 3, not 10; at 2 still 2; good tokens are left alone
    logprobs, advantages = tensor(10, 2, 0.5, 10).log(), tensor(-1, -1, 1, 1)
    got = algos.clipped_surrogate(logprobs, torch.zeros(4), advantages, 0.2, 0.2, dual_clip=3.0)
    same(got, [3, 2, -0.5, -1.2])


def test_clipped_surrogate_clamps_the_log_ratio():
    got = algos.clipped_surrogate(tensor(500, -500), torch.zeros(2), tensor(-1, 1), 0.2, 0.2)
    same(got, [math.exp(20), -math.exp(-20)])


def test_gspo_surrogate_by_hand():
    # row 0: mean log-ratio (0.2 + 0.4) / 2 = 0.3; row 3: -1, below 1 - 0.1 with A < 0: clipped
    new, rows = tensor(0.2, -1, -1, 0.4), torch.tensor([0, 3, 3, 0])
    got = algos.gspo_surrogate(new, torch.zeros(4), tensor(1, -1, -1, 1), rows, 0.1, 0.5)
    e = -math.exp(0.3)
    same(got, [e, 0.9, 0.9, e])
    three = torch.zeros(3, dtype=torch.long)   # of 0, 0.3, 0.6, old 0.1: the mean is 0.2
    got = algos.gspo_surrogate(tensor(0, 0.3, 0.6), tensor(0.1, 0.1, 0.1), tensor(1, -1, 2), three,
                               0.1, 0.1)       # exp(0.2) = 1.2214 is clipped at 1.1 where A > 0
    same(got, [-1.1, math.exp(0.2), -2.2])


def test_gspo_surrogate_gradient_is_spread_over_the_row():
    # d/dlogp_t of -A s is -A s / n; row 1 is clipped; S = 2 rows
    new = tensor([0.2, NAN, 0.4], [-1, -1, 3]).requires_grad_()
    mask, rows = tensor([1, 0, 1], [1, 1, 0]), torch.tensor([0, 0, 1, 1])
    loss = algos.gspo_surrogate(new[mask > 0], torch.zeros(4), tensor(1, 1, -1, -1), rows, 0.1, 0.5)
    (loss * algos.sequence_weights(mask)[mask > 0]).sum().backward()
    e = -math.exp(0.3) / 2 / 2
    same(new.grad, [[e, 0, e], [0, 0, 0]])


def test_clipped_value_loss_by_hand():
    # clip 0.5 round V_old = 1: V = 2 -> 1.5, V = 0 -> 0.5
    values, returns = tensor(2, 0, 2, 1.2), tensor(0, 0, 3, 1)
    got = algos.clipped_value_loss(values, torch.ones(4), returns, 0.5)
    # max(4, 2.25) / 2;  max(0, 0.25) / 2;  max(1, 2.25) / 2;  0.04 / 2
    same(got, [2, 0.125, 1.125, 0.02])
    same(algos.clipped_value_loss(values, torch.ones(4), returns, math.inf), [2, 0, 0.5, 0.02])


def test_kl_estimators_by_hand():
    new, ref = tensor(-1, -2, -1), tensor(-1.5, -1.5, -1)   # q = 0.5, -0.5, 0
    same(algos.kl_k1(new, ref), [0.5, -0.5, 0])
    same(algos.kl_k2(new, ref), [0.125, 0.125, 0])
    same(algos.kl_k3(new, ref), [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 0])


def test_kl_k3_and_k1_average_to_the_kl():
    p, ref = tensor(0.7, 0.3), tensor(0.4, 0.6)
    kl = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    for estimator in (algos.kl_k1, algos.kl_k3):
        assert (p * estimator(p.log(), ref.log())).sum().item() == pytest.approx(kl, abs=1e-6)


def test_kl_gradients():
    slopes = (algos.kl_k1, 1), (algos.kl_k2, 0.5), (algos.kl_k3, 1 - math.exp(-0.5))   # q = 0.5
    for estimator, slope in slopes:
        logprobs = tensor(-1).requires_grad_()
        estimator(logprobs, tensor(-1.5)).sum().backward()
        same(logprobs.grad, [slope])


def test_kl_k3_is_clamped():
    same(algos.kl_k3(tensor(-300.0), tensor(0.0)), [math.exp(20) - 21])
    same(algos.kl_k2(tensor(-300.0), tensor(0.0)), [200])


def test_entropy_by_hand():
    never = -math.inf
    logits = tensor([0, 0, 0, 0], [math.log(2), 0, 0, never], [never, 3, never, never])
    # ln 4; 1/2 ln 2 + 2 * 1/4 ln 4 = 1.5 ln 2; one choice
    same(algos.entropy(logits), [math.log(4), 1.5 * math.log(2), 0])
    got = algos.entropy(logits.bfloat16().view(3, 1, 4))
    assert got.dtype == torch.float32 and got.shape == (3, 1)


def test_entropy_has_the_gradient_of_its_equation():
    torch.manual_seed(3)
    logits = torch.randn(2, 5, 6).requires_grad_()
    weights = torch.randn(2, 5)
    got = algos.entropy(logits)
    (got * weights).sum().backward()
    p = logits.detach().softmax(-1)
    expected = -(p * p.log()).sum(-1)
    same(got, expected)
    same(logits.grad, weights[..., None] * -p * (p.log() + expected[..., None]))
    # p = 2/3, 1/3 and a forbidden token: -p (log p + H), and exactly 0 for the forbidden one
    logits = tensor(math.log(2), 0, -math.inf).requires_grad_()
    algos.entropy(logits).backward()
    same(logits.grad, [-2 / 9 * math.log(2), 2 / 9 * math.log(2), 0])
    assert logits.grad[2] == 0


def test_losses_refuse_shapes_that_would_be_broadcast():
    five = torch.ones(5)
    losses = {   # each with the number of its per-token arguments
        3: [lambda *x: algos.clipped_surrogate(*x, 0.2, 0.2),
            lambda *x: algos.clipped_value_loss(*x, 0.2)],
        4: [lambda *x: algos.gspo_surrogate(*x[:3], x[3].long(), 0.2, 0.2)],
        2: [algos.kl_k1, algos.kl_k2, algos.kl_k3]}
    for count, functions in losses.items():
        for function in functions:
            assert function(*[five] * count).shape == (5,)
            for which in range(count):
                for shape in ((1,), (5, 1), (1, 5)):
                    inputs = [five] * count
                    inputs[which] = torch.ones(shape)
                    with pytest.raises(ValueError, match="do not align"):
                        function(*inputs)


def test_losses_of_no_tokens_are_empty():
    none = torch.zeros(0)
    for got in (algos.clipped_surrogate(none, none, none, 0.2, 0.2, 3.0),
                algos.gspo_surrogate(none, none, none, none.long(), 0.2, 0.2),
                algos.clipped_value_loss(none, none, none, 0.2), algos.kl_k3(none, none)):
        assert got.shape == (0,)


def test_nan_on_a_sampled_token_is_not_hidden():
    ones, dirty = torch.ones(2), tensor(NAN, 1)
    rows = torch.zeros(2, dtype=torch.long)
    for loss in (algos.clipped_surrogate(dirty, ones, ones, 0.2, 0.2), algos.kl_k3(ones, dirty),
                 algos.clipped_surrogate(ones, ones, dirty, 0.2, 0.2),
                 algos.gspo_surrogate(ones, dirty, ones, rows, 0.2, 0.2),
                 algos.clipped_value_loss(ones, ones, dirty, 0.2)):
        assert loss.sum().isnan()
    for weights in CORRECTIONS:
        for pair in ((ones, dirty), (dirty, ones)):
            assert weights(*(x[None] for x in pair), ones[None], 0.0, 2.0).sum().isnan()


# ---- weights ------------------------------------------------------------------------------------

RAGGED = tensor([1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0])   # 3 + 1 tokens in 2 rows, one empty


def test_token_weights_by_hand():
    same(algos.token_weights(RAGGED), RAGGED / 4)


def test_sequence_weights_by_hand():
    a = 1 / 2 / 3
    same(algos.sequence_weights(RAGGED), [[a, a, a, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]])


def test_sequence_sum_weights_by_hand():
    same(algos.sequence_sum_weights(RAGGED), RAGGED / 2)


def test_constant_weights_by_hand():
    same(algos.constant_weights(RAGGED, 10), RAGGED / 2 / 10)


REWARDED = tensor([0, 1, 1], [1, 0, 0]), tensor(0.5, 1)     # three tokens, of two trajectories


def test_over_tokens_by_hand():
    same(algos.over_tokens(*REWARDED), [[0, 1 / 6, 1 / 6], [1 / 3, 0, 0]])


def test_over_weights_by_hand():
    # the tokens' own weights are 0.5, 0.5 and 1: 2 in all
    same(algos.over_weights(*REWARDED), [[0, 1 / 4, 1 / 4], [1 / 2, 0, 0]])
    mask, weights = REWARDED
    same(algos.over_weights(mask, 7 * weights), [[0, 1 / 4, 1 / 4], [1 / 2, 0, 0]])


@pytest.mark.parametrize("weigh", [algos.over_tokens, algos.over_weights])
def test_reward_weights_of_nothing_are_zero(weigh):
    mask, _ = REWARDED
    assert torch.equal(weigh(mask, torch.zeros(2)), torch.zeros(2, 3))
    same(weigh(mask, tensor(1, 1)), mask / 3)           # all alike: one over the tokens
    same(weigh(mask.bool(), tensor(1, 1)), mask / 3)


def test_weights_of_an_empty_mask_are_zero():
    zeros = torch.zeros(2, 3)
    for got in (algos.token_weights(zeros), algos.sequence_weights(zeros),
                algos.sequence_sum_weights(zeros), algos.constant_weights(zeros, 5)):
        assert torch.equal(got, zeros)


def test_weights_of_the_batch_add_micro_batches_up_to_its_mean():
    # token mean (1 + 2 + 3 + 10) / 4 = 4; the mean of the two rows' means would be (2 + 10) / 2 = 6
    loss, weights = tensor([1, 2, 3, NAN], [NAN, 10, 0, 0]), algos.token_weights(RAGGED)
    same(sum((loss[i][m] * weights[i][m]).sum() for i, m in enumerate(RAGGED[:2] > 0)), 4)


def test_gradient_does_not_depend_on_the_split():
    torch.manual_seed(5)
    mask = torch.rand(8, 6) < 0.5
    mask[3] = False
    x, old, advantages = torch.randn(8, 6, 5), torch.randn(8, 6), torch.randn(8, 1).expand(8, 6)
    all_rows = torch.arange(8)[:, None].expand(8, 6)
    surrogates = (lambda *inputs: algos.clipped_surrogate(*inputs[:3], 0.2, 0.28),
                  lambda *inputs: algos.gspo_surrogate(*inputs, 0.2, 0.28))
    weighers = (algos.token_weights, algos.sequence_weights, algos.sequence_sum_weights,
                lambda mask: algos.constant_weights(mask, 9))
    for weigh, surrogate in itertools.product(weighers, surrogates):
        weights, gradients = weigh(mask), []
        for sizes in ([8], [4, 4], [2] * 4, [1] * 8, [3, 4, 1]):
            theta = torch.ones(5).requires_grad_()
            for part in torch.arange(8).split(sizes):
                m = mask[part]
                logits = x[part][m] * theta
                logprobs = logits.log_softmax(-1)[:, 0]
                inputs = old[part][m], advantages[part][m], all_rows[part][m]
                loss = (surrogate(logprobs, *inputs) + 0.1 * algos.kl_k3(logprobs, inputs[0])
                        - 0.01 * algos.entropy(logits))
                (loss * weights[part][m]).sum().backward()
            gradients.append(theta.grad)
        assert gradients[0].abs().max() > 1e-3
        assert all(torch.allclose(g, gradients[0], rtol=1e-5, atol=1e-7) for g in gradients)


# ---- filters and rewards ------------------------------------------------------------------------

FOUR_GROUPS = tensor(0, 0, 0, 1, 0.4, 0.6, 1, 1)   # spreads 0, 1, 0.2, 0


def test_keep_varied_drops_constant_groups():
    assert algos.keep_varied(FOUR_GROUPS, 2).tolist() == [1, 2]
    nearly = torch.tensor([0.3, 0.1 + 0.2, 0.3, 0.31], dtype=torch.float64)
    assert algos.keep_varied(nearly, 2).tolist() == [1]
    assert algos.keep_varied(torch.full((48,), 0.7), 16).tolist() == []


def test_keep_most_uncertain_by_hand():
    for fraction, kept in ((1.0, [0, 1, 2, 3]), (0.75, [0, 1, 2]), (0.5, [1, 2]), (0.25, [1]),
                           (0.01, [1])):    # never none
        assert algos.keep_most_uncertain(FOUR_GROUPS, 2, fraction).tolist() == kept
    # 0.29 of 100 are 29, though 0.29 * 100 < 29 in floating point
    assert len(algos.keep_most_uncertain(tensor(*[0, 1] * 100), 2, 0.29)) == 29


def test_keep_most_uncertain_breaks_ties_by_order():
    rewards = tensor(0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1)   # groups of 3: spread alike, and none
    assert algos.keep_most_uncertain(rewards, 3, 0.5).tolist() == [0, 1]
    assert algos.keep_most_uncertain(tensor(*[0, 1] * 50), 2, 0.1).tolist() == [0, 1, 2, 3, 4]


def test_keep_most_uncertain_of_constant_groups():
    assert algos.keep_most_uncertain(torch.full((12,), 0.1), 3, 0.5).tolist() == []
    assert algos.keep_most_uncertain(torch.full((12,), 0.1), 3, 1.0).tolist() == [0, 1, 2, 3]


def test_keep_fraction_one_changes_nothing():
    torch.manual_seed(6)
    rewards = torch.randn(24)
    for kept in (algos.keep_most_uncertain(rewards, 4, 1.0), algos.keep_top_p(rewards, 4, 1.0)):
        assert torch.equal(rewards.view(6, 4)[kept].flatten(), rewards)


def test_keep_top_p_by_hand():
    rewards = tensor(0, 2, 0, 0, 0, 4, 0, 1, 0, 3)   # spreads 2, 0, 4, 1, 3, of 10
    for p, kept in ((0.4, [2]), (0.41, [2, 4]), (0.7, [2, 4]), (0.71, [0, 2, 4]), (0.9, [0, 2, 4]),
                    (0.91, [0, 2, 3, 4]), (1.0, [0, 2, 3, 4])):   # the constant group never
        assert algos.keep_top_p(rewards, 2, p).tolist() == kept
    assert algos.keep_top_p(tensor(*[0] * 6, 0, 1, *[1] * 4, 1, 0, 0, 0), 2, 0.9).tolist() == [3, 6]
    assert algos.keep_top_p(tensor(*[0, 1] * 10), 2, 0.9).tolist() == list(range(9))
    assert algos.keep_top_p(torch.full((8,), 0.7), 2, 0.9).tolist() == []
    # a share that is reached exactly needs no further group: 3 of 4, 1 of 2
    assert algos.keep_top_p(tensor(*[0, 1] * 4), 2, 0.75).tolist() == [0, 1, 2]
    assert algos.keep_top_p(tensor(0, 1, 0, 1, 1, 1), 2, 0.5).tolist() == [0]


def test_overlong_penalty_by_hand():
    # free up to 100 - 20 = 80; 90 is 10 / 20 into the buffer; beyond 100 it grows no further
    got = algos.overlong_penalty(torch.tensor([0, 80, 90, 95, 100, 140]), 100, 20)
    same(got, [0, 0, -0.5, -0.75, -1, -1])


def test_kl_penalised_rewards_by_hand():
    old, ref = tensor([-1, NAN, -2]).requires_grad_(), tensor([-3, -1, -1])   # k1 = 2, -, -1
    got = algos.kl_penalised_rewards(tensor([0, 4, 1]), old, ref, tensor([1, 0, 1]), 0.1)
    same(got, [[-0.2, 0, 1.1]])
    assert not got.requires_grad


# ---- weights that correct an inexact sampler ----------------------------------------------------

CORRECTIONS = (algos.importance_weights, algos.masked_importance_weights,
               algos.sequence_masked_importance_weights)
# pi_old / pi_rollout of the tokens of four rows; off the mask, where it is 9, nothing may change
RATIOS = tensor([4, 0.5, 9, 1], [2, 2, 9, 9], [0.5, 9, 0.5, 9], [9, 9, 9, 9])
SAMPLED = tensor([1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0])


def corrected(weights, low, cap, junk=9.0):
    """`weights` of RATIOS, pi_rollout being 1/4 at every sampled token and `junk` elsewhere."""
    rollout = torch.where(SAMPLED > 0, 0.25, junk)
    return weights((RATIOS * rollout).log().requires_grad_(), rollout.log(), SAMPLED, low, cap)


def test_importance_weights_by_hand():
    # 4 is cut to 3 and 0.5 raised to 0.75
    same(corrected(algos.importance_weights, 0.75, 3.0),
         [[3, 0.75, 0, 1], [2, 2, 0, 0], [0.75, 0, 0.75, 0], [0] * 4])
    same(corrected(algos.importance_weights, 0.0, 3.0),
         [[3, 0.5, 0, 1], [2, 2, 0, 0], [0.5, 0, 0.5, 0], [0] * 4])


def test_masked_importance_weights_by_hand():
    # 4 > 3 and 0.5 < 0.75 become 0; what lies between stays as it is
    same(corrected(algos.masked_importance_weights, 0.75, 3.0),
         [[0, 0, 0, 1], [2, 2, 0, 0], [0] * 4, [0] * 4])
    same(corrected(algos.masked_importance_weights, 0.0, 3.0),
         [[0, 0.5, 0, 1], [2, 2, 0, 0], [0.5, 0, 0.5, 0], [0] * 4])


def test_sequence_masked_importance_weights_by_hand():
    # rows: 4 * 0.5 * 1 = 2 is inside, though 4 is not; 2 * 2 = 4 > 3, though each 2 is inside;
    # 0.5 * 0.5 = 0.25 < 0.4, though each 0.5 is inside
    rows = corrected(algos.sequence_masked_importance_weights, 0.4, 3.0)
    same(rows, [[2, 2, 0, 2], [0] * 4, [0] * 4, [0] * 4])
    rows = corrected(algos.sequence_masked_importance_weights, 0.0, 5.0)
    same(rows, [[2, 2, 0, 2], [4, 4, 0, 0], [0.25, 0, 0.25, 0], [0] * 4])


@pytest.mark.parametrize("weights", CORRECTIONS)
def test_importance_corrections_are_1_where_the_sampler_is_exact(weights):
    logprobs, mask = torch.randn(2, 3), torch.ones(2, 3)
    for low, cap in ((0.0, 2.0), (1.0, 1.0)):       # both bounds belong to what is kept
        assert torch.equal(weights(logprobs, logprobs, mask, low, cap), mask)
    never = logprobs - 300      # rho would overflow, or vanish: a number all the same
    for pair in ((logprobs, never), (never, logprobs)):
        assert weights(*pair, mask, 0.0, 2.0).isfinite().all()


@pytest.mark.parametrize("weights", CORRECTIONS)
def test_importance_corrections_see_sampled_tokens_alone(weights):
    clean = corrected(weights, 0.4, 3.0)
    assert not clean.requires_grad
    for junk in (NAN, math.inf, 0.0):
        assert torch.equal(corrected(weights, 0.4, 3.0, junk), clean)
    one = torch.ones(2, 3)
    for which in range(3):
        for shape in ((1, 3), (2, 1), (6,)):
            inputs = [one] * 3
            inputs[which] = torch.ones(shape)
            with pytest.raises(ValueError, match="do not align"):
                weights(*inputs, 0.0, 2.0)


# ---- the collapse panel -------------------------------------------------------------------------

def test_distinct_ngrams_by_hand():
    # 123, 234 and again 123: two of three; no 3-gram runs from one text into the next
    assert algos.distinct_ngrams([[1, 2, 3, 4], [1, 2, 3]]) == pytest.approx(2 / 3)
    assert algos.distinct_ngrams([[5, 5, 5, 5, 5]]) == pytest.approx(1 / 3)
    assert algos.distinct_ngrams([[1, 2], [2, 1]], n=1) == 0.5
    assert algos.distinct_ngrams([[1, 2], []]) == 1.0   # nothing is long enough to repeat


def test_mutual_information_by_hand():
    # every thought has 0.8 under its own prompt, 0.2 under the other, 0.5 on average
    scores = tensor([0.8, 0.2], [0.2, 0.8], [0.8, 0.2]).log()
    own = torch.tensor([0, 1, 0])
    assert algos.mutual_information(scores, own) == pytest.approx(math.log(0.8 / 0.5), abs=1e-6)
    assert algos.mutual_information(scores, 1 - own) == pytest.approx(math.log(0.4), abs=1e-6)
    assert algos.retrieval_accuracy(scores, own) == 1
    assert algos.retrieval_accuracy(scores, torch.tensor([0, 0, 1])) == pytest.approx(1 / 3)


def test_mutual_information_of_thoughts_that_ignore_or_copy_the_prompt():
    own = torch.tensor([0, 0, 0, 3])
    ignore = torch.tensor([-900.0, -5, -40, -7])[:, None].expand(4, 8)
    assert algos.mutual_information(ignore, own) == pytest.approx(0, abs=1e-6)
    assert algos.retrieval_accuracy(ignore, own) == 1 / 8   # chance, however own is distributed
    copy = torch.full((4, 8), -5000.0).scatter(1, own[:, None], -20.0)
    assert algos.mutual_information(copy, own) == pytest.approx(math.log(8), abs=1e-6)


def run_of(steps, **curves):
    """A history: each curve is a function of the step and gets 5% noise."""
    rng = random.Random(0)
    return [{"step": s, **{name: curve(s) * rng.gauss(1, 0.05) for name, curve in curves.items()}}
            for s in range(steps)]


def signals_at_any_time(history):
    return {signal for stop in range(len(history) + 1)
            for signal, _ in algos.collapse_warnings(history[:stop])}


def decay(start, rate, floor=0.0):
    return lambda s: floor + (start - floor) * math.exp(-rate * s)


def test_collapse_warnings_are_silent_when_a_run_solves_its_task():
    # reward std, entropy, distinct 3-grams and length all fall, because success goes to 1; the last
    # gradients, of a rare failure among solved tasks, are many times the usual ones
    history = run_of(120, success=lambda s: 1 - 0.6 * math.exp(-s / 15), valid=lambda s: 0.95,
                     reward_std=decay(0.45, 1 / 15), entropy=decay(0.9, 1 / 20),
                     grad_norm=lambda s: 3.0 if s > 100 and s % 9 == 0 else math.exp(-s / 20),
                     distinct_3gram=decay(0.7, 1 / 15, 0.1), response_length=decay(300, 1 / 20, 90))
    assert signals_at_any_time(history) == set()


def test_collapse_warnings_are_silent_on_a_plateau():
    history = run_of(120, success=lambda s: 0.7 - 0.4 * math.exp(-s / 10), valid=lambda s: 0.9,
                     reward_std=decay(0.45, 1 / 30, 0.25), entropy=decay(0.9, 1 / 50, 0.2),
                     grad_norm=lambda s: 0.5, distinct_3gram=decay(0.7, 1 / 20, 0.45),
                     response_length=decay(300, 1 / 20, 120), mutual_information=lambda s: 0.8)
    assert signals_at_any_time(history) == set()


def echo_trap(steps=60):
    """Success climbs to 0.45 by step 20, stands until 35 and dies; the std goes from step 15 on."""
    return run_of(steps, valid=lambda s: 0.95 if s < 38 else 0.5,
                  success=lambda s: min(0.25 + 0.01 * s, 0.45) * (1 if s < 35 else 0.9 ** (s - 35)),
                  reward_std=lambda s: 0.4 * (1 if s < 15 else 0.9 ** (s - 15)),
                  entropy=lambda s: 0.8 * 0.99 ** s if s < 40 else 4.0,
                  grad_norm=lambda s: 0.5 if s < 45 else 60.0,
                  distinct_3gram=lambda s: 0.6 if s < 35 else 0.1,
                  response_length=lambda s: 200 if s < 40 else 900)


def test_collapse_warnings_name_the_echo_trap_before_success_has_halved():
    history = echo_trap()
    halved = next(s for s, row in enumerate(history) if s > 20 and row["success"] < 0.45 / 2)
    first = next((stop for stop in range(60) if algos.collapse_warnings(history[:stop])), 60)
    assert first < halved
    assert algos.collapse_warnings(history[:first])[0][0] == "reward_std"
    assert signals_at_any_time(history) == {"reward_std", "entropy", "grad_norm", "valid",
                                            "distinct_3gram", "response_length"}


def played_history(seed, success, alike, steps=60):
    """32 groups of 8 tries with returns of 0 or 1 a step. success(step): their mean. alike(step):
    the share of the tasks whose tries all end the same way; at the others each try is a draw."""
    rng, history = random.Random(seed), []
    for step in range(steps):
        p, rewards = success(step), []
        for _ in range(32):
            same = rng.random() < alike(step)
            rewards += 8 * [float(rng.random() < p)] if same else [
                float(rng.random() < p) for _ in range(8)]
        history.append({"success": sum(rewards) / len(rewards), "reward_std":
                        algos.group_std(torch.tensor(rewards), 8).mean().item()})
    return history


def test_collapse_warnings_judge_the_spread_by_what_this_success_allows():
    """At 87% returns of 0 or 1 spread by at most 0.34, at 55% by 0.5: the same std is healthy in a
    run that has learned and a sign in one that has not."""
    for seed in range(10):
        learned = played_history(seed, lambda s: min(0.5 + s / 80, 0.87), lambda s: 0.3 + s / 150)
        stuck = played_history(seed, lambda s: min(0.40 + s / 99, 0.55), lambda s: 0.3 + s / 100)
        assert learned[-1]["reward_std"] < 0.2
        assert signals_at_any_time(learned) == set()
        assert signals_at_any_time(stuck) == {"reward_std"}


def test_collapse_warnings_name_a_run_that_dies_from_the_start():
    # success 0.6 -> 0.08 in 40 steps while the groups with any spread go from 3/4 to almost none
    history = run_of(40, success=lambda s: 0.6 - 0.013 * s, reward_std=lambda s: 0.34 - 0.008 * s)
    first = next((stop for stop in range(40) if algos.collapse_warnings(history[:stop])), 39)
    assert history[first]["success"] > 0.3


def test_collapse_warnings_speak_in_plain_language_with_numbers():
    history = [{"success": 0.4, "reward_std": 0.4 if s < 10 else 0.02} for s in range(20)]
    [(signal, sentence)] = algos.collapse_warnings(history)
    assert signal == "reward_std"
    for part in ("echo trap", "0.4 -> 0.02", "40%", "StarPO-S would train only on the quarter"):
        assert part in sentence


def test_collapse_warnings_know_an_entropy_that_jumps_from_one_that_decays():
    for curve, expected in ((decay(0.9, 1 / 12), set()),
                            (lambda s: 0.9 if s < 20 else 0.2, {"entropy"}),
                            (lambda s: 0.9 - s / 100 if s < 20 else 2.0, {"entropy"})):
        assert signals_at_any_time(run_of(40, success=lambda s: 0.5, entropy=curve)) == expected


def test_collapse_warnings_name_template_collapse():
    def probed(entropy, success=0.5):
        return [{"success": success, "entropy": entropy(s),
                 "mutual_information": 1.8 - s / 20 if s % 10 == 0 else None,
                 "retrieval_accuracy": max(0.13, 0.8 - s / 50) if s % 10 == 0 else None,
                 "retrieval_chance": 0.125} for s in range(45)]
    both = {"mutual_information", "retrieval_accuracy"}
    assert signals_at_any_time(probed(lambda s: 0.8)) == both
    assert signals_at_any_time(probed(decay(0.8, 1 / 20))) == set()   # entropy tells it already
    assert signals_at_any_time(probed(lambda s: 0.8, success=0.97)) == set()


def test_moving_mean_covers_every_window():
    rows = [{"x": x} for x in (1, 2, 6, 4)]
    assert algos.moving_mean(rows, "x", 2) == [1.5, 4, 5]
    assert algos.moving_mean(rows, "x", 4) == [3.25] and algos.moving_mean(rows, "x", 5) == []


def test_mean_of_leaves_out_what_was_not_measured():
    rows = [{"x": 1}, {"x": None}, {}, {"x": NAN}, {"x": math.inf}, {"x": 5}]
    assert algos.mean_of(rows, "x") == 3 and math.isnan(algos.mean_of(rows[1:5], "x"))


def told(history):
    """{signal: its sentence}; "" of a signal that was not given"""
    return defaultdict(str, algos.collapse_warnings(history))


def test_collapse_warnings_compare_windows_that_do_not_overlap():
    """Of 25 steps the last five are the window; the five before it are what it is compared with."""
    fall = [{"success": 0.5, "entropy": 1.0 if s < 20 else 0.25} for s in range(25)]
    assert "(entropy 1 -> 0.25, " in told(fall)["entropy"]
    jump = [{"success": 0.5, "entropy": 1.0 - s / 40 if s < 20 else 2.0} for s in range(25)]
    # the lowest mean of five successive steps before the window is that of steps 15 to 19
    assert "(entropy 0.575 -> 2, " in told(jump)["entropy"]


def test_collapse_warnings_compare_gradients_with_their_median():
    """One gradient of a thousand among the first steps says nothing of the usual ones."""
    history = [{"success": 0.5, "grad_norm": 1000.0 if s == 3 else 1.0 if s < 20 else 8.0}
               for s in range(25)]
    assert "(grad_norm 1 -> 8, " in told(history)["grad_norm"]
    spike = [{"success": 0.5, "grad_norm": 24.0 if s == 24 else 1.0} for s in range(25)]
    assert "(grad_norm 1 -> 5.6, " in told(spike)["grad_norm"]      # the last five's mean: 28 / 5


def test_collapse_warnings_compare_the_first_two_probes_with_the_last_two():
    def probed(*values):
        return [{"success": 0.5, "entropy": 0.8, "mutual_information": values[s // 5]
                 if s % 5 == 0 else None} for s in range(5 * len(values))]
    assert "(mutual_information 2 -> 0.35, " in \
        told(probed(3.0, 1.0, 1.0, 0.6, 0.1))["mutual_information"]
    assert told(probed(2.0, 2.0, 2.0, 1.2, 0.1)) == {}      # 0.65 is more than a quarter of 2
    assert told(probed(2.0, 0.1, 0.1)) == {}                # fewer than four probes


def test_collapse_warnings_call_it_a_template_while_the_texts_still_vary():
    """The last five steps' entropy is under half of the first five's: an echo trap, no template."""
    for late, expected in ((0.45, {"mutual_information"}), (0.35, set())):
        history = [{"success": 0.5, "entropy": 0.8 if s < 5 else 0.8 - s * (0.8 - late) / 20
                    if s < 20 else late, "mutual_information": (2.0 if s < 10 else 0.1)
                    if s % 5 == 0 else None} for s in range(25)]
        assert told(history).keys() & {"mutual_information"} == expected


def test_collapse_warnings_bear_short_empty_and_broken_histories():
    assert algos.collapse_warnings([]) == algos.collapse_warnings([{}] * 50) == []
    assert algos.collapse_warnings(echo_trap()[:9]) == []
    broken = [{**row, "grad_norm": NAN, "entropy": None} for row in echo_trap()]
    assert "reward_std" in signals_at_any_time(broken)
