"""babyai: rooms, doors, keys and boxes on minigrid's own engine, seen and played in words.

    env:    Your goal: pick up the purple box
            In front of you in this room: yellow box 1, 1 right. You face a wall 1 ahead. You carry
            nothing.
            Available actions: ["turn left", "turn right", "pickup yellow box 1", ...]
    agent:  turn right
    env:    In front of you in this room: yellow box 1, 1 ahead; purple box 1, 1 ahead, 1 right; ...
    agent:  pickup purple box 1                    takes 3 grid steps
    env:    ... The task is completed.             reward 0.93

AgentGym's forty levels. World, rules and reward are minigrid's, the words are ours; one action of
the agent is a walk of several grid steps through the cells it sees. Reward: 1 - 0.9 * grid steps /
max_steps on success, else 0. An episode ends on success, at max_steps (36 to 2880), and in the two
strict levels (PickupDistDebug, OpenRedBlueDoorsDebug) on a forbidden action.
Task id: level = id % 40 + 1, episode = id // 40. The engine's seed is the episode's number, redrawn
until a checksum of mission, grid and agent puts the world on the task's side of the split, one
world in ten on TEST's. (OpenRedDoor has 105 worlds in all: its 20 test episodes share 13.)

Success in 20 turns on the 800 test tasks: expert 85% (30 turns: 93%; the one-room levels: all),
random player 36% (one-room: 73%). The expert never solves one in nine worlds of GoToImpUnlock and
Unlock: their only key lies in the room that it opens. `eval.py --env babyai --policy expert` tells
of each level.

Unlike AgentGym: a success ends the episode and the walk at once (there rewards below 0.5 added up);
missions keep "then" and "after you" (original_missions=True makes both "and"); boxes and open doors
can be toggled, so KeyInBox is solvable; GoToObjS6 is its -v1, really 6 wide; level 16 is
OpenDoorsOrderN4, whose Debug form fails if the first of its two doors is opened; shut doors block a
walk; there is no "go to" for what the agent faces already.
"""
import copy
import json
import math
import os
import random
import re
import zlib

import envs
from envs.parts.agentgym import Manner, read_line
from envs.parts.babyai_prompt import RULES
from envs.parts.wires import Wire

NAME, HORIZON = "babyai", 20
ENGINE = "minigrid"
TRAIN, TEST = range(40 * 200), range(40 * 200, 40 * 220)     # 200 and 20 episodes of each level
SUCCESS = 0.05          # any score above 0: the slowest success still has 1 - 0.9 = 0.1
FAMILIES = tuple("""
    GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7
    GoToImpUnlock GoToSeqS5R2 GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc
    OpenRedBlueDoorsDebug OpenDoorsOrderN4 Pickup UnblockPickup PickupLoc PickupDistDebug
    PickupAbove PutNextLocalS6N4 PutNextS7N4Carrying Unlock UnlockLocalDist KeyInBox
    UnlockPickupDist BlockedUnlockPickup UnlockToUnlock ActionObjDoor FindObjS7 KeyCorridorS6R3
    OneRoomS20 MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel
    BossLevelNoUnlock""".split())
# Here 20 turns are not always enough for the expert: walls hide the way, or it is long.
LONG_FAMILIES = tuple("""
    GoToObjMazeS7 GoToImpUnlock Open Pickup UnblockPickup PickupAbove Unlock UnlockLocalDist
    UnlockPickupDist BlockedUnlockPickup UnlockToUnlock FindObjS7 KeyCorridorS6R3 OneRoomS20
    MoveTwoAcrossS8N9 PutNextS7N4Carrying SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel
    BossLevelNoUnlock""".split())
# In these ten everything that matters is in the first, small room: a tiny policy can learn them.
ONE_ROOM = ("GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7",
            "GoToRedBlueBall", "OpenRedDoor", "OpenDoorLoc", "PickupLoc", "PickupDistDebug")
