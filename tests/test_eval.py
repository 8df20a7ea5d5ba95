"""pytest tests/test_eval.py: arithmetic on literals, the whole script on small worlds."""
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import fakes
import pytest
from fakes import serving
from more.test_original import lmrl_gym
from transformers import AutoTokenizer

import eval as evaluation
import report
from chat import Agent
from client import EnvClient, EnvError
from curriculum import choose_tasks
from env_server import HttpServer
from envs import frozenlake, load_env, maze, textcraft_small, wordle
from envs.parts import players
from envs.parts.players import builtin_rate, play_builtin
from envs.parts.suites import COMPOSITION, SUITES, suite_tasks
from episode import World
from eval import Config, figures_of, rows_of, run, table
from policy import load_policy
from rollout import collect
import metrics

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def url():
    with serving(HttpServer(["maze", "textcraft_small"])) as address:
        yield address


# ---- arithmetic ----

def groups_of(*outcomes, env="toy"):
    """[[(success, score, turns) of each sample] of each task (its number is its place)] -> what is
    kept of them: two tokens a turn, one valid action."""
    return [[dict(env=env, task_id=task, success=success, score=score, reward=-score, turns=turns,
                  valid=1, tokens=2 * turns, conversation="") for success, score, turns in samples]
            for task, samples in enumerate(outcomes)]


def test_figures_of_k_samples_a_task():
    every = figures_of(groups_of([(True, 1.0, 1), (False, 0.5, 3), (False, 0.0, 2)],
                                 [(True, 1.0, 2)] * 3, [(False, 0.0, 9)] * 2 + [(False, 0.0, 6)]))
    # Avg@3 of the tasks: 1/3, 1, 0; their mean 4/9. Pass@3: 2 of 3 tasks
    assert every["n"] == 3 and every["success"] == pytest.approx(4 / 9)
    assert every["passed"] == pytest.approx(2 / 3) and every["turns"] == 4
    # over tasks, not plays: ((1/9)^2 + (5/9)^2 + (4/9)^2) / 2 / 3 = 42/81/6 = 7/81
    assert every["stderr"] == pytest.approx(math.sqrt(7) / 9)
    # mean scores 1/2, 1, 0: squares about 1/2 sum to 1/2; / 2 / 3 = 1/12
    assert every["score"] == 0.5 and every["score_stderr"] == pytest.approx(math.sqrt(1 / 12))
    assert every["tokens"] == 8 and every["valid"] == 9 / 36       # of episodes; of all turns


def test_figures_of_is_nan_where_something_is_not_known():
    groups = groups_of([(True, 1.0, 2)], [(True, 1.0, 2)])
    groups[0][0]["valid"], groups[1][0]["tokens"] = None, None
    figures = figures_of(groups)
    assert math.isnan(figures["valid"]) and math.isnan(figures["tokens"])
    silent = figures_of(groups_of([(False, 0.0, 0)]))
    assert silent["turns"] == silent["tokens"] == 0
    assert all(math.isnan(silent[x]) for x in ("valid", "stderr", "score_stderr"))


def world_of(name):
    """A World of a toy with this name; it is played by nobody."""
    module = fakes.toy()
    module.NAME = name
    return World(None, Agent(None, module=module), 4)


