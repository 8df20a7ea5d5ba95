"""Learning from demonstrations: behavioural cloning, the start of every tiny policy.

    python agentevol.py clone --env textcraft_small --out runs/clone

plays the environment's own expert (or a player of mixed skill: `--skill 0.6` takes the expert's
action with that probability, else a random one), makes a tokenizer from what was said and a small
Llama with random weights, and imitates. Out comes an ordinary Hugging Face folder, which train.py
and eval.py take like any other: `--model runs/clone`.
"""
import math
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import engine  # noqa: F401  before torch: it sets how torch's idle threads wait
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

import parallel
from curriculum import choose_tasks
from engine import from_pretrained, load_policy, prepare
from env_server import load_env, open_env
from eval import Count, Numbers, Positive, Seed, Share, checked, parse_flags
from rollout import (FORMATS, TINY_TEMPLATE, Agent, ContextMode, Episode, FormatName, Trajectory,
                     progress, to_batch)

Folder = Annotated[str, "a folder, new or not, and not in a file", lambda x: x and not any(
    map(os.path.isfile, [x, *map(str, Path(x).parents)]))]
Vocabulary = Annotated[int, "259 or more", lambda x: x >= 259]


@dataclass
class Clone:
    """Settings of behavioural cloning."""
    out: Folder = "runs/clone"    # the policy's folder
    env: str = "textcraft_small"  # a file of envs/
    recipes: str = ""             # textcraft: a folder of Minecraft recipe files it plays by
    families: str = ""            # task families to imitate, comma-separated; empty: all
    episodes: Count = 8000        # demonstrations: each task once, or as many whole times as fit
    horizons: Numbers = ()        # turns of a demonstration: the last of these; empty: HORIZON
    skill: Share = 0.6            # probability of the expert's action; else a random legal one
    format: FormatName = "act"    # form of the replies
    context: ContextMode = "full"      # what stays in view
    max_turn_tokens: Count = 24   # kept for playing, not used in cloning: a longer reply is cut
    max_context: Count = 512      # kept for playing, not used in cloning: tokens in view
    steps: Count = 800            # optimizer steps
    batch: Count = 32             # episodes per step
    lr: Positive = 4e-3           # at its peak, after 5% of the steps; falls to a tenth by a cosine
    vocabulary: Vocabulary = 600  # tokens, the 256 bytes and 3 marks of the chat included
    width: Count = 64             # of the model: hidden size
    layers: Count = 2             # of the model: decoder layers
    heads: Count = 4              # query heads; half as many for keys and values
    seed: Seed = 0                # of the demonstrations, the weights and the order of episodes


# ---- demonstrations -----------------------------------------------------------------------------

PATIENCE = 10        # seconds: below this estimate one process does the work


def record(name, skill, seed, task_id, horizons=()):
    """One episode of a player of mixed skill, as text: {"task_id", "turns": [[observation, thought,
    action, reward, done, info], ...], "last": the observation after them, "success"}. All of its
    actions will be imitated."""
    module, rng = load_env(name), random.Random(f"{seed} {task_id}")
    env = module.Env()
    observation, turns, done, info = env.reset(task_id), [], False, {"success": False}
    while not done and len(turns) < (module.HORIZON, *horizons)[-1]:
        thought, action = env.expert()
        if rng.random() > skill:
            thought, action = "I try something.", env.random_action(rng)
        seen = observation
        observation, reward, done, info = env.step(action)
        turns.append([seen, thought, action, reward, done, info])
    env.close()
    return {"task_id": task_id, "turns": turns, "last": observation, "success": info["success"]}


def demonstrations(name, task_ids, skill, seed, processes=None, horizons=()):
    """`record` for every task, in parallel processes where the expert is slow (babyai's bot)."""
    play, began = partial(record, name, skill, seed, horizons=horizons), time.perf_counter()
    others = task_ids[8:]
    first = [play(task_id) for task_id in task_ids[:8]]
    if (time.perf_counter() - began) / 8 * len(task_ids) < PATIENCE:
        return first + [play(task_id) for task_id in progress(others, "demonstrations")]
    with multiprocessing.get_context("spawn").Pool(processes or os.cpu_count()) as pool:
        return first + [*progress(pool.imap(play, others, chunksize=4), "demonstrations",
                                  total=len(others))]


