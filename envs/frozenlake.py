"""frozenlake: cross the ice to the goal, around the holes, in ten moves; after RAGEN and Gymnasium.

    env:    ____        _ ice   O hole   G goal
            __GO        P player (X: fallen into a hole, √: at the goal)
            _P__
            __O_
            The ice is slippery: 67% of your moves slide off to one side.
            You have 10 actions left.
    agent:  up || right                     reward 1 at the goal, else 0
    env:    You are at the goal! ...

Actions: left, down, right, up; up to five in one reply, joined by "||" and made from wherever the
last one ended. A move off the map does nothing. -0.1 for a reply with a missing or an unknown
action. `slip` is the probability that a move goes to one side of where it was meant, each side
equally often: 0 in the family "still", 2/3 in "slippery" (Gymnasium's ice), or Env(slip=...). A
cell is ice with probability 0.8; start and goal are random, with a way between them; no map of
TRAIN is in TEST. The task decides the map, `self.luck` the slides.
Success on TEST with one move a turn: random 21% in both families (a uniformly random direction
stays uniform when it is turned), the expert, who knows the optimal policy by value iteration, 100%
of "still" and 50% of "slippery". (On maps of RAGEN's own generator, slippery: 21% and 48%.)
"""
import random
import zlib
from functools import partial
from statistics import fmean

import envs

NAME, HORIZON = "frozenlake", 10
TRAIN, TEST = range(0, 8000), range(8000, 10000)
SUCCESS = 1.0
FAMILIES = ("still", "slippery")
EXPERT_RATE = 0.75          # the best there is, over both families
SLIP = {"still": 0.0, "slippery": 2 / 3}
SIZE, ICE, MAX_ACTIONS = 4, 0.8, 10
ONE_WORD = r"^[_OGPX√]{4}$\n?|^The ice .*\n.*"     # a row, and what is said below the grid
# Slippery ice pays by luck; there a tiny policy learns less in the same time.
TINY = dict(families="still", horizons=(10,), steps=120,
            clone=dict(goal="other", skill=0.8, steps=600, lr=2e-3))
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}   # in a circle
PROMPT = """You stand on a frozen lake and want to get to the goal without falling into a hole.
The grid: _ ice, O hole, G goal, P you. On slippery ice a move may take you to the left or right of
where you meant to go, never back; at the edge of the lake you stay where you are.
Answer with left, down, right or up, or with up to five of these joined by ||, as in: up || left.
You earn 1 point at the goal. A hole ends it."""
EXAMPLE = "up"
TOOLS = {"{moves}": "Move left, down, right or up, or up to five of these joined by ||: up || left"}


def family(task_id):
    return FAMILIES[task_id % 2]


# A cell is a number, row * SIZE + column.

def slide(cell, move):
    """The cell one step that way, or the same one at the edge."""
    row, column = cell // SIZE + MOVES[move][0], cell % SIZE + MOVES[move][1]
    return row * SIZE + column if row in range(SIZE) and column in range(SIZE) else cell


def outcomes(cell, move, slip):
    """[(probability, next cell)]: the way meant, then a quarter turn to either side of it."""
    ways = list(MOVES)
    turn = ways.index(move)
    return [(1 - slip, slide(cell, move)), (slip / 2, slide(cell, ways[turn - 1])),
            (slip / 2, slide(cell, ways[(turn + 1) % 4]))]


def expected(values, chances):
    """E[values[next cell]] over the outcomes of a move."""
    return sum(probability * values[cell] for probability, cell in chances)


def arrival(lake, slip, moves, choose=max):
    """table[k][cell]: the probability to be at the goal within k moves. `choose` turns the values
    of the four moves into one: max for the best player (value iteration), fmean for the random."""
    ways = {cell: [outcomes(cell, move, slip) for move in MOVES]
            for cell, symbol in enumerate(lake) if symbol == "_"}
    table = [[float(symbol == "G") for symbol in lake]]
    for _ in range(moves):
        values = table[-1]
        table.append([choose([expected(values, chances) for chances in ways[cell]])
                      if cell in ways else value for cell, value in enumerate(values)])
    return table


def level(task_id):
    """(lake, start): a string of SIZE * SIZE symbols "_", "O", "G", and a cell."""
    rng = random.Random(f"frozenlake {task_id}")
    while True:
        lake = ["_" if rng.random() < ICE else "O" for _ in range(SIZE * SIZE)]
        start, goal = rng.sample(range(SIZE * SIZE), 2)
        lake[start], lake[goal] = "_", "G"
        for_test = zlib.crc32(f"{lake} {start}".encode()) % 5 == 0
        if for_test == (task_id in TEST) and arrival(lake, 0.0, MAX_ACTIONS)[-1][start] == 1:
            return "".join(lake), start


