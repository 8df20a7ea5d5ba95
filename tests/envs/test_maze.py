"""pytest tests/envs/test_maze.py: the recorded game, the double T and chances by hand."""

import pytest

from envs import maze

CARVED = [task_id for task_id in maze.TRAIN + maze.TEST if maze.family(task_id) == "random"]


def test_step_replays_the_exchange_recorded_from_the_original_server():
    env = maze.Env()
    assert env.reset(18) == ("The goal is at position 8, 6. Your current position is at position "
                             "7, 6. There are walls to your right, to your left.")
    observation, reward, done, info = env.step("move up")
    assert observation.startswith("The goal is at position 8, 6. Your current position is at "
                                  "position 6, 6. ")
    assert (reward, done, info) == (0, False, {"success": False, "valid": True, "score": 0})
    env.step("move down")
    assert env.step("move down") == ("Success", 1, True, {
        "success": True, "valid": True, "score": 1})


@pytest.mark.parametrize("task_id, seen", [
    (2, "There is a wall above you."),                                # (1, 3), over the left stem
    (0, "There are walls to your left, above you, below you."),       # (1, 1), end of the left bar
    (16, "There is a wall above you."),                               # (5, 6), over the lower stem
    (13, "There are walls to your left, below you."),                 # (5, 3), a corner
])
def test_look_tells_the_walls_of_the_double_t(task_id, seen):
    assert maze.Env().reset(task_id).endswith(". " + seen)


def test_double_t_has_the_recorded_size_and_a_game_for_every_open_square():
    grid, _, goal, to_goal = maze.world(0)
    assert (len(grid), {len(line) for line in grid}, goal) == (10, {13}, (8, 6))
    open_squares = [(row, column) for row in range(10) for column in range(13)
                    if grid[row][column] == "."]
    assert sorted(maze.STARTS) == open_squares and len(open_squares) == 26
    assert set(to_goal) == set(open_squares)
    assert maze.STARTS[25] == goal and 25 not in maze.TRAIN + maze.TEST
    with pytest.raises(ValueError, match="no task 25; tasks are 0..1025 without 25"):
        maze.Env().reset(25)


def test_world_carves_trees_with_a_way_of_4_to_15_moves():
    sizes = set()
    for task_id in CARVED[::20]:
        grid, start, goal, to_goal = maze.world(task_id)
        for (row, column), distance in to_goal.items():     # one more than the nearest beside it
            beside = ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column))
            nearest = min(to_goal.get(square, 99) for square in beside)
            assert distance == (0 if (row, column) == goal else nearest + 1)
        assert len(to_goal) == "".join(grid).count(".")
        assert 4 <= to_goal[start] <= 15 == maze.HORIZON
        edges = sum((row + 1, column) in to_goal for row, column in to_goal)
        edges += sum((row, column + 1) in to_goal for row, column in to_goal)
        assert edges == len(to_goal) - 1            # connected and without a circle
        assert {len(line) for line in grid} == {len(grid[0])}
        assert "." not in grid[0] + grid[-1] + "".join(line[0] + line[-1] for line in grid)
        sizes |= {len(grid), len(grid[0])}
    assert sizes == {7, 9, 11, 13}


def test_train_and_test_share_no_map_but_the_double_t():
    train, test = ({tuple(maze.world(task_id)[0]) for task_id in split if task_id in CARVED}
                   for split in (maze.TRAIN, maze.TEST))
    assert not train & test
    assert len(train) > 600 and len(test) > 150      # two seeds may carve the same small maze


def test_step_succeeds_on_the_fiftieth_move():
    """A move into a wall is one, and any other text as well."""
    for before, reward, told in ((49, 1, "Success"), (50, -1, "Failure")):
        env = maze.Env()
        here = env.reset(18)
        for action in ["  Move LEFT\n"] * 25 + ["left"] * (before - 25):
            assert env.step(action) == (here, 0, False, {
                "success": False, "valid": action != "left", "score": 0})
        assert env.step("move down") == (told, reward, True, {
            "success": reward == 1, "valid": True, "score": reward})


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


def test_exact_success_of_random_in_one_two_and_three_moves():
    # From (7, 6) down is 1/4. Left and right are walls: stay (1/2), then down. Up (1/4) needs two.
    assert maze.exact_success(18, "random", horizon=1) == 1 / 4
    assert maze.exact_success(18, "random", horizon=2) == 1 / 4 + 1 / 2 * 1 / 4
    assert maze.exact_success(0, "random", 60) == maze.exact_success(0, "random", 50)
    assert maze.exact_success(18, "random", horizon=3) == 1 / 4 + 1 / 8 + 1 / 16 + 1 / 4 * 1 / 4**2


def test_exact_success_of_the_expert_is_whether_the_way_fits():
    # (1, 1) right 2 to column 3, down 4 to row 5, right 3 to column 6, down 3 to row 8
    assert [maze.exact_success(0, "expert", horizon) for horizon in (11, 12, 15)] == [0, 1, 1]
    assert all(maze.exact_success(task_id, "expert") == 1 for task_id in maze.TRAIN + maze.TEST)
