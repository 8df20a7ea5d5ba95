"""pytest tests/test_eval.py: arithmetic on literals, the whole script on small worlds."""
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoTokenizer

import eval as evaluation
import metrics
from client import EnvClient
from curriculum import choose_tasks
from engine import load_policy, make_policy
from env_server import HttpServer, open_env
from envs import frozenlake, maze, textcraft_small, wordle
from eval import Config, model_defaults, open_worlds, run, summarise
from fakes import collect
from metrics import builtin_rate, mean_and_error, play_builtin
from parallel import (Count, Finite, Limit, Natural, NonNegative, Numbers, Portion, Positive, Share,
                      checked, parse_flags)
from rollout import Agent, make_tokenizer
from test_client import lmrl_gym, serving

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def url():
    with HttpServer(["maze"]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An untrained policy in a folder; its words are maze's actions and single bytes."""
    folder = str(tmp_path_factory.mktemp("models") / "untrained")
    tokenizer = make_tokenizer(["move up move down move left move right"], 259 + 5)
    make_policy(len(tokenizer), 32, 1, 4, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# ---- arithmetic ----

def test_mean_and_error_on_a_hand_computed_sample():
    # mean 0.75; squares about it .0625 * 3 + .5625 = .75; / 3 = .25; / 4 = .0625; root .25
    assert mean_and_error([1, 1, 0, 1]) == (0.75, 0.25)
    assert mean_and_error([3.0, 3.0]) == (3.0, 0.0)


def test_mean_and_error_is_nan_where_undefined():
    assert mean_and_error([0.5])[0] == 0.5 and math.isnan(mean_and_error([0.5])[1])
    assert all(math.isnan(x) for x in mean_and_error([]))


TOY = types.SimpleNamespace(
    NAME="toy", FAMILIES=("even", "odd"), TRAIN=range(10), TEST=range(90, 99),
    family=lambda task: ("even", "odd")[task % 2])


def test_summarise_one_sample_a_task():
    plays = [(0, True, 1.0, 2), (1, False, 0.0, 4), (2, True, 0.5, 3), (3, False, 0.1, 5)]
    figures = summarise(TOY, plays)
    assert figures.keys() == {"all", "even", "odd"}
    assert figures["even"] == dict(n=2, success=1, stderr=0, score=0.75, passed=1, turns=2.5)
    assert figures["odd"]["success"] == 0 and figures["odd"]["turns"] == 4.5
    every = figures["all"]
    # 1 0 1 0: squares about .5 sum to 1; / 3 / 4 = 1/12
    assert every["n"] == 4 and every["success"] == 0.5 == every["passed"]
    assert every["stderr"] == pytest.approx(math.sqrt(1 / 12))
    assert every["score"] == pytest.approx(0.4) and every["turns"] == 3.5


def test_summarise_k_samples_a_task():
    plays = [(0, True, 1.0, 1), (0, False, 0.0, 3), (0, False, 0.0, 2),
             (2, True, 1.0, 2), (2, True, 1.0, 2), (2, True, 1.0, 2),
             (4, False, 0.0, 9), (4, False, 0.0, 9), (4, False, 0.0, 6)]
    every = summarise(TOY, plays, k=3)["all"]
    # Avg@3 of the tasks: 1/3, 1, 0; their mean 4/9. Pass@3: 2 of 3 tasks
    assert every["n"] == 3 and every["success"] == pytest.approx(4 / 9)
    assert every["passed"] == pytest.approx(2 / 3) and every["turns"] == 4
    # over tasks, not plays: ((1/9)^2 + (5/9)^2 + (4/9)^2) / 2 / 3 = 42/81/6 = 7/81
    assert every["stderr"] == pytest.approx(math.sqrt(7) / 9)
    assert summarise(TOY, plays, k=3).keys() == {"all", "even"}


# ---- the built-in players ----

def test_play_builtin_plays_the_expert_and_the_random_player():
    # task 18 starts at 7, 6, one move above the goal at 8, 6; task 0 farther away
    assert play_builtin(maze, "expert", 18, 15) == (True, 1.0, 1)
    success, _, turns = play_builtin(maze, "expert", 0, 50)
    assert success and turns > 2
    assert play_builtin(maze, "expert", 0, turns)[0]
    assert play_builtin(maze, "expert", 0, turns - 1) == (False, 0.0, turns - 1)
    games = [play_builtin(maze, "random", 18, 6, seed) for seed in range(30)]
    assert games == [play_builtin(maze, "random", 18, 6, seed) for seed in range(30)]
    assert all(turns <= 6 for _, _, turns in games) and len(set(games)) > 1


def test_play_builtin_gives_each_task_and_each_seed_a_random_stream_of_its_own():
    drawn = []

    class Env:
        def reset(self, task_id, stream=None):
            self.task_id = task_id

        def random_action(self, rng):
            drawn.append((self.task_id, rng.random()))

        def step(self, action):
            return "", 0.0, False, {"success": False, "score": 0.0}

        def close(self):
            pass
    module = types.SimpleNamespace(Env=Env)
    for seed in ((0, 0), (0, 1), (1, 0)):
        for task in range(5):
            play_builtin(module, "random", task, 2, seed)
    assert len({number for _, number in drawn}) == 3 * 5 * 2
    again = drawn[:10]
    drawn.clear()
    for task in range(5):
        play_builtin(module, "random", task, 2, (0, 0))
    assert drawn == again


def test_builtin_rate_is_exact_where_the_environment_can_be_solved(monkeypatch):
    tasks = maze.TEST[:6]
    rate, error = builtin_rate(maze, "random", tasks, 15)
    assert error == 0
    assert rate == sum(maze.exact_success(task, "random", 15) for task in tasks) / 6
    monkeypatch.setattr(metrics, "play_builtin", None)       # nothing is played
    assert builtin_rate(maze, "expert", tasks, 50) == (1.0, 0.0)
    assert builtin_rate(maze, "random", tasks, 60)[0] > rate    # at its own horizon


def test_builtin_rate_is_played_elsewhere(monkeypatch):
    assert builtin_rate(textcraft_small, "expert", textcraft_small.TEST[:6], 10) == (1.0, 0.0)

    def play(module, player, task, horizon, seed=0):
        assert (module, player, horizon, seed) == (TOY, "random", 7, 3)
        return task != 2, 0.5, 7
    monkeypatch.setattr(metrics, "play_builtin", play)
    assert builtin_rate(TOY, "random", [0, 1, 2, 3], 7, seed=3) == (0.75, 0.25)


def test_exact_and_played_rates_agree():
    tasks = [0, 5, 9, 18]
    exact = builtin_rate(maze, "random", tasks, 15)[0]
    played = [play_builtin(maze, "random", task, 15, seed)[0]
              for task in tasks for seed in range(300)]
    rate, error = mean_and_error(played)
    assert abs(rate - exact) < 4 * max(error, 0.005)


def test_open_env_tells_that_an_engine_is_missing(monkeypatch):
    assert open_env("wordle") is wordle

    def no_engine(*_):
        raise RuntimeError("wordle needs its engine: pip install words")
    monkeypatch.setattr(wordle, "Env", no_engine)
    with pytest.raises(ValueError, match="pip install words"):
        open_env("wordle")


# ---- the script ----

def test_run_measures_a_model(url, model, tmp_path, capsys):
    cfg = Config(env="maze", model=model, n=12, k=2, horizon=6, env_url=url, max_turn_tokens=4,
                 json=str(tmp_path / "figures.json"))
    figures = run(cfg)
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    assert figures["all"]["n"] == 12 and 1 <= figures["all"]["turns"] <= 6
    tasks = choose_tasks(maze, "test", 12)
    assert figures["all"]["random"] == builtin_rate(maze, "random", tasks, 6)[0]
    assert figures["all"]["expert"] == builtin_rate(maze, "expert", tasks, 6)[0]
    agent = Agent(AutoTokenizer.from_pretrained(model), maze.PROMPT, max_turn_tokens=4)
    trajectories, stats = collect(
        load_policy(model).eval(), agent, EnvClient(url, "maze"), tasks, 2, 6, (0,))
    assert stats.dropped == 0
    assert [t.task_id for t in trajectories] == [t for t in tasks for _ in "ab"]
    assert figures["all"]["success"] == mean_and_error([t.success for t in trajectories])[0]
    assert figures["all"]["turns"] == mean_and_error([len(t.turns) for t in trajectories])[0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"maze, test split, horizon 6, {model}, temperature 1"
    assert "Pass@2" in lines[1] and lines[-2].startswith("random player (exact)")


@pytest.mark.parametrize("env, n, words", [
    (maze, 11, None), (wordle, 10, "adieu, stone")])
def test_run_on_an_original_plays_what_it_has_and_says_whose_players_these_are(
        env, n, words, model, monkeypatch, capsys):
    """The fake original is won by any reply; of maze it has the double T alone, 11 tasks of TEST,
    of wordle the first 50, every fifth of them in TEST."""
    monkeypatch.setattr(env, "ORIGINAL", range(26 if env is maze else 50), raising=False)
    prompts, play = [], evaluation.collect
    monkeypatch.setattr(evaluation, "collect", lambda policy, tasks, *rest, **more: prompts.append(
        tasks[0][0].agent.prompt) or play(policy, tasks, *rest, **more))
    server = lmrl_gym(["adieu", "stone"])
    with serving(server) as address:
        figures = run(Config(env=env.NAME, model=model, n=0, horizon=2, env_url=address,
                             max_turn_tokens=4))
    known = choose_tasks(env, "test", 0, "", env.ORIGINAL)
    asked = [body[{"maze": "game", "wordle": "seed"}[env.NAME]] for _, path, body in server.log
             if path.endswith("/reset")]
    assert len(known) == n and sorted(asked) == known
    assert (figures["all"]["n"], figures["all"]["success"]) == (n, 1)
    assert figures["all"]["random"] == builtin_rate(env, "random", known, 2)[0]
    assert (words in prompts[0] if words else prompts == [maze.PROMPT])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("random player, our local game (exact) ")
    assert lines[-1].startswith("expert player, our local game (exact) ")


def test_run_speaks_as_the_flags_say(url, model, monkeypatch):
    used, play = [], evaluation.collect

    def noting(policy, tasks, k, horizon, key, **rest):
        agent = tasks[0][0].agent
        used.append((agent.prompt, agent.format, agent.context, agent.max_turn_tokens,
                     agent.max_context, agent.temperature, key))
        return play(policy, tasks, k, horizon, key, **rest)
    monkeypatch.setattr(evaluation, "collect", noting)
    run(Config(env="maze", model=model, n=1, horizon=2, env_url=url, format="react", seed=9,
               context="window", max_turn_tokens=4, max_context=900, temperature=0.7))
    assert used == [(maze.PROMPT, "react", "window", 4, 900, 0.7, (9,))]


def test_run_at_temperature_0_says_the_same_twice(url, model):
    cfg = Config(env="maze", model=model, n=5, horizon=3, env_url=url, max_turn_tokens=4,
                 temperature=0)
    first, again = run(cfg), run(Config(**{**vars(cfg), "seed": 7}))
    assert first["all"]["turns"] == again["all"]["turns"] and first == again


def test_run_gives_each_try_of_a_player_a_luck_of_its_own():
    """On slippery ice: Avg@3 and Pass@3 of the expert and the random player against the exact rates
    p of one try; with one luck for all tries Pass@3 would be Avg@3."""
    tasks = choose_tasks(frozenlake, "test", 60, "slippery")
    for player in ("expert", "random"):
        every = run(Config(env="frozenlake", policy=player, n=60, k=3, families="slippery"))["all"]
        rates = [frozenlake.exact_success(task, player, 10) for task in tasks]
        # a standard error of at most sqrt(1/4 / 60) = 0.06
        assert every["success"] == pytest.approx(statistics.fmean(rates), abs=0.15)
        passed = statistics.fmean(1 - (1 - rate) ** 3 for rate in rates)
        assert every["passed"] == pytest.approx(passed, abs=0.15)
        assert passed > statistics.fmean(rates) + 0.2


def test_run_of_one_task_has_no_standard_error(tmp_path, capsys):
    path = tmp_path / "figures.json"
    figures = run(Config(env="textcraft_small", policy="expert", n=1, json=str(path)))
    assert math.isnan(figures["all"]["stderr"])
    out = capsys.readouterr().out
    assert "nan" not in out and re.search(r"^all +1 +100.0% +- +100.0% ", out, re.MULTILINE)
    assert re.search(r"^expert player +1 +100.0% +-$", out, re.MULTILINE)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["all"]["stderr"] is None


def test_run_says_that_prompts_are_too_long(url, model, capsys):
    cfg = Config(env="maze", model=model, n=6, k=2, horizon=3, env_url=url, max_turn_tokens=4,
                 max_context=30)
    assert run(cfg)["all"]["turns"] == 0
    assert ("12 of 12 episodes had no turn and count as failures: their prompt and a reply of 4 "
            "exceed --max-context 30 tokens") in capsys.readouterr().out
    run(replace(cfg, max_context=1024))
    assert "no turn" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    """Folders of models that cannot play: {"nan": one weight is NaN, "few": fewer embeddings than
    the tokenizer has tokens, "just": as many (the highest id has the last)}."""
    folders = {name: str(tmp_path_factory.mktemp(name)) for name in ("nan", "few", "just")}
    tokenizer = AutoTokenizer.from_pretrained(model)
    for name, folder in folders.items():
        tokenizer.save_pretrained(folder)
        policy = make_policy(len(tokenizer) - (name == "few"), 32, 1, 4, seed=0)
        if name == "nan":
            with torch.no_grad():
                policy.model.norm.weight[3] = math.nan
        policy.save_pretrained(folder)
    return folders


def test_load_policy_asks_for_an_embedding_of_every_token(broken, url):
    with pytest.raises(ValueError, match="ids up to 263, its model embeddings up to 262"):
        load_policy(broken["few"])
    (world,) = open_worlds(load_policy(broken["just"]), broken["just"], [maze],
                           [EnvClient(url, "maze")], Config(max_turn_tokens=5, temperature=0.5))
    agent = world.agent
    assert (agent.prompt, agent.max_turn_tokens, agent.temperature) == (maze.PROMPT, 5, 0.5)


@pytest.mark.parametrize("temperature", ["0", "0.5", "1"])
def test_main_refuses_a_policy_that_is_not_finite(temperature, broken, url, monkeypatch, capsys):
    flags = ["--env", "maze", "--model", broken["nan"], "--env-url", url, "--n", "3"]
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags, "--temperature", temperature])
    with pytest.raises(SystemExit, match="^eval.py: a reply's log-probabilities are not finite"):
        evaluation.main()
    assert "success" not in capsys.readouterr().out


def test_the_command_prints_a_table():
    command = [sys.executable, "eval.py", "--env", "maze", "--policy", "expert", "--n", "30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    title, head, *rows = done.stdout.splitlines()
    assert title.startswith("maze, test split, horizon 15, expert")
    assert head.split() == ["family", "n", "success", "±", "se", "Pass@1", "score", "turns"]
    assert [row.split()[0] for row in rows] == ["double-t", "random", "all", "random", "expert"]
    families = {row.split()[0]: row.split() for row in rows[:3]}
    assert families["all"][1:3] == ["30", "100.0%"]
    assert int(families["double-t"][1]) + int(families["random"][1]) == 30


@pytest.mark.parametrize("flags, sentence", [
    ("--env nowhere --policy expert", "unknown environment 'nowhere'; there are: .*maze"),
    ("--env maze --policy best", "policy=.best.; known: random, expert"),
    ("--env maze", "give --model FOLDER_OR_ID, or --policy random or expert"),
    ("--env maze --policy expert --families south", r"no families \['south'\]; known: double-t"),
    ("--env maze --policy expert --split dev", "split='dev'; known: train, test"),
    ("--env maze --policy expert --model MODEL", "give --model .* or --policy random or expert"),
    ("--env maze --policy expert --k 0", "k=0: expected 1 or more"),
    ("--env maze --policy expert --n -1", "n=-1: expected 0 or more"),
    ("--env maze --policy expert --json ./absent/x.json", "json=.*a file in a folder that exists"),
    ("--env maze --policy expert --json EMPTY", "json=.*a file in a folder that exists"),
    ("--env maze --model MODEL --temperature -1", "temperature=-1.0: expected 0 or more"),
    ("--env maze --model MODEL --temperature nan", "temperature=nan: expected 0 or more"),
    ("--env maze --model MODEL --seed -1", "seed=-1: expected from 0 to"),
    ("--env maze --model MODEL --device foo", "device='foo': expected auto, cpu, or a device"),
    ("--env maze --model FEW --env-url URL", "its tokenizer has token ids up to 263"),
    ("--env maze --model EMPTY", "no weights in this folder; expected model.safetensors"),
    ("--env maze --model ./absent", "./absent: no such folder"),
    ("--env maze --model MODEL --env-url http://127.0.0.1:9", "no environment server at .*:9"),
    ("--env maze --model MODEL --format speech", "format='speech'; known: act"),
    ("--env wordle --model MODEL --env-url URL", "serves maze, not wordle"),
])
def test_a_mistake_is_answered_in_one_sentence(flags, sentence, model, broken, url, tmp_path,
                                               monkeypatch):
    for word, text in dict(EMPTY=str(tmp_path), MODEL=model, FEW=broken["few"], URL=url).items():
        flags = flags.replace(word, text)
    monkeypatch.setattr(evaluation, "play_builtin", None)           # it comes before any episode
    monkeypatch.setattr(evaluation, "collect", None)
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags.split()])
    with pytest.raises(SystemExit, match=f"^eval.py: [^\n]*{sentence}[^\n]*$"):
        evaluation.main()