def test_rows_of_two_environments_by_hand(monkeypatch):
    """a: tasks 0, 1, 2 with 1, 0, 1; b: tasks 0, 2 with 1, 0; c: none could be played."""
    monkeypatch.setattr(metrics, "builtin_rate", lambda module, player, tasks, turns, seed: (
        len(list(tasks)) / 10, turns / 100 if player == "random" else seed[0] / 100))
    won, lost = (True, 1.0, 1), (False, 0.0, 1)
    groups = groups_of([won], [lost], [won], env="a") + groups_of([won], env="b")
    groups += groups_of([], [], [lost], env="b")[2:]
    rows = rows_of(Config(seed=3, model="m"), [world_of(name) for name in "abc"], groups)
    assert [(row["env"], row["row"]) for row in rows] == [
        ("a", "all"), ("a", "even"), ("a", "odd"), ("a", "random player"), ("a", "expert player"),
        ("b", "all"), ("b", "random player"), ("b", "expert player"), ("mean", "all")]  # one family
    by = {(row["env"], row["row"]): row for row in rows}
    assert (by["a", "random player"]["success"], by["a", "random player"]["stderr"]) == (0.3, 0.04)
    assert (by["b", "expert player"]["n"], by["b", "expert player"]["stderr"]) == (2, 0.03)
    assert by["mean", "all"]["n"] == 2 and by["mean", "all"]["success"] == pytest.approx(7 / 12)
    # of a: 2/3 / 2 / 3 = 1/9, of b: 1/2 / 1 / 2 = 1/4, root of their sum, halved
    assert by["mean", "all"]["stderr"] == pytest.approx(math.sqrt(13) / 12)
    text = table(rows, 1)
    assert "nan" not in text and re.search(r"odd +1 +0.0% +- +0.0% +0.000 +- ", text)
    assert "nanogrid" in table([rows[0] | dict(title="nanogrid")], 1)


# ---- the built-in players ----

def test_play_builtin_gives_each_task_and_each_seed_a_random_stream_of_its_own():
    class Env(fakes.Env):
        def random_action(self, rng):
            return str(rng.random())

    def action(task, seed):
        module = types.SimpleNamespace(Env=Env, NAME="any")
        return play_builtin(module, "random", task, 1, seed)["conversation"][1]["content"]
    drawn = [action(task, seed) for seed in ((0, 0), (0, 1), (1, 0)) for task in range(5)]
    assert len({*drawn}) == 15 and drawn[:5] == [action(task, (0, 0)) for task in range(5)]


def test_builtin_rate_is_exact_where_the_environment_can_be_solved(monkeypatch):
    tasks = maze.TEST[:6]
    rate, error = builtin_rate(maze, "random", tasks, 15)
    assert error == 0
    assert rate == sum(maze.exact_success(task, "random", 15) for task in tasks) / 6
    monkeypatch.setattr(players, "play_builtin", None)       # nothing is played
    assert builtin_rate(maze, "expert", tasks, 50) == (1.0, 0.0)
    assert builtin_rate(maze, "random", tasks, 60)[0] > rate    # at its own horizon


def test_builtin_rate_is_played_elsewhere(monkeypatch):
    """What the engine refuses is left out."""
    toy = fakes.toy()

    def play(module, player, task, horizon, seed=0):
        assert (module, player, horizon, seed) == (toy, "random", 7, 3)
        if task == 9:
            raise RuntimeError("the engine broke")
        return dict(success=task != 2)
    monkeypatch.setattr(players, "play_builtin", play)
    # 1 1 0 1: mean .75; squares about it .0625 * 3 + .5625 = .75; / 3 / 4 = .0625; root .25
    assert builtin_rate(toy, "random", [0, 1, 9, 2, 3], 7, seed=3) == (0.75, 0.25)


# ---- the script ----

def kept_in(folder):
    """The plays of each task in an evaluation's folder, sorted."""
    groups = map(json.loads, (folder / "trajectories.jsonl").read_text().splitlines())
    return sorted(groups, key=lambda group: (group[0]["env"], group[0]["task_id"]))


def rows_by(results):
    """{(environment, row): the row of what `run` gives}."""
    return {(row["env"], row["row"]): row for row in results["rows"]}


