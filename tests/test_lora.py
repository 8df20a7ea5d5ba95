"""pytest tests/test_lora.py: adapters by hand, their files against PEFT's, runs with --lora.

Played is the toy of test_train.py. A stands for lora_A (r, in), B for lora_B (out, r).
"""
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.multiprocessing import spawn
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

import fakes
import metrics
import parallel
import run as runs
import train
from engine import add_value_head, prepare
from fakes import (config, flags_of, make_known, save_policy, served, started, token_logprobs,
                   trained, trainer_of, twins)
from lora import (adapt, adapters, base_of, load_policy, merge, save_adapters, tokenizer_path,
                  without_adapters)
from recipes import merge_lora

peft = pytest.importorskip("peft", reason="pip install -r tests/requirements.txt")
MLP = {"gate_proj", "up_proj", "down_proj"}
LAYER = {"q_proj", "k_proj", "v_proj", "o_proj"} | MLP


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def url():
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_policy(str(tmp_path_factory.mktemp("models") / "policy"))


@torch.no_grad()
def shake(model, seed=0):
    """Adapters as if trained: B is no longer 0."""
    generator = torch.Generator().manual_seed(seed)
    for p in adapters(model).values():
        p.add_(0.02 * torch.randn(p.shape, generator=generator))
    return model


def text(vocabulary=50, length=30):
    """(token_ids, response_mask, position_ids) of one text, all but its first token sampled."""
    ids = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(1))
    return ids, torch.arange(length)[None] > 0, torch.arange(length)[None]


def policy(kind="llama", tied=True, folder=None):
    """(a model of fakes.twins with trained adapters of rank 4, the same without adapters)."""
    ours, stock = twins(kind, tied)
    if folder:
        stock.save_pretrained(folder)
    adapt(ours, 4, 32, "base", seed=3)
    return shake(ours), stock


# ---- the sum ------------------------------------------------------------------------------------

def test_adapt_gives_adapters_to_the_linear_layers_of_the_decoder_alone():
    ours, stock = twins("qwen2", tied=False)
    adapt(ours, 4, 32, "base", seed=3)
    shapes = {name: p.shape for name, p in adapters(ours).items()}
    wanted = {f"base_model.model.model.layers.{i}.{part}.{name}" for i in range(2)
              for part, names in (("self_attn", LAYER - MLP), ("mlp", MLP)) for name in names}
    assert {name.removesuffix(".lora_A.weight") for name in shapes if "lora_A" in name} == wanted
    layer = "base_model.model.model.layers.0.mlp.down_proj"         # 96 -> 64
    assert shapes[f"{layer}.lora_A.weight"] == (4, 96)
    assert shapes[f"{layer}.lora_B.weight"] == (64, 4)
    own = {name.removeprefix("base_model.model.") for name in shapes}
    assert all(p.requires_grad == (name in own) for name, p in ours.named_parameters())
    frozen = {name: p for name, p in ours.named_parameters() if name not in own}
    assert frozen.keys() == dict(stock.named_parameters()).keys()   # the base keeps its names


def test_adapt_leaves_experts_and_routers_alone():
    moe = AutoModelForCausalLM.from_config(Qwen3MoeConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1), dtype=torch.float32)
    adapt(prepare(moe), 2, 32, "base")
    assert {name.split(".")[-3] for name in adapters(moe)} == LAYER - MLP


def test_adapt_begins_with_the_base_to_the_bit_and_a_random_a():
    ours, stock = twins("qwen2")
    before = token_logprobs(ours, *text())
    adapt(ours, 4, 32, "base", seed=3)
    assert torch.equal(token_logprobs(ours, *text()), before)
    for name, p in adapters(ours).items():
        bound = p.shape[1] ** -0.5              # PEFT's kaiming_uniform_ with a = sqrt(5)
        assert ("lora_B" in name and not p.any()) or 0.9 * bound < p.abs().max() <= bound
    (a, again, other), name = (twins("qwen2")[0] for _ in range(3)), next(iter(adapters(ours)))
    for policy, seed in ((a, 3), (again, 3), (other, 4)):
        adapt(policy, 4, 32, "base", seed)
    assert torch.equal(adapters(a)[name], adapters(again)[name])
    assert not torch.equal(adapters(a)[name], adapters(other)[name])


