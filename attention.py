"""attention: what transformers calls in every layer, by four layouts of packed tokens."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import (
    AttentionInterface,
)

NEVER = -1e30        # score of a hidden slot; finite, as softmax over nothing but -inf is NaN
OURS = "paged_attention_of_ours"      # the name under which transformers finds `attend`
# Arguments of layers that change nothing here.
IGNORED = "dropout", "position_ids", "cache_position", "logits_to_keep", "output_router_logits"
PAGE_SIZES = dict(torch=32, flash2=256, varlen=256)      # in tokens; what each asks for


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


def kv_shape(config):
    """-> (layers, key-value heads, head size) of the keys of one token, and of its values."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads, head
