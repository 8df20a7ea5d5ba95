"""pytest tests/test_agentevol.py: demonstrations, their mask, the tokenizer, the cloned folder;
then AgentEvol: what is explored, filtered, merged and learned, resumed runs, ranks, flags.

Played are the two toys of fakes.py, on a server in this process. The files of trajectories are
tested in test_agenttraj.py.
"""
import json
import os
import re
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes import config, flags_of, started
from more.test_agenttraj import trained
from test_ranks import on_ranks
from test_train import lines_of, same, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import agentevol
import cloning
import envs
import metrics
import parallel
import rollout
import run
import train
from agentevol import Evolve, evolve, explore, reward, successes
from chat import FORMATS, Agent, make_tokenizer
from client import EnvClient
from flags import parse_flags
from cloning import (
    Clone,
    clone,
    clone_flags,
    imitated,
    learn,
    learn_step,
    lesson,
    tokenizer_of,
    trajectories_of,
)
from envs import demonstrations, maze, record, textcraft, textcraft_small, wordle
from episode import Trajectory, World
from flags import parse_flags
from policy import make_policy
from recipes import clone_observations
from rollout import Stats

CPU = torch.device("cpu")
SMALL = Clone(env="textcraft_small", n=24, skill=0.4, steps=30, batch=8, width=32, layers=1,
              vocabulary=300, lr=1e-2)


@pytest.fixture(scope="module")
def demos():
    return lesson(SMALL)


@pytest.fixture(scope="module")
def folder(demos, tmp_path_factory):
    out = tmp_path_factory.mktemp("clone") / "policy"
    clone(SMALL, demos, str(out), CPU)
    return str(out)


# ---- demonstrations ----

@pytest.mark.parametrize("skill, experts", [(1.0, {True}), (0.5, {True, False}), (0.0, {False})])
def test_record_is_what_the_environment_answered_the_expert_or_chance(skill, experts):
    demo, env, found = record("maze", skill, 0, 30), maze.Env(), set()
    seen = env.reset(30)
    for observation, thought, action, *answer in demo["turns"]:
        found.add((thought, action) == env.expert())
        assert observation == seen
        seen, *rest = env.step(action)
        assert answer == rest
    assert found == experts
    assert demo["last"] == seen and demo["success"] == rest[2]["success"]
    assert demo["success"] or skill < 1
    assert rest[1] or len(demo["turns"]) == maze.HORIZON
    assert demo == record("maze", skill, 0, 30)
    assert (demo != record("maze", skill, 1, 30)) == (skill < 1)


def test_demonstrations_of_parallel_processes_are_the_serial_ones(monkeypatch):
    serial = demonstrations("maze", range(12), 12, 0.6, seed=1)
    assert [demo["task_id"] for demo in serial] == list(range(12))
    monkeypatch.setattr(envs, "PATIENCE", 0)
    assert demonstrations("maze", range(12), 12, 0.6, seed=1, processes=1) == serial


@pytest.mark.parametrize("count, played, kept", [
    (3, [0, 1, 2, 3, 4, 5], [0, 3, 5]),             # for 1 and 2 comes 3, 4 again fails
    (1, [0], [0]), (0, [], []),
    (9, [*range(8)], [0, 3, 5, 6, 7])])             # there are no more tasks
def test_demonstrations_of_an_expert_are_successes(count, played, kept, monkeypatch):
    asked = []

    def record(name, skill, seed, task_id, horizon):
        asked.append((task_id, skill, seed, horizon))
        return dict(task_id=task_id, success=task_id not in (1, 2, 4))
    monkeypatch.setattr(envs, "record", record)
    demos = demonstrations("maze", range(8), count, 1.0, 5, 6)
    assert [demo["task_id"] for demo in demos] == kept
    assert asked == [(task_id, 1.0, 5, 6) for task_id in played]


@pytest.mark.parametrize("count, rounds", [(2, 1), (4, 1), (7, 1), (8, 2), (13, 3)])
def test_demonstrations_of_a_player_with_luck_are_whole_rounds(count, rounds, monkeypatch):
    """Failures too: they are part of what it does. Each round has other chances."""
    monkeypatch.setattr(envs, "record", lambda name, skill, seed, task_id, **_: dict(
        task_id=task_id, seed=seed, success=False))
    demos = demonstrations("maze", [3, 1, 4, 5], count, 0.5, 9)
    assert [demo["task_id"] for demo in demos] == [3, 1, 4, 5][:count] * rounds
    seeds = [demo["seed"] for demo in demos]
    assert len({*seeds}) == rounds and seeds[0] == 9 and seeds == sorted(seeds)


