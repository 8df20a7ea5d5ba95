"""The engine: one transformers model, our attention, and the memory its keys and values live in.

The very module that is trained also plays: nothing is copied, no weights are sent anywhere. Its
attention layers call `attention` below, which hands the work to a *layout*, the object that knows
which token belongs to which sequence:

    Packed   whole sequences side by side in one row: the training forward and a first prefill
    Extend   new tokens of sequences whose past is in pages: the observation of a later turn
    Decode   one new token for each sequence: the paged decode (FlashDecode on CUDA)

Letters: B sequences, T tokens in a packed row, H heads, KH key-value heads, G = H / KH,
D head size, S page size in tokens, P pages, V vocabulary.
"""
import contextlib
import heapq
import os
import time
import types
from collections import Counter
from dataclasses import dataclass, field

os.environ.setdefault("GOMP_SPINCOUNT", "3000")   # before torch: on a busy machine its idle threads
import numpy as np                                # otherwise spin the environments off their cores
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

LOG2_E = 1.4426950408889634       # exp(x) = 2**(x * LOG2_E)
NEVER = -1e30        # a score that no softmax sees; finite, so that a row of nothing is not NaN
OURS = "paged_attention_of_ours"      # the name under which transformers finds `attention`
HEAD_CHUNK = 2048    # tokens whose (tokens, V) logits exist at a time
SMALL_STEP = 4 * 10**6    # rows * layers * width**2 below which a second core costs a decode step
                          # more than it brings; the environments' servers are glad of that core


# ---- the model ----------------------------------------------------------------------------------

def load_policy(path, device="cpu", dtype=torch.float32, attention="auto", compute_dtype=None):
    """A causal LM of transformers (Qwen2, Qwen2.5, Qwen3, Llama) that runs under our attention.

    path: a folder or a hub id. attention: "auto" | "flash2" | "flash4" | "torch".
    ValueError: a folder that is no model, or a model whose attention is not plain causal.
    """
    check_folder(path)
    introduce()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=OURS, dtype=dtype)
    except OSError as e:
        raise ValueError(f"{path}: not a model folder, and no such model on the hub could be had "
                         f"({str(e).splitlines()[0]})") from None
    return prepare(model.to(device), attention, compute_dtype)


def check_folder(path):
    """ValueError if `path` is a folder without a model, or names a folder that is not there."""
    files = os.listdir(path) if os.path.isdir(path) else None
    if files is not None and not any(f.endswith((".safetensors", ".bin")) for f in files):
        raise ValueError(f"{path}: no weights in this folder; expected model.safetensors beside "
                         "config.json, as save_pretrained writes them")
    if files is None and path[0] in "./~":
        raise ValueError(f"{path}: no such folder; give a folder of save_pretrained or a hub id")


def introduce():
    """Make our attention known to transformers, and keep its progress bars out of our log."""
    AttentionInterface.register(OURS, attend)
    transformers_logging.disable_progress_bar()


def prepare(model, attention="auto", dtype=None):
    """Give `model` our attention and the method `action_logprobs`; returns the model. dtype: of
    its computations, where that is not the one its weights are kept in."""
    windows = getattr(model.config, "layer_types", None) or ["full_attention"]
    if set(windows) != {"full_attention"}:
        raise ValueError(f"{model.config.model_type}: layers {sorted(set(windows))}; this engine "
                         "knows full causal attention only")
    introduce()
    model.set_attn_implementation(OURS)
    model.compute_dtype = dtype or model.dtype       # of activations and pages; FSDP may cast
    model.kernel, model.kernel_reason = choose_kernel(attention, model.device, model.compute_dtype)
    model.action_logprobs = types.MethodType(_action_logprobs, model)
    return model


def add_value_head(model):
    """Give the model a critic's head: V(text so far), a scalar, at first 0 everywhere."""
    model.value_head = torch.nn.Linear(model.config.hidden_size, 1).to(model.device)
    torch.nn.init.zeros_(model.value_head.weight)
    torch.nn.init.zeros_(model.value_head.bias)
    model.action_values = types.MethodType(_action_values, model)


def choose_kernel(attention, device, dtype):
    """-> (kernel, why). flash-attn serves CUDA in 16 bit; everything else is torch's own."""
    if attention not in ("auto", "flash2", "flash4", "torch"):
        raise ValueError(f"attention={attention!r}; known: auto, flash2, flash4, torch")
    if attention == "torch" or device.type != "cuda" or dtype == torch.float32:
        if attention.startswith("flash"):
            raise ValueError(f"attention={attention}: needs a CUDA device and bfloat16 or float16, "
                             f"not {device.type} and {dtype}")
        return "torch", f"{device.type}, {dtype}" if attention == "auto" else "asked for"
    for kernel in ("flash2", "flash4") if attention == "auto" else (attention,):
        try:
            flash_function(kernel)
            return kernel, "asked for" if attention != "auto" else "installed"
        except ImportError as e:
            missing = e
    if attention != "auto":
        raise ValueError(f"attention={attention}: not installed ({missing}); "
                         "pip install flash-attn (flash2) or flash-attn-4 (flash4)")
    return "torch", "no flash-attn installed"


