"""What must be set before torch is first imported: every script imports this file first.

Segments that grow leave no gaps in a GPU's memory. (Torch reads the setting under two names, of
which the user's own wins.) Threads that spin while they wait at barriers
would take the environment servers' cores.
"""
import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF",
                      os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True"))
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
