"""pytest tests/test_data.py: a world that plays with a user's data is one of its own."""
import os
import sys
import types

import pytest

import envs
from envs import as_flag, data_of, load_env, open_env, open_envs, record

FILE = '''
import envs

NAME, HORIZON, SUCCESS, PROMPT, FAMILIES = "spell", 3, 1.0, "Spell the word.", ("short", "long")
TRAIN, TEST, WORDS = range(2), range(2, 3), ("ash", "elm", "oak")


def use(data):
    if "," not in data:
        raise ValueError(f"spell: {data} is one word; two are needed")
    words = data.split(",")
    return dict(WORDS=words, TRAIN=range(len(words) - 1), TEST=range(len(words) - 1, len(words)),
                family=lambda task_id: "long")


def family(task_id):
    return "short"


class Env(envs.Base):
    def start(self, task_id):
        self.word = self.module.WORDS[task_id]
        return self.word

    def act(self, action):
        won = action == self.word
        return "", float(won), won, dict(success=won, valid=True, score=float(won))

    def expert(self):
        return "I read it.", self.word
'''


@pytest.fixture
def spell(monkeypatch):
    module = types.ModuleType("envs.spell")
    exec(FILE, vars(module))
    monkeypatch.setitem(sys.modules, "envs.spell", module)
    envs.with_data.cache_clear()
    return module


def test_worlds_of_one_file_with_other_data_are_open_side_by_side(spell):
    before, variables = dict(vars(spell)), dict(os.environ)
    trees, birds = open_env("spell", "fir,pine,yew,larch"), open_env("spell", "owl,kite")
    for world, tasks, word in (trees, 4, "fir"), (birds, 2, "owl"), (open_env("spell"), 3, "ash"):
        env = world.Env()
        assert env.module is world and env.reset(0) == word
        with pytest.raises(ValueError, match=rf"spell: no task 9; tasks are 0\.\.{tasks - 1}$"):
            env.reset(9)
    assert (trees.family(0), spell.family(0), birds.PROMPT) == ("long", "short", "Spell the word.")
    assert dict(vars(spell)) == before and dict(os.environ) == variables
    assert open_env("spell", "owl,kite") is birds               # read once


def test_a_game_is_recorded_in_the_world_with_those_data(spell):
    game = record("spell", 1.0, 0, 1, data="owl,kite")
    assert game["success"] and [move.action for move in game["turns"]] == ["kite"]
    assert record("spell", 1.0, 0, 1)["turns"][0].action == "elm"


def test_load_env_refuses_data_in_a_sentence(spell):
    with pytest.raises(ValueError, match="spell: owl is one word"):
        load_env("spell", "owl")
    del spell.use
    with pytest.raises(ValueError, match="data='a,b': spell takes no data; leave it out"):
        load_env("spell", "a,b")


@pytest.mark.parametrize("names, data", [
    (["spell"], "owl,kite"), (["spell"], ""), (["spell", "toy"], "spell=x"), (["toy", "spell"], ""),
    (["spell", "toy"], "spell=a=b,toy=c")])
def test_as_flag_is_what_another_process_needs_to_open_the_same(names, data):
    worlds = [types.SimpleNamespace(NAME=name, **({"data": own} if own else {}))
              for name, own in data_of(names, data).items()]
    assert data_of(names, as_flag(worlds)) == data_of(names, data)


def test_open_envs_refuses_a_name_that_stands_twice(spell):
    with pytest.raises(ValueError, match="env='spell,spell': expected each environment once"):
        open_envs("spell,spell")
