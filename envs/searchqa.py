"""searchqa: answer a question by searching an encyclopedia; after Search-R1 and AgentGym-RL.

    env:    Question: What country does the city of the university of Viktor Gareeau belong to?
    agent:  <search> university of Viktor Gareeau </search>
    env:    <information>Doc 1(Title: Viktor Gareeau) Viktor Gareeau was a director. Viktor Gareeau
            came into the world in 1970 and graduated from Brenaburg Academy. ...
            Doc 2(Title: Sacred Bridge (film)) There is more to tell about the film Sacred ...
            Doc 3(Title: Wild River) Wild River is a film. ...</information>         reward 0
    agent:  <search> city of Brenaburg Academy </search>
    env:    <information>Doc 1(Title: Brenaburg Academy) ... The university teaches in Corenburg ...
    agent:  <search> country of Corenburg </search>
    env:    <information>Doc 1(Title: Corenburg) ... Corenburg belongs to Queldermark. ...
    agent:  <answer> Queldermark </answer>                                     reward 1, done
    env:    Congratulations! You have answered the question correctly.

The deep-search task of AgentGym-RL (arXiv:2509.08755). There it is Wikipedia, searched with E5;
here an encyclopedia of 10,600 passages is generated (parts/knowledge.py) and searched by BM25 in
SQLite's FTS5. Its people, places and works do not exist: scores cannot be compared with published
ones. The families are like the seven question sets in kind: one fact as typed into a search box
(nq), a thing described (triviaqa), one fact of a thing with a single passage (popqa), two facts in
a row or compared (hotpotqa, 2wikimultihopqa), two to four in a row (musique), a difference of years
(bamboogle). There are 90,000 questions for one fact, 240,000 for two in a row, 900,000 for three.
TRAIN has 14,000 of them, TEST 3,125. A fifth of all things is in TEST: no question of TRAIN and
TEST is about the same thing.

An answer is right if it equals a correct one after SQuAD's normalisation. Unlike the original, a
wrong one ends the episode, as in Search-R1; NANO_SEARCHQA_RETRY=1 lets the agent try again, as
there. The first tag of a reply counts; with a second one it is played, but not valid. Ids are the
original's, family by family; beyond them is more for TRAIN, where it has NQ and HotpotQA only. The
agent's words are never FTS5 syntax. In 10 turns a random player solves 7% of TEST, `expert` all
(2.9 turns on average, 5 at most; within the suite's 4 turns 90%): it says nothing but what it has
read, yet knows which facts lead to the answer and follows no other. Who searches for the question
and answers with the title of the first passage solves 11%: 26% of triviaqa, comparisons by luck,
nothing of nq, popqa, musique and bamboogle. `--format think` has an <answer> of its own: use act,
react or agentgym.

A user's own data: `--data FOLDER` of the scripts plays the questions of FOLDER/train.jsonl and
test.jsonl over FOLDER/corpus.jsonl (parts/retrieval.py: forms of FlashRAG and Search-R1; 0.05 s and
1.5 MB for 1,000 passages, too much for all of Wikipedia). AgentGym's questions are in this form
after pandas.read_parquet(FILE).to_json("test.jsonl", orient="records", lines=True). With
NANO_SEARCHQA_URL=http://host:8000/retrieve a Search-R1 retriever is asked instead. The expert then
searches once and gives the answer of the file. Memory without this: 35 MB in each process.
"""
import functools
import os
import random
import re
import string
from bisect import bisect
from pathlib import Path

import envs
from envs.parts.agentgym import Manner
from envs.parts.knowledge import ASK, relations, said
from envs.parts.retrieval import check_fts5, library, read_questions
from envs.parts.searchqa_prompt import RULES, TASK, first, read_whole
from envs.parts.wires import Wire

NAME, HORIZON, SUCCESS = "searchqa", 10, 1.0
ENGINE = "SQLite, with FTS5"
FAMILIES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
# The original's ids: its test sets one after the other, then NQ's and HotpotQA's training sets.
STARTS = (0, 3610, 14923, 29190, 36595, 49171, 51588, 51713, 130881, 221328)
ORIGINAL = range(STARTS[-1])
OF_TEST, OF_TRAIN = 500, 2000       # of each family; bamboogle has 125 test questions
TEST = tuple(i for start, end in zip(STARTS, STARTS[1:8]) for i in range(start, end)[:OF_TEST])
# One of each family by turns; the original has no training questions of five of them.
TRAIN = tuple(task for n in range(OF_TRAIN)
              for task in (STARTS[7] + n, STARTS[8] + n, *range(STARTS[9] + 5 * n,
                                                                STARTS[9] + 5 * n + 5)))
OWN, FOLDER = (), ""    # a user's Questions, and where they and their corpus lie: see `use`
PARALLEL = bool(os.environ.get("NANO_SEARCHQA_URL"))    # steps wait for the retriever together
TINY = dict(families="popqa,nq", horizons=(2, 3), max_context=2048, max_turn_tokens=48, steps=40,
            clone=dict(steps=900, skill=0.8))
