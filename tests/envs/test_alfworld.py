"""pytest tests/envs/test_alfworld.py: hand-made rooms, and the genuine engine beside it.

A hand-made room for each rule, every family for the expert, and the genuine engine, where it is
installed, as the judge of every reply and every list of commands."""

import random
import re
import sys
from collections import Counter

import pytest
from players import solved, wire

from envs import alfworld
from envs.alfworld import (
    CLEAN,
    COOL,
    FAMILIES,
    HEAT,
    LIGHT,
    PLACES,
    SIMPLE,
    TEST,
    TRAIN,
    TWO,
    Env,
    House,
)

ROOM = ["cabinet 1", "cabinet 2", "countertop 1", "desk 1", "fridge 1", "microwave 1",
        "sinkbasin 1"]
THINGS = {"apple 1": "fridge 1", "knife 1": "countertop 1", "mug 1": "countertop 1",
          "mug 2": "cabinet 1", "pen 1": "desk 1", "desklamp 1": "desk 1"}


def house(family=SIMPLE, thing="mug", place="cabinet", **changes):
    return House(family, thing, place, f"put a {thing} in {place}", ROOM, {**THINGS, **changes})


def play(env, *actions):
    """The replies to the actions."""
    return [env.step(action)[0] for action in actions]


@pytest.fixture
def env():
    env = Env()
    env.enter(house(TWO))   # a task that none of the small scenarios fulfils
    return env


def test_reset_over_http_leaves_joining_the_commands_to_the_originals_client():
    ask, text = wire("alfworld"), Env().reset(7)
    ask("/create", {})
    reply = ask("/reset", dict(id=0, game=7, world_type="Text"))
    look, task = reply["observation"].split("\n")
    assert look.startswith("You are in the middle") and task.startswith("Your task is to: ")
    joined = f"{reply['observation']}\nAVAILABLE ACTIONS: {','.join(reply['available_actions'])}"
    assert joined == text       # so its agent reads what ours does, from our own client:
    assert ask("/resets", {"items": [{"task": 7}]})["items"][0]["observation"] == text


def test_sentences_are_those_of_alfworlds_paper(houses):
    """Table 7 of arXiv:2010.03768; both of a family occur."""
    templates = {
        SIMPLE: ["put a O in R", "put some O on R"],
        LIGHT: ["look at O under the R", "examine the O with the R"],
        CLEAN: ["put a clean O in R", "clean some O and put it in R"],
        HEAT: ["put a hot O in R", "heat some O and put it in R"],
        COOL: ["put a cool O in R", "cool some O and put it in R"],
        TWO: ["put two O in R", "find two O and put them in R"]}
    found = {(family, re.sub(rf"\b{place}\b", "R", re.sub(rf"\b{thing}\b", "O", sentence)))
             for family, thing, place, sentence, *_ in houses}
    assert found == {(family, each) for family in templates for each in templates[family]}


def test_step_go_open_close_show_what_can_be_seen(env):
    assert play(env, "look", "examine pen 1", "go to desk 1", "look") == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "Nothing happens.",                     # like the engine: only what is in the hand
        "On the desk 1, you see a desklamp 1, and a pen 1.",
        "You are facing the desk 1. Next to it, you see nothing."]
    assert play(env, "go to cabinet 1", "open cabinet 1", "open cabinet 1", "close cabinet 1",
                "close cabinet 1", "examine cabinet 1", "go to cabinet 1") == [
        "The cabinet 1 is closed.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2.",
        "Nothing happens.", "You close the cabinet 1.", "Nothing happens.",
        "The cabinet 1 is closed.", "Nothing happens."]
    assert play(env, "go to sinkbasin 1", "open sinkbasin 1", "go to cabinet 3") == [
        "On the sinkbasin 1, you see nothing.",
        "Nothing happens.", "Nothing happens."]


