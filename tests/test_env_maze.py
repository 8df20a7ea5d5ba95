"""pytest tests/test_env_maze.py: the recorded game, the double T by hand, chances against dice."""

import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from envs import maze

CARVED = [task_id for task_id in maze.TRAIN + maze.TEST if maze.family(task_id) == "random"]


def started(task_id, **flags):
    env = maze.Env(**flags)
    env.reset(task_id)
    return env


def test_step_replays_the_exchange_recorded_from_the_original_server():
    env = maze.Env()
    assert env.reset(18) == ("The goal is at position 8, 6. Your current position is at position "
                             "7, 6. There are walls to your right, to your left.")
    observation, reward, done, info = env.step("move up")
    assert observation.startswith("The goal is at position 8, 6. Your current position is at "
                                  "position 6, 6. ")
    assert (reward, done, info) == (0, False, {"success": False, "valid": True, "score": 0})
    env.step("move down")
    assert env.step("move down") == ("Success", 1, True,
                                     {"success": True, "valid": True, "score": 1})


@pytest.mark.parametrize("task_id, seen", [
    (2, "There is a wall above you."),                                # (1, 3), over the left stem
    (0, "There are walls to your left, above you, below you."),       # (1, 1), end of the left bar
    (16, "There is a wall above you."),                               # (5, 6), over the lower stem
    (13, "There are walls to your left, below you."),                 # (5, 3), a corner
])
def test_look_tells_the_walls_of_the_double_t(task_id, seen):
    assert maze.Env().reset(task_id).endswith(". " + seen)


def test_look_where_no_wall_is_near():
    env = started(0)
    env.grid, env.cell = ["...", "...", "..."], (1, 1)
    assert env.look().endswith("There are no walls near you.")


def test_double_t_has_the_recorded_size_and_a_game_for_every_open_square():
    grid, _, goal, to_goal = maze.world(0)
    assert (len(grid), {len(line) for line in grid}, goal) == (10, {13}, (8, 6))
    open_squares = [(row, column) for row in range(10) for column in range(13)
                    if grid[row][column] == "."]
    assert sorted(maze.STARTS) == open_squares and len(open_squares) == 26
    assert set(to_goal) == set(open_squares)


@pytest.mark.parametrize("task_id, moves", [
    (18, 1),
    (0, 2 + 4 + 3 + 3),     # (1, 1) right to column 3, down to row 5, right to column 6, down to 8
    (9, 2 + 4 + 3 + 3),     # (1, 11), its mirror image
    (5, 2 + 4 + 3 + 3),     # (1, 7), the inner end of the right bar
])
def test_expert_takes_the_shortest_way_through_the_double_t(task_id, moves):
    env = started(task_id)
    for turn in range(1, moves + 1):
        _, reward, done, _ = env.step(env.expert()[1])
        assert (reward, done) == ((1, True) if turn == moves else (0, False))


def test_reset_refuses_the_game_that_starts_on_the_goal():
    assert maze.STARTS[25] == (8, 6) and 25 not in maze.TRAIN + maze.TEST
    with pytest.raises(ValueError, match="no task 25; tasks are 0..1025 without 25"):
        maze.Env().reset(25)


def relaxed_distances(grid, goal):
    """Slow: lower every square to one more than its lowest neighbour until nothing changes."""
    to_goal = {(row, column): 999 for row, line in enumerate(grid)
               for column, square in enumerate(line) if square == "."}
    to_goal[goal], before = 0, None
    while to_goal != before:
        before = dict(to_goal)
        for row, column in to_goal:
            for neighbour in ((row, column + 1), (row, column - 1), (row + 1, column),
                              (row - 1, column)):
                if neighbour in to_goal:
                    to_goal[row, column] = min(to_goal[row, column], to_goal[neighbour] + 1)
    return to_goal


def test_world_carves_trees_with_a_way_of_4_to_15_moves():
    sizes = set()
    for task_id in CARVED[::20]:
        grid, start, goal, to_goal = maze.world(task_id)
        assert to_goal == relaxed_distances(grid, goal)
        assert 4 <= to_goal[start] <= 15 == maze.HORIZON
        edges = sum((row + 1, column) in to_goal for row, column in to_goal)
        edges += sum((row, column + 1) in to_goal for row, column in to_goal)
        assert edges == len(to_goal) - 1            # connected and without a circle
        assert {len(line) for line in grid} == {len(grid[0])}
        assert "." not in grid[0] + grid[-1] + "".join(line[0] + line[-1] for line in grid)
        sizes |= {len(grid), len(grid[0])}
    assert sizes == {7, 9, 11, 13}


def test_train_and_test_share_no_start_in_the_double_t_and_no_other_map():
    train, test = ({maze.fingerprint(task_id) for task_id in split}
                   for split in (maze.TRAIN, maze.TEST))
    assert not train & test
    assert len(train) > 800 and len(test) > 205      # two seeds may carve the same small maze
    train, test = ({tuple(maze.world(task_id)[0]) for task_id in split if task_id in CARVED}
                   for split in (maze.TRAIN, maze.TEST))
    assert not train & test
    assert sorted(task_id for task_id in maze.TRAIN + maze.TEST if task_id < 26) == [*range(25)]


@pytest.mark.parametrize("action", ["", "move", "up", "move up move up", "look\x00", "请左" * 999])
def test_step_answers_nonsense_with_the_same_observation(action):
    env = maze.Env()
    before = env.reset(17)
    assert env.step(action) == (before, 0, False, {"success": False, "valid": False, "score": 0})
    assert env.turns == 1