TINY = dict(families=",".join(ONE_ROOM), horizons=(3, 6), max_context=2048, steps=30,
            clone=dict(n=2000, skill=0.0, steps=500, width=96, lr=2e-3))
PROMPT = """\
You walk through a grid of rooms. You see six cells ahead and three to each side, not through \
walls or shut doors. Things are named by colour, kind and number, nearest first, with their \
distance in steps: "red ball 2, 3 ahead, 1 left". They are numbered anew every turn.
Actions:
turn left, turn right, move forward
go to THING: walk up to it and face it
pickup THING: walk up to it and take it; you can hold one thing
drop: put down what you hold on the free cell ahead
toggle: open or shut the door ahead, or open the box ahead
go through DOOR: an open one
toggle and go through DOOR: a closed one, or a locked one if you hold the key of its colour
check available actions
Reach the goal in few steps. Answer with one of the available actions, such as: go to red ball 1"""
EXAMPLE = "turn left"
TOOLS = {
    "turn left": "Turn left on the spot.", "turn right": "Turn right on the spot.",
    "move forward": "Walk one cell ahead.",
    "go to {thing}": 'Walk up to a thing, such as "red ball 1", and face it.',
    "pickup {thing}": "Walk up to a thing and take it; you can hold one.",
    "drop": "Put down what you hold on the free cell ahead.",
    "toggle": "Open or shut the door ahead, or open the box ahead.",
    "go through {door}": 'Go through an open door, such as "blue open door 1".',
    "toggle and go through {door}": 'Open a closed door, "red closed door 1", and go through, or a '
    "locked one if you hold the key of its colour.",
    "check available actions": "List what can be done here."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(reset="{observation reward score deleted done}",
            step="{observation reward score done}",
            look={"observation": "{observation reward score done deleted}"})
AGENTGYM = Manner(RULES, read_line)
SET_SIZES = dict(agenttraj=400, agenttraj_l=810)
KEPT_ABOVE = 0     # AgentEvol learns from trajectories with a higher score

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)     # minigrid's numbers
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))   # a step in direction 0 to 3; a right turn adds 1
START = (3, 6, 3)    # the agent in its view of 7 x 7 cells: bottom centre, looking up
MACRO = re.compile("(go to|pickup|go through|toggle and go through) (.+)")


def family(task_id):
    return FAMILIES[task_id % 40]


def make_engine(level):
    """minigrid's environment of that name, bare of gymnasium's wrappers."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        import minigrid.envs.babyai.core.roomgrid_level as generator
    except ImportError as error:
        raise RuntimeError("babyai plays on minigrid: pip install minigrid==3.2.0") from error
    generator.print = lambda *words: None     # it prints every layout that it rejects
    version = 1 if level == "GoToObjS6" else 0
    engine = gymnasium.make(f"BabyAI-{level}-v{version}", disable_env_checker=True).unwrapped
    engine.gen_obs = lambda: None     # its image costs 50 times as much as the grid step itself
    return engine


def world(engine):
    """Mission, agent and grid as text: what may not be both in TRAIN and in TEST."""
    return f"{engine.mission} {pose(engine)} {engine.grid.encode().tobytes().hex()}"


def fingerprint(task_id):
    env = Env()
    env.reset(task_id)
    return world(env._engine)


def pose(engine):
    return int(engine.agent_pos[0]), int(engine.agent_pos[1]), int(engine.agent_dir)


def situation(engine):
    """All that a grid step can change: pose, load, things, and for each open instruction whether
    its thing was in hand one step before, which is what minigrid looks at."""
    things = tuple((n, thing.encode()) for n, thing in enumerate(engine.grid.grid)
                   if thing and thing.type != "wall")
    load = engine.carrying and engine.carrying.encode()
    left = tuple(getattr(one, "preCarrying", None) is engine.carrying
                 for one in unfinished(engine.instrs))
    return pose(engine), load, things, left


def unfinished(instr):
    """The single instructions of a mission that are still open, in the order they must be done."""
    if not hasattr(instr, "instr_a"):
        return [instr]
    parts = [(instr.instr_a, instr.a_done), (instr.instr_b, instr.b_done)]
    if type(instr).__name__ == "AfterInstr":
        parts.reverse()
    return [one for part, done in parts if done != "success" for one in unfinished(part)]


def twin(engine):
    """A copy to try things on: what a grid step changes is its own, the rest is shared."""
    copied = copy.copy(engine)
    walls = {id(cell): cell for cell in engine.grid.grid if cell and cell.type == "wall"}
    copied.grid, copied.instrs, copied.carrying = copy.deepcopy(
        (engine.grid, engine.instrs, engine.carrying), {**walls, id(engine): copied})
    return copied


def play(engine, lows):
    """Take grid steps up to the first that changes nothing: (reward, ended, out of time)."""
    reward, ended, out_of_time, before = 0, False, False, situation(engine)
    for low in lows:
        _, reward, ended, out_of_time, _ = engine.step(low)
        if ended or out_of_time or before == (before := situation(engine)):
            break
    return float(reward), ended, out_of_time


def describe(thing):
    """Its colour, state and kind, "blue locked door": the name without the number."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    return f"{thing.color} {('open', 'closed', 'locked')[thing.encode()[2]]} door"


