"""The engine: one transformers model, our attention, and the memory its keys and values live in.

The module that is trained is the module that samples: there is no copy and no weight transfer
(parallel.py gathers the shards of a distributed one). Its layers, plain softmax attention, full or
in a window (docs/models.md), call `attend`; it asks a *layout*, which knows whose a token is.

    Packed   whole sequences side by side in one row: the training forward and a first prefill
    Extend   new tokens of sequences whose past is in pages: the observation of a later turn
    Decode   one new token for each sequence, over its pages
    Flash    all three by flash-attn or by the copy of it in torch, on CUDA in 16 bit. The others
             use plain torch

Who owns a page, and who frees it: see class Pages; when: class Engine.

Letters: B sequences, T tokens packed in one row (in arguments of the training forward: the padded
length), Q new tokens of the longest sequence, H heads, KH key-value heads, G = H / KH, D head size,
S tokens in a page, P pages at hand, W readers of a page, A sampled tokens, V vocabulary.
"""
import heapq
import math
import os
import types
from collections import Counter
from dataclasses import dataclass

# Before torch is first imported, which is why every script imports engine first. Segments that grow
# leave no gaps; idle threads that spin at barriers would take the environment servers' cores.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF",
                      os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True"))
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import (AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer,
                          LlamaConfig)
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.utils import logging as transformers_logging

NEVER = -1e30        # score of a hidden slot; finite, as softmax over nothing but -inf is NaN
OURS = "paged_attention_of_ours"      # the name under which transformers finds `attend`
# Arguments of layers that change nothing here.
IGNORED = "dropout", "position_ids", "cache_position", "logits_to_keep", "output_router_logits"
HEAD_CHUNK = 2048    # tokens whose (tokens, V) logits exist at a time
SMALL_STEP = 4 * 10**6    # rows * layers * width**2; below it decode uses one thread: a second one
                          # costs more than it saves, and the environment servers need the core
PAGE_SIZES = dict(torch=32, flash2=256, varlen=256)      # in tokens; what each asks for
transformers_logging.disable_progress_bar()            # they would break our log's lines


# ---- the model ----------------------------------------------------------------------------------

def load_policy(path, device="cpu", dtype=torch.float32, attention="auto"):
    """A causal LM of transformers (Qwen, Llama, Mistral, ...: docs/models.md) under our attention.
    path: a folder or a hub id. attention: "auto" | "flash2" | "varlen" | "torch".
    ValueError: no model, or one that cannot run here: see `check_model`."""
    check_model(path)
    model, info = from_pretrained(AutoModelForCausalLM, path, attn_implementation=OURS, dtype=dtype,
                                  use_safetensors=True, output_loading_info=True)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ValueError(f"{path}: no weights for {missing}; they would be random numbers")
    if not os.path.isdir(path) or any(x.startswith("tokenizer") for x in os.listdir(path)):
        last = max(from_pretrained(AutoTokenizer, path).get_vocab().values())
        if last >= len(model.get_input_embeddings().weight):
            raise ValueError(f"{path}: its tokenizer has token ids up to {last}, more than its "
                             "model has embeddings; give it its own tokenizer")
        model.known_ids = last + 1            # ids below it stand for text; the rest is padding
    return equip(model.to(device), attention)


