"""python -m tests.bench.gpu: the engine on a CUDA device, against what the device can do.

    python -m tests.bench.gpu                                     all shapes; about 15 minutes
    python -m tests.bench.gpu --models 3B --parts decode --quick

Qwen2.5's shapes with random weights in bfloat16 (built from their configs, nothing is downloaded),
with each attention that is installed (--attention); decode with and without CUDA graphs.

decode     Engine.decode, tok/s; share of the bandwidth limit: (weights + keys and values read) over
           the measured copy bandwidth is the least time a step can take
prefill    Engine.prefill of 8k tokens; share of the measured bfloat16 matmul rate, counting
           2 FLOP a weight and token, causal attention, and the head for last tokens only
update     action_logprobs and backward, 8k tokens, half of them trained; 3 times the forward's FLOP
attention  one layer's decode attention alone: flash-attn's varlen function over pages (what the
           engine calls), its flash_attn_with_kvcache, flash-attn 4, torch's walk over pages

Targets on an H200: decode at batch 256, context 1k, 3B: 60% of the limit; prefill and update: 40%
of the matmul rate; graphs: 2 times eager at batch 64.
"""
import argparse
import functools
import importlib.metadata
import math
import sys
import time

from engine import Decode, Engine, Flash, kv_shape, machine_rates, prepare     # before torch
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

MODELS = {      # width, width inside the MLP, layers, heads, key-value heads, tied, vocabulary
    "0.5B": (896, 4864, 24, 14, 2, True, 151936),
    "1.5B": (1536, 8960, 28, 12, 2, True, 151936),
    "3B": (2048, 11008, 36, 16, 2, True, 151936),
    "7B": (3584, 18944, 28, 28, 4, False, 152064),
}
TOKENS = 8192           # of a prefill and of an update's micro-batch


