"""python -m tests.bench.history: what `--history template` costs beside `keep`.

    python -m tests.bench.history                       32 episodes of ten turns; 3 to 6 minutes
    python -m tests.bench.history --quick

keep                        one context an episode; thoughts stay in view
template                    a context a turn, rendered by Qwen3's template (of the package trl),
                            which shows no earlier thoughts; what begins two contexts is read once
template, nothing shared    the same, but each turn reads its whole context anew

Random weights, prompts of 200 tokens, ten turns of 24 tokens read and replies of 80, of which 64
are thoughts: what a reply says is given, so that all ways play the same episodes, but each token
is computed and drawn as ever. Update: forward and backward of all contexts in parts of 8,000
tokens. Seconds are those of the process, so that other work on the machine does not count. A round
runs every way once; figures are medians over the rounds, in brackets their ratios to `keep`.
"""
import argparse
import time

import engine  # noqa: F401  before torch: see there
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

import chat
import rollout
from engine import equip
from chat import Agent
from rollout import Episode, make_engine, to_batch
from tests.bench.engine import SHAPES, medians, race
from tests.bench.rollout import GROUP, Words, forgetting, ours_on
from tests.bench.update import packed
from tests.families import tokenizer_of

READ, THOUGHTS, WORDS, PROMPT = 24, 64, 16, 200         # tokens


def make_policy(shape, vocabulary):
    width, layers, heads, kv_heads, inner, _ = SHAPES[shape]
    torch.manual_seed(0)
    return equip(AutoModelForCausalLM.from_config(Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width // heads,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)).eval())


def say(tokenizer):
    """From now on replies say what is given, <think>...</think> and words: the random number of a
    token names it."""
    letters = tokenizer.convert_tokens_to_ids(list("abcdefghij"))
    open_, shut, stop = tokenizer.convert_tokens_to_ids(["<think>", "</think>", "<|im_end|>"])

    def show(self, text, show=Episode._show):
        show(self, text)
        rng = np.random.default_rng((*self.trajectory.key, len(self.trajectory.turns)))
        words = rng.choice(letters, self.agent.max_turn_tokens)
        words[[0, THOUGHTS - 1, -1]] = open_, shut, stop
        self.uniforms = (words + 0.5) / len(tokenizer)

    def sample(logits, uniforms, temperature, sample=rollout.sample):
        _, logprobs = sample(logits, uniforms, temperature)
        return (uniforms * len(tokenizer)).long(), logprobs
    Episode._show, rollout.sample = show, sample


def play(policy, agent, client, tasks, horizon, forgets):
    """One rollout and one update -> {figure: value}."""
    way = forgetting if forgets else ours_on
    memory = make_engine(policy, agent, len(tasks) * GROUP)
    began = time.process_time()
    played, stats = way(policy, agent, client, tasks, GROUP, horizon, engine=memory)
    rollout_seconds = time.process_time() - began
    batch = to_batch(played)
    began = time.process_time()
    for part in batch.parts(8000):
        packed(policy, batch.rows(*part))
    policy.zero_grad()
    return {"prefilled": stats.tokens["prefill"], "decoded": stats.tokens["decode"],
            "pages": stats.pages, "rollout s": rollout_seconds,
            "trained tokens": sum(len(t.token_ids) for t in played),
            "update s": time.process_time() - began}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="S", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="8 episodes of three turns")
    args = parser.parse_args()
    episodes, horizon = (8, 3) if args.quick else (32, 10)
    tokenizer = tokenizer_of("Qwen3")
    policy = make_policy(args.shape, len(tokenizer))
    say(tokenizer)
    ways = {}
    for name, history, forgets in (("keep", "keep", False), ("template", "template", False),
                                   ("template, nothing shared", "template", True)):
        agent = Agent(tokenizer, max_turn_tokens=THOUGHTS + WORDS, history=history,
                      max_context=PROMPT + horizon * (READ + THOUGHTS + WORDS) + 64)
        rules = len(agent.chat.opening(agent.start() + chat.said("user", "")))
        client = Words("abcdefghij", (PROMPT - rules, PROMPT - rules),
                       READ - len(agent.chat.between_replies("")))
        ways[name] = lambda n, agent=agent, client=client, forgets=forgets: play(
            policy, agent, client, range(n * 8, n * 8 + episodes // GROUP), horizon, forgets)
    seen = {name: medians(figures) for name, figures in race(args.rounds, ways).items()}
    print(f"| {' | '.join(['', *seen['keep']])} |\n|{'---|' * (len(seen['keep']) + 1)}")
    for name, figures in seen.items():
        cells = [f"{x:,.{0 if x > 100 else 1}f} ({x / seen['keep'][figure]:.2f})"
                 for figure, x in figures.items()]
        print(f"| {' | '.join([name, *cells])} |")


if __name__ == "__main__":
    main()
