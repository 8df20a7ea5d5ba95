"""pytest tests/test_agentevol.py: demonstrations, their mask, the tokenizer, the cloned folder."""
import copy
import json
import random
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import agentevol
from agentevol import (Clone, check_heads, clone, continue_cloning, demonstrations, imitate,
                       imitated, lesson, make_policy, make_tokenizer, record, trajectories_of)
from engine import load_policy
from envs import bandit, maze, textcraft, textcraft_small
from fakes import token_logprobs
from rollout import FORMATS, Agent, to_batch

SMALL = Clone(env="textcraft_small", episodes=24, skill=0.7, steps=30, batch=8, width=32, layers=1,
              vocabulary=300, lr=1e-2)


def quiet(text):
    pass


@pytest.fixture(scope="module")
def demos():
    return demonstrations("textcraft_small", range(24), 0.7, seed=0)


@pytest.fixture(scope="module")
def tokenizer(demos):
    return make_tokenizer([turn[0] + turn[2] for demo in demos for turn in demo["turns"]], 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("clone") / "policy"
    clone(SMALL, str(out), quiet)
    return str(out)


# ---- demonstrations ----

def test_record_is_a_function_of_task_and_seed():
    first = [record("textcraft_small", 0.5, 3, task) for task in range(6)]
    random.seed(99)                                     # the global generator has no say
    again = [record("textcraft_small", 0.5, 3, task) for task in reversed(range(6))]
    assert first == again[::-1]
    assert first != [record("textcraft_small", 0.5, 4, task) for task in range(6)]


def test_record_draws_each_tasks_actions_from_a_stream_of_its_own(monkeypatch):
    drawn = []
    monkeypatch.setattr(maze.Env, "random_action",
                        lambda env, rng: drawn.append(rng.random()) or "stay")
    for task_id in (18, 19):
        record("maze", 0.0, 0, task_id)
    assert len(drawn) == 2 * maze.HORIZON == len(set(drawn))


def test_record_is_what_the_environment_answered():
    demo = record("maze", 0.5, 0, 18)
    env = maze.Env()
    seen = env.reset(18)
    for turn in demo["turns"]:
        assert turn[0] == seen
        seen, *rest = env.step(turn[2])
        assert turn[3:] == rest
    assert demo["last"] == seen and demo["success"] == rest[2]["success"]
    assert rest[1] or len(demo["turns"]) == maze.HORIZON


def test_record_of_full_skill_is_the_expert_and_of_none_never_is():
    demo = record("maze", 1.0, 0, 18)
    env = maze.Env()
    env.reset(18)
    for _, thought, action, *_ in demo["turns"]:
        assert (thought, action) == env.expert()
        env.step(action)
    assert demo["success"]
    assert {turn[1] for turn in record("maze", 0.0, 0, 18)["turns"]} == {"I try something."}


def test_skill_is_the_share_of_the_experts_actions():
    thoughts = [turn[1] for task in range(60, 100)
                for turn in record("textcraft_small", 0.65, 0, task)["turns"]]
    share = sum(thought != "I try something." for thought in thoughts) / len(thoughts)
    # about 240 turns: a standard error of sqrt(.65 * .35 / 240) = 0.03
    assert len(thoughts) > 200 and share == pytest.approx(0.65, abs=0.1)


def test_demonstrations_of_parallel_processes_are_the_serial_ones(monkeypatch):
    serial = demonstrations("maze", range(12), 0.6, seed=1)
    assert [demo["task_id"] for demo in serial] == list(range(12))
    monkeypatch.setattr(agentevol, "PATIENCE", 0)
    assert demonstrations("maze", range(12), 0.6, seed=1, processes=1) == serial


@pytest.mark.parametrize("change, sentence", [
    (dict(env="nowhere"), "unknown environment 'nowhere'; there are: .*maze"),
    (dict(families="depth 9"), r"no families \['depth 9'\]; known: depth 1")])
def test_lesson_says_what_is_wrong(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        lesson(Clone(**{**vars(SMALL), **change}), quiet)


def test_lesson_plays_the_first_training_tasks_of_the_families_asked_for():
    demos, texts = lesson(replace(SMALL, families="depth 2", episodes=5), quiet)
    wanted = [t for t in textcraft_small.TRAIN if textcraft_small.family(t) == "depth 2"]
    assert [demo["task_id"] for demo in demos] == wanted[:5]
    assert texts[0] == demos[0]["turns"][0][0] and texts[1] == demos[0]["turns"][0][2]
    plain = [t for t in bandit.TRAIN if bandit.family(t) == "plain"]
    demos, _ = lesson(replace(SMALL, env="bandit", families="plain", episodes=len(plain) * 3 - 1),
                      quiet)
    assert [demo["task_id"] for demo in demos] == 2 * plain     # whole times only, all alike
    assert demos[:len(plain)] != demos[len(plain):]             # with other chances


def test_a_demonstration_has_as_many_turns_as_the_last_horizon():
    demos, _ = lesson(replace(SMALL, skill=0.0, horizons=(2, 3)), quiet)
    assert max(len(demo["turns"]) for demo in demos) == 3


@pytest.mark.parametrize("arguments, sentence", [
    ("", "expected: python agentevol.py clone --env NAME"),
    ("evolve", "expected: python agentevol.py clone --env NAME"),
    ("clone --env nowhere", "unknown environment 'nowhere'"),
    ("clone --format speech", "format='speech'; known: act, react"),
    ("clone --episodes 0", "episodes=0: expected 1 or more"),
    ("clone --batch 0", "batch=0: expected 1 or more"),
    ("clone --steps 0", "steps=0: expected 1 or more"),
    ("clone --layers 0", "layers=0: expected 1 or more"),
    ("clone --skill 2", "skill=2.0: expected from 0 to 1"),
    ("clone --lr nan", "lr=nan: expected above 0"),
    ("clone --vocabulary 258", "vocabulary=258: expected 259 or more"),
    ("clone --heads 3", "3 heads in a width of 64: expected 1 head or an even number"),
    ("clone --heads 8 --width 24", "8 heads in a width of 24: .* a multiple of twice that number"),
    ("clone --out clone.json", "out='clone.json': expected a folder"),
    ("clone --out=", "out='': expected a folder")])
def test_main_refuses_before_a_demonstration_is_played(arguments, sentence, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clone.json").write_text("mine")
    monkeypatch.setattr(agentevol, "demonstrations", None)
    monkeypatch.setattr(sys, "argv", ["agentevol.py", *arguments.split()])
    with pytest.raises(SystemExit, match=f"^agentevol.py: [^\n]*{sentence}[^\n]*$"):
        agentevol.main()
    assert [p.name for p in tmp_path.iterdir()] == ["clone.json"]
    assert (tmp_path / "clone.json").read_text() == "mine"


@pytest.mark.parametrize("width, heads", [(2, 1), (64, 1), (8, 2), (64, 4), (96, 6), (16, 8)])
def test_check_heads_takes_what_a_policy_can_have(width, heads):
    check_heads(width, heads)
    policy = make_policy(50, width, 1, heads, seed=0)
    ids = torch.tensor([[1, 2, 3]])
    got = token_logprobs(policy, ids, torch.tensor([[0, 1, 1]]), torch.arange(3)[None])
    assert got.isfinite().all() and (got[0, 1:] < 0).all()


# ---- what is imitated ----

@pytest.mark.parametrize("style", sorted({*FORMATS} - {"tool"}))
@pytest.mark.parametrize("context", ["full", "window", "memory"])
def test_imitated_masks_exactly_the_replies(demos, tokenizer, style, context):
    agent = Agent(tokenizer, "", style, context, window=2, max_turn_tokens=1, max_context=10**9,
                  world=textcraft)
    for demo in demos[:5]:
        trajectory = imitated(agent, demo)
        ids, mask = trajectory.token_ids, trajectory.response_mask
        replies, at = [], 0
        while at < len(ids):            # runs of masked tokens, each up to its stop token
            if mask[at]:
                end = ids.index(agent.chat.stop_id, at) + 1
                assert all(mask[at:end])
                replies.append(tokenizer.decode(ids[at:end]))
                at = end
            else:
                at += 1
        expected = []
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


def test_imitated_keeps_what_was_seen(demos, tokenizer):
    agent = Agent(tokenizer, "", max_turn_tokens=1, max_context=10**9)
    demo = next(d for d in demos if len(d["turns"]) > 2)
    text = tokenizer.decode(imitated(agent, demo).token_ids)
    seen = [f"<|user|>{turn[0]}<|end|><|assistant|>{turn[2]}<|end|>" for turn in demo["turns"]]
    assert text.startswith("".join(seen))


# ---- the tokenizer ----

def unicode_text(rng):
    """Any characters but the surrogates, which are no text, and control characters of our own."""
    codes = [rng.choice([rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000)])
             for _ in range(rng.randrange(1, 40))]
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


WORDS = ["", " ", "  two  spaces ", "\n\n\t", "get 2 bone", "GET2BONE", "naïve café", "请向左走",
         "🎲🚪", "e\u0301 is not é", "\u200b\ufeff", "don't", "a" * 300, "1234567", "a.b", "\r\n"]


def test_the_tokenizer_loses_nothing(tokenizer):
    rng = random.Random(0)
    for text in WORDS + [unicode_text(rng) for _ in range(300)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < len(tokenizer) for i in ids)


def test_the_tokenizer_has_one_token_for_a_frequent_word():
    tokenizer = make_tokenizer(["get 2 bone"] * 3 + ["get 1 rarity"], 259 + 3)
    tokens = tokenizer.tokenize("get 2 bone rarity")        # Ġ: the blank before a word
    assert tokens == ["get", "Ġ2", "Ġbone", "Ġ", *"rarity"]
    assert tokenizer.encode("<|end|>") == [0] == [tokenizer.eos_token_id]


def test_the_tokenizer_keeps_to_its_size(demos):
    texts = [turn[0] for demo in demos for turn in demo["turns"]]
    assert len(make_tokenizer(texts, 280)) == 280
    assert len(make_tokenizer(texts, 5)) == 259         # 256 bytes and 3 marks at least
    assert make_tokenizer(texts[::-1], 280).get_vocab() == make_tokenizer(texts, 280).get_vocab()


def test_the_tokenizer_is_the_same_after_a_save(folder, tmp_path):
    """Beside a config.json that says qwen2 AutoTokenizer once put Qwen's own splitting."""
    cfg = Clone(**json.load(open(f"{folder}/clone.json")))
    _, texts = lesson(cfg, quiet)
    made, loaded = make_tokenizer(texts, cfg.vocabulary), AutoTokenizer.from_pretrained(folder)
    assert loaded.get_vocab() == made.get_vocab()
    rng = random.Random(1)
    for text in WORDS + texts[:50] + [unicode_text(rng) for _ in range(200)]:
        assert loaded.encode(text) == made.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]
    for tokenizer in (made, loaded):
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True
                                             ) == "<|user|>go<|end|><|assistant|>"
    loaded.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == made.get_vocab() and again.encode(texts[0]) == made.encode(texts[0])