def test_run_measures_a_model(url, model, tmp_path, capsys):
    speaks = dict(format="react", context="window", max_turn_tokens=4, max_context=900,
                  temperature=0.7)
    results = run(Config(env="maze", model=model, n=12, k=2, horizon=6, env_url=url, seed=9,
                         out=str(tmp_path / "out"), **speaks))
    assert json.loads((tmp_path / "out/results.json").read_text()) == results
    rows = rows_by(results)
    every = rows["maze", "all"]
    tasks = choose_tasks(maze, "test", 12)
    for who in ("random", "expert"):
        assert rows["maze", f"{who} player"]["success"] == builtin_rate(maze, who, tasks, 6)[0]
    heat = speaks.pop("temperature")
    agent = Agent(AutoTokenizer.from_pretrained(model), maze.PROMPT, module=maze, **speaks)
    world = World(EnvClient(url, "maze"), agent)
    trajectories, _ = collect(load_policy(model).eval(), [(world, task) for task in tasks], 2, 6,
                              (9,), temperature=heat)
    assert (every["n"], every["success"], every["turns"], every["tokens"]) == (
        12, *(statistics.fmean(x) for x in (
            [t.success for t in trajectories], [len(t.turns) for t in trajectories],
            [sum(t.response_mask) for t in trajectories])))
    turns = [turn for t in trajectories for turn in t.turns]
    assert every["valid"] == sum(turn.valid for turn in turns) / len(turns)
    kept = [play for group in kept_in(tmp_path / "out") for play in group]
    assert [p["conversation"] for p in kept] == [json.loads(json.dumps(report.sample_of(
        t, agent.tokenizer))) for t in trajectories]
    assert [(p["env"], p["task_id"], p["success"], p["score"], p["reward"], p["turns"])
            for p in kept] == [("maze", t.task_id, t.success, t.score, t.reward, len(t.turns))
                               for t in trajectories]
    lines = capsys.readouterr().out.splitlines()
    title = f"maze, test split, {model}, temperature 0.7, seed 9"
    assert title in lines and "Pass@2" in lines[lines.index(title) + 2]
    assert lines[-2].startswith("  random player (exact)")


