"""What the environments with named tools share: weather, movie, academia, todo, sheet.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: How high does Quito lie? Please ...
            Give me one action.
    agent:  Thought: I need its coordinates.

            Action: get_latitude_longitude with Action Input: {"name": "Quito"}
    env:    Observation: {'results': [{'name': 'Quito', 'latitude': -0.23, ...}]}
            Give me one action.
    agent:  get_elevation with Action Input: {"latitude": -0.23}
    env:    Observation: ERROR | KeyError('longitude')
            Give me one action.
    agent:  finish with Action Input: {"answer": 2854.0}                          reward 1, done

Tools, arguments, replies and error texts are those of AgentBoard (arXiv:2401.13178) as AgentGym's
agentenv-tool serves them. What the agent wrote is data: the original calls eval() on it, here it is
read as JSON, else by ast.literal_eval, within limits (`read_arguments`). Also on purpose:

- "Action:" may be missing, as most formats of replies cut it off. A reply with several action lines
  is a format error; there the last one counts, also behind results that the agent made up.
- Only the answer of `finish` is compared (`same`), and it alone gives a reward. There any result of
  a tool that equals the answer does, and a word "finish" in any argument ends the episode.
- Numbers may differ by 0.01, texts in case and blanks; there they must be equal.

An environment of this kind has a function task(task_id) -> an object with goal, a sentence; answer:
a text, a number, or a list of one of them; and steps(say), the expert's way: a generator of calls
(thought, tool, arguments) that is sent their results and returns the answer. It uses nothing else
than these results and the goal's own words; the answer comes from the data, without the tools.
say(...) chooses one of several wordings. Its class has a method for each tool: the annotations are
the types of the arguments, one with a default may be left out. What it returns is written behind
"Observation: "; `Refused(text)` is raised where the original has an error text.

    class Env(tools.Env):
        tools = ("get_elevation", ...)              # finish and check_valid_actions are added

        def get_elevation(self, latitude: float, longitude: float): ...     # -> {"elevation": [..]}
        def draw(self, key, rng): ...               # some value for an argument, for random_action

float takes a number or its text, str a text or a whole number, object anything; other types as they
are. Tools that change things need a `script` that looks at them; a reward that is more than the
answer needs another `judge` (todo: the final state, too), or another `act` (sheet).
"""
import ast
import functools
import inspect
import itertools
import json
import math
import random
import re
import reprlib

import envs
from envs.parts.wires import Wire

# AgentGym's JSON of all these.
WIRE = Wire(id_key="env_idx", create="env_idx", task_key="id", task_required=False,
            reset="observation")
FORMAT_ERROR = 'Format error, please response in the format of  "Action: [your action] with ' \
               "Action Input: [your action input]"      # the original's words, to the blank
INVALID = "Exception(Parameters in action input are not valid, please change your action input.)"
MOST_CHARACTERS, MOST_LEVELS, LARGEST = 10_000, 8, 10**15   # of arguments, in brackets, of a number
MOST_RESULTS = 100      # of an episode's calls that are kept for the expert
LITERAL = re.compile(r"""([\s\[\](){},:+-]|True\b|False\b|None\b|\d+(\.\d*)?([eE][+-]?\d+)?(?![\w.])
    |"([^"\\\n]|\\[\\'"abfnrtvuUx0])*"|'([^'\\\n]|\\[\\'"abfnrtvuUx0])*')*""", re.VERBOSE)


class Refused(Exception):
    """A call that has no result; its text is what the agent is told instead."""


def parse(reply):
    """(name, text of the arguments) of the last line of a reply, or None: not understood."""
    before, found, arguments = reply.strip().rpartition("Action Input:")
    before, arguments = before.rstrip(), arguments.strip()      # they may stand on the next line
    if not found or not before.endswith("with") or "Action Input:" in before or "\n" in arguments:
        return None
    line = before.removesuffix("with").rstrip().rpartition("\n")[2]
    start, action, name = line.partition("Action:")
    return (name if action else start).strip(), arguments