def imitated(agent, demonstration):
    """A demonstration as a Trajectory: its replies stand where a policy's own would, mask and all,
    because the same Episode writes it."""
    episode = Episode(agent, demonstration["task_id"], (0,), len(demonstration["turns"]))
    turns, compose = demonstration["turns"], FORMATS[agent.format].compose
    episode.observe(turns[0][0])
    for i, (_, thought, action, reward, done, info) in enumerate(turns):
        if episode.over:
            break
        notes = "; ".join(turn[2] for turn in turns[:i]) if agent.context == "memory" else None
        ids = agent.tokenizer.encode(compose(thought, action, i, notes), add_special_tokens=False)
        episode.reply([*ids, agent.chat.stop_id], [0.0] * (len(ids) + 1))
        observation = turns[i + 1][0] if i + 1 < len(turns) else demonstration["last"]
        episode.observe(observation, reward, done, info)
    return episode.trajectory


# ---- a policy from nothing ----------------------------------------------------------------------

def make_tokenizer(texts, vocabulary):
    """A tokenizer of the words of these texts, most frequent first, one token each; any other word
    is spelt in bytes, so that no text is lost."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Counter(word for text in texts for word, _ in pieces.pre_tokenize_str(text))
    special = ["<|end|>", "<|user|>", "<|assistant|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    frequent = sorted((w for w in words if len(w) > 1), key=lambda w: (-words[w], w))
    entries = (special + letters + frequent)[:max(vocabulary, len(special) + len(letters))]
    ids = {entry: i for i, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(ids, [], ignore_merges=True))     # a whole word, or its bytes
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>",
                                   clean_up_tokenization_spaces=False, chat_template=TINY_TEMPLATE)


def check_heads(width, heads):
    """ValueError if `make_policy` cannot cut this width into so many heads."""
    if heads > 1 and heads % 2 or width % (2 * heads):
        raise ValueError(f"{heads} heads in a width of {width}: expected 1 head or an even number, "
                         "and a width that is a multiple of twice that number")


def make_policy(vocabulary, width, layers, heads, seed):
    """A Llama with random weights, embeddings tied. (For a folder that says qwen2, AutoTokenizer
    puts Qwen's own way of splitting words in place of the saved one.)"""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0)
    return prepare(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def imitate(policy, trajectories, steps, batch, lr, seed, seconds=math.inf, say=parallel.say):
    """Cross-entropy on the replies' tokens, AdamW, a cosine after a short rise -> steps made.
    Stops early after `seconds`, then as if that had been the plan: the schedule follows the clock.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    rng, order, began = random.Random(seed), [], time.perf_counter()
    policy.train()
    for step in progress(range(steps), "cloning, steps", disable=seconds < math.inf or None):
        spent = time.perf_counter() - began
        done = max(step / steps, spent / seconds)
        if done >= 1:
            return step
        for group in optimizer.param_groups:
            group["lr"] = lr * min(done / 0.05 + 0.02, 1) * \
                (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * done)))
        if len(order) < batch:
            order = rng.sample(range(len(trajectories)), len(trajectories))
        chosen, order = order[:batch], order[batch:]
        data = to_batch([trajectories[i] for i in chosen], policy.device)
        logprobs = policy.action_logprobs(data.token_ids, data.response_mask, data.position_ids)
        loss = -logprobs.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            of = f"/{steps}" if seconds == math.inf else ""
            say(f"clone {step:5d}{of} | loss {loss.item():.3f} | {spent:.0f} s")
    return steps


def lesson(cfg, say=parallel.say):
    """What is to be imitated: (demonstrations, texts of them that a tokenizer is made from)."""
    world = open_env(cfg.env, cfg.recipes)
    tasks = choose_tasks(world, "train", 0, cfg.families)[:cfg.episodes]
    agent = Agent(None, world.PROMPT, cfg.format, world=world)
    rules = [m["content"] for m in agent.start() if m["role"] != "system"]      # see TINY_TEMPLATE
    began = time.perf_counter()
    demos = [demo for again in range(cfg.episodes // len(tasks))     # each time with other chances
             for demo in demonstrations(cfg.env, tasks, cfg.skill, cfg.seed + 1_000_003 * again,
                                        horizons=cfg.horizons)]
    say(f"{len(demos)} demonstrations of a player of skill {cfg.skill:g}: "
        f"{sum(d['success'] for d in demos) / len(demos):.0%} succeed "
        f"({time.perf_counter() - began:.1f} s)")
    compose = FORMATS[cfg.format].compose
    return demos, [text for d in demos for i, turn in enumerate(d["turns"]) for text in
                   ([turn[0]] if i else [*rules, agent.first(turn[0])])
                   + [compose(turn[1], turn[2], i)]]


def trajectories_of(demos, tokenizer, cfg):
    world = load_env(cfg.env)
    agent = Agent(tokenizer, world.PROMPT, cfg.format, cfg.context, max_turn_tokens=1,
                  max_context=10**9, world=world)
    return [imitated(agent, d) for d in demos]


def clone(cfg, out, say=parallel.say):
    """Demonstrations -> tokenizer -> tiny policy -> folder `out`. ValueError."""
    check_heads(cfg.width, cfg.heads)
    if cfg.format == "tool":
        raise ValueError("format='tool': a tiny policy's chat template has no tools; use another")
    demos, texts = lesson(cfg, say)
    tokenizer = make_tokenizer(texts, cfg.vocabulary)
    trajectories = trajectories_of(demos, tokenizer, cfg)
    policy = make_policy(len(tokenizer), cfg.width, cfg.layers, cfg.heads, cfg.seed)
    parameters = sum(p.numel() for p in policy.parameters())
    say(f"a Llama of {parameters / 1e6:.2f}M parameters from random weights, {len(tokenizer)} "
        f"tokens; {sum(len(t.token_ids) for t in trajectories) / len(demos):.0f} tokens an episode")
    imitate(policy, trajectories, cfg.steps, cfg.batch, cfg.lr, cfg.seed, say=say)
    policy.save_pretrained(out)
    tokenizer.save_pretrained(out)
    parallel.write_json(os.path.join(out, "clone.json"), vars(cfg))   # last: it is complete


def seconds_per_step(cfg, tokens):
    """How long a step of `imitate` takes on this machine, measured on episodes of `tokens`."""
    policy = make_policy(cfg.vocabulary, cfg.width, cfg.layers, cfg.heads, cfg.seed)
    episode = Trajectory()
    episode.begin_context([1] * (tokens - tokens // 2))
    episode.add_action([1] * (tokens // 2), [0.0] * (tokens // 2))
    for steps in (1, 3):                    # the first of all steps is slower: not counted
        began = time.perf_counter()
        imitate(policy, [episode] * cfg.batch, steps, cfg.batch, cfg.lr, 0, say=lambda text: None)
    return (time.perf_counter() - began) / steps


def continue_cloning(folder, seconds, say=parallel.say):
    """Continue cloning from `folder`, on the same demonstrations, for `seconds` -> policy."""
    cfg = checked(Clone, parallel.cloned_settings(folder))
    trajectories = trajectories_of(lesson(cfg, lambda text: None)[0],
                                   from_pretrained(AutoTokenizer, folder), cfg)
    policy = load_policy(folder)
    imitate(policy, trajectories, 10**6, cfg.batch, cfg.lr / 4, cfg.seed + 1, seconds, say)
    return policy.eval()


def preset(given):
    """What the environment asks of a tiny policy (its TINY), as far as it concerns cloning."""
    asked = getattr(load_env(given.get("env", Clone.env)), "TINY", {})
    shared = ("families", "horizons", "format", "context", "max_turn_tokens", "max_context")
    return {name.removeprefix("clone_"): value for name, value in asked.items()
            if name in shared or name.startswith("clone_")}


def main():
    if len(sys.argv) < 2 or sys.argv[1] != "clone":
        sys.exit("agentevol.py: expected: python agentevol.py clone --env NAME --out FOLDER ...")
    try:
        cfg = parse_flags(Clone, sys.argv[2:], __doc__, preset)
        clone(cfg, cfg.out)
    except ValueError as error:
        sys.exit(f"agentevol.py: {error}")
    print(f"policy in {cfg.out}")


if __name__ == "__main__":
    main()