def test_lesson_plays_a_fair_choice_of_the_families_asked_for():
    cfg = replace(SMALL, families="depth 2", n=5)
    demos, again = lesson(cfg), lesson(cfg)
    wanted = [t for t in textcraft_small.TRAIN if textcraft_small.family(t) == "depth 2"]
    chosen = [demo["task_id"] for demo in demos]
    assert len({*chosen} & {*wanted}) == 5 and max(chosen) > wanted[len(wanted) // 2]
    assert demos == again == demonstrations("textcraft_small", chosen, 5, SMALL.skill, SMALL.seed)
    assert [demo["task_id"] for demo in lesson(replace(cfg, seed=1))] != chosen


def test_lesson_plays_as_many_of_each_environment_as_agentgyms_set_has(monkeypatch, capsys):
    """AgentTraj: 100 of maze, 500 of wordle, which are more than there are words; others by n."""
    skills = []

    def demonstrations(name, tasks, count, skill, *_, **more):
        skills.append(skill)
        return [dict(env=name, success=True) for _ in tasks[:count]]
    monkeypatch.setattr(agentevol, "demonstrations", demonstrations)
    cfg = replace(SMALL, env="maze,wordle,bandit", set="agenttraj", n=7, skill=0.6)
    counts = Counter(demo["env"] for demo in lesson(cfg))
    said = capsys.readouterr().out.splitlines()
    assert counts == dict(maze=100, wordle=len(wordle.TRAIN), bandit=7) and counts["wordle"] < 500
    assert said[1].startswith(f"wordle: {len(wordle.TRAIN)} demonstrations of 500 wanted, skill 1"
                              f", {len(wordle.TRAIN)} succeed")
    counts = Counter(d["env"] for d in lesson(replace(cfg, set="agenttraj_l", env="maze")))
    assert counts == dict(maze=215) and {*skills} == {1.0}      # the sets are experts'


def test_lesson_of_other_goals_never_sets_out_for_the_tasks_own(capsys):
    for demo in lesson(replace(SMALL, n=50, skill=1, goal="other")):
        goal = demo["turns"][0][0].rpartition("craft ")[2].rstrip(".")
        wishes = {turn[1] for turn in demo["turns"]}
        assert all(wish.startswith("I would like to have ") for wish in wishes)
        assert f"I would like to have {goal}." not in wishes
    with pytest.raises(ValueError, match="goal=other: wordle has no player for it; leave it out"):
        lesson(replace(SMALL, env="wordle", goal="other"))


# ---- what is imitated ----

@pytest.mark.parametrize("style", sorted({*FORMATS} - {"tool"}))
@pytest.mark.parametrize("context", ["full", "window", "memory"])
def test_imitated_masks_exactly_the_replies(demos, style, context):
    tokenizer, lost = tokenizer_of(demos, SMALL), [demo for demo in demos if not demo["success"]]
    agent = Agent(tokenizer, format=style, context=context, window=2, max_turn_tokens=1,
                  max_context=10**9, module=textcraft)
    for demo in [*demos[:4], lost[0]]:
        trajectory = imitated(agent, demo)
        replies, expected = trained(trajectory, tokenizer), []
        for i, (_, thought, action, *_) in enumerate(demo["turns"]):
            done = "; ".join(turn[2] for turn in demo["turns"][:i])
            note = f"Note: {done}\n" if context == "memory" else ""
            plan = f"Plan: {thought}\n" if style == "plan" and i == 0 else ""
            words = {"act": action, "think": f"<think>{thought}</think><answer>{action}</answer>",
                     "agentgym": f"Thought:\n{thought}\n\nAction:\n{action}"}
            words = words.get(style, f"Thought: {thought}\nAction: {action}")
            expected.append(f"{note}{plan}{words}<|end|>")
        assert replies == expected
        assert [turn.reward for turn in trajectory.turns] == [turn[3] for turn in demo["turns"]]
        assert trajectory.success == demo["success"]
        shown = len(replies) + (style == "reflect" and not demo["success"])    # asked for a lesson
        assert len(trajectory.contexts) == {
            "full": 1, "memory": shown, "window": 1 + max(0, shown - 3)}[context]


# ---- the tokenizer ----

WORDS = ["", " ", "  two  spaces ", "\n\n\t", "get 2 bone", "GET2BONE", "naïve café", "请向左走",
         "🎲🚪", "e\u0301 is not é", "\u200b\ufeff", "don't", "a" * 300, "1234567", "a.b", "\r\n"]


def test_the_tokenizer_has_one_token_for_what_an_environment_calls_one_word():
    seen = "#_P_#\n#XOG#\nYou have 2 left.\nThis is no row: #_#"
    tokenizer = make_tokenizer([seen], 300, r"^#.*\n?|You have .*")
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode(seen)]
    assert tokens == ["#_P_#\n", "#XOG#\n", "You have 2 left.", "\n", "This", " is", " no", " row",
                      ":", " #_#"]
    assert tokenizer.decode(tokenizer.encode("#__P#\nNo move.")) == "#__P#\nNo move."