def test_step_take_needs_open_door_and_empty_hand(env):
    play(env, "go to cabinet 1")
    assert play(env, "take mug 1 from countertop 1", "take mug 2 from cabinet 1", "open cabinet 1",
                "take mug 2 from cabinet 1", "inventory", "examine cabinet 1") == [
        "Nothing happens.", "Nothing happens.",                 # elsewhere; behind its door
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2.",
        "You pick up the mug 2 from the cabinet 1.",
        "You are carrying: a mug 2.",
        "The cabinet 1 is open. In it, you see nothing."]
    assert play(env, "go to countertop 1", "take mug 1 from countertop 1") == [
        "On the countertop 1, you see a knife 1, and a mug 1.", "Nothing happens."]


def test_step_put_needs_a_thing_in_hand_a_fitting_place_and_an_open_door(env):
    play(env, "go to countertop 1")
    for nonsense in ("put mug 1 in/on countertop 1", "take mug 1", "take mug 1 from hand",
                     "go to hand", "go to mug 1", "examine hand", "go to desk 1; look"):
        assert play(env, nonsense) == ["Nothing happens."]
    play(env, "take mug 1 from countertop 1")
    assert play(env, "put mug 1 in/on desk 1") == ["Nothing happens."]         # elsewhere
    play(env, "go to cabinet 2")
    assert play(env, "put mug 1 in/on cabinet 2", "open cabinet 2", "put mug 1 in/on cabinet 2")[
        ::2] == ["Nothing happens.", "You put the mug 1 in/on the cabinet 2."]
    for put in ("PUT mug 1 on cabinet 2", "  Move  mug 1\tto cabinet 2 "):     # other wordings
        assert play(env, "take mug 1 from cabinet 2", put)[1] == (
            "You put the mug 1 in/on the cabinet 2.")
    play(env, "go to countertop 1", "take knife 1 from countertop 1")
    play(env, "go to fridge 1", "open fridge 1")
    assert play(env, "put knife 1 in/on fridge 1") == ["Nothing happens."]     # not for knives


def test_step_treatments_need_tool_and_thing_in_hand(env):
    play(env, "go to microwave 1")
    assert play(env, "heat mug 1 with microwave 1") == ["Nothing happens."]   # empty hand
    play(env, *TAKE_MUG)
    assert play(env, "heat mug 1 with microwave 1", "examine mug 1") == [      # far from the tool
        "Nothing happens.", "There's nothing special about mug 1."]
    play(env, "go to microwave 1")
    assert play(env, "cool mug 1 with microwave 1", "heat mug 1 with microwave 1",
                "examine mug 1") == [          # the wrong tool; the right one may stay closed
        "Nothing happens.", "You heat the mug 1 using the microwave 1.", "This is a hot mug 1."]
    assert play(env, "go to fridge 1", "cool mug 1 with fridge 1", "examine mug 1")[1:] == [
        "You cool the mug 1 using the fridge 1.", "This is a cold mug 1."]        # no more hot
    assert play(env, "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", "examine mug 1")[1:] == [
        "You clean the mug 1 using the sinkbasin 1.", "This is a cool and clean mug 1."]
    assert play(env, "go to microwave 1", "heat mug 1 with microwave 1", "examine mug 1")[2] == (
        "This is a hot and clean mug 1.")                                         # no more cool
    play(env, "go to desk 1", "put mug 1 in/on desk 1", "take pen 1 from desk 1")
    play(env, "go to sinkbasin 1")
    assert play(env, "clean pen 1 with sinkbasin 1") == ["Nothing happens."]   # pens are not washed


def test_step_slice_needs_a_knife_in_hand(env):
    env.enter(house(TWO, **{"apple 1": "countertop 1"}))
    play(env, "go to countertop 1")
    assert play(env, "slice apple 1 with knife 1", "take knife 1 from countertop 1",
                "slice mug 1 with knife 1", "slice apple 1 with knife 1") == [
        "Nothing happens.", "You pick up the knife 1 from the countertop 1.",
        "Nothing happens.", "You sliced the apple 1 with the knife 1."]
    play(env, "put knife 1 in/on countertop 1", "take apple 1 from countertop 1", "go to fridge 1")
    assert play(env, "examine apple 1", "cool apple 1 with fridge 1", "examine apple 1")[::2] == [
        "This is a sliced apple 1.", "This is a cool sliced apple 1."]


