"""pytest tests/test_env_wordle.py: feedback by hand and counting, every word solved, dice."""

import json
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from env_server import Service, respond
from envs import wordle

OPEN = range(len(wordle.LISTED), len(wordle.WORDS))
PARTS = range(0, len(wordle.WORDS), 7)     # some tasks of both families and of both splits


def started(task_id, **flags):
    env = wordle.Env(**flags)
    env.reset(task_id)
    return env


@pytest.mark.parametrize("guess, hidden, answer", [
    ("babes", "abbey", "y y g g b"),    # green: the second b, e. Left of abbey: a, b, y; so the
                                        # first b and the a are yellow, the s is black
    ("abbey", "babes", "y y g g b"),    # the same the other way round, with y for s
    ("speed", "abbey", "b b b g b"),    # the one e is green, so the other e gets nothing
    ("eerie", "crane", "b b y b g"),    # e in place: no yellow e before it; r elsewhere
    ("daddy", "candy", "b g b g g"),    # one d is green, and candy has no second one
    ("geese", "eagle", "y y b b g"),    # eagle has two e: one green at the end, one yellow, first
    ("crane", "crane", "g g g g g"),
    ("ghost", "maple", "b b b b b"),
])
def test_feedback_on_cases_worked_by_hand(guess, hidden, answer):
    assert wordle.feedback(guess, hidden) == answer


def counted_feedback(guess, hidden):
    """Letter by letter of the alphabet: all matches green, then as many of the other places yellow
    as the hidden word has letters left, the rest black."""
    marks = [""] * 5
    for letter in set(guess):
        places = [i for i in range(5) if guess[i] == letter]
        green = [i for i in places if hidden[i] == letter]
        other = [i for i in places if i not in green]
        yellow = other[:hidden.count(letter) - len(green)]
        for i in places:
            marks[i] = "g" if i in green else "y" if i in yellow else "b"
    return " ".join(marks)


def test_feedback_agrees_with_counting_letters():
    few_letters = ["".join(letters) for letters in product("abc", repeat=5)]
    rng = random.Random(0)
    pairs = [(guess, hidden) for guess in few_letters[::5] for hidden in few_letters[::2]]
    pairs += [(rng.choice(wordle.WORDS), rng.choice(wordle.WORDS)) for _ in range(3000)]
    for guess, hidden in pairs:
        assert wordle.feedback(guess, hidden) == counted_feedback(guess, hidden), (guess, hidden)


def test_words_are_five_letters_and_split_by_hidden_word():
    assert len(wordle.LISTED) == 40 and 300 <= len(wordle.WORDS)
    assert len(set(wordle.WORDS)) == len(wordle.WORDS)
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in wordle.WORDS)
    assert sorted([*wordle.TRAIN, *wordle.TEST]) == [*range(len(wordle.WORDS))]
    train, test = ({wordle.fingerprint(i) for i in ids} for ids in (wordle.TRAIN, wordle.TEST))
    assert not train & test
    assert all(word in wordle.PROMPT for word in wordle.LISTED)
    for ids in (wordle.TRAIN, wordle.TEST):
        assert {wordle.family(i) for i in ids} == {"listed", "open"}


def test_step_answers_in_the_recorded_form_of_the_original_server():
    env = wordle.Env()      # the draws were the original's own; shire and queen, and crane by ours
    assert env.reset(wordle.WORDS.index("crane")) == "Let's start Wordle!"
    assert env.filtered_vocab() == list(wordle.LISTED) and len(env.filtered_vocab()) == 40
    nothing = {"success": False, "valid": True, "score": 0}
    assert env.step("s h i r e") == ("b b b y g\n", 0, False, nothing)
    assert env.step("q u e e n") == ("invalid word", 0, False, {**nothing, "valid": False})
    assert env.step("crane") == ("g g g g g\n", 1, True,
                                 {"success": True, "valid": True, "score": 1})


def test_reset_tells_when_the_vocabulary_is_not_the_listed_one():
    env = wordle.Env()
    assert str(len(wordle.WORDS)) in env.reset(OPEN[0])
    assert env.step("queen")[3]["valid"]
    assert env.filtered_vocab() == [word for word in wordle.WORDS if wordle.feedback("queen", word)
                                    == wordle.feedback("queen", wordle.WORDS[OPEN[0]])]