PROMPT = """You answer a question with the help of a search engine over an encyclopedia.
Actions, one per turn:
<search> words </search> - you are shown the three passages that fit these words best
<answer> the answer </answer> - ends the task, so give it when you know it
Search for one thing at a time: where a question goes over several steps, find out the first, then
search for the next with what you have read. The answer is short: a name, a year, a number; it must
be exactly right but for capitals, punctuation and articles."""
EXAMPLE = "<search> capital of France </search>"
TOOLS = {"<search> {query} </search>": "Show the three passages that fit these words best.",
         "<answer> {answer} </answer>": "Give the answer, as short as possible: it ends the task."}
# As AgentGym has it: its JSON, how its client talks to a model.
WIRE = Wire(id_key="env_idx", create="env_idx", task_key="id", reset="prompted",
            look={"observation": "prompted"})
AGENTGYM = Manner(RULES, read_whole, first, agreed="Ok.")

# The original server's sentences (agentenv-searchqa in github.com/WooooDyy/AgentGym).
INVALID = "Your previous action is invalid. If you want to search, you should put the query " \
    "between <search> and </search>. If you want to give the final answer, you should put the " \
    "answer between <answer> and </answer>. Please try again."
RIGHT = "Congratulations! You have answered the question correctly."
WRONG, AGAIN = "Sorry, your answer is incorrect.", " Please try again."

PASSAGE_WORDS = 150         # a longer passage is cut
MOST_SEARCHES = 4           # of the expert: a question for which it needs more is not asked


# ---- a user's own questions ---------------------------------------------------------------------

def use(folder):
    """What differs when it plays the questions of this folder, train.jsonl and test.jsonl, over its
    corpus.jsonl or the retriever of NANO_SEARCHQA_URL: envs.with_data."""
    train, test = (read_questions(Path(folder) / f"{split}.jsonl") for split in ("train", "test"))
    if both := {q.text for q in train} & {q.text for q in test}:
        raise ValueError(f"{NAME}: {folder}: train.jsonl and test.jsonl both ask {min(both)!r}; "
                         "take it out of one")
    if not os.environ.get("NANO_SEARCHQA_URL") and not (Path(folder) / "corpus.jsonl").is_file():
        raise ValueError(f"{NAME}: {folder} has no corpus.jsonl; add it, or give the URL of a "
                         "retriever in NANO_SEARCHQA_URL")
    own = (*train, *test)
    return dict(OWN=own, FOLDER=os.path.abspath(folder), TRAIN=range(len(train)),
                TEST=range(len(train), len(own)), family=lambda task_id: own[task_id].family,
                FAMILIES=tuple(dict.fromkeys(q.family for q in own)))


# ---- tasks --------------------------------------------------------------------------------------

def family(task_id):
    """The question set of a task, by its id; of a user's question its data_source: `use`."""
    place = bisect(STARTS, task_id) - 1
    if place < 7:
        return FAMILIES[place]
    return ("nq", "hotpotqa")[place - 7] if place < 9 else \
        ("triviaqa", "popqa", *FAMILIES[4:])[(task_id - STARTS[9]) % 5]


@functools.lru_cache(4096)
def draw(task_id):
    """The Question of a task, redrawn until the expert's searches lead to an answer that the text
    does not hold itself (a son may have his father's name)."""
    rng = random.Random(f"{NAME} {task_id}")
    while True:
        question = ASK[family(task_id)](rng, "test" if task_id < STARTS[7] else "train")
        known, asked = set(), []
        while (need := next_need(question, known)) and len(asked) < MOST_SEARCHES:
            asked.append(next_query(question, *need, known, asked))
            known.update(fact for p in library("", "").find(asked[-1]) for fact in p.facts)
        told = question.golds[0].lower() in question.text.lower() and len(question.chains) == 1
        if need is None and not told:
            return question


def next_need(question, known):
    """The first fact on the way to the answer that is not known, as (Thing, name of a relation);
    None: the answer follows from what is known."""
    return next((fact for path in question.paths for fact in path if fact not in known), None)


def next_query(question, thing, name, known, asked):
    """Words to search for a fact, in the first wording that is not among the asked ones; if all
    are, the question itself."""
    if question.hidden and not any(path[0] in known for path in question.paths):
        told = [relations()[thing.kind][n].verbs for _, (n,) in question.chains]
        values = [said(thing.facts[n]) for _, (n,) in question.chains]
        wordings = [f"{thing.noun} {thing.that} {a.format(y=values[0])} and {b.format(y=values[1])}"
                    for a in told[0] for b in told[1]]
        wordings += [f"{thing.noun} {thing.that} {verb.format(y=value)}"
                     for verbs, value in zip(told, values) for verb in verbs]
    else:
        phrases = relations()[thing.kind][name].phrases
        wordings = [phrase.format(x=thing.mention).removeprefix("the ") for phrase in phrases]
        wordings += [f"{thing.noun} {thing.name}", thing.name, *thing.also]
    return next((words for words in wordings if words not in asked), question.text)


def tell(thing, name):
    """A fact in words: the film Silent Orchard was directed by Anton Velder."""
    return f"{thing.mention} {relations()[thing.kind][name].verbs[0]}".format(
        y=said(thing.facts[name]))