# ---- the policy ----

def test_clone_writes_an_ordinary_folder(folder):
    stock, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(
        folder)
    assert stock.config._attn_implementation == "sdpa" and stock.config.hidden_size == 32
    assert stock.config.vocab_size == len(tokenizer) == 300
    assert stock.config.eos_token_id == tokenizer.eos_token_id == 0
    assert stock.config.bos_token_id is None
    assert stock.get_output_embeddings().weight is stock.get_input_embeddings().weight
    ids = torch.tensor([tokenizer.encode("<|user|>get 2 bone<|end|><|assistant|>go<|end|>")])
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    with torch.no_grad():
        expected = stock(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        got = token_logprobs(load_policy(folder), ids, mask, torch.arange(ids.shape[1])[None])
    torch.testing.assert_close(got[0, 1:], expected, atol=1e-5, rtol=0)


def test_stock_generate_speaks_with_the_folder(folder):
    stock, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(
        folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "get 2 bone"}],
                                           add_generation_prompt=True, return_tensors="pt",
                                           return_dict=True)
    reply = stock.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert reply.shape[1] > prompt["input_ids"].shape[1]


def test_make_policy_is_a_function_of_its_seed():
    state = make_policy(300, 32, 1, 4, seed=1).state_dict()
    same, other = (make_policy(300, 32, 1, 4, seed).state_dict() for seed in (1, 2))
    assert all(torch.equal(state[k], same[k]) for k in state)
    assert not all(torch.equal(state[k], other[k]) for k in state)


