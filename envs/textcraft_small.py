"""textcraft_small: the game of textcraft.py in a world that a tiny model learns on a laptop.

    env:    Crafting commands:
            craft 1 dye using 1 fish, 3 wood
            craft 1 glue using 3 candle
            craft 1 bag using 1 plank
            craft 3 candle using 3 fish

            Goal: craft glue.
    agent:  get 3 fish                                  ->  Got 3 fish
    agent:  craft 3 candle using 3 fish                 ->  Crafted 3 candle
    agent:  craft 1 glue using 3 candle                 ->  Crafted 1 glue     (reward 1, done)

12, 12 and 6 goals of depth 1, 2 and 3, one-word items, recipes with numbers to 4, two distractors.
In 10 turns a random player solves 12% of TEST, `expert` all (3.9 turns on average, 7 at most).
Env(world="deep") has goals to depth 4: see textcraft.make_world.
"""
from envs import textcraft

NAME, HORIZON, SUCCESS = "textcraft_small", 10, 1.0
TRAIN, TEST = range(0, 6750), range(6750, 7110)      # 250 draws of 27 goals; 12 of each of 30
FAMILIES = ("depth 1", "depth 2", "depth 3")
TINY = dict(horizons=(10,), steps=150, kl_coef=0.01, clone=dict(goal="other", skill=0.9),
            quick=dict(families="depth 1", lr=1e-3, lr_end=1.0))
PROMPT = """You are given crafting commands and a goal: craft the goal item.
Actions, one per turn:
get N item - fetch N of a raw item, one that no command makes; it is free
craft N item using N a, M b - use one of the commands, with exactly its ingredients
inventory - see what you hold
What a command makes cannot be fetched: craft it first, if another command needs it. A command makes
its whole output at once; repeat it when you need more. What is left stays."""
EXAMPLE = "get 3 wax"
TOOLS = textcraft.TOOLS


def family(task_id):
    return textcraft.family(task_id, "small")


def unseen_goal(task_id):
    return textcraft.unseen_goal(task_id, "small")


class Env(textcraft.Env):
    def __init__(self, world="small"):
        super().__init__(world)
