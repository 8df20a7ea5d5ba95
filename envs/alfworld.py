"""alfworld: household chores in text. Find a thing, clean, heat or cool it, bring it somewhere.

    env:    You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a
            cabinet 2, [...] a shelf 1, a sinkbasin 1, [...] and a toaster 1.
            Your task is to: put a winebottle in cabinet.                              (task 44)
            AVAILABLE ACTIONS: examine [...],go to fridge 1,[...],help,inventory,look
    agent:  go to fridge 1
    env:    The fridge 1 is closed.
    agent:  take winebottle 1 from fridge 1
    env:    Nothing happens.
    agent:  open fridge 1
    env:    You open the fridge 1. The fridge 1 is open. In it, you see a egg 1, a winebottle 1, and
            a winebottle 2.
    agent:  take winebottle 1 from fridge 1
    env:    You pick up the winebottle 1 from the fridge 1.
    [...]
    agent:  put winebottle 1 in/on cabinet 1
    env:    You put the winebottle 1 in/on the cabinet 1.                        reward 1, done

Rules, commands, replies and task sentences are those of ALFWorld 0.3.3 (arXiv:2010.03768), with the
first observation put together as AgentGym's client shows it; "move X to Y" of newer versions is
understood too. The houses are our own: 12 to 25 receptacles, six families of tasks in AgentGym's
numbers. Reward 1 on the turn that fulfils the task, else 0; the episode ends then or after 50
turns. A random player fulfils 0.1% of the train tasks in 30 turns; `expert`, who looks into likely
places first, all of them, in 9 turns on average and 29 at most. `Env(backend="alfworld")` plays the
same houses on the genuine engine (`pip install alfworld`) and gets the same replies, but the engine
also lets one slice things behind a closed door.
"""
import os
import random
import re
import tempfile
import threading
import zlib
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import envs
from envs.parts.agentgym import Manner, read_last
from envs.parts.alfworld_prompt import RULES
from envs.parts.alfworld_rooms import ROOMS, PLACES
from envs.parts.wires import Wire

