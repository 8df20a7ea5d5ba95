"""pytest tests/envs/test_textcraft.py: a world made by hand, a recorded game, generated worlds."""
import json
import random
import re
from collections import Counter

import pytest
from players import play

from client import EnvClient, Reset
from env_server import local_server
from envs import open_env, textcraft, textcraft_small
from envs.textcraft import Recipe, World, make_world

HORIZONS = {0: 20, "small": 10, "deep": 20, 7: 20}      # of the generated worlds

# A world small enough to reckon with by hand.
WOOD = World("wood", {
    "elm plank": [Recipe("elm plank", 4, (("elm log", 1),))],
    "ash plank": [Recipe("ash plank", 3, (("ash log", 1),))],
    "stick": [Recipe("stick", 4, (("plank", 2),))],
    "ladder": [Recipe("ladder", 3, (("stick", 7),))],
    "torch": [Recipe("torch", 4, (("stick", 1), ("wax", 2), ("resin", 1))),
              Recipe("torch", 2, (("stick", 1), ("coal", 1)))],
    "sign": [Recipe("sign", 3, (("plank", 6), ("stick", 1)))],
    "box": [Recipe("box", 1, (("plank", 2), ("elm plank", 3)))],
}, {"plank": ["ash plank", "elm plank"]})


def in_world(world, goal, **inventory):
    """An Env in the middle of an episode; inventory: elm_log=2."""
    env = textcraft.Env()
    env.world, env.goal, env.done = world, goal, False
    env.inventory = {item.replace("_", " "): n for item, n in inventory.items()}
    return env


def held(env):
    return {item: n for item, n in env.inventory.items() if n}


def expert_actions(env, task_id=None, most=100):
    """The expert's actions from here to the end."""
    turns = play(env, task_id, most)
    assert turns[-1][-1]["success"] and all(info["valid"] for *_, info in turns), turns
    return [action for action, *_ in turns]


def amounts(text):
    """ "2 elm log, 1 stick" -> {"elm log": 2, "stick": 1}"""
    return {item: int(n) for n, item in (part.split(" ", 1) for part in text.split(", "))}


def read_page(observation):
    """What an agent can read: ({output: [(count, {ingredient: number})]}, goal)."""
    page = re.fullmatch(r"Crafting commands:\n(.+)\n\nGoal: craft (.+)\.", observation, re.DOTALL)
    commands = {}
    for line in page[1].split("\n"):
        count, output, needs = re.fullmatch(r"craft (\d+) (.+) using (.+)", line).groups()
        commands.setdefault(output, []).append((int(count), amounts(needs)))
    return commands, page[2]


def replay(commands, actions):
    """The bag after these actions, by nothing but the page; every one of them must be possible."""
    bag = Counter()
    for action in actions:
        if action.startswith("get "):
            fetched = amounts(action.removeprefix("get "))
            assert not {*fetched} & {*commands}, "only raw items can be fetched"
            bag.update(fetched)
        else:
            output, needs = re.fullmatch(r"craft \d+ (.+) using (.+)", action).groups()
            used = amounts(needs)
            # here a class is the last word of its members; a recipe may name one of them as well
            fitting = [count for count, wanted in commands[output] if len(used) == len(wanted) and {
                item if item in wanted else item.split()[-1]: n for item, n in used.items()
            } == wanted]
            assert len(fitting) == 1, action
            bag.subtract(used)
            assert min(bag.values()) >= 0, action
            bag[output] += fitting[0]
    return bag


@pytest.mark.parametrize("world", HORIZONS)
def test_expert_makes_every_goal_by_the_recipes_on_the_page_from_any_inventory(world):
    """At once, or after twelve turns of a random player."""
    env, rng, goals = textcraft.Env(world), random.Random(0), set()
    for task_id in env.world.test[:len(env.world.goals)]:
        commands, goal = read_page(env.reset(task_id))
        before = play(env, None, rng.choice([0, 12]), lambda env: env.random_action(rng))
        actions = [action for action, observation, *_ in before
                   if observation.startswith(("Got", "Crafted"))]
        if not env.done:
            planned = expert_actions(env)
            assert len(planned) <= HORIZONS[world]
            actions += planned
        bag = replay(commands, actions)
        assert bag[goal] > 0 and +bag == held(env)
        goals.add(goal)
    assert goals == set(env.world.recipes)