def loss_of(policy, trajectories):
    batch = to_batch(trajectories)
    with torch.no_grad():
        logprobs = token_logprobs(policy, batch.token_ids, batch.response_mask, batch.position_ids)
    return (-logprobs.sum() / batch.response_mask.sum()).item()


def test_imitate_lowers_the_loss_and_repeats_itself(demos, tokenizer):
    trajectories = trajectories_of(demos, tokenizer, SMALL)
    fresh = make_policy(len(tokenizer), 32, 1, 4, seed=0)
    policies = []
    for _ in range(2):
        policies.append(copy.deepcopy(fresh))
        assert imitate(policies[-1], trajectories, 25, 8, 1e-2, seed=0, say=quiet) == 25
    before, after = loss_of(fresh, trajectories), loss_of(policies[0], trajectories)
    # at first nothing is known: log 300 = 5.7 nats a token
    assert before == pytest.approx(5.7, abs=0.3) and after < 0.6 * before
    assert all(torch.equal(a, b) for a, b in zip(*(p.parameters() for p in policies)))


def test_imitate_counts_the_replies_tokens_and_no_others(demos, folder):
    """The first loss it prints, against transformers' own forward, one episode after the other."""
    trajectories = trajectories_of(demos[:4], AutoTokenizer.from_pretrained(folder), SMALL)
    stock, said = AutoModelForCausalLM.from_pretrained(folder), []
    surprise = count = 0
    for t in trajectories:
        with torch.no_grad():
            logprobs = stock(torch.tensor([t.token_ids])).logits[0].log_softmax(-1)
        for at, (token, sampled) in enumerate(zip(t.token_ids, t.response_mask)):
            if sampled:
                surprise -= logprobs[at - 1, token].item()
                count += 1
    imitate(load_policy(folder), trajectories, 1, 4, 1e-3, seed=0, say=said.append)
    assert float(said[0].split("loss ")[1].split()[0]) == pytest.approx(surprise / count, abs=6e-4)