@pytest.mark.parametrize("kind", ["llama", "qwen2"])        # without and with biases
def test_adapt_has_the_output_and_gradients_of_a_low_rank_layer(kind):
    """With x (N, in) and g = dL/dy (N, out): dL/dB = s g^T (x A^T), dL/dA = s (g B)^T x, s = 32/4.
    y is the output W x + b of the layer without adapters, and s (x A^T) B^T."""
    ours, _ = policy(kind)
    layers = {name: m for name, m in ours.named_modules() if hasattr(m, "lora_A")}
    seen = {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda m, x, y, name=name: seen.update({name: [x[0], y]}))
        layer.register_full_backward_hook(lambda m, _, g, name=name: seen[name].append(g[0]))
    ours.get_input_embeddings().weight.requires_grad_()     # for torch's hooks
    token_logprobs(ours, *text()).sum().backward()
    assert len(seen) == 14
    for name, layer in layers.items():
        x, y, g = (t.detach().flatten(0, -2).double() for t in seen[name])
        W, A, B = (m.weight.detach().double() for m in (layer, layer.lora_A, layer.lora_B))
        bias = 0 if layer.bias is None else layer.bias
        torch.testing.assert_close(y, x @ W.T + bias + 8 * (x @ A.T) @ B.T, atol=1e-5, rtol=1e-5)
        for part, expected in ((layer.lora_B, 8 * g.T @ (x @ A.T)),
                               (layer.lora_A, 8 * (g @ B).T @ x)):
            torch.testing.assert_close(part.weight.grad.double(), expected, atol=1e-4, rtol=1e-4)
        assert layer.weight.grad is None


