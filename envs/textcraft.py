"""textcraft: craft a thing from raw materials by the recipes shown.

    env:    Crafting commands:
            craft 2 cedar wheel using 1 onyx chest, 3 lens, 5 cedar seed
            craft 6 jade lens using 3 jade shard
            craft 1 onyx chest using 2 granite pebble
            ...                  (four more kinds of lens, ten distractors, all in random order)

            Goal: craft cedar wheel.
    agent:  get 2 granite pebble                      -> Got 2 granite pebble
    agent:  craft 1 onyx chest using 2 granite pebble -> Crafted 1 minecraft:onyx_chest
    agent:  get 3 jade lens                           -> Could not find jade lens
    agent:  get 3 jade shard                          -> Got 3 jade shard
    agent:  craft 6 jade lens using 3 jade shard      -> Crafted 6 minecraft:jade_lens
    agent:  inventory                                 -> Inventory: [onyx chest] (1) [jade lens] (6)
    agent:  get 5 cedar seed                          -> Got 5 cedar seed
    agent:  craft 2 cedar wheel using 1 onyx chest, 3 jade lens, 5 cedar seed
                                                      -> Crafted 2 minecraft:cedar_wheel
                                                         (reward 1, done)

After TextCraft (ADaPT, arXiv:2311.05772) as AgentGym serves it; the recipes are our own. `get`
gives any amount of a raw item, free. `craft` wants the ingredients of one recipe exactly; a class
of items ("lens") takes any one of its members ("jade lens"). The number before the output is
ignored: a recipe makes its own number, and what is left over stays in the inventory. Reward 1 when
the goal is crafted, else 0. A goal's depth is the height of its recipe tree. In 20 turns a random
player solves 5% of TEST, `expert` all (6.1 turns on average, 19 at most).

Env(world=...): a number (0: the default) is a large world of 550 goals; "small" is for tiny models
(one-word items, 2 distractors: see textcraft_small.py), "deep" the same with depth 4; or a folder
of Minecraft 1.16.5 recipe files, such as AgentGym's. `--data FOLDER` of the scripts makes such a
folder the world of this module; its goals are all that the recipes make. A fifth of the goals
(small worlds: a tenth) is only in TEST (`unseen_goal`); the other goals come there with
distractors, or an order, that TRAIN does not have. Goals are numbered in an order of our own: the
original's depends on how the disk lists its files.
"""
import functools
import itertools
import json
import os
import random
import re
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import envs
from envs.parts.agentgym import Manner, read_line
from envs.parts.textcraft_prompt import RULES
from envs.parts.textcraft_words import FAMILY_FORMS, GOODS, SMALL_RAW, SMALL_GOODS
from envs.parts.wires import Wire

NAME, HORIZON, SUCCESS = "textcraft", 20, 1.0
WORLD = 0       # what Env() plays: see `use`
TRAIN, TEST = range(0, 4400), range(4400, 4950)   # 10 draws of 440 goals; one of each of 550
FAMILIES = ("depth 1", "depth 2", "depth 3", "depth 4")
TINY = dict(families="depth 1", horizons=(5,), max_context=640, max_turn_tokens=32, steps=60,
            lr=4e-4, clone=dict(goal="other", skill=0.9, steps=900, heads=2))
