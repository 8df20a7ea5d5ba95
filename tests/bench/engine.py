"""python -m tests.bench.rollout --parts decode: the engine alone, against transformers.

The same weights on both sides. This file also holds what all benchmarks share.

    python -m tests.bench.rollout --parts decode

Prompts of 128 to 256 tokens, then 64 new tokens, by Engine.prefill, Engine.decode and `sample`,
against `generate` (left-padded, DynamicCache). tok/s are those of the decode.
Targets: 1.4 x generate at batch 64, 2 x at 256.
"""
import copy
import statistics
import time
from collections import defaultdict

from engine import Engine, equip, sample        # before torch: see there
import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config

SHAPES = {      # width, layers, query heads, key-value heads, width inside the MLP, vocabulary
    "S": (128, 4, 4, 2, 384, 512),
    "M": (256, 4, 8, 2, 768, 1024),
    "tiny": (64, 2, 4, 2, 192, 600),     # what agentevol.py clones
}


# ---- what the parts share -----------------------------------------------------------------------

def make_models(shape):
    """One set of random weights -> (the model under our attention, the same under sdpa)."""
    width, layers, heads, kv_heads, inner, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, pad_token_id=0,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None)
    theirs = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa")
    ours = AutoModelForCausalLM.from_config(config)
    ours.load_state_dict(theirs.state_dict())
    return equip(ours).eval(), theirs.eval()


def race(rounds, ways):
    """{name: function(round) -> {figure: value}} -> {name: {figure: [value of each round]}}."""
    seen = {name: defaultdict(list) for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            for figure, value in way(number).items():
                seen[name][figure].append(value)
    return seen


def ratio(seen, slow, fast="ours", figure="seconds"):
    return statistics.median(a / b for a, b in zip(seen[slow][figure], seen[fast][figure]))


def medians(figures):
    return {figure: statistics.median(values) for figure, values in figures.items()}


def generate(theirs, contexts, new, stops=(), **more):
    """transformers' generate over left-padded contexts (lists of ids) -> (B, <= new) ids."""
    longest = max(map(len, contexts))
    ids = torch.tensor([[0] * (longest - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (longest - len(c)) + [1] * len(c) for c in contexts])
    config = GenerationConfig(max_new_tokens=new, do_sample=True, temperature=1.0, top_k=0,
                              top_p=1.0, eos_token_id=list(stops) or None, pad_token_id=0)
    with torch.inference_mode():
        out = theirs.generate(ids, attention_mask=mask, generation_config=config, **more)
    return out[:, longest:]


# ---- the engine alone ---------------------------------------------------------------------------

def decode_theirs(theirs, prompts, new):
    times, began = [], time.perf_counter()

    def note_time(ids, scores, **_):             # generate asks after each token whether to stop
        times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool)
    generate(theirs, prompts, new, stopping_criteria=[note_time])
    return dict(prefill=times[0] - began, seconds=times[-1] - times[0])


def decode_ours(ours, prompts, new):
    engine = Engine(ours, len(prompts), sum(-(-(len(p) + new) // 32) for p in prompts), 32)
    uniforms, began = torch.rand(new, len(prompts)), time.perf_counter()
    sequences = [engine.start() for _ in prompts]
    ids, _ = sample(engine.prefill(sequences, prompts), uniforms[0], 1.0)
    first = time.perf_counter()
    for uniform in uniforms[1:]:
        ids, _ = sample(engine.decode(sequences, ids), uniform, 1.0)
    last = time.perf_counter()
    return dict(prefill=first - began, seconds=last - first)


def bench_decode(shape, args, B, target):
    ours, theirs = make_models(shape)
    new, rng = 16 if args.quick else 64, np.random.default_rng(0)
    prompts = [rng.integers(3, 500, n).tolist() for n in rng.integers(128, 257, B)]
    seen = race(args.rounds, {"ours": lambda _: decode_ours(ours, prompts, new),
                              "theirs": lambda _: decode_theirs(theirs, prompts, new)})
    mine = medians(seen["ours"])
    print(f"decode {shape} batch {B}: {B * (new - 1) / mine['seconds']:.0f} tok/s = "
          f"{ratio(seen, 'theirs'):.2f} x generate (target {target}); "
          f"prefill {sum(map(len, prompts)) / mine['prefill']:.0f} tok/s = "
          f"{ratio(seen, 'theirs', figure='prefill'):.2f} x", flush=True)