# ---- flags ----

@dataclass
class Flags:
    steps: int = 10               # of the loop, 100% of them
    rate: float = 0.5
    fast: bool = True             # or slow
    long_name: str = "x"


def test_parse_flags_makes_the_dataclass():
    assert parse_flags(Flags, []) == Flags()
    given = "--steps 3 --rate 1e-4 --no-fast --long-name a=b".split()
    assert parse_flags(Flags, given) == Flags(3, 1e-4, False, "a=b")


def test_parse_flags_takes_a_preset_between_defaults_and_flags():
    seen = []

    def preset(given):
        seen.append(given)
        return dict(steps=77, rate=0.25)
    assert parse_flags(Flags, ["--rate", "2"], preset=preset) == Flags(77, 2.0)
    assert seen == [{"rate": 2.0}]


@pytest.mark.parametrize("flags, sentence", [
    ("--stepz 3", "unrecognized arguments: --stepz 3"),
    ("--step 3", "unrecognized arguments: --step 3"),       # an abbreviation is a typo as well
    ("--steps three", "argument --steps: invalid int value: 'three'"),
    ("--steps", "expected one argument")])
def test_parse_flags_refuses(flags, sentence, capsys):
    with pytest.raises(SystemExit) as error:
        parse_flags(Flags, flags.split())
    assert error.value.code == 2 and sentence in capsys.readouterr().err


