"""pytest -m slow tests/more/test_kills.py: processes of train.py, also under torchrun, are killed.
They play frozenlake."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import flags_of, trainer_of
from players import children, living
from test_train import lines_of, same, weights_of

import run as runs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("here")

FROZENLAKE = dict(env="frozenlake", steps=6, tasks_per_step=4, group_size=4, horizons="3",
                  max_turn_tokens=6, max_context=900, eval_every=0, eval_tasks=4,
                  save_every=2, lr=3e-4, device="cpu", seed=3, filter="none")


def script(name, model, *more, launcher=(), **flags):
    """train.py as a process, with servers of its own. It hears Ctrl-C, also if these tests, in a
    shell's background, do not."""
    return subprocess.Popen(
        [sys.executable, *launcher, str(ROOT / "train.py"),
         *flags_of(**FROZENLAKE | flags, model=model, name=name), *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def until(process, text):
    """Read what a process prints up to a line with `text` -> all of it."""
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError(f"no {text!r} in\n{''.join(read)}")


@pytest.mark.slow
def test_five_kills_at_random_moments_change_nothing(model):
    flags = dict(steps=16, save_every=1, eval_every=4)
    whole = script("whole", model, **flags)
    assert whole.wait() == 0, whole.stdout.read()
    rng, resume, reached, servers = random.Random(0), [], [], []
    kill, stop, interrupt = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
    for number in (kill, stop, kill, interrupt, kill):
        broken = script("broken", model, *resume, **flags)
        until(broken, " | turns")                   # a line of the log
        time.sleep(rng.uniform(0, 1))
        servers += children(broken.pid)
        broken.send_signal(number)
        broken.wait()
        if any(re.fullmatch(r"step_\d+", name) for name in os.listdir("runs/broken")):
            resume = ["--resume"]
            reached.append(runs.checkpoints("runs/broken")[-1])
    assert len({*reached}) > 1                      # it went on, some steps at a time
    again = script("broken", model, "--resume", **flags)
    out = again.stdout.read()
    assert again.wait() == 0, out
    for kept in (weights_of, trainer_of):
        assert same(kept("runs/whole/step_16"), kept("runs/broken/step_16"))
    assert lines_of("runs/whole") == lines_of("runs/broken") and len(lines_of("runs/whole")) == 16
    whole, broken = (Path("runs", name, "samples.jsonl") for name in ("whole", "broken"))
    assert whole.read_text() == broken.read_text()
    one, other = (json.load(open(f"runs/{name}/result.json")) for name in ("whole", "broken"))
    assert one["evaluations"] == other["evaluations"]
    assert len(servers) >= 5 and not living(servers)


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_ends_both_ranks(model):
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"
    process = script("x", model, launcher=torchrun, steps=1000)
    out = until(process, "step    2 |")
    family = children(process.pid)
    assert len(family) == 4                         # two ranks, a server for each
    process.terminate()                             # torchrun hands it on to its ranks
    out += process.stdout.read()
    assert process.wait() != 0 and not living(family)
    (step,) = re.findall(r"SIGTERM: saved at step (\d+), --resume goes on from there", out)
    assert str(runs.checkpoints("runs/x")[-1]) == f"runs/x/step_{step}"
