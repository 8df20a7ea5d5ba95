"""pytest tests/test_readme.py: README's recipes, followed word for word in a copy of the code."""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parent.parent

# The server, one reset and one step, then the end.
VISIT = """
from client import EnvClient
from env_server import local_server
with local_server("corridor") as urls:
    client = EnvClient(urls, "corridor")
    (first,) = client.answer([(None, "reset", 2)])
    (second,) = client.answer([(first.session, "step", "west")])
print(first.observation, second.observation, second.reward, second.done, second.info, sep="|")
"""


def block(heading):
    """The Python code below this heading of README."""
    section = (ROOT / "README.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search("```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the code, with README's environment in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for pattern in ("*.py", "pyproject.toml", "envs/*.py", "tests/*.py"):
        for path in ROOT.glob(pattern):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)
    (folder / "envs" / "corridor.py").write_text(block("Your own environment"))
    return folder


def run(folder, *command):
    """What this Python program printed; it must succeed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_environment_is_short():
    lines = block("Your own environment").splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 88


def test_own_environment_passes_the_contract(checkout):
    report = run(checkout, "-m", "pytest", "tests/test_envs.py", "-k", "corridor", "-rs")
    assert " passed" in report and "SKIPPED [1] " in report     # no exact_success: the only skip


def test_own_environment_is_served(checkout):
    answers = run(checkout, "-c", VISIT).strip().split("|")
    assert answers == ["Room 100 lies 6 west.", "Room 100 lies 5 west.", "0.0", "False",
                       "{'success': False, 'valid': True, 'score': 0.0}"]


def test_own_environment_is_played_by_random_and_expert(checkout):
    table = run(checkout, "eval.py", "--env", "corridor", "--policy", "random")
    rate = {who: float(percent) for who, percent in re.findall(
        r"^ *(\w+) player +\d+ +([\d.]+)%", table, re.MULTILINE)}
    assert rate["random"] < 20 and rate["expert"] == 100


@pytest.mark.slow
def test_own_environment_is_trained_on(checkout):
    log = run(checkout, "train.py", "--env", "corridor", "--clone-steps", "20",
              "--clone-n", "200", "--steps", "2", "--tasks-per-step", "4", "--eval-tasks", "16")
    assert "held-out tasks of corridor" in log and "after grpo" in log
    assert (checkout / "runs" / "corridor-grpo-0" / "step_2").is_dir()


@pytest.mark.slow
def test_own_learning_rule_is_trained_with(checkout):
    rule = block("Learning rules")
    assert len(rule.split('if __name__')[0].splitlines()) <= 20
    (checkout / "cispo.py").write_text(rule)
    run(checkout, "cispo.py", "--algo", "cispo", "--env", "corridor", "--clone-steps", "80",
        "--clone-n", "200", "--steps", "2", "--tasks-per-step", "8", "--eval-tasks", "16")
    folder = checkout / "runs" / "corridor-cispo-0"
    config = json.loads((folder / "config.json").read_text())
    assert (config["surrogate"], config["weights"], config["clip_low"]) == ("cispo", "token", 1.0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert len(lines) == 2 and all(line["grad_norm"] > 0 for line in lines)


def test_own_learning_rule_is_the_papers_equation(checkout):
    """Ratios 1.5, 0.5 and 1 of tokens with advantages 1, -1, 2, clipped at [0.8, 1.2]: the gradient
    of -sg(clip(rho)) A log pi is -1.2, +0.8 and -2; PPO's of the first two would be 0."""
    rule = {"__name__": "cispo"}
    exec(block("Learning rules").split("train.SURROGATES")[0], rule)
    old = torch.zeros(3)
    logprobs = torch.tensor([1.5, 0.5, 1.0]).log().requires_grad_()
    cfg = SimpleNamespace(clip_low=0.2, clip_high=0.2)
    rule["cispo"](logprobs, old, torch.tensor([1.0, -1.0, 2.0]), None, cfg).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.2, 0.8, -2.0])


def test_map_counts_the_lines_of_every_file():
    """README's map names each file of the top level with about its number of lines."""
    rows = dict(re.findall(r"^\| `(\w+\.py)` \| (\d+) \|", (ROOT / "README.md").read_text(),
                           re.MULTILINE))
    counts = {path.name: len(path.read_text().splitlines()) for path in ROOT.glob("*.py")}
    assert rows.keys() == counts.keys()
    for name, lines in counts.items():
        assert int(rows[name]) == pytest.approx(lines, rel=0.05), name
