"""pytest tests/envs/test_babyai.py: envs/babyai.py against minigrid itself, driven beside it."""

import random
import re
import sys

import pytest
from players import solved

from envs import babyai

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")


@pytest.fixture(scope="module")
def env():
    return babyai.Env()


def ids_of(level, count, split=babyai.TRAIN):
    """The first `count` task ids of a level, which is numbered from 1 as in AgentGym."""
    ids = [task_id for task_id in split if task_id % 40 + 1 == level][:count]
    assert len(ids) == count
    return ids


def act(env, action):
    """(the grid steps it took, observation, reward, done, info)."""
    lows, before = env.macros[action], env._engine.step_count
    answer = env.step(action)
    return lows[:env._engine.step_count - before], *answer


def cells(engine):
    return engine.grid.encode().tobytes(), engine.mission, babyai.pose(engine)


def test_families_are_agentgyms_forty_levels(env):
    assert babyai.family(0) == "GoToRedBallGrey" and babyai.family(39) == "BossLevelNoUnlock"
    assert babyai.family(40 * 7 + 25) == "KeyInBox"       # level 26
    assert set(babyai.ONE_ROOM) <= set(babyai.FAMILIES) and len(babyai.ONE_ROOM) == 10
    assert set(babyai.LONG_FAMILIES) <= set(babyai.FAMILIES) - set(babyai.ONE_ROOM)
    env.reset(3)
    assert (env._engine.width, env._engine.height) == (6, 6)      # GoToObjS6


