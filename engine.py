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
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch

from attention import Decode, Flash, kv_shape, layout_for, upload

SMALL_STEP = 4 * 10**6    # rows * layers * width**2; below it decode uses one thread: a second one
                          # costs more than it saves, and the environment servers need the core


# ---- the model ----------------------------------------------------------------------------------


# ---- attention ----------------------------------------------------------------------------------


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
    """A sequence in the engine: its row of the page table, and the tokens that are cached."""
    row: int
    token_ids: list[int] = field(default_factory=list)

    @property
    def length(self):
        return len(self.token_ids)


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

    def start(self):
        return Sequence(heapq.heappop(self.free_rows))

    def fork(self, parent):
        """A sequence with the same past: full pages are shared, a last page not full is copied."""
        child = self.start()
        child.token_ids = parent.token_ids.copy()
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
        del sequence.token_ids[full * self.pages.page_size:]

    def keep_prefix(self, sequence, context):
        """Before `context`, a list of token ids, is read: keep only the full pages of what begins
        both it and what is cached. Its last token is read anew, because its logits are wanted."""
        cached = sequence.token_ids
        if sequence.length < len(context) and cached == context[:sequence.length]:
            return
        same = 0
        for token, wanted in zip(cached, context[:-1]):
            if token != wanted:
                break
            same += 1
        self.forget(sequence, keep=same)

    @torch.inference_mode()
    def prefill(self, sequences, contexts):
        """Make contexts[i], a list of token ids, what sequences[i] has cached -> (B, V) logits of
        each last token. What begins both is kept, see `keep_prefix`; the rest is read."""
        token_ids = []
        for sequence, context in zip(sequences, contexts):
            self.keep_prefix(sequence, context)
            token_ids.append(context[sequence.length:])
        for sequence, context in zip(sequences, contexts):
            self.pages.grow(sequence.row, len(context))
        cached, lengths = [s.length > 0 for s in sequences], [len(ids) for ids in token_ids]
        logits = {}
        for part in prefill_parts(cached, lengths, self.prefill_tokens):
            table, starts = self._cached([sequences[i] for i in part])
            new = [lengths[i] for i in part]
            layout = layout_for(self.model, new, self.memory, table,
                                starts if cached[part[0]] else None)
            for i in part:
                sequences[i].token_ids += token_ids[i]
            ids = upload([t for i in part for t in token_ids[i]], self.device)
            last = upload(np.cumsum(new) - 1, self.device)
            self.tokens["prefill"] += len(ids)
            logits.update(zip(part, self.model.logits(ids, layout, last)))
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
        """Read one token more of each sequence: a list of ids -> (B, V) logits. flash-attn's by a
        CUDA graph if wanted: an eager step is bound by Python, not by the GPU. A graph holds the
        weights' addresses, so it lives no longer than this engine: one rollout."""
        for sequence in self._full(sequences):
            self.pages.grow(sequence.row, sequence.length + 1)
        table, starts = self._cached(sequences)
        for sequence, token in zip(sequences, token_ids):
            sequence.token_ids.append(token)
        self.tokens["decode"] += len(starts)
        if self.kernel == "torch":
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            logits = self.model.logits(upload(token_ids, self.device),
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
        return self.model.logits(ids, Flash(self.kernel, len(ids), 1, self.memory,
                                              torch.ones_like(starts), table, starts))


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
    inputs[:n, 0], inputs[:n, 1], inputs[:n, 2:2 + w] = token_ids, starts, table
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


