"""python -m tests.bench.update: an update against the padded way and against TRL.

    python -m tests.bench.update                      both parts, shapes S and M; about 5 minutes
    python -m tests.bench.update --quick --parts update --shapes S

part    against                                                         target: ours faster by
update  transformers' forward and backward over a padded batch          1.4 (S), 1.8 (M)
        (attention_mask, sdpa, float32), the same loss
trl     TRL's GRPOTrainer, whole steps (rollout, credit, update):
        one turn, prompt 128 + 64 new tokens, its best case             1
        10 turns of 24 + 16 tokens behind prompts of 100 to 400         3

update: sequences of 80 to 400 tokens in micro-batches of about 8,000 tokens; tok/s count real
tokens. Trained are the action tokens, 16 of every 40 as in a ten-turn episode, or all tokens. The
padded rows come in the order they were played; for comparison also with those of like length
together, as Batch.split deals them to us.
trl: 8 prompts x 8 samples, one optimizer step from all of them, no reference model. Our step is
what train.py does: play_tasks, to_batch, credit, update. Each of TRL's steps is followed by one of
ours, so that a busy machine slows both; the first pair is not counted. A ratio is the median of the
rounds' ratios.
"""
import argparse
import os
import statistics
import tempfile
import time

import engine  # noqa: F401  before torch: see there
import numpy as np
import torch

import parallel
import train
from rollout import Trajectory, World, to_batch
from tests.bench.engine import SHAPES, linear_seconds, make_models, medians, race, ratio
from tests.bench.rollout import GROUP, make_agent, plain


# ---- the update alone ---------------------------------------------------------------------------

def episodes(count, vocabulary, all_trained, seed=0):
    """`count` trajectories of random tokens, 80 to 400 long: 24 read, 16 trained, 24 read, ..."""
    rng, made = np.random.default_rng(seed), []
    for length in rng.integers(80, 401, count):
        trajectory = Trajectory()
        trajectory.begin_context(rng.integers(3, vocabulary, 1 if all_trained else 24).tolist())
        while (room := length - len(trajectory.token_ids)) > 0:
            n = room if all_trained else min(16, room)
            trajectory.add_action(rng.integers(3, vocabulary, n).tolist(), [-6.0] * n)
            trajectory.add_observation(rng.integers(3, vocabulary, min(24, room - n)).tolist())
        made.append(trajectory)
    return made


def packed(model, batch):
    """Ours: log-probabilities of the trained tokens, and a gradient through them."""
    logprobs = model.action_logprobs(batch.token_ids, batch.response_mask, batch.position_ids)
    (-logprobs.sum() / batch.response_mask.sum()).backward()
    return logprobs


def padded(model, batch):
    """The same from transformers' own forward over the padded rows."""
    mask = batch.token_ids >= 0
    ids = batch.token_ids.clamp(min=0)
    logits = model(ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
    logprobs = logprobs[batch.response_mask[:, 1:]]
    (-logprobs.sum() / batch.response_mask.sum()).backward()
    return logprobs


def bench_update(shape, args, all_trained):
    ours, theirs = make_models(shape)
    made = episodes(16 if args.quick else 64, SHAPES[shape][-1], all_trained)
    batch = to_batch(made)
    tokens = int((batch.token_ids >= 0).sum())
    ours_parts = batch.parts(8192)
    parts = {"ours": ours_parts, "sorted": ours_parts,
             "padded": [(rows,) for rows in torch.arange(len(made)).chunk(len(ours_parts))]}

    def pass_over(model, way, name):
        began = time.perf_counter()
        for part in parts[name]:
            way(model, batch.rows(*part))
        seconds = time.perf_counter() - began
        model.zero_grad()
        return dict(seconds=seconds)
    assert torch.allclose(packed(ours, batch.rows(torch.arange(8))),
                          padded(theirs, batch.rows(torch.arange(8))), atol=1e-4)
    seen = race(args.rounds, {"ours": lambda _: pass_over(ours, packed, "ours"),
                              "padded": lambda _: pass_over(theirs, padded, "padded"),
                              "sorted": lambda _: pass_over(theirs, padded, "sorted")})
    seconds = medians(seen["ours"])["seconds"]
    pure = 3 * tokens / 2048 * linear_seconds(ours, 2048)   # backward: two products for each one
    print(f"update {shape}, {'all' if all_trained else 'action'} tokens trained: "
          f"{tokens / seconds:.0f} tok/s = {ratio(seen, 'padded'):.2f} x padded "
          f"({tokens / medians(seen['padded'])['seconds']:.0f} tok/s; target "
          f"{dict(S=1.4, M=1.8).get(shape, '-')}), {ratio(seen, 'sorted'):.2f} x padded by length; "
          f"pure matmul {pure / seconds:.0%}", flush=True)


# ---- whole steps --------------------------------------------------------------------------------

def our_step(shape, prompt, observation, action, horizon):
    """-> function(number): one step of train.py with random weights and rewards."""
    model, _ = make_models(shape)
    agent, client = make_agent(shape, prompt, observation, action, horizon)
    cfg = train.Config(group_size=GROUP, mini_batches=1, filter="none", lr=1e-6)
    world = World(client, agent)
    run = train.Run(cfg, [world], tasks={}, eval_tasks=[], policy=model,
                    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6))

    def step(number):
        tasks = [(world, task) for task in range(8 * number, 8 * number + 8)]
        trajectories, _ = parallel.play_tasks(run, model, tasks, GROUP, horizon, (number,))
        batch = to_batch(trajectories)
        train.credit(run, batch)
        train.update(run, batch)
        assert int(batch.response_mask.sum()) == 8 * GROUP * horizon * action
    return step