def test_run_on_an_original_plays_what_it_has_and_says_whose_players_these_are(
        model, monkeypatch, capsys, as_before):
    """The fake original is won by any reply; it has 50 words, of which every fifth is in TEST."""
    wordle.ORIGINAL = range(50)
    prompts = []
    monkeypatch.setattr(metrics, "collect", lambda policy, tasks, *rest, **more: prompts.append(
        tasks[0][0].agent.prompt) or collect(policy, tasks, *rest, **more))
    server = lmrl_gym(["adieu", "stone"])
    with serving(server) as address:
        rows = rows_by(run(Config(env="wordle", model=model, n=0, horizon=2, data=address,
                                  max_turn_tokens=4)))
    known = [task for task in choose_tasks(wordle, "test", 0) if task in wordle.ORIGINAL]
    asked = [body["seed"] for path, body in server.log if path.endswith("/reset")]
    assert len(known) == 10 and sorted(asked) == known
    assert "the vocabulary is: adieu, stone." in prompts[0]
    every = rows["wordle", "all"]
    assert (every["n"], every["success"], every["valid"]) == (10, 1, None)   # it does not say
    assert rows["wordle", "random player"]["success"] == builtin_rate(
        wordle, "random", known, 2)[0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("  random player, our local game (exact) ")
    assert lines[-1].startswith("  expert player, our local game (exact) ")


def test_run_gives_each_try_of_a_player_a_luck_of_its_own():
    """On slippery ice: Avg@3 and Pass@3 of the expert and the random player against the exact rates
    p of one try; with one luck for all tries Pass@3 would be Avg@3."""
    tasks = choose_tasks(frozenlake, "test", 60, "slippery")
    for player in ("expert", "random"):
        every = rows_by(run(Config(env="frozenlake", policy=player, n=60, k=3,
                                   families="slippery")))["frozenlake", "all"]
        rates = [frozenlake.exact_success(task, player, 10) for task in tasks]
        # a standard error of at most sqrt(1/4 / 60) = 0.06
        assert every["success"] == pytest.approx(statistics.fmean(rates), abs=0.15)
        passed = statistics.fmean(1 - (1 - rate) ** 3 for rate in rates)
        assert every["passed"] == pytest.approx(passed, abs=0.15)
        assert passed > statistics.fmean(rates) + 0.2


def test_run_says_that_prompts_are_too_long(url, model, capsys):
    cfg = Config(env="maze", model=model, n=6, k=2, horizon=3, env_url=url, max_turn_tokens=4,
                 max_context=30)
    assert rows_by(run(cfg))["maze", "all"]["turns"] == 0
    assert ("12 of 12 episodes had no turn and count as failures: their prompt and a reply of 4 "
            "exceed --max-context 30 tokens") in capsys.readouterr().out
    assert run(replace(cfg, max_context=1024))["notes"] == []


# ---- suites, and what the folder keeps ----

def test_suites_count_as_in_the_papers():
    counts = {name: sum(n for n, _ in suite.values()) for name, suite in SUITES.items()}
    assert counts == {"agenteval": 1160, "agentgym_rl": 840}
    assert SUITES["agenteval"]["bird"] == (200, 1) and len(SUITES["agenteval"]) == 14
    assert SUITES["agentgym_rl"]["searchqa"] == (400, 4) and len(SUITES["agentgym_rl"]) == 5
    for suite in SUITES.values():
        assert all(turns <= load_env(name).HORIZON for name, (_, turns) in suite.items()
                   if name != "webarena")
        for name, parts in COMPOSITION.items():     # of AgentEval's webarena: the same shares
            n, _ = suite.get(name, (sum(parts.values()), 0))
            assert sum(parts.values()) == {20: 50}.get(n, n)


@pytest.mark.parametrize("name, groups", [
    ("textcraft", {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3}),
    ("babyai", {"GoTo": 55, "Pickup$": 5, "PickupLoc": 5, "PickupAbove": 5, "ActionObjDoor": 5,
                "FindObjS7": 5, "OneRoomS20": 5, "SynthLoc": 5}),
    ("sciworld", {"use-thermometer": 18, "measure-": 35, "test-conductivity": 83, "find-": 44,
                  "chemistry-mix": 5, "lifespan-": 15}),
    ("webarena", {"shopping$": 15, "shopping_admin": 15, "map": 10, "reddit": 5, "gitlab": 5})])
def test_suite_tasks_are_composed_as_the_papers_percentages(name, groups):
    module = load_env(name)
    tasks = suite_tasks(module, sum(groups.values()))
    families = [module.family(task) for task in tasks]
    assert len({*tasks}) == len(tasks) == sum(groups.values()) and {*tasks} <= {*module.TEST}
    for start, count in groups.items():     # a group's families differ by at most one task
        sizes = [families.count(f) for f in {*families} if re.match(start, f)]
        assert sum(sizes) == count and max(sizes) - min(sizes) <= 1


def test_a_suite_says_what_is_missing(tmp_path, monkeypatch, capsys):
    """A suite of textcraft, whose engine is here, wordle, whose is not, and one to be written."""
    monkeypatch.setitem(SUITES, "small", {
        "wordle": (25, 8), "textcraft": (100, 3), "nowhere": (20, 5), "bandit": (300, 1)})

    def no_engine(*_):
        raise RuntimeError("wordle needs its engine: pip install words")
    monkeypatch.setattr(wordle, "Env", no_engine)
    rows = rows_by(run(Config(suite="small", policy="expert")))
    assert {env for env, row in rows if row == "all"} == {"bandit", "textcraft", "mean"}
    assert [rows["textcraft", f"depth {d}"]["n"] for d in (1, 2, 3, 4)] == [31, 41, 25, 3]
    assert rows["bandit", "all"]["n"] == 200                # all there are
    # within its three turns the expert plays those that take no more
    assert rows["textcraft", "all"]["turns"] <= 3 and rows["textcraft", "depth 4"]["success"] == 0
    assert {p.name for p in (tmp_path / "runs/small-expert").iterdir()} == {
        "config.json", "trajectories.jsonl", "results.json", "report.html"}
    out = capsys.readouterr().out
    assert out.startswith("wordle is left out: wordle needs its engine: pip install words\n"
                          "nowhere is left out: unknown environment 'nowhere'\n")
    assert "\nsmall, test split, expert, " in out


def test_the_random_players_row_is_what_the_random_player_gets():
    cfg = Config(env="textcraft_small", n=60, seed=4)
    random_rows, expert_rows = (rows_by(run(replace(cfg, policy=player)))
                                for player in ("random", "expert"))
    every = random_rows["textcraft_small", "all"]
    assert 0 < every["success"] < 1 and every["success"] == every["passed"]
    assert random_rows["textcraft_small", "random player"]["success"] == every["success"]
    assert expert_rows["textcraft_small", "random player"] == random_rows[
        "textcraft_small", "random player"]


def without_seconds(folder):
    results = json.loads((folder / "results.json").read_text())
    assert results.pop("seconds") > 0
    return results


def test_an_evaluation_that_was_killed_is_resumed(url, model, tmp_path, monkeypatch):
    """With five of twelve tasks on the disk, the last of them whole, torn or but begun; what is
    whole is not played again. What is left is played in another order and a few at a time: neither
    changes the table."""
    cfg = Config(env="textcraft_small,maze", model=model, n=6, k=2, horizon=3, env_url=url,
                 max_turn_tokens=4, out=f"{tmp_path}/whole")
    rows = run(cfg)["rows"]
    assert rows[0]["env"] == "maze" and (rows[-1]["env"], rows[-1]["n"]) == ("mean", 2)
    folder, calls = tmp_path / "killed", itertools.count()
    path, cfg = folder / "trajectories.jsonl", replace(cfg, out=str(folder))

    def killed(*arguments, finished, **more):
        def counting(episodes):
            if next(calls) == 5:
                raise KeyboardInterrupt
            finished(episodes)
        return collect(*arguments, finished=counting, **more)
    monkeypatch.setattr(metrics, "collect", killed)
    with pytest.raises(KeyboardInterrupt):
        run(cfg)
    left, asked = path.read_text(), []
    assert left.count("\n") == 5 and not (folder / "results.json").exists()
    monkeypatch.setattr(metrics, "collect", lambda policy, tasks, *rest, **more: asked.extend(
        tasks) or collect(policy, tasks, *rest, **more))
    last = len(left.splitlines()[-1])
    for cut, again in ((0, 7), (1, 8), (last // 2, 8), (last, 8)):
        path.write_text(left[:len(left) - cut])
        run(replace(cfg, resume=True, max_concurrent=7))
        assert len(asked) == again
        assert without_seconds(folder) == without_seconds(tmp_path / "whole")
        assert kept_in(folder) == kept_in(tmp_path / "whole")
        asked.clear()
    with pytest.raises(ValueError, match="^--resume: seed=1, but .*killed was begun with seed=0; "):
        evaluation.layers(Config, dict(out=cfg.out, resume=True, seed=1))


@pytest.mark.parametrize("flags, folder", [
    (dict(model="runs/a/step_80"), "runs/maze-a-step_80"),     # not that of b/step_80
    (dict(model="/home/me/runs/a/"), "runs/maze-runs-a"),
    (dict(model="Qwen/Qwen2.5-3B"), "runs/maze-Qwen-Qwen2.5-3B"),
    (dict(policy="expert"), "runs/maze-expert"), (dict(policy="expert", out="x"), "x")])
def test_the_folder_names_what_is_played_and_the_player(flags, folder):
    assert Config(**dict(env="maze") | flags).path == folder


def test_a_task_that_the_engine_refuses_is_counted_and_not_scored(monkeypatch, capsys):
    tasks = choose_tasks(textcraft_small, "test", 8)
    refused = {tasks[3]}

    def play(module, player, task, *rest):
        if task in refused:
            raise RuntimeError("the engine broke")
        return play_builtin(module, player, task, *rest)
    monkeypatch.setattr(metrics, "play_builtin", play)
    (row, *_) = run(Config(env="textcraft_small", policy="expert", n=8))["rows"]
    assert (row["n"], row["success"]) == (7, 1)
    assert "1 tasks could not be played and are left out" in capsys.readouterr().out
    refused.update(tasks)
    with pytest.raises(EnvError, match="textcraft_small: no task could be played"):
        run(Config(env="textcraft_small", policy="expert", n=8))


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    """A folder of models that cannot play: nan has a weight that is NaN, few has fewer embeddings
    than its tokenizer has tokens."""
    folder, policy = tmp_path_factory.mktemp("broken"), load_policy(model)
    policy.model.norm.weight.data[3] = math.nan
    for name in ("nan", "few"):
        shutil.copytree(model, folder / name)
        policy.save_pretrained(folder / name)
        policy.resize_token_embeddings(264)     # for the second
    return folder


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_main_refuses_a_policy_that_is_not_finite(temperature, broken, url, monkeypatch, capsys):
    flags = ["--env", "maze", "--model", f"{broken}/nan", "--env-url", url, "--n", "3"]
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags, "--temperature", temperature])
    with pytest.raises(SystemExit, match="^eval.py: a reply's log-probabilities are not finite"):
        evaluation.main()
    assert "success" not in capsys.readouterr().out


def test_the_command_prints_a_table():
    command = [sys.executable, ROOT / "eval.py", "--env", "maze", "--policy", "expert", "--n", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    folder, title, says, head, *rows = done.stdout.splitlines()
    assert folder == "runs/maze-expert: env=maze policy=expert n=30"
    assert title == "maze, test split, expert, temperature 1, seed 0"
    assert says.startswith("success: the final score reaches the environment's threshold; score: ")
    assert head.split() == ["n", "success", "±", "se", "Pass@1", "score", "±", "se", "turns",
                            "tokens", "valid"]
    assert [row.split()[0] for row in rows] == ["maze,", "double-t", "random", "random", "expert"]
    assert rows[0].split()[1:5] == ["15", "turns", "30", "100.0%"]
    assert int(rows[1].split()[1]) + int(rows[2].split()[1]) == 30


@pytest.mark.parametrize("flags, sentence", [
    ("--env maze", "give --model FOLDER_OR_ID or --policy random or expert"),
    ("--env maze --policy expert --model MODEL", "give --model .* or --policy random or expert"),
    ("--env maze --model MODEL --device foo", "device=foo: Expected one of cpu, cuda"),
    ("--env maze --model BROKEN/few --env-url URL", "its tokenizer has token ids up to 264"),
    ("--env wordle --model MODEL --env-url URL", "serves maze, textcraft_small, not wordle"),
])
def test_a_mistake_is_answered_in_one_sentence(flags, sentence, model, broken, url, monkeypatch):
    for word, text in dict(MODEL=model, BROKEN=str(broken), URL=url).items():
        flags = flags.replace(word, text)
    monkeypatch.setattr(metrics, "play_builtin", None)           # it comes before any episode
    monkeypatch.setattr(metrics, "collect", None)
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags.split()])
    with pytest.raises(SystemExit, match=f"^eval.py: [^\n]*{sentence}[^\n]*$"):
        evaluation.main()


# ---- flags ----

def test_a_model_speaks_as_it_was_cloned_or_as_a_chat_model(model, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(evaluation, "run", lambda cfg, origins: seen.append(cfg))
    (tmp_path / "defaults.json").write_text(json.dumps(dict(
        env="maze", format="think", context="full", max_turn_tokens=30, max_context=600, lr=1)))
    for folder in (model, str(tmp_path)):
        monkeypatch.setattr(sys, "argv", ["eval.py", "--env", "bandit", "--model", folder])
        evaluation.main()
    assert seen == [Config(env="bandit", model=folder, format=form, max_turn_tokens=turn,
                           max_context=context) for folder, form, turn, context in (
        (model, "react", 512, 8192), (str(tmp_path), "think", 30, 600))]
