"""pytest tests/test_panel.py: the collapse panel, on histories whose end is known."""
import math
import random

import pytest
import torch

import algos
from panel import collapse_warnings


def run_of(steps, **curves):
    """A history: each curve is a function of the step and gets 5% noise."""
    rng = random.Random(0)
    return [{"step": s, **{name: curve(s) * rng.gauss(1, 0.05) for name, curve in curves.items()}}
            for s in range(steps)]


def signals_at_any_time(history):
    return {signal for stop in range(len(history) + 1)
            for signal, _ in collapse_warnings(history[:stop])}


def decay(start, rate, floor=0.0):
    return lambda s: floor + (start - floor) * math.exp(-rate * s)


# Reward std, entropy, distinct 3-grams and length all fall, because success goes to 1; the last
# gradients, of a rare failure among solved tasks, are many times the usual ones.
SOLVES = run_of(120, success=lambda s: 1 - 0.6 * math.exp(-s / 15), valid=lambda s: 0.95,
                reward_std=decay(0.45, 1 / 15), entropy=decay(0.9, 1 / 20),
                grad_norm=lambda s: 3.0 if s > 100 and s % 9 == 0 else math.exp(-s / 20),
                distinct_3gram=decay(0.7, 1 / 15, 0.1), response_length=decay(300, 1 / 20, 90))
PLATEAU = run_of(120, success=lambda s: 0.7 - 0.4 * math.exp(-s / 10), valid=lambda s: 0.9,
                 reward_std=decay(0.45, 1 / 30, 0.25), entropy=decay(0.9, 1 / 50, 0.2),
                 grad_norm=lambda s: 0.5, distinct_3gram=decay(0.7, 1 / 20, 0.45),
                 response_length=decay(300, 1 / 20, 120))


@pytest.mark.parametrize("history", [SOLVES, PLATEAU], ids=["solves", "plateau"])
def test_collapse_warnings_are_silent_when_a_run_solves_its_task_or_stays(history):
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


def first_warned(history):
    return next((s for s in range(len(history)) if collapse_warnings(history[:s])), len(history))


def test_collapse_warnings_name_the_echo_trap_before_success_has_halved():
    history = echo_trap()
    halved = next(s for s, row in enumerate(history) if s > 20 and row["success"] < 0.45 / 2)
    first = first_warned(history)
    assert first < halved
    assert collapse_warnings(history[:first])[0][0] == "reward_std"
    # one that dies from the start: success goes from 0.6 to 0.08, the spread almost to none
    dies = run_of(40, success=lambda s: 0.6 - 0.013 * s, reward_std=lambda s: 0.34 - 0.008 * s)
    assert first_warned(dies) < 40 and dies[first_warned(dies)]["success"] > 0.3
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


def test_collapse_warnings_are_silent_while_a_slow_success_sets_records():
    """From 25 to 72% in 60 steps, ever more groups alike: its best of all windows is at most ten
    steps old, though the present one may be no better than that of fifteen steps before. Success
    that stops at step 20 sets none."""
    for seed in range(10):
        slow = played_history(seed, lambda s: 0.25 + s / 125, lambda s: min(0.3 + s / 100, 0.9))
        still = played_history(seed, lambda s: 0.25 + min(s, 20) / 125,
                               lambda s: min(0.3 + s / 60, 0.9))
        assert signals_at_any_time(slow) == set()
        assert signals_at_any_time(still) == {"reward_std"}


def test_collapse_warnings_pass_over_steps_in_which_nothing_was_learned():
    """Their gradient and entropy are NaN. The first real gradient is no spike; an entropy that
    rises from 0.5 to 2 is one all the same."""
    nothing = [dict(success=0.02, grad_norm=math.nan, entropy=math.nan)] * 8
    assert signals_at_any_time(nothing + [dict(success=0.02, grad_norm=0.3)] * 4) == set()
    learned = [dict(success=0.5, entropy=0.5 if s < 12 else 2.0) for s in range(24)]
    assert signals_at_any_time(nothing + learned) == {"entropy"}


def test_collapse_warnings_compare_windows_that_do_not_overlap():
    """Of 25 steps the last five are the window; the five before it are what it is compared with."""
    fall = [{"success": 0.5, "entropy": 1.0 if s < 20 else 0.25} for s in range(25)]
    ((signal, sentence),) = collapse_warnings(fall)
    assert signal == "entropy" and sentence.startswith("echo trap: ")
    assert sentence.endswith(" (entropy 1 -> 0.25, success now 50%).")
    jump = [{"success": 0.5, "entropy": 1.0 - s / 40 if s < 20 else 2.0} for s in range(25)]
    # the lowest mean of five successive steps before the window is that of steps 15 to 19
    assert "(entropy 0.575 -> 2, " in dict(collapse_warnings(jump))["entropy"]
    # a decay to 0.1 is silent, and so is a rise by 0.1: less than a fifth of the first five, 0.77
    calm = run_of(40, success=lambda s: 0.5, entropy=lambda s: 0.9 * math.exp(-min(s, 28) / 12)
                  + (0.1 if s > 28 else 0))
    assert signals_at_any_time(calm) == set()


def test_collapse_warnings_compare_gradients_with_their_median():
    """One gradient of a thousand among the first steps says nothing of the usual ones."""
    history = [{"success": 0.5, "grad_norm": 1000.0 if s == 3 else 1.0 if s < 20 else 8.0}
               for s in range(25)]
    assert "(grad_norm 1 -> 8, " in dict(collapse_warnings(history))["grad_norm"]
    spike = [{"success": 0.5, "grad_norm": 24.0 if s == 24 else 1.0} for s in range(25)]
    # the last five's mean: 28 / 5
    assert "(grad_norm 1 -> 5.6, " in dict(collapse_warnings(spike))["grad_norm"]


def test_collapse_warnings_bear_short_empty_and_broken_histories():
    assert collapse_warnings([]) == collapse_warnings([{}] * 50) == []
    assert collapse_warnings(echo_trap()[:9]) == []
    broken = [{**row, "grad_norm": math.nan, "entropy": None} for row in echo_trap()]
    assert "reward_std" in signals_at_any_time(broken)
