"""The helpers of tests/ are these tests' helpers, too."""
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"       # read when torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
