"""sokoban: push every box onto a target, in ten moves; after RAGEN (arXiv:2504.20073).

    env:    ######
            #__###      # wall   _ floor   O target   X box   √ box on a target
            #PX_##      P player   S player standing on a target
            #_O_##
            #___##
            ######
            You have 10 actions left.
    agent:  up || right                     reward -0.2: 0.1 for each move
    env:    ... (the player now stands above the box)
            You have 8 actions left.
    agent:  down                            reward 10.9: -0.1, +1 for the target, +10 for the room

Actions: up, down, left, right; up to five in one reply, joined by "||". Walking into a wall or an
immovable box changes nothing and costs a move. Reward: -0.1 a move, +1 (-1) for a box pushed onto
(off) a target, +10 when solved, -0.1 for a reply with a missing or an unknown action. Families:
6x6 with one box, 8x8 with two. The best solution has 3 to 10 moves, `env.shortest`; TRAIN and TEST
share no room. Success on TEST with one move a turn: random 4.4% of 6x6 and 2.9% of 8x8, the expert
all. (Random on levels of RAGEN's own generator: 19% and 2.5%; a third of its small levels needs one
or two moves only.)
"""
import math
import random
import zlib

import envs

NAME, HORIZON = "sokoban", 10
TRAIN, TEST = range(0, 8000), range(8000, 10000)
SUCCESS = 1.0                               # of the score, the share of boxes on targets
FAMILIES = ("6x6", "8x8")
MAX_ACTIONS = 10                            # in one episode
SHORTEST, LONGEST = 3, 10                   # moves of the best solution
ONE_WORD = r"^#.*\n?|^You have .*"       # a row of the grid, and what is said below it
# Rooms of 8x8 have more different rows than a tiny policy has tokens.
TINY = dict(families="6x6", horizons=(10,), steps=80,
            clone=dict(goal="other", skill=0.9, steps=900, lr=2e-3))
PROMPT = """You are playing Sokoban. Push every box onto a target by walking into it. You can push
one box at a time and never pull, so a box in a corner is lost.
The grid: # wall, _ floor, O target, X box, √ box on a target, P you, S you on a target.
Answer with up, down, left or right, or with up to five of these joined by ||, as in: up || left.
Every move costs 0.1 point, a box on a target earns 1, the solved room 10."""
EXAMPLE = "up"
TOOLS = {"{moves}": "Move up, down, left or right, or up to five of these joined by ||: up || left"}


def family(task_id):
    return FAMILIES[task_id % 2]


# A cell is a number, row * size + column, and a move adds to it; the rim of a room is wall.

def moves_of(size):
    return {"up": -size, "down": size, "left": -1, "right": 1}


def carve(size, n_cells, rng):
    """The floor of a room: the cells that a random walk through the rock has passed."""
    rock = [size * row + column for row in range(1, size - 1) for column in range(1, size - 1)]
    steps = list(moves_of(size).values())
    cell = rng.choice(rock)
    floor = {cell}
    while len(floor) < n_cells:
        step = rng.choice(steps)
        if cell + step in rock:
            cell += step
            floor.add(cell)
    return floor


def play(floor, player, boxes, step):
    """(player, boxes) after one move; the same when a wall or a second box is in the way."""
    cell, beyond = player + step, player + 2 * step
    if cell in boxes and beyond in floor and beyond not in boxes:
        return cell, boxes - {cell} | {beyond}
    return (cell if cell in floor and cell not in boxes else player), boxes


def moves_to_go(size, floor, targets, most=None):
    """{(player, boxes): moves to the solution}, by breadth-first search backwards from the solved
    room: the player steps back and may pull the box in front. A state that is missing cannot be
    solved, or not in `most` moves."""
    table = {(player, targets): 0 for player in sorted(floor - targets)}
    queue = list(table)
    for player, boxes in queue:             # breadth first: the queue grows as it is read
        moves = table[player, boxes] + 1
        if most is not None and moves > most:
            break
        for step in moves_of(size).values():
            origin, faced = player - step, player + step
            if origin not in floor or origin in boxes:
                continue
            earlier = [(origin, boxes)]
            if faced in boxes:
                earlier.append((origin, boxes - {faced} | {player}))
            for state in earlier:
                if state not in table:
                    table[state] = moves
                    queue.append(state)
    return table


def draw(size, floor, targets, player=None, boxes=()):
    """The grid as text."""
    symbols = ["#"] * size * size
    for cell in floor:
        on_target = cell in targets
        symbols[cell] = ("_O" if cell not in boxes else "X√")[on_target]
        if cell == player:
            symbols[cell] = "PS"[on_target]
    return "\n".join("".join(symbols[start:start + size]) for start in range(0, size * size, size))


