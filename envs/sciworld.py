"""sciworld: school science in a house of ten rooms, played in words by the genuine ScienceWorld.

    env:    Your task is to find a(n) non-living thing. First, focus on the thing. Then, move it to
            the red box in the kitchen.
            This room is called the hallway. In it, you see: ...
    agent:  open door to kitchen         env:  The door is now open.                    reward 8
    agent:  go to kitchen                env:  You move to the kitchen.                 reward 17
    agent:  focus on counter             env:  You focus on the counter.                reward 50
    agent:  move counter to red box      env:  You move the counter to the red box.     reward 25

The engine (arXiv:2203.07540, package `scienceworld`) is a Java program: `java` must be on the PATH.
Score: 0 to 100, or -100 after a focus on the wrong thing; the reward of a turn is the change of the
score. An episode ends when the task is done, when the score is negative, or after 100 moves or
turns: the engine counts no move for a look or nonsense, and 11 for `wait`. A name that fits several
things is answered by a numbered list; the next action is a number, anything else cancels. Task ids
follow AgentGym's list of 23 tasks (0..4638), then come the 7 that it leaves out; the split is the
engine's own. Alone among our environments, this one cannot repeat itself exactly: an id is one
world and one task, but things are listed in changing order, and animals and thermometers draw from
a generator that all games of the process share. A random player scores -64 +- 4 in 30 turns (150
test ids: 98 wrong focuses, no win); `expert`, the engine's own solution, won all of 78 test ids
outside LONG_FAMILIES within HORIZON, and 45 of 52 in AgentGym's other tasks within 100 moves.
"""
import atexit
import json
import os
import re
import tempfile
import threading
import weakref
from contextlib import ExitStack, contextmanager

import envs
from envs.parts.agentgym import Manner, read_last
from envs.parts.sciworld_prompt import RULES
from envs.parts.wires import Wire

TASKS = {   # name: variations; AgentGym's 23 in its order, then the 7 with the longest solutions
    "boil": 30, "melt": 30, "freeze": 30, "change-the-state-of-matter-of": 30,
    "use-thermometer": 540, "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300, "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20, "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600, "find-living-thing": 300,
    "find-non-living-thing": 300, "find-plant": 300, "find-animal": 300, "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36, "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125, "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125, "identify-life-stages-1": 14,
    "identify-life-stages-2": 10, "grow-plant": 126, "grow-fruit": 126,
    "inclined-plane-determine-angle": 168, "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162, "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480}
FAMILIES = tuple(TASKS)
LONG_FAMILIES = tuple(name for name in FAMILIES if not name.startswith(   # all but these
    ("use-", "power-", "find-", "lifespan-", "identify-life-stages-2")))
TINY = dict(families=",".join(name for name in FAMILIES if name not in LONG_FAMILIES),
            horizons=(15, 30), max_context=2048, clone=dict(n=500))
ORIGINAL = range(4639)      # the tasks that AgentGym's server has, too: those of its 23
NAME, HORIZON, SUCCESS, MOVE_LIMIT = "sciworld", 30, 100.0, 100
DETERMINISTIC = False
ENGINE = "ScienceWorld, in Java"
PARALLEL = True     # a step runs in Java, outside Python's lock: threads step several games at once

def split():
    """(train, dev, test) ids: of a task's n variations 2 * (n // 4), then n // 4, then the rest."""
    train, dev, test, start = [], [], [], 0
    for count in TASKS.values():
        quarter, end = count // 4, start + count
        train += range(start, start + 2 * quarter)
        dev += range(start + 2 * quarter, start + 3 * quarter)
        test += range(start + 3 * quarter, end)
        start = end
    return tuple(train), tuple(dev), tuple(test)

TRAIN, DEV, TEST = split()