def test_expert_crafts_no_more_than_the_surplus_leaves_to_do():
    # 7 sticks: 2 crafts of 4; these take 4 planks: 1 craft of elm (4), but 2 of ash (3)
    assert expert_actions(in_world(WOOD, "ladder")) == [
        "get 1 elm log", "craft 4 elm plank using 1 elm log", "craft 4 stick using 2 elm plank",
        "craft 4 stick using 2 elm plank", "craft 3 ladder using 7 stick"]
    # 5 sticks held: 1 craft gives the other 2; its 2 planks are held already
    assert expert_actions(in_world(WOOD, "ladder", stick=5, ash_plank=2)) == [
        "craft 4 stick using 2 ash plank", "craft 3 ladder using 7 stick"]
    # 1 of the 2 logs is held; sign and stick draw on one stock: 6 + 2 planks, 2 crafts of 4
    env = in_world(WOOD, "sign", elm_log=1)
    assert sorted(expert_actions(env)) == sorted([
        "get 1 elm log", "craft 4 elm plank using 1 elm log", "craft 4 elm plank using 1 elm log",
        "craft 4 stick using 2 elm plank", "craft 3 sign using 6 elm plank, 1 stick"])
    assert held(env) == {"stick": 3, "sign": 3}     # 4 - 1 sticks, 8 - 6 - 2 planks


@pytest.mark.parametrize("world, profile, numbers, makes, ingredients", [
    (0, [120, 290, 120, 20], 9, 8, 3),          # the original's profile: 125, 291, 117, 11
    (7, [120, 290, 120, 20], 9, 8, 3), ("small", [12, 12, 6], 4, 3, 2),
    ("deep", [24, 24, 14, 8], 4, 3, 2)])
def test_worlds_keep_to_their_depth_profile_and_limits(world, profile, numbers, makes, ingredients):
    world = make_world(world)
    depth = world.depth         # what these three say has one solution
    assert not any(depth.get(item, 0) for item in world.raw)
    assert all(depth[name] == min(depth[member] for member in members)
               for name, members in world.classes.items() if name in depth)
    assert all(depth[item] == 1 + min(max(depth[i] for i, _ in way.needs) for way in ways)
               for item, ways in world.recipes.items())
    assert [[*map(depth.get, world.recipes)].count(d + 1) for d in range(len(profile))] == profile
    recipes = [recipe for ways in world.recipes.values() for recipe in ways]
    assert {n for recipe in recipes for _, n in recipe.needs} <= set(range(1, numbers + 1))
    assert {recipe.count for recipe in recipes} <= set(range(1, makes + 1))
    assert {len(recipe.needs) for recipe in recipes} == set(range(1, ingredients + 1))
    names = [*world.raw, *world.recipes, *world.classes]
    # AgentGym's client drops every other character of an action
    assert all(re.fullmatch("[a-z]+( [a-z]+)*", name) for name in names)
    assert len(set(names)) == len(names)


def test_small_world_has_a_closed_vocabulary_and_short_pages():
    env, words, lengths = textcraft_small.Env(), set(), []
    for task_id in [*textcraft_small.TRAIN, *textcraft_small.TEST]:
        page = re.findall(r"[a-z]+|\S", env.reset(task_id).lower())
        words.update(page)
        lengths.append(len(page))
    assert len(words) <= 120 and all(" " not in item for item in env.world.recipes)
    assert 30 <= sum(lengths) / len(lengths) <= 60 and max(lengths) <= 120


