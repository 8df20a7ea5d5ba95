"""Adapters added to their base: an ordinary Hugging Face folder in float32.

    python recipes/merge_lora.py runs/NAME/step_80 OUT
"""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from lora import load_policy, merge


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = sys.argv[1:]
    try:
        model = load_policy(folder, "cpu", torch.float32)
        shutil.copytree(folder, out, ignore=shutil.ignore_patterns(
            "adapter_*", "trainer", "*.safetensors"))
    except (OSError, ValueError) as error:
        sys.exit(f"merge_lora.py: {error}")
    merge(model)
    model.save_pretrained(out)


if __name__ == "__main__":
    main()