def make_policy(vocabulary, width, layers, heads, seed):
    """A Llama with random weights, embeddings tied; two heads share keys, if their number is even.
    (For a folder that says qwen2, AutoTokenizer puts Qwen's own way of splitting words in place of
    the saved one.) ValueError."""
    if width % (2 * heads):
        raise ValueError(f"width={width}, heads={heads}: expected an even width for each head")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads if heads % 2 else heads // 2, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=0)
    return equip(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def longest_text(config):
    """The most tokens of a text for which a model was made. Beyond its first range longrope's
    positions depend on the longest text that is computed at the same time."""
    rope, name = getattr(config, "rope_parameters", None) or {}, "max_position_embeddings"
    first = rope.get("rope_type") == "longrope" and getattr(config, f"original_{name}", None)
    return first or getattr(config, name, None) or math.inf


def from_pretrained(auto, path, **more):
    """What transformers finds at `path`: data only, neither pickles nor code. ValueError."""
    try:
        return auto.from_pretrained(path, trust_remote_code=False, **more)
    except Exception as e:                 # a missing, broken or unknown file; a package it needs
        raise ValueError(f"{path}: no folder or hub id that transformers can load: {e}"
                         .splitlines()[0]) from e


def check_model(path):
    """ValueError, before any weight is read: no model at `path`, or one that cannot run here. It is
    tried without weights: on torch's meta device (experts there need bfloat16) our attention sees
    what each layer asks for."""
    config, layers = from_pretrained(AutoConfig, path), []
    kinds = set(getattr(config, "layer_types", None) or [])

    def watch(_, layer, query, key, value, scale):
        layers.append(layer)
        if not key.shape[1:] == value.shape[1:] == kv_shape(config)[1:]:
            raise ValueError(f"keys {*key.shape[1:],} and values {*value.shape[1:],} (heads, size)")
        return torch.empty_like(query)
    try:
        if others := kinds - {"full_attention", "sliding_attention"}:
            raise ValueError(f"layers of {', '.join(sorted(others))}")
        if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "dynamic":
            raise ValueError("rotary positions that depend on the length of the text")
        with torch.device("meta"), torch.no_grad():
            model = AutoModelForCausalLM.from_config(config, attn_implementation=OURS).bfloat16()
            layout = types.SimpleNamespace(memory=None, position=torch.arange(2), ready={},
                                           begin=lambda *_: (watch,))
            forward(equip(model), torch.arange(2), layout)
        if layers != list(range(len(model.model.layers))):
            raise ValueError("not every layer has attention, once")
        if getattr(config, "sliding_window", None) and not kinds and not any(layout.ready):
            raise ValueError("attention that is not told of its window")
    except Exception as e:                 # other people's code: whatever it raises, it cannot run
        raise ValueError(f"{config.model_type} cannot run: {(str(e) or repr(e)).splitlines()[0]}; "
                         "use Qwen3, Llama, Mistral or another model of docs/models.md") from e


def equip(model, attention="auto", dtype=None):
    """Give `model` our attention and the method `action_logprobs`; returns the model. dtype: of its
    computations and pages, where that is not the dtype of its weights.
    Weights are read only by the model itself, by that method and by `action_values`, because FSDP
    gathers sharded weights in hooks, and it can hook methods only."""
    model.set_attn_implementation(OURS)
    model.compute_dtype = dtype or model.dtype
    model.kernel, model.kernel_reason = choose_kernel(attention, model.device, model.compute_dtype)
    model.action_logprobs = types.MethodType(action_logprobs, model)
    model.known_ids = getattr(model, "known_ids", model.config.vocab_size)
    if model.compute_dtype != torch.float32:
        model.lm_head.forward = types.MethodType(float32_logits, model.lm_head)
    for module in model.modules():
        if same_code(type(module).forward, LlamaRMSNorm.forward):
            module.forward = types.MethodType(rms_norm, module)
    return model


def same_code(one, other):
    """Whether two methods do the same, word for word: most models have a copy of Llama's norm."""
    codes = [getattr(method, "__code__", None) for method in (one, other)]
    return None not in codes and len({(code.co_code, code.co_names) for code in codes}) == 1


def rms_norm(norm, x):
    """LlamaRMSNorm's forward, on CUDA one kernel in place of 8. Equal in float32; in 16 bit it is
    rounded once, theirs twice."""
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def add_value_head(model):
    """Give the model `action_values`, a critic's head V(text so far), at first 0 everywhere."""
    model.value_head = torch.nn.Linear(model.config.hidden_size, 1).to(model.device)
    torch.nn.init.zeros_(model.value_head.weight)
    torch.nn.init.zeros_(model.value_head.bias)
    model.action_values = types.MethodType(action_values, model)


def choose_kernel(attention, device, dtype):
    """-> (kernel, why). All but "torch" need a GPU and 16 bit: flash2 (the package flash-attn) and
    varlen (torch's copy of it, which reads pages since 2.13). ValueError: the one asked for cannot
    run here."""
    if attention == "torch":
        return "torch", "asked for"
    kernel, why = "varlen", "installed"
    if device.type != "cuda" or dtype == torch.float32:
        kernel, why = "torch", f"{device.type}, {dtype}"
    elif torch.cuda.get_device_capability(device) < (8, 0):
        kernel, why = "torch", "needs a GPU of compute capability 8.0 or later"
    elif attention != "varlen":
        try:
            from flash_attn import flash_attn_varlen_func  # noqa: F401
            kernel = "flash2"
        except ImportError as missing:              # or built for another torch, as its words say
            why = f"flash2: {missing}"
    if attention not in ("auto", kernel):
        raise ValueError(f"attention={attention}, but {why}: use auto, or a GPU and 16 bit")
    return kernel, why


# ---- attention ----------------------------------------------------------------------------------

def attend(module, query, key, value, attention_mask, scaling=None, sliding_window=None,
           layout=None, **more):
    """What transformers calls in every layer. query (1, H, T, D), key and value (1, KH, T, D), with
    rotary positions applied -> ((1, T, H, D), None). sliding_window: tokens that a token sees, with
    itself; None: all. layout: see below; an opaque object among the model's keyword arguments,
    because FSDP casts every tensor that it finds there.
    ValueError: an argument that asks for another attention."""
    if layout is None:
        raise ValueError(f"{type(module).__name__} got no layout: an attention class of its own, "
                         "or a model called directly, not by action_logprobs or collect")
    more |= {"a mask": attention_mask, "both directions": not getattr(module, "is_causal", True)}
    for name, x in more.items():
        if x is not None and x is not False and name not in IGNORED:
            raise ValueError(f"{type(module).__name__} asks for {name}")
    assert query.shape[0] == 1
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))     # (T, H or KH, D)
    if layout.memory is not None:      # first, so that the new tokens see themselves in the pages
        layout.memory.write(module.layer_idx, layout.slots, key, value)
    if sliding_window not in layout.ready:          # once for all layers
        layout.ready[sliding_window] = layout.begin(sliding_window, query.shape[1] // key.shape[1])
    function, *given = layout.ready[sliding_window]
    return function(layout, *given, module.layer_idx, query, key, value, scaling)[None], None


AttentionInterface.register(OURS, attend)

# A layout has
#   position (T,)             each token's place in its own sequence
#   memory, slots (T * KH,)   where its keys and values are written; memory None: nowhere
#   begin(window, G)          -> (function, *what it needs) of all layers with this window; called
#                             as (layout, *that, layer, query (T, H, D), key (T, KH, D), value,
#                             scale) -> (T, H, D). A bound method in `ready` would be a cycle
#   ready                     {window: that}

def layout_for(model, lengths, memory=None, table=None, starts=None):
    """The layout of a training forward or a prefill, by the model's kernel.
    lengths (B,): new tokens. With `memory` and `table` (B, width; see Pages) keys and values are
    written to pages; with `starts` (B,), tokens cached before, attention reads the pages too."""
    if model.kernel != "torch":
        numbers = (lengths, None if table is None else table.clip(0), starts)  # -1 is not legal
        numbers = (x if x is None else upload(np.int32(x), model.device) for x in numbers)
        return Flash(model.kernel, sum(lengths), max(lengths), memory, *numbers)
    if starts is None:
        return Packed(lengths, model.device, memory, table)
    return Extend(lengths, memory, table, starts)


def upload(x, device):
    """Numbers as a tensor on the device. To a GPU they go from pinned memory, as the host would
    otherwise wait until all work before is done."""
    x = torch.as_tensor(x)
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def places(lengths):
    """Which sequence each packed token is of, and which of its tokens it is: (T,), (T,).
    lengths [2, 3] -> [0, 0, 1, 1, 1], [0, 1, 0, 1, 2]."""
    lengths = np.asarray(lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - (lengths.cumsum() - lengths)[row]


class Packed:
    """Whole sequences of `lengths` tokens side by side, by torch alone; no page is read."""

    def __init__(self, lengths, device, memory=None, table=None):
        lengths, (row, position) = np.asarray(lengths), places(lengths)
        self.memory, self.position, self.ready = memory, upload(position, device), {}
        self.slots = memory and memory.slots(
            upload(table, device), upload(row, device), self.position)
        # torch's attention wants padding, so sequences of similar length share a padded bucket
        self.buckets, order = [], np.argsort(-lengths, kind="stable")
        first = lengths.cumsum() - lengths                 # token of each sequence
        while len(order):
            rows = order[lengths[order] >= 0.7 * lengths[order[0]]]
            order = order[len(rows):]
            row, column = places(lengths[rows])            # of the bucket's tokens
            self.buckets.append((len(rows), int(lengths[rows[0]]), *(
                upload(x, device) for x in (first[rows][row] + column, row, column))))

    def begin(self, window, groups):
        """A mask for each bucket, True: seen; None where a token sees all before."""
        masks = [None if window is None or longest <= window else torch.ones(
            longest, longest, dtype=torch.bool, device=self.position.device).tril().triu(1 - window)
            for _, longest, *_ in self.buckets]
        return Packed.attend, masks

    def attend(self, masks, layer, query, key, value, scale):
        """(T, H, D): each bucket's sequences, padded, by torch's attention."""
        out = torch.empty_like(query)
        for (count, longest, tokens, row, position), mask in zip(self.buckets, masks):
            padded = [pad(x[tokens], count, longest, row, position) for x in (query, key, value)]
            part = F.scaled_dot_product_attention(*padded, mask, is_causal=mask is None,
                                                  scale=scale, enable_gqa=True)
            out[tokens] = part.transpose(1, 2)[row, position]
        return out


def pad(x, count, longest, row, position):
    """(T, heads, D) -> (count, heads, longest, D), zeros after each sequence's end. Causal
    attention never looks there from a real token, so no mask is needed."""
    rows = x.new_zeros(count, longest, *x.shape[1:])
    return rows.index_put((row, position), x).transpose(1, 2)


class Extend:
    """New tokens of sequences whose past is in pages, by torch alone: one gather of the past in
    each layer, then attention under a mask. Arguments as in `layout_for`."""

    def __init__(self, lengths, memory, table, starts):
        device, self.longest = memory.keys.device, max(lengths)
        row, column = places(lengths)
        self.row, self.column, self.position = (
            upload(x, device) for x in (row, column, starts[row] + column))
        self.memory = memory
        self.slots = memory.slots(upload(table, device), self.row, self.position)
        self.table, self.starts, self.ready = table, starts, {}

    def begin(self, window, groups):
        """Pages (B, P) and a bias (B, 1, G * Q, P * S): 0 at what is seen."""
        # no page (-1) is read as page 0: it lies behind the sequence's end, which is hidden
        pages = upload(self.table.clip(0), self.position.device)
        own = (self.starts[:, None] + np.arange(self.longest))[..., None]          # (B, Q, 1)
        key = np.arange(pages.shape[1] * self.memory.page_size)
        hidden = (key > own) | (key <= own - window) if window else key > own
        bias = upload(np.where(hidden, np.float32(-np.inf), np.float32(0)), pages.device)[:, None]
        return Extend.attend, pages, bias.to(self.memory.keys.dtype).repeat(1, 1, groups, 1)

    def attend(self, pages, bias, layer, query, key, value, scale):
        """(T, H, D): the new tokens over the gathered pages, themselves among them."""
        keys, values = self.memory.gather(layer, pages)
        B, KH, _, D = keys.shape
        # G query heads share keys and values, so they become more rows: (B, KH, G * Q, D)
        rows = pad(query, B, self.longest, self.row, self.column).reshape(B, KH, -1, D)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=bias, scale=scale)
        return out.reshape(B, query.shape[1], -1, D).transpose(1, 2)[self.row, self.column]


class Decode(Extend):
    """One new token for each sequence: each page is read where it lies, once for all sequences that
    share it. In a window, which is rare, pages are gathered, as in a prefill."""

    def begin(self, window, groups):
        """The runs (pages, W, bias) and the readers of `walk_pages`."""
        if window:
            return super().begin(window, groups)
        (KH, S), device = self.memory.keys.shape[2:4], self.position.device
        runs, readers = [], []
        for chosen, rows, written in page_runs(self.table, self.starts + 1, S):
            empty = np.arange(S) >= written.repeat(KH)[:, None, None]            # (P * KH, 1, S)
            bias = upload(np.float32(NEVER) * empty, device).to(self.memory.keys.dtype)
            if not isinstance(chosen, slice):
                chosen = upload(chosen, device)
            runs.append((chosen, rows.shape[1], bias))
            readers.append((rows[:, None] * KH + np.arange(KH)[:, None]).ravel())
        return Decode.walk, runs, upload(np.concatenate(readers), device)

    def walk(self, runs, readers, layer, query, key, value, scale):
        """(T, H, D): each new token over its pages."""
        runs = [(*self.memory.choose(layer, chosen), *rest) for chosen, *rest in runs]
        grouped = query.view(len(query), key.shape[1], -1, key.shape[2])
        return walk_pages(grouped, runs, readers, scale).view(query.shape)


def page_runs(table, lengths, page_size):
    """Who reads which page: table (B, width; see Pages) and lengths (B,), tokens of each row ->
    at most two runs of (pages, readers (P, W): rows of the table, written (P,): tokens in a page).
    First pages with one reader, then shared ones. If most have one, the first run is a slice of
    all, read in place, the dummy row B reading the shared ones; else copies. [[0, 1], [0, 2]],
    [8, 5], 4 -> (slice(0, 3), [[2], [0], [1]], [4, 4, 1]), ([0], [[0, 1]], [4])."""
    rows, columns = np.nonzero(table >= 0)
    pages = table[rows, columns]
    counts = np.bincount(pages)                           # readers of each page, (P,)
    readers = np.full((len(counts), counts.max()), len(table))
    by_page = pages.argsort(kind="stable")                # one page's readers become adjacent
    readers[np.arange(counts.max()) < counts[:, None]] = rows[by_page]
    written = np.zeros(len(counts), int)
    written[pages] = (lengths[rows] - columns * page_size).clip(0, page_size)
    one, more = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
    runs = [(one, readers[one, :1], written[one]), (more, readers[more], written[more])]
    if 2 * len(one) > len(counts):
        readers[more, 0] = len(table)                     # shared: read by the second run
        runs[0] = slice(0, len(counts)), readers[:, :1], written
    return [run for run in runs if len(run[1])]


def walk_pages(query, runs, readers, scale):
    """Softmax attention of one query per row over pages in any order; each page is read once.

    query (B, KH, G, D) -> (B, KH, G, D). A run is (keys (P, KH, S, D), values, W, bias (P * KH, 1,
    S)): P pages that W rows read; the bias is NEVER at slots that are not seen, else 0.
    readers (N,), N the sum of P * KH * W over the runs: row * KH + head of each reader of a head.
    Row B is a dummy row, whose result is dropped. This is flash-decoding with the page as the
    split: each page gives scores and a partial output to its readers, which are then combined by
    reader. exp2 takes a fourth of the time of exp on the CPU, a tenth where scores are NEVER."""
    B, KH, G, D = query.shape
    shapes = [(len(keys) * KH, W * G, -1) for keys, _, W, _ in runs]      # of a run's products
    sizes = [pages * rows for pages, rows, _ in shapes]
    # 1. scores (N * G, S) of each reader's queries on its page
    q = query.reshape(B * KH, G * D).index_select(0, readers.clamp(max=B * KH - 1)).view(-1, D)
    scores, parts = q.new_empty(len(q), runs[0][0].shape[2]), torch.empty_like(q)
    for (keys, _, _, bias), shape, x, out in zip(runs, shapes, q.split(sizes), scores.split(sizes)):
        torch.baddbmm(bias, x.view(shape), keys.flatten(0, 1).transpose(1, 2),
                      alpha=scale * math.log2(math.e), out=out.view(shape))
    # 2. each reader's maximum over all its pages, weights relative to it, and their sum
    scores = scores.float()
    peak = scores.amax(-1).view(-1, G)
    top = peak.new_full(((B + 1) * KH, G), NEVER)
    top.scatter_reduce_(0, readers[:, None].expand_as(peak), peak, "amax")
    weights = scores.sub_(top.index_select(0, readers).view(-1, 1)).exp2_()
    total = torch.zeros_like(top).index_add_(0, readers, weights.sum(-1).view(-1, G))
    # 3. partial outputs, page by page, and their sum for each reader
    for (_, values, _, _), shape, x, out in zip(runs, shapes, weights.to(q.dtype).split(sizes),
                                                parts.split(sizes)):
        torch.bmm(x.view(shape), values.flatten(0, 1), out=out.view(shape))
    summed = q.new_zeros((B + 1) * KH, G * D).index_add_(0, readers, parts.view(-1, G * D))
    total = total.clamp(min=1e-30).to(q.dtype)             # a row without pages gets 0, not NaN
    return (summed.view(-1, G, D) / total[..., None]).view(B + 1, KH, G, D)[:B]


class Flash:
    """New tokens by a kernel of flash-attn, in every pass. Arguments as in `layout_for`, but int32
    tensors on the GPU; total, longest: of lengths, which the host knows without a look at them."""

    def __init__(self, kernel, total, longest, memory, lengths, table, starts):
        self.kernel, self.memory, self.longest, self.ready = kernel, memory, longest, {}
        seq_lens = lengths if starts is None else starts + lengths
        self.cu_seqlens, self.cu_seqlens_k = (
            F.pad(x.cumsum(0, dtype=torch.int32), (1, 0)) for x in (lengths, seq_lens))
        row = torch.repeat_interleave(lengths, output_size=total)           # of each token
        token = torch.arange(total, device=lengths.device)
        self.position = token + (seq_lens - self.cu_seqlens[1:])[row]
        self.slots = memory and memory.slots(table, row, self.position)
        self.seq_lens, self.table, self.longest_k = None, None, longest
        if starts is not None:              # longest_k: a bound, constant for graphs
            self.seq_lens, self.table, self.longest_k = (
                seq_lens, table, table.shape[1] * memory.page_size)

    def begin(self, window, groups):
        """flash-attn's window_size: tokens seen before a token's own, after it; -1: all."""
        before = window - 1 if window else -1
        # 0 after: causal. Nothing is after a lone query, and with -1 flash-attn 2 reads keys once
        # for all the query heads that share them.
        after = -1 if self.longest == 1 and not window else 0
        return Flash.attend, (before, after)

    def attend(self, window, layer, query, key, value, scale):
        """(T, H, D), by one call, whatever the pass."""
        lengths = self.cu_seqlens, self.cu_seqlens_k, self.longest, self.longest_k
        if self.table is not None:        # (pages, S, KH, D), as flash-attn wants them
            key, value = (pool[layer].transpose(1, 2) for pool in self.memory.pools)
        if self.kernel == "flash2":
            from flash_attn import flash_attn_varlen_func
            return flash_attn_varlen_func(query, key, value, *lengths, softmax_scale=scale,
                                          causal=True, window_size=window, block_table=self.table)
        # varlen: causal by window_size. A lone query's keys may be split; several queries' splits
        # leave rows of paged sequences unwritten (pytorch issue 194167).
        return varlen_attn(query, key, value, *lengths, scale=scale, enable_gqa=True,
                           num_splits=None if window == (-1, -1) else 1, window_size=window,
                           seqused_k=self.seq_lens, block_table=self.table)


# ---- pages --------------------------------------------------------------------------------------

class Pages:
    """Who owns which page of the KV memory: page numbers only, no tensors.

    table (rows, width): the pages of each row's sequence, in the order of its tokens, then -1. A
    row owns the pages it names; after a `fork` two rows own the full pages together. `grow` and
    `fork` take pages; whoever calls them knows that there are enough. Only `clear` frees, when a
    sequence is forgotten or released, and only pages that no other row names. The lowest free page
    is taken first, so that the pages in use are a dense beginning of the memory, which a decode
    step multiplies in place."""

    def __init__(self, count, page_size, rows, width):
        self.count, self.page_size = count, page_size
        self.free = list(range(count))               # ascending, hence already a heap
        self.table = np.full((rows, width), -1, np.int32)

    @property
    def in_use(self):
        return self.count - len(self.free)

    def of(self, row):
        """The pages of a row, in the order of its tokens."""
        return self.table[row][self.table[row] >= 0].tolist()

    def grow(self, row, length):
        """Give a row pages for `length` tokens in all."""
        for column in range(len(self.of(row)), -(-length // self.page_size)):
            self.table[row, column] = heapq.heappop(self.free)

    def fork(self, parent, child, length):
        """Share the full pages of row `parent`, of `length` tokens, with row `child`. Both will
        write to a last page that is not full, so the child gets its own: -> ([source], [target]) to
        be copied, or two empty lists."""
        full = length // self.page_size
        self.table[child, :full] = self.table[parent, :full]
        self.grow(child, length)
        return self.of(parent)[full:], self.of(child)[full:]

    def clear(self, row, keep=0):
        """Take all but the first `keep` pages from a row; free those that no other row names."""
        pages = self.table[row, keep:][self.table[row, keep:] >= 0]
        self.table[row, keep:] = -1
        for page in pages[~np.isin(pages, self.table)].tolist():
            heapq.heappush(self.free, page)


def kv_shape(config):
    """-> (layers, key-value heads, head size) of the keys of one token, and of its values."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads, head


class Memory:
    """What the pages hold: keys, values (layers, pages, KH, S, D), head-major."""

    def __init__(self, config, count, page_size, device, dtype):
        (layers, KH, D), self.page_size = kv_shape(config), page_size
        shape = layers, count, KH, page_size, D
        # zeroed, since 0 * NaN is NaN; numpy's zeros cost nothing until used, torch writes them
        self.keys, self.values = self.pools = [
            torch.from_numpy(np.zeros(shape, np.float32)).to(dtype) if device.type == "cpu"
            else torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)]

    def slots(self, table, row, position):
        """Where a layer keeps tokens `position` (T,) of the sequences table[row] -> (T * KH,)
        indices of vectors of D numbers."""
        KH, S = self.keys.shape[2:4]
        runs = table[row, position // S].long()[:, None] * KH + torch.arange(KH, device=row.device)
        return (runs * S + (position % S)[:, None]).flatten()

    def write(self, layer, slots, key, value):
        """Put key, value (T, KH, D) into their slots."""
        for pool, x in zip(self.pools, (key, value)):
            pool[layer].view(-1, x.shape[2]).index_copy_(0, slots, x.reshape(-1, x.shape[2]))

    def choose(self, layer, chosen):
        """keys, values (P, KH, S, D) of some pages: of a slice, views; of indices, copies."""
        if isinstance(chosen, slice):              # index_select: five times as fast as indexing
            return [pool[layer, chosen] for pool in self.pools]
        return [pool[layer].index_select(0, chosen) for pool in self.pools]

    def gather(self, layer, table):
        """The pages of table (B, P) side by side -> keys, values (B, KH, P * S, D)."""
        _, KH, S, D = self.keys.shape[1:]
        runs = table[:, None] * KH + torch.arange(KH, device=table.device)[:, None]   # (B, KH, P)
        return [pool[layer].view(-1, S, D).index_select(0, runs.flatten())
                .view(*runs.shape[:2], -1, D) for pool in self.pools]


# ---- the engine ---------------------------------------------------------------------------------

@dataclass(eq=False)
class Sequence:
    """A sequence in the engine: its row of the page table, and how many tokens are cached."""
    row: int
    length: int = 0


class Engine:
    """Prefill, fork and decode sequences of one model over one memory of pages.

    A sequence has a row from `start` or `fork` to `release`, at its episode's end. It keeps its
    pages until then, or until `forget`: its context is made anew, or another needs the pages.
    `tokens` counts those prefilled and decoded. width: the most pages of a sequence, if not all."""

    def __init__(self, model, rows, pages, page_size=256, prefill_tokens=4096, graphs=True,
                 width=None):
        self.model, self.device, self.kernel = model, model.device, model.kernel
        self.graphs = {} if graphs and self.kernel != "torch" else None      # {rows: recorded}
        self.pages = Pages(pages, page_size, rows, width or pages)
        self.memory = Memory(model.config, pages + 1, page_size, self.device, model.compute_dtype)
        self.rows, self.free_rows = rows, list(range(rows))
        self.prefill_tokens, self.tokens = prefill_tokens, Counter()
        work = rows * model.config.num_hidden_layers * model.config.hidden_size ** 2
        self.threads = 1 if work < SMALL_STEP else torch.get_num_threads()       # of a decode step

    def start(self, length=0):
        return Sequence(heapq.heappop(self.free_rows), length)

    def fork(self, parent):
        """A sequence with the same past: full pages are shared, a last page not full is copied."""
        child = self.start(parent.length)
        source, target = self.pages.fork(parent.row, child.row, parent.length)
        for pool in self.memory.pools:
            pool[:, target] = pool[:, source]
        return child

    def release(self, sequence):
        """Give the pages and the row back."""
        self.forget(sequence)
        heapq.heappush(self.free_rows, sequence.row)

    def forget(self, sequence, keep=0):
        """Give back all pages but those full of the first `keep` tokens; the row stays."""
        full = keep // self.pages.page_size
        self.pages.clear(sequence.row, full)
        sequence.length = full * self.pages.page_size

    @torch.inference_mode()
    def prefill(self, sequences, token_ids):
        """Read token_ids[i] (a list, not empty) after what sequences[i] has cached -> (B, V) logits
        of each last token."""
        for sequence, ids in zip(sequences, token_ids):
            self.pages.grow(sequence.row, sequence.length + len(ids))
        cached, lengths = [s.length > 0 for s in sequences], [len(ids) for ids in token_ids]
        logits = {}
        for part in prefill_parts(cached, lengths, self.prefill_tokens):
            table, starts = self._cached([sequences[i] for i in part])
            new = [lengths[i] for i in part]
            layout = layout_for(self.model, new, self.memory, table,
                                starts if cached[part[0]] else None)
            for i in part:
                sequences[i].length += lengths[i]
            ids = upload([t for i in part for t in token_ids[i]], self.device)
            last = upload(np.cumsum(new) - 1, self.device)
            self.tokens["prefill"] += len(ids)
            logits.update(zip(part, forward(self.model, ids, layout, logits_to_keep=last)))
        return torch.stack([logits[i] for i in range(len(sequences))])

    def _cached(self, sequences):
        """-> their rows of the page table (B, width), no wider than needed; tokens cached (B,)."""
        table = self.pages.table[[s.row for s in sequences]]
        return table[:, :(table >= 0).sum(1).max()], np.array([s.length for s in sequences])

    def _full(self, sequences):
        """Those whose next token begins a page."""
        return [s for s in sequences if s.length % self.pages.page_size == 0]

    def pages_short(self, sequences):
        """How many pages the next `decode` of these needs beyond those that are free."""
        return len(self._full(sequences)) - len(self.pages.free)

    @torch.inference_mode()
    def decode(self, sequences, token_ids):
        """Read one token more of each sequence: (B,) ids -> (B, V) logits. flash-attn's by a CUDA
        graph if wanted: an eager step is bound by Python, not by the GPU. A graph holds the
        weights' addresses, so it lives no longer than this engine: one rollout."""
        for sequence in self._full(sequences):
            self.pages.grow(sequence.row, sequence.length + 1)
        table, starts = self._cached(sequences)
        for sequence in sequences:
            sequence.length += 1
        self.tokens["decode"] += len(starts)
        if self.kernel == "torch":
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            logits = forward(self.model, token_ids.to(self.device),
                             Decode(np.ones(len(starts), int), self.memory, table, starts))
            torch.set_num_threads(before)
            return logits
        rows = self.rows if self.graphs == {} else len(starts)     # the first graph has all rows
        inputs = upload(step_inputs(token_ids, table, starts, rows, self.pages), self.device)
        if self.graphs is None:
            return self._step(inputs)[:len(starts)]
        if len(inputs) not in self.graphs:
            pools = [graph.pool() for _, graph, _ in self.graphs.values()]
            self.graphs[len(inputs)] = recorded(self._step, inputs, *pools[:1])
        given, graph, logits = self.graphs[len(inputs)]
        given.copy_(inputs)
        graph.replay()
        return logits[:len(starts)]            # the next replay overwrites them

    def _step(self, inputs):
        """What `step_inputs` made, on the GPU -> (rows, V) logits; nothing else is sent there."""
        ids, starts, table = inputs[:, 0], inputs[:, 1], inputs[:, 2:].contiguous()
        return forward(self.model, ids, Flash(self.kernel, len(ids), 1, self.memory,
                                              torch.ones_like(starts), table, starts))


def forward(model, token_ids, layout, **more):
    """token_ids (T,) packed as `layout` says -> logits (T, V). Ids that stand for no text, from
    `known_ids` on, get the probability 0, as they do in `_head`."""
    logits = model(token_ids[None], position_ids=layout.position[None], use_cache=False,
                   layout=layout, **more).logits[0]
    logits[..., model.known_ids:] = NEVER
    return logits


def prefill_parts(cached, lengths, most):
    """Which texts are read in one forward pass -> lists of indices: texts with and without a cached
    past apart (their layouts differ), of at most `most` tokens with their padding, or one text."""
    parts = []
    for i in sorted(range(len(lengths)), key=lambda i: (cached[i], lengths[i])):
        part = parts[-1] if parts else []                                   # i is the longest in it
        if part and cached[part[0]] == cached[i] and (len(part) + 1) * lengths[i] <= most:
            part.append(i)
        else:
            parts.append([i])
    return parts


def step_inputs(token_ids, table, starts, rows, pages):
    """A decode step as one array (rows, 2 + width) int32: each row's token, how many it has cached,
    its pages. Rows are padded to the next power of two of `rows`, from 8 on: few graphs serve all
    steps. A padding row has one token, in the memory's last page, which Pages does not deal out."""
    width = pages.table.shape[1]
    inputs = np.full((max(8, 1 << (rows - 1).bit_length()), 2 + width), pages.count, np.int32)
    inputs[:, :2] = 0
    n, w = table.shape
    inputs[:n, 0], inputs[:n, 1], inputs[:n, 2:2 + w] = token_ids.numpy(force=True), starts, table
    inputs[inputs < 0] = pages.count               # behind a sequence's end
    return inputs


def recorded(step, inputs, pool=None):
    """One decode step of fixed shapes as a CUDA graph, whose replay launches all kernels at once ->
    (inputs, graph, logits): a replay reads and writes these addresses. pool: the memory of an
    earlier graph, which must have had more rows."""
    step(inputs)                                        # warm up: kernels load lazily
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool):                 # on one stream for all
        logits = step(inputs)
    return inputs, graph, logits


def sample(logits, uniforms, temperature):
    """One token a row by inverse CDF: the first whose cumulative probability exceeds the uniform.
    logits (B, V), uniforms (B,) in [0, 1) -> ids (B,), logprobs (B,) float32, under the sampled
    distribution. One uniform per token, from the trajectory's own random stream, makes its text
    independent of the rest of the batch. temperature 0: the most likely token, with its logprob at
    temperature 1."""
    scaled = logits if temperature in (0, 1) else logits.float() / temperature
    probabilities = torch.softmax(scaled, dim=-1, dtype=torch.float32)
    # log softmax(x) = x - max(x) + log max(p): without another (B, V) tensor
    top_probability, top_logit = (x.amax(-1, keepdim=True) for x in (probabilities, scaled))
    if temperature == 0:
        ids = scaled.argmax(-1, keepdim=True)
    else:
        cumulative = torch.cumsum(probabilities, dim=-1, out=probabilities)
        total = cumulative[:, -1:]     # a uniform that rounds to 1 must not pick past the end
        target = torch.minimum(uniforms.to(total)[:, None] * total, total.nextafter(0 * total))
        ids = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    logprobs = scaled.gather(1, ids).float() - top_logit.float() + top_probability.log()
    return ids[:, 0], logprobs[:, 0]


# ---- the training forward: methods of the model, see `equip` ----------------------------------

def action_logprobs(model, token_ids, response_mask, position_ids, temperature=1.0, entropy=False):
    """log pi(token | what came before it) of the A sampled tokens, row by row: (A,) float32; with
    entropy=True (2, A), then H(pi) at each; with entropy="watched" no gradient passes through it.
    The shift by one lives in `hidden_before` alone.

    token_ids (B, T), -1 after a row's end; response_mask (B, T); position_ids (B, T): place of the
    token in its context; a 0 begins a new one, of which a row may hold several. All are packed into
    one row without padding, and the head sees only the places before sampled tokens."""
    hidden, targets = hidden_before(model, token_ids, response_mask, position_ids)
    return torch.cat([checkpoint(_head, model, h, t, temperature, entropy, use_reentrant=False)
                      for h, t in zip(hidden.split(HEAD_CHUNK), targets.split(HEAD_CHUNK))], -1)


def action_values(model, token_ids, response_mask, position_ids):
    """V(text before the token) of the A sampled tokens, row by row: (A,) float32."""
    hidden = hidden_before(model, token_ids, response_mask, position_ids)[0]
    hidden = hidden.to(model.value_head.weight.dtype)        # float32 beside a frozen 16-bit base
    return model.value_head(hidden)[:, 0].float().clone()    # FSDP warns of a view


def hidden_before(model, token_ids, response_mask, position_ids):
    """(A, width): the last hidden state before each sampled token; (A,): the sampled tokens."""
    real = token_ids >= 0
    ids, positions = token_ids[real], position_ids[real]
    starts = torch.nonzero(positions == 0)[:, 0]
    lengths = torch.diff(starts, append=starts.new_tensor([len(ids)])).tolist()
    sampled = torch.nonzero(response_mask[real].bool())[:, 0]
    # transformers recomputes a layer in train mode; its parts stay in eval, so nothing is dropped
    for layer in model.model.layers:
        layer.training = model.is_activation_checkpointing and torch.is_grad_enabled()
    hidden = model.model(ids[None], position_ids=positions[None], use_cache=False,
                         layout=layout_for(model, lengths)).last_hidden_state[0]
    return hidden[sampled - 1], ids[sampled]


def _head(model, hidden, targets, temperature, entropy):
    """(A, width) hidden states -> (A,) log-probability of each target or, with entropy, (2, A). Run
    under `checkpoint`: a chunk's (A, V) logits are computed again in the backward pass, not kept.
    The model's own forward makes them, without its layers: many scale or cap lm_head's logits."""
    # A stand-in, in every attribute this model, but its `model` (the layers) returns the hidden
    # states we have. Mixture models read router_logits of that output: it is of their class.
    headed = types.SimpleNamespace(**vars(model) | model._modules | dict(
        model=lambda **_: MoeModelOutputWithPast(last_hidden_state=hidden[None])))
    logits = type(model).forward(headed).logits[0].float()
    logits[..., model.known_ids:] = NEVER
    if temperature != 1:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, -1)
    del logits                        # each is a GB or more of a chunk: see recipes/plan.py
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    logp = logprobs.detach() if entropy == "watched" else logprobs
    return torch.stack([chosen, -(logp.exp() * logp).sum(-1)]) if entropy else chosen


def float32_logits(head, hidden):
    """lm_head's forward in 16 bit, for sampler and trainer: (1, T, width) -> (1, T, V) float32."""
    return Float32Linear.apply(hidden[0], head.weight, head.bias)[None]


class Float32Linear(torch.autograd.Function):
    """F.linear of 16-bit numbers, without its last step: sums are made in float32, and stay so. In
    bfloat16 logits from 16 to 32 are rounded to eighths. The gradients are F.linear's."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        out = torch.mm(x, weight.T, out_dtype=torch.float32) if x.device.type == "cuda" else \
            x.float() @ weight.float().T                      # torch.mm has it on CUDA alone
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors              # under `checkpoint` it may be read only once
        g, (_, trained, biased) = gradient.to(x.dtype), ctx.needs_input_grad
        return g @ weight, g.T @ x if trained else None, g.sum(0) if biased else None