def test_the_tokenizer_is_the_same_after_a_save(demos, folder):
    """Beside a config.json that says qwen2 AutoTokenizer once put Qwen's own splitting."""
    texts = [text for demo in demos for turn in demo["turns"] for text in (turn[0], turn[2])]
    made, loaded = tokenizer_of(demos, SMALL), AutoTokenizer.from_pretrained(folder)
    assert made.get_vocab() == make_tokenizer(texts, SMALL.vocabulary).get_vocab()
    assert loaded.get_vocab() == made.get_vocab()
    for text in WORDS + texts[:50]:
        assert loaded.encode(text) == made.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]
    for tokenizer in (made, loaded):
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True
                                             ) == "<|user|>go<|end|><|assistant|>"


# ---- the policy ----

def test_clone_writes_an_ordinary_folder(folder):
    stock, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(
        folder)
    assert stock.config._attn_implementation == "sdpa" and stock.config.hidden_size == 32
    assert stock.config.vocab_size == len(tokenizer) == 300
    assert stock.config.eos_token_id == tokenizer.eos_token_id == 0
    assert stock.config.bos_token_id is None
    assert stock.get_output_embeddings().weight is stock.get_input_embeddings().weight
    assert Clone(**json.load(open(f"{folder}/defaults.json"))["cloned"]) == SMALL


def test_make_policy_is_a_function_of_its_seed():
    first, again, other = (make_policy(300, 32, 1, 4, seed).state_dict() for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)