@pytest.mark.parametrize("use", ["use desklamp 1", "toggle desklamp 1"])
def test_step_use_turns_on_a_lamp_at_hand_which_stays(env, use):
    assert play(env, use, "go to desk 1", "use pen 1", "take desklamp 1 from desk 1", use)[::2] == [
        "Nothing happens.", "Nothing happens.", "You turn on the desklamp 1."]
    assert env.where["desklamp 1"] == "desk 1"


def test_available_actions_lists_what_can_be_done(env):
    play(env, *TAKE_MUG, "go to microwave 1")
    assert env.available_actions() == sorted([
        "help", "inventory", "look", *(f"go to {r}" for r in ROOM if r != "microwave 1"),
        "examine microwave 1", "examine mug 1", "open microwave 1", "heat mug 1 with microwave 1"])


TAKE_MUG = ["go to countertop 1", "take mug 1 from countertop 1"]
HEAT_IT = ["go to microwave 1", "heat mug 1 with microwave 1"]
COOL_IT = ["go to fridge 1", "cool mug 1 with fridge 1"]
TO_CABINET = ["go to cabinet 2", "open cabinet 2", "put mug 1 in/on cabinet 2"]
SECOND_MUG = ["go to cabinet 1", "open cabinet 1", "take mug 2 from cabinet 1"]


@pytest.mark.parametrize("family, place, actions, last_reward", [
    (SIMPLE, "cabinet", [*TAKE_MUG, *TO_CABINET], 1),
    (SIMPLE, "desk", [*TAKE_MUG, *TO_CABINET], 0),   # another place
    (CLEAN, "cabinet", [*TAKE_MUG, *TO_CABINET], 0),   # still dirty
    (CLEAN, "cabinet",
     [*TAKE_MUG, "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", *TO_CABINET], 1),
    (HEAT, "cabinet", [*TAKE_MUG, *HEAT_IT, *TO_CABINET], 1),
    (HEAT, "cabinet", [*TAKE_MUG, *HEAT_IT, *COOL_IT, *TO_CABINET], 0),   # cold now
    (COOL, "cabinet", [*TAKE_MUG, *COOL_IT, *TO_CABINET], 1),
    (TWO, "cabinet", [*TAKE_MUG, *TO_CABINET], 0),   # one in each cabinet
    (TWO, "cabinet", [*TAKE_MUG, *TO_CABINET, *SECOND_MUG,
                      "go to cabinet 2", "put mug 2 in/on cabinet 2"], 1),
    (LIGHT, "desklamp", [*TAKE_MUG, "go to desk 1", "use desklamp 1"], 1),
    (LIGHT, "desklamp", [*TAKE_MUG, "go to desk 1", "put mug 1 in/on desk 1",
                         "use desklamp 1"], 0),                               # not in the hand
    (LIGHT, "desklamp", ["go to desk 1", "use desklamp 1", *TAKE_MUG], 0),    # lit, elsewhere
])
def test_step_rewards_only_the_fulfilled_task(family, place, actions, last_reward):
    env = Env()
    # simple, clean, heat, cool: the other mug must not lie in a cabinet from the start
    env.enter(house(family, "mug", place, **({} if family == TWO else {"mug 2": "microwave 1"})))
    *before, (_, reward, done, info) = [env.step(action) for action in actions]
    assert all(turn[1:3] == (0, False) and turn[3]["valid"] for turn in before)
    assert (reward, done) == (last_reward, last_reward == 1)
    assert info == {"success": reward == 1, "valid": True, "score": float(reward)}


def test_family_counts_are_agentgyms():
    for split, counts in ((TRAIN, (672, 196, 448, 321, 394, 389)),   # simple, light, clean, heat,
                          (TEST, (46, 19, 37, 25, 28, 45))):         # cool, two
        found = Counter(map(alfworld.family, split))
        assert tuple(found[name] for name in FAMILIES) == counts