@pytest.mark.parametrize("level", [1, 8, 16, 23, 37])
def test_step_plays_minigrids_own_world(env, level):
    """A stock minigrid, with its wrappers and images, given the same grid steps, agrees."""
    stock = gymnasium.make(f"BabyAI-{babyai.FAMILIES[level - 1]}-v0")
    rng = random.Random(level)
    for task_id in ids_of(level, 2):
        env.reset(task_id)
        for attempt in range(3):
            stock.reset(seed=task_id // 40 + 1_000_000 * attempt)
            if cells(stock.unwrapped) == cells(env._engine):
                break
        assert cells(stock.unwrapped) == cells(env._engine)
        for turn in range(12):
            action = env.expert()[1] if turn % 3 else env.random_action(rng)
            taken, _, reward, done, info = act(env, action)
            for low in taken:
                _, stock_reward, terminated, truncated, _ = stock.step(low)
            assert (reward, done) == (stock_reward, terminated or truncated)
            assert info["success"] == (stock_reward > 0) and info["score"] == reward
            assert cells(stock.unwrapped) == cells(env._engine)
            if done:
                break


def things_in_image(image):
    """[(name without number, ahead, right)] of minigrid's (7, 7, 3) view; the agent is at 3, 6."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT
    found = []
    for i in range(7):
        for j in range(7):
            kind, colour, state = image[i, j]
            if (i, j) != (3, 6) and IDX_TO_OBJECT[kind] in ("door", "key", "ball", "box"):
                shut = ["open ", "closed ", "locked "][state] * (IDX_TO_OBJECT[kind] == "door")
                found.append((f"{IDX_TO_COLOR[colour]} {shut}{IDX_TO_OBJECT[kind]}", 6 - j, i - 3))
    return found


def things_in_text(text):
    line = re.search(r"In front of you in this room: (.*?)\. You ", text)[1]
    found = []
    for thing in line.split("; ") if line != "nothing" else []:
        name, *where = thing.split(", ")
        steps = {word.split()[1]: int(word.split()[0]) for word in where}
        found.append((name, steps.get("ahead", 0), steps.get("right", 0) - steps.get("left", 0)))
    return found


def test_observation_tells_exactly_what_minigrids_image_shows(env):
    rng = random.Random(0)
    for task_id in range(40):
        text = env.reset(task_id)
        assert text.startswith(f"Your goal: {env._engine.mission}\nIn front of you in this room: ")
        for _ in range(6):
            told = things_in_text(text)
            image = type(env._engine).gen_obs(env._engine)["image"]    # not our skipped one
            assert sorted((name.rsplit(" ", 1)[0], *where) for name, *where in told) \
                == sorted(things_in_image(image))
            distances = [ahead + abs(right) for _, ahead, right in told]
            assert distances == sorted(distances)
            for name, *_ in told:     # numbered 1, 2, ... among their like, nearest first
                kind, number = name.rsplit(" ", 1)
                alike = [other for other, *_ in told if other.rsplit(" ", 1)[0] == kind]
                assert alike.index(name) + 1 == int(number)
            held = env._engine.carrying
            assert ("You carry nothing." in text) == (held is None)
            assert held is None or f"You carry a {held.color} {held.type}." in text
            text, _, done, _ = env.step(env.random_action(rng))
            if done:
                break


def fewest_steps(cells_free, arrived):
    """Turns and steps from (0, 0) facing ahead until arrived(x, y, dx, dy): plain flooding."""
    poses, steps = {(0, 0, 0, -1)}, 0
    while not any(arrived(*pose) for pose in poses):
        grown = set(poses)
        for x, y, dx, dy in poses:
            grown |= {(x, y, dy, -dx), (x, y, -dy, dx)}     # left and right
            if (x + dx, y + dy) in cells_free:
                grown.add((x + dx, y + dy, dx, dy))
        if grown == poses:
            return None
        poses, steps = grown, steps + 1
    return steps


def test_macros_are_shortest_walks_through_the_view(env):
    rng, checked = random.Random(1), 0
    for task_id in range(0, 400, 11):
        text, done = env.reset(task_id), False
        for _ in range(4):
            if done:
                break
            image = type(env._engine).gen_obs(env._engine)["image"]
            free = {(i - 3, j - 6) for i in range(7) for j in range(7)
                    if image[i, j, 0] in (0, 1)            # unseen, empty
                    or image[i, j, 0] == 4 and image[i, j, 2] == 0}    # an open door
            free |= {(0, 0)}      # the image shows there what the agent carries
            for name, ahead, right in things_in_text(text):
                at = (right, -ahead)
                facing = fewest_steps(free, lambda x, y, dx, dy, at=at: (x + dx, y + dy) == at)
                onto = fewest_steps(free, lambda x, y, dx, dy, at=at: (x, y) == at)
                lengths = {"go to": facing} if facing else {}
                if "door" not in name and not env._engine.carrying and facing is not None:
                    lengths["pickup"] = facing + 1
                if "open door" in name and onto is not None:
                    lengths["go through"] = onto
                if "closed door" in name and facing is not None:
                    lengths["toggle and go through"] = facing + 2
                assert lengths == {macro.removesuffix(f" {name}"): len(lows)
                                   for macro, lows in env.macros.items()
                                   if macro.endswith(f" {name}")}, (task_id, name, text)
                checked += 1
            text, _, done, _ = env.step(env.random_action(rng))
    assert checked > 100


def test_available_actions_end_the_observation_and_are_all_accepted_and_drawn(env):
    text, rng = env.reset(60), random.Random(0)
    listed = re.findall('"(.*?)"', text.split("Available actions: ")[1])
    assert listed[:2] == ["turn left", "turn right"] and listed[-1] == "check available actions"
    assert {env.random_action(rng) for _ in range(300)} == set(listed[:-1])
    for action in listed:
        env.reset(60)
        assert env.step(action)[3]["valid"]
    env.reset(60)
    assert env.step("Check  available ACTIONS\n")[0] == text.split("\n", 1)[1]
    assert env._engine.step_count == 0      # the check takes no grid step


def test_step_stops_at_the_first_grid_step_that_changes_nothing(env):
    env.reset(2)     # GoToRedBallNoDists: a bare room
    while "You face a wall" not in env.step("turn left")[0]:
        pass
    wall = int(re.search(r"wall (\d)", env.step("check available actions")[0])[1])
    env.macros["move forward"] = [babyai.FORWARD] * 50
    taken, *_ = act(env, "move forward")
    assert len(taken) == wall       # wall - 1 steps, and the bump that changed nothing


def test_late_success_ends_the_episode_and_scores_once(env):
    """In AgentGym a reward below 0.5 did not end it, and was paid again every turn. Here time runs
    out at minigrid's limit, 64 grid steps."""
    for late in (48, 64):
        env.reset(4)
        turns = [env.step("turn left") for _ in range(late)]
        assert [turn[1:3] for turn in turns[:63]] == [(0, False)] * min(late, 63)
        if late == 64:
            text, reward, done, info = turns[-1]
            assert text.endswith("The time is up.") and (reward, done) == (0, True)
        else:
            assert solved(env) and 0.05 < env.score <= 1 - 0.9 * 49 / 64


def test_missions_keep_their_order_unless_asked_for_the_original(env):
    rewriting, seen = babyai.Env(original_missions=True), set()
    for task_id in ids_of(16, 20):
        goal, rewritten = (e.reset(task_id).split("\n")[0] for e in (env, rewriting))
        assert goal == f"Your goal: {env._engine.mission}"
        assert "then" not in rewritten and "after you" not in rewritten
        assert re.split(", then | after you ", goal) == re.split(",? and ", rewritten)
        seen |= {word for word in (", then ", " after you ") if word in goal}
    assert len(seen) == 2


def test_box_can_be_toggled_so_that_key_in_box_is_solved(env):
    """PickupDistDebug, whose target lies behind things that may not be taken, needs that, too."""
    for task_id in (36 * 40 + 19, 52 * 40 + 19, *ids_of(26, 3)):
        assert solved(env, task_id, 30)
    env.reset(task_id)
    grid = env._engine.grid
    while (box := grid.get(*env._engine.front_pos)) is None or box.type != "box":
        env.step(env.expert()[1])
    assert "toggle" in env.macros and box.contains.type == "key"
    env.step("toggle")
    assert grid.get(*env._engine.front_pos) is box.contains


@pytest.mark.parametrize("level", [5, 16, 19, 22, 23, 29])
def test_expert_succeeds_from_anywhere(env, level):
    """After random actions; not after `toggle`, which may destroy the box that is asked for. What
    the expert plans leaves the world alone. Level 16 wants two doors in order; 23 starts with full
    hands."""
    rng = random.Random(level)
    for task_id in ids_of(level, 4):
        env.reset(task_id)
        for turn in range(60):
            before = babyai.situation(env._engine), env._engine.step_count
            action = env.expert()[1]
            assert (babyai.situation(env._engine), env._engine.step_count) == before
            if turn < 8:
                while (action := env.random_action(rng)) == "toggle":
                    pass
            _, _, done, info = env.step(action)
            if done:
                break
        assert info["success"], task_id


def test_expert_plans_anew_after_a_reset(env, monkeypatch):
    """A plan of another episode may pass where this one begins, on the way to another goal."""
    plans, record = [], env._record
    monkeypatch.setattr(env, "_record", lambda: plans.append(env.task_id) or record())
    for task_id in (4, 4, 44, 4):
        env.reset(task_id)
        env.expert(), env.expert()
    assert plans == [4, 4, 44, 4]


@pytest.mark.parametrize("level", [4, 13])
def test_train_and_test_share_no_world_even_in_the_smallest_levels(env, level):
    def worlds(split, count):
        return {env.reset(i) and babyai.world(env._engine) for i in ids_of(level, count, split)}
    train, test = worlds(babyai.TRAIN, 100), worlds(babyai.TEST, 20)
    assert not train & test
    assert len(train) > 40 and len(test) > 8


def test_missing_engine_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid.envs.babyai.core.roomgrid_level", None)
    with pytest.raises(RuntimeError, match="pip install minigrid"):
        babyai.Env()