@dataclass
class Choices:
    way: Literal["up", "down"] = "up"
    turns: Numbers = (6, 10)                  # of each stage


def test_parse_flags_reads_choices_and_whole_numbers(capsys):
    assert parse_flags(Choices, []) == Choices("up", (6, 10))
    assert parse_flags(Choices, "--way down --turns 3,4,5".split()) == Choices("down", (3, 4, 5))
    saved = parse_flags(Choices, [], preset=lambda given: dict(way="down", turns=[7]))   # of JSON
    assert saved == Choices("down", (7,))
    with pytest.raises(ValueError, match="way='left'; known: up, down"):
        parse_flags(Choices, ["--way", "left"])
    with pytest.raises(SystemExit):
        parse_flags(Choices, ["--turns", "3,x"])
    assert "argument --turns: invalid whole_numbers value: '3,x'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_flags(Choices, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--turns INT,INT,... of each stage; whole numbers, comma-separated (6,10)" in text


@dataclass
class Ranges:
    count: Count = 1
    natural: Natural = 0
    finite: Finite = 0.0
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    share: Share = 0.5
    portion: Portion = 0.5
    limit: Limit = 1.0


@pytest.mark.parametrize("name, taken, refused, words", [
    ("count", [1, 10**9], [0, -1], "1 or more"),
    ("natural", [0, 7], [-1], "0 or more"),
    ("finite", [-2.0, 0.0], [math.inf, -math.inf, math.nan], "a finite number"),
    ("positive", [1e-9, 5.0], [0.0, -1.0, math.inf, math.nan], "above 0"),
    ("non_negative", [0.0, 5.0], [-1e-9, math.inf, math.nan], "0 or more"),
    ("share", [0.0, 0.5, 1.0], [-1e-9, 1.001, math.nan], "from 0 to 1"),
    ("portion", [1e-9, 1.0], [0.0, 1.001, math.nan], "above 0, at most 1"),
    ("limit", [1e-9, math.inf], [0.0, -1.0, math.nan], "above 0; inf for no clipping")])