# ---- attention ----------------------------------------------------------------------------------

def attend(module, query, key, value, attention_mask, scaling=None, sliding_window=None,
           layout=None, **_):
    """What transformers calls in every layer. query (1, H, T, D), key and value (1, KH, T, D), all
    rotated already -> ((1, T, H, D), None). `layout` travels through the model untouched: an opaque
    object, which neither FSDP's casts nor gradient checkpointing look into. Of a layout is asked
    attend(layer, query (T, H, D), key (T, KH, D), value, scale) -> (T, H, D).
    """
    if layout is None:
        raise ValueError("this model runs under our engine: use token_logprobs or collect, or call "
                         "model.set_attn_implementation('sdpa') for transformers' own attention")
    assert sliding_window is None and query.shape[0] == 1
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))     # (T, H or KH, D)
    return layout.attend(module.layer_idx, query, key, value, scaling)[None], None


class Packed:
    """Whole sequences of `lengths` tokens side by side in one row; nothing is read from pages.

    With `pages` and the tokens' `slots` there (see Pages), keys and values are kept.
    """

    def __init__(self, lengths, device, kernel="torch", pages=None, slots=None):
        self.kernel, self.pages, self.slots = kernel, pages, slots
        lengths = np.asarray(lengths)
        self.longest = int(lengths.max())
        ends = lengths.cumsum()
        starts = np.repeat(ends - lengths, lengths)
        position = np.arange(len(starts)) - starts
        self.position = torch.from_numpy(position).to(device)                          # (T,)
        self.cu_seqlens = torch.from_numpy(np.append(0, ends)).to(device, torch.int32)
        # torch's attention wants padding: sequences of like length are padded together
        self.buckets, order = [], np.argsort(-lengths, kind="stable")
        sequence, at = np.repeat(np.arange(len(lengths)), lengths), 0
        while at < len(order):
            rows = order[at:][lengths[order[at:]] >= 0.7 * lengths[order[at]]]
            place = np.full(len(lengths), -1)
            place[rows] = np.arange(len(rows))
            tokens = np.flatnonzero(place[sequence] >= 0)
            self.buckets.append((len(rows), int(lengths[rows[0]]), *(
                torch.from_numpy(x).to(device)
                for x in (tokens, place[sequence[tokens]], position[tokens]))))
            at += len(rows)
        tokens = torch.cat([bucket[2] for bucket in self.buckets])
        self.back = torch.empty_like(tokens)
        self.back[tokens] = torch.arange(len(tokens), device=device)

    def attend(self, layer, query, key, value, scale):
        if self.pages is not None:
            self.pages.write(layer, self.slots, key, value)
        if self.kernel != "torch":
            return flash(self.kernel, query, key, value, scale, self.cu_seqlens, self.longest,
                         cu_seqlens_k=self.cu_seqlens, longest_k=self.longest)
        if query.is_cuda and query.dtype != torch.float32:
            return torch_varlen(query, key, value, scale, self.cu_seqlens, self.longest)
        parts = []
        for count, longest, tokens, row, position in self.buckets:
            padded = [pad(x[tokens], count, longest, row, position) for x in (query, key, value)]
            out = F.scaled_dot_product_attention(*padded, is_causal=True, scale=scale,
                                                 enable_gqa=True)
            parts.append(out.transpose(1, 2)[row, position])
        return torch.cat(parts)[self.back]


def pad(x, count, longest, row, position):
    """(T, heads, D) -> (count, heads, longest, D), zeros behind each sequence: causal attention
    never looks there, so no mask is needed."""
    rows = x.new_zeros(count, longest, *x.shape[1:])
    return rows.index_put((row, position), x).transpose(1, 2)


