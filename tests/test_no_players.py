"""pytest tests/test_no_players.py: an environment without an expert and without a random player is
trained on, evaluated and evolved in; what needs such a player is refused before there is a folder.
"""
import json
import os
import sys
from types import SimpleNamespace

import fakes
import pytest
from fakes import command, flags_of, serving

import agentevol
import eval as evaluation
import train
from chat import Agent
from cloning import config_for_run
from env_server import HttpServer
from envs.parts.players import lacks_player


class BareEnv:
    """The toy's game, and nobody who plays it."""
    reset, step, close = fakes.Env.reset, fakes.Env.step, fakes.Env.close


class RandomEnv(BareEnv):
    random_action = fakes.Env.random_action


@pytest.fixture
def bare(here, monkeypatch):
    """The address of a server of `bare`, of `chance`, which has a random player, and of the toy."""
    for name, env in (("bare", BareEnv), ("chance", RandomEnv), ("toy", fakes.Env)):
        world = SimpleNamespace(**vars(fakes.toy()) | dict(NAME=name, Env=env))
        monkeypatch.setitem(sys.modules, f"envs.{name}", world)
    with serving(HttpServer(["bare", "chance", "toy"])) as url:
        yield url


def result_of(folder):
    with open(os.path.join(folder, "result.json")) as file:
        return json.load(file)


def test_lacks_player_is_a_sentence():
    world = SimpleNamespace(NAME="chance", Env=RandomEnv)
    assert lacks_player(world, "random") == ""
    assert lacks_player(world, "expert") == "chance has no expert player: its Env has no expert()"


@pytest.mark.parametrize("env, rows", [("bare", []), ("chance", ["random"]),
                                       ("toy", ["random", "expert"]), ("bare,toy", [])])
def test_train_has_the_rows_of_the_players_that_are_there(env, rows, bare, model, capsys):
    """Of several environments a player must be in each."""
    train.main(command(env=env, env_url=bare, model=model, name="run"))
    text = capsys.readouterr().out
    assert "nan" not in text and "after grpo" in text
    assert ("expert" in text) == (env == "toy")         # nor is it said to show its games
    assert [who for who in ("random", "expert") if f"\n{who} player " in text] == rows
    assert ("(random " in text) == ("random" in rows)
    players = result_of("runs/run")["players"]
    assert [who for who in players if players[who]["success"] is not None] == rows
    assert os.path.exists("runs/run/report.html")


def test_eval_has_the_rows_of_the_players_that_are_there(bare, model, monkeypatch, capsys):
    flags = flags_of(env="bare,chance", env_url=bare, model=model, n=4, format="act", out="e")
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags])
    evaluation.main()
    with open("e/results.json") as file:
        rows = [(row["env"], row["row"]) for row in json.load(file)["rows"]]
    assert [row for row in rows if "player" in row[1]] == [("chance", "random player")]
    assert "expert" not in capsys.readouterr().out


def test_agentevol_explores_without_demonstrations(bare, model, capsys):
    """A model that acts already needs none."""
    agentevol.main(["evolve", *flags_of(
        env="bare", env_url=bare, model=model, n=0, iterations=1, learn_steps=2, explore=8,
        eval_tasks=4, horizon=2, format="act", max_turn_tokens=4, max_context=200)])
    text = capsys.readouterr().out
    assert "nan" not in text and "iteration 1 | explored 8" in text and "player" not in text


def test_the_random_player_alone_can_be_cloned(bare, capsys):
    agentevol.main(["clone", *flags_of(env="chance", skill=0, n=4, steps=2, out="c")])
    assert "4 demonstrations of 4 wanted, skill 0" in capsys.readouterr().out


@pytest.mark.parametrize("main, flags, sentence", [
    (train.main, ["--env=bare"], "train.py: bare has no expert player: its Env has no expert(), so "
     "nobody shows how it is played: begin with a model that acts, train.py --model "),
    (train.main, ["--env=toy,chance"], "train.py: chance has no expert player"),
    (agentevol.main, ["clone", "--env=chance", "--skill=1"], "agentevol.py: chance has no expert"),
    (agentevol.main, ["evolve", "--env=bare"], "agentevol.py: bare has no expert player"),
    (agentevol.main, ["clone", "--env=bare", "--skill=0"],
     "agentevol.py: skill=0: bare has no random player: its Env has no random_action(); give "),
    (evaluation.main, ["--env=bare", "--policy=random"],
     "eval.py: bare has no random player: its Env has no random_action(); give a policy, --model")])
def test_what_needs_a_player_is_refused_before_there_is_a_folder(main, flags, sentence, bare,
                                                                 monkeypatch):
    flags = [*flags, f"--env-url={bare}"] if "clone" not in flags else flags
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags])
    with pytest.raises(SystemExit) as refusal:
        main() if main is evaluation.main else main(flags)
    assert str(refusal.value).startswith(sentence)
    assert os.listdir() == []


def test_of_several_environments_all_must_have_a_player_of_other_goals(bare, monkeypatch):
    """Else the first one's TINY would ask for what the second has not."""
    class Other(fakes.Env):
        def other_goal(self, rng):
            return "", "a"
    tiny = dict(clone=dict(goal="other", n=20))
    for name in ("one", "two"):
        world = SimpleNamespace(**vars(fakes.toy()) | dict(NAME=name, Env=Other, TINY=tiny))
        monkeypatch.setitem(sys.modules, f"envs.{name}", world)
    goals = [config_for_run(train.Config(env=env)).goal
             for env in ("one", "one,two", "one,toy", "toy,one")]
    assert goals == ["other", "other", "task", "task"]


def test_no_expert_no_shots(bare):
    with pytest.raises(ValueError, match="shots=2, .*: bare has no player to show this"):
        Agent(None, "Reply.", shots=2, module=sys.modules["envs.bare"])
