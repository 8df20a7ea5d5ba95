"""pytest tests/test_curriculum.py: horizons, stages and tasks against plain counting."""
import random
import types

import pytest

import curriculum
from curriculum import (choose_tasks, families_of, horizon_at, shares_of, stage_after,
                        stopped_rising)
from envs import maze, textcraft_small

TOY = types.SimpleNamespace(
    NAME="toy", FAMILIES=("even", "odd"), TRAIN=range(10), TEST=range(90, 99),
    family=lambda task: ("even", "odd")[task % 2])


def test_horizon_at_moves_on_every_hundred_steps_then_stays():
    for step, horizon in ((0, 6), (99, 6), (100, 13), (199, 13), (200, 20), (300, 20), (9999, 20)):
        assert horizon_at(step, (6, 13, 20), (100,)) == horizon


def test_horizon_at_takes_switch_steps():
    assert [horizon_at(s, (6, 13, 20), (10, 15)) for s in (0, 9, 10, 14, 15, 99)] == \
        [6, 6, 13, 13, 20, 20]


def test_horizon_at_of_one_horizon_is_fixed():
    assert {horizon_at(s, (8,), (1,)) for s in range(50)} == {8}
    assert horizon_at(7, (8,), ()) == 8


@pytest.mark.parametrize("horizons", [(), (6, 0), (-1,), (13, 6)])
def test_horizon_at_refuses_horizons(horizons):
    with pytest.raises(ValueError, match="horizons .*expected one number of turns or several"):
        horizon_at(0, horizons, (100,))


def test_horizon_at_accepts_equal_neighbours():
    assert horizon_at(1, [6, 6, 20], (1, 2)) == 6


@pytest.mark.parametrize("switch_every", [(0,), (20, 10), (10, 10), (0, 10), (1, 2, 3)])
def test_horizon_at_refuses_switches(switch_every):
    with pytest.raises(ValueError, match="switch_every .*: expected one number of steps"):
        horizon_at(0, (6, 13, 20), switch_every)


def rising(steps, noise, seed):
    """Success climbing from 0.1 by 0.02 a step."""
    rng = random.Random(seed)
    return [0.1 + 0.02 * s + rng.gauss(0, noise) for s in range(steps)]


def test_stopped_rising_not_while_success_rises():
    for seed in range(20):    # a rise of 0.2 between windows, its standard error about 0.03
        assert not stopped_rising(rising(40, 0.02, seed))


def test_stopped_rising_when_success_is_flat_or_falls():
    for curve in ([0.0] * 30, [1.0] * 30, [0.6] * 30, [0.9 - 0.01 * s for s in range(30)]):
        assert stopped_rising(curve)


def test_stopped_rising_margin_is_one_standard_error():
    # both windows alternate x +- 0.1: s^2 = 10 * 0.01 / 9, error sqrt(2 * 0.0111 / 10) = 0.0471
    wave = [0.1, -0.1] * 5
    for rise, stopped in ((0.046, True), (0.048, False)):
        curve = [0.5] * 10 + [0.5 + w for w in wave] + [0.5 + rise + w for w in wave]
        assert stopped_rising(curve) is stopped


def test_stopped_rising_needs_its_minimum_stay():
    assert not stopped_rising([0.5] * 29)
    assert stopped_rising([0.5] * 29, min_steps=20)
    assert not stopped_rising([0.5] * 19, min_steps=1)      # two windows of 10 first


def test_stage_after_replays_the_stages():
    """Flat at first, so that stage 0 ends after 30 steps; then a rise that lasts 40 steps."""
    successes = [0.5] * 30 + [0.1 + 0.02 * i for i in range(40)] + [0.9] * 200
    stage, since, stages = 0, [], []
    for success in successes:                   # what a loop with a memory of its own would do
        since.append(success)
        if stage < 2 and stopped_rising(since):
            stage, since = stage + 1, []
        stages.append(stage)
    assert stages == [stage_after(successes[:i + 1], 3) for i in range(len(successes))]
    assert stages[28:30] == [0, 1] and stages[69] == 1 and stages[-1] == 2      # the last for good
    assert stage_after([], 3) == 0


def test_choose_tasks_takes_a_split_whole_or_a_fixed_sample_of_it():
    assert choose_tasks(TOY, "train", 0) == list(range(10)) == choose_tasks(TOY, "train", 10)
    assert choose_tasks(TOY, "train", 99) == list(range(10))
    some = choose_tasks(maze, "test", 50)
    assert len(set(some)) == 50 and set(some) <= set(maze.TEST) and some == sorted(some)
    assert some == choose_tasks(maze, "test", 50)
    assert choose_tasks(TOY, "train", 3, only={2, 5, 7, 95}) == [2, 5, 7]     # chosen, then sampled
    with pytest.raises(ValueError, match="no task"):
        choose_tasks(TOY, "train", 3, only=range(90, 99))
    assert len(choose_tasks(textcraft_small, "test", 99)) == 99