class Extend:
    """New tokens of sequences whose past lies in pages: one gather of the past, then attention.

    table (B, P): page numbers; starts (B,): tokens cached before; lengths: new tokens of each.
    """

    def __init__(self, lengths, starts, table, pages, slots, kernel="torch"):
        device, lengths = table.device, np.asarray(lengths)
        self.kernel, self.pages, self.slots = kernel, pages, slots
        self.table, self.longest = table, int(lengths.max())
        ends = lengths.cumsum()
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.arange(len(row)) - (ends - lengths)[row]
        seq_lens = starts + lengths
        self.row, self.column, self.position = (
            torch.from_numpy(x).to(device) for x in (row, column, starts[row] + column))
        if kernel == "torch":        # query i of a sequence is its token starts + i
            query_at = starts[:, None] + np.arange(self.longest)
            key_at = np.arange(table.shape[1] * pages.page_size)
            visible = torch.from_numpy(key_at <= query_at[..., None])[:, None].to(device)
            self.bias = torch.zeros(visible.shape, device=device, dtype=pages.keys.dtype
                                    ).masked_fill_(~visible, -torch.inf)         # (B, 1, Q, L)
        else:
            self.longest_k = int(seq_lens.max())
            self.cu_seqlens, self.cu_seqlens_k, self.seq_lens = (
                torch.from_numpy(x).to(device, torch.int32)
                for x in (np.append(0, ends), np.append(0, seq_lens.cumsum()), seq_lens))

    def attend(self, layer, query, key, value, scale):
        self.pages.write(layer, self.slots, key, value)
        if self.kernel != "torch":
            return flash(self.kernel, query, *self.pages.for_flash(layer), scale,
                         self.cu_seqlens, self.longest, cu_seqlens_k=self.cu_seqlens_k,
                         longest_k=self.longest_k, table=self.table, seqused=self.seq_lens)
        keys, values = self.pages.gather(layer, self.table)
        B, KH, L, D = keys.shape
        rows = pad(query, B, self.longest, self.row, self.column)       # (B, H, Q, D)
        rows = rows.reshape(B, KH, -1, D)                # the G query heads of a group share keys
        if self.bias.shape[2] < rows.shape[2]:           # (B, 1, G * Q, L), for all layers
            self.bias = self.bias.repeat(1, 1, rows.shape[2] // self.longest, 1)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=self.bias, scale=scale)
        return out.view(B, query.shape[1], -1, D).transpose(1, 2)[self.row, self.column]


class Decode:
    """One new token for each of `rows` (B,); every page is read where it lies, by torch alone.

    slots: where the new tokens go (see Pages). runs: lists of pages, as `Engine._runs` makes them:
    (indices or a slice, owners (P, W) in 0..row_count, the last being nobody, bias (P, S)).
    """

    def __init__(self, rows, row_count, pages, slots, runs):
        self.pages, self.slots = pages, slots
        place = rows.new_full((row_count + 1,), len(rows))      # row -> its place in this step
        place[rows] = torch.arange(len(rows), device=rows.device)
        KH, dtype = pages.keys.shape[2], pages.keys.dtype
        heads = torch.arange(KH, device=rows.device)[:, None]
        self.readers = torch.cat([(place[owners][:, None] * KH + heads).flatten()
                                  for _, owners, _ in runs])
        self.runs = [(chosen, owners.shape[1], bias.to(dtype).repeat_interleave(KH, 0)[:, None])
                     for chosen, owners, bias in runs]

    def attend(self, layer, query, key, value, scale):
        self.pages.write(layer, self.slots, key, value)
        runs = [(*self.pages.choose(layer, chosen), *rest) for chosen, *rest in self.runs]
        return walk_pages(query.view(len(query), key.shape[1], -1, key.shape[2]), runs,
                          self.readers, scale).view(query.shape)


def walk_pages(query, runs, readers, scale):
    """Softmax attention of one query a row over pages in any order, each read once, none copied.

    query (B, KH, G, D) -> (B, KH, G, D). A run is (keys (P, KH, S, D), values, W, bias (P * KH, 1,
    S)): pages that W rows attend to, and 0 or NEVER for each slot. readers (N,), N the sum of
    P * KH * W over the runs: who looks at this head of this page, as row * KH + head; row B is
    nobody. Each page is scored against its readers, the maximum and the sums are collected by
    reader: flash-decoding, the split being the page. Powers of 2: they cost the CPU a fourth of
    those of e, a tenth with NEVER.
    """
    B, KH, G, D = query.shape
    shapes = [(len(keys) * KH, W * G, -1) for keys, _, W, _ in runs]      # of a run's products
    sizes = [pages * rows for pages, rows, _ in shapes]
    q = query.reshape(B * KH, G * D).index_select(0, readers.clamp(max=B * KH - 1)).view(-1, D)
    scores, parts = q.new_empty(len(q), runs[0][0].shape[2]), torch.empty_like(q)
    for (keys, _, _, bias), shape, x, out in zip(runs, shapes, q.split(sizes), scores.split(sizes)):
        torch.baddbmm(bias, x.view(shape), keys.flatten(0, 1).transpose(1, 2),
                      alpha=scale * LOG2_E, out=out.view(shape))
    scores = scores.float()
    peak = scores.amax(-1).view(-1, G)
    top = peak.new_full(((B + 1) * KH, G), NEVER)
    top.scatter_reduce_(0, readers[:, None].expand_as(peak), peak, "amax")
    weights = scores.sub_(top.index_select(0, readers).view(-1, 1)).exp2_()
    total = torch.zeros_like(top).index_add_(0, readers, weights.sum(-1).view(-1, G))
    weights = weights.to(q.dtype)
    for (_, values, _, _), shape, x, out in zip(runs, shapes, weights.split(sizes),
                                                parts.split(sizes)):
        torch.bmm(x.view(shape), values.flatten(0, 1), out=out.view(shape))
    summed = q.new_zeros((B + 1) * KH, G * D).index_add_(0, readers, parts.view(-1, G * D))
    total = total.clamp(min=1e-30).to(q.dtype)             # of a row without pages: 0
    return (summed.view(-1, G, D) / total[..., None]).view(B + 1, KH, G, D)[:B]


def flash_function(kernel):
    """flash-attn's varlen function: version 2 (`flash-attn`) or 4 (`flash-attn-4`); ImportError."""
    if kernel == "flash2":
        from flash_attn import flash_attn_varlen_func
    else:
        from flash_attn.cute import flash_attn_varlen_func
    return flash_attn_varlen_func


def flash(kernel, query, keys, values, scale, cu_seqlens_q, longest_q, cu_seqlens_k, longest_k,
          table=None, seqused=None):
    """Causal attention by flash-attn. query (T, H, D); keys, values (T, KH, D), or pages
    (pages, S, KH, D) with `table` (B, P) int32, when the new tokens are already written there.
    cu_seqlens_* (B + 1,) int32: cumulative lengths; seqused (B,) int32: tokens in the pages.
    """
    function = flash_function(kernel)
    if kernel == "flash2":
        return function(query, keys, values, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                        max_seqlen_q=longest_q, max_seqlen_k=longest_k, softmax_scale=scale,
                        causal=True, block_table=table)
    paged = dict(page_table=table, seqused_k=seqused) if table is not None \
        else dict(cu_seqlens_k=cu_seqlens_k)
    return function(query, keys, values, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=longest_q,
                    max_seqlen_k=longest_k, softmax_scale=scale, causal=True, **paged)[0]


def torch_varlen(query, key, value, scale, cu_seqlens, longest):
    """The same without pages, by the flash-attention that torch brings (CUDA, 16 bit)."""
    from torch.nn.attention.varlen import varlen_attn
    return varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, scale=scale,
                       window_size=(-1, 0), enable_gqa=True)           # nothing of what comes after