def test_parse_flags_checks_ranges(name, taken, refused, words, capsys):
    for value in taken + refused:
        for arguments, preset in (([f"--{name.replace('_', '-')}={value!r}"], {}),
                                  ([], {name: value})):
            def parse(arguments=arguments, preset=preset):
                return getattr(parse_flags(Ranges, arguments, preset=lambda given: preset), name)
            if value in taken:
                assert parse() == value
            else:
                with pytest.raises(ValueError, match=f"^{name}={value}: expected {words}$"):
                    parse()
    with pytest.raises(SystemExit):
        parse_flags(Ranges, ["--help"])
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("devices, taken, refused", [
    (0, ["auto", "cpu"], ["cuda", "cuda:0", "mps", "", "cpu:0", "cuda:", "CPU", "cuda0"]),
    (2, ["auto", "cpu", "cuda", "cuda:0", "cuda:1"], ["cuda:2", "cuda:-1", "cuda:x", "gpu"])])
def test_a_device_is_one_that_torch_finds(devices, taken, refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    for name in taken:
        assert parse_flags(Config, ["--device", name]).device == name
    for name in refused:
        with pytest.raises(ValueError, match=f"^device='{name}': expected auto, cpu, or a device"):
            parse_flags(Config, ["--device", name])


@pytest.mark.parametrize("name, value", [
    ("steps", "3"), ("steps", True), ("steps", 3.0), ("steps", None), ("rate", "0.5"),
    ("rate", False), ("fast", "no"), ("fast", 1), ("long_name", 7), ("way", ["up"]), ("turns", 6),
    ("turns", [6.5]), ("turns", [True]), ("turns", None), ("turns", "6,-1"), ("turns", "")])
def test_checked_refuses_what_is_of_another_type(name, value):
    kind, shown = Choices if name in ("way", "turns") else Flags, repr(value)
    if type(value) is list:
        shown = repr(tuple(value))
    with pytest.raises(ValueError, match=f"^{name}={re.escape(shown)}[:;] (expected|known)"):
        checked(kind, {name: value})


def test_checked_names_what_is_no_flag():
    with pytest.raises(ValueError, match="^no such flags: colour, step$"):
        checked(Flags, dict(step=3, colour="red", rate=1.0))
    assert checked(Flags, dict(rate=1, steps=3)) == Flags(3, 1.0)       # JSON may write 1 for 1.0


def test_a_model_speaks_as_it_was_cloned_or_as_a_chat_model(url, model, tmp_path, monkeypatch):
    assert model_defaults(model) == dict(format="react", max_turn_tokens=512, max_context=8192)
    seen = []
    monkeypatch.setattr(evaluation, "run", seen.append)
    (tmp_path / "clone.json").write_text(json.dumps(dict(
        env="maze", format="think", context="full", max_turn_tokens=30, max_context=600, lr=1)))
    for flags in ([model], [str(tmp_path)], [str(tmp_path), "--format", "act"]):
        monkeypatch.setattr(sys, "argv", ["eval.py", "--env", "maze", "--model", *flags])
        evaluation.main()
    assert [(c.format, c.max_turn_tokens, c.max_context) for c in seen] == [
        ("react", 512, 8192), ("think", 30, 600), ("act", 30, 600)]


def test_parse_flags_explains_itself(capsys):
    with pytest.raises(SystemExit):
        parse_flags(Flags, ["--help"])
    text = capsys.readouterr().out
    assert "of the loop, 100% of them (10)" in text and "--fast, --no-fast" in text
