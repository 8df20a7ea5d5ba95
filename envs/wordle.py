"""wordle: find a five-letter word in six guesses; after LMRL-Gym and AgentGym.

    env:    Let's start Wordle!
    agent:  s h i r e                             the hidden word is crane; reward 0
    env:    b b b y g                             r is elsewhere, e is in place, the rest is absent
    agent:  c r a n e                             reward 1; "crane" is understood as well
    env:    g g g g g

A guess that is not in the vocabulary is answered "invalid word" and costs a try. After the sixth
try the episode ends with reward 0. A repeated letter is marked as often as the hidden word has it,
as in the newspapers; LMRL-Gym marks all of them.

The hidden word of a task is WORDS[task_id]; every fifth is in TEST. In tasks 0..39 ("listed") the
vocabulary is the first 40 words, all in PROMPT, as in AgentGym; from 40 on ("open") it is all of
WORDS, and the first observation says so. AgentGym's client asks for the vocabulary once, before any
reset, and tells it for every task; whoever does so gets WORDS, and plays all tasks with them. Its
server takes any number as a task: over HTTP one beyond the last counts on from the first; an Env
refuses it. Env(words=FILE) plays with the five-letter words of a file instead, one task a word.
Env(adversarial=True) fixes no word, as in LMRL-Gym: each guess is answered for a word drawn from
those that still fit. An answer is as likely as if one word had been drawn at the start (Bayes'
rule), but the trajectories of a group no longer share a word.

Success on TEST: random, each try a uniform word of the vocabulary, 2.0% ("listed" 14.1%, "open"
1.1%); the expert 100%, in 2.9 guesses on average ("listed" 2.2, "open" 3.0), over all words in 5
at most.
"""
import functools
import random
import re
from collections import Counter
from pathlib import Path

import envs
from envs.parts.agentgym import Manner, read_first
from envs.parts.wires import Wire
from envs.parts.wordle_prompt import RULES, first
from envs.parts.wordle_words import LISTED, WORDS

NAME, HORIZON = "wordle", 8
SUCCESS = 1.0
FAMILIES = ("listed", "open")
TRIES = 6


TRAIN = tuple(i for i in range(len(WORDS)) if i % 5 != 4)
TEST = range(4, len(WORDS), 5)
PROMPT = f"""You play Wordle: find a hidden five-letter word in six tries. Write a guess as five
letters with spaces between them, such as "s h i r e". Each letter of it is answered by a letter:
g, it stands in this place; y, it is in the word, but in another place; b, it is not in the word (or
not that often). A guess that is not in the vocabulary is answered "invalid word" and lost. Unless
you are told otherwise at the start, the vocabulary is: {", ".join(LISTED)}.
Make one guess a turn."""
EXAMPLE = "s h i r e"
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(task_key="seed", task_wraps=True, reset="{id observation}",
            look={"filtered_vocab": "filtered_vocab"})
AGENTGYM = Manner(RULES, read_first, first, rules_first=True)
SET_SIZES = dict(agenttraj=500, agenttraj_l=955)


def family(task_id):
    return "listed" if task_id < len(LISTED) else "open"


def fingerprint(task_id):
    return WORDS[task_id]       # the first observation hides it


def read_words(path):
    """The five-letter words of a file, one or more a line; words with capitals are left out."""
    words = Path(path).read_text(encoding="utf-8").split()
    words = tuple(dict.fromkeys(word for word in words if re.fullmatch("[a-z]{5}", word)))
    if not words:
        raise ValueError(f"wordle: {path} holds no word of five letters a to z in lower case")
    return words


def feedback(guess, hidden):
    """One mark for each letter of the guess, such as "b b b y g". Letters in place come first; each
    letter they leave of the hidden word turns one letter of the guess yellow, from the left."""
    left = [there for letter, there in zip(guess, hidden) if letter != there]
    marks = []
    for letter, there in zip(guess, hidden):
        if letter == there:
            marks.append("g")
        elif letter in left:
            left.remove(letter)
            marks.append("y")
        else:
            marks.append("b")
    return " ".join(marks)