def read_arguments(text):
    """The arguments as a dict of texts, finite numbers, booleans, None, lists and dicts. Refused:
    they are something else, too long, too deep or too large; nothing of it is ever executed."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError("too long")
        try:
            value = json.loads(text)
        except ValueError:
            if deepest(text) > MOST_LEVELS or not LITERAL.fullmatch(text):
                raise       # Python's parser is recursive, and warns of odd code in the log
            value = ast.literal_eval(text)
        if type(value) is not dict:
            raise ValueError("no dict")
        return checked(value, MOST_LEVELS)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise Refused(f"ERROR | {INVALID}") from None


def deepest(text):
    """How many brackets are open at most; those in quotes count as well."""
    level = most = 0
    for letter in text:
        level += (letter in "([{") - (letter in ")]}")
        most = max(most, level)
    return most


def checked(value, levels):
    """The value, its tuples as lists. ValueError: a part is of another type, or out of bounds."""
    if type(value) in (list, tuple) and levels:
        return [checked(part, levels - 1) for part in value]
    if type(value) is dict and levels and all(type(key) is str for key in value):
        return {checked(key, 0): checked(part, levels - 1) for key, part in value.items()}
    if type(value) is str:
        value.encode()      # not half of a surrogate pair, which no tokenizer takes once echoed
    if type(value) in (int, float) and not -LARGEST <= value <= LARGEST:    # nor is NaN
        raise ValueError("no number")
    if type(value) not in (int, float, str, bool, type(None)):
        raise ValueError("no type of JSON, or too deep")
    return value


def number(value):
    """The finite number that a value is or writes; None: it is none."""
    try:
        found = float(value) if type(value) in (int, float, str) else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def plain(text):
    """A text without what does not count: case, and blanks but single ones."""
    return " ".join(text.casefold().split())


def same(given, wanted):
    """Whether an answer is the one wanted: a number up to 0.01, a text up to case and blanks, a
    list in any order, since the original's `finish` sorts it."""
    if type(wanted) is list:
        numbers = wanted and type(wanted[0]) is not str
        if type(given) is not list or len(given) != len(wanted):
            return False
        given = [number(x) if numbers else plain(str(x)) for x in given]
        return None not in given and all(map(same, sorted(given), sorted(
            wanted if numbers else map(plain, wanted))))
    if type(wanted) is str:
        return type(given) in (int, float, str) and plain(str(given)) == plain(wanted)
    found = number(given)
    return found is not None and abs(found - wanted) <= 0.01 + 1e-9


def written(name, arguments):
    """The action that makes this call."""
    return f"{name} with Action Input: {json.dumps(arguments, ensure_ascii=False)}"


@functools.cache
def arguments_of(method):
    """{argument: inspect.Parameter} of a tool."""
    return {key: parameter for key, parameter in inspect.signature(method).parameters.items()
            if key != "self"}


def fitting(method, given):
    """The arguments of a tool among those given, in the types it wants. Refused: one is missing,
    or of another type; what it does not know is left out, as by the original."""
    fits = {}
    for key, parameter in arguments_of(method).items():
        if key not in given:
            if parameter.default is inspect.Parameter.empty:
                raise Refused(f"ERROR | KeyError({key!r})")
            continue
        value, kind = given[key], parameter.annotation
        if kind is float and number(value) is not None:
            value = number(value)
        elif kind is str and type(value) is int:
            value = str(value)
        elif kind is not object and type(value) is not kind:
            raise Refused(f"ERROR | TypeError({key} must be {kind.__name__}, not "
                          f"{reprlib.repr(value)})")
        fits[key] = value
    return fits


ENDINGS = {     # how a goal says what its answer looks like
    "number": ("Please provide the answer as a number.", "Give me only the number.",
               "Answer with a number.", "I just need the number."),
    "yes": ("Please answer with 'Yes' or 'No'.", "Answer Yes or No.", "Just tell me Yes or No."),
    "date": ("Please give the date in the form YYYY-MM-DD.", "Answer with the date as YYYY-MM-DD."),
    "name": ("Please answer with the name only.", "Just the name, please.", "Give me the name."),
    "list": ("Please answer with a list.", "Give them as a list.", "Answer in the form of a list.")}
REASONS = ("", "", "", "I'm settling a bet with a friend. ", "It's for a school report. ",
           "I'm writing a piece for our blog. ", "It's for my sister. ", "Just a quick one: ")


FIRST = """Ada Alma Amir Anton Bela Bruno Carla Cosmo Dalia Dario Edda Elias Farah Felix Greta Hugo
Ines Ivo Jana Jonas Kaya Karim Lena Leo Mara Milo Nadia Nico Olga Otis Petra Quinn Rosa Ruben Selma
Silas Tara Theo Uma Viktor Wanda Yusuf Zara Zeno""".split()
LAST = """Abel Adeyemi Almeida Bergman Castellan Dufour Ekström Falk Ferrante Grünwald Haddad Holt
Ibarra Jansen Kaplan Kovac Larkin Lindqvist Marlowe Moreau Nakata Novak Okoro Ortega Petrov Quist
Rahimi Rossi Sandoval Sato Tanaka Thorne Ueda Varga Visser Wexler Yamada Zielinski""".split()


