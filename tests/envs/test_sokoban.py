"""pytest tests/envs/test_sokoban.py: rooms drawn by hand, shortest solutions, exact chances."""
import random

import pytest
from players import solved

from envs import sokoban

# Cells 1 2 3 4 of a 6x6 room's second row are 7 8 9 10.
CORRIDOR = frozenset({7, 8, 9, 10})
RIGHT, LEFT, DOWN = 1, -1, 6


def play_in(monkeypatch, rows, shortest=None):
    """An environment in the room drawn here, and its observation."""
    cells = {symbol: {i for i, drawn in enumerate("".join(rows)) if drawn == symbol}
             for symbol in "#_OX√PS"}
    floor = set(range(len(rows) ** 2)) - cells["#"]
    targets = frozenset(cells["O"] | cells["√"] | cells["S"])
    boxes = frozenset(cells["X"] | cells["√"])
    player, = cells["P"] | cells["S"]
    monkeypatch.setattr(sokoban, "level", lambda _: (
        len(rows), floor, targets, player, boxes, shortest))
    env = sokoban.Env()
    return env, env.reset(0)


@pytest.mark.parametrize("player, boxes, step, after", [
    (7, {9}, RIGHT, (8, {9})),          # a walk
    (7, {9}, LEFT, (7, {9})),           # a wall
    (7, {9}, DOWN, (7, {9})),
    (7, {8}, RIGHT, (8, {9})),          # a push
    (9, {8}, LEFT, (8, {7})),
    (9, {10}, RIGHT, (9, {10})),        # a box at the wall stays
    (7, {8, 9}, RIGHT, (7, {8, 9})),    # and so do two boxes in a row
])
def test_play_moves_one_step(player, boxes, step, after):
    assert sokoban.play(CORRIDOR, player, frozenset(boxes), step) == after


def moves_by_search(size, floor, targets, start):
    """Slow and plain: breadth first, forward, from one state; None if it cannot be solved."""
    seen, layer, moves = {start}, {start}, 0
    while layer:
        if any(boxes == targets for _, boxes in layer):
            return moves
        moves += 1
        layer = {sokoban.play(floor, player, boxes, step)
                 for player, boxes in layer for step in (1, -1, size, -size)} - seen
        seen |= layer
    return None


def test_level_keeps_its_promises():
    rooms = {"TRAIN": set(), "TEST": set()}
    for split in rooms:
        for task_id in getattr(sokoban, split)[:80]:
            size, floor, targets, player, boxes, shortest = sokoban.level(task_id)
            assert sokoban.family(task_id) == f"{size}x{size}"
            assert len(boxes) == len(targets) == {6: 1, 8: 2}[size]
            assert not boxes & targets and {player} | boxes | targets <= floor
            assert all(0 < cell % size < size - 1 and 0 < cell // size < size - 1 for cell in floor)
            assert 3 <= shortest <= 10
            assert shortest == moves_by_search(size, floor, targets, (player, boxes))
            rooms[split].add((frozenset(floor), targets))
    assert not rooms["TRAIN"] & rooms["TEST"] and len(rooms["TRAIN"]) == 80


def test_step_rewards_a_push_on_and_off_a_target_and_the_room(monkeypatch):
    room = ["######", "#PX_O#", "#_√_##", *["######"] * 3]
    env, text = play_in(monkeypatch, room)
    assert text == "\n".join(room) + "\nYou have 10 actions left."
    rewards = [env.step(action) for action in ("down", "right", "left", "up", "right", "right")]
    assert [reward for _, reward, *_ in rewards] == pytest.approx(
        [-0.1, -1.1, -0.1, -0.1, -0.1, 0.9])        # the second pushed √ off, the last X onto O
    assert [info["score"] for *_, info in rewards] == [0.5, 0, 0, 0, 0, 0.5]
    assert rewards[1][0].split("\n")[1:3] == ["#_X_O#", "#_SX##"]
    assert not rewards[-1][2] and rewards[-1][0].split("\n")[1:3] == ["#__P√#", "#_OX##"]

    env, _ = play_in(monkeypatch, ["######", "#PXO_#", *["######"] * 4])
    observation, reward, done, info = env.step("right")
    assert reward == pytest.approx(-0.1 + 1 + 10) and done
    assert info == {"success": True, "valid": True, "score": 1.0}
    assert "#_P√_#" in observation


def test_step_plays_several_actions_until_the_budget_or_the_solution(monkeypatch):
    room = ["######", "#P_XO#", *["######"] * 4]
    env, _ = play_in(monkeypatch, room)
    _, reward, done, info = env.step("up || Right || right || left || left")     # stops when solved
    assert reward == pytest.approx(3 * -0.1 + 11) and done and info["success"]
    assert env.actions_left == 7

    env.reset(0)
    observation, reward, done, info = env.step("up || up || up || up || up || right")   # five count
    assert reward == pytest.approx(-0.5) and "5 actions left" in observation and info["valid"]
    env.step("up || up")
    observation, reward, done, info = env.step("up || up || up || right || right")
    assert reward == pytest.approx(-0.3) and "0 actions left" in observation
    assert done and not info["success"]

    env.reset(0)
    observation, reward, _, info = env.step("jump || right || fly")      # charged once
    assert reward == pytest.approx(-0.2) and not info["valid"]
    assert "#_PXO#" in observation and "9 actions left" in observation


def test_expert_plays_the_shortest_solution_from_wherever_it_is():
    env, rng, lost = sokoban.Env(), random.Random(0), 0
    for task_id in range(80):
        env.reset(task_id)
        env.player, *boxes = rng.sample(sorted(env.floor), len(env.targets) + 1)
        env.boxes = frozenset(boxes)
        needed = moves_by_search(env.size, env.floor, env.targets, (env.player, env.boxes))
        thought, action = env.expert()
        if needed is None:
            assert thought.startswith("A box is stuck for good")
            assert env.step(action)[3]["valid"] and env.boxes == frozenset(boxes)   # no harm done
            lost += 1
        elif needed:
            assert thought.startswith(f"Moves still needed: {needed}.")
            env.actions_left = needed
            assert solved(env), task_id
    assert 10 < lost < 70


def test_exact_success_of_a_corridor(monkeypatch):
    # Only "right" does anything: it comes within n moves with 1 - (3/4)^n, and twice in two moves
    # with 1/16.
    play_in(monkeypatch, ["######", "#PXO_#", *["######"] * 4], shortest=1)
    assert sokoban.exact_success(0, "random") == pytest.approx(1 - 0.75 ** 10, abs=1e-12)
    assert sokoban.exact_success(0, "random", 3) == pytest.approx(1 - 0.75 ** 3, abs=1e-12)
    assert sokoban.exact_success(0, "random", 30) == sokoban.exact_success(0, "random")
    play_in(monkeypatch, ["######", "#PX_O#", *["######"] * 4], shortest=2)
    assert sokoban.exact_success(0, "random", 2) == pytest.approx(1 / 16, abs=1e-12)
    assert [sokoban.exact_success(0, "expert", turns) for turns in (1, 2)] == [0.0, 1.0]
