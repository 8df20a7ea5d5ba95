"""pytest tests/test_agentevol.py: demonstrations, their mask, the tokenizer, the cloned folder."""
import copy
import json
import random
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import agentevol
from agentevol import (Clone, clone, continue_cloning, demonstrations, imitate, imitated, lesson,
                       make_policy, make_tokenizer, record, trajectories_of)
from engine import load_policy, token_logprobs
from envs import maze, textcraft_small
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
    first = [record(textcraft_small, task, 0.5, seed=3) for task in range(6)]
    random.seed(99)                                     # the global generator has no say
    again = [record(textcraft_small, task, 0.5, seed=3) for task in reversed(range(6))]
    assert first == again[::-1]
    assert first != [record(textcraft_small, task, 0.5, seed=4) for task in range(6)]


def test_record_draws_each_tasks_actions_from_a_stream_of_its_own(monkeypatch):
    drawn = []
    monkeypatch.setattr(maze.Env, "random_action",
                        lambda env, rng: drawn.append(rng.random()) or "stay")
    for task_id in (18, 19):
        record(maze, task_id, 0.0, seed=0)
    assert len(drawn) == 2 * maze.HORIZON == len(set(drawn))


def test_record_is_what_the_environment_answered():
    demo = record(maze, 18, 0.5, seed=0)
    env = maze.Env()
    seen = env.reset(18)
    for turn in demo["turns"]:
        assert turn[0] == seen
        seen, *rest = env.step(turn[2])
        assert turn[3:] == rest
    assert demo["last"] == seen and demo["success"] == rest[2]["success"]
    assert rest[1] or len(demo["turns"]) == maze.HORIZON


def test_record_of_full_skill_is_the_expert_and_of_none_never_is():
    demo = record(maze, 18, 1.0, seed=0)
    env = maze.Env()
    env.reset(18)
    for _, thought, action, *_ in demo["turns"]:
        assert (thought, action) == env.expert()
        env.step(action)
    assert demo["success"]
    assert {turn[1] for turn in record(maze, 18, 0.0, seed=0)["turns"]} == {"I try something."}


def test_skill_is_the_share_of_the_experts_actions():
    thoughts = [turn[1] for task in range(60, 100)
                for turn in record(textcraft_small, task, 0.65, seed=0)["turns"]]
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
    (dict(families="depth 9"), r"no families \['depth 9'\]; known: depth 1"),
    (dict(format="speech"), "format='speech'; known: act, react"),
    (dict(episodes=0), "episodes=0.*1 or more")])
def test_lesson_says_what_is_wrong(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        lesson(Clone(**{**vars(SMALL), **change}), quiet)


def test_lesson_keeps_to_the_families_asked_for():
    demos, texts = lesson(Clone(**{**vars(SMALL), "families": "depth 2", "episodes": 5}), quiet)
    assert len(demos) == 5
    assert {textcraft_small.family(demo["task_id"]) for demo in demos} == {"depth 2"}
    assert texts[0] == demos[0]["turns"][0][0] and texts[1] == demos[0]["turns"][0][2]


def test_main_answers_a_mistake_in_one_sentence(monkeypatch):
    for arguments in (["clone", "--env", "nowhere"], ["evolve"], []):
        monkeypatch.setattr(sys, "argv", ["agentevol.py", *arguments])
        with pytest.raises(SystemExit, match="^agentevol.py: [^\n]*$"):
            agentevol.main()


# ---- what is imitated ----

@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("context", ["full", "window", "memory"])
def test_imitated_masks_exactly_the_replies(demos, tokenizer, style, context):
    agent = Agent(tokenizer, "", style, context, window=2, max_turn_tokens=1, max_context=10**9)
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
            words = {"act": action, "think": f"<think>{thought}</think><answer>{action}</answer>"}
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
