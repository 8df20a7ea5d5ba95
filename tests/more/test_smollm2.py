"""pytest -m slow tests/more/test_smollm2.py: SmolLM2-135M-Instruct, which somebody else trained,
computes here what stock transformers computes. Skipped without the package that brings its
weights."""
from importlib.util import find_spec

import pytest
import torch
from fakes import token_logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import Engine, sample
from policy import load_policy
from recipes import smollm2

if not all(map(find_spec, smollm2.PACKAGES)):
    pytest.skip(smollm2.INSTALL, allow_module_level=True)
pytestmark = pytest.mark.slow
PROMPTS = ("What is the capital of France?", "Name a colour.", "Count from one to five.",
           "Who wrote Hamlet?", "What is 2 + 3?", "Say hello in Spanish.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "smollm2"
    smollm2.write(path)
    return path


@pytest.fixture(scope="module")
def stock(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def prompts_of(folder):
    """[token ids of a prompt as the chat template shows it, ...]."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True))
        for text in PROMPTS]


@torch.no_grad()
def test_the_training_forward_is_that_of_transformers(folder, stock):
    text = prompts_of(folder)[0]
    ids, places = torch.tensor([text]), torch.arange(len(text))[None]
    got = token_logprobs(load_policy(folder), ids, places > 0, places)[0, 1:]
    want = stock(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    assert (got - want).abs().max() < 1e-4


@torch.no_grad()
def test_greedy_texts_are_those_of_generate_and_their_logprobs_too(folder, stock):
    """All prompts are decoded together here, one at a time there."""
    texts, count = prompts_of(folder), 12
    engine = Engine(load_policy(folder).eval(), len(texts), 60, 32)
    sequences = [engine.start() for _ in texts]
    logits, found, logprobs = engine.prefill(sequences, texts), [], []
    for _ in range(count):
        ids, logprob = sample(logits, torch.zeros(len(texts)), 0)
        found.append(ids)
        logprobs.append(logprob)
        logits = engine.decode(sequences, ids.tolist())
    found, logprobs = torch.stack(found, 1), torch.stack(logprobs, 1)
    for text, row, own in zip(texts, found, logprobs):
        want = stock.generate(torch.tensor([text]), do_sample=False, max_new_tokens=count)[0]
        new = want[len(text):]
        assert row[:len(new)].tolist() == new.tolist()
        of_stock = stock(want[None]).logits[0, len(text) - 1:-1].log_softmax(-1)
        of_stock = of_stock.gather(1, new[:, None])[:, 0]
        assert (own[:len(new)] - of_stock).abs().max() < 1e-4


def test_the_recipe_refuses_a_folder_that_is_there(tmp_path):
    with pytest.raises(ValueError, match="is there already; give a new folder"):
        smollm2.write(tmp_path)