# ---- pages --------------------------------------------------------------------------------------

class OutOfPages(RuntimeError):
    """No page is free; somebody must give some back first."""


class Pages:
    """KV memory in runs of `page_size` tokens: keys, values (layers, pages, KH, S, D), head-major.

    The lowest free page is taken first, so that what is in use stays a dense beginning of the pool
    (`high` pages) and can be multiplied in place. A page is free when nobody counts on it.
    """

    def __init__(self, config, count, page_size, device, dtype):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, count, config.num_key_value_heads, page_size, head)
        self.page_size, self.count, self.high = page_size, count, 0
        self.keys, self.values = zeros(shape, device, dtype), zeros(shape, device, dtype)
        self.gathered = [self.keys.new_empty(0)] * 2       # see `gather`
        self.users = [0] * count
        self.free = list(range(count))               # ascending: a heap already

    @property
    def in_use(self):
        return self.count - len(self.free)

    def take(self):
        """-> the lowest free page, now with one user. OutOfPages."""
        if not self.free:
            raise OutOfPages(f"all {self.count} pages of {self.page_size} tokens are in use")
        page = heapq.heappop(self.free)
        self.users[page] = 1
        self.high = max(self.high, page + 1)
        return page

    def release(self, page):
        assert self.users[page] > 0, f"page {page} is already free"
        self.users[page] -= 1
        if self.users[page] == 0:
            heapq.heappush(self.free, page)
            while self.high and self.users[self.high - 1] == 0:
                self.high -= 1

    def slots(self, page, offset):
        """Where a layer's keys of tokens at (page, offset), (T,) each, lie: (T * KH,) rows of D."""
        KH = self.keys.shape[2]
        heads = torch.arange(KH, device=page.device)
        return ((page[:, None] * KH + heads) * self.page_size + offset[:, None]).flatten()

    def write(self, layer, slots, key, value):
        """Put key, value (T, KH, D) into their slots."""
        for pool, x in ((self.keys, key), (self.values, value)):
            pool[layer].view(-1, x.shape[2]).index_copy_(0, slots, x.reshape(-1, x.shape[2]))

    def choose(self, layer, chosen):
        """keys, values (P, KH, S, D) of some pages: of a slice, where they lie; else, copies."""
        pools = self.keys[layer], self.values[layer]
        if isinstance(chosen, slice):
            return [pool[chosen] for pool in pools]
        return [pool.index_select(0, chosen) for pool in pools]

    def gather(self, layer, table):
        """The pages of table (B, P) side by side -> keys, values (B, KH, P * S, D), to be used
        before the next call: they lie in memory used again, as fresh memory costs page faults."""
        _, KH, S, D = self.keys.shape[1:]
        runs = table[:, None] * KH + torch.arange(KH, device=table.device)[:, None]   # (B, KH, P)
        if self.gathered[0].numel() < runs.numel() * S * D:
            self.gathered = [self.keys.new_empty(runs.numel() * S * D) for _ in range(2)]
        out = [buffer[:runs.numel() * S * D].view(-1, S, D) for buffer in self.gathered]
        for pool, x in zip((self.keys, self.values), out):
            torch.index_select(pool[layer].view(-1, S, D), 0, runs.flatten(), out=x)
        return [x.view(*runs.shape[:2], -1, D) for x in out]

    def copy(self, source, target):
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def for_flash(self, layer):
        """flash-attn wants (pages, S, KH, D); any strides but the last will do."""
        return self.keys[layer].transpose(1, 2), self.values[layer].transpose(1, 2)


