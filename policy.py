"""policy: the model that is trained and that samples: load, check, equip, the training forward."""
import math
import os
import types

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from attention import NEVER, OURS, choose_kernel, kv_shape, layout_for

HEAD_CHUNK = 2048    # tokens whose (tokens, V) logits exist at a time


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
            layout = types.SimpleNamespace(memory=None, position=torch.arange(2), prepared={},
                                           prepare=lambda *_: None, attend=watch)
            forward(equip(model), torch.arange(2), layout)
        if layers != list(range(len(model.model.layers))):
            raise ValueError("not every layer has attention, once")
        if getattr(config, "sliding_window", None) and not kinds and not any(layout.prepared):
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


def forward(model, token_ids, layout, **more):
    """token_ids (T,) packed as `layout` says -> logits (T, V). Ids that stand for no text, from
    `known_ids` on, get the probability 0, as they do in `_head`."""
    logits = model(token_ids[None], position_ids=layout.position[None], use_cache=False,
                   layout=layout, **more).logits[0]
    logits[..., model.known_ids:] = NEVER
    return logits


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
