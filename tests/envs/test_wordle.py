"""pytest tests/envs/test_wordle.py: feedback by hand and counting, every word solved."""

import random
import statistics
from itertools import product

import pytest
from players import play, wire

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
    ("speed", "abbey", "b b b g b"),    # the one e is green, so the other e gets nothing
    ("geese", "eagle", "y y b b g"),    # eagle has two e: one green at the end, one yellow, first
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
    for guess, hidden in [*product(few_letters[::5], few_letters[::4]), *zip(
            rng.choices(wordle.WORDS, k=1000), rng.choices(wordle.WORDS, k=1000))]:
        assert wordle.feedback(guess, hidden) == counted_feedback(guess, hidden), (guess, hidden)


def test_words_are_five_letters_and_split_by_hidden_word():
    assert len(wordle.LISTED) == 40 and len(set(wordle.WORDS)) == len(wordle.WORDS) == 557
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in wordle.WORDS)
    assert sorted([*wordle.TRAIN, *wordle.TEST]) == [*range(len(wordle.WORDS))]
    assert all(word in wordle.PROMPT for word in wordle.LISTED)


def test_step_answers_in_the_recorded_form_of_the_original_server():
    env = wordle.Env()      # the draws were the original's own; shire and queen, and crane by ours
    assert env.reset(wordle.WORDS.index("crane")) == "Let's start Wordle!"
    assert env.filtered_vocab() == list(wordle.LISTED)      # asked for now: what this task has
    nothing = {"success": False, "valid": True, "score": 0}
    assert env.step("s h i r e") == ("b b b y g\n", 0, False, nothing)
    assert env.step("q u e e n") == ("invalid word", 0, False, {**nothing, "valid": False})
    assert env.step("crane") == ("g g g g g\n", 1, True,
                                 {"success": True, "valid": True, "score": 1})


def test_vocabulary_asked_for_before_any_reset_is_that_of_every_task():
    """AgentGym's client asks once and puts the answer into the prompt of every game."""
    env = wordle.Env()
    told = env.filtered_vocab()
    for task_id in PARTS:
        assert "557 English words" in env.reset(task_id)
        hidden = wordle.WORDS[task_id]
        assert hidden in told and env.filtered_vocab() == told
        guess = random.Random(task_id).choice(told)
        assert env.step(guess)[0] == counted_feedback(guess, hidden) + "\n"


@pytest.mark.parametrize("seed, word", [(556, 556), (980, 423), (-1, 556), (10**12, 10**12 % 557)])
def test_any_seed_is_a_game_over_http_as_on_the_original(seed, word):
    http = wire("wordle")
    http("/create", {})
    told = http("/filtered_vocab?id=0")
    http("/reset", dict(id=0, seed=3))
    assert "error" not in http("/reset", dict(id=0, seed=seed))
    assert wordle.WORDS[word] in told
    won = http("/step", dict(id=0, action=" ".join(wordle.WORDS[word])))
    assert (won["reward"], won["done"]) == (1, True)


@pytest.mark.parametrize("last, reward", [("zzzzz", 0), ("candy", 0), ("crane", 1)])
def test_step_ends_the_game_with_the_sixth_try(last, reward):
    env = started(wordle.WORDS.index("crane"))
    for guess in ("qwert", "crane crane", "", "\u212anife"):     # the Kelvin sign's lower case is k
        assert env.step(guess) == ("invalid word", 0, False,
                                   {"success": False, "valid": False, "score": 0})
    assert env.filtered_vocab() == list(wordle.LISTED) and not env.step("shire")[2]
    assert env.step(last)[1:3] == (reward, True)


def test_expert_finds_every_word_in_six_tries_and_as_fast_as_the_docstring_says():
    env, guesses = wordle.Env(), {}
    for task_id in range(len(wordle.WORDS)):
        turns = play(env, task_id)
        assert turns[-1][2] == 1 and all(info["valid"] for *_, info in turns), task_id
        guesses[task_id] = len(turns)
    means = [statistics.mean(guesses[i] for i in wordle.TEST if wordle.family(i) in families)
             for families in (wordle.FAMILIES, ("listed",), ("open",))]
    assert "in {:.1f} guesses on average (\"listed\" {:.1f}, \"open\" {:.1f})".format(
        *means) in wordle.__doc__
    assert f"over all words in {max(guesses.values())}\nat most" in wordle.__doc__


@pytest.mark.parametrize("task_id", [3, 300])
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
    env.reset(task_id)
    assert len({(env.step("igloo"), env.hidden)[1] for _ in range(5)}) > 1  # drawn anew each time


def test_exact_success_of_random_in_one_and_two_tries():
    # 40 words: 1/40 at the first try; then 39/40 of the games go on to a second
    assert wordle.exact_success(0, "random", 2) == pytest.approx(1 / 40 + 39 / 40 * 1 / 40)
    assert wordle.exact_success(OPEN[0], "random", 1) == pytest.approx(1 / len(wordle.WORDS))
    rng = random.Random(0)
    drawn = {started(0).random_action(rng).replace(" ", "") for _ in range(400)}
    assert drawn == set(wordle.LISTED)


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