@pytest.fixture
def rates(monkeypatch):
    """The learning rates of a `learn` whose steps do nothing else and take a second each."""
    now, rates = [0.0], []

    def learn_step(policy, optimizer, *_):
        now[0] += 1
        rates.append(optimizer.param_groups[0]["lr"])
        return 0.0
    monkeypatch.setattr(cloning, "learn_step", learn_step)
    monkeypatch.setattr(agentevol, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return rates


def imitate(steps, lr, **more):
    """`learn` of trajectories that all weigh 1."""
    learn(toy_policy(), [None] * 4, [1.0] * 4, steps, lr, replace(SMALL, batch=1), 0, **more)


def test_learn_rises_for_a_twentieth_and_falls_by_a_cosine_to_a_tenth(rates):
    imitate(40, 0.02)
    assert len(rates) == 40 and rates.index(max(rates)) == 2            # a twentieth of 40
    # shares of the peak: at first 0.02; after a fortieth 1/2 + 0.02 of cos 4.5 degrees; then
    # 0.1 + 0.9 (1 + cos) / 2 at 45, 90 and 135 degrees; at 175.5 almost a tenth
    expected = {0: 0.02, 1: 0.52 * (0.1 + 0.9 * 0.998459), 10: 0.868198, 20: 0.55, 30: 0.231802,
                39: 0.1 + 0.9 * 0.001541}
    assert [rates[i] / 0.02 for i in expected] == pytest.approx([*expected.values()], abs=1e-5)


def test_learn_ends_when_its_seconds_are_over(rates):
    """The rate falls as over so many steps."""
    imitate(10**6, 1e-3, seconds=20)
    assert len(rates) == 20 and rates[10] == pytest.approx(0.55e-3)     # half of the way


def test_continue_cloning_is_gentler_and_in_another_order(url, model, here, monkeypatch):
    """The control: cloning's peak again would undo what was learned, its seed repeat the order."""
    calls = []
    monkeypatch.setattr(cloning, "learn", lambda policy, trajectories, *rest: calls.append(
        ([t.task_id for t in trajectories], *rest)))
    run = started(url, config(model))
    run.history = [dict(seconds=3.5), dict(seconds=4.0)]
    cloning.continue_cloning(run)
    ((tasks, weights, _, lr, cfg, seed, seconds),) = calls
    assert tasks == [d["task_id"] for d in lesson(clone_flags(run.cfg))] and weights == [1.0] * 20
    assert (cfg.n, cfg.steps, cfg.width, cfg.horizon, seconds) == (20, 12, 32, 3, 7.5)
    assert lr == pytest.approx(Clone.lr / 4) and seed != run.cfg.seed


# ---- a weighted step ----------------------------------------------------------------------------

def spoken(*pieces, task_id=0, **more):
    """A trajectory of hand-made tokens: observation, reply, observation, reply, ..."""
    trajectory = Trajectory(task_id, **more)
    trajectory.begin_context(list(pieces[0]))
    for i, piece in enumerate(pieces[1:]):
        if i % 2:
            trajectory.add_observation(list(piece))
        else:
            trajectory.add_action(list(piece), [0.0] * len(piece))
    return trajectory


WEIGHED = [(spoken([1, 7], [8, 9, 0], [3], [5, 0]), 0.5), (spoken([2, 4, 6], [4]), 2.0),
           (spoken([5], [6, 6, 2, 0]), 0.25)]               # of 5, 1 and 4 sampled tokens
FACTORS = 0.5 / 5.5, 2 / 5.5, 0.25 / 5.5      # of log pi: its weight over 5 * 0.5 + 2 + 4 * 0.25


def toy_policy():
    return make_policy(12, 8, 1, 2, seed=3)


def two_steps(trajectories, weights, learn_step, **settings):
    """`learn_step` on these, twice -> (its loss, the gradients that the optimizer was given). The
    policy does not move, and nothing of the first is left in the second."""
    policy, grads = toy_policy(), {}
    optimizer = SimpleNamespace(zero_grad=policy.zero_grad, step=lambda: grads.update(
        (name, w.grad.clone()) for name, w in policy.named_parameters()))
    arguments = policy, optimizer, trajectories, weights, Evolve(**settings)
    learn_step(*arguments)
    return learn_step(*arguments), grads


def by_hand(factors, observations):
    """The same by a plain loop over WEIGHED and its tokens, a forward pass for each trajectory."""
    ours, loss = toy_policy(), torch.zeros(())
    policy = AutoModelForCausalLM.from_config(LlamaConfig(**ours.config.to_dict()))     # stock
    policy.load_state_dict(ours.state_dict())
    for (t, _), factor in zip(WEIGHED, factors):
        logprobs = policy(torch.tensor([t.token_ids])).logits[0].log_softmax(-1)
        sampled = {at for turn in t.turns for at in range(turn.start, turn.end)}
        for at in range(1, len(t.token_ids)):
            share = 1.0 if at in sampled else observations
            loss = loss - share * factor * logprobs[at - 1, t.token_ids[at]]
    loss.backward()
    return loss.item(), {name: w.grad for name, w in policy.named_parameters()}


@pytest.mark.parametrize("micro_tokens, observations", [(1, 0.0), (9, 0.3), (8192, 0.0),
                                                        (8192, 1.0)])
def test_learn_step_follows_the_weighted_log_likelihood(micro_tokens, observations, monkeypatch):
    """Of the replies' tokens, and in the recipe also of those that are read."""
    monkeypatch.setenv("OBSERVATIONS", str(observations))
    step = clone_observations.learn_step if observations else learn_step
    loss, grads = two_steps(*zip(*WEIGHED), step, micro_tokens=micro_tokens)
    expected, own = by_hand(FACTORS, observations)
    norm = sum(g.square().sum() for g in own.values()).sqrt().item()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert norm > 1                         # so it is cut to length 1
    for name, grad in grads.items():
        torch.testing.assert_close(grad, own[name] / norm, atol=1e-6, rtol=1e-4)


# ---- the filter ---------------------------------------------------------------------------------

def won(env, task_id, score):
    return spoken([1], [2, 2], task_id=task_id, env=env, score=score)


@pytest.mark.parametrize("env, score, kept, share", [
    ("sciworld", 99.0, False, 0.99), ("sciworld", 99.5, True, 0.995), ("sciworld", 100.0, True, 1),
    ("sciworld", -100.0, False, 0), ("babyai", 0.0, False, 0), ("babyai", 0.1, True, 0.1),
    ("maze", 0.99, False, 0.99), ("maze", 1.0, True, 1), ("maze", -1.0, False, 0),
    ("wordle", 0.9, False, 0.9), ("textcraft", 1.0, True, 1)])
def test_successes_are_above_a_threshold_and_rewards_shares_of_the_best_score(env, score, kept,
                                                                              share):
    trajectory = won(env, 3, score)
    assert successes([trajectory], True) == [trajectory] * kept
    assert reward(trajectory) == pytest.approx(share)


def test_successes_are_the_first_of_each_task_or_all():
    a, b, c, d, e, f = (won("maze", 1, 0.0), won("maze", 1, 1.0), won("maze", 1, 1.0),
                        won("wordle", 1, 1.0), won("maze", 0, 1.0), won("maze", 1, 1.0))
    unplayed = Trajectory(7, env="babyai", score=1.0)           # its prompt did not fit
    explored = [unplayed, a, b, c, d, e, f]
    assert [*map(id, successes(explored, True))] == [*map(id, (b, d, e))]
    assert [*map(id, successes(explored, False))] == [*map(id, (b, c, d, e, f))]


# ---- the loop, with every part but `evolve` itself in our hands ----------------------------------

class NamedPolicy(str):
    device = "cpu"


class Played:
    """A run whose exploration brings what the test says, and what `evolve` then did."""

    def __init__(self, monkeypatch, explored, **settings):
        self.learned, self.loaded, self.saved, self.recorded, self.now = [], [], [], [], 0.0
        cfg = Evolve(**dict(iterations=len(explored), learn_steps=7, learn_lr=0.5, seed=30)
                     | settings)
        self.run = SimpleNamespace(cfg=cfg, step=0, policy=NamedPolicy("last"), optimizer=None,
                                   start_model="base", evaluations=[])
        monkeypatch.setattr(agentevol, "explore", lambda run: (explored[run.step], Stats()))
        monkeypatch.setattr(parallel, "load", lambda path, *_: (
            self.loaded.append(path) or NamedPolicy("fresh")))
        monkeypatch.setattr(cloning, "learn", self.learn)
        monkeypatch.setattr(metrics, "evaluate", self.evaluate)
        monkeypatch.setattr(metrics, "record_iteration", lambda *of: self.recorded.append(of))
        monkeypatch.setattr(run, "save", lambda run: self.saved.append(run.step))
        monkeypatch.setattr(agentevol, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def learn(self, policy, data, weights, *rest):
        self.now += 3                                   # seconds
        self.learned.append((policy, data, weights, rest))

    def evaluate(self, run):
        self.now += 50
        run.evaluations.append((run.step, {}))


BASE = [won("maze", 0, 1.0), won("babyai", 5, 0.55), won("maze", 2, 0.0)]       # the last failed
FOUND = [won("maze", 8, 0.0), won("babyai", 9, 0.4), won("maze", 8, 1.0), won("maze", 8, 1.0)]


@pytest.mark.parametrize("settings, data, weights", [
    (dict(), [*BASE, FOUND[1], FOUND[2]], [1.0, 0.55, 0.0, 0.4, 1.0]),
    (dict(dedupe=False), [*BASE, *FOUND[1:]], [1.0, 0.55, 0.0, 0.4, 1.0, 1.0]),
])
def test_evolve_merges_what_succeeded_with_the_base_set(settings, data, weights, monkeypatch):
    """The base set first; weights are scores from 0 to 1."""
    played = Played(monkeypatch, [FOUND, FOUND[:1]], **settings)
    base = [*BASE]
    evolve(played.run, base)
    (_, got, w, _), (_, again, *_) = played.learned
    assert got == data and w == pytest.approx(weights)
    assert base == BASE                                 # and no iteration's finds stay in it
    assert again == BASE


@pytest.mark.parametrize("start, policies", [("base", ["fresh", "fresh"]),
                                             ("last", ["last", "last"])])
def test_evolve_begins_to_learn_from_the_base_policy_or_from_the_last(start, policies, monkeypatch):
    played = Played(monkeypatch, [FOUND, FOUND], start=start)
    evolve(played.run, BASE)
    assert [policy for policy, *_ in played.learned] == policies
    assert played.loaded == ["base"] * policies.count("fresh")
    for m, (*_, (steps, lr, cfg, seed)) in enumerate(played.learned):
        assert (steps, lr, cfg, seed) == (7, 0.5, played.run.cfg, 31 + m)   # another order each
    assert played.saved == [1, 2] and played.run.step == 2
    assert [step for step, _ in played.run.evaluations] == [1, 2]
    run, *found, stats, seconds = played.recorded[0]    # an evaluation takes 50 more, which is no
    assert (found, stats, seconds) == ([FOUND, FOUND[1:3]], Stats(), 3.0)       # part of it
    assert run is played.run and run.optimizer is None  # an iteration's own ends with it


def test_evolve_without_anything_to_learn_from_goes_on(monkeypatch):
    """No success, and no demonstration: the next one explores."""
    played = Played(monkeypatch, [FOUND[:1], FOUND], start="last")
    evolve(played.run, [])
    assert [data for _, data, *_ in played.learned] == [FOUND[1:3]]     # by the second iteration
    assert played.saved == [1, 2]


# ---- exploration --------------------------------------------------------------------------------

def test_explore_follows_the_schedule_of_tries_and_repeats_its_last(monkeypatch):
    asked, world = [], World(None, Agent(None, module=SimpleNamespace(NAME="toy")))
    run = SimpleNamespace(cfg=Evolve(samples=(4, 1, 2), seed=5, horizon=9), policy="policy",
                          worlds=[world], tasks={world: [*range(6)]})
    monkeypatch.setattr(rollout, "play_tasks", lambda policy, tasks, group_size, horizon, key, *_:
                        asked.append((sorted(t for _, t in tasks), group_size, horizon, key)))
    for run.step in range(5):
        explore(run)
    assert asked == [([*range(6)], tries, 9, (5, step, 0))
                     for step, tries in enumerate((4, 1, 2, 2, 2))]


# ---- whole runs ---------------------------------------------------------------------------------

TINY = dict(env="toy", n=8, steps=2, batch=4, iterations=2, learn_steps=3, learn_lr=3e-3, horizon=3,
            eval_tasks=8, max_turn_tokens=4, max_context=200, device="cpu", lr=1e-3, explore=12,
            width=16, layers=1, heads=2, vocabulary=280, format="act")


def begun(url, **flags):
    """(Run, base set) of a run that is ready to evolve."""
    cfg = Evolve(**TINY | flags)
    names = cfg.env.split(",")
    return agentevol.setup(cfg, [sys.modules[f"envs.{name}"] for name in names],
                           [EnvClient(url, name) for name in names], time.perf_counter(), {})


def script(url, *words, **flags):
    """`python agentevol.py evolve ...`."""
    agentevol.main(["evolve", *words, *flags_of(env_url=url, **flags)])


def test_setup_explores_beyond_the_demonstrations_or_all_again(url, model, here):
    run, base_set = begun(url, model=model, n=8)
    (own,) = run.tasks.values()
    cloned = [t.task_id for t in base_set]
    assert len(cloned) == 8 and sorted(cloned + own) == [*range(40)]
    assert all(task >= 40 for _, task in run.eval_tasks)
    run, _ = begun(url, model=model, n=99, env="toy,sums")
    assert [*run.tasks.values()] == [[*range(40)], [*range(100, 130)]]
    run, base_set = begun(url, model=model, n=35, env="toy,sums")       # of sums there are but 30
    left = {*range(40)} - {t.task_id for t in base_set}
    assert [*map(set, run.tasks.values())] == [left, {*range(100, 130)}] and len(left) == 5


def test_main_evolves_and_reports(url, here, capsys):
    """From nothing, with the picture: the folder of a run like train.py's."""
    script(url, out="e/", **TINY)
    assert os.listdir() == ["e"] and sorted(os.listdir("e")) == [
        "clone", "config.json", "metrics.jsonl", "report.html", "result.json",
        "samples.jsonl", "step_1", "step_2"]
    lines, result = lines_of("e"), json.load(open("e/result.json"))
    assert [line["step"] for line in lines] == [0, 1] and result["algo"] == "AgentEvol"
    assert all(line["explored"] == 12 and 0 <= line["kept"] <= 12 for line in lines)
    assert [step for step, _ in result["evaluations"]] == [0, 1, 2]
    assert result["players"]["expert"]["success"] == 1
    assert {line["random"] for line in lines} == {result["players"]["random"]["success"]}
    out = capsys.readouterr().out
    assert "toy: 8 demonstrations of 8 wanted, skill 1, 8 succeed" in out
    for row in ("before", "after AgentEvol", "random player", "expert player"):
        assert re.search(rf"^{row}", out, re.MULTILINE)
    kept = json.load(open("e/step_2/defaults.json"))
    assert kept == json.load(open("e/clone/defaults.json")) and kept["cloned"]["n"] == 8


def test_an_iteration_without_a_success_is_survived_and_said(url, model, here, monkeypatch, capsys):
    monkeypatch.setattr(agentevol, "threshold", lambda env: 2.0)        # nothing is above it
    script(url, out="e", model=model, **TINY | dict(iterations=1))
    assert [(line["step"], line["kept"]) for line in lines_of("e")] == [(0, 0)]
    said = capsys.readouterr().out
    assert re.findall(r"^iteration (\d) .*kept 0 \|", said, re.MULTILINE) == ["1"]
    assert not same(weights_of("e/step_1"), weights_of("e/clone"))      # by the demonstrations


@pytest.mark.parametrize("start", ["last", pytest.param("base", marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_unbroken_one_to_the_bit(start, url, model, here, monkeypatch):
    """Killed before the first iteration, in its learning, in a checkpoint, in the final report; at
    first of fewer iterations."""
    flags = dict(model=model, start=start, **TINY | dict(iterations=3))
    script(url, out="whole", **flags)
    begun(url, out="e", **flags | dict(iterations=1))
    with pytest.raises(SystemExit, match="^agentevol.py: --resume: seed=1, but e was begun with "):
        script(url, "--resume", out="e", seed=1)
    for owner, name, passes in ((agentevol, "learn_step", 2), (agentevol, "save", 1),
                                (metrics, "final_table", 0)):
        real, left = getattr(owner, name), iter(range(passes))

        def killing(*arguments, real=real, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return real(*arguments)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, killing)
            script(url, "--resume", out="e", iterations=3)
    script(url, "--resume", out="e")
    assert same(weights_of("e/step_3"), weights_of("whole/step_3"))
    assert not same(weights_of("e/step_3"), weights_of("e/clone"))
    assert lines_of("e") == lines_of("whole") and len(lines_of("e")) == 3
    assert open("e/samples.jsonl").read() == open("whole/samples.jsonl").read()
    results = [json.load(open(f"{out}/result.json")) for out in ("e", "whole")]
    for result in results:
        assert result.pop("seconds") > 0 and result.pop("rl_seconds") > 0 and result.pop("command")
    assert results[0] == results[1]


# ---- two ranks ----------------------------------------------------------------------------------

RANKS = TINY | dict(env="toy,sums", micro_tokens=60, lr=3e-4, learn_lr=3e-4, eval_tasks=6,
                    explore=6, samples=(2,))


def evolves(url, model):
    evolve(*begun(url, out="e2", model=model, **RANKS))


def trains_from_nothing(url):
    sys.modules["envs.toy"].TINY = dict(clone=dict(steps=3, n=8, width=16, heads=2))
    train.main(flags_of(
        env_url=url, env="toy", name="t2", steps=1, tasks_per_step=4, group_size=2, mini_batches=1,
        horizons="2", max_turn_tokens=4, max_context=200, eval_every=0, eval_tasks=4, device="cpu",
        filter="none"))


@pytest.mark.slow
def test_two_ranks_are_one(url, model, here, capfd):
    """Over gloo: cloning and two iterations give the weights of one process to 1e-5; train.py
    without a model clones once, together."""
    on_ranks(2, evolves, url, model)
    on_ranks(2, trains_from_nothing, url)
    out = capfd.readouterr().out
    evolve(*begun(url, out="e1", model=model, **RANKS))
    for alone, together in zip(lines_of("e1"), lines_of("e2"), strict=True):
        assert alone["explored"] == 24 and alone["kept"] > 0
        assert together == pytest.approx(alone, abs=1e-5)
    for part in ("clone", "step_1", "step_2"):
        alone, together = weights_of(f"e1/{part}"), weights_of(f"e2/{part}")
        assert alone.keys() == together.keys()
        for key in alone:
            torch.testing.assert_close(together[key], alone[key], atol=1e-5, rtol=0)
    before = weights_of(model)
    assert any((alone[key] - before[key]).abs().max() > 1e-4 for key in alone)
    assert len(re.findall("no --model: cloned is a Llama of .*M random weights, 2", out)) == 1
    assert os.path.exists("runs/t2/clone/defaults.json") and os.path.exists("runs/t2/result.json")


# ---- several environments -----------------------------------------------------------------------

def test_clone_of_two_environments_has_one_tokenizer_for_both(tmp_path):
    cfg = Clone(env="maze,textcraft_small", n=4, steps=1, batch=4, width=16, heads=2, layers=1,
                vocabulary=700, context="window")
    demos = lesson(cfg)
    clone(cfg, demos, str(tmp_path / "both"), CPU)
    assert [demo["env"] for demo in demos] == ["maze"] * 4 + ["textcraft_small"] * 4
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "both")
    base_set = trajectories_of(demos, tokenizer, cfg)
    for word in ("move up", "craft"):
        assert len(tokenizer.encode(word)) == 1
    for name in ("maze", "textcraft_small"):            # each trajectory as it would be by itself
        alone = replace(cfg, env=name)
        own = trajectories_of(lesson(alone), tokenizer, alone)
        assert own == [t for t in base_set if t.env == name]


ASKED = {"toy": dict(clone=dict(lr=2e-3, n=50, steps=90), max_context=300, horizons=(3, 9)),
         "sums": dict(clone=dict(lr=1e-3, skill=0.9), lr=0.5, families="zero,one", format="think")}


def parsed(kind, command):
    return parse_flags(kind, command.split(), "", agentevol.layers)[0]


def test_preset_is_what_the_environments_or_the_model_ask_of_cloning(url, model, monkeypatch):
    """Of several what the first asks for, and the longest texts; what they ask of RL is not
    cloning's."""
    for name, tiny in ASKED.items():
        monkeypatch.setattr(sys.modules[f"envs.{name}"], "TINY", tiny, raising=False)
    own, both = dict(families="zero,one", format="think"), dict(families="zero,one", horizon=9)
    assert parsed(Clone, "--env sums") == Clone(env="sums", lr=1e-3, skill=0.9, **own)
    assert parsed(Clone, "--env toy") == Clone(env="toy", lr=2e-3, n=50, steps=90, max_context=300,
                                               horizon=9)
    assert parsed(Clone, "--env toy,sums --steps 5") == Clone(
        env="toy,sums", lr=2e-3, n=50, steps=5, max_context=512, **both)
    # AgentEvol's demonstrations are its own: few, of the expert
    assert parsed(Evolve, "--env sums") == Evolve(env="sums", n=300, skill=1.0, lr=1e-3, **own)
    assert parsed(Evolve, "--env toy,sums --batch 3") == Evolve(
        env="toy,sums", n=300, lr=2e-3, steps=90, batch=3, **both)
    assert parsed(Clone, "--env textcraft_small").goal == "other"
    assert parsed(Evolve, "--env textcraft_small").goal == "task"
    assert parsed(Evolve, f"--env toy --model {model}") == Evolve(
        env="toy", model=model, format="react", max_turn_tokens=512, max_context=8192, lr=1e-5,
        learn_lr=1e-5)


# ---- flags --------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, sentence", [
    ("--help", "expected: agentevol.py evolve or agentevol.py clone, then"),
    ("clone --families odd", r"no families \['odd'\]; known: textcraft_small: depth 1"),
    ("clone --format tool", "format=tool, context=full: no demonstration calls tools"),
    ("evolve --model ./absent", "./absent: no folder or hub id"),
    ("clone --demos absent.json", "format=act, .* need --format react or agentgym"),
    ("clone --demos absent.json --format react --context window", "context=window: .* --context f"),
    ("evolve --demos absent.json --format react", "absent.json: no JSON file: .*No such file"),
])
def test_main_refuses_before_anything_is_made(arguments, sentence, here, monkeypatch):
    monkeypatch.setattr(agentevol, "demonstrations", None)
    monkeypatch.setattr(run, "connected", lambda *_: nullcontext())
    with pytest.raises(SystemExit, match=f"^agentevol.py: [^\n]*{sentence}[^\n]*$"):
        agentevol.main(arguments.split())
    assert os.listdir() == []