def test_choose_tasks_is_fair_to_families_that_take_turns():
    toy = types.SimpleNamespace(**{**vars(TOY), "TEST": range(1000)})
    families = [toy.family(task) for task in choose_tasks(toy, "test", 100)]
    # half of 100, 3 standard errors of 5 each way; every tenth id would all be even
    assert 35 < families.count("even") < 65


def test_choose_tasks_keeps_to_families():
    assert choose_tasks(TOY, "train", 0, "odd") == [1, 3, 5, 7, 9]
    assert choose_tasks(TOY, "test", 0, "even,odd") == list(range(90, 99))
    assert len(choose_tasks(TOY, "train", 3, "odd")) == 3


@pytest.mark.parametrize("split, families, sentence", [
    ("test", "none", "the test split has no task of none"),
    ("train", "big", "toy: the train split has no task of big")])
def test_choose_tasks_says_what_is_wrong(split, families, sentence):
    toy = types.SimpleNamespace(**{**vars(TOY), "FAMILIES": ("even", "odd", "none")})
    with pytest.raises(ValueError, match=sentence):
        choose_tasks(toy, split, 5, families)


COLOURS = types.SimpleNamespace(NAME="colours", FAMILIES=("red", "odd", "blue"))


@pytest.mark.parametrize("families, own", [
    ("", ["", ""]),                                 # all of both
    ("odd", ["odd", "odd"]),                        # both have it
    ("blue,even,red", ["even", "blue,red"]),        # in the order in which they are named
    ("red", ["", "red"]),                           # of the toy none is named: all
    ("even,,odd,", ["even,odd", "odd"])])
def test_families_of_gives_each_environment_its_own(families, own):
    assert families_of([TOY, COLOURS], families) == own
    assert families_of([COLOURS, TOY], families) == own[::-1]


def test_families_of_refuses_a_family_that_none_has():
    with pytest.raises(ValueError, match=r"no families \['big', 'green'\]; known: toy: even, odd; "
                       "colours: red, odd, blue$"):
        families_of([TOY, COLOURS], "green,odd,big")


@pytest.mark.parametrize("count, shares, counts", [
    (32, (1,), [32]),
    (32, (1, 1, 1), [11, 11, 10]),          # 10.67 each: two are left, the first two get them
    (8, (3, 1), [6, 2]),
    (10, (1, 2, 4), [1, 3, 6]),             # 1.43, 2.86, 5.71: two are left, for .86 and .71
    (10, [4, 2, 1], [6, 3, 1]),
    (4, (3, 3, 1), [2, 2, 0]),              # 1.71, 1.71, 0.57: two are left, for the first two
    (3, (9, 1, 1), [3, 0, 0]),              # 2.45, 0.27, 0.27
    (2, (1, 1, 1), [1, 1, 0])])
def test_shares_of_deals_by_largest_remainder(count, shares, counts):
    if 0 in counts:
        with pytest.raises(ValueError, match=f"{count} tasks by shares .*: some .* gets none"):
            shares_of(count, shares)
    else:
        assert shares_of(count, shares) == counts


def test_shares_of_adds_up_and_is_nowhere_off_by_one():
    rng = random.Random(0)
    for _ in range(300):
        shares = [rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
        count = rng.randint(sum(shares), 400)           # nobody's share is below one task
        counts = shares_of(count, shares)
        assert sum(counts) == count
        assert all(abs(n - count * s / sum(shares)) < 1 for n, s in zip(counts, shares))


@pytest.mark.parametrize("shares", [(0, 0), (1, 0), (-1, 1), (-1, 2)])
def test_shares_of_refuses_what_are_no_shares(shares):
    with pytest.raises(ValueError, match=r"shares \(.*\): "):
        shares_of(8, shares)


def test_sample_tasks_deals_each_task_once_per_epoch():
    tasks = range(100, 110)
    dealt = [task for step in range(10) for task in curriculum.sample_tasks(tasks, 3, step, seed=1)]
    epochs = [dealt[0:10], dealt[10:20], dealt[20:30]]     # 10 steps of 3 are 3 epochs of 10
    assert all(sorted(epoch) == list(tasks) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3    # and each shuffled anew


def test_sample_tasks_depends_on_step_and_seed_alone():
    state = random.getstate()

    def run(steps, seed):
        return [curriculum.sample_tasks(range(50), 8, step, seed) for step in steps]

    whole = run(range(20), 3)
    random.seed(0)
    assert run(range(12, 20), 3) == whole[12:]             # as a run resumed at step 12 sees it
    assert run(range(20), 4) != whole
    random.setstate(state)
    curriculum.sample_tasks(range(50), 8, 0, seed=3)
    assert random.getstate() == state                      # the global generator is not touched


def test_sample_tasks_may_ask_for_more_than_there_are():
    dealt = curriculum.sample_tasks((7, 8, 9), 7, 0, seed=0)
    assert sorted(dealt[:3]) == sorted(dealt[3:6]) == [7, 8, 9] and dealt[6] in (7, 8, 9)