PROMPT = """You are in a house with a laboratory and solve a task of school science, one command a
turn. Commands (X, Y: things you see or carry): look around, look at X, look in X, examine X, task,
inventory, open X, close X, go to ROOM, pick up X, put down X, move X to Y, pour X in Y, mix X,
dunk X in Y, use X on Y, activate X, deactivate X, connect X to Y, disconnect X, read X, eat X,
flush X, focus on X, wait (ten ticks), wait1 (one). Open a door before you go through. `focus on`
shows the examiner what you mean: a wrong focus can end the task with -100 points. If a name fits
several things, you get a numbered list: answer with the number alone. The score grows to 100."""
EXAMPLE = "look around"
TOOLS = {"{command}": "Give one command; or, when you were given a numbered list, the number."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(step="{observation reward score done}", reset="{task_name var_num task_description "
            "observation reward score deleted done}", look={"task_description": "task_description"})
AGENTGYM = Manner(RULES, read_last)
SET_SIZES = dict(agenttraj=1000, agenttraj_l=2120)
KEPT_ABOVE = 99     # AgentEvol learns from trajectories with a higher score

HOUSE = {"hallway": ("art studio", "bedroom", "greenhouse", "kitchen", "living room", "workshop"),
         "kitchen": ("bathroom", "hallway", "outside"), "greenhouse": ("hallway", "outside"),
         "outside": ("foundry", "greenhouse", "kitchen"), "art studio": ("hallway",),
         "bathroom": ("kitchen",), "bedroom": ("hallway",), "foundry": ("outside",),
         "living room": ("hallway",), "workshop": ("hallway",)}

REASONS = {   # why the expert does what starts so; {} is the rest of the action
    "open door to": "The door to{} may be shut, so I open it.",
    "go to": "The work goes on in another room, so I go to{}.",
    "look around": "I look around to see what is here now.",
    "pick up": "I will need it later, so I take{}.",
    "focus on": "This is what the task asks about, so I focus on{}.",
    "use thermometer": "I have to know how warm it is, so I measure.",
    "connect": "The circuit is not complete yet, so I connect{}.",
    "wait": "This takes time, so I wait.",
    "": "The next step towards that is to {}."}
MISSED = ("No known action", "Unknown action")   # how the answer to nonsense begins


class Java:
    """The one Java machine of this process, with all its games; it ends when the process does."""

    def __init__(self):
        try:
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from py4j.protocol import Py4JError
            from scienceworld.constants import JAR_PATH
        except ImportError:
            raise RuntimeError("sciworld: pip install scienceworld==1.2.3") from None
        # 2.5 GB at most: 0.6 MB for each of 4096 games, and the search for some solutions takes
        # hundreds. At a heap nearly full of games, resets take six times as long: it collects.
        try:
            self.folder = tempfile.TemporaryDirectory()     # the engine writes a file where it runs
            port, token, self.process = launch_gateway(
                classpath=os.path.abspath(JAR_PATH), javaopts=["-Xmx2500m", "-XX:+UseSerialGC"],
                java_path=None, die_on_exit=True, enable_auth=True, return_proc=True,
                cwd=self.folder.name)
        except (OSError, ValueError):
            raise RuntimeError("sciworld: no working `java` here; install a Java runtime "
                               "(Debian: apt install openjdk-17-jre-headless)") from None
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token))
        jvm = self.gateway.jvm
        jvm.System.setOut(jvm.java.io.PrintStream(os.devnull))   # the engine prints at each step
        self.new_game, self.error = jvm.scienceworld.runtime.pythonapi.PythonInterface, Py4JError
        self.free = []      # games of closed Envs: loading one again is cheaper than a new one
        self.owner, self.users = os.getpid(), 0
        self.door, self.left = threading.Lock(), threading.Condition()
        atexit.register(self.close)

    def close(self):
        if self.owner == os.getpid():               # not in a fork: the machine is its parent's
            self.gateway.shutdown()
            self.process.stdin.close()
            self.process.wait()

    def game(self):
        try:
            return self.free.pop()
        except IndexError:
            with self.using(alone=True):
                return self.new_game()

    @contextmanager
    def using(self, alone=False):
        """Hold this during every call to the engine. All its games share one random generator. A
        load seeds it to build its world, and a step beside it would change that world: a load, and
        the making of a game, must be alone."""
        with ExitStack() as entering:
            entering.enter_context(self.door)
            with self.left:
                self.left.wait_for(lambda: not alone or self.users == 0)
                self.users += 1
            if not alone:
                entering.close()                    # the door stands open again: steps run together
            try:
                yield
            except self.error as error:
                raise RuntimeError("sciworld: the Java engine failed; make a new Env") from error
            finally:
                with self.left:
                    self.users -= 1
                    self.left.notify_all()

    def load(self, game, task_id, solve=False):
        """Start a task; with `solve` the engine also searches a solution, 0.1 to 15 s: returned."""
        name, variation = locate(task_id)
        with self.using(alone=True):
            trouble = game.load(name, variation, "", solve)
            solution = list(game.getGoldActionSequence())
            getattr(game, "taskMaker_$eq")(None)    # a list of all tasks: 10 of the game's 11 MB
        if trouble:
            raise RuntimeError(f"sciworld: the engine refused {name} {variation}: {trouble}")
        return solution

_java, _starting = None, threading.Lock()

def java():
    """The machine of this process: started at the first call, and anew after a fork or a crash."""
    global _java
    with _starting:
        if _java is None or _java.owner != os.getpid() or _java.process.poll() is not None:
            _java = Java()
        return _java

def locate(task_id):
    """(name of the task, number of the variation)"""
    for name, count in TASKS.items():
        if task_id < count:
            return name, task_id
        task_id -= count

def family(task_id):
    return locate(task_id)[0]