@pytest.mark.parametrize("module, share", [(textcraft, 1 / 5), (textcraft_small, 1 / 10)])
def test_train_and_test_are_disjoint_and_some_goals_are_unseen(module, share):
    env = module.Env()
    assert (module.TRAIN, module.TEST) == (env.world.train, env.world.test)
    train, test = ([(read_page(text)[1], text) for text in map(env.reset, ids)]
                   for ids in (module.TRAIN, module.TEST))
    assert not set(train) & set(test)
    trained = {goal for goal, _ in train}
    assert {goal for goal, _ in test} == set(env.world.recipes)
    assert [*map(module.unseen_goal, module.TEST)] == [goal not in trained for goal, _ in test]
    assert not any(map(module.unseen_goal, module.TRAIN))
    unseen = sum(map(module.unseen_goal, module.TEST)) / len(module.TEST)
    assert unseen == pytest.approx(share, abs=0.02)     # of each depth's goals, rounded
    # what is needed to make an unseen goal, its recipe included, was shown in training
    shown = {line for _, page in train for line in page.split("\n")}
    assert all(str(recipe) in shown for goal in env.world.unseen
               for recipe in env.world.recipes[goal])


def test_distractors_use_the_ingredients_of_the_task():
    env, places = textcraft.Env(), set()
    for task_id in textcraft.TEST[:50]:
        commands, goal = read_page(env.reset(task_id))
        related = {goal}
        for _ in range(10):     # slow closure: ingredients and members, as often as it takes
            related |= {i for item in related for r in env.world.recipes.get(item, ())
                        for i, _ in r.needs}
            related |= {m for item in related for m in env.world.classes.get(item, ())}
        needed = {r for item in related for r in env.world.recipes.get(item, ())}
        users = {r for ways in env.world.recipes.values() for r in ways
                 if related & {i for i, _ in r.needs}} - needed
        assert needed <= {*env.shown} and len({*env.shown}) == len(env.shown) == len(needed) + 10
        assert len({*env.shown} - needed - users) == 10 - min(9, len(users))
        places.add([recipe.item for recipe in env.shown].index(goal))
    assert places >= set(range(11))      # the goal's own command may stand on any line


def test_exchange_recorded_from_the_original_server(tmp_path):
    env = textcraft.Env(minecraft(tmp_path))
    task_id = next(i for i in env.world.train if env.world.goal(i) == "light blue dye")
    observation = env.reset(task_id)
    assert observation.startswith("Crafting commands:\ncraft ")
    assert observation.endswith("\n\nGoal: craft light blue dye.")
    assert env.step("get 1 blue dye")[:3] == ("Could not find blue dye", 0, False)
    assert env.step("get 1 blue orchid")[:3] == ("Got 1 blue orchid", 0, False)
    assert env.step("craft 1 light blue dye using 1 blue orchid") == (
        "Crafted 1 minecraft:light_blue_dye", 1, True,
        {"success": True, "valid": True, "score": 1.0})


@pytest.mark.parametrize("action, answer", [
    ("inventory", "Inventory: [elm log] (2) [elm plank] (4)"),
    ("get 500 coal", "Got 500 coal"),
    ("  GET 3   elm\tlog ", "Got 3 elm log"),
    ("get 3 elm plank", "Could not find elm plank"),            # it is crafted
    ("get 3 plank", "Could not find plank"),                    # a class
    ("craft 4 elm plank using 1 elm log", "Crafted 4 minecraft:elm_plank"),
    ("craft 4 stick using 2 elm plank", "Crafted 4 minecraft:stick"),
    ("craft 4 stick using 2 ash plank", "Could not find enough items to craft minecraft:stick"),
    ("craft 1 ladder using 3 stick", "Could not find enough items to craft minecraft:ladder"),
    ("craft 4 elm plank using 2 elm log", "Could not find a valid recipe for elm plank"),
    ("craft 4 stick using 2 elm plank, 1 elm log", "Could not find a valid recipe for stick"),
    ("craft 1 unicorn using 1 elm log", "Could not find a valid recipe for unicorn"),
    ("craft 4 stick", "Could not execute craft 4 stick"),
    ("craft 4 stick using plank", "Could not execute craft 4 stick using plank"),
    ("get 0 elm log", "Could not execute get 0 elm log"),
])
def test_step_answers_every_kind_of_action(action, answer):
    env = in_world(WOOD, "ladder", elm_log=2, elm_plank=4)
    before = held(env)
    observation, reward, done, info = env.step(action)
    assert observation.startswith(answer) and (reward, done) == (0, False)
    failed = answer.startswith("Could not")
    understood = not failed or "enough items" in answer
    assert info == {"success": False, "valid": understood, "score": 0}
    assert (held(env) == before) == (failed or action == "inventory")
    assert not failed or observation == answer


