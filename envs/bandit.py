"""bandit: one pull of one of two named arms, RAGEN's smallest world (arXiv:2504.20073).

    env:    There are 2 arms: dragon and phoenix.
            You have 1 action left.
    agent:  phoenix                              reward 0.1, every time
    env:    The phoenix paid 0.1. You have 0 actions left.

One arm always pays 0.1, the other is a gamble: 1 with probability 0.25, else 0. Only the names hint
which is which. In TRAIN and in half of TEST the bolder name is the gamble; in the rest of TEST, the
family "reversed", it is the safe arm. No name of TEST is in TRAIN. An episode succeeds if the
gamble was pulled, whatever it paid. Success: random 50% (mean reward 0.175), expert 100% (0.25); an
agent that has learned the hint gets 100% of "plain" and 0% of "reversed".

A tiny policy cannot even spell the names of TEST; what it learns shows on TRAIN. `--algo dr_grpo`
makes it bold. GRPO itself makes it timid: in a group where no gamble has paid the safe arm's 0.1,
divided by the small deviation, counts as much as a 1.

The task decides names, order and meaning; `self.luck` decides what the arms pay.
"""
import random

import envs

NAME, HORIZON = "bandit", 1
TRAIN, TEST = range(0, 800), range(800, 1000)
SUCCESS = 1.0
FAMILIES = ("plain", "reversed")
TINY = dict(horizons=(1,), steps=60, clone=dict(steps=400, skill=0.0, lr=3e-3))
PROMPT = """You stand before two slot machines, called arms, and may pull one of them, once. One
arm pays a little every time; the other pays much or nothing, but more on average. Which is which
you are not told: let the names guide you. Your aim is the arm with the higher average.
Answer with the name of one arm."""

LOW_REWARD, HIGH_REWARD, HIGH_CHANCE = 0.1, 1.0, 0.25
TRAIN_PAIRS = (     # the name that sounds safe, the name that sounds bold
    ("phoenix", "dragon"), ("accountant", "gambler"), ("gardener", "smuggler"),
    ("teacher", "explorer"), ("baker", "pirate"), ("dentist", "stuntman"), ("tailor", "racer"),
    ("clerk", "inventor"), ("farmer", "gunslinger"), ("nurse", "paratrooper"),
    ("carpenter", "mountaineer"), ("gatekeeper", "adventurer"),
)
TEST_PAIRS = (
    ("librarian", "trader"), ("beekeeper", "bullfighter"), ("postman", "spy"),
    ("shepherd", "corsair"), ("notary", "prospector"), ("cook", "acrobat"),
)


def family(task_id):
    return "reversed" if task_id in TEST and task_id % 2 else "plain"


def arms(task_id):
    """(low, high): the arm that pays 0.1 and the arm that pays 0.25 on average."""
    pairs = TEST_PAIRS if task_id in TEST else TRAIN_PAIRS
    safe, bold = pairs[task_id // 2 % len(pairs)]
    return (bold, safe) if family(task_id) == "reversed" else (safe, bold)


class Env(envs.Base):
    def start(self, task_id):
        self.low, self.high = arms(task_id)
        self.names = [self.low, self.high]
        random.Random(f"bandit {task_id}").shuffle(self.names)
        return f"There are 2 arms: {self.names[0]} and {self.names[1]}.\nYou have 1 action left."

    def act(self, action):
        pulled, well_formed = self.split_actions(action, self.names)
        success, points = False, 0.0
        if pulled:
            success, points = pulled[0] == self.high, LOW_REWARD
            if success:
                points = HIGH_REWARD if self.luck.random() < HIGH_CHANCE else 0.0
            observation = f"The {pulled[0]} paid {points:g}. You have 0 actions left."
        else:
            observation = (f"No arm was pulled. Answer with a name: {self.names[0]} or "
                           f"{self.names[1]}.\nYou have 1 action left.")
        reward = points if well_formed else points - 0.1
        info = {"success": success, "valid": well_formed, "score": float(success)}
        return observation, reward, bool(pulled), info

    def expert(self):
        return (f"The {self.low} pays a sure 0.1, the {self.high} 1 about every fourth time. "
                "A quarter is more than a tenth.", self.high)

    def random_action(self, rng):
        return rng.choice(self.names)


def exact_success(task_id, policy, horizon=HORIZON):
    """The probability of success: a coin for the player "random", certainty for the "expert"."""
    return {"random": 0.5, "expert": 1.0}[policy] if horizon else 0.0
