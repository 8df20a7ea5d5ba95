"""pytest tests/envs/test_sciworld.py: text, split and house against the engine itself, one JVM."""

import gc
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from players import ROOT, living, play, wire

from envs import sciworld

BOIL, THERMOMETER, FIND_THING, LONGEST, GROW = 0, 120, 3236, 4240, 4639     # each variation 0


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:     # solutions of the tests stay out of the home
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        try:
            yield sciworld.java()
        except RuntimeError as missing:
            pytest.skip(str(missing))


@pytest.fixture
def env(machine):
    env = sciworld.Env()
    yield env
    env.close()


def lines(text):
    return sorted(text.split("\n"))     # the engine lists things in changing order


def result(turns):
    """(score, sum of rewards)"""
    return turns[-1][-1]["score"], sum(turn[2] for turn in turns)


# ---- Ids ----

def test_split_is_the_engines_for_every_task(machine):
    """Names and counts of all; the variations of each split, which cost a load, of every second."""
    game, start = machine.new_game(), 0
    assert sorted(sciworld.TASKS) == sorted(game.getTaskNames())
    for n, (name, count) in enumerate(sciworld.TASKS.items()):
        assert game.getTaskMaxVariations(name) == count
        if n % 2 == 0:
            with machine.using(alone=True):
                game.load(name, 0, "", False)
            for ids, variations in ((sciworld.TRAIN, game.getVariationsTrain()),
                                    (sciworld.DEV, game.getVariationsDev()),
                                    (sciworld.TEST, game.getVariationsTest())):
                ours = [i - start for i in ids if start <= i < start + count]
                assert ours == list(variations), name
        start += count


def test_locate_numbers_tasks_as_agentgym_does():
    from scienceworld.constants import ID2TASK
    for name, start in {"boil": 0, "use-thermometer": 120, "find-living-thing": 2936,
                        "find-animal": 3836, "identify-life-stages-2": 4629}.items():
        assert sciworld.locate(start) == (name, 0)
        assert start == 0 or sciworld.locate(start - 1)[0] != name
    left_out = sciworld.FAMILIES[23:]       # the longest, which AgentGym does not have, come last
    assert sciworld.FAMILIES[:23] == tuple(x for x in ID2TASK.values() if x not in left_out)
    assert sciworld.locate(4639) == (left_out[0], 0)
    assert sciworld.locate(7206) == ("mendelian-genetics-unknown-plant", 479)
    assert sorted(sciworld.TRAIN + sciworld.DEV + sciworld.TEST) == list(range(7207))
    assert [len(sciworld.TRAIN), len(sciworld.DEV), len(sciworld.TEST)] == [3592, 1796, 1819]


# ---- The engine's own words ----

def test_reset_and_step_say_what_the_java_engine_says(machine, env, capfd):
    raw = machine.new_game()
    with machine.using(alone=True):
        raw.load("use-thermometer", 3, "", False)
    text = env.reset(THERMOMETER + 3)
    assert (env.task_name, env.var_num) == ("use-thermometer", 3)
    assert env.task_description == raw.getTaskDescription()
    assert lines(text) == lines(raw.getTaskDescription() + "\n" + raw.step("look around"))
    for action in ("inventory", "open door to kitchen", "go to kitchen", "look around", "wait"):
        assert lines(env.step(action)[0]) == lines(raw.step(action)), action
    assert capfd.readouterr().out == "", "the engine prints, nobody else"


def test_house_is_the_engines(machine):
    raw = machine.new_game()
    with machine.using(alone=True):
        raw.load("boil", 0, "teleportAction", False)
    for room, neighbours in sciworld.HOUSE.items():
        raw.step(f"teleport to {room}")
        look = raw.freeActionLook()
        assert f" is called the {room}." in look
        assert sorted(re.findall(r"door to the (.+?) \(that", look)) == list(neighbours), room


# ---- Score, reward, end ----

def test_reward_counts_from_the_score_of_the_start_room(env):
    env.reset(LONGEST + 3)      # starts outside, where the animals are: half of that task
    assert env.score == 50
    assert result(play(env, LONGEST + 3)) == (100, 50)


def test_reset_over_http_sends_the_score_of_the_start_room_as_the_original_does(machine):
    ask, task_id = wire("sciworld"), LONGEST + 3
    ask("/create", {})
    reply = ask("/reset", dict(id=0, data_idx=task_id))
    assert (reply["score"], reply["reward"]) == (50, 50)
    assert reply["task_description"].startswith("Your task is to ")
    assert reply["observation"].startswith(("This room is", "This outside location"))
    assert ask("/step", dict(id=0, action="inventory"))["score"] == 50
    (item,) = ask("/resets", {"items": [{"id": 0, "task": task_id}]})["items"]
    assert (item["info"]["score"], item["reward"]) == (50, 0)      # 0: no action earned it
    assert ask("/close", dict(id=0)) is True


def test_wrong_focus_costs_100_and_ends(env):
    env.reset(BOIL)
    _, reward, done, info = env.step("focus on air")
    assert (reward, done, info["score"], info["success"]) == (-100, True, -100, False)
    env.reset(BOIL)             # the engine keeps a score over a load, until its next step
    assert env.score == 0 and env.step("inventory")[1:3] == (0, False)


def test_step_ends_after_the_move_limit(env):
    env.reset(FIND_THING)
    ends = [env.step("wait")[2] for _ in range(10)]     # 11 moves each: nine are 99, ten 110
    assert ends == [False] * 9 + [True]
    short = sciworld.Env(move_limit=5)
    short.reset(FIND_THING)                             # looks are no moves, but they are turns
    assert [short.step("look around")[2] for _ in range(6)] == [False] * 5 + [True]


