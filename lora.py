"""lora: low-rank adapters (LoRA, arXiv:2106.09685) in PEFT's file format.

    python train.py --model Qwen/Qwen2.5-3B-Instruct --env textcraft --lora 16

A linear layer of the decoder computes y = W x + (alpha / r) B A x. W (out, in) is frozen, in the
dtype of the computations; A (r, in) and B (out, r) are float32 and all that is trained. B begins
as 0, so the first policy is the base, as is a later one while its adapters are off. A folder of
adapters stands for the model that they make of their base: eval.py plays it, train.py --lora trains
it further. recipes/merge_lora.py makes an ordinary folder of it.
"""
import json
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import policy

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PLAIN = dict(peft_type="LORA", use_rslora=False, alpha_pattern={}, use_qalora=False,
             alora_invocation_tokens=None, layer_replication=None, init_lora_weights=True)


def adapt(model, rank, alpha, base, seed=0):
    """Freeze `model` and give adapters to the linear layers of its decoder layers: attention and
    MLP, but no embeddings, lm_head, and no routers or experts kept as one tensor. A is uniform in
    +-1 / sqrt(in), as in PEFT, and does not depend on the device. base: the model's path."""
    model.requires_grad_(False)
    model.lora = lora = SimpleNamespace(rank=rank, alpha=alpha, base=base, on=True)
    generator = torch.Generator().manual_seed(seed)

    def add(linear, inputs, output):            # a forward hook: two products, the second in place
        A, B = (part.weight.to(output.dtype) for part in (linear.lora_A, linear.lora_B))
        if lora.on:
            output.flatten(0, -2).addmm_(F.linear(inputs[0], A).flatten(0, -2), B.T,
                                         alpha=alpha / rank)
    for linear in [*model.model.layers.modules()]:
        if isinstance(linear, torch.nn.Linear):
            linear.lora_A = torch.nn.Linear(linear.in_features, rank, bias=False)
            linear.lora_B = torch.nn.Linear(rank, linear.out_features, bias=False)
            torch.nn.init.kaiming_uniform_(linear.lora_A.weight, 5 ** 0.5, generator=generator)
            torch.nn.init.zeros_(linear.lora_B.weight)
            linear.register_forward_hook(add)


def adapters(model):
    """{PEFT's name: parameter} of all A and B; {} of a model without adapters."""
    return {f"base_model.model.{name}": p for name, p in model.named_parameters()
            if ".lora_" in name}


def without_adapters(model):
    """The base as a policy, in the same memory: the reference of a KL costs no second model."""
    def action_logprobs(*arguments):
        model.lora.on = False
        try:
            return model.action_logprobs(*arguments)
        finally:
            model.lora.on = True
    return SimpleNamespace(action_logprobs=action_logprobs)


def save_adapters(model, folder):
    """Write `folder` as PEFT does."""
    names = {name.split(".")[-3] for name in adapters(model)}
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=model.lora.base,
                  r=model.lora.rank, lora_alpha=model.lora.alpha, target_modules=sorted(names))
    Path(folder).mkdir(exist_ok=True)
    save_file({name: p.detach().cpu() for name, p in adapters(model).items()},
              Path(folder, WEIGHTS), metadata={"format": "pt"})
    Path(folder, CONFIG).write_text(json.dumps(config, indent=1))


def load_policy(path, *more):
    """`policy.load_policy`, for which a folder of adapters is a model, too: the base with them."""
    base = base_of(path)
    model = policy.load_policy(base, *more)
    if base != path:
        load_adapters(model, path)
    return model.to(model.device)               # the adapters were made on the CPU


def load_adapters(model, folder):
    """Give the base `model` the adapters in `folder`. ValueError: broken, not of this model, or of
    settings other than PLAIN, which mean another sum than ours."""
    try:
        found = load_file(Path(folder, WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder}: no whole {WEIGHTS}: {error}") from None
    config = PLAIN | config_of(folder)
    adapt(model, config.get("r", 1), config.get("lora_alpha", 1), base_of(folder))
    # B of layers that are not in the folder stays 0
    own, odd = adapters(model), {k for k in PLAIN if config[k] != PLAIN[k]}
    odd |= {k for k, x in found.items() if k not in own or x.shape != own[k].shape}
    if odd:
        raise ValueError(f"{folder}: {min(odd)} does not fit; expected plain LoRA of linear layers "
                         f"in the decoder of {base_of(folder)}; others can be merged by PEFT")
    for name, x in found.items():
        own[name].data.copy_(x)


def config_of(path):
    """PEFT's settings of the adapters in folder `path`; {} of another path."""
    file = Path(path, CONFIG)
    return json.loads(file.read_text()) if file.is_file() else {}


def base_of(path):
    """The path of the model to which the adapters in folder `path` belong; else `path` itself."""
    return config_of(path).get("base_model_name_or_path", path)


def tokenizer_path(path):
    """Where the tokenizer of a model lies: PEFT leaves it with the base, we with the adapters."""
    return path if Path(path, "tokenizer_config.json").is_file() else base_of(path)