def test_step_reckons_with_what_the_recipe_makes_not_with_the_number_typed():
    for typed in ("1 ", "4 ", "99 ", ""):
        env = in_world(WOOD, "ladder", elm_log=2, stick=3)
        assert env.step(f"craft {typed}elm plank using 1 elm log")[0] == (
            "Crafted 4 minecraft:elm_plank")
        assert held(env) == {"elm log": 1, "elm plank": 4, "stick": 3}     # 2 - 1, 0 + 4
        assert env.step("craft 4 stick using 2 elm plank")[0] == "Crafted 4 minecraft:stick"
        assert held(env) == {"elm log": 1, "elm plank": 2, "stick": 7}     # 4 - 2, 3 + 4
        _, reward, done, info = env.step("craft 1 ladder using 7 stick")
        assert (reward, done, info["success"]) == (1, True, True)
        assert held(env) == {"elm log": 1, "elm plank": 2, "ladder": 3}


def test_step_fills_a_class_with_one_member_whatever_the_order():
    # box: 2 of any plank and 3 elm planks
    for needs, fits in [("2 ash plank, 3 elm plank", True), ("3 elm plank,2 ash plank", True),
                        ("3 ash plank, 2 elm plank", False), ("5 elm plank", False),
                        ("2 elm plank, 3 elm plank", False),
                        ("1 ash plank, 1 elm plank, 3 elm plank", False)]:
        env = in_world(WOOD, "ladder", ash_plank=9, elm_plank=9)
        observation = env.step(f"craft 1 box using {needs}")[0]
        assert observation.startswith("Crafted") == fits
    assert expert_actions(in_world(WOOD, "box", ash_plank=9, elm_plank=9)) == [
        "craft 1 box using 2 ash plank, 3 elm plank"]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content))


def cell(name):
    """What a recipe says for an item, for "#logs", a class, or for a choice, a list of such."""
    return [*map(cell, name)] if isinstance(name, list) else \
        {"tag": f"minecraft:{name[1:]}"} if name[0] == "#" else {"item": f"minecraft:{name}"}


def shaped(made, pattern, count=1, **key):
    return {"type": "minecraft:crafting_shaped", "pattern": pattern,
            "key": {letter: cell(name) for letter, name in key.items()},
            "result": {"item": f"minecraft:{made}", "count": count}}


def shapeless(made, *names, group="x", **result):
    return {"type": "minecraft:crafting_shapeless", "group": group, "result": {
        "item": f"minecraft:{made}", **result}, "ingredients": [*map(cell, names)]}


def minecraft(folder):
    """A folder laid out like the game's data; returns that of the recipes."""
    write(folder / "recipes",
          oak_planks=shapeless("oak_planks", "#oak_logs", group="planks", count=4),
          acacia_planks=shapeless("acacia_planks", "#acacia_logs", group="planks", count=4),
          acacia_wood=shapeless("acacia_wood", *["acacia_log"] * 4, count=3),
          dark_oak_wood=shapeless("dark_oak_wood", *["dark_oak_log"] * 4, count=3),
          stick=shaped("stick", ["P", "P"], P="#planks", count=4),
          torch=shaped("torch", ["X", "S"], X=["coal", "charcoal"], S="stick", count=4),
          chest=shaped("chest", ["PPP", "P P", "PPP"], P="#planks"),
          blue_dye=shapeless("blue_dye", "lapis_lazuli"),
          light_blue_dye_from_blue_orchid=shapeless("light_blue_dye", "blue_orchid"),
          light_blue_dye_from_blue_white_dye=shapeless(
              "light_blue_dye", "blue_dye", "white_dye", count=2),
          iron_block=shaped("iron_block", ["III"] * 3, I="iron_ingot"),
          iron_ingot_from_nuggets=shaped("iron_ingot", ["NNN"] * 3, N="iron_nugget"),
          iron_nugget=shapeless("iron_nugget", "iron_ingot", count=9),
          bone_meal=shapeless("bone_meal", "bone_block", count=9),
          glass={"type": "minecraft:smelting", "ingredient": cell("sand"),
                 "result": "minecraft:glass"})
    write(folder / "tags" / "items", oak_logs={"values": [
        "minecraft:oak_log", "#minecraft:stripped"]}, stripped={"values": ["minecraft:bare_log"]})
    return folder / "recipes"