# ---- Questions ----

SEED = "move apple seed in seed jar to flower pot 3"    # five seeds are in the jar

def test_ambiguous_name_is_asked_for_and_answered_by_a_number(env):
    env.reset(GROW)
    for action in ("open door to kitchen", "go to kitchen", "pick up seed jar", "go to hallway",
                   "open door to greenhouse", "go to greenhouse"):
        assert env.step(action)[3]["valid"]
    env.gold = ["go to greenhouse", SEED, "0", "look around"]
    assert env.expert()[1] == SEED
    observation = env.step(SEED)[0]
    assert observation.startswith("Ambiguous request") and env.choices == 5
    assert {env.random_action(random.Random(i)) for i in range(50)} == set("01234")
    assert env.step("task")[0].startswith("Task description") and env.choices == 5
    assert env.expert()[1] == "cancel"                  # it was not the expert who asked `task`
    assert not env.step("look around")[3]["valid"] and env.choices == 0     # that cancelled
    assert env.expert()[1] == SEED                      # so it asks again
    env.step(SEED)
    assert env.expert()[1] == "0"
    assert env.step("0")[0].startswith("You move the apple seed") and env.choices == 0
    assert env.expert()[1] == "look around"
    env.step(SEED.replace("3", "2"))                    # somebody else's question
    assert env.expert()[1] == "cancel"
    env.step("cancel")
    assert env.expert()[1] == "look around"


# ---- The expert from here ----

def test_expert_walks_back_to_where_it_was_led_away(env):
    """And looks around, waits or babbles on the way. A path is searched once, then remembered."""
    astray = {0: "open door to art studio", 1: "go to art studio", 2: "close door to hallway",
              3: "look around", 4: "blah", 6: "close door to kitchen", 7: "inventory",
              8: "open door to bathroom", 9: "go to bathroom", 10: "wait", 11: "task"}
    turns = play(env, FIND_THING, choose=lambda env: astray.pop(env.turns, 0) or env.expert()[1])
    assert result(turns) == (100, 100) and len(turns) < 36 and not astray


# ---- One machine, many games ----

@pytest.mark.parametrize("others", ["step", "are made"])
def test_reset_builds_the_same_world_while_others(others, machine, env, tmp_path):
    """All games share a random generator, so a load beside another game would go wrong."""
    def world():
        env.reset(THERMOMETER + 9)      # how warm its substance is, is drawn in the load
        env.game.getObjectTree(str(tmp_path))
        tree = (tmp_path / "objectTree.json").read_text()
        return sorted(re.split("[{},]", re.sub(r'"uuid":"\d+"|-\d{3,}"|"\d{4,}"', "", tree)))
    alone, stop = world(), threading.Event()

    def disturb(other):
        other.reset(BOIL)
        while not stop.is_set():
            if others == "are made":
                with machine.using(alone=True):     # empty the pool, so that `game` makes one
                    machine.free.clear()
                machine.game()
            elif other.step("wait1")[2]:
                other.reset(BOIL)
    with ThreadPoolExecutor(2) as threads:
        busy = [threads.submit(disturb, sciworld.Env()) for _ in range(2)]
        try:
            beside = [world() for _ in range(4)]
        finally:
            stop.set()
        for thread in busy:
            thread.result()
    assert all(each == alone for each in beside)


def test_games_are_used_again_after_close_and_after_being_forgotten(machine):
    gc.collect()
    first = sciworld.Env()
    first.reset(BOIL)
    game = first.game
    first.close()
    with pytest.raises(ValueError, match="reset first"):
        first.step("look around")
    second = sciworld.Env()
    second.reset(BOIL)
    assert second.game is game
    count = len(machine.free)
    del second                                          # never closed
    gc.collect()
    first.reset(BOIL)                                   # a closed Env may be used again
    assert first.game is game
    first.close()
    first.close()
    assert len(machine.free) == count + 1               # given back once


# ---- Beginning and end of the machine ----

def test_java_ends_with_its_process_even_a_killed_one():
    program = ("import sys; from envs import sciworld; env = sciworld.Env();"
               "print(env.java.process.pid, flush=True); sys.stdin.read()")
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    java = int(child.stdout.readline())
    assert living([java])
    child.kill()
    child.communicate()
    until = time.monotonic() + 10
    while living([java]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not living([java])


def test_crash_of_the_machine_is_told_and_another_is_started(monkeypatch):
    monkeypatch.setattr(sciworld, "_java", None)        # the other tests keep theirs
    env = sciworld.Env()
    env.reset(BOIL)
    env.java.process.kill()
    with pytest.raises(RuntimeError, match="^sciworld: the Java engine failed"):
        env.step("look around")
    env.java.process.wait()
    assert env.reset(BOIL).startswith("Your task is to boil") and env.score == 0
    env.java.close()


@pytest.mark.parametrize("trouble", ["no java", "no package"])
def test_missing_engine_is_one_sentence(trouble, tmp_path, monkeypatch):
    if trouble == "no package":
        monkeypatch.setitem(sys.modules, "scienceworld.constants", None)
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="^sciworld: .*install") as told:
        sciworld.Java()
    assert "\n" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mendelian-genetics-known-plant",
                                  "mendelian-genetics-unknown-plant"])
def test_expert_of_the_longest_tasks_says_what_is_understood(name, env):
    """Left out of test_envs.py: the engine looks for their solutions for 12 seconds."""
    task_id = next(i for i in sciworld.TEST if sciworld.family(i) == name)
    assert all(info["valid"] for *_, info in play(env, task_id, sciworld.HORIZON))