@pytest.fixture(scope="module")
def houses():
    return [alfworld.build(i, alfworld.family(i)) for i in [*TRAIN[:200], *TEST]]


def test_build_refuses_a_house_that_takes_the_expert_too_long(monkeypatch):
    monkeypatch.setattr(alfworld, "HORIZON", 12)
    turns = [alfworld.expert_turns(alfworld.build.__wrapped__(i, TWO)) for i in TRAIN[:20]]
    assert max(turns) <= 12   # of all such tasks about half take longer


def test_build_furnishes_sensibly_and_leaves_the_task_to_do(houses):
    for family, thing, place, _, receptacles, where in houses:
        kinds = [name.split()[0] for name in where]
        assert 12 <= len(receptacles) <= 25 and 9 <= len(where) <= 22
        assert all(r in receptacles and r.split()[0] in PLACES[o.split()[0]]
                   for o, r in where.items())
        assert kinds.count(thing) >= (2 if family == TWO else 1)
        assert (place in kinds) if family == LIGHT else (f"{place} 1" in receptacles)
        assert (thing, place) not in {(o.split()[0], r.split()[0]) for o, r in where.items()}


def test_expert_wins_after_any_disturbance(houses):
    rng = random.Random(0)
    for house in houses[::6]:
        env = Env(limit=90)
        env.enter(house)
        while env.turns < 30 and not env.done:
            assert env.step(env.random_action(rng))[3]["valid"]
        assert env.won or solved(env, most=60), house


def test_step_ends_after_fifty_turns(env):
    assert [env.step("look")[1:3] for _ in range(50)] == [(0, False)] * 49 + [(0, True)]


def test_expert_knows_only_what_it_has_seen():
    houses = house(SIMPLE, "mug", "desk"), house(SIMPLE, "mug", "desk", **{"mug 2": "cabinet 2"})
    here, elsewhere = Env(), Env()   # the mug of cabinet 1 is in cabinet 2
    here.enter(houses[0]), elsewhere.enter(houses[1])
    for action in ("go to cabinet 1", "open cabinet 1"):
        assert here.expert() == elsewhere.expert() and here.expert()[1] == action
        here.step(action), elsewhere.step(action)
    assert here.expert()[1] == "take mug 2 from cabinet 1"
    assert elsewhere.expert()[1] == "go to cabinet 2"


def test_env_without_the_engine_says_so_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)   # as if it were not installed
    with pytest.raises(RuntimeError, match="pip install alfworld"):
        Env(backend="alfworld")
    with pytest.raises(ValueError, match="no backend 'thor'"):
        Env(backend="thor")


@pytest.mark.parametrize("family", FAMILIES)
def test_step_agrees_with_the_genuine_engine(family):
    """Twelve random turns, then the expert: the same replies, rewards and commands throughout."""
    pytest.importorskip("alfworld", reason="pip install alfworld")
    own, genuine = Env(), Env(backend="alfworld")
    task_id = next(i for i in TEST if alfworld.family(i) == family)
    rng = random.Random(task_id)
    assert own.reset(task_id) == genuine.reset(task_id)
    assert own.step("look") == genuine.step("look")
    while not own.done:
        action = own.random_action(rng) if own.turns < 12 else own.expert()[1]
        if own.turns == 3:
            action = "put mug 9 in/on desk 9"
        observation, *own_rest = own.step(action)
        engine_observation, *engine_rest = genuine.step(action)
        assert own_rest == engine_rest
        moved = re.sub(r"^You put the (\w+ \d+) in/on", r"You move the \1 to", observation)
        assert moved == engine_observation or action == "help"
        commands = {alfworld.canonical(c) for c in genuine.engine.game.state["admissible_commands"]}
        assert own.done or commands - set(own.available_actions()) <= {
            c for c in commands if c.startswith("slice")}   # the engine's go through closed doors
        assert own.done or set(own.available_actions()) <= commands
    assert own.won and genuine.won
    genuine.close()