def watched(monkeypatch, policy, trajectories, *arguments):
    """imitate(policy, trajectories, *arguments) -> for each step its learning rate, which of the
    trajectories it read, and the weights and gradients that the optimizer was given."""
    steps, read, step = [], [], torch.optim.AdamW.step

    def noting_rows(chosen, device):
        read.append([trajectories.index(t) for t in chosen])
        return to_batch(chosen, device)

    def noting_step(self, *_):
        weights = {name: w.detach().clone() for name, w in policy.named_parameters()}
        grads = {name: w.grad.clone() for name, w in policy.named_parameters()}
        steps.append((self.param_groups[0]["lr"], read[-1], weights, grads))
        return step(self)
    with monkeypatch.context() as patch:
        patch.setattr(agentevol, "to_batch", noting_rows)
        patch.setattr(torch.optim.AdamW, "step", noting_step)
        imitate(policy, trajectories, *arguments, say=quiet)
    return steps


def test_imitate_rises_for_a_twentieth_and_falls_by_a_cosine_to_a_tenth(demos, tokenizer,
                                                                       monkeypatch):
    trajectories = trajectories_of(demos[:4], tokenizer, SMALL)
    policy = make_policy(len(tokenizer), 32, 1, 4, seed=0)
    rates = [rate for rate, *_ in watched(monkeypatch, policy, trajectories, 40, 1, 0.02, 0)]
    assert len(rates) == 40 and rates.index(max(rates)) == 2            # a twentieth of 40
    # shares of the peak: at first 0.02; after a fortieth 1/2 + 0.02 of cos 4.5 degrees; then
    # 0.1 + 0.9 (1 + cos) / 2 at 45, 90 and 135 degrees; at 175.5 almost a tenth
    expected = {0: 0.02, 1: 0.52 * (0.1 + 0.9 * 0.998459), 10: 0.868198, 20: 0.55, 30: 0.231802,
                39: 0.1 + 0.9 * 0.001541}
    assert [rates[i] / 0.02 for i in expected] == pytest.approx([*expected.values()], abs=1e-5)