class Draw:
    """The chances of one task at one attempt to ask something, and its goal, worded by `ask`."""
    asides = REASONS    # what may stand before it

    def __init__(self, name, task_id, attempt):
        self.rng = random.Random(f"{name} {task_id} {attempt}")
        self.kept = random.Random(f"{name} {task_id}")

    def one(self, *options):
        return self.rng.choice(options)

    def keep(self, *options):
        """One of them, the same in each attempt: else those that succeed seldom would be rare."""
        return self.kept.choice(options)

    def ask(self, ending, *sentences):
        """Word the goal: one of the sentences; ending: a key of ENDINGS, or words."""
        ending = self.one(*ENDINGS.get(ending, (ending,)))
        self.goal = f"{self.one(*self.asides)}{self.one(*sentences)} {ending}".strip()


def task_of(make, kind, task_id):
    """The first of make(task_id, attempt), Draws, that `kind` can word and answer: kind(task) gives
    (answer, steps), or (None, ...) where these chances make a dull or undecided question."""
    for attempt in itertools.count():
        task = make(task_id, attempt)
        task.answer, task.steps = kind(task)
        if task.answer is not None:
            return task


def conclusion(say, answer):
    """The expert's last call."""
    told = ", ".join(map(str, answer if type(answer) is list else [answer])).removesuffix(".")
    return say(f"So the answer is {told}.", f"That settles it: {told}.",
               f"I know enough now. The answer is {told}."), "finish", {"answer": answer}


class Env(envs.Base):
    """See the head of this file."""
    tools = ()
    hint = ""           # what is said of an unknown tool besides

    def start(self, task_id):
        self.task, self.results = self.module.task(task_id), {}     # action: its result
        return ("Now new trial starts.\nYou should perform actions to accomplish the goal: "
                f"{self.task.goal}\nGive me one action.")

    def act(self, action):
        if (call := parse(action)) is None:
            return FORMAT_ERROR, 0.0, False, {"success": False, "valid": False, "score": 0.0}
        name, done, score, valid = call[0], False, 0.0, True
        try:
            given = read_arguments(call[1])
            if name not in (*self.tools, "finish", "check_valid_actions"):
                raise Refused(f"ERROR | Invalid action: {name[:80]}.{self.hint}")
            arguments = fitting(getattr(type(self), name), given)
            result = self.results[written(name, arguments)] = getattr(self, name)(**arguments)
            if len(self.results) > MOST_RESULTS:
                self.results.pop(next(iter(self.results)))      # the oldest
            if name == "finish":
                done, score = True, self.judge(result)
        except Refused as refusal:
            result, valid = refusal, False
        return f"Observation: {result}\nGive me one action.", score, done, {
            "success": score >= self.module.SUCCESS, "valid": valid, "score": score}

    def check_valid_actions(self):
        return "You can use following valid actions: " \
               f"{[*self.tools, 'check_valid_actions', 'finish']}"

    def finish(self, answer: object):
        """The answer, sorted if it is a list. Refused: what lies in it cannot be compared."""
        try:
            answer = sorted(answer) if type(answer) is list else answer
        except TypeError as problem:
            raise Refused(f"ERROR | TypeError({problem})") from None
        return answer

    def judge(self, answer):
        """The score of an answer, 0 to 1: here 1 if it is the one wanted. The original counts the
        sub-goals reached, of which these environments have one."""
        return float(same(answer, self.task.answer))

    def expert(self):
        """The first call of the task's steps that has no result yet. They begin anew each time and
        are sent the results known, so that they go on after any detour."""
        rng = random.Random(f"{self.module.NAME} {self.task.goal}")
        steps = self.script(lambda *thoughts: rng.choice(thoughts))
        thought, name, arguments = next(steps)
        while (action := self.written(name, arguments)) in self.results:
            thought, name, arguments = steps.send(self.results[action])
        return thought, action

    def script(self, say):
        """The task's steps, then finish with what they return."""
        yield conclusion(say, (yield from self.task.steps(say)))

    def written(self, name, arguments):
        """The action that makes this call, the same for 3 and 3.0 where a number is wanted."""
        return written(name, fitting(getattr(type(self), name), arguments))

    def random_action(self, rng):
        """Any tool, with arguments that look right."""
        name = rng.choice((*self.tools, "finish"))
        return written(name, {key: self.draw(key, rng)
                              for key in arguments_of(getattr(type(self), name))})