NAME, HORIZON, SUCCESS = "alfworld", 30, 1.0
TRAIN, TEST = range(0, 2420), range(2420, 2620)
TINY = dict(horizons=(15, 30), max_context=1536)
COMMANDS = """go to R; open R; close R; take O from R; put O in/on R; heat O with R; cool O with R;
clean O with R; slice O with O; use O; examine O or R; look; inventory; help"""
PROMPT = f"""You are in a room of a house and have one task to fulfil there. Things lie in or on
receptacles; both carry numbers: mug 1, cabinet 2. A closed receptacle shows its contents when it is
opened. You can carry one thing. Write one command each turn (O: a thing, R: a receptacle):
{COMMANDS}.
Heating takes a microwave, cooling a fridge, cleaning a sinkbasin, each with the thing in your hand.
To look at a thing by the light of a lamp, carry it to the lamp and use the lamp.
"Nothing happens." means that this cannot be done here and now."""
EXAMPLE = "go to cabinet 1"
TOOLS = {
    "go to {receptacle}": 'Walk to a receptacle, such as "cabinet 2".',
    "open {receptacle}": "Open the receptacle you stand at; you then see what is in it.",
    "close {receptacle}": "Close the receptacle you stand at.",
    "take {thing} from {receptacle}": 'Pick up a thing, such as "mug 1"; you can carry one.',
    "put {thing} in/on {receptacle}": "Put what you carry in or on the receptacle you stand at.",
    "heat {thing} with {receptacle}": "Heat what you carry with a microwave.",
    "cool {thing} with {receptacle}": "Cool what you carry with a fridge.",
    "clean {thing} with {receptacle}": "Clean what you carry with a sinkbasin.",
    "slice {thing} with {knife}": "Slice a thing with the knife you carry.",
    "use {lamp}": "Turn on the lamp where you stand.",
    "examine {name}": "Look closely at what you carry or at the receptacle you stand at.",
    "look": "See what you are facing.", "inventory": "See what you carry.",
    "help": "List the commands."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(task_key="game", reset="{id observation available_actions task_type}",
            step="{observation reward available_actions done}",
            look={"available_actions": "available_actions"})
AGENTGYM = Manner(RULES, read_last)
SET_SIZES = dict(agenttraj=500, agenttraj_l=2420)

# Tasks of each family among the train and the test ids: AgentGym's numbers.
COUNTS = {"pick_and_place_simple": (672, 46), "look_at_obj_in_light": (196, 19),
          "pick_clean_then_place_in_recep": (448, 37), "pick_heat_then_place_in_recep": (321, 25),
          "pick_cool_then_place_in_recep": (394, 28), "pick_two_obj_and_place": (389, 45)}
FAMILIES = SIMPLE, LIGHT, CLEAN, HEAT, COOL, TWO = tuple(COUNTS)
# Each family is spread evenly over its split: any 20 ids in a row hold all six.
FAMILY_OF = [name for split in (0, 1) for _, name in sorted(
    ((i + 0.5) / n[split], name) for name, n in COUNTS.items() for i in range(n[split]))]

ROOMS_OF = {LIGHT: ["livingroom", "bedroom"], CLEAN: ["kitchen", "bathroom"],
            HEAT: ["kitchen"], COOL: ["kitchen"]}   # the other families: any room


LAMP, KNIVES = "desklamp", ("knife", "butterknife")   # a lamp cannot be carried
OPENABLE = {"cabinet", "drawer", "fridge", "microwave", "safe"}
SLICEABLE = {"apple", "bread", "egg", "lettuce", "potato", "tomato"}
TREATMENTS = {   # verb -> the receptacle it takes, the state it gives, the things it works on
    "clean": ("sinkbasin", "clean", "apple bowl butterknife cloth cup dishsponge egg fork kettle "
              "knife ladle lettuce mug pan plate pot potato soapbar spatula spoon tomato".split()),
    "heat": ("microwave", "hot", "apple bread cup egg mug plate potato tomato".split()),
    "cool": ("fridge", "cool", "apple bowl bread cup egg lettuce mug pan plate pot potato tomato "
             "winebottle".split())}
VERB = {CLEAN: "clean", HEAT: "heat", COOL: "cool"}
SENTENCES = {   # ALFWorld's (table 7 of its paper)
    SIMPLE: ("put a {o} in {r}", "put some {o} on {r}"),
    LIGHT: ("look at {o} under the {r}", "examine the {o} with the {r}"),
    CLEAN: ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    HEAT: ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
    COOL: ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
    TWO: ("put two {o} in {r}", "find two {o} and put them in {r}")}


def family(task_id):
    return FAMILY_OF[task_id]


class House(NamedTuple):
    family: str
    thing: str            # the kind of thing the task asks for: "mug"
    place: str            # the kind of receptacle to bring it to, or "desklamp"
    sentence: str         # the task in words
    receptacles: list     # ["cabinet 1", "cabinet 2", ...]
    where: dict           # "mug 1" -> "cabinet 2", at the start


def kind(name):
    return name.split()[0]


def numbered(kinds):
    """["mug", "cup", "mug"] -> ["cup 1", "mug 1", "mug 2"]"""
    return [f"{k} {n}" for k in sorted(set(kinds)) for n in range(1, kinds.count(k) + 1)]


def draw(family, rng):
    """A furnished room and a task; nothing of the kind asked for lies where it is to go."""
    room = rng.choice(ROOMS_OF.get(family, list(ROOMS)))
    furniture, things = ROOMS[room][0], ROOMS[room][1].split()
    receptacles = numbered([k for k, low, high in re.findall(r"(\w+) (\d)-(\d)", furniture)
                            for _ in range(rng.randint(int(low), int(high)))])
    standing = {kind(r) for r in receptacles}
    places = {o: [p for p in PLACES[o] if p in standing] for o in [*things, LAMP]}
    tool, _, treatable = TREATMENTS[VERB[family]] if family in VERB else (None, None, things)
    thing = rng.choice([o for o in things if o in treatable and len(set(places[o]) - {tool}) > 1])
    place = LAMP if family == LIGHT else rng.choice([p for p in places[thing] if p != tool])

    kinds = [thing] * (rng.randint(2, 3) if family == TWO else rng.randint(1, 2))
    kinds += rng.choices([o for o in things if o != thing], k=rng.randint(8, 18))
    kinds += [LAMP] * (room in ROOMS_OF[LIGHT])
    where = {}
    for name in numbered(kinds):
        options = [p for p in places[kind(name)] if (kind(name), p) != (thing, place)]
        chosen = rng.choices(options, [1 / (rank + 1) for rank in range(len(options))])[0]
        where[name] = rng.choice([r for r in receptacles if kind(r) == chosen])
    sentence = rng.choice(SENTENCES[family]).format(o=thing, r=place)
    return House(family, thing, place, sentence, receptacles, where)


@lru_cache(maxsize=4096)   # the members of a group share their house
def build(task_id, family):
    """The house of a task, drawn until the expert is in time and a checksum of its contents puts it
    on the task's side of the split: one house in ten belongs to TEST."""
    for attempt in count():
        house = draw(family, random.Random(f"alfworld {task_id} {attempt}"))
        checksum = zlib.crc32(repr((house[:3], house[4:])).encode())
        if (checksum % 10 == 0) == (task_id in TEST) and expert_turns(house) <= HORIZON:
            return house


def expert_turns(house):
    env = Env(limit=HORIZON + 1)
    env.enter(house)
    while not env.done:
        env.step(env.expert()[1])
    return env.turns


def listed(names):
    """["cup 1", "mug 1"] -> "a cup 1, and a mug 1", as the engine says it; [] -> "nothing"."""
    if len(names) < 2:
        return f"a {names[0]}" if names else "nothing"
    return ", ".join(f"a {name}" for name in names[:-1]) + f", and a {names[-1]}"


def canonical(action):
    """The wording of `available_actions`: "Move mug 1 to desk 1" -> "put mug 1 in/on desk 1"."""
    command = re.sub(r"^toggle ", "use ", " ".join(action.lower().split()))
    command = re.sub(r"^move (\w+ \d+) to ", r"put \1 in/on ", command)
    return re.sub(r"^put (\w+ \d+) (in|on) ", r"put \1 in/on ", command)


class Env(envs.Base):
    def __init__(self, backend="own", limit=50):
        """backend: "own" or "alfworld" (the genuine engine). limit: turns until the end."""
        if backend not in ("own", "alfworld"):
            raise ValueError(f"alfworld: no backend {backend!r}; use 'own' or 'alfworld'")
        self.engine = Engine() if backend == "alfworld" else None
        self.limit = limit

    def start(self, task_id):
        return self.enter(build(task_id, family(task_id)))

    def enter(self, house):
        """Begin an episode in this house; -> the first observation."""
        self.house, self.task_type = house, house.family
        self.where = dict(house.where)                      # what is carried is in "hand"
        self.turns, self.done = 0, False
        self.at, self.opened = None, set()
        self.states = set()                                 # ("mug 1", "hot"), ("desklamp 1", "on")
        self.seen = set()                                   # receptacles the agent has looked into
        look = self.engine.enter(house) if self.engine else self._look()
        return (f"{look}\nYour task is to: {house.sentence}.\n"
                f"AVAILABLE ACTIONS: {','.join(self.available_actions())}")

    def act(self, action):
        self.turns += 1
        command = canonical(action)
        valid = command in self.available_actions()
        observation = self._obey(command) if valid else "Nothing happens."
        self.won = self._fulfilled()
        if self.engine:     # it decides; our own house is kept in step with it for the expert
            observation, self.won = self.engine.step(command)
        info = {"success": self.won, "valid": valid, "score": float(self.won)}
        return observation, float(self.won), self.won or self.turns >= self.limit, info

    def available_actions(self):
        """Everything that can be done here and now: `step` obeys these commands and no others."""
        at, held = self.at, self._held()
        here = self._things(at) if self._accessible(at) else []
        actions = ["help", "inventory", "look"]
        actions += [f"go to {r}" for r in self.house.receptacles if r != at]
        actions += [f"examine {name}" for name in (at, held) if name]
        actions += [f"use {o}" for o in here if kind(o) == LAMP]
        if at and kind(at) in OPENABLE:
            actions.append(f"close {at}" if at in self.opened else f"open {at}")
        if not held:
            actions += [f"take {o} from {at}" for o in here if kind(o) != LAMP]
        elif at:
            if self._accessible(at) and kind(at) in PLACES[kind(held)]:
                actions.append(f"put {held} in/on {at}")
            actions += [f"{verb} {held} with {at}" for verb, (tool, _, things) in TREATMENTS.items()
                        if kind(at) == tool and kind(held) in things]
            if kind(held) in KNIVES:
                actions += [f"slice {o} with {held}" for o in here if kind(o) in SLICEABLE]
        return sorted(actions)

    def _obey(self, command):
        verb, names = command.split()[0], re.findall(r"[a-z]+ \d+", command)
        match [verb, *names]:
            case ["go", r]:
                self.at = r
                return self._describe(r)
            case ["open", r]:
                self.opened.add(r)
                return f"You open the {r}. {self._describe(r)}"
            case ["close", r]:
                self.opened.remove(r)
                return f"You close the {r}."
            case ["take", o, r]:
                self.where[o] = "hand"
                return f"You pick up the {o} from the {r}."
            case ["put", o, r]:
                self.where[o] = r
                return f"You put the {o} in/on the {r}."
            case ["use", o]:   # once lit, a lamp of the engine stays lit; so does ours
                self.states.add((o, "on"))
                return f"You turn on the {o}."
            case ["clean" | "heat" | "cool", o, r]:
                self.states.add((o, TREATMENTS[verb][1]))
                self.states.discard((o, {"heat": "cool", "cool": "hot"}.get(verb)))
                return f"You {verb} the {o} using the {r}."
            case ["slice", o, knife]:
                self.states.add((o, "sliced"))
                return f"You sliced the {o} with the {knife}."
            case ["examine", name]:
                return self._describe(name)
            case ["inventory"]:
                held = self._held()
                return f"You are carrying: a {held}." if held else "You are not carrying anything."
            case ["look"]:
                return self._look()
        return f"Commands, with a thing for O and a receptacle for R: {COMMANDS}."

    def _look(self):
        if self.at:
            return f"You are facing the {self.at}. Next to it, you see nothing."
        seen = listed([] if self.turns else self.house.receptacles)   # the engine lists them once
        return f"You are in the middle of a room. Looking quickly around you, you see {seen}."

    def _describe(self, name):
        if name in self.where:
            looks = " and ".join(w for w in ("hot", "cool", "clean") if (name, w) in self.states)
            looks += " sliced" * ((name, "sliced") in self.states)
            looks = "cold" if looks == "cool" else looks        # as the engine says it
            if not looks:
                return f"There's nothing special about {name}."
            return f"This is a {looks.strip()} {name}."
        if not self._accessible(name):
            return f"The {name} is closed."
        self.seen.add(name)
        start = f"The {name} is open. In it" if kind(name) in OPENABLE else f"On the {name}"
        return f"{start}, you see {listed(self._things(name))}."

    def _things(self, receptacle):
        return sorted(o for o, r in self.where.items() if r == receptacle)

    def _held(self):
        return next(iter(self._things("hand")), None)

    def _accessible(self, receptacle):
        return receptacle in self.opened or (receptacle and kind(receptacle) not in OPENABLE)

    def _ready(self, o):
        """Is o of the kind asked for and, where the task says so, clean, hot or cool?"""
        verb = VERB.get(self.house.family)
        return kind(o) == self.house.thing and (not verb or (o, TREATMENTS[verb][1]) in self.states)

    def _fulfilled(self):
        family, thing, place = self.house[:3]
        if family == LIGHT:   # the thing in the hand, a lit lamp beside it
            return any(kind(o) == thing for o in self._things("hand")) and any(
                kind(o) == place and (o, "on") in self.states for o in self._things(self.at))
        return any(sum(map(self._ready, self._things(r))) >= 1 + (family == TWO)
                   for r in self.house.receptacles if kind(r) == place)

    def expert(self):
        """A player that knows what the agent knows: the things in receptacles it has `seen`."""
        family, thing, place = self.house[:3]
        held, verb = self._held(), VERB.get(family)
        if held and kind(held) != thing:
            spot = next(r for r in [self.at, *self.house.receptacles]
                        if r and kind(r) in PLACES[kind(held)])
            return self._approach(spot, f"put {held} in/on {spot}",
                                  f"I carry the {held}, but the task asks for a {thing}.")
        if held and family == LIGHT:
            lamp = next(iter(self._known(LAMP)), None)
            return self._search(LAMP) if not lamp else self._approach(
                self.where[lamp], f"use {lamp}", f"I have the {held} and have seen the {lamp}.")
        if held and not self._ready(held):
            tool = next(r for r in self.house.receptacles if kind(r) == TREATMENTS[verb][0])
            return self._approach(tool, f"{verb} {held} with {tool}",
                                  f"I have the {held} and must {verb} it.", open_first=False)
        known = self._known(thing)
        goals = [r for r in self.house.receptacles if kind(r) == place]   # none under a lamp
        goal = max(goals, key=[self.where[o] for o in known].count, default=None)
        if held:
            return self._approach(goal, f"put {held} in/on {goal}",
                                  f"I have the {held}, ready for the {goal}.")
        known = [o for o in known if family != TWO or self.where[o] != goal]
        if not known:
            return self._search(thing)
        o = max(known, key=self._ready)   # a thing already clean, hot or cool, if there is one
        return self._approach(self.where[o], f"take {o} from {self.where[o]}",
                              f"I need a {thing} and have seen the {o}.")

    def _known(self, thing):
        return [o for o, r in self.where.items() if kind(o) == thing and r in self.seen]

    def _search(self, thing):
        """Look into the likeliest receptacle not yet seen; those the task leads to come last."""
        places = sorted(PLACES[thing], key=lambda p: p == self.house.place)
        r = next(r for p in places for r in self.house.receptacles
                 if kind(r) == p and r not in self.seen)
        return self._approach(r, f"examine {r}",
                              f"I have yet to find a {thing}, likely places first.")

    def _approach(self, receptacle, action, thought, open_first=True):
        if self.at != receptacle:
            return f"{thought} I go to the {receptacle}.", f"go to {receptacle}"
        if open_first and not self._accessible(receptacle):
            return f"{thought} The {receptacle} is closed, so I open it.", f"open {receptacle}"
        return f"{thought} Now I {action}.", action

    def random_action(self, rng):
        return rng.choice(self.available_actions())

    def close(self):
        if self.engine:
            self.engine.close()


# The genuine engine, optional: alfworld's PDDL domain and sentences, played by textworld.

ENGINE_LOCK = threading.Lock()   # its parser is shared by all games of a process
FREE_GAMES = []                  # used again, since unloading a game's library may crash Python


class Engine:
    def __init__(self):
        os.environ.setdefault("ALFWORLD_DATA", os.path.join(tempfile.gettempdir(), "alfworld"))
        try:   # alfworld makes the folder named above when it is imported
            import textworld
            from alfworld import info
            from textworld.envs.pddl import PddlEnv
        except ImportError as error:
            raise RuntimeError("alfworld: backend='alfworld' is the genuine engine, which is not "
                               "installed; pip install alfworld") from error
        self.texts = []
        for path in (info.ALFRED_PDDL_PATH, info.ALFRED_TWL2_PATH):
            with open(path, encoding="utf-8") as file:
                self.texts.append(file.read())
        with ENGINE_LOCK:
            self.game = FREE_GAMES.pop() if FREE_GAMES else PddlEnv(textworld.EnvInfos())

    def enter(self, house):
        """The same, in the genuine engine: the house goes to it as PDDL."""
        domain, grammar = self.texts
        with ENGINE_LOCK:
            self.game.load({"pddl_domain": domain, "pddl_problem": pddl(house),
                            "grammar": grammar.replace("UNKNOWN GOAL", house.sentence)})
            for entity in self.game._entity_infos.values():
                entity.name = entity.id.replace("_", " ")
            return self.game.reset().feedback.split("\n\n")[1]   # between title and task

    def step(self, command):
        with ENGINE_LOCK:   # since version 0.4 the engine says "move"
            state = self.game.step(re.sub(r"^put (\w+ \d+) in/on ", r"move \1 to ", command))[0]
        # AgentGym drops where one arrives: a number in the version that it uses
        return re.sub(r"^You arrive at [^.]*\. ", "", state.feedback.strip()), state["won"]

    def close(self):
        with ENGINE_LOCK:
            if self.game:
                FREE_GAMES.append(self.game)
            self.game = None


def pddl(house):
    """The house in alfworld's PDDL domain; every receptacle is a location of its own."""
    things, receptacles = list(house.where), house.receptacles
    facts = ["(= (total-cost) 0)", "(atLocation me middle)"]
    for r in receptacles:
        facts += [f"(receptacleAtLocation {r} at_{r})", f"(receptacleType {r} {kind(r)}Type)"]
        facts += [f"(openable {r})"] * (kind(r) in OPENABLE)
    for o, r in house.where.items():
        facts += [f"(inReceptacle {o} {r})", f"(objectAtLocation {o} at_{r})",
                  f"(objectType {o} {kind(o)}Type)",
                  f"(toggleable {o})" if kind(o) == LAMP else f"(pickupable {o})"]
        facts += [f"(sliceable {o})"] * (kind(o) in SLICEABLE)
        facts += [f"({verb}able {o})" for verb, row in TREATMENTS.items() if kind(o) in row[2]]
    # the domain itself names the tools and the knives, so they are declared in every house
    rtypes = sorted({kind(r) for r in receptacles} | {row[0] for row in TREATMENTS.values()})
    otypes = sorted({kind(o) for o in things} | {*KNIVES})
    facts += [f"(canContain {p}Type {o}Type)" for o in otypes for p in rtypes if p in PLACES[o]]

    state = TREATMENTS[VERB[house.family]][1] if house.family in VERB else ""
    asked = f"(objectType ?o {house.thing}Type)" + f" (is{state} ?o)" * bool(state)
    stored = f"(inReceptacle ?o ?r) (receptacleType ?r {house.place}Type)"
    goal = {LIGHT: "(holds me ?o) (inReceptacle ?p ?r) (isToggled ?p) (receptacleAtLocation ?r ?l) "
                   f"(atLocation me ?l) (objectType ?p {LAMP}Type)",
            TWO: f"{stored} (inReceptacle ?p ?r) (objectType ?p {house.thing}Type) (not (= ?o ?p))"}
    variables = "?r - receptacle ?o - object" + {
        LIGHT: " ?p - object ?l - location", TWO: " ?p - object"}.get(house.family, "")
    objects = ["me - agent middle - location", *(f"{r} - receptacle at_{r} - location"
               for r in receptacles), *(f"{o} - object" for o in things),
               *(f"{p}Type - rtype" for p in rtypes), *(f"{o}Type - otype" for o in otypes)]
    return re.sub(r"(?<=[a-z]) (?=\d)", "_", f"""(define (problem house) (:domain alfred)
(:objects {" ".join(objects)}) (:init {" ".join(facts)})
(:goal (exists ({variables}) (and {asked} {goal.get(house.family, stored)}))))""")