def test_adapt_keeps_adapters_in_float32_over_a_base_in_16_bit(model):
    half, whole = (load_policy(model, "cpu", dtype) for dtype in
                   (torch.bfloat16, torch.float32))
    values = []
    for policy in half, whole:
        adapt(policy, 4, 32, "base")
        add_value_head(policy)
        shake(policy)
        logprobs = token_logprobs(policy, *text())
        (logprobs.sum() + policy.action_values(*text()).sum()).backward()
        values.append(logprobs)
    trained = [p for p in half.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {p.grad.dtype for p in trained} == {torch.float32}
    assert {p.dtype for p in half.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert len(trained) == 2 * 14 + 2           # and the value head's weight and bias
    torch.testing.assert_close(*values, atol=0.3, rtol=0.1)


def test_without_adapters_is_the_base_to_the_bit_and_leaves_them_on():
    ours, _ = twins()
    base = token_logprobs(ours, *text())
    adapt(ours, 4, 32, "base")
    now = token_logprobs(shake(ours), *text())
    assert (now - base).abs().max() > 0.1
    assert torch.equal(token_logprobs(without_adapters(ours), *text()), base)
    with pytest.raises(TypeError):
        without_adapters(ours).action_logprobs("no batch")
    assert torch.equal(token_logprobs(ours, *text()), now)


@pytest.mark.parametrize("tied", [True, False])
def test_merge_makes_an_ordinary_model_with_the_same_logprobs(tied):
    ours, stock = policy("qwen2", tied)
    unmerged = token_logprobs(ours, *text())
    merge(ours)
    torch.testing.assert_close(token_logprobs(ours, *text()), unmerged, atol=1e-5, rtol=0)
    assert ours.state_dict().keys() == stock.state_dict().keys()
    assert all(p.requires_grad for p in ours.parameters())
    assert not any(m._forward_hooks for m in ours.modules())


# ---- files --------------------------------------------------------------------------------------

@torch.no_grad()
def peft_logits(folder, base):
    """What PEFT makes of a folder of adapters."""
    stock = AutoModelForCausalLM.from_pretrained(base, attn_implementation="sdpa")
    return peft.PeftModel.from_pretrained(stock, folder).eval()(text()[0]).logits[0]


def logprobs_of(logits):
    """(T,): of the tokens of `text`, 0 for the first."""
    ids = text()[0][0]
    return torch.cat([torch.zeros(1), logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]])


@pytest.mark.parametrize("kind, tied", [("llama", True), ("qwen2", False)])
def test_save_adapters_loads_in_peft_to_the_same_logits(kind, tied):
    ours, _ = policy(kind, tied, folder="base")
    save_adapters(ours, "own")
    torch.testing.assert_close(logprobs_of(peft_logits("own", "base")),
                               token_logprobs(ours, *text())[0], atol=1e-5, rtol=0)
    loaded = peft.PeftConfig.from_pretrained("own")     # as PEFT understands it
    assert (loaded.r, loaded.lora_alpha, loaded.target_modules) == (4, 32, LAYER)
    assert loaded.base_model_name_or_path == "base" and loaded.task_type == "CAUSAL_LM"


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_load_adapters_reads_what_peft_wrote(targets):
    twins("qwen2", tied=False)[1].save_pretrained("base")
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained("base"), peft.LoraConfig(
        r=3, lora_alpha=7, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            p.add_(0.1 * torch.randn_like(p) if "lora_B" in name else 0)
    theirs.save_pretrained("theirs")
    ours = load_policy("theirs")
    changed = {name for name, p in adapters(ours).items() if p.any() and "lora_B" in name}
    assert changed == {k for k in load_file("theirs/adapter_model.safetensors") if "lora_B" in k}
    torch.testing.assert_close(token_logprobs(ours, *text())[0],
                               logprobs_of(peft_logits("theirs", "base")), atol=1e-5, rtol=0)


def changed(name="own", **settings):
    """A copy of the folder "own" whose adapter_config.json says something else."""
    shutil.copytree("own", name)
    path = Path(name, "adapter_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return name


def test_load_adapters_refuses_what_it_would_compute_wrongly():
    ours, _ = policy(folder="base")
    save_adapters(ours, "own")
    twins(layers=1)[1].save_pretrained("small")
    for settings, word in ((dict(use_rslora=True), "use_rslora"),
                           (dict(peft_type="IA3"), "peft_type"),
                           (dict(alpha_pattern={"q_proj": 4}), "alpha_pattern"),
                           (dict(init_lora_weights="pissa"), "init_lora_weights"),
                           (dict(r=8), "layers.0.mlp.down_proj.lora_A.weight"),
                           (dict(base_model_name_or_path="small"), "layers.1.*decoder of small")):
        with pytest.raises(ValueError, match=f"other: .*{word}"):
            load_policy(changed("other", **settings))
        shutil.rmtree("other")
    tensors = load_file("own/adapter_model.safetensors")
    save_file(tensors | {"base_model.model.lm_head.weight": torch.zeros(50, 64)},
              "own/adapter_model.safetensors")         # as modules_to_save has it
    with pytest.raises(ValueError, match="own: base_model.model.lm_head.weight does not fit"):
        load_policy("own")
    for cut in (lambda path: os.truncate(path, 1000), os.remove):
        cut("own/adapter_model.safetensors")
        with pytest.raises(ValueError, match="own: no whole adapter_model.safetensors"):
            load_policy("own")


@pytest.mark.parametrize("base", ["./base", "models/of/mine", "/nowhere/base", None])
def test_base_of_says_where_to_mend_a_base_that_is_gone(base):
    ours, _ = policy()
    ours.lora.base = base
    save_adapters(ours, "own")
    with pytest.raises(ValueError, match="own holds adapters of .* which is not there; put it "
                                         "back, or .* own/adapter_config.json"):
        load_policy("own")
    assert base_of("elsewhere") == "elsewhere" and base_of("org/name") == "org/name"


# ---- runs ---------------------------------------------------------------------------------------

def vowel(env, action):
    """A step of the toy whose reply should hold a vowel: 16% do by chance."""
    won = any(letter in "aeiou" for letter in action)
    return "", float(won), True, {"success": won, "valid": True, "score": float(won)}


def test_a_run_learns_by_its_adapters_alone(url, model, monkeypatch):
    monkeypatch.setattr(fakes.Env, "step", vowel)
    cfg = config(model, lora=8, steps=10, tasks_per_step=16, mini_batches=1)
    run = started(url, cfg)
    base = load_policy(model).state_dict()
    (group,) = run.optimizer.param_groups
    assert {*map(id, group["params"])} == {*map(id, adapters(run.policy).values())}
    train.train(run)
    first, last = (sum(line["success"] for line in lines) / 3
                   for lines in (run.history[:3], run.history[-3:]))
    assert first < 0.25 and last > 0.35
    weights = run.policy.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in base.items())       # to the bit
    found = load_file("runs/toy-grpo-0/step_10/adapter_model.safetensors")
    assert found.keys() == adapters(run.policy).keys()
    assert all(torch.equal(found[name], p) for name, p in adapters(run.policy).items())
    torch.testing.assert_close(                         # and PEFT has the policy that was trained
        logprobs_of(peft_logits("runs/toy-grpo-0/step_10", model)),
        token_logprobs(run.policy, *text())[0], atol=1e-5, rtol=0)


def play(run, step):
    """A batch of the run's trajectories, with credit."""
    run.step = step
    batch = train.to_batch(train.play_step(run, 2)[0])
    train.credit(run, batch)
    return batch


def test_sampling_uses_the_adapters_of_the_last_update(url, model):
    """As sampled, before and after an update, with decoding over pages: the trainer's numbers."""
    run = started(url, config(model, lora=4, filter="none"))
    for step in range(2):
        batch = play(run, step)
        mask, old = batch.response_mask, batch.old_logprobs
        now = parallel.logprobs_under(run, run.policy, batch)
        torch.testing.assert_close(old[mask], now[mask], atol=1e-5, rtol=1e-5)
        base = parallel.logprobs_under(run, run.reference, batch)
        assert torch.equal(base, now) == (step == 0)
        train.update(run, batch)
    assert (old - base)[mask].abs().max() > 0.05


def test_the_base_is_the_reference_and_nothing_else_is_loaded(url, model, monkeypatch):
    loaded, load = [], parallel.load_policy
    monkeypatch.setattr(parallel, "load_policy", lambda *a: loaded.append(a[0]) or load(*a))
    run = started(url, config(model, lora=4, kl_coef=0.1, filter="none"))
    batch = play(run, 0)
    assert torch.equal(batch.ref_logprobs, parallel.logprobs_under(run, run.policy, batch))
    train.update(run, batch)
    batch, base = play(run, 1), load(model)
    assert torch.equal(batch.ref_logprobs, parallel.logprobs_under(run, base, batch))
    assert not torch.equal(batch.ref_logprobs, parallel.logprobs_under(run, run.policy, batch))
    run.cfg = replace(run.cfg, kl_coef=0.0)             # then the probe asks the base
    assert metrics.probe(run, train.play_step(run, 2)[0])["kl_start"] > 1e-4
    assert loaded == [model]


RUNS = {"grpo with a KL": dict(kl_coef=0.05),
        "ppo, a critic with adapters of its own": dict(algo="ppo"),
        "ppo, a value head on the policy": dict(algo="ppo", critic="shared")}


def adapters_of(folder):
    return load_file(f"{folder}/adapter_model.safetensors")


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_a_resumed_run_is_the_unbroken_one_to_the_bit(flags, url, model):
    flags = dict(flags, lora=4, steps=4, save_every=2)
    whole = trained(url, config(model, name="whole", **flags))
    shutil.copytree("runs/whole", "runs/broken")
    shutil.rmtree("runs/broken/step_4")
    resumed = started(url, config(model, name="broken", resume=True, **flags))
    assert resumed.step == 2
    train.train(resumed)
    for stored in adapters_of, trainer_of:
        mine, its = (stored(f"runs/{run}/step_4") for run in ("whole", "broken"))
        assert mine.keys() == its.keys() and all(torch.equal(mine[k], its[k]) for k in mine)
    assert not os.path.exists("runs/broken/step_4/model.safetensors")
    assert not any("proj.weight" in name for name in mine)              # no frozen weights
    if "critic" in flags or "algo" in flags:
        assert (whole.critic or whole.policy).value_head.weight.any()


def test_average_gradients_takes_the_mean_of_adapters_alone(model, monkeypatch):
    """Of two ranks with gradients 1, 2, .. and thrice that the mean is twice that."""
    policy = load_policy(model)
    adapt(policy, 4, 32, "base")
    add_value_head(policy)
    own = [p for p in policy.parameters() if p.requires_grad]
    grads = [torch.full_like(p, i + 1) for i, p in enumerate(own)]
    monkeypatch.setattr(parallel, "world", lambda: 2)
    monkeypatch.setattr(parallel, "summed", lambda flat: flat + 3 * flat)
    for p, grad in zip(own, grads):
        p.grad = grad.clone()
    parallel.average_gradients(policy)
    assert len(own) == 30 and all(torch.equal(p.grad, 2 * x) for p, x in zip(own, grads))
    ordinary = load_policy(model)
    ordinary.lm_head.weight.grad = torch.ones_like(ordinary.lm_head.weight)
    parallel.average_gradients(ordinary)            # FSDP has done it
    assert (ordinary.lm_head.weight.grad == 1).all()


@pytest.fixture
def group_of_one(monkeypatch):
    """A single gloo process, as on CUDA."""
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1",
                            MASTER_PORT=29_350 + os.getpid() % 300).items():
        monkeypatch.setenv(name, str(value))
    yield
    parallel.end()


def test_load_shards_no_frozen_base_for_one_process(url, model, group_of_one, monkeypatch):
    """FSDP would hold a second copy of it while sampling; the steps are those without a group."""
    flags = dict(algo="ppo", critic="shared", kl_coef=0.1, lora=4, checkpointing=True)
    run = trained(url, config(model, name="group", **flags))
    assert dist.is_initialized()
    assert not any(hasattr(p, "full_tensor") for p in run.policy.parameters())
    parallel.end()
    monkeypatch.delenv("RANK")
    trained(url, config(model, name="plain", **flags))
    for stored in adapters_of, trainer_of:
        group, plain = (stored(f"runs/{run}/step_2") for run in ("group", "plain"))
        assert group.keys() == plain.keys() and all(torch.equal(group[k], plain[k]) for k in plain)


# Rates so low that Adam does not make signs of rounding errors; 3 tasks are uneven shares.
SHARED = dict(algo="ppo", kl_coef=0.3, tasks_per_step=3, micro_tokens=150, checkpointing=True,
              lr=1e-3, critic_lr=1e-3, lora=4)


def a_rank(rank, url, model, port):
    """What one of two processes does; rank 0 writes runs/2."""
    make_known()
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    run = trained(url, config(model, name="2", **SHARED))
    for part in run.policy, run.critic:
        for p in part.parameters():             # FSDP's shards, or whole
            assert hasattr(p, "full_tensor") != p.requires_grad
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_are_one(url, model):
    """Frozen bases in shards, whole adapters and value head: metrics, what was trained, both
    optimizers to 1e-5."""
    spawn(a_rank, (url, model, 29_950 + os.getpid() % 300), nprocs=2)
    trained(url, config(model, name="1", **SHARED))
    lines = [[json.loads(line) for line in open(f"runs/{n}/metrics.jsonl")] for n in (1, 2)]
    for alone, together in zip(*lines, strict=True):
        for key in "reward", "entropy", "kl", "grad_norm", "value_loss", "kl_start":
            assert together[key] == pytest.approx(alone[key], abs=1e-5, rel=1e-5), key
        assert alone["grad_norm"] > 0
    for stored in adapters_of, trainer_of:
        alone, together = (stored(f"runs/{n}/step_2") for n in (1, 2))
        assert alone.keys() == together.keys()
        for key in alone:
            torch.testing.assert_close(together[key], alone[key], atol=1e-5, rtol=1e-5)


def test_merge_lora_writes_an_ordinary_folder(url, model, monkeypatch):
    run = trained(url, config(model, lora=4, lr=3e-2, max_turn_tokens=5))
    folder = f"{run.cfg.path}/step_2"
    monkeypatch.setattr(sys, "argv", ["merge_lora.py", folder, "merged"])
    merge_lora.main()
    assert not any(name.startswith("adapter") or name == "trainer"
                   for name in os.listdir("merged"))
    merged, expected = load_policy("merged"), token_logprobs(run.policy, *text())
    assert not adapters(merged) and merged.known_ids == run.policy.known_ids
    torch.testing.assert_close(token_logprobs(merged, *text()), expected, atol=1e-5, rtol=1e-5)
    assert (token_logprobs(load_policy(model), *text()) - expected).abs().max() > 0.01
    assert runs.model_defaults("merged") == runs.model_defaults(folder) and \
        runs.model_defaults("merged")["max_turn_tokens"] == 5
    with pytest.raises(SystemExit, match="merge_lora.py: .* File exists: 'merged'"):
        merge_lora.main()


def test_a_folder_of_adapters_is_a_model_to_train(url, model):
    """Without --lora all weights are trained, from the merged ones; with it these adapters are."""
    folder = f"{trained(url, config(model, lora=4, lr=3e-2)).cfg.path}/step_2"
    expected = token_logprobs(load_policy(folder), *text())
    full = started(url, config(folder, name="full"))
    assert not adapters(full.policy) and tokenizer_path(folder) == folder
    (group,) = full.optimizer.param_groups
    assert {*map(id, full.policy.parameters())} == {*map(id, group["params"])}
    torch.testing.assert_close(token_logprobs(full.policy, *text()), expected, atol=1e-5,
                               rtol=1e-5)
    more = trained(url, config(folder, name="more", lora=4, kl_coef=0.1))
    assert more.policy.lora.base == base_of("runs/more/step_2") == model
    assert not torch.equal(token_logprobs(more.policy, *text()), expected)
    torch.testing.assert_close(token_logprobs(more.reference, *text()), expected, atol=1e-5,
                               rtol=1e-5)          # where this run began, not the base
    os.remove(f"{folder}/tokenizer_config.json")
    assert tokenizer_path(folder) == model and tokenizer_path("org/name") == "org/name"


def test_defaults_of_a_chat_model_with_lora_learn_faster(model):
    given = [flags_of(model=model, **more) for more in ({}, dict(lora=8), dict(lora=8, lr=3e-6))]
    rates = [runs.parse_flags(train.Config, flags, "", train.preset).lr for flags in given]
    assert rates == [1e-6, 1e-5, 3e-6]
