"""pytest -m slow tests/more/test_smollm2.py: SmolLM2-135M-Instruct, which somebody else trained,
computes here what stock transformers computes. Skipped without the package that brings its
weights."""
from importlib.util import find_spec

import pytest
import torch
from fakes import collect, config, token_logprobs, trained
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat import Agent
from client import EnvClient
from engine import Engine, sample
from env_server import local_server
from envs import load_env
from lora import load_adapted
from policy import load_policy
from recipes import smollm2

if not all(map(find_spec, smollm2.PACKAGES)):
    pytest.skip(smollm2.INSTALL, allow_module_level=True)
pytestmark = pytest.mark.slow
PROMPTS = ("What is the capital of France?", "Name a colour.", "Count from one to five.",
           "Who wrote Hamlet?", "What is 2 + 3?", "Say hello in Spanish.", "Name three fruits.",
           "What do bees make?", "Is the sun a star?", "Give a synonym of big.", "What is ice?",
           "Name a river.", "How many legs has a spider?", "Finish: to be or not to",
           "What is the opposite of hot?", "Name a planet.", "Spell cat.", "Say a number.",
           "What colour is grass?", "Write a line of Python.")
WORLD = "textcraft_small"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "smollm2"
    smollm2.write(path)
    return path


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(folder).eval()


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
def test_the_training_forward_is_that_of_transformers(folder, policy, stock):
    text = prompts_of(folder)[0]
    ids, places = torch.tensor([text]), torch.arange(len(text))[None]
    got = token_logprobs(policy, ids, places > 0, places)[0, 1:]
    want = stock(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    assert (got - want).abs().max() < 1e-4


@torch.no_grad()
def test_greedy_texts_are_those_of_generate_and_their_logprobs_too(folder, policy, stock):
    """All prompts are decoded together here, one at a time there."""
    texts, count = prompts_of(folder), 10
    engine = Engine(policy, len(texts), 160, 32)
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


@pytest.fixture(scope="module")
def url():
    with local_server(WORLD) as address:
        yield address


def logprobs_by(stock, token_ids):
    """(T - 1,): what a model of transformers says of each token behind the first."""
    ids = torch.tensor([token_ids])
    return stock(ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def worst_difference(stock, trajectory):
    """Between the log-probabilities noted while it was sampled and those of transformers, each of
    its contexts read anew."""
    begins = trajectory.contexts
    differences = []
    for begin, end in zip(begins, begins[1:] + [len(trajectory.token_ids)]):
        of_stock = logprobs_by(stock, trajectory.token_ids[begin:end])
        sampled = torch.tensor(trajectory.response_mask[begin + 1:end]).bool()
        noted = torch.tensor(trajectory.old_logprobs[begin + 1:end])
        if sampled.any():
            differences.append((of_stock - noted)[sampled].abs().max().item())
    return max(differences)


@torch.no_grad()
@pytest.mark.parametrize("settings", [dict(shots=1), dict(context="window", window=1),
                                      dict(history="template")], ids=str)
def test_sampled_episodes_have_the_logprobs_of_transformers(
        folder, policy, stock, url, settings):
    """A task, tried twice from one reading of its prompt; three turns over pages."""
    module = load_env(WORLD)
    agent = Agent(AutoTokenizer.from_pretrained(folder), module.PROMPT, module=module,
                  **dict(max_turn_tokens=12, max_context=2000) | settings)
    played, _ = collect(policy, agent, EnvClient(url, WORLD), [1], 2, 3)
    assert [len(t.turns) for t in played] == [3] * 2
    assert max(worst_difference(stock, t) for t in played) < 1e-4


@torch.no_grad()
def test_in_bfloat16_the_forward_is_as_exact_as_that_of_transformers(folder, stock):
    """Both round to 8 bits, in other orders: their mean distance from float32, 0.03 here, is the
    same within a third."""
    text = prompts_of(folder)[0]
    ours = load_policy(folder, dtype=torch.bfloat16)
    ours.compute_in(torch.bfloat16)
    rough = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids, places = torch.tensor([text]), torch.arange(len(text))[None]
    got = token_logprobs(ours, ids, places > 0, places)[0, 1:]
    exact = logprobs_by(stock, text)
    own, theirs = ((x - exact).abs().mean() for x in (got, logprobs_by(rough, text)))
    assert 0 < own < 1.33 * theirs < 0.1


def test_a_step_by_adapters_is_what_transformers_then_plays(folder, url, here):
    """The trainer agrees with the sampler on the tokens of a real step; the checkpoint, read by
    PEFT, has the probabilities of the policy that wrote it."""
    peft = pytest.importorskip("peft")
    run = trained(url, config(
        str(folder), env=WORLD, lora=4, lr=1e-3, steps=1, tasks_per_step=2, group_size=2,
        horizons=(2,), filter="none", mini_batches=1, max_turn_tokens=12, max_context=2000,
        eval_tasks=2))
    assert abs(run.history[0]["mismatch"]) < 1e-8
    saved = f"{run.folder}/step_1"
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = prompts_of(folder)[0]
    with torch.no_grad():
        theirs = logprobs_by(peft.PeftModel.from_pretrained(base, saved).eval(), text)
        ids, places = torch.tensor([text]), torch.arange(len(text))[None]
        ours = token_logprobs(run.policy, ids, places > 0, places)[0, 1:]
        again = token_logprobs(load_adapted(saved), ids, places > 0, places)[0, 1:]
    assert (ours - theirs).abs().max() < 1e-4 and torch.equal(ours, again)


def test_the_recipe_refuses_a_folder_that_is_there(tmp_path):
    with pytest.raises(ValueError, match="is there already; give a new folder"):
        smollm2.write(tmp_path)