def zeros(shape, device, dtype):
    """Zeroed memory: a slot never written must be finite, for 0 * NaN is NaN. On the CPU it costs
    nothing until it is used: numpy asks the system for untouched zero pages, torch writes them."""
    if torch.device(device).type != "cpu" or dtype != torch.float32:
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(np.zeros(shape, np.float32))


# ---- the engine ---------------------------------------------------------------------------------

@dataclass
class Sequence:
    """One sequence's place in the engine: its row, its pages in order, how many tokens are cached.
    `shared`: leading pages read by other sequences too; `column`: its place among these."""
    row: int
    pages: list[int] = field(default_factory=list)
    length: int = 0
    shared: int = 0
    column: int = 0
    family: list[int] = field(default_factory=lambda: [0])     # [last column given], one for all


class Engine:
    """Prefill, fork and decode sequences of one model over one pool of pages.

    Who decodes: `join` and `leave`; a sequence that waits for its environment keeps its pages.
    seconds, tokens: Counters over "prefill" and "decode" (and "sampling", by `collect`).
    """

    def __init__(self, model, rows, pages, page_size=None, prefill_tokens=4096, graphs=True):
        self.model, self.device, self.kernel = model, model.device, model.kernel
        page_size = page_size or (32 if self.kernel == "torch" else 256)
        self.pages = Pages(model.config, pages, page_size, self.device, model.compute_dtype)
        self.prefill_tokens = prefill_tokens
        self.rows, self.free_rows = rows, list(range(rows))
        self.active = []                                       # the sequences that decode
        self.owner = np.full((pages, 1), rows)                 # who alone attends to a page
        self.sharers = np.full((pages, 8), rows)               # those who share one; rows: nobody
        self.bias = torch.full((pages, page_size), NEVER)      # 0 where a token has been written
        self.seconds, self.tokens = Counter(), Counter()
        work = rows * model.config.num_hidden_layers * model.config.hidden_size ** 2
        self.threads = 1 if work < SMALL_STEP else torch.get_num_threads()       # of a decode step
        self.graphs = {} if graphs and self.kernel != "torch" else None
        if self.graphs is not None:
            self.spare = self.pages.take()     # what the padding of a recorded batch reads

    # -- life of a sequence

    def start(self):
        return Sequence(heapq.heappop(self.free_rows))

    def fork(self, parent):
        """A sequence with the same past: full pages are shared, the last, unfinished one copied."""
        assert self.free_rows, f"all {self.rows} rows are taken"
        size, full = self.pages.page_size, parent.length // self.pages.page_size
        last = self.pages.take() if parent.length % size else None          # may raise: do it first
        child = self.start()
        child.length, child.family = parent.length, parent.family
        child.family[0] += 1
        child.column = child.family[0]
        child.shared = parent.shared = full
        child.pages = parent.pages[:full]
        for page in child.pages:
            self.pages.users[page] += 1
        if last is not None:
            self.pages.copy(parent.pages[full], last)
            self.bias[last] = self.bias[parent.pages[full]]
            child.pages.append(last)
        if child.column >= self.sharers.shape[1]:
            more = np.full_like(self.sharers, self.rows)
            self.sharers = np.concatenate([self.sharers, more], axis=1)
        if parent in self.active:                      # its full pages have several readers now
            self._own(parent, parent.row)
        return child

    def release(self, sequence):
        """Give everything back."""
        self.forget(sequence)
        heapq.heappush(self.free_rows, sequence.row)

    def forget(self, sequence):
        """Give the pages back and keep the row: the past can be prefilled again later."""
        if sequence in self.active:
            self.leave(sequence)
        for page in sequence.pages:
            self.pages.release(page)
        sequence.pages, sequence.length, sequence.shared = [], 0, 0

    def join(self, sequence):
        self._own(sequence, sequence.row)
        self.active.append(sequence)

    def leave(self, sequence):
        self._own(sequence, self.rows)
        self.active.remove(sequence)

    def _own(self, sequence, row):
        shared, alone = sequence.pages[:sequence.shared], sequence.pages[sequence.shared:]
        self.owner[shared] = self.rows
        self.sharers[shared, sequence.column] = row
        self.owner[alone] = row

    def _grow(self, sequence, length):
        """Take pages for `length` tokens in all. OutOfPages leaves the sequence as it was."""
        need = -(-length // self.pages.page_size) - len(sequence.pages)
        if need > len(self.pages.free):
            raise OutOfPages(f"{need} pages are needed, {len(self.pages.free)} are free")
        for _ in range(need):
            page = self.pages.take()
            self.bias[page] = NEVER
            sequence.pages.append(page)

    # -- forward passes

    @torch.inference_mode()
    def prefill(self, sequences, token_ids):
        """Read token_ids[i] (a list, not empty) behind what sequences[i] has -> (B, V) logits of
        each last token. Memory: `prefill_tokens` padded tokens at a time. OutOfPages: none is read.
        """
        for sequence, ids in zip(sequences, token_ids):
            self._grow(sequence, sequence.length + len(ids))
        order = sorted(range(len(sequences)), key=lambda i: (sequences[i].length > 0,
                                                             len(token_ids[i])))
        logits, at = [None] * len(sequences), 0
        while at < len(order):
            part, fresh = [], sequences[order[at]].length == 0
            while at < len(order) and fresh == (sequences[order[at]].length == 0) and (
                    (len(part) + 1) * len(token_ids[order[at]]) <= self.prefill_tokens or not part):
                part.append(order[at])
                at += 1
            out = self._prefill([sequences[i] for i in part], [token_ids[i] for i in part], fresh)
            for i, row in zip(part, out):
                logits[i] = row
        return torch.stack(logits)

    def _prefill(self, sequences, token_ids, fresh):
        size, device = self.pages.page_size, self.device
        starts, lengths = [s.length for s in sequences], [len(ids) for ids in token_ids]
        at = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths)])
        page = np.concatenate([np.repeat(s.pages, size)[s.length:s.length + n]
                               for s, n in zip(sequences, lengths)])
        page, offset = torch.from_numpy(page), torch.from_numpy(at % size)
        self.bias[page, offset] = 0.0
        slots = self.pages.slots(page, offset).to(device)
        if fresh:
            layout = Packed(lengths, device, self.kernel, self.pages, slots)
        else:
            table = np.zeros((len(sequences), max(len(s.pages) for s in sequences)), np.int32)
            for row, sequence in zip(table, sequences):
                row[:len(sequence.pages)] = sequence.pages
            layout = Extend(lengths, np.array(starts),
                            torch.from_numpy(table).to(device), self.pages, slots, self.kernel)
        for sequence, length in zip(sequences, lengths):
            sequence.length += length
        ids = torch.tensor([t for ids in token_ids for t in ids], device=device)
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        self.tokens["prefill"] += len(ids)
        return self.model(ids[None], position_ids=layout.position[None], use_cache=False,
                          logits_to_keep=last, layout=layout).logits[0]

    def pages_short(self):
        """How many pages the next `decode` wants beyond those that are free."""
        size = self.pages.page_size
        return sum(s.length == len(s.pages) * size for s in self.active) - len(self.pages.free)

    @torch.inference_mode()
    def decode(self, token_ids):
        """One token more for each active sequence, in their order: (B,) ids -> (B, V) logits."""
        size = self.pages.page_size
        for sequence in self.active:
            if sequence.length == len(sequence.pages) * size:
                self._grow(sequence, sequence.length + 1)
                self.owner[sequence.pages[-1]] = sequence.row
        lengths = np.array([s.length for s in self.active])
        page = np.array([s.pages[s.length // size] for s in self.active])
        self.bias[page, lengths % size] = 0.0
        for sequence in self.active:
            sequence.length += 1
        self.tokens["decode"] += len(lengths)
        self.tokens["decode_steps"] += 1
        self.tokens["decode_read"] += int(lengths.sum())       # cached tokens that were attended to
        token_ids = token_ids.to(self.device)
        if self.kernel != "torch":
            return self._decode_by_flash(token_ids, lengths, page, lengths % size)
        position, page, offset, rows = (torch.from_numpy(x).to(self.device) for x in (
            lengths, page, lengths % size, np.array([s.row for s in self.active])))
        layout = Decode(rows, self.rows, self.pages, self.pages.slots(page, offset), self._runs())
        with on_threads(self.threads):
            return self._forward(token_ids, position, layout)

    def _forward(self, token_ids, position, layout):
        return self.model(token_ids[None], position_ids=position[None], use_cache=False,
                          layout=layout).logits[0]

    def _runs(self):
        """What `walk_pages` walks: private pages, in place while most of them are somebody's; then
        the shared ones, each once for all of its readers."""
        owner, sharers = self.owner[:self.pages.high], self.sharers[:self.pages.high]
        private = np.flatnonzero(owner[:, 0] != self.rows)
        if 2 * len(private) > self.pages.high:
            private = slice(0, self.pages.high)
        shared = np.flatnonzero((sharers != self.rows).any(1))
        runs = []
        for chosen, owners in ((private, owner), (shared, sharers)):
            owners, bias = torch.from_numpy(owners[chosen]), self.bias[chosen]
            if len(owners):
                if not isinstance(chosen, slice):
                    chosen = torch.from_numpy(chosen).to(self.device)
                runs.append((chosen, owners.to(self.device), bias.to(self.device)))
        return runs

    def _decode_by_flash(self, token_ids, lengths, page, offset):
        """Recorded as a CUDA graph for the next power of two of sequences and of pages each: an
        eager step is bound by Python, not by the GPU. The graphs hold addresses of weights, so they
        live no longer than this engine: one rollout."""
        batch, width = len(lengths), max(len(s.pages) for s in self.active)
        if self.graphs is not None:
            batch, width = (1 << (n - 1).bit_length() for n in (batch, width))
        inputs = FlashInputs.padded(self, token_ids, lengths, page, offset, batch, width)
        if self.graphs is None:
            return inputs.forward(self)
        if (batch, width) not in self.graphs:
            self.graphs[batch, width] = DecodeGraph(self, inputs)
        return self.graphs[batch, width].replay(inputs)[:len(lengths)]


@dataclass
class FlashInputs:
    """What one decode step by flash reads, all on the device: (b,) unless said."""
    token_ids: torch.Tensor
    position: torch.Tensor
    page: torch.Tensor
    offset: torch.Tensor
    seq_lens: torch.Tensor           # int32, the new token included
    cu_seqlens_k: torch.Tensor       # (b + 1,) int32
    table: torch.Tensor              # (b, width) int32

    @classmethod
    def padded(cls, engine, token_ids, lengths, page, offset, batch, width):
        """The active sequences' inputs; rows up to `batch` read slot 0 of the spare page."""
        n = len(lengths)
        table = np.full((batch, width), getattr(engine, "spare", 0), np.int32)
        for row, sequence in zip(table, engine.active):
            row[:len(sequence.pages)] = sequence.pages
        seq_lens = np.ones(batch, np.int32)
        seq_lens[:n] = lengths + 1
        filled = [np.zeros(batch, np.int64) for _ in range(3)]
        filled[1][:] = table[:, 0]
        for array, values in zip(filled, (lengths, page, offset)):
            array[:n] = values
        host = (*filled, seq_lens, np.append(0, seq_lens.cumsum()).astype(np.int32), table)
        return cls(F.pad(token_ids, (0, batch - n)),
                   *(torch.from_numpy(x).to(engine.device, non_blocking=True) for x in host))

    def forward(self, engine):
        return engine._forward(self.token_ids, self.position, FlashDecode(self, engine))


class FlashDecode:
    """The layout of `Decode` for flash-attn: one query a sequence, the table of its pages."""

    def __init__(self, inputs, engine):
        self.inputs, self.pages, self.kernel = inputs, engine.pages, engine.kernel
        self.slots = self.pages.slots(inputs.page, inputs.offset)
        self.cu_seqlens = torch.arange(len(inputs.page) + 1, device=engine.device,
                                       dtype=torch.int32)
        self.longest = inputs.table.shape[1] * engine.pages.page_size    # an upper bound will do

    def attend(self, layer, query, key, value, scale):
        x = self.inputs
        self.pages.write(layer, self.slots, key, value)
        return flash(self.kernel, query, *self.pages.for_flash(layer), scale, self.cu_seqlens, 1,
                     cu_seqlens_k=x.cu_seqlens_k, longest_k=self.longest, table=x.table,
                     seqused=x.seq_lens)


class DecodeGraph:
    """One decode step of fixed shapes, recorded once; a replay launches all kernels at once."""

    def __init__(self, engine, inputs):
        self.inputs = inputs                           # the addresses that the graph reads
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):                  # warm up outside: kernels load lazily
            inputs.forward(engine)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = inputs.forward(engine)

    def replay(self, inputs):
        for name, ours in vars(self.inputs).items():
            ours.copy_(getattr(inputs, name))
        self.graph.replay()
        return self.logits


@contextlib.contextmanager
def on_threads(count):
    """torch computes on `count` threads inside, and as before behind it, whatever happened."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sample(logits, uniforms, temperature):
    """One token a row by inverse CDF: the first whose cumulative probability exceeds the uniform.

    logits (B, V), uniforms (B,) in [0, 1) -> ids (B,), logprobs (B,) of the distribution that was
    really sampled, in float32. One uniform a token from the trajectory's own stream makes its text
    independent of who else is in the batch. temperature 0: the most likely token. Beside the logits
    one (B, V) float32 tensor is made, and one more at a temperature of neither 0 nor 1; a
    log-probability is told from the likeliest token's.
    """
    scaled = logits if temperature in (0, 1) else logits.float() / temperature
    probabilities = torch.softmax(scaled, dim=-1, dtype=torch.float32)
    best, top = probabilities.amax(-1, keepdim=True), scaled.amax(-1, keepdim=True)
    if temperature == 0:
        ids = scaled.argmax(-1, keepdim=True)
    else:
        cumulative = torch.cumsum(probabilities, dim=-1, out=probabilities)
        total = cumulative[:, -1:]     # a uniform that rounds to 1 must not lead behind it
        target = torch.minimum(uniforms.to(total)[:, None] * total, total.nextafter(0 * total))
        ids = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    logprobs = scaled.gather(1, ids).float() - top.float() + best.log()
    return ids[:, 0], logprobs[:, 0]


def machine_rates(device, dtype):
    """(FLOP/s of a large matrix product, bytes/s read and written by a large copy), measured now:
    the peaks that a run's own figures are held against."""
    def seconds(work):
        work()
        times = []
        for _ in range(3):
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)
    n, length = (8192, 2**30) if device.type == "cuda" else (768, 2**24)
    a, memory = torch.rand(n, n, device=device).to(dtype), torch.zeros(length, device=device)
    copy = torch.empty_like(memory)
    return 2 * n**3 / seconds(lambda: a @ a), 2 * 4 * length / seconds(lambda: copy.copy_(memory))


# ---- the training forward -----------------------------------------------------------------------

def token_logprobs(model, token_ids, response_mask, position_ids, temperature=1.0, entropy=False):
    """log pi(token t | what came before it) at every sampled token, 0 elsewhere: (B, T) float32,
    aligned with token_ids (the shift by one lives here). With entropy=True also H(pi) there.

    token_ids (B, T), -1 behind a row's end; position_ids (B, T): place of the token in its context;
    a 0 begins a new one, so that a row may hold several contexts one after the other. All rows are
    packed into one without padding, and the head sees only the places before sampled tokens.
    """
    logprobs, entropies = model.action_logprobs(*packed(token_ids, response_mask, position_ids),
                                                temperature, entropy)
    where = ((token_ids >= 0) & response_mask.bool()).nonzero(as_tuple=True)
    empty = torch.zeros(token_ids.shape, device=token_ids.device)
    logprobs = empty.index_put(where, logprobs)
    return (logprobs, empty.index_put(where, entropies)) if entropy else logprobs


def token_values(model, token_ids, response_mask, position_ids):
    """V(text before token t) at every sampled token, 0 elsewhere: (B, T) float32."""
    values = model.action_values(*packed(token_ids, response_mask, position_ids))
    where = ((token_ids >= 0) & response_mask.bool()).nonzero(as_tuple=True)
    return torch.zeros(token_ids.shape, device=token_ids.device).index_put(where, values)


def packed(token_ids, response_mask, position_ids):
    """-> ids (T,), positions (T,), lengths of the contexts, indices (A,) of the sampled tokens."""
    real = token_ids >= 0
    ids, positions = token_ids[real], position_ids[real]
    starts = torch.nonzero(positions == 0)[:, 0]
    lengths = torch.diff(starts, append=starts.new_tensor([len(ids)])).tolist()
    return ids, positions, lengths, torch.nonzero(response_mask[real].bool())[:, 0]


# The two methods through which all that touches weights goes, so that FSDP can hook them.

def _action_logprobs(self, ids, positions, lengths, sampled, temperature, entropy):
    hidden, targets = _before(self, ids, positions, lengths, sampled), ids[sampled]
    parts = [checkpoint(_head, self.lm_head, h, t, temperature, entropy, use_reentrant=False)
             for h, t in zip(hidden.split(HEAD_CHUNK), targets.split(HEAD_CHUNK))]
    logprobs = torch.cat([p[0] for p in parts])
    return logprobs, torch.cat([p[1] for p in parts]) if entropy else None


def _action_values(self, ids, positions, lengths, sampled):
    return self.value_head(_before(self, ids, positions, lengths, sampled))[:, 0].float()


def _before(self, ids, positions, lengths, sampled):
    """(A, d): what the model knows just before each sampled token."""
    layout = Packed(lengths, ids.device, self.kernel)
    return self.model(ids[None], position_ids=positions[None], use_cache=False,
                      layout=layout).last_hidden_state[0][sampled - 1]


def _head(lm_head, hidden, targets, temperature, entropy):
    """(A, d) hidden states -> log-probability of each target and, if asked, the entropy. Run under
    `checkpoint`: a chunk's (A, V) logits are made again in the backward pass, never kept."""
    logprobs = torch.log_softmax(lm_head(hidden).float() / temperature, dim=-1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1) if entropy else None
