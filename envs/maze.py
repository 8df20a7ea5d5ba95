"""maze: find the goal in the dark, one square a move; after LMRL-Gym and AgentGym.

    env:    The goal is at position 8, 6. Your current position is at position 6, 6. There are
            walls to your right, to your left.
    agent:  move down                             reward 0
    env:    The goal is at position 8, 6. Your current position is at position 7, 6. There are ...
    agent:  move down                             reward 1
    env:    Success

A position is row, column; rows count downward, so "move down" adds one to the row. A move into a
wall, or any other text, moves nobody. The move after the 50th is not made: it
is answered "Failure", reward -1, done. Env(view="partial") tells the walls and the moves made so
far instead of the two positions.

Tasks 0..25 are the original's games, all in one map, the double T, each from another square; 25
would start on the goal and is refused, as in the original. Starts in the left bar and the stem are
in TRAIN, starts in the right bar in TEST. From 26 on each task draws a maze, of 7x7 to
13x13 squares; no maze of TRAIN is in TEST.

Success on TEST in 15 turns: a random player 2.5% ("double-t" 1.8%, "random" 2.6%), the expert, who
sees the map, 100%. The agent can learn the double T by heart, but must explore the other mazes:
depth-first search without the map, towards the goal first, succeeds in 68% of them.
"""
import functools
import random
import zlib

import envs
from envs.parts.agentgym import Manner, read_first
from envs.parts.maze_prompt import RULES, first
from envs.parts.wires import Wire

NAME, HORIZON = "maze", 15
LEFT, RIGHT = (*range(0, 5), *range(10, 19)), (*range(5, 10), *range(19, 25))
TRAIN, TEST = LEFT + tuple(range(26, 826)), RIGHT + tuple(range(826, 1026))
ORIGINAL = range(25)    # the tasks that AgentGym's server has, too
SUCCESS = 1.0
FAMILIES = ("double-t", "random")
ONE_WORD = (r"The goal is at position|\. Your current position is at position|\. There .*|"
            r"move \w+")
TINY = dict(horizons=(15,), steps=40, clone=dict(steps=450, skill=0.7, lr=2e-3))
PROMPT = """You are in a maze of square cells and walk to a goal. Each turn you may make one move:
"move up", "move down", "move left" or "move right". A position is given as row, column. "move down"
adds 1 to the row and "move up" takes 1 away; "move right" adds 1 to the column and "move left"
takes 1 away. Each time you are told which of the four cells around you are walls; a move into a
wall leaves you where you are, and so does any other text. One way leads to the goal without turning
back, perhaps away from it at first; remember dead ends. At the goal you read "Success"; after 50
moves it is "Failure". Make one move a turn."""
EXAMPLE = "move up"

MOVES = {"move left": (0, -1), "move right": (0, 1), "move up": (-1, 0), "move down": (1, 0)}
ACTIONS = tuple(MOVES)
TOOLS = {"move {direction}": "Move one cell: left, right, up or down."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(task_key="game", reset="{observation}", look={"available_actions": "ACTIONS"})
AGENTGYM = Manner(RULES, read_first, first, rules_first=True)
SET_SIZES = dict(agenttraj=100, agenttraj_l=215)
SIDES = {"move right": "to your right", "move left": "to your left", "move up": "above you",
         "move down": "below you"}      # in the order the walls are told
MAX_MOVES = 50
SHORTEST, LONGEST = 4, 15       # of the ways from start to goal in a carved maze

DOUBLE_T = """
    #############
    #.....#.....#
    ###.#####.###
    ###.#####.###
    ###.#####.###
    ###.......###
    ######.######
    ######.######
    ######.######
    #############""".split()
STARTS = (*((1, column) for column in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)), (2, 3), (3, 3), (4, 3),
          (5, 3), (5, 4), (5, 5), (5, 6), (6, 6), (7, 6), (5, 7), (5, 8), (5, 9), (4, 9), (3, 9),
          (2, 9), (8, 6))       # of the games 0..25; the last is the goal


def family(task_id):
    return "double-t" if task_id < len(STARTS) else "random"


def carve(rng):
    """A maze as strings of "#" and ".": a depth-first walk over the cells at odd coordinates. It
    digs on to a random cell not yet visited, two squares away, or else turns back."""
    height, width = rng.choice((7, 9, 11, 13)), rng.choice((7, 9, 11, 13))
    grid = [["#"] * width for _ in range(height)]
    path = [(1, 1)]
    grid[1][1] = "."
    while path:
        row, column = path[-1]
        ways = [(down, right) for down, right in MOVES.values()
                if 0 < row + 2 * down < height and 0 < column + 2 * right < width
                and grid[row + 2 * down][column + 2 * right] == "#"]
        if not ways:
            path.pop()
            continue
        down, right = rng.choice(ways)
        grid[row + down][column + right] = grid[row + 2 * down][column + 2 * right] = "."
        path.append((row + 2 * down, column + 2 * right))
    return ["".join(line) for line in grid]