def test_imitate_reads_every_demonstration_once_before_any_twice(demos, tokenizer, monkeypatch):
    trajectories = trajectories_of(demos, tokenizer, SMALL)
    orders = []
    for seed in (0, 1):
        policy = make_policy(len(tokenizer), 32, 1, 4, seed=0)
        steps = watched(monkeypatch, policy, trajectories, 6, 8, 1e-3, seed)
        orders += [[i for step in steps[at:at + 3] for i in step[1]] for at in (0, 3)]
    assert all(sorted(order) == list(range(24)) for order in orders)
    assert len(set(map(tuple, orders))) == 4        # shuffled anew each time, by the seed


def test_imitate_follows_the_gradient_of_this_step_alone(demos, tokenizer, monkeypatch):
    """Each step's gradient against one computed afresh at the same weights, clipped to norm 1."""
    trajectories = trajectories_of(demos[:4], tokenizer, SMALL)
    policy = make_policy(len(tokenizer), 32, 1, 4, seed=0)
    steps = watched(monkeypatch, policy, trajectories, 4, 4, 3e-2, 0)
    fresh, batch = make_policy(len(tokenizer), 32, 1, 4, seed=0), to_batch(trajectories)
    for _, _, weights, grads in steps:
        fresh.load_state_dict(weights, strict=False)
        fresh.zero_grad()
        logprobs = token_logprobs(fresh, batch.token_ids, batch.response_mask, batch.position_ids)
        (-logprobs.sum() / batch.response_mask.sum()).backward()
        own = {name: w.grad for name, w in fresh.named_parameters()}
        norm = sum(g.square().sum() for g in own.values()).sqrt()
        assert norm > 1                                         # so clipping has something to do
        for name, grad in grads.items():
            torch.testing.assert_close(grad, own[name] / norm, atol=1e-5, rtol=1e-3)


def test_imitate_ends_when_its_seconds_are_over(demos, tokenizer):
    trajectories = trajectories_of(demos, tokenizer, SMALL)
    policy = make_policy(len(tokenizer), 32, 1, 4, seed=0)
    steps = imitate(policy, trajectories, 10**6, 4, 1e-3, seed=0, seconds=0.3, say=quiet)
    assert 0 < steps < 1000


def test_continue_cloning_goes_on_from_the_folder(folder):
    trajectories = trajectories_of(lesson(SMALL, quiet)[0], AutoTokenizer.from_pretrained(folder),
                                   SMALL)
    before = loss_of(load_policy(folder), trajectories)
    assert before < 4                   # nats a token; 5.7 in a folder whose policy learned nothing
    policy = continue_cloning(folder, 0.5, quiet)
    assert not policy.training and loss_of(policy, trajectories) < before


def test_continue_cloning_is_gentler_and_in_another_order(folder, monkeypatch):
    """The control: cloning's peak again would undo what was learned, its seed repeat the order."""
    calls = []
    monkeypatch.setattr(agentevol, "imitate", lambda policy, trajectories, *rest: calls.append(
        ([t.task_id for t in trajectories], *rest)))
    continue_cloning(folder, 7.5, quiet)
    ((tasks, _, batch, lr, seed, seconds, _),) = calls
    assert tasks == list(textcraft_small.TRAIN[:24]) and (batch, seconds) == (8, 7.5)
    assert lr == pytest.approx(SMALL.lr / 4) and seed != SMALL.seed


def test_continue_cloning_checks_the_settings_it_reads(folder, tmp_path):
    for settings, sentence in ((dict(skill="high"), "skill='high': expected from 0 to 1"),
                               (dict(speed=3), "no such flags: speed")):
        (tmp_path / "clone.json").write_text(json.dumps(vars(SMALL) | settings))
        with pytest.raises(ValueError, match=sentence):
            continue_cloning(str(tmp_path), 1, quiet)