def test_vocabulary_asked_for_before_any_reset_is_that_of_every_task():
    """AgentGym's client asks once and puts the answer into the prompt of every game."""
    env = wordle.Env()
    told = env.filtered_vocab()
    for task_id in PARTS:
        assert "557 English words" in env.reset(task_id)
        hidden = wordle.WORDS[task_id]
        assert hidden in told and env.filtered_vocab() == told
        assert not env.step("zzzzz")[3]["valid"]
        for guess in random.Random(task_id).sample(told, 3):
            assert env.step(guess)[0] == counted_feedback(guess, hidden) + "\n"
            if guess == hidden:
                break
    words = list(wordle.LISTED)         # whoever asks afterwards is told what this task has
    assert started(0).filtered_vocab() == words


def http(services, path, **body):
    """The reply of a server to a POST, or to a GET where nothing is sent."""
    raw = json.dumps(body).encode()
    status, text = respond(services, "POST" if body else "GET", path, raw if body else b"")
    assert status == 200, text
    return json.loads(text)


@pytest.mark.parametrize("seed, word", [(0, 0), (556, 556), (557, 0), (980, 423), (-1, 556),
                                        (10**12, 10**12 % 557)])
def test_any_seed_is_a_game_over_http_as_on_the_original(seed, word):
    services = {"wordle": Service("wordle")}
    http(services, "/create", x=0)
    told = http(services, "/filtered_vocab?id=0")
    http(services, "/reset", id=0, seed=3)
    assert "error" not in http(services, "/reset", id=0, seed=seed)
    assert wordle.WORDS[word] in told
    won = http(services, "/step", id=0, action=" ".join(wordle.WORDS[word]))
    assert (won["reward"], won["done"]) == (1, True)


@pytest.mark.parametrize("action", ["", "c r a n", "cranes", "crane crane", "зебра", "crane\x00",
                                    "\u212anife",       # the Kelvin sign, whose lower case is k
                                    "qwert", "x" * 10_000])
def test_step_answers_what_is_no_word_and_takes_a_try(action):
    env = started(0)
    before = env.filtered_vocab()
    assert env.step(action) == ("invalid word", 0, False,
                                {"success": False, "valid": False, "score": 0})
    assert env.filtered_vocab() == before and env.tries_left == 5


@pytest.mark.parametrize("last, reward", [("zzzzz", 0), ("candy", 0), ("crane", 1)])
def test_step_ends_the_game_with_the_sixth_try(last, reward):
    env = started(wordle.WORDS.index("crane"))
    for guess in ("zzzzz", "shire", "shire", "", "abbey"):
        assert not env.step(guess)[2]
    assert env.step(last)[1:3] == (reward, True)
    with pytest.raises(ValueError, match="the episode is over; reset first"):
        env.step("crane")


def test_expert_finds_every_word_in_six_tries_and_as_fast_as_the_docstring_says():
    env, guesses = wordle.Env(), {}
    for task_id in range(len(wordle.WORDS)):
        env.reset(task_id)
        done = False
        while not done:
            _, reward, done, info = env.step(env.expert()[1])
            assert info["valid"]
        assert reward == 1, wordle.WORDS[task_id]
        guesses[task_id] = 6 - env.tries_left
    means = [statistics.mean(guesses[i] for i in wordle.TEST if wordle.family(i) in families)
             for families in (wordle.FAMILIES, ("listed",), ("open",))]
    assert "in {:.1f} guesses on average (\"listed\" {:.1f}, \"open\" {:.1f})".format(
        *means) in wordle.__doc__
    assert f"over all words in {max(guesses.values())}\nat most" in wordle.__doc__


def test_best_guess_leaves_the_fewest_words_on_average():
    words = wordle.LISTED[:20]

    def left(guess):        # the words that still fit, averaged over what may be hidden
        return statistics.mean(sum(counted_feedback(guess, word) == counted_feedback(guess, hidden)
                                   for word in words) for hidden in words)
    guess, expected = wordle.best_guess(words, words)
    assert expected == pytest.approx(left(guess)) == pytest.approx(min(map(left, words)))


def test_expert_bets_on_a_word_that_fits_when_one_try_is_left():
    rng = random.Random(0)
    for task_id in PARTS[::8]:
        env = started(task_id)
        env.step(env.random_action(rng))
        for _ in range(4):
            env.step("nonsense")
        thought, action = env.expert()
        assert action.replace(" ", "") in env.filtered_vocab()
        assert "last try" in thought or "Only" in thought


def test_expert_goes_on_from_what_others_guessed():
    rng, wins = random.Random(0), 0
    for task_id in PARTS[::2]:
        env = started(task_id)
        done = any(env.step(env.random_action(rng))[2] for _ in range(2))
        while not done:
            _, reward, done, _ = env.step(env.expert()[1])
            wins += reward
    assert wins > 0.9 * len(PARTS[::2])     # four tries for what two random guesses left