def level(task_id):
    """(size, floor, targets, player, boxes, moves of the best solution). Rooms are drawn until one
    belongs to the task's split and has a start at the wanted distance from its solution."""
    rng = random.Random(f"sokoban {task_id}")
    size, n_boxes, n_cells = {"6x6": (6, 1, (10, 14)), "8x8": (8, 2, (18, 26))}[family(task_id)]
    # The lower of two draws: without easy levels a beginner would never win, and so never learn.
    shortest = min(rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST))
    while True:
        floor = carve(size, rng.randint(*n_cells), rng)
        targets = frozenset(rng.sample(sorted(floor), n_boxes))
        for_test = zlib.crc32(draw(size, floor, targets).encode()) % 5 == 0
        if for_test == (task_id in TEST):
            table = moves_to_go(size, floor, targets, most=shortest)
            starts = [(player, boxes) for (player, boxes), moves in table.items()
                      if moves == shortest and not boxes & targets]
            if starts:
                return size, floor, targets, *rng.choice(starts), shortest


class Env(envs.Base):
    def start(self, task_id):
        (self.size, self.floor, self.targets,
         self.player, self.boxes, self.shortest) = level(task_id)
        self.moves, self.table, self.way = moves_of(self.size), None, {}
        self.actions_left = MAX_ACTIONS
        return self.observation()

    def observation(self):
        return (draw(self.size, self.floor, self.targets, self.player, self.boxes)
                + f"\nYou have {self.actions_left} actions left.")

    def act(self, action):
        moves, well_formed = self.split_actions(action, self.moves)
        reward, note = (0.0, "") if well_formed else (-0.1, "Unknown words were left out.\n")
        if not moves:
            note = "No move found. Answer with up, down, left or right, or several joined by ||.\n"
        for move in moves[:self.actions_left]:
            before = len(self.boxes & self.targets)
            self.player, self.boxes = play(self.floor, self.player, self.boxes, self.moves[move])
            self.actions_left -= 1
            reward += len(self.boxes & self.targets) - before - 0.1
            if self.boxes == self.targets:
                reward, note = reward + 10, note + "Solved!\n"
                break
        score = len(self.boxes & self.targets) / len(self.targets)
        done = score == 1 or self.actions_left == 0
        info = {"success": score == 1, "valid": well_formed, "score": score}
        return note + self.observation(), reward, done, info

    def expert(self):
        self.table = self.table or moves_to_go(self.size, self.floor, self.targets)
        futures = {move: play(self.floor, self.player, self.boxes, step)
                   for move, step in self.moves.items()}
        walks = [move for move, (_, boxes) in futures.items() if boxes == self.boxes]
        if (self.player, self.boxes) not in self.table:
            return "A box is stuck for good, so I just avoid making it worse.", walks[0]
        move = min(futures, key=lambda move: self.table.get(futures[move], float("inf")))
        plan = f"Moves still needed: {self.table[self.player, self.boxes]}."
        if move in walks:
            return f"{plan} I walk {move} to get to the right side of a box.", move
        return f"{plan} I stand right behind a box, so I push it {move}.", move

    def other_goal(self, rng):
        """Pushes the boxes to random cells of the floor, then to others, and so on."""
        here = self.player, self.boxes
        for _ in range(20):         # a box may be stuck
            if self.way.get(here):
                break
            aims = frozenset(rng.sample(sorted(self.floor - self.targets), len(self.boxes)))
            self.way = moves_to_go(self.size, self.floor, aims)
        futures = {move: play(self.floor, *here, step) for move, step in self.moves.items()}
        return "I move a box.", min(futures, key=lambda move: self.way.get(futures[move], math.inf))

    def random_action(self, rng):
        return rng.choice(list(self.moves))


def exact_success(task_id, policy, horizon=HORIZON):
    """The probability of success, one move a turn. "expert": 1 if the best solution fits. "random",
    uniform over the four moves: the distribution over states is pushed forward, turn by turn."""
    size, floor, targets, player, boxes, shortest = level(task_id)
    turns = min(horizon, MAX_ACTIONS)
    if policy == "expert":
        return float(shortest <= turns)
    solved, chances = 0.0, {(player, boxes): 1.0}
    for _ in range(turns):
        after = {}
        for (player, boxes), chance in chances.items():
            for step in moves_of(size).values():
                state = play(floor, player, boxes, step)
                after[state] = after.get(state, 0.0) + chance / 4
        solved += sum(chance for (_, boxes), chance in after.items() if boxes == targets)
        chances = {state: chance for state, chance in after.items() if state[1] != targets}
    return solved