def test_read_world_understands_minecraft_recipe_files(tmp_path):
    world = make_world(minecraft(tmp_path))
    assert {item: list(map(str, ways)) for item, ways in world.recipes.items()} == {
        "oak planks": ["craft 4 oak planks using 1 oak logs"],
        "acacia planks": ["craft 4 acacia planks using 1 acacia logs"],
        "acacia wood": ["craft 3 acacia wood using 4 acacia log"],
        "dark oak wood": ["craft 3 dark oak wood using 4 dark oak log"],
        "stick": ["craft 4 stick using 2 planks"],
        "torch": ["craft 4 torch using 1 coal, 1 stick",              # a list leaves the choice
                  "craft 4 torch using 1 charcoal, 1 stick"],
        "chest": ["craft 1 chest using 8 planks"],
        "blue dye": ["craft 1 blue dye using 1 lapis lazuli"],
        "light blue dye": ["craft 1 light blue dye using 1 blue orchid",
                           "craft 2 light blue dye using 1 blue dye, 1 white dye"],
        "iron block": ["craft 1 iron block using 9 iron ingot"],
        "iron ingot": ["craft 1 iron ingot using 9 iron nugget"],     # the way back is cut
    }
    assert world.classes == {
        "planks": ["acacia planks", "oak planks"],     # by their recipes' group
        "oak logs": ["oak log", "bare log"]}                           # by ../tags/items
    # a class without members is a raw item, not a class of what its name sounds like: acacia log
    assert {"iron nugget", "bare log", "coal", "acacia logs"} <= world.raw
    assert not {"sand", "bone block", "oak logs"} & world.raw
    assert world.depth["chest"] == 2 and world.depth["light blue dye"] == 1


# ---- recipes given by a flag ----

def test_open_env_plays_by_the_recipes_here_and_in_the_servers_it_starts(tmp_path):
    folder = str(minecraft(tmp_path))
    module = open_env("textcraft", folder)
    env = module.Env()
    tasks = [*module.TRAIN, *module.TEST]
    for task_id in tasks:
        expert_actions(env, task_id, 20)
    with pytest.raises(ValueError, match=rf"textcraft: no task -1; tasks are 0\.\.{tasks[-1]}"):
        env.reset(-1)
    assert {*map(module.family, module.TEST)} == {"depth 1", "depth 2", "depth 3"}
    trained = {*map(env.world.goal, module.TRAIN)}
    assert trained < {*map(env.world.goal, module.TEST)} == {*env.world.recipes}
    assert all(module.unseen_goal(i) == (env.world.goal(i) not in trained) for i in tasks)
    with local_server("textcraft", data=folder) as url:
        replies = EnvClient(url, "textcraft").answer([
            (None, Reset(i)) for i in module.TEST])
        assert [reply.observation for reply in replies] == [*map(env.reset, module.TEST)]
    assert module.Env(0).world is textcraft.Env().world is make_world(0)


@pytest.mark.parametrize("name, files, sentence", [
    ("textcraft", None, "'.*recipes' is neither a world nor a folder of recipe files"),
    ("textcraft", {}, "holds fewer than 6 usable crafting recipes"),
    ("textcraft", {"bad": "{not json"}, r"bad\.json is no JSON"),
    ("textcraft", {"bad": []}, r"bad\.json is no Minecraft file: it has no 'type'"),
    ("textcraft", {"bad": {"type": "minecraft:crafting_shaped", "pattern": ["#"], "key": {}}},
     r"bad\.json is no Minecraft recipe: KeyError\('#'\)"),
    ("textcraft", {"bad": shapeless("air")},
     r"bad\.json is no Minecraft recipe: ValueError\('no ingredients'\)"),
    ("textcraft_small", {}, "textcraft_small takes no data")])
def test_open_env_refuses_bad_recipes(tmp_path, name, files, sentence):
    if files is not None:
        write(tmp_path / "recipes", **files)
    with pytest.raises(ValueError, match=sentence) as refusal:
        open_env(name, tmp_path / "recipes")
    assert "\n" not in str(refusal.value)
