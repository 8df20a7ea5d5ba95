"""pytest tests/envs/test_bandit.py: the reply grammar, the arms and their luck, exact chances."""
from statistics import fmean

import pytest

from envs import Base, bandit

MOVES = ("up", "down", "left", "right")


@pytest.mark.parametrize("text, known, well_formed", [
    (" Up||LEFT || left ", ["up", "left", "left"], True),
    ("up || fly || left", ["up", "left"], False),       # an unknown word is dropped
    ("up left", [], False),                             # not joined by ||
    (" || ", [], False),
    ("|| up ||", ["up"], True),                         # nothing is no word
    ("up||up||up||up||up||down||fly", ["up"] * 5, True),     # beyond the fifth nothing counts
    ("fly||fly||fly||fly||fly||up", [], False),
])
def test_split_actions_reads_a_reply(text, known, well_formed):
    assert Base.split_actions(text, MOVES) == (known, well_formed)


def test_arms_keep_their_meaning_in_train_and_lose_it_in_reversed():
    names = [name for pair in bandit.TRAIN_PAIRS + bandit.TEST_PAIRS for name in pair]
    assert len(set(names)) == len(names)                       # those of TEST are new
    for task_id in bandit.TRAIN:
        assert bandit.arms(task_id) in bandit.TRAIN_PAIRS      # (low, high) is (safe, bold)
    meant = [bandit.arms(task_id) in bandit.TEST_PAIRS for task_id in bandit.TEST]
    turned = [bandit.arms(task_id)[::-1] in bandit.TEST_PAIRS for task_id in bandit.TEST]
    families = [bandit.family(task_id) for task_id in bandit.TEST]
    assert meant == [name == "plain" for name in families]
    assert turned == [name == "reversed" for name in families]
    assert {bandit.arms(task_id) for task_id in bandit.TEST} == (
        set(bandit.TEST_PAIRS) | {pair[::-1] for pair in bandit.TEST_PAIRS})


def test_reset_names_the_arms_in_either_order():
    env = bandit.Env()
    first = {(bandit.arms(task_id), env.reset(task_id)) for task_id in bandit.TRAIN}
    assert len(first) == 2 * len(bandit.TRAIN_PAIRS)       # each pair in both orders, nothing else
    assert all(name in text for arms, text in first for name in arms)


def test_step_pays_as_announced():
    env, paid = bandit.Env(), {"low": [], "high": []}
    for stream in range(4000):
        for arm in paid:
            env.reset(7, stream)
            _, reward, done, info = env.step(getattr(env, arm))
            paid[arm].append(reward)
            assert done and info == {"success": arm == "high", "valid": True,
                                     "score": float(arm == "high")}
    assert set(paid["low"]) == {0.1} and set(paid["high"]) == {0.0, 1.0}
    # the standard error of a coin of 1/4 in 4000 throws: sqrt(0.25 * 0.75 / 4000) = 0.0068
    assert fmean(paid["high"]) == pytest.approx(0.25, abs=3 * 0.0068)


def test_reset_gives_a_group_one_prompt_and_many_reward_streams():
    env, prompts, rewards = bandit.Env(), set(), []
    for stream in [*range(16), *range(16), None, None]:
        prompts.add(env.reset(3, stream))
        rewards.append(env.step(env.high)[1])
    assert len(prompts) == 1
    assert rewards[:16] == rewards[16:32] and rewards[32] == rewards[33]   # the same draw again
    assert set(rewards[:16]) == {0.0, 1.0}


def test_step_charges_a_malformed_turn_once():
    env = bandit.Env()
    env.reset(0)
    observation, reward, done, info = env.step("both || neither")
    assert (reward, done, info["valid"]) == (-0.1, False, False) and env.low in observation
    _, reward, done, info = env.step(f"neither || {env.low} || {env.high}")    # one pull only
    assert reward == pytest.approx(0.1 - 0.1) and done
    assert info == {"success": False, "valid": False, "score": 0.0}
