"""pytest tests/more/test_suites.py: the papers' suites, and evaluations of real worlds."""
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import serving
from more.test_original import lmrl_gym

import eval as evaluation
from curriculum import choose_tasks
from envs import frozenlake, load_env, maze, wordle
from envs.parts.players import builtin_rate
from envs.parts.suites import COMPOSITION, SUITES, suite_tasks
from eval import Config, evaluate
from rollout import collect
from test_eval import rows_by

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("here")


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


def test_evaluate_on_an_original_plays_what_it_has_and_says_whose_players_these_are(
        model, monkeypatch, capsys):
    """The fake original is won by any reply; it has 50 words, of which every fifth is in TEST."""
    monkeypatch.setattr(wordle, "ORIGINAL", range(50), raising=False)
    prompts = []
    monkeypatch.setattr(evaluation, "collect", lambda policy, tasks, *rest, **more: prompts.append(
        tasks[0][0].agent.prompt) or collect(policy, tasks, *rest, **more))
    server = lmrl_gym(["adieu", "stone"])
    with serving(server) as address:
        rows = rows_by(evaluate(Config(env="wordle", model=model, n=0, horizon=2, data=address,
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


def test_evaluate_gives_each_try_of_a_player_a_luck_of_its_own():
    """On slippery ice: Avg@3 and Pass@3 of the expert and the random player against the exact rates
    p of one try; with one luck for all tries Pass@3 would be Avg@3."""
    tasks = choose_tasks(frozenlake, "test", 60, "slippery")
    for player in ("expert", "random"):
        every = rows_by(evaluate(Config(env="frozenlake", policy=player, n=60, k=3,
                                   families="slippery")))["frozenlake", "all"]
        rates = [frozenlake.exact_success(task, player, 10) for task in tasks]
        # a standard error of at most sqrt(1/4 / 60) = 0.06
        assert every["success"] == pytest.approx(statistics.fmean(rates), abs=0.15)
        passed = statistics.fmean(1 - (1 - rate) ** 3 for rate in rates)
        assert every["passed"] == pytest.approx(passed, abs=0.15)
        assert passed > statistics.fmean(rates) + 0.2


def test_builtin_rate_of_maze_is_exact():
    tasks = maze.TEST[:6]
    rate, error = builtin_rate(maze, "random", tasks, 15)
    assert error == 0
    assert rate == sum(maze.exact_success(task, "random", 15) for task in tasks) / 6
    assert builtin_rate(maze, "expert", tasks, 50) == (1.0, 0.0)
    assert builtin_rate(maze, "random", tasks, 60)[0] > rate    # at its own horizon


def test_the_command_prints_a_table():
    command = [sys.executable, ROOT / "eval.py", "--env", "maze", "--policy", "expert", "--n", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    folder, flags, title, says, head, *rows = done.stdout.splitlines()
    assert (folder, flags) == ("runs/maze-expert", "    flags: env=maze policy=expert n=30")
    assert title == "maze, test split, expert, temperature 1, seed 0"
    assert says.startswith("success: the final score reaches the environment's threshold; score: ")
    assert head.split() == ["n", "success", "±", "se", "Pass@1", "score", "±", "se", "turns",
                            "tokens", "valid"]
    assert [row.split()[0] for row in rows] == ["maze,", "double-t", "random", "random", "expert"]
    assert rows[0].split()[1:5] == ["15", "turns", "30", "100.0%"]
    assert int(rows[1].split()[1]) + int(rows[2].split()[1]) == 30