PROMPT = """You are given crafting commands and a goal: craft the goal item.
Actions, one per turn:
get N item - fetch N of a raw item, one that no command makes; it is free
craft N item using N a, M b - use one of the commands, with exactly its ingredients
inventory - see what you hold
Where a command names a class, such as plank, use one kind of it, such as elm plank.
A command makes its whole output at once; repeat it when you need more. What is left stays."""
EXAMPLE = "get 1 oak log"
TOOLS = {
    "get {items}": 'Fetch raw items, their number and name: "2 oak log".',
    "craft {items} using {ingredients}": "Use one of the crafting commands: items with their "
    'number, "4 oak plank", ingredients with theirs and commas, "1 oak log, 2 stick".',
    "inventory": "See what you hold."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(create="{id observation done reward}", task_required=False)
AGENTGYM = Manner(RULES, read_line)
SET_SIZES = dict(agenttraj=300, agenttraj_l=374)


class Recipe(NamedTuple):
    item: str
    count: int
    needs: tuple   # ((ingredient, number), ...); an ingredient is an item or a class

    def __str__(self):
        needs = ", ".join(f"{number} {item}" for item, number in self.needs)
        return f"craft {self.count} {self.item} using {needs}"


class World:
    """What never changes: recipes {item: [Recipe]}, classes {class: [members]}, goals, task ids."""

    def __init__(self, name, recipes, classes=None, distractors=10, draws=(10, 1),
                 prefix="minecraft:", hint="", held_out=5):
        self.name, self.recipes, self.classes = name, recipes, classes or {}
        self.distractors, self.prefix, self.hint = distractors, prefix, hint
        mentioned = {i for rs in recipes.values() for r in rs for i, _ in r.needs}
        self.raw = mentioned.union(*self.classes.values()) - set(recipes) - set(self.classes)
        self.depth = {}
        goals = sorted(recipes, key=lambda item: (self.measure(item), item))
        rng = random.Random("goals")
        rng.shuffle(goals)      # so that the first tasks are a fair sample of all
        self.goals, self.unseen = goals, set()
        for depth in sorted(set(map(self.measure, goals)), reverse=True):
            level = [goal for goal in goals if self.depth[goal] == depth]
            rng.shuffle(level)
            # First those that a goal of TRAIN needs: the agent has made them on the way to it.
            used = {i for goal in goals if goal not in self.unseen
                    for recipe in recipes[goal] for i, _ in recipe.needs}
            level.sort(key=lambda item: item not in used)
            self.unseen.update(level[:round(len(level) / held_out)])
        self.seen = [goal for goal in goals if goal not in self.unseen]
        last = draws[0] * len(self.seen)
        self.train, self.test = range(last), range(last, last + draws[1] * len(goals))

    def measure(self, item):
        """Height of the lowest recipe tree of an item or class; 0: raw."""
        if item not in self.depth:
            if item in self.classes:
                self.depth[item] = min(map(self.measure, self.classes[item]))
            else:
                self.depth[item] = min((1 + max(self.measure(i) for i, _ in recipe.needs)
                                        for recipe in self.recipes.get(item, ())), default=0)
        return self.depth[item]

    def goal(self, task_id):
        goals = self.seen if task_id in self.train else self.goals
        return goals[task_id % len(goals)]

    def draw(self, task_id):
        """The commands the task shows, in its order."""
        goal, rng = self.goal(task_id), random.Random(f"textcraft {self.name} {task_id}")
        reachable, near, far = pages(self, goal)
        while True:
            # All distractors but one use an ingredient of the task, if there are as many.
            related = rng.sample(near, min(self.distractors - 1, len(near)))
            others = rng.sample(far, min(self.distractors - len(related), len(far)))
            shown = reachable + related + others
            rng.shuffle(shown)
            # TEST has the fifth of all pages whose checksum says so: no page is in both.
            checksum = zlib.crc32("\n".join(map(str, shown)).encode())
            if goal in self.unseen or (checksum % 5 == 0) == (task_id in self.test):
                return shown


@functools.cache
def pages(world, goal):
    """Recipes: those reachable from the goal, others that share an ingredient, all the rest."""
    items = [goal]
    for item in items:
        needs = [i for recipe in world.recipes.get(item, ()) for i, _ in recipe.needs]
        items += dict.fromkeys(i for i in [*needs, *world.classes.get(item, ())] if i not in items)
    reachable = [recipe for item in items for recipe in world.recipes.get(item, ())]
    near, far = [], []
    for item in sorted(set(world.recipes) - set(items)):
        for recipe in world.recipes[item]:
            (near if any(i in items for i, _ in recipe.needs) else far).append(recipe)
    return reachable, near, far


# The expert's plan. Its state is (stock still free, raw items to get, crafts to do). Each call
# returns a new state, so that alternatives start from the same one and the cheapest is kept. This
# is greedy, one ingredient after another: plans are short, but not always the shortest.

def supply(world, item, number, state):
    """The state once `number` of item are set aside: from stock, by getting or by crafting."""
    stock, gets, crafts = state
    taken = min(stock.get(item, 0), number)
    stock, number = {**stock, item: stock.get(item, 0) - taken}, number - taken
    if number == 0:
        return stock, gets, crafts
    if item in world.raw:
        return stock, {**gets, item: gets.get(item, 0) + number}, crafts
    state = stock, gets, crafts
    return min((make(world, recipe, number, state) for recipe in world.recipes[item]), key=cost)


def make(world, recipe, number, state):
    """The state once `recipe` was crafted often enough for `number`; a surplus joins the stock."""
    times = -(-number // recipe.count)
    named, needs = {ingredient for ingredient, _ in recipe.needs}, []
    for ingredient, n in recipe.needs:     # a class is filled with one member, the cheapest
        members = [member for member in world.classes.get(ingredient, ()) if member not in named]
        state, member = min(((supply(world, member, n * times, state), member)
                             for member in members or [ingredient]),
                            key=lambda option: cost(option[0]))
        named.add(member)
        needs.append((member, n))
    stock, gets, crafts = state
    stock = {**stock, recipe.item: times * recipe.count - number}   # more than none was not there
    return stock, gets, crafts + [(recipe, tuple(needs))] * times


def first_step(gets, crafts):
    """The item that a plan gets or makes first, and the action: what is raw, then crafts."""
    if gets:
        item, number = next(iter(gets.items()))
        return item, f"get {number} {item}"
    recipe, needs = crafts[0]
    return recipe.item, str(recipe._replace(needs=needs))


def cost(state):
    """What `min` compares: the turns it takes, then the number of items to get."""
    _, gets, crafts = state
    return len(gets) + len(crafts), sum(gets.values())


# The worlds.


def draw_recipes(rng, recipes, classes, below, goods, levels, limits, numbers, others):
    """Give goods recipes: levels[d] of them at depth d + 1, made in at most limits[d] turns.

    below[d]: what there is of depth d; the first ingredient is one of them, `others` (how many,
    drawn from these) are of depth d or less; numbers: what the numbers in a recipe are drawn from.
    """
    world = SimpleNamespace(recipes=recipes, classes=classes, raw=set(below[0]))
    goods = iter(goods)
    for depth, (size, limit) in enumerate(zip(levels, limits)):
        for item in itertools.islice(goods, size):
            recipes[item], ways = [], 2 if rng.random() < 0.07 else 1
            while len(recipes[item]) < ways:
                needs = {rng.choice(below[depth]): rng.choice(numbers)}
                for _ in range(rng.choice(others)):
                    pool = rng.choice(below[:depth + 1])
                    if classes and depth and rng.random() < 0.25:
                        pool = sorted(classes)
                    needs[rng.choice(pool)] = rng.choice(numbers)
                recipe = Recipe(item, rng.choice((1, 1, *numbers[:-1])), tuple(needs.items()))
                turns, _ = cost(make(world, recipe, 1, ({}, {}, [])))
                if turns <= limit and recipe not in recipes[item]:
                    recipes[item].append(recipe)
            below[depth + 1].append(item)


def large_world(seed):
    """550 goals, at depths 1 to 4: 120, 290, 120, 20 (the original has 125, 291, 117, 11)."""
    rng, raw, recipes, classes = random.Random(f"world {seed}"), [], {}, {}
    for materials, forms, kinds in FAMILY_FORMS:
        raw += [f"{material} {form}" for material in materials.split() for form in forms.split()]
        for kind in kinds.split():
            classes[kind] = [f"{material} {kind}" for material in materials.split()]
            need, count = rng.choice((1, 1, 2, 3)), rng.randint(1, 8)
            for material, item in zip(materials.split(), classes[kind]):
                recipes[item] = [Recipe(item, count, ((f"{material} {forms.split()[0]}", need),))]
    goods = [f"{material} {form}" for materials, _, _ in FAMILY_FORMS
             for material in materials.split() for form in GOODS.split()]
    below = [raw, list(recipes), [], [], []]
    draw_recipes(rng, recipes, classes, below, rng.sample(goods, len(goods)), (60, 290, 120, 20),
                 (5, 9, 14, HORIZON), (1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 1, 2))
    return World(f"{seed}", recipes, classes)


def small_world(name, levels, limits):
    """One-word items, small numbers, no classes: a closed vocabulary of about 130 words."""
    rng, recipes = random.Random(f"world {name}"), {}
    below = [SMALL_RAW.split(), [], [], [], []]
    goods = SMALL_GOODS.split()
    draw_recipes(rng, recipes, {}, below, goods, levels, limits, (1, 1, 2, 2, 3, 4), (0, 1, 1))
    return World(name, recipes, distractors=2, draws=(250, 12), prefix="",
                 hint=". Use get, craft or inventory.", held_out=10)


def read_world(folder):
    """The World of a folder of Minecraft 1.16.5 recipe files (data/minecraft/recipes).

    Shaped and shapeless recipes count, in the order of their file names, except those that turn
    blocks back into items and those that would close a cycle. A class has the members that
    ../tags/items gives it. Without that file it has, as in TextCraft, what recipes make whose
    "group" it is; if nothing is made so, it is itself a raw item: get 1 oak logs. Where a recipe
    leaves a choice of items, TextCraft takes the first, and we all.
    """
    if not folder.is_dir():
        raise ValueError(f"{NAME}: {str(folder)!r} is neither a world nor a folder of recipe files")
    found = [pair for path in sorted(folder.glob("*.json")) for pair in read_recipes(path)]
    items, groups, classes, recipes = set(), {}, {}, {}
    for recipe, tags, group in found:
        items |= {recipe.item, *(i for i, _ in recipe.needs if i not in tags)}
        groups.setdefault(group, set()).add(recipe.item)
    for tag in {tag for _, tags, _ in found for tag in tags} - items:
        if members := read_tag(folder.parent / "tags" / "items", tag, groups):
            classes[tag] = members
    for recipe, _, _ in found:
        made_of = [i for i, _ in recipe.needs]
        for i in made_of:      # grows: what the ingredients are made of, and so on
            parts = [part for way in recipes.get(i, ()) for part, _ in way.needs]
            made_of += [part for part in classes.get(i, parts) if part not in made_of]
        unpacks = len(recipe.needs) == 1 and recipe.needs[0][0].endswith(" block")
        if recipe.item not in made_of and not unpacks:
            recipes.setdefault(recipe.item, []).append(recipe)
    if sum(map(len, recipes.values())) < 6:
        raise ValueError(f"{NAME}: {str(folder)!r} holds fewer than 6 usable crafting recipes")
    return World(folder.name, recipes, classes)


def read_recipes(path):
    """The file's [(Recipe, its tags, its group)]; several if a cell leaves a choice."""
    recipe, found = read_json(path, "type"), []
    try:
        if recipe["type"] == "minecraft:crafting_shaped":
            cells = [recipe["key"][c] for c in "".join(recipe["pattern"]).replace(" ", "")]
        elif recipe["type"] == "minecraft:crafting_shapeless":
            cells = recipe["ingredients"]
        else:
            return []
        if not cells:
            raise ValueError("no ingredients")
        made, count = plain(recipe["result"]["item"]), int(recipe["result"].get("count", 1))
        cells = Counter(json.dumps(cell) for cell in cells)      # cell -> number of times it occurs
        choices = [cell if isinstance(cell, list) else [cell] for cell in map(json.loads, cells)]
        for choice in itertools.product(*choices):
            needs = Counter()
            for cell, number in zip(choice, cells.values()):
                needs[plain(cell["item"] if "item" in cell else cell["tag"])] += number
            tags = [plain(cell["tag"]) for cell in choice if "item" not in cell]
            found.append((Recipe(made, count, tuple(needs.items())), tags,
                          plain(recipe.get("group", ""))))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ValueError(f"{NAME}: {path.name} is no Minecraft recipe: {problem!r}") from problem
    return found


def read_tag(folder, tag, groups):
    """The members of a class, those of the classes in it included; groups: {group: items}."""
    path = folder / f"{tag.replace(' ', '_')}.json"
    if not path.is_file():
        return sorted(groups.get(tag, ()))
    members = []
    for value in read_json(path, "values")["values"]:
        inner = value.startswith("#")
        members += read_tag(folder, plain(value[1:]), groups) if inner else [plain(value)]
    return members


def read_json(path, key):
    """The object in a Minecraft file, which must have this key. ValueError: it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{NAME}: {path.name} is no JSON: {problem}") from problem
    if not isinstance(content, dict) or key not in content:
        raise ValueError(f"{NAME}: {path.name} is no Minecraft file: it has no {key!r}")
    return content


def plain(name):
    """minecraft:oak_log -> oak log"""
    return name.removeprefix("minecraft:").replace("_", " ")


@functools.cache
def make_world(world=0):
    """The World called 0, 1, 2, ..., "small" or "deep", or in a folder of recipe files."""
    if world == "small":
        return small_world(world, (12, 12, 6), (3, 5, 7))
    if world == "deep":
        return small_world(world, (24, 24, 14, 8), (3, 5, 8, 12))
    if isinstance(world, int):
        return large_world(world)
    return read_world(Path(str(world)))


def use(folder):
    """What differs when it plays by the recipes of this folder: envs.with_data."""
    path = os.path.abspath(folder)
    world = make_world(path)
    own = {f.__name__: functools.partial(f, world=path) for f in (family, unseen_goal)}
    return dict(WORLD=path, TRAIN=world.train, TEST=world.test, **own)


def family(task_id, world=0):
    world = make_world(world)
    return FAMILIES[min(world.depth[world.goal(task_id)], 4) - 1]


def unseen_goal(task_id, world=0):
    """Whether no TRAIN task asks for this task's goal."""
    world = make_world(world)
    return world.goal(task_id) in world.unseen


def amount(text):
    """ "2 elm log" -> ("elm log", 2); any other text -> None."""
    match = re.fullmatch(r"([1-9][0-9]{0,5}) (.+)", text.strip())
    return match and (match[2], int(match[1]))


class Env(envs.Base):
    def __init__(self, world=None):     # also a folder of Minecraft recipe files
        self.world = make_world(self.module.WORLD if world is None else world)

    def last_task(self):
        return self.world.test[-1]

    def start(self, task_id):
        self.goal, self.shown = self.world.goal(task_id), self.world.draw(task_id)
        self.inventory, self.aim = {}, None
        commands = "\n".join(map(str, self.shown))
        return f"Crafting commands:\n{commands}\n\nGoal: craft {self.goal}."

    def act(self, action):
        text = " ".join(action.lower().split())
        verb, _, rest = text.partition(" ")
        output, _, using = rest.partition(" using ")
        needs = [amount(part) for part in using.split(",", 9)]     # a recipe has 9 at most
        if text == "inventory":
            held = " ".join(f"[{item}] ({n})" for item, n in self.inventory.items() if n)
            observation = f"Inventory: {held or 'You are not carrying anything.'}"
        elif verb == "get" and amount(rest):
            observation = self.get(*amount(rest))
        elif verb == "craft" and all(needs):
            observation = self.craft(re.sub("^[0-9]+ ", "", output), needs)
        else:
            observation = f"Could not execute {text[:80]}{self.world.hint}"
        done = self.goal in self.inventory
        # What comes too early is understood; what names a thing that is not there is nonsense.
        early = observation.startswith("Could not find enough items to craft ")
        understood = early or not observation.startswith("Could not")
        info = {"success": done, "valid": understood, "score": float(done)}
        return observation, float(done), done, info

    def get(self, item, number):
        if item not in self.world.raw:
            return f"Could not find {item[:80]}"
        self.inventory[item] = self.inventory.get(item, 0) + number
        return f"Got {number} {item}"

    def craft(self, item, needs):
        """Make item from needs, [(ingredient, number)] -> what the agent is told."""
        label = self.world.prefix + item[:80].replace(" ", "_")
        if any(self.inventory.get(i, 0) < n for i, n in needs):
            return f"Could not find enough items to craft {label}"
        fitting = [way for way in self.world.recipes.get(item, ()) if self.fits(way, needs)]
        if not fitting:
            return f"Could not find a valid recipe for {item[:80]}"
        for i, n in needs:
            self.inventory[i] -= n
        self.inventory[item] = self.inventory.get(item, 0) + fitting[0].count
        return f"Crafted {fitting[0].count} {label}"

    def fits(self, recipe, needs):
        """Whether needs are exactly the recipe's, in any order, a member in place of its class."""
        return (len(dict(needs)) == len(needs) == len(recipe.needs)) and any(
            all(n == m and i in self.world.classes.get(wanted, (wanted,))
                for (i, n), (wanted, m) in zip(order, recipe.needs))
            for order in itertools.permutations(needs))

    def expert(self):
        """A short plan from the present inventory: get what it lacks, then craft upwards."""
        _, gets, crafts = supply(self.world, self.goal, 1, (self.inventory, {}, []))
        item, action = first_step(gets, crafts)
        if gets:
            return (f"To craft {self.goal} I still need {gets[item]} {item}, which is raw: I get "
                    "it.", action)
        why = "it is the goal" if item == self.goal else f"{self.goal} needs it"
        return f"I hold everything for {item}, and {why}: I craft it.", action

    def other_goal(self, rng):
        """Makes a thing of the page that is not the goal, then another, and so on."""
        if not self.aim:
            things = {i for recipe in self.shown for i in (recipe.item, *dict(recipe.needs))}
            self.aim = rng.choice(sorted(things - {self.goal, *self.world.classes}))
        aim = self.aim
        number = rng.randint(1, 4) if aim in self.world.raw else 1
        _, gets, crafts = supply(self.world, aim, number, ({**self.inventory, aim: 0}, {}, []))
        item, action = first_step(gets, crafts)
        if item == aim:
            self.aim = None
        return f"I would like to have {aim}.", action

    def random_action(self, rng):
        """A command shown, or a get of what such a command uses, or a look at the inventory."""
        recipe = rng.choice(self.shown)
        needs = tuple((rng.choice(self.world.classes.get(i, (i,))), n) for i, n in recipe.needs)
        item, number = rng.choice(needs)
        return rng.choice([f"get {number} {item}"] * 9 + [str(recipe._replace(needs=needs))] * 10
                          + ["inventory"])
