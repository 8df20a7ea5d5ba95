"""pytest tests/envs/test_games.py: games of the built-in players, of which demonstrations are made.

Played is a toy, and an environment that tells what was drawn.
"""
import sys
from types import SimpleNamespace

import pytest
from fakes import toy

from envs import demonstrations, record

pytestmark = pytest.mark.usefixtures("url")         # the toy is found as files of envs/ are


@pytest.mark.parametrize("skill, experts", [(1.0, {True}), (0.5, {True, False}), (0.0, {False})])
def test_record_is_what_the_environment_answered_the_expert_or_chance(skill, experts):
    found, lengths = set(), set()
    for task in range(20):
        demo, env = record("toy", skill, 0, task), sys.modules["envs.toy"].Env()
        seen = env.reset(task)
        for move in demo["turns"]:
            found.add(move.thought == "I count.")
            assert (move.thought, move.action) == env.expert() or move.thought == "I try something."
            assert move.observation == seen
            seen, *rest = env.step(move.action)
            assert [move.reward, move.done, move.info] == rest
        lengths.add(len(demo["turns"]))
        assert demo["last"] == seen and demo["success"] == rest[2]["success"]
        assert demo["success"] or skill < 1
        assert rest[1] or len(demo["turns"]) == sys.modules["envs.toy"].HORIZON
        assert demo == record("toy", skill, 0, task)
        assert len(record("toy", 0.0, 0, task, horizon=1)["turns"]) == 1
    assert found == experts and (max(lengths) > 2) == (skill < 1)
    again = [record("toy", skill, 1, task) for task in range(20)]
    assert (again != [record("toy", skill, 0, task) for task in range(20)]) == (skill < 1)


class Drawn:
    """An environment of one turn, whose expert fails at tasks 1, 2 and 4; chance says its number,
    and who plays for something else a word of his own."""

    def reset(self, task_id, stream=None):
        self.task_id = task_id
        return "Go."

    def step(self, action):
        won = self.task_id not in (1, 2, 4)
        return "", 0.0, True, {"success": won, "valid": True, "score": float(won)}

    def expert(self):
        return "I know.", "expert"

    def other_goal(self, rng):
        return "I wish.", "other"

    def random_action(self, rng):
        return str(rng.random())

    def close(self):
        pass


@pytest.fixture
def drawn(monkeypatch):
    module = SimpleNamespace(**vars(toy()) | dict(NAME="drawn", Env=Drawn, HORIZON=3))
    monkeypatch.setitem(sys.modules, "envs.drawn", module)


@pytest.mark.parametrize("count, kept", [
    (3, [0, 3, 5]),                                 # for 1 and 2 comes 3, 4 again fails
    (1, [0]), (0, []),
    (9, [0, 3, 5, 6, 7])])                          # there are no more tasks
def test_demonstrations_of_an_expert_are_successes(count, kept, drawn):
    demos = demonstrations("drawn", range(8), count, 1.0, 5, 6)
    assert [demo["task_id"] for demo in demos] == kept
    assert {move.action for demo in demos for move in demo["turns"]} <= {"expert"}


@pytest.mark.parametrize("count, rounds", [(2, 1), (4, 1), (7, 1), (8, 2), (13, 3)])
def test_demonstrations_of_a_player_with_luck_are_whole_rounds(count, rounds, drawn):
    """Failures too: they are part of what it does. Each round has other chances."""
    demos = demonstrations("drawn", [3, 1, 4, 5], count, 0.0, 9)
    assert [demo["task_id"] for demo in demos] == [3, 1, 4, 5][:count] * rounds
    said = [demo["turns"][0].action for demo in demos]
    assert len({*said}) == len(said)
    assert demos[:4] == [record("drawn", 0.0, 9, task) for task in [3, 1, 4, 5][:count]]
    demos = demonstrations("drawn", [3, 1, 4, 5], count, 1.0, 9, goal="other")
    assert [demo["turns"][0].action for demo in demos] == ["other"] * min(count, 4) * rounds
