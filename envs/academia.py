"""academia: questions about papers and their authors, answered from two graphs.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: Add up the citations of what Kaya
            Larkin and Ines Yamada wrote together: how many are there? I just need the number.
            Give me one action.                                                          (task 16)
    agent:  authorEdgeCheck with Action Input: {"node1": "Kaya Larkin", "node2": "Ines Yamada"}
    env:    Observation: Please load the AuthorNet first.
            Give me one action.
    agent:  loadAuthorNet with Action Input: {}
    env:    Observation: AuthorNet is loaded.
            Give me one action.
    agent:  authorEdgeCheck with Action Input: {"node1": "Kaya Larkin", "node2": "Ines Yamada"}
    env:    Observation: {'collaborative_papers': ['On the Limits of Spectral Clustering for [...]
    agent:  loadPaperNet with Action Input: {}
    env:    Observation: PaperNet is loaded.
            Give me one action.
    agent:  paperNodeCheck with Action Input: {"node": "On the Limits of Spectral Clustering [...]
    env:    Observation: {'authors': [...], 'year': 2007, 'venue': 'IEEE Access', 'n_citation': 355,
            'keywords': [...], 'doc_type': 'Journal'}
    agent:  finish with Action Input: {"answer": 355}                           reward 1, done

After AgentBoard's academia as AgentGym serves it: its tools, replies and errors (parts/tools.py has
what all such environments share). The graphs, 400 papers by 300 authors, are made here in place of
DBLP's, so no score is comparable to the papers'. A paper's neighbours are those it cites. Reward 1
for the right answer, which ends the task.

Nine families with 26 kinds of questions, two to three wordings each, and reasons and closing words
drawn: 20,000 further tasks have 18,800 distinct goals. The 200 tasks of TEST start from a fifth of
the papers and authors, from which the 10,000 of TRAIN never start, though its replies name them.
A random player solves 2.5% of TEST, who always says Yes 10%, `expert` all, in 5.0 turns on average
and 10 at most. Each process needs 12 MB.
"""
import functools
import random
from collections import Counter
from typing import NamedTuple

from envs.parts import academia_prompt, tool_prompt, tools
from envs.parts.academia_words import METHODS, TOPICS, SHAPES, VENUES, PLACES, FORMS
from envs.parts.tools import Refused

NAME, HORIZON, SUCCESS = "academia", 12, 1.0
TRAIN, TEST = range(200, 10200), range(200)
ORIGINAL = range(20)        # the ids that AgentGym's server has, too; its questions are others
# A call up to its first value, and a key of a reply, are single tokens to a tiny policy.
ONE_WORD = (r"Now new trial.*\n.*goal:|\nGive me one action\.|Observation:|"
            r"\w+ with Action Input: \{(\"\w+\":)?| ?'\w+':")
TINY = dict(families="paper,affiliation", horizons=(5,), max_context=640, max_turn_tokens=40,
            steps=60, lr=8e-4, clone=dict(steps=1800, heads=2))
PROMPT = """You answer a question about papers and authors with tools. Each turn, call one tool:
NAME with Action Input: {arguments as JSON}
loadPaperNet: {}, loadAuthorNet: {}; a net must be loaded before it is used
paperNodeCheck: {"node": title}; authors, year, venue, citations, keywords, kind of a paper
authorNodeCheck: {"node": name}; organization and papers of an author
neighbourCheck: {"graph": "PaperNet" or "AuthorNet", "node"}; the papers that a paper cites, or the
co-authors of an author
authorEdgeCheck: {"node1", "node2"}; what two authors have written together
paperEdgeCheck: {"node1", "node2"}; whether one paper cites another
check_valid_actions: {}, the names of all tools
finish: {"answer": a text, a number or a list}, which ends the task
An example: neighbourCheck with Action Input: {"graph": "AuthorNet", "node": "Ada Holt"}"""
EXAMPLE = "loadAuthorNet with Action Input: {}"
# As AgentGym has it: its JSON, how its client talks to a model.
WIRE = tools.WIRE
AGENTGYM = tool_prompt.manner(academia_prompt.RULES)

# ---- the graphs ---------------------------------------------------------------------------------


class Author(NamedTuple):
    name: str
    org: str


class Paper(NamedTuple):
    title: str
    authors: tuple          # of Author
    year: int
    venue: str
    citations: int
    keywords: tuple
    cites: tuple            # titles of older papers


