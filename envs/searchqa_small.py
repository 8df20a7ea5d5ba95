"""searchqa_small: the search of searchqa.py in a world of thirty people, for tiny models.

    env:    Question: Who is the teacher of the teacher of Nico?                       (task 4001)
    agent:  <search> Nico </search>
    env:    <information>Doc 1(Title: Nico) Nico was born in Malmo. The teacher of Nico is
            Petra.</information>
    agent:  <search> Petra </search>
    env:    <information>Doc 1(Title: Petra) Petra was born in Kiel. The teacher of Petra is
            Quinn.</information>
    agent:  <answer> Quinn </answer>                                           (reward 1, done)

Actions, replies and reward are searchqa.py's; a search finds the passage of the first name in it.
Each task has people and towns of its own, drawn from 44 names and 24 towns, so that nothing can be
learned by heart but how to search: TRAIN and TEST share the names, not the worlds. Names are one
token each to a tiny policy, and what is asked for stands right behind them.

In 5 turns a random player, who searches for or answers with a name it has read, solves 6% of
TEST, `expert` all, in 2 or 3.
"""
import random
import re

from envs import searchqa
from envs.parts.knowledge import Passage, Question, Thing, golds_of, walk
from envs.parts.tools import FIRST

NAME, HORIZON, SUCCESS = "searchqa_small", 5, 1.0
OWN = searchqa.OWN      # it plays no data of a user's
TRAIN, TEST = range(0, 4000), range(4000, 4300)
FAMILIES = ("one hop", "two hops")
TINY = dict(horizons=(4,), max_context=320, steps=150, clone=dict(steps=1600, skill=0.3, heads=2))
PROMPT = """Answer the question with the help of a search engine. Actions, one per turn:
<search> a name </search> - you are shown the passage about this name
<answer> the answer </answer> - a name or a town; it ends the task"""
EXAMPLE = "<search> Ada </search>"
TOOLS = {"<search> {query} </search>": "Show the passage about a name.",
         "<answer> {answer} </answer>": "Give the answer, a name or a town: it ends the task."}
TOWNS = """Oslo Porto Ghent Tartu Graz Leeds Turin Lyon Cork Malmo Basel Bergen Brno Cadiz Delft
Essen Genoa Kiel Nantes Padua Riga Split Tampere Zagreb""".split()
ASK = {     # the relations to follow: the question
    ("town",): "Where was {} born?", ("teacher",): "Who is the teacher of {}?",
    ("teacher", "town"): "Where was the teacher of {} born?",
    ("teacher", "teacher"): "Who is the teacher of the teacher of {}?"}


def draw(task_id):
    """(the Question of a task, {name: Passage} of its world)"""
    rng = random.Random(f"{NAME} {task_id}")
    people = [Thing("person", "person", name) for name in rng.sample(FIRST, 30)]
    for n, person in enumerate(people):         # the last has no teacher, nobody is his own
        person.facts = {"town": rng.choice(TOWNS)} | (
            {"teacher": rng.choice(people[n + 1:])} if n < 29 else {})
    names = rng.choice([names for names in ASK if len(names) == 1 + task_id % 2])
    about = rng.choice(people[:-2])
    while names == ("teacher", "teacher") and about.facts["teacher"] is people[-1]:
        about = rng.choice(people[:-2])
    question = Question(ASK[names].format(about.name), golds_of(walk(about, names)[-1]),
                        ((about, names),))
    return question, {person.name: Passage(person.name, f"{person.name} was born in " + (
        "{}. The teacher of {} is {}." if "teacher" in person.facts else "{}.").format(
            person.facts["town"], person.name, getattr(person.facts.get("teacher"), "name", "")),
        tuple((person, name) for name in person.facts)) for person in people}


def family(task_id):
    return FAMILIES[task_id % 2]


def fingerprint(task_id):
    question, passages = draw(task_id)
    return f"{question.text} {[passage.text for passage in passages.values()]}"


class Env(searchqa.Env):
    def start(self, task_id):
        self.question, self.passages = draw(task_id)
        self.library, self.titles, self.known, self.asked = self, {}, set(), set()
        self.read = f"Question: {self.question.text}"
        return self.read

    def find(self, query):
        """[the passage of the first name in a query], or []."""
        return [self.passages[word] for word in re.findall(r"\w+", query)
                if word in self.passages][:1]

    def act(self, action):
        observation, *rest = super().act(action)
        self.read += observation
        return observation, *rest

    def expert(self):
        """Searches for whatever it does not know yet on the way, then answers."""
        for thing, name in self.question.paths[0]:
            if (thing, name) not in self.known:
                return f"I need the {name} of {thing.name}.", f"<search> {thing.name} </search>"
        gold = self.question.golds[0]
        return f"It is {gold}.", f"<answer> {gold} </answer>"

    def random_action(self, rng):
        """Searches for a name that it has read, or answers with a name or town."""
        kind = rng.choice(("search", "answer"))
        words = [word for word in re.findall(r"\w+", self.read)
                 if word in self.passages or kind == "answer" and word in TOWNS]
        return f"<{kind}> {rng.choice(words)} </{kind}>"