def seconds_of(function, repeats):
    """Seconds of one call: the mean of `repeats`, after three that warm up."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


# ---- the model ----------------------------------------------------------------------------------

def make_model(name, device):
    width, inner, layers, heads, kv_heads, tied, vocabulary = MODELS[name]
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        tie_word_embeddings=tied, max_position_embeddings=32768)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def weights_of(model):
    """Weights that a token multiplies: (those of the layers, those of the head)."""
    head = model.lm_head.weight.numel()
    embeddings = model.get_input_embeddings().weight.numel()
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    return sum(p.numel() for p in model.parameters()) - embeddings - (0 if tied else head), head


def kv_bytes(model):
    """Bytes of keys and values of one token, in bfloat16."""
    return 2 * math.prod(kv_shape(model.config)) * 2


def forward_flop(model, tokens, length, headed):
    """FLOP of a forward over sequences of `length`, the head at `headed` places."""
    layers, head = weights_of(model)
    config = model.config
    causal = 4 * config.num_hidden_layers * config.hidden_size * tokens * length / 2
    return 2 * layers * tokens + 2 * head * headed + causal


def make_engine(model, rows, tokens, graphs=False):
    """An engine with room for `rows` sequences of so many tokens; None where memory is short."""
    size = 32 if model.kernel == "torch" else 256
    pages = rows * -(-tokens // size) + graphs         # one that the padding of a graph reads
    if pages * size * kv_bytes(model) > 0.9 * torch.cuda.mem_get_info()[0]:
        return None
    return Engine(model, rows, pages, size, prefill_tokens=TOKENS, graphs=graphs)


def decoding(model, B, context, graphs=False):
    """An engine in which B sequences decode, `context` random tokens cached of each; or None."""
    engine = make_engine(model, B, context + 64, graphs)
    if engine is not None:
        for pool in engine.memory.pools:
            pool.normal_()
        for _ in range(B):
            sequence = engine.start(context)
            engine.pages.grow(sequence.row, context)
            engine.active.append(sequence)
    return engine


# ---- the parts: one row of the table each -------------------------------------------------------

def bench_decode(name, model, limits, B, context):
    ids = torch.randint(1000, (B,), device=model.device)
    read = 2 * sum(weights_of(model)) + B * context * kv_bytes(model)
    seconds, row = {}, f"decode    {name:5}{model.kernel:8} batch {B:4}, context {context:5}:"
    for mode in ("eager",) if model.kernel == "torch" else ("eager", "graphs"):
        engine = decoding(model, B, context, mode == "graphs")
        if engine is None:
            return f"{row} not enough memory"
        seconds[mode] = seconds_of(functools.partial(engine.decode, ids), 20)
        row += f" {mode} {B / seconds[mode]:7.0f} tok/s," \
               f" {read / limits['bandwidth'] / seconds[mode]:4.0%} of the limit;"
        del engine
    if "graphs" in seconds:
        row += f" graphs {seconds['eager'] / seconds['graphs']:.2f} x eager"
    return row


def bench_prefill(name, model, limits, B, context):
    texts = torch.randint(1000, (B, context)).tolist()
    engine = make_engine(model, B, context)

    def prefill():
        sequences = [engine.start() for _ in texts]
        engine.prefill(sequences, texts)
        for sequence in sequences:
            engine.release(sequence)
    return compute_row("prefill", name, model, limits, B, context, seconds_of(prefill, 5),
                       forward_flop(model, B * context, context, B))


def bench_update(name, model, limits, B, context):
    ids = torch.randint(1000, (B, context), device=model.device)
    positions = torch.arange(context, device=model.device).expand(B, context)
    mask = positions % 32 >= 16

    def update():
        model.action_logprobs(ids, mask, positions).sum().backward()
        model.zero_grad()
    return compute_row("update", name, model, limits, B, context, seconds_of(update, 5),
                       3 * forward_flop(model, B * context, context, B * context // 2))


def compute_row(part, name, model, limits, B, context, seconds, flop):
    return f"{part:10}{name:5}{model.kernel:8} batch {B:4}, context {context:5}: " \
           f"{B * context / seconds:7.0f} tok/s, {flop / seconds / 1e12:.0f} TFLOP/s, " \
           f"{flop / seconds / limits['matmul']:.0%} of matmul"


def bench_attention(name, model, limits, B, context):
    """The first layer's attention of a decode step, by every function that can do it."""
    engine = decoding(model, B, context)
    if engine is None:
        return f"attention {name:5}{model.kernel:8} batch {B:4}, context {context:5}: no memory"
    config, device = model.config, model.device
    _, KH, D = kv_shape(config)
    query, key = (torch.randn(B, heads, D, device=device, dtype=torch.bfloat16)
                  for heads in (config.num_attention_heads, KH))
    table, starts = engine._cached(engine.active)
    starts -= 1                                       # the token that is decoded is the last one
    if model.kernel == "torch":
        layout = Decode(engine.memory, table, starts)
    else:
        layout = Flash(model.kernel, np.ones(B, int), device, engine.memory, table, starts)

    view = layout.view(None, config.num_attention_heads // KH)      # made once for all layers

    def attention():
        engine.memory.write(0, layout.slots, key, key)
        return layout.attend(0, query, key, key, D**-0.5, *view)
    ways = {model.kernel: attention}
    if model.kernel == "flash2":
        from flash_attn import flash_attn_with_kvcache
        ways["its kvcache function"] = functools.partial(
            flash_attn_with_kvcache, query[:, None],
            *(pool[0].transpose(1, 2) for pool in engine.memory.pools),
            cache_seqlens=layout.seq_lens, block_table=layout.table, softmax_scale=D**-0.5,
            causal=True)
    read = B * context * kv_bytes(model) / config.num_hidden_layers
    row = f"attention {name:5}{model.kernel:8} batch {B:4}, context {context:5}:"
    for way, function in ways.items():
        seconds = seconds_of(function, 20)
        row += f" {way} {1e6 * seconds:.0f} us, {read / limits['bandwidth'] / seconds:.0%} of " \
               "the limit;"
    return row


PARTS = dict(decode=bench_decode, prefill=bench_prefill, update=bench_update,
             attention=bench_attention)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=tuple(PARTS))
    parser.add_argument("--attention", nargs="+", choices=("flash2", "flash4", "torch"),
                        default=("flash2", "flash4", "torch"))
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8, 64, 256, 512))
    parser.add_argument("--contexts", nargs="+", type=int, default=(512, 1024, 2048, 8192))
    parser.add_argument("--quick", action="store_true", help="batches 64, 256, context 1024")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench.gpu: no CUDA device here; tests/bench/rollout.py measures the CPU")
    if args.quick:
        args.batches, args.contexts = (64, 256), (1024,)
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    device = torch.device("cuda")
    limits = dict(zip(("matmul", "bandwidth"), machine_rates(device, torch.bfloat16)))
    print(torch.cuda.get_device_name(), *(f"{name} {installed.get(name, '-')}" for name in (
        "torch", "transformers", "flash-attn", "flash-attn-4")), sep=", ")
    print(f"measured: copy {limits['bandwidth'] / 1e12:.2f} TB/s, bfloat16 matmul "
          f"{limits['matmul'] / 1e12:.0f} TFLOP/s")
    for name in args.models:
        model = make_model(name, device)
        for kernel in args.attention:
            try:
                prepare(model, kernel)
            except ValueError as reason:
                print(reason)
                continue
            for part in args.parts:
                for context in args.contexts:
                    once = part in ("prefill", "update")          # always TOKENS tokens
                    for B in (TOKENS // context,) if once else args.batches:
                        try:
                            print(PARTS[part](name, model, limits, B, context), flush=True)
                        except torch.OutOfMemoryError:
                            print(f"{part:10}{name:5}{kernel:8} batch {B:4}, context {context:5}: "
                                  "not enough memory")
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