@functools.lru_cache(maxsize=4096)      # every game of a vocabulary begins with the same guess
def best_guess(words, fitting):
    """(guess, expected number of words that fit after its answer). A guess that splits N fitting
    words by answer into groups of size n leaves sum(n^2) / N. To bound the time at about 10,000
    answers, only so many guesses are tried, the fitting words first."""
    def left(guess):
        return sum(n * n for n in Counter(feedback(guess, word) for word in fitting).values())
    if len(fitting) <= 2:
        return fitting[0], left(fitting[0]) / len(fitting)
    guesses = (fitting + words)[:1 + 10_000 // len(fitting)]
    guess = min(guesses, key=left)      # the first of equals, so a fitting word if one is as good
    return guess, left(guess) / len(fitting)


class Env(envs.Base):
    def __init__(self, words=None, adversarial=False):
        self.all_words = read_words(words) if words else WORDS
        self.one_vocabulary = bool(words)       # for every task, the listed ones too?
        self.adversarial = adversarial
        self.fitting = self.all_words

    def last_task(self):
        return len(self.all_words) - 1

    def start(self, task_id):
        listed = family(task_id) == "listed" and not self.one_vocabulary
        self.words = LISTED if listed else self.all_words
        self.hidden = self.words[task_id]
        self.draws = random.Random(f"wordle {task_id}")     # adversarial: of the answering words
        self.fitting, self.tries_left = self.words, TRIES
        if self.words is LISTED:
            return "Let's start Wordle!"
        return f"Let's start Wordle! The vocabulary: {len(self.words)} English words."

    def act(self, action):
        guess = "".join(action.split())
        guess = guess.lower() if guess.isascii() else ""    # the Kelvin sign's lower case is k
        valid, success, observation = guess in self.words, False, "invalid word"
        if valid:
            if self.adversarial:
                self.hidden = self.draws.choice(self.fitting)
            answer = feedback(guess, self.hidden)
            self.fitting = tuple(word for word in self.fitting if feedback(guess, word) == answer)
            success, observation = guess == self.hidden, answer + "\n"
        self.tries_left -= 1
        info = {"success": success, "valid": valid, "score": float(success)}
        return observation, float(success), success or not self.tries_left, info

    def filtered_vocab(self):
        """The words that fit every answer so far. Before any reset: those of every task, and then
        they are the vocabulary of every task, since AgentGym's client asks once and tells all."""
        self.one_vocabulary |= self.done is None
        return list(self.fitting)

    def expert(self):
        guess, left = best_guess(self.words, self.fitting)
        if self.tries_left == 1:
            guess = self.fitting[0]     # no use in learning more
        if len(self.fitting) == 1:
            thought = f"Only {guess!r} fits all the answers."
        elif self.tries_left == 1:
            thought = f"The last try: {guess!r} is one of {len(self.fitting)} words that fit."
        else:
            named = ": " + ", ".join(self.fitting) if len(self.fitting) <= 6 else ""
            thought = (f"{len(self.fitting)} words fit the answers so far{named}. After {guess!r} "
                       f"about {left:.1f} of them should be left.")
        return thought, " ".join(guess)

    def random_action(self, rng):
        return " ".join(rng.choice(self.words))     # of all, not only of those that still fit


def exact_success(task_id, policy, horizon=HORIZON):
    """The probability of success of "random", each try a uniform word of the vocabulary, or of the
    "expert", who plays the one game it always plays."""
    tries = min(horizon, TRIES)
    if policy == "random":
        return 1 - (1 - 1 / len(LISTED if family(task_id) == "listed" else WORDS)) ** tries
    if policy != "expert":
        raise ValueError(f"wordle: no policy {policy!r}; policies are random and expert")
    env = Env()
    env.reset(task_id)
    return float(any(env.step(env.expert()[1])[3]["success"] for _ in range(tries)))
