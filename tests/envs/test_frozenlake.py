"""pytest tests/envs/test_frozenlake.py: ice against gymnasium's own table, exact chances."""
from statistics import fmean

import pytest
from players import play

from envs import frozenlake

DITCH = "_G" + "O" * 14         # the player in the corner, the goal on his right, holes elsewhere


def play_on(monkeypatch, lake, start, **flags):
    monkeypatch.setattr(frozenlake, "level", lambda _: (lake, start))
    env = frozenlake.Env(**flags)
    return env, env.reset(0)


def test_arrival_in_the_ditch():
    # "up" slides right to the goal with 1/3, else stays (up and left are edges): 1 - (2/3)^k; no
    # other move does better. A random player, turned aside or not, goes each way with 1/4: goal,
    # hole, stay, stay: 1/4 (1 + 1/2 + 1/4 + ...) = (1 - (1/2)^k) / 2.
    best = frozenlake.arrival(DITCH, 2 / 3, 6)
    chance = frozenlake.arrival(DITCH, 2 / 3, 6, fmean)
    for k in range(7):
        assert best[k][0] == pytest.approx(1 - (2 / 3) ** k, abs=1e-12)
        assert chance[k][0] == pytest.approx((1 - 0.5 ** k) / 2, abs=1e-12)
        assert best[k][1] == 1 and best[k][2:] == [0.0] * 14
    assert frozenlake.arrival(DITCH, 0.0, 1)[1][0] == 1


@pytest.mark.parametrize("slip", [0.0, 0.2, 2 / 3])
def test_outcomes_are_those_of_gymnasium(slip):
    toy_text = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake")
    for task_id in range(5):
        lake, start = frozenlake.level(task_id)
        desc = lake.replace("_", "F").replace("O", "H")
        desc = desc[:start] + "S" + desc[start + 1:]
        lines = [desc[row:row + 4] for row in range(0, 16, 4)]
        real = toy_text.FrozenLakeEnv(desc=lines, is_slippery=slip > 0, success_rate=1 - slip)
        for cell in (cell for cell in range(16) if lake[cell] == "_"):
            for number, move in enumerate(frozenlake.MOVES):
                ours, theirs = [0.0] * 16, [0.0] * 16
                for probability, after in frozenlake.outcomes(cell, move, slip):
                    ours[after] += probability
                for probability, after, reward, done in real.P[cell][number]:
                    theirs[after] += probability
                    assert reward == (lake[after] == "G") and done == (lake[after] != "_")
                assert ours == pytest.approx(theirs, abs=1e-12)


def test_level_has_a_way_and_no_map_in_both_splits():
    maps = {"TRAIN": set(), "TEST": set()}
    for split in maps:
        for task_id in getattr(frozenlake, split)[:300]:
            lake, start = frozenlake.level(task_id)
            reached = {start}                   # flood fill, slow and plain
            for _ in range(16):
                reached |= {frozenlake.slide(cell, move) for cell in reached if lake[cell] != "O"
                            for move in frozenlake.MOVES}
            assert lake.index("G") in reached and lake[start] == "_" and lake.count("G") == 1
            maps[split].add((lake, start))
    assert not maps["TRAIN"] & maps["TEST"] and len(maps["TRAIN"]) > 290
    holes = fmean(lake.count("O") for lake, _ in maps["TRAIN"])
    assert 1.8 < holes < 2.9        # 14 free cells, 0.2 each: 2.8, less those without a way


def test_step_on_still_ice(monkeypatch):
    env, text = play_on(monkeypatch, "_" * 5 + "O" + "_" * 9 + "G", 0, slip=0)
    assert text.startswith("P___\n_O__\n____\n___G\nThe ice is not slippery")
    text, reward, done, info = env.step("Right || right || fly || down")      # the word is dropped
    assert (reward, done, info["valid"]) == (-0.1, False, False)
    assert "____\n_OP_\n____\n___G" in text and "7 actions left" in text
    text, reward, done, info = env.step("down || down || right || up")        # stops at the goal
    assert (reward, done) == (1, True) and "____\n_O__\n____\n___√" in text
    assert info == {"success": True, "valid": True, "score": 1.0} and env.actions_left == 4
    env.reset(0)
    text, reward, done, info = env.step("right || down || up")
    assert (reward, done, info["success"]) == (0, True, False) and "____\n_X__" in text


def test_step_ends_with_the_last_action(monkeypatch):
    env, _ = play_on(monkeypatch, "_" * 15 + "G", 0, slip=0)
    assert not env.step("up || up || up || up || up || down")[2] and env.cell == 0   # five count
    assert not env.step("left || left || left || left")[2]
    assert env.step("down || down")[2] and env.cell == 4                             # one was left


def test_env_refuses_a_slip_that_is_no_probability():
    with pytest.raises(ValueError, match="0..1"):
        frozenlake.Env(slip=1.5)


def test_expert_hurries_on_still_ice(monkeypatch):
    env, _ = play_on(monkeypatch, "_" * 15 + "G", 0, slip=0)
    assert len(play(env)) == 6                  # three down, three right: no detour


def test_exact_success_is_near_the_published_baselines():
    """RAGEN's maps (ice 0.8, slip 2/3, ten actions): random 21.2%, best play 48.1%. 150 of ours
    have a standard error of about 1.5 and 2.2 points. A random way turned aside is a random way,
    so slip does not matter to the random player."""
    tasks = range(8001, 8301, 2)
    random_rate = [frozenlake.exact_success(task_id, "random") for task_id in tasks]
    assert fmean(random_rate) == pytest.approx(0.212, abs=0.05)
    assert fmean(frozenlake.exact_success(task_id, "expert") for task_id in tasks) == pytest.approx(
        0.481, abs=0.07)
    still = [frozenlake.exact_success(task_id, "random", slip=0.0) for task_id in tasks[:20]]
    assert random_rate[:20] == pytest.approx(still, abs=1e-12)