def normalised(text):
    """SQuAD's: lower case, no punctuation, no articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def first_tag(reply):
    """(search or answer, what stands in it) of the first tag that is closed; ("", "") without one.
    In time that grows with the length, which a regular expression's would not."""
    found = ("", "")
    first = len(reply)
    for kind in ("search", "answer"):
        start = reply.find(f"<{kind}>")
        end = reply.find(f"</{kind}>", start)
        if 0 <= start < first and end > 0:
            first, found = start, (kind, reply[start + len(kind) + 2:end].strip())
    return found


class Env(envs.Base):
    def __init__(self, retry=None):
        """retry: a wrong answer does not end the episode; None: as NANO_SEARCHQA_RETRY says."""
        check_fts5()
        if os.environ.get("NANO_SEARCHQA_URL") and not self.module.OWN:
            raise RuntimeError(f"{NAME}: NANO_SEARCHQA_URL is set, but no questions for it; give "
                               "their folder by --data")
        self.retry = os.environ.get("NANO_SEARCHQA_RETRY") == "1" if retry is None else retry

    def start(self, task_id):
        own = self.module.OWN
        self.question = own[task_id] if own else draw(task_id)
        self.library = library(self.module.FOLDER, os.environ.get("NANO_SEARCHQA_URL", ""))
        self.titles, self.known, self.asked = {}, set(), set()      # of this episode's searches
        return f"Question: {self.question.text}"

    @property
    def prompted(self):
        """The first observation as the original's clients show it, at any time of the episode."""
        return f"{TASK}Question: {self.question.text}"

    def act(self, action):
        kind, content = first_tag(action)
        valid = action.count("<search>") + action.count("<answer>") == 1 and bool(kind)
        success = done = False
        if kind == "search":
            observation = self.search(content)
            valid &= bool(re.search(r"[^\W_]", content))
        elif kind == "answer":
            success = normalised(content) in map(normalised, self.question.golds)
            done = success or not self.retry
            observation = RIGHT if success else WRONG + AGAIN * self.retry
        else:
            observation = INVALID
        info = {"success": success, "valid": valid, "score": float(success)}
        return observation, float(success), done, info

    def search(self, query):
        """The information block for a query; what it shows is known from now on."""
        self.asked.add(query[:500])
        found = self.library.find(query)
        for passage in found:
            self.titles[passage.title] = True
            self.known.update(passage.facts)
        docs = "\n".join(f"Doc {n}(Title: {title[:300]}) {' '.join(text.split()[:PASSAGE_WORDS])}"
                         for n, (title, text, _) in enumerate(found, 1))
        return f"<information>{docs or 'No passage has any of these words.'}</information>"

    def expert(self):
        """Searches for the first fact on the way that was not read yet, then for the next. Of a
        user's own questions it knows the answer, not the way: it searches once for the question."""
        question, tone = self.question, random.Random(self.question.text)
        if self.module.OWN:
            if question.text[:500] in self.asked:
                return "The data set has an answer.", f"<answer> {question.golds[0]} </answer>"
            return "I search for the question itself.", f"<search> {question.text} </search>"
        need = next_need(question, self.known)
        if need is None:
            told = ", and ".join(tell(*path[-1]) for path in question.paths)
            said_so = re.search(rf"\b{re.escape(question.golds[0])}\b", told)
            so = "" if said_so else f" So it is {question.golds[0]}."
            thought = tone.choice(("I have read that {}. That answers the question.",
                                   "Now it is clear: {}.", "The passages say that {}."))
            return thought.format(told) + so, f"<answer> {question.golds[0]} </answer>"
        query = next_query(question, *need, self.known, self.asked)
        return self.reason(*need, tone), f"<search> {query} </search>"

    def reason(self, thing, name, tone):
        """Why the expert searches for this fact."""
        question, wanted = self.question, relations()[thing.kind][name].phrases[0].format(
            x=thing.mention)
        guessed = question.hidden and any(path[0] in self.known for path in question.paths)
        if question.hidden and not guessed:
            wanted = f"the {thing.noun} {thing.that} fits the description"
        if next_query(question, thing, name, self.known, ()) in self.asked:
            return f"I have not found {wanted} yet, so I search in other words."
        before = [fact for path in question.paths for fact, after in zip(path, path[1:])
                  if after == (thing, name)]
        if before:
            return f"I have read that {tell(*before[0])}. Next I need {wanted}."
        if guessed:
            return f"It may be {thing.mention}. To make sure I look for {wanted}."
        return tone.choice(("First I need {}.", "To answer this I look for {}.",
                            "I do not know {} yet, so I search for it.")).format(wanted)

    def random_action(self, rng):
        """Searches for a part of the question or a title it has seen, or answers with one."""
        words, titles = self.question.text.rstrip("?").split(), [*self.titles]
        if not titles or rng.random() < 0.5:
            query = rng.choice(titles) if titles and rng.random() < 0.5 else " ".join(
                words[rng.randrange(len(words)):])
            return f"<search> {query} </search>"
        return f"<answer> {rng.choice(titles).partition(' (')[0]} </answer>"