@pytest.mark.parametrize("task_id", [3, 9, 44, 300])
def test_adversarial_answers_fit_the_word_that_wins(task_id):
    env, again = (started(task_id, adversarial=True) for _ in range(2))
    answers, done = [], False
    while not done:
        _, action = env.expert()
        observation, reward, done, _ = env.step(action)
        assert again.step(action)[0] == observation     # the task seeds the draws
        answers.append((action.replace(" ", ""), observation.strip()))
        fitting = [word for word in env.words
                   if all(counted_feedback(guess, word) == answer for guess, answer in answers)]
        assert env.filtered_vocab() == fitting
    assert reward == 1 and fitting == [answers[-1][0]]


def test_adversarial_word_is_drawn_anew_at_each_guess():
    """The same guess twice is answered alike, and yet the first guess wins about once in 40 games,
    whatever the task's own word is."""
    wins = 0
    for task_id in range(len(wordle.LISTED)):
        env = started(task_id, adversarial=True)
        observation, reward, done, _ = env.step("crane")
        wins += reward
        assert done or env.step("crane")[0] == observation
    assert wins <= 5        # Poisson with mean 1: more than 5 has probability 0.0006
    hidden = []
    env = started(0, adversarial=True)
    for _ in range(5):
        env.step("igloo")
        hidden.append(env.hidden)
    assert len(set(hidden)) > 1


def test_exact_success_of_random_agrees_with_play():
    rng, env, n = random.Random(0), wordle.Env(), 2500
    wins = 0
    for game in range(n):
        env.reset(game % 40)
        done = False
        while not done:
            _, reward, done, _ = env.step(env.random_action(rng))
        wins += reward
    p = wordle.exact_success(0, "random")
    assert abs(wins / n - p) < 3 * (p * (1 - p) / n) ** 0.5
    # 40 words: 1/40 at the first try; then 39/40 of the games go on to a second
    assert wordle.exact_success(0, "random", 2) == pytest.approx(1 / 40 + 39 / 40 * 1 / 40)
    assert wordle.exact_success(OPEN[0], "random", 1) == pytest.approx(1 / len(wordle.WORDS))


def test_random_action_draws_every_word_of_the_vocabulary_also_those_that_no_longer_fit():
    env, rng = started(0), random.Random(0)
    env.step("zebra")
    drawn = Counter(env.random_action(rng).replace(" ", "") for _ in range(2000))
    assert set(drawn) == set(wordle.LISTED)


def test_exact_success_of_the_expert_follows_its_game():
    for task_id in PARTS[::4]:
        env = started(task_id)
        needed = 1
        while not env.step(env.expert()[1])[2]:
            needed += 1
        assert [wordle.exact_success(task_id, "expert", horizon) for horizon in range(9)] == [
            horizon >= needed for horizon in range(9)]
    with pytest.raises(ValueError, match="no policy 'best'"):
        wordle.exact_success(0, "best")


def test_docstring_states_the_random_baseline_of_test():
    def percent(ids):
        return f"{100 * statistics.mean(wordle.exact_success(i, 'random') for i in ids):.1f}%"
    listed = [i for i in wordle.TEST if i not in OPEN]
    text = " ".join(wordle.__doc__.split())
    assert percent(wordle.TEST) + f' ("listed" {percent(listed)}, "open" ' in text
    assert percent(set(wordle.TEST) - set(listed)) + "); the expert" in text


def test_words_of_a_file_replace_the_vocabulary(tmp_path):
    file = tmp_path / "words"
    file.write_text("apple\nParis\nfour\nit's a\nrobin rebel\napple\nnaïve\n", encoding="utf-8")
    env = wordle.Env(words=file)
    env.reset(2)
    assert env.filtered_vocab() == ["apple", "robin", "rebel"]
    assert env.step("robin")[0] == "g b g b b\n"            # of rebel: r and b in place
    assert env.step("crane")[0] == "invalid word" and env.step("rebel")[1] == 1
    with pytest.raises(ValueError, match="no task 3; tasks are 0..2"):
        env.reset(3)
    file.write_text("CRANE")
    with pytest.raises(ValueError, match="holds no word of five letters"):
        wordle.Env(words=file)


def test_games_do_not_depend_on_the_hash_seed():
    program = """
from envs import wordle
for flags in ({}, {"adversarial": True}):
    env = wordle.Env(**flags)
    for task_id in (0, 39):
        print(env.reset(task_id))
        done = False
        while not done:
            thought, action = env.expert()
            observation, _, done, _ = env.step(action)
            print(thought, action, observation)
"""
    told = {subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent.parent,
                           env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                           capture_output=True, text=True).stdout for seed in "123"}
    assert len(told) == 1 and "g g g g g" in told.pop()