def bench_trl(shape, args, horizon, prompt, observation, action):
    """TRL's trainer, told to make args.rounds + 1 steps; ours are made in its callback between."""
    try:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as missing:
        print(f"trl: TRL is not installed ({missing}); pip install trl")
        return
    from transformers import TrainerCallback
    _, theirs = make_models(shape)
    agent, client = make_agent(shape, prompt, observation, action, horizon)
    ours = our_step(shape, prompt, observation, action, horizon)
    seconds = {"ours": [], "TRL": []}

    class Pair(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, _, state, *__, **___):
            middle = time.perf_counter()
            seconds["TRL"].append(middle - self.began)
            ours(state.global_step)
            seconds["ours"].append(time.perf_counter() - middle)

    def rollout_func(prompts, trainer):
        """Turn by turn, generate over the whole history: what TRL's own tool loop does."""
        tasks = [int(p) for p in prompts[::GROUP]]
        played = plain(trainer.model.eval(), agent, client, tasks, GROUP, horizon, (0,))
        trainer.model.train()
        first = [t.turns[0].start for t in played]
        return dict(prompt_ids=[t.token_ids[:n] for n, t in zip(first, played)],
                    completion_ids=[t.token_ids[n:] for n, t in zip(first, played)],
                    env_mask=[t.response_mask[n:] for n, t in zip(first, played)], logprobs=None)

    rng, words = np.random.default_rng(0), client.words
    texts = [str(i) for i in range(8 * (args.rounds + 1))] if horizon > 1 else [
        "".join(words[i] for i in rng.integers(len(words), size=prompt))
        for _ in range(8 * (args.rounds + 1))]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=8 * GROUP // args.accumulate, num_generations=GROUP,
            gradient_accumulation_steps=args.accumulate, max_steps=args.rounds + 1, beta=0.0,
            learning_rate=1e-6,
            max_completion_length=horizon * action + (horizon - 1) * observation,
            generation_kwargs=dict(min_new_tokens=action), temperature=1.0, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, shuffle_dataset=False)
        GRPOTrainer(theirs, lambda completions, **_: rng.random(len(completions)).tolist(),
                    args=config, train_dataset=Dataset.from_dict({"prompt": texts}),
                    processing_class=agent.tokenizer, callbacks=[Pair()],
                    rollout_func=rollout_func if horizon > 1 else None).train()
    mine, trl = (seconds[name][1:] for name in ("ours", "TRL"))
    print(f"trl {shape}, prompt {prompt}, {horizon} x {action} sampled tokens: "
          f"{statistics.median(mine):.2f} s a step = "
          f"{statistics.median(a / b for a, b in zip(trl, mine)):.2f} x TRL's "
          f"{statistics.median(trl):.2f} s (target {1 if horizon == 1 else 3})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("update", "trl"), default=("update", "trl"))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=("S", "M"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2, help="TRL: micro-batches of a step")
    parser.add_argument("--quick", action="store_true", help="small sizes; the ratios say little")
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {args.rounds} rounds")
    for shape in args.shapes:
        if "update" in args.parts:
            bench_update(shape, args, all_trained=False)
            bench_update(shape, args, all_trained=True)
        if "trl" in args.parts:
            bench_trl(shape, args, 1, 128, 24, 16 if args.quick else 64)
            bench_trl(shape, args, 3 if args.quick else 10, (100, 400), 24, 16)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