def can_toggle(thing, load):
    """Whether toggling it would change it; a locked door wants its key in the agent's hand."""
    if thing.type == "door" and thing.is_locked:
        return load is not None and (load.type, load.color) == ("key", thing.color)
    return thing.type in ("door", "box")


def routes(free):
    """All walks inside the view, shortest first: {(i, j, direction): grid steps}."""
    walks, queue = {START: []}, [START]
    for i, j, direction in queue:
        walk, (di, dj) = walks[i, j, direction], AHEAD[direction]
        for end, low in (((i + di, j + dj, direction), FORWARD),
                         ((i, j, (direction - 1) % 4), LEFT), ((i, j, (direction + 1) % 4), RIGHT)):
            if end not in walks and end[:2] in free:
                walks[end] = walk + [low]
                queue.append(end)
    return walks


class Stack(list):
    """The bot's list of subgoals: between two locked doors it would grow for ever."""

    def append(self, subgoal):
        if len(self) > 60:
            raise RecursionError("the bot's plan has no end")
        super().append(subgoal)


def bot_steps(engine, errand):
    """Grid steps of minigrid's BabyAIBot; the caller takes each before it asks for the next.

    The bot cannot begin with full hands, open boxes, or choose between two locked doors. An errand
    does this for it, before the mission: "drop", or the cell of a locked door or a box to open.
    """
    from minigrid.utils.baby_ai_bot import BabyAIBot, DropSubgoal, GoNextToSubgoal, OpenSubgoal

    bot, cells = BabyAIBot(engine), engine.grid.grid
    bot.stack = Stack()

    def pursue(*goals):     # the last one first
        bot.stack.extend(goals)
        while (low := bot.replan()) != DONE:
            yield int(low)

    if errand == "drop":
        bot._process_obs()
        yield from pursue(DropSubgoal(bot), GoNextToSubgoal(bot, bot._find_drop_pos()))
    elif errand is not None and cells[errand].type == "door":
        yield from pursue(OpenSubgoal(bot), GoNextToSubgoal(bot, cells[errand], reason="Open"))
    elif errand is not None:
        yield from pursue(GoNextToSubgoal(bot, (errand % engine.width, errand // engine.width)))
        yield TOGGLE
    for one in reversed(unfinished(engine.instrs)):
        bot._process_instr(one)
    yield from pursue()


class Env(envs.Base):
    def __init__(self, original_missions=False):
        self.original_missions = original_missions
        self._level, self._engine = FAMILIES[0], make_engine(FAMILIES[0])

    def start(self, task_id):
        if self._level != family(task_id):
            self._level, self._engine = family(task_id), make_engine(family(task_id))
        engine, seed = self._engine, task_id // 40
        engine.reset(seed=seed)
        while (zlib.crc32(world(engine).encode()) % 10 == 0) != (task_id in TEST):
            seed += 1_000_000     # beyond every episode's own number
            engine.reset(seed=seed)
        self.task_id, self.score, self._plan = task_id, 0.0, {}
        mission = engine.mission
        if self.original_missions:
            mission = mission.replace("then", "and").replace("after you", "and")
        return f"Your goal: {mission}\n{self._look()}"

    def _look(self):
        """The view as text. Also sets self.macros, the available actions: {action: grid steps}."""
        view, _ = self._engine.gen_obs_grid()     # unseen cells are None, so taken to be free
        cells = {(i, j): view.get(i, j) for j in range(7) for i in range(7)}
        cells[START[:2]] = None                   # there minigrid puts what the agent holds
        load, ahead = self._engine.carrying, cells[3, 5]
        walks = routes({place for place, cell in cells.items() if not cell or cell.can_overlap()})
        facing, onto = {}, {}                     # place: the first walk, which is a shortest
        for (i, j, direction), walk in walks.items():
            facing.setdefault((i + AHEAD[direction][0], j + AHEAD[direction][1]), walk)
            onto.setdefault((i, j), walk)
        near = sorted((6 - j + abs(i - 3), j, i) for (i, j), cell in cells.items()
                      if cell and cell.type != "wall")
        self._seen, numbers, go_to, pickup, through = {}, {}, {}, {}, {}
        for _, j, i in near:
            thing, walk = cells[i, j], facing.get((i, j))
            number = numbers[describe(thing)] = numbers.get(describe(thing), 0) + 1
            name = f"{describe(thing)} {number}"
            side = f"{abs(i - 3)} {'left' if i < 3 else 'right'}"
            self._seen[name] = thing, ", ".join([f"{6 - j} ahead"] * (j < 6) + [side] * (i != 3))
            if walk:
                go_to[f"go to {name}"] = walk
            if thing.type == "door" and thing.is_open and (i, j) in onto:
                through[f"go through {name}"] = onto[i, j]
            elif thing.type == "door" and can_toggle(thing, load) and walk is not None:
                through[f"toggle and go through {name}"] = [*walk, TOGGLE, FORWARD]
            elif thing.type != "door" and not load and walk is not None:
                pickup[f"pickup {name}"] = [*walk, PICKUP]
        self.macros = {
            "turn left": [LEFT], "turn right": [RIGHT],
            **({} if ahead and not ahead.can_overlap() else {"move forward": [FORWARD]}),
            **pickup, **({"drop": [DROP]} if load and not ahead else {}),
            **through, **({"toggle": [TOGGLE]} if ahead and can_toggle(ahead, load) else {}),
            **go_to, "check available actions": []}
        self._menu = f"Available actions: {json.dumps(list(self.macros))}"
        things = "; ".join(f"{name}, {where}" for name, (_, where) in self._seen.items())
        wall = next((f"You face a {cells[3, j].type} {6 - j} ahead. " for j in range(5, -1, -1)
                     if cells[3, j] and cells[3, j].type in ("wall", "box")), "")
        return (f"In front of you in this room: {things or 'nothing'}. {wall}"
                f"You carry {'a ' + describe(load) if load else 'nothing'}.\n{self._menu}")

    def act(self, action):
        action = re.sub("^pick up ", "pickup ", " ".join(action.lower().split()))
        if action not in self.macros:
            info = {"success": False, "valid": False, "score": self.score}
            return f"{self._refusal(action)}\n{self._menu}", 0.0, False, info
        reward, ended, out_of_time = play(self._engine, self.macros[action])
        done, self.score, text = ended or out_of_time, reward, self._look()
        if done:
            text += ("\nThe task is completed." if reward > 0 else
                     "\nThe task has failed." if ended else "\nThe time is up.")
        info = {"success": reward > 0, "valid": True, "score": reward}
        return text, reward, done, info

    def _refusal(self, action):
        """Why it is not among the available actions."""
        load, match = self._engine.carrying, MACRO.fullmatch(action)
        if not match:
            return {"drop": "The cell ahead is not free." if load else "You carry nothing.",
                    "move forward": "The cell ahead is not free.",
                    "toggle": "Nothing ahead can be toggled.",
                    }.get(action, "That is no action. Choose one of these, word by word.")
        verb, (thing, where) = match[1], self._seen.get(match[2], (None, None))
        if thing is None:
            return "You see nothing of that name from here."
        if verb == "pickup" and load:
            return f"Your hands are full: drop the {describe(load)} first."
        if thing.type == "door" and thing.is_locked and verb.endswith("through"):
            return f"It is locked: hold the {thing.color} key, then toggle and go through."
        if thing.type == "door" and not thing.is_open and verb == "go through":
            return "It is closed: toggle and go through it."
        return f"You cannot {verb} what is {where}: there is no free way, or nothing to do."

    def random_action(self, rng):
        """One of the available actions that do something, each as likely as the others."""
        return rng.choice([action for action, lows in self.macros.items() if lows])

    def expert(self):
        """Take the action that gets furthest along one recorded run of minigrid's bot. Asked anew
        every turn the bot does worse: it forgets what it has explored."""
        here = situation(self._engine)
        if here not in self._plan:
            self._plan = self._record()
        best, progress = None, self._plan[here]
        for action, lows in self.macros.items():
            trial = twin(self._engine)
            success = play(trial, lows)[0] > 0
            reached = math.inf if success else self._plan.get(situation(trial), -1)
            if reached > progress:
                best, progress = action, reached
        if best is None:
            rng = random.Random(f"{self.task_id} {self._engine.step_count}")
            return "I see no way, so I try something.", self.random_action(rng)
        return self._thought(best), best

    def _record(self):
        """{situation: grid steps} of the bot's run from here, or the longest it got."""
        longest, shut = {}, [
            n for n, cell in enumerate(self._engine.grid.grid) if cell and (
                cell.type == "door" and cell.is_locked or cell.type == "box" and
                (cell.contains or getattr(self._engine.instrs, "strict", False)))]
        for errand in (None, *["drop"] * bool(self._engine.carrying), *shut):
            engine = twin(self._engine)
            plan = {situation(engine): 0}
            try:
                for count, low in enumerate(bot_steps(engine, errand), 1):
                    _, reward, ended, out_of_time, _ = engine.step(low)
                    if reward > 0 or out_of_time:
                        return plan
                    if ended:     # in a strict level it took what stood in the way
                        break
                    plan[situation(engine)] = count
            except (AssertionError, RecursionError, TypeError):
                pass    # the bot fails: nothing left to explore, an endless plan, no place to drop
            longest = max(longest, plan, key=len)
        return longest

    def _thought(self, action):
        """The part of the mission at hand, then what is seen of the thing acted on."""
        task, match = unfinished(self._engine.instrs)[0], MACRO.fullmatch(action)
        names = [" ".join(filter(None, ["the", desc.color, desc.type or "object"]))
                 for desc in vars(task).values() if hasattr(desc, "obj_set")]
        wish = {"GoToInstr": "go to", "OpenInstr": "open", "PickupInstr": "pick up",
                "PutNextInstr": "put"}[type(task).__name__] + " " + " next to ".join(names)
        seen = f"The {match[2]} is {self._seen[match[2]][1]}, so" if match else "For that"
        return f"I have to {wish}. {seen} I {action.replace('pickup', 'pick up')}."

    def close(self):
        self._level = self.done = None