def gold_path(task_id):
    """The engine's solution, less what it does not understand itself; kept in a cache folder.

    It differs from search to search. 3 of 744 failed, all in LONG_FAMILIES.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "nanoagentgym", "sciworld")
    file = os.path.join(folder, "{}-{}.json".format(*locate(task_id)))
    if os.path.exists(file):
        with open(file) as f:
            return json.load(f)
    machine, path = java(), []
    game = machine.game()
    for action in machine.load(game, task_id, solve=True):
        with machine.using():
            path += [action] * (not game.step(action).startswith(MISSED))
            if game.getCompleted():
                break
    machine.free.append(game)
    os.makedirs(folder, exist_ok=True)
    draft = f"{file}.{os.getpid()}.{threading.get_ident()}"   # renamed when whole: others read it
    with open(draft, "w") as f:
        json.dump(path, f)
    os.replace(draft, file)
    return path


class Env(envs.Base):
    def __init__(self, move_limit=MOVE_LIMIT):
        self.java, self.game, self.move_limit = java(), None, move_limit

    def start(self, task_id):
        self.task_name, self.var_num = locate(task_id)
        if self.game is None or self.java is not java():
            self.java = java()
            self.game = self.java.game()
            # given back by close, or when this Env is forgotten; at exit nobody needs it
            self.give_back = weakref.finalize(self, self.java.free.append, self.game)
            self.give_back.atexit = False
        self.java.load(self.game, task_id)
        with self.java.using():
            self.task_description = self.game.getTaskDescription()
            room = self.game.step("look around")
            self.score = round(100 * self.game.getScore())
        self.task_id, self.gold, self.turns = task_id, None, 0
        self.history, self.choices = [], 0     # (action, choices before it); length of the list
        self.first_room = self._place()[0]
        return f"{self.task_description}\n{room}"

    def act(self, action):
        action = action.encode("utf-8", "replace").decode().strip()[:1000]   # no half surrogates
        before = self.score
        with self.java.using():
            observation = self.game.step(action)   # the package's step lists all actions
            self.score = round(100 * self.game.getScore())
            completed, moves = self.game.getCompleted(), self.game.getNumMoves()
            if self.score < 0 and self.game.agentInterface().get().isInErrorState():
                raise RuntimeError(f"sciworld: the engine broke ({observation}); reset")
        self.history.append((action, self.choices))
        if action.lower() not in ("task", "help", "objects"):   # after these a question stays open
            asked = re.findall(r"^\d+:\t", observation, re.MULTILINE)
            self.choices = len(asked) if observation.startswith("Ambiguous request") else 0
        self.turns += 1
        done = completed or self.score < 0 or max(moves, self.turns) > self.move_limit
        info = {"success": self.score >= SUCCESS, "valid": not observation.startswith(MISSED),
                "score": float(self.score)}
        return observation, float(self.score - before), done, info

    def _place(self):
        """(room, {room next door: "open" or "closed"}); takes no move."""
        with self.java.using():
            text = self.game.freeActionLook()
        return (re.search(r" is called the (.+?)\.", text)[1],
                dict(re.findall(r"A door to the (.+?) \(that is (open|closed)\)", text)))

    def expert(self):
        """The next action of the engine's solution, wherever the player went in between.

        It goes back to the right room, opens doors, answers or cancels open questions. It does not
        undo what was done to things or the time lost where things grow, cool or burn: there it may
        fail.
        """
        if self.gold is None:
            self.gold = gold_path(self.task_id)
        gold = [*self.gold, "wait1"]
        at, ours = 0, False                             # the next of gold; was the last one gold?
        for action, choices in self.history:
            if choices and not action.isdigit():        # that cancelled the question: ask it again
                at, ours = at - ours, False
                continue
            while gold[at].isdigit() and not choices:   # asked when it was found, but not today
                at += 1
            ours = at < len(self.gold) and action == gold[at]
            at += ours
        goal = self.task_description.removeprefix("Your task is to ").split(". ")[0].rstrip(".")
        if self.choices and ours:
            right = gold[at].isdigit() and int(gold[at]) < self.choices
            return "The name fits several things; this one will do.", gold[at] if right else "0"
        if self.choices:
            return f"I have to {goal}. This question is no help; I drop it.", "cancel"
        while gold[at].isdigit():
            at += 1
        here, doors = self._place()
        there = ([self.first_room] + [a[6:] for a in gold[:at] if a.startswith("go to ")])[-1]
        if here != there:
            ways = [[here]]                             # breadth first: it grows as it is read
            way = next(way for way in ways if way[-1] == there or ways.extend(
                [*way, room] for room in HOUSE[way[-1]] if room not in way))
            action = f"open door to {way[1]}" if doors[way[1]] == "closed" else f"go to {way[1]}"
            return f"I have to {goal}. I should be in the {there}, so I {action}.", action
        start = next(start for start in REASONS if gold[at].startswith(start))
        return f"I have to {goal}. {REASONS[start].format(gold[at].removeprefix(start))}", gold[at]

    def random_action(self, rng):
        """A number when one is asked for, else a command of the engine with things in sight."""
        if self.choices:
            return str(rng.randrange(self.choices))
        with self.java.using():
            command = rng.choice(sorted(self.game.getPossibleActions()))
            things = sorted(self.game.getPossibleObjects())
        return re.sub("OBJ", lambda _: rng.choice(things), command)

    def close(self):
        if self.game is not None:
            self.give_back()
        self.game = self.done = None
