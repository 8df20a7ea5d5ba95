"""pytest tests/test_env_sciworld.py: text, split and house against the engine itself, one JVM."""

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from env_server import Service, respond
from envs import sciworld

ROOT = Path(__file__).parent.parent
BOIL, THERMOMETER, POWER, FIND_THING, LONGEST, GROW = 0, 120, 1396, 3236, 4240, 4639   # variation 0


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


def play(env, task_id, others=()):
    """(score, sum of rewards, turns) of the expert; {turn: foreign action} are taken in between."""
    env.reset(task_id)
    others, rewards, done = dict(others), [], False
    while not done:
        action = others.pop(len(rewards), None) or env.expert()[1]
        _, reward, done, info = env.step(action)
        rewards.append(reward)
    return info["score"], sum(rewards), len(rewards)


def run_python(program, **environment):
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, env={**os.environ, **environment})


def alive(pid):
    """Whether the process runs; a zombie waiting for its parent does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


# ---- Ids ----

def test_split_is_the_engines_for_every_task(machine):
    game, start = machine.new_game(), 0
    assert sorted(sciworld.TASKS) == sorted(game.getTaskNames())
    for name, count in sciworld.TASKS.items():
        with machine.using(alone=True):
            game.load(name, 0, "", False)
        assert game.getTaskMaxVariations(name) == count
        for ids, variations in ((sciworld.TRAIN, game.getVariationsTrain()),
                                (sciworld.DEV, game.getVariationsDev()),
                                (sciworld.TEST, game.getVariationsTest())):
            ours = [i - start for i in ids if start <= i < start + count]
            assert ours == list(variations), name
        start += count


def test_locate_numbers_tasks_as_agentgym_does():
    from scienceworld.constants import ID2TASK
    starts = {"boil": 0, "melt": 30, "freeze": 60, "change-the-state-of-matter-of": 90,
              "use-thermometer": 120, "measure-melting-point-known-substance": 660,
              "measure-melting-point-unknown-substance": 1096, "power-component": 1396,
              "power-component-renewable-vs-nonrenewable-energy": 1416, "test-conductivity": 1436,
              "test-conductivity-of-unknown-substances": 2336, "find-living-thing": 2936,
              "find-non-living-thing": 3236, "find-plant": 3536, "find-animal": 3836,
              "chemistry-mix": 4136, "chemistry-mix-paint-secondary-color": 4168,
              "chemistry-mix-paint-tertiary-color": 4204, "lifespan-longest-lived": 4240,
              "lifespan-shortest-lived": 4365, "lifespan-longest-lived-then-shortest-lived": 4490,
              "identify-life-stages-1": 4615, "identify-life-stages-2": 4629}
    for name, start in starts.items():
        assert sciworld.locate(start) == (name, 0)
        assert start == 0 or sciworld.locate(start - 1)[0] != name
    left_out = [name for name in ID2TASK.values() if name not in starts]
    assert sciworld.FAMILIES == (*starts, *left_out)
    assert sciworld.locate(4639) == (left_out[0], 0)
    assert sciworld.locate(7206) == ("mendelian-genetics-unknown-plant", 479)
    assert sorted(sciworld.TRAIN + sciworld.DEV + sciworld.TEST) == list(range(7207))
    assert [len(sciworld.TRAIN), len(sciworld.DEV), len(sciworld.TEST)] == [3592, 1796, 1819]


# ---- The engine's own words ----

def test_reset_and_step_say_what_the_java_engine_says(machine, env, monkeypatch, capfd):
    import scienceworld

    def slow(*args):
        raise AssertionError("the package's own step asks for every possible action")
    monkeypatch.setattr(scienceworld.ScienceWorldEnv, "step", slow)
    assert "java" in os.path.basename(machine.process.args[0]) and machine.process.poll() is None
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

@pytest.mark.parametrize("task_id", [
    FIND_THING, FIND_THING + 299, POWER + 19, LONGEST, 4365, 4490, 3836, 4629],
    ids=lambda task_id: f"{sciworld.family(task_id)}-{sciworld.locate(task_id)[1]}")
def test_expert_wins_and_rewards_sum_to_100(env, task_id):
    score, rewards, turns = play(env, task_id)
    assert score == rewards == 100 and turns <= sciworld.HORIZON
    assert sciworld.family(task_id) not in sciworld.LONG_FAMILIES
    with pytest.raises(ValueError, match="reset first"):
        env.step("look around")


def test_reward_counts_from_the_score_of_the_start_room(env):
    env.reset(LONGEST + 3)      # starts outside, where the animals are: half of that task
    assert env.score == 50
    assert play(env, LONGEST + 3)[:2] == (100, 50)


@pytest.mark.parametrize("task_id, score", [(LONGEST + 3, 50), (BOIL, 0)])
def test_reset_over_http_sends_the_score_of_the_start_room_as_the_original_does(
        machine, task_id, score):
    services = {"sciworld": Service("sciworld")}

    def post(path, **body):
        return json.loads(respond(services, "POST", path, json.dumps(body).encode())[1])
    post("/create")
    reply = post("/reset", id=0, data_idx=task_id)
    assert (reply["score"], reply["reward"]) == (score, score)
    assert reply["task_description"].startswith("Your task is to ")
    assert reply["observation"].startswith(("This room is", "This outside location"))
    assert post("/step", id=0, action="inventory")["score"] == score
    (item,) = post("/resets", items=[{"id": 0, "task": task_id}])["items"]
    assert (item["info"]["score"], item["reward"]) == (score, 0)    # 0: no action earned it
    assert post("/close", id=0) is True


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


def test_nonsense_takes_a_turn_but_changes_nothing(env):
    env.reset(FIND_THING)
    env.step("open door to kitchen")
    before = env.score, lines(env.step("look around")[0])
    for nonsense in ("", "blah " * 2000, "\x00\x1b[2J", "打开门", "\ud800", "look around; wait",
                     "print('x')", "'; DROP TABLE x; --", '{"action": "look"}', "0", "-1e999"):
        turns = env.turns
        observation, reward, done, info = env.step(nonsense)
        assert observation.startswith("No known action") and len(observation) < 100
        assert (reward, done, info["valid"], env.turns) == (0, False, False, turns + 1), nonsense
    assert before == (env.score, lines(env.step("look around")[0]))
    assert env.game.getNumMoves() == 1                  # of all these only the door


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

def test_expert_wins_after_harmless_actions(env):
    harmless = {0: "look around", 1: "inventory", 2: "blah", 4: "wait", 5: "look around", 7: "task"}
    for task_id in (FIND_THING, POWER + 3):
        assert play(env, task_id, harmless)[0] == 100


def test_expert_walks_back_to_where_it_was_led_away(env):
    astray = {0: "open door to art studio", 1: "go to art studio", 2: "close door to hallway",
              6: "close door to kitchen", 8: "open door to bathroom", 9: "go to bathroom"}
    score, _, turns = play(env, FIND_THING, astray)
    assert score == 100 and turns < 30


def test_gold_path_is_searched_once(env, monkeypatch):
    path = sciworld.gold_path(FIND_THING + 7)
    monkeypatch.setattr(sciworld, "java", None)         # from here on the cache must do
    assert sciworld.gold_path(FIND_THING + 7) == path and len(path) > 1


# ---- One machine, many games ----

def test_two_games_do_not_disturb_each_other(env):
    other = sciworld.Env()
    games = {env: FIND_THING, other: POWER}
    for game, task_id in games.items():
        game.reset(task_id)
    while not (env.done and other.done):
        for game in games:
            if not game.done:
                game.step(game.expert()[1])
    assert env.score == other.score == 100


def test_games_run_in_threads():
    with ThreadPoolExecutor(4) as threads:
        episodes = threads.map(lambda i: play(sciworld.Env(), FIND_THING + i), range(4))
        assert [score for score, *_ in episodes] == [100] * 4


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
            beside = [world() for _ in range(6)]
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
    assert len(machine.free) == count + 1 and machine.free[-1] is game
    first.reset(BOIL)                                   # a closed Env may be used again
    assert first.game is game
    first.close()
    first.close()
    assert len(machine.free) == count + 1               # given back once


def test_sixteen_games_take_little_memory(machine):
    for _ in range(2):                                  # dropped, then again: no growth
        envs = [sciworld.Env() for _ in range(16)]
        for i, env in enumerate(envs):
            env.reset(sciworld.TEST[i * 110])
            env.step("look around")
        known = len(machine.free) + 16
        machine.gateway.jvm.System.gc()
        heap = machine.gateway.jvm.Runtime.getRuntime()
        assert heap.totalMemory() - heap.freeMemory() < 100 * 2**20
        del env, envs
        gc.collect()
        assert len(machine.free) == known
    assert known <= 32
    size = subprocess.run(["ps", "-o", "rss=", "-p", str(machine.process.pid)],
                          capture_output=True, text=True)
    assert int(size.stdout) < 2**20                     # kB: the whole process, below 1 GB


# ---- Beginning and end of the machine ----

def test_java_ends_with_its_process_even_a_killed_one():
    program = ("import sys; from envs import sciworld; env = sciworld.Env();"
               "print(env.java.process.pid, flush=True); sys.stdin.read()")
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    java = int(child.stdout.readline())
    assert alive(java)
    child.kill()
    child.communicate()
    until = time.monotonic() + 10
    while alive(java) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(java)


def test_crash_of_the_machine_is_told_and_another_is_started():
    answer = run_python(f"""
import os
from envs import sciworld
env = sciworld.Env()
env.reset({BOIL})
os.kill(env.java.process.pid, {signal.SIGKILL})
try:
    env.step("look around")
except RuntimeError as error:
    print(error)
env.java.process.wait()
print(sciworld.java().game().getScore(), sciworld.java().process.pid)
""")
    assert answer.returncode == 0, answer.stderr
    told, (score, java) = answer.stdout.split("\n")[0], answer.stdout.split("\n")[1].split()
    assert told.startswith("sciworld: the Java engine failed") and float(score) == 0
    assert not alive(java)                              # and it ended with its process


def test_exit_is_silent():
    answer = run_python("from envs import sciworld; env = sciworld.Env(); a = env.java.game()")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("trouble", ["no java", "broken java", "no package"])
def test_missing_engine_is_one_sentence(trouble, tmp_path, monkeypatch):
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    if trouble == "no package":
        monkeypatch.setitem(sys.modules, "scienceworld.constants", None)
    else:
        home = tmp_path if trouble == "broken java" else tmp_path / "nowhere"
        monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(RuntimeError, match="^sciworld: .*install") as told:
        sciworld.Java()
    assert "\n" not in str(told.value)
