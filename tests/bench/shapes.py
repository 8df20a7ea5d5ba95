"""python -m tests.bench.shapes: train.py on models of true shapes with random weights.

Makes Qwen2.5-0.5B and Qwen3-0.6B as they are (sizes, padded vocabulary, generation_config, their
chat templates if trl is installed), runs two steps of RL on each on the CPU, and prints seconds,
peak memory, and whether anything warned. The weights are random, so nothing is learned.
"""
import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from chat import ASK_REACT
from envs import textcraft
from tests.plans import config_of

ROOT = Path(__file__).parent.parent.parent
FLAGS = ("--env textcraft --steps 2 --tasks-per-step 2 --group-size 2 --horizons 2 "
         "--max-turn-tokens 16 --max-context 1024 --eval-tasks 4").split()
SHAPES = {"Qwen2.5-0.5B": "qwen2_5", "Qwen3-0.6B": "qwen3"}     # and its template, among trl's
QUICK = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
WORDS = 151_643             # of the tokenizer, then come the added tokens
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
         "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
         "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
         "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
         "<think>", "</think>"]       # added tokens that are not special; the last four: Qwen3


def make_tokenizer(template, qwen3):
    """Byte pairs merged on the environment's texts, made-up words until there are as many as Qwen
    has, and its added tokens at their true ids."""
    env = textcraft.Env()
    texts = [textcraft.PROMPT, ASK_REACT, *(env.reset(task) for task in textcraft.TRAIN[:200])]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    words = model["vocab"] | {f"w{n}": n for n in range(len(model["vocab"]), WORDS)}
    tokenizer = Tokenizer(models.BPE(words, [tuple(pair) for pair in model["merges"]]))
    tokenizer.add_special_tokens(ADDED)
    tokenizer.add_tokens(PLAIN if qwen3 else PLAIN[:-4])
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=template, clean_up_tokenization_spaces=False)


def save_model(name, folder, smaller):
    """The folder of a model of this shape, as save_pretrained writes it."""
    family = SHAPES[name]
    logging.disable_progress_bar()
    package = importlib.util.find_spec("trl")
    if not package:
        sys.exit("pip install -r tests/requirements.txt: trl ships the chat templates")
    template = Path(package.submodule_search_locations[0], "chat_templates", f"{family}.jinja")
    torch.manual_seed(0)
    config = config_of(name, rope_theta=1e6, bos_token_id=WORDS, eos_token_id=WORDS + 2, **smaller)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(     # Qwen's: two tokens end a reply
        bos_token_id=WORDS, eos_token_id=[WORDS + 2, WORDS], pad_token_id=WORDS, do_sample=True,
        temperature=0.7, top_p=0.8, top_k=20)
    model.save_pretrained(folder)
    make_tokenizer(template.read_text(), family == "qwen3").save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def run(folder, where, more):
    """train.py in a process of its own -> (seconds, peak GiB, what it printed, its figures)."""
    watched = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); "
               "sys.exit(code)")
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", watched, sys.executable, str(ROOT / "train.py"),
         "--model", folder, "--name", "shape", *FLAGS, *more], cwd=where, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    *lines, peak = done.stdout.strip().splitlines()
    if done.returncode:
        sys.exit("\n".join(lines))
    with open(Path(where, "runs/shape/metrics.jsonl")) as file:
        figures = [json.loads(line) for line in file]
    return time.perf_counter() - began, int(peak) / 2**20, lines, figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SHAPES, help="one of them")
    parser.add_argument("--show", action="store_true", help="what train.py printed, too")
    parser.add_argument("--quick", action="store_true", help="two narrow layers, to try this file")
    args, more = parser.parse_known_args()
    for name in [args.only] if args.only else SHAPES:
        with tempfile.TemporaryDirectory() as where:
            count = save_model(name, f"{where}/model", QUICK if args.quick else {})
            seconds, peak, lines, figures = run(f"{where}/model", where, more)
        warned = [line for line in lines if "warn" in line.lower() and "WARNING at" not in line]
        print(f"{name}: {count / 1e6:.0f}M weights, {seconds:.0f} s in all, "
              f"{', '.join(format(f['seconds'], '.1f') for f in figures)} s a step, "
              f"peak {peak:.1f} GiB, "
              f"{len(warned)} warnings, replies of {figures[0]['response_length']:.0f} tokens",
              flush=True)
        print("\n".join(lines if args.show else warned), flush=True)


if __name__ == "__main__":
    main()