def test_step_into_a_wall_is_a_valid_move_that_leads_nowhere():
    env = maze.Env()
    before = env.reset(17)
    observation, reward, done, info = env.step("  Move LEFT\n")
    assert (observation, reward, done, info["valid"]) == (before, 0, False, True)


def test_step_fails_after_fifty_moves():
    env = started(18)
    for action in ["move left"] * 25 + ["nonsense"] * 25:
        observation, reward, done, _ = env.step(action)
        assert (reward, done) == (0, False) and "position 7, 6" in observation
    assert env.step("move down") == ("Failure", -1, True,
                                     {"success": False, "valid": True, "score": -1})
    with pytest.raises(ValueError, match="the episode is over; reset first"):
        env.step("move down")


def test_step_succeeds_on_the_fiftieth_move():
    env = started(18)
    for _ in range(49):
        env.step("move left")
    assert env.step("move down")[:3] == ("Success", 1, True)


def test_partial_view_tells_walls_and_moves_but_no_position():
    env = maze.Env(view="partial")
    assert env.reset(18) == ("There are walls to your right, to your left. "
                             "Your moves so far: none.")
    env.step("move up")
    env.step("nonsense")
    assert env.step("move left")[0].endswith("Your moves so far: move up, move left.")
    assert not any(char.isdigit() for char in env.look())
    assert env.expert()[0].startswith("The goal is 2 moves away")
    with pytest.raises(ValueError, match="no view 'map'; views are full and partial"):
        maze.Env(view="map")


def test_expert_finds_the_goal_from_wherever_it_is_put():
    rng, env = random.Random(0), maze.Env()
    for task_id in CARVED[::50]:
        env.reset(task_id)
        wandering = (env.step(env.random_action(rng))[2] for _ in range(20))
        if any(wandering):
            continue
        for left in range(env.to_goal[env.cell], 0, -1):
            thought, action = env.expert()
            assert f"{left} move" in thought
            _, reward, done, _ = env.step(action)
        assert (reward, done) == (1, True)


def test_exact_success_of_random_in_one_two_and_three_moves():
    # From (7, 6) down is 1/4. Left and right are walls: stay (1/2), then down. Up (1/4) needs two.
    assert maze.exact_success(18, "random", horizon=1) == 1 / 4
    assert maze.exact_success(18, "random", horizon=2) == 1 / 4 + 1 / 2 * 1 / 4
    assert maze.exact_success(0, "random", 60) == maze.exact_success(0, "random", 50)
    assert maze.exact_success(18, "random", horizon=3) == 1 / 4 + 1 / 8 + 1 / 16 + 1 / 4 * 1 / 4**2


@pytest.mark.parametrize("task_id", [14, 18, CARVED[3], CARVED[-1]])
def test_exact_success_of_random_agrees_with_play(task_id):
    rng, env, n, horizon = random.Random(task_id), maze.Env(), 1500, 40
    wins = 0
    for _ in range(n):
        env.reset(task_id)
        wins += any(env.step(env.random_action(rng))[2] for _ in range(horizon))
    p = maze.exact_success(task_id, "random", horizon)
    assert 0.05 < p < 0.95
    assert abs(wins / n - p) < 3 * (p * (1 - p) / n) ** 0.5


def test_exact_success_of_the_expert_is_whether_the_way_fits():
    assert [maze.exact_success(0, "expert", horizon) for horizon in (11, 12, 15)] == [0, 1, 1]
    assert all(maze.exact_success(task_id, "expert") == 1 for task_id in maze.TRAIN + maze.TEST)
    with pytest.raises(ValueError, match="no policy 'best'"):
        maze.exact_success(0, "best")


def explore(env, task_id):
    """The reward of a player without the map: depth first, and of new squares the one that lies
    nearest to the goal as the crow flies."""
    env.reset(task_id)
    path, seen = [env.cell], {env.cell}
    for _ in range(maze.HORIZON):
        row, column = env.cell
        new = {action: (row + down, column + right) for action, (down, right) in maze.MOVES.items()
               if maze.SIDES[action] not in env.look() and (row + down, column + right) not in seen}
        if new:
            action = min(new, key=lambda action: sum(abs(here - there) for here, there
                                                     in zip(new[action], env.goal)))
            path.append(new[action])
        else:
            path.pop()
            back = (path[-1][0] - row, path[-1][1] - column)
            action = next(action for action, move in maze.MOVES.items() if move == back)
        _, reward, done, _ = env.step(action)
        seen.add(env.cell)
        if done:
            return reward
    return 0


def test_docstring_states_the_baselines_of_test():
    def percent(success):
        return f"{100 * statistics.mean(success):.1f}%"
    chance = {task_id: maze.exact_success(task_id, "random") for task_id in maze.TEST}
    text = " ".join(maze.__doc__.split())
    assert "a random player " + percent(chance.values()) in text
    for family in maze.FAMILIES:
        assert f'"{family}" ' + percent(p for task_id, p in chance.items()
                                        if maze.family(task_id) == family) in text
    found = statistics.mean(explore(maze.Env(), task_id)
                            for task_id in maze.TEST if task_id in CARVED)
    assert f"succeeds in {100 * found:.0f}% of them" in text


def test_text_does_not_depend_on_the_hash_seed():
    program = """
from envs import maze
for task_id in (0, 24, 26, 500, 1025):
    env = maze.Env()
    print(maze.fingerprint(task_id), env.reset(task_id), env.expert())
"""
    told = {subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent.parent,
                           env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                           capture_output=True, text=True).stdout for seed in "123"}
    assert len(told) == 1 and "#" in told.pop()