class Env(envs.Base):
    def __init__(self, slip=None):
        if slip is not None and not 0 <= slip <= 1:
            raise ValueError(f"frozenlake: slip={slip} is no probability; it lies in 0..1")
        self.fixed_slip = slip      # None: the family's

    def start(self, task_id):
        self.lake, self.cell = level(task_id)
        self.slip = SLIP[family(task_id)] if self.fixed_slip is None else self.fixed_slip
        self.table = None           # the expert's, once it is asked
        self.aim, self.way = self.cell, None    # of `other_goal`: a cell, and its table
        self.actions_left = MAX_ACTIONS
        return self.observation()

    def observation(self):
        """The lake as text: P the player, X one in a hole, √ one at the goal."""
        cells = list(self.lake)
        cells[self.cell] = {"_": "P", "O": "X", "G": "√"}[self.lake[self.cell]]
        grid = "\n".join("".join(cells[row:row + SIZE]) for row in range(0, SIZE * SIZE, SIZE))
        ice = (f"slippery: {self.slip:.0%} of your moves slide off to one side." if self.slip
               else "not slippery: every move goes where you mean it to.")
        return f"{grid}\nThe ice is {ice}\nYou have {self.actions_left} actions left."

    def act(self, action):
        moves, well_formed = self.split_actions(action, MOVES)
        reward, note = (0.0, "") if well_formed else (-0.1, "Unknown words were left out.\n")
        if not moves:
            note = "No move found. Answer with left, down, right or up, or several joined by ||.\n"
        for move in moves[:self.actions_left]:
            chances, cells = zip(*outcomes(self.cell, move, self.slip))
            self.cell = self.luck.choices(cells, chances)[0]
            self.actions_left -= 1
            if self.lake[self.cell] != "_":
                break
        success = self.lake[self.cell] == "G"
        if success:
            reward, note = reward + 1, note + "You are at the goal!\n"
        elif self.lake[self.cell] == "O":
            note += "You fell into a hole.\n"
        done = self.lake[self.cell] != "_" or self.actions_left == 0
        info = {"success": success, "valid": well_formed, "score": float(success)}
        return note + self.observation(), reward, done, info

    def in_time(self, table, move):
        """Chances to arrive within all moves left, within one fewer, and so on: of moves with the
        same chance the faster one wins. Rounded, or rounding errors would decide."""
        return [round(expected(table[k], outcomes(self.cell, move, self.slip)), 9)
                for k in reversed(range(self.actions_left))]

    def expert(self):
        self.table = self.table or arrival(self.lake, self.slip, MAX_ACTIONS)
        move = max(MOVES, key=partial(self.in_time, self.table))
        row, column = (b - a for a, b in zip(divmod(self.cell, SIZE),
                                             divmod(self.lake.index("G"), SIZE)))
        side = " and ".join(f"{abs(n)} {words[n > 0]}" for n, words in
                            ((row, ("up", "down")), (column, ("left", "right"))) if n)
        return (f"The goal is {side} of me. With {self.actions_left} moves left, {move} reaches it "
                f"with probability {self.in_time(self.table, move)[0]:.2f}."), move

    def other_goal(self, rng):
        """Walks to a random cell of ice around holes and goal, then to another, and so on."""
        lake = self.lake.replace("G", "O")
        for _ in range(20):         # there may be no other cell that can be reached
            if self.aim != self.cell and self.way[-1][self.cell]:
                break
            self.aim = rng.choice([c for c, symbol in enumerate(lake) if symbol == "_"])
            self.way = arrival(lake[:self.aim] + "G" + lake[self.aim + 1:], self.slip, MAX_ACTIONS)
        return "I look around.", max(MOVES, key=partial(self.in_time, self.way))

    def random_action(self, rng):
        return rng.choice(list(MOVES))


def exact_success(task_id, policy, horizon=HORIZON, slip=None):
    """The probability of success, one move a turn, of the "random" player (uniform) or "expert"."""
    lake, start = level(task_id)
    slip = SLIP[family(task_id)] if slip is None else slip
    choose = {"random": fmean, "expert": max}[policy]
    return arrival(lake, slip, min(horizon, MAX_ACTIONS), choose)[-1][start]