def moved(grid, cell, action):
    """The cell after one of ACTIONS: the same cell if a wall is in the way."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    return (row, column) if grid[row][column] == "." else cell


def distances(grid, goal):
    """{cell: moves from there to the goal}, breadth first."""
    to_goal, queue = {goal: 0}, [goal]
    for cell in queue:
        for action in ACTIONS:
            if (neighbour := moved(grid, cell, action)) not in to_goal:
                to_goal[neighbour] = to_goal[cell] + 1
                queue.append(neighbour)
    return to_goal


@functools.lru_cache(maxsize=1024)
def world(task_id):
    """(grid, start, goal, distances to the goal) of a task."""
    if family(task_id) == "double-t":
        return DOUBLE_T, STARTS[task_id], STARTS[-1], distances(DOUBLE_T, STARTS[-1])
    rng = random.Random(f"maze {task_id}")
    grid = carve(rng)       # every fifth map, by its checksum, belongs to TEST
    while (zlib.crc32("\n".join(grid).encode()) % 5 == 0) != (task_id in TEST):
        grid = carve(rng)
    open_cells = [(row, column) for row, line in enumerate(grid)
                  for column, square in enumerate(line) if square == "."]
    goal = rng.choice(open_cells)
    to_goal = distances(grid, goal)
    start = rng.choice([cell for cell in open_cells if SHORTEST <= to_goal[cell] <= LONGEST])
    return grid, start, goal, to_goal


def fingerprint(task_id):
    grid, start, goal, _ = world(task_id)
    return "\n".join([*grid, f"{start} -> {goal}"])


class Env(envs.Base):
    def __init__(self, view="full"):
        if view not in ("full", "partial"):
            raise ValueError(f"maze: no view {view!r}; views are full and partial")
        self.view = view

    def start(self, task_id):
        if task_id == 25:
            raise ValueError(f"maze: no task 25; tasks are 0..{TEST[-1]} without 25, which would "
                             "start on the goal")
        self.grid, self.cell, self.goal, self.to_goal = world(task_id)
        self.turns, self.history, self.aim = 0, [], None
        return self.look()

    def look(self):
        """What the player sees: the walls, and unless the view is partial goal and position."""
        walls = [side for action, side in SIDES.items()
                 if moved(self.grid, self.cell, action) == self.cell]
        noun = "is a wall" if len(walls) == 1 else "are walls"
        seen = f"There {noun} {', '.join(walls)}." if walls else "There are no walls near you."
        if self.view == "partial":
            return f"{seen} Your moves so far: {', '.join(self.history) or 'none'}."
        return (f"The goal is at position {self.goal[0]}, {self.goal[1]}. Your current position is "
                f"at position {self.cell[0]}, {self.cell[1]}. {seen}")

    def act(self, action):
        action = " ".join(action.lower().split())
        self.turns += 1
        reward = 0.0
        if self.turns > MAX_MOVES:
            reward = -1.0
        elif action in MOVES:
            self.history.append(action)
            self.cell = moved(self.grid, self.cell, action)
            reward = float(self.cell == self.goal)
        observation = "Success" if reward > 0 else "Failure" if reward < 0 else self.look()
        info = {"success": reward == 1, "valid": action in MOVES, "score": reward}
        return observation, reward, reward != 0, info

    def expert(self):
        action = min(ACTIONS, key=lambda action: self.to_goal[moved(self.grid, self.cell, action)])
        left = self.to_goal[self.cell]
        here = "" if self.view == "partial" else f"I am at {self.cell[0]}, {self.cell[1]}. "
        return (f"{here}The goal is {left} move{'s' * (left != 1)} away, and the way there begins "
                f"with {action!r}.", action)

    def other_goal(self, rng):
        """Walks to a random square of the maze, then to another, and so on."""
        if self.aim in (None, self.cell):
            self.aim = rng.choice(sorted({*self.to_goal} - {self.cell, self.goal}))
            self.to_aim = distances(self.grid, self.aim)
        return (f"I would like to see {self.aim[0]}, {self.aim[1]}.",
                min(ACTIONS, key=lambda action: self.to_aim[moved(self.grid, self.cell, action)]))

    def random_action(self, rng):
        return rng.choice(ACTIONS)


def exact_success(task_id, policy, horizon=HORIZON):
    """The probability of reaching the goal in `horizon` moves. "random" draws each of the four
    moves alike, also into walls; "expert" walks the shortest way."""
    grid, start, goal, to_goal = world(task_id)
    turns = min(horizon, MAX_MOVES)
    if policy == "expert":
        return float(to_goal[start] <= turns)
    if policy != "random":
        raise ValueError(f"maze: no policy {policy!r}; policies are random and expert")
    arrived, chance = 0.0, {start: 1.0}       # chance: of standing on a cell, not yet arrived
    for _ in range(turns):
        chance_after = dict.fromkeys(to_goal, 0.0)
        for cell, p in chance.items():
            for action in ACTIONS:
                chance_after[moved(grid, cell, action)] += p / len(ACTIONS)
        arrived += chance_after.pop(goal)
        chance = chance_after
    return arrived