@functools.cache
def graphs():
    """({title: Paper}, {name: Author}, {name: [Paper]}), built once a process: 400 papers of 300
    authors, most of a paper's from one organization. Every fifth is asked about in TEST only."""
    rng = random.Random("academia world")
    methods, topics = ([" ".join(name.split()) for name in text.split("|")]
                       for text in (METHODS, TOPICS))
    orgs = [form.format(place) for place in PLACES for form in FORMS]
    names = rng.sample([f"{first} {last}" for first in tools.FIRST for last in tools.LAST], 300)
    authors = [Author(name, orgs[i * len(orgs) // 300]) for i, name in enumerate(names)]
    titles = [shape.format(a=a, b=b) for shape in SHAPES for a in methods for b in topics]
    papers = {}
    for i, title in enumerate(rng.sample(titles, 400)):
        first = rng.randrange(300)
        near = [author for j, author in enumerate(authors) if 0 < abs(j - first) < 7]
        team = [authors[first], *rng.sample(near, rng.randint(0, 3)),
                *rng.sample(authors, rng.choice((0, 0, 1)))]
        words = [word for word in methods + topics if word in title] \
            + rng.sample(methods + topics, rng.randint(0, 2))
        papers[title] = Paper(
            title, tuple(dict.fromkeys(team)), 2005 + i // 22, rng.choice(sorted(VENUES)),
            rng.randint(0, 400), tuple(dict.fromkeys(words)),
            tuple(rng.sample([*papers], min(rng.randint(1, 7), len(papers)))))
    written = {author.name: [paper for paper in papers.values() if author in paper.authors]
               for author in authors}
    return papers, {author.name: author for author in authors}, written


def partners(name):
    """Names of the co-authors, in the order of their first common paper."""
    _, _, written = graphs()
    return list(dict.fromkeys(author.name for paper in written[name] for author in paper.authors
                              if author.name != name))


# ---- questions: a sentence, its answer from the graphs, the expert's steps with the tools -------

@functools.cache
def pools(held_out):
    """Papers, and authors who have written some: those of TEST or those of TRAIN."""
    papers, authors, written = graphs()
    return [[x for i, x in enumerate(things) if (i % 5 == 4) == held_out]
            for things in (papers.values(), [name for name in authors if written[name]])]


class Task(tools.Draw):
    """The chances of one task: its papers, authors and words."""

    def __init__(self, task_id, attempt):
        super().__init__(NAME, task_id, attempt)
        papers, self.names = pools(task_id in TEST)
        self.paper, self.other = self.rng.sample(papers, 2)
        self.name, self.quote = self.one(*self.names), self.one("'", '"')
        self.written = graphs()[2][self.name]

    def quoted(self, *papers):
        return [f"{self.quote}{paper.title}{self.quote}" for paper in papers]


def load(say, net):
    yield say(f"First the {net} has to be loaded.", f"This is in the {net}, so I load it.",
              f"I need the {net} for that."), f"load{net}", {}


def paper(say, title):
    return (yield say(f"I look at the paper {title}.", "What does the net say about this paper?",
                      "The paper's own entry should tell."), "paperNodeCheck", {"node": title})


def author(say, name):
    return (yield say(f"I look at {name}.", f"What does the net say about {name}?"),
            "authorNodeCheck", {"node": name})


def neighbours(say, net, node):
    return (yield say(f"The neighbours of {node} should tell.",
                      f"Now the neighbours of {node} in the {net}."),
            "neighbourCheck", {"graph": net, "node": node})


def edge(say, a, b):
    reply = yield say(f"What have {a} and {b} written together?", f"Now the edge to {b}."), \
        "authorEdgeCheck", {"node1": a, "node2": b}
    return reply["collaborative_papers"]


def only(counted):
    """The most frequent of a Counter, or None if two are."""
    (best, n), (_, next_n), *_ = counted.most_common(2) + [(None, 0)] * 2
    return best if n > next_n else None


FACTS = (   # ending, sentences, answer from the Paper, conclusion from the reply
    ("list", ("Who wrote the paper titled {a}?", "Who are the authors of {a}?"),
     lambda paper: [author.name for author in paper.authors], lambda reply: reply["authors"]),
    ("number", ("In which year was {a} published?", "From which year is the paper {a}?"),
     lambda paper: paper.year, lambda reply: reply["year"]),
    ("name", ("Where was {a} published?", "What is the venue of the paper {a}?"),
     lambda paper: paper.venue, lambda reply: reply["venue"]),
    ("number", ("How many citations does {a} have?", "How often has {a} been cited?"),
     lambda paper: paper.citations, lambda reply: reply["n_citation"]),
    ("list", ("What are the keywords of {a}?", "Which keywords does the paper {a} carry?"),
     lambda paper: [*paper.keywords], lambda reply: sorted(reply["keywords"])))


def about_paper(t):
    """A fact about one paper."""
    ending, sentences, answer, conclude = t.one(*FACTS)
    [a] = t.quoted(t.paper)
    t.ask(ending, *[sentence.format(a=a) for sentence in sentences])

    def steps(say):
        yield from load(say, "PaperNet")
        return conclude((yield from paper(say, t.paper.title)))
    return answer(t.paper), steps


def references(t):
    """How many of the network's papers one of them cites."""
    [a] = t.quoted(t.paper)
    t.ask("number", f"How many papers in the network does {a} cite?",
          f"How many of the network's papers are in the reference list of {a}?")

    def steps(say):
        yield from load(say, "PaperNet")
        return len((yield from neighbours(say, "PaperNet", t.paper.title)))
    return len(t.paper.cites), steps


def which_paper(t):
    """The paper that is cited more, or came first."""
    more, (a, b) = t.one(True, False), t.quoted(t.paper, t.other)
    has = "has received more citations" if more else "was published first"
    t.ask("Answer with its title.", f"Which paper {has}: {a} or {b}?",
          f"{a} or {b}, which of them {has}?", f"Tell me which of these papers {has}: {a}, {b}.")
    values = [(paper.citations if more else -paper.year, paper.title)
              for paper in (t.paper, t.other)]

    def steps(say):
        yield from load(say, "PaperNet")
        one = yield from paper(say, t.paper.title)
        two = yield from paper(say, t.other.title)
        first = one["n_citation"] > two["n_citation"] if more else one["year"] < two["year"]
        return (t.paper if first else t.other).title
    return None if values[0][0] == values[1][0] else max(values)[1], steps


def alike(t):
    """Whether two papers have a property in common, with Yes as often as No."""
    key, sentence, has = t.keep(
        ("venue", "Were {a} and {b} published in the same venue?", lambda paper: {paper.venue}),
        ("year", "Did {a} and {b} appear in the same year?", lambda paper: {paper.year}),
        ("doc_type", "Are {a} and {b} of the same type, conference or journal?",
         lambda paper: {VENUES[paper.venue]}),
        ("authors", "Do {a} and {b} have an author in common?", lambda paper: {*paper.authors}),
        ("keywords", "Do {a} and {b} share a keyword?", lambda paper: {*paper.keywords}))
    if key == "authors":        # two papers at random hardly ever share one
        t.other = t.one(*graphs()[2][t.one(*t.paper.authors).name], t.other, t.other)
    (a, b), wanted = t.quoted(t.paper, t.other), t.keep(True, False)
    t.ask("yes", sentence.format(a=a, b=b), f"I have two papers here, {a} and {b}. "
          + sentence.format(a="the first", b="the second"))

    def steps(say):
        yield from load(say, "PaperNet")
        one = (yield from paper(say, t.paper.title))[key]
        two = (yield from paper(say, t.other.title))[key]
        same = any(x in two for x in one) if type(one) is list else one == two
        return "Yes" if same else "No"
    right = t.paper is not t.other and wanted == bool(has(t.paper) & has(t.other))
    return ("Yes" if wanted else "No") if right else None, steps


def affiliation(t):
    """An author's organization, or whether two have the same."""
    other, same = t.one(*partners(t.name), *t.names[:2]), t.keep("Yes", "No")
    if two := t.keep(True, False):
        t.ask("yes", f"Is {t.name} affiliated with the same organization as {other}?",
              f"Do {t.name} and {other} work at the same organization?")
    else:
        t.ask("name", f"Which organization is {t.name} affiliated with?",
              f"Where does {t.name} work?")
    orgs = [graphs()[1][name].org for name in (t.name, other)]

    def steps(say):
        yield from load(say, "AuthorNet")
        one = (yield from author(say, t.name))["org"]
        if not two:
            return one
        return "Yes" if one == (yield from author(say, other))["org"] else "No"
    if not two:
        return orgs[0], steps
    right = other != t.name and same == ("Yes" if orgs[0] == orgs[1] else "No")
    return same if right else None, steps


def organizations(t):
    """Of the authors of a paper."""
    [a] = t.quoted(t.paper)
    t.ask("list", f"Which organizations were involved in the research titled {a}?",
          f"At which organizations do the authors of {a} work?")

    def steps(say):
        yield from load(say, "PaperNet")
        reply, found = (yield from paper(say, t.paper.title)), []
        yield from load(say, "AuthorNet")
        for name in reply["authors"]:
            found.append((yield from author(say, name))["org"])
        return sorted(set(found))
    return sorted({author.org for author in t.paper.authors}), steps


def best_of_author(t):
    """An author's most cited paper, usual venue, favourite keyword or total of citations."""
    what = t.keep("paper", "venue", "keyword", "total")
    ending, *sentences = {
        "paper": ("Answer with its title.", "Which paper by {} has the most citations?",
                  "What is the most cited paper of {}?"),
        "venue": ("name", "Which venue has the most publications by {}?",
                  "Where does {} publish most often?"),
        "keyword": ("name", "Which keyword occurs most often in the papers of {}?",
                    "On which keyword has {} written the most papers?"),
        "total": ("number", "How many citations do all papers by {} have together?",
                  "Add up the citations of all papers by {}: how many are there?")}[what]
    t.ask(ending, *[sentence.format(t.name) for sentence in sentences])

    def steps(say):
        yield from load(say, "AuthorNet")
        titles, found = (yield from author(say, t.name))["papers"], {}
        yield from load(say, "PaperNet")
        for title in titles:
            found[title] = yield from paper(say, title)
        if what == "total":
            return sum(reply["n_citation"] for reply in found.values())
        if what == "paper":
            return max(found, key=lambda title: found[title]["n_citation"])
        counted = Counter(reply["venue"] for reply in found.values()) if what == "venue" else \
            Counter(word for reply in found.values() for word in reply["keywords"])
        return max(counted, key=counted.get)
    answer = {
        "total": lambda: sum(paper.citations for paper in t.written),
        "paper": lambda: only(Counter({p.title: p.citations for p in t.written})),
        "venue": lambda: only(Counter(paper.venue for paper in t.written)),
        "keyword": lambda: only(Counter(x for paper in t.written for x in paper.keywords))}[what]()
    return answer if 2 <= len(t.written) <= 6 else None, steps


def together(t):
    """How many co-authors two have in common, or citations, or which papers."""
    others = partners(t.name)
    other = t.one(*others) if others else t.name
    what = t.one("partners", "citations", "papers")
    ending, *sentences = {
        "partners": ("number", "How many collaborators do {} and {} have in common?",
                     "How many people have written with {} as well as with {}?"),
        "citations": ("number", "How many citations do the joint papers of {} and {} have in all?",
                      "Add up the citations of what {} and {} wrote together: how many are there?"),
        "papers": ("list", "Which papers have {} and {} written together?",
                   "What are the joint papers of {} and {}?")}[what]
    t.ask(ending, *[sentence.format(t.name, other) for sentence in sentences])
    joint = [paper for paper in t.written if other in [author.name for author in paper.authors]]

    def steps(say):
        yield from load(say, "AuthorNet")
        if what == "partners":
            one = yield from neighbours(say, "AuthorNet", t.name)
            two = yield from neighbours(say, "AuthorNet", other)
            return sum(name in two for name in one)
        titles, total = (yield from edge(say, t.name, other)), 0
        if what == "papers":
            return titles
        yield from load(say, "PaperNet")
        for title in titles:
            total += (yield from paper(say, title))["n_citation"]
        return total
    answer = {"partners": len({*others} & {*partners(other)}),
              "citations": sum(paper.citations for paper in joint),
              "papers": [paper.title for paper in joint]}[what]
    return answer if others else None, steps


def collaborators(t):
    """The co-authors from the same organization or from others, or the most frequent one."""
    what, (_, authors, _), others = t.keep("same", "different", "most"), graphs(), partners(t.name)
    if what == "most":
        t.ask("name", f"Who has the most collaborations with {t.name}?",
              f"With whom has {t.name} written the most papers?")
    else:
        where = f"{'the same' if what == 'same' else 'a different'} organization " \
                f"{'as' if what == 'same' else 'than'} {t.name}"
        t.ask("list", f"Which of {t.name}'s collaborators work at {where}?",
              f"Name the co-authors of {t.name} who work at {where}.")
    org, joint = authors[t.name].org, Counter(
        author.name for paper in t.written for author in paper.authors if author.name != t.name)

    def steps(say):
        yield from load(say, "AuthorNet")
        names, found = (yield from neighbours(say, "AuthorNet", t.name)), {}
        if what == "most":
            for name in names:
                found[name] = len((yield from edge(say, t.name, name)))
            return max(found, key=found.get)
        home = (yield from author(say, t.name))["org"]
        for name in names:
            found[name] = (yield from author(say, name))["org"]
        return [name for name in names if (found[name] == home) == (what == "same")]
    answer = only(joint) if what == "most" else \
        [name for name in others if (authors[name].org == org) == (what == "same")] or None
    return answer if len(others) <= 6 else None, steps


KINDS = {"paper": about_paper, "references": references, "which paper": which_paper,
         "alike": alike, "affiliation": affiliation, "organizations": organizations,
         "best of author": best_of_author, "together": together, "collaborators": collaborators}
FAMILIES = (*KINDS,)


def family(task_id):
    return FAMILIES[task_id % len(FAMILIES)]


def task(task_id):
    return tools.task_of(Task, KINDS[family(task_id)], task_id)


# ---- the tools ----------------------------------------------------------------------------------

class Env(tools.Env):
    tools = ("loadPaperNet", "loadAuthorNet", "neighbourCheck", "paperNodeCheck", "authorNodeCheck",
             "authorEdgeCheck", "paperEdgeCheck")

    def start(self, task_id):
        self.loaded = set()
        return super().start(task_id)

    def loadPaperNet(self):
        self.loaded.add("PaperNet")
        return "PaperNet is loaded."

    def loadAuthorNet(self):
        self.loaded.add("AuthorNet")
        return "AuthorNet is loaded."

    def node(self, net, name):
        """The Paper or Author of this name. Refused: its net is not loaded, or has none."""
        if net not in self.loaded:
            raise Refused(f"Please load the {net} first.")
        nodes = graphs()[net == "AuthorNet"]
        if name not in nodes:
            raise Refused(f"There is no node named {name[:80]} in the {net}.")
        return nodes[name]

    def neighbourCheck(self, graph: str, node: str):
        if graph not in ("PaperNet", "AuthorNet"):
            raise Refused("AttributeError('str' object has no attribute 'neighbors')")
        found = self.node(graph, node)
        return [*found.cites] if graph == "PaperNet" else partners(node)

    def paperNodeCheck(self, node: str):
        paper = self.node("PaperNet", node)
        return {"authors": [author.name for author in paper.authors], "year": paper.year,
                "venue": paper.venue, "n_citation": paper.citations,
                "keywords": [*paper.keywords], "doc_type": VENUES[paper.venue]}

    def authorNodeCheck(self, node: str):
        author = self.node("AuthorNet", node)
        return {"name": author.name, "org": author.org,
                "papers": [paper.title for paper in graphs()[2][node]]}

    def authorEdgeCheck(self, node1: str, node2: str):
        a, b = self.node("AuthorNet", node1), self.node("AuthorNet", node2)
        joint = [paper.title for paper in graphs()[2][node1] if b in paper.authors]
        if a == b or not joint:
            raise Refused(f"There is no edge between {node1} and {node2}.")
        return {"collaborative_papers": joint}

    def paperEdgeCheck(self, node1: str, node2: str):
        a, _ = self.node("PaperNet", node1), self.node("PaperNet", node2)
        if node2 not in a.cites:
            raise Refused(f"There is no edge between {node1} and {node2}.")
        return {}

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        papers, t = [self.task.paper.title, self.task.other.title], self.task
        people = [t.name, *partners(t.name)[:3], *[author.name for author in t.paper.authors]]
        return {"graph": rng.choice(["PaperNet", "AuthorNet"]),
                "answer": rng.choice(["Yes", "No", rng.randint(0, 9), *papers, *people])}.get(
                    key, rng.choice([rng.choice(papers), rng.choice(people)]))
