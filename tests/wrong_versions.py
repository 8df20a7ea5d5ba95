"""Wrong versions of this code, each of which a test must notice.

    python tests/wrong_versions.py                       all of them: a line each, and a summary
    python tests/wrong_versions.py --only algos.py       those of one file
    python tests/wrong_versions.py --only algos.py --run       and two steps of a run with each
    python tests/wrong_versions.py --sample 12 --seed 3  a dozen, spread over the files

FAULTS are single slips that a fork or a student could make: a sign, an off-by-one, max for min, the
old for the new. Each is put into a copy of this folder, where the test that it names must then fail
by an assertion. A fault that ends in an exception is no entry: anybody would notice it. To add one:
a piece of text that occurs once in the file, its wrong form, a test. At most two to a function.

Each fault gets a process, forked from this one after the slow imports, which takes about a second.
"""
import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"      # before torch: a forked process has none of its threads

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240                            # what a test may take before it counts as hung

FAULTS = {      # file -> [(a piece of its text, the wrong form, a test that must fail), ...]
    "curriculum.py": [
        ("step >= switch for", "step > switch for",
         "tests/test_curriculum.py::test_horizon_at_moves_on_every_hundred_steps_then_stays"),
        ("stage if rise > error else", "stage if rise > 0 else",
         "tests/test_curriculum.py::test_next_stage_margin_is_one_standard_error"),
    ],
}


# ---- the list -----------------------------------------------------------------------------------

def entries(only=""):
    """[(file, text, wrong, test), ...] of all files, or of those whose path ends in `only`."""
    return [(file, *fault) for file, faults in FAULTS.items() if file.endswith(only)
            for fault in faults]


def sample(count, seed):
    """`count` entries: file after file gives one, each its own in an order drawn by `seed`."""
    rng = random.Random(seed)
    piles = [rng.sample(faults, len(faults)) for faults in
             ([(file, *fault) for fault in FAULTS[file]] for file in FAULTS)]
    rng.shuffle(piles)
    dealt = [pile[i] for i in range(max(map(len, piles))) for pile in piles if i < len(pile)]
    return dealt[:count]


def trouble(file, text, wrong, test):
    """Why this entry cannot be tried, in words; "" if it can."""
    if not (ROOT / file).exists():
        return f"there is no file {file}"
    found = (ROOT / file).read_text().count(text)
    if found != 1:
        return (f"its text occurs {found} times in {file}, expected once: the line has changed, "
                f"so write the entry anew: {text!r}")
    if text == wrong:
        return "the wrong form is the right one"
    path, _, name = test.partition("::")
    if not (ROOT / path).exists() or f"def {name.partition('[')[0]}(" not in \
            (ROOT / path).read_text():
        return f"there is no test {test}"
    return ""


def function_of(file, text):
    """The name of the innermost function (else class, else the file) in which the text begins."""
    source = (ROOT / file).read_text()
    line = source[:source.index(text)].count("\n") + 1
    holders = [node for node in ast.walk(ast.parse(source))
               if isinstance(node, (ast.FunctionDef, ast.ClassDef))
               and node.lineno <= line <= node.end_lineno]
    return f"{file}: {max(holders, key=lambda node: node.lineno).name}" if holders else file


# ---- one fault, in a process of its own ---------------------------------------------------------

def copy_with(folder, file="", text="", wrong=""):
    """A copy of this checkout in `folder`, with the fault if one is given."""
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(
        ".*", "__pycache__", "runs", "shared", "*.png", "*.svg"))
    if file:
        place = Path(folder) / file
        place.write_text(place.read_text().replace(text, wrong))
    os.chdir(folder)
    sys.path[:] = [folder] + [p for p in sys.path if p and ROOT not in (Path(p), Path(p).parent)]
    sys.dont_write_bytecode = True


class Watch:
    """A pytest plugin: how each test ended."""

    def __init__(self):
        self.ran, self.failures = 0, []      # failures: (name of the exception, first line)

    def pytest_runtest_makereport(self, item, call):
        import pytest
        self.ran += call.when == "call"
        if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            said = AssertionError, pytest.fail.Exception       # the latter: pytest.raises' own
            name = "AssertionError" if call.excinfo.errisinstance(said) else call.excinfo.typename
            self.failures.append((name, str(call.excinfo.value).partition("\n")[0]))


def tested(tests):
    """Run tests in this process -> ("noticed" | "passed" | "crashed" | "no test", details)."""
    import pytest
    watch = Watch()
    pytest.main([*tests, "-o", "addopts=", "-q", "-p", "no:cacheprovider", "--tb=short"], [watch])
    if any(name == "AssertionError" for name, _ in watch.failures):
        return "noticed", next(line for name, line in watch.failures if name == "AssertionError")
    if watch.failures:
        return "crashed", ": ".join(watch.failures[0])
    return ("passed", "") if watch.ran else ("no test", "pytest ran no test: see its output")


def two_steps(file):
    """A tiny policy is cloned, trained for two steps by several rules, measured -> ("ran", "")."""
    import agentevol
    import eval as evaluation
    import train
    name = Path(file).stem if file.startswith("envs/") and "__" not in file else "textcraft_small"
    sys.argv = ["agentevol.py", "clone", "--env", name, "--out", "clone", "--episodes", "12",
                "--steps", "4", "--batch", "4", "--width", "32"]
    agentevol.main()
    common = ["--env", name, "--model", "clone", "--steps", "2", "--tasks-per-step", "4",
              "--group-size", "2", "--mini-batches", "2", "--horizons", "2,3", "--switch-every",
              "1", "--eval-tasks", "4", "--eval-every", "1", "--max-turn-tokens", "6"]
    for rule in ("--algo grpo --kl-coef 0.01 --filter none", "--algo ppo --turn-level",
                 "--algo starpo_s --critic shared --importance-cap 2", "--algo gigpo --kl-coef 0.1",
                 "--algo dr_grpo --filter refill --curriculum adaptive"):
        train.main([*common, *rule.split()])
    sys.argv = ["eval.py", "--env", name, "--model", "clone", "--n", "4", "--k", "2"]
    evaluation.main()
    return "ran", ""


def in_a_process(work, *fault):
    """Fork; there copy the code with the fault and call work() -> (pid, the folder it used). What
    work returns is left in result.json, what it prints in output.txt."""
    folder = tempfile.mkdtemp(prefix="wrong-")
    pid = os.fork()
    if pid:
        return pid, folder
    signal.alarm(SECONDS)                    # ends a process that hangs
    status = 1
    try:
        output = os.open(f"{folder}/output.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        copy_with(f"{folder}/copy", *fault)
        with open(f"{folder}/result.json", "w") as file:
            json.dump(work(), file)
        status = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def results(jobs, processes):
    """jobs: (label, work, *fault) each -> (label, outcome, details, output), as they end."""
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < processes:
            label, work, *fault = waiting.pop()
            pid, folder = in_a_process(work, *fault)
            running[pid] = label, folder
        pid, status = os.wait()
        label, folder = running.pop(pid)
        output = Path(folder, "output.txt").read_text(errors="replace")
        outcome = "hung" if os.WIFSIGNALED(status) else "crashed"
        details = (output.strip().splitlines() or [""])[-1]
        with contextlib.suppress(ValueError, OSError):       # an ended process left none
            outcome, details = json.loads(Path(folder, "result.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        yield label, outcome, details, output


# ---- all of them --------------------------------------------------------------------------------

def try_all(chosen, processes=2, run=False, check=True):
    """Try every entry, print a line each -> how many went wrong. check: first see that the named
    tests pass without a fault. run: two steps of a run with each as well."""
    import numpy  # noqa: F401  once, here, and not in each of the processes
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import (AutoModelForCausalLM, LlamaConfig,  # noqa: F401
                              PreTrainedTokenizerFast, Qwen2Config, Qwen3Config)
    bad, jobs = [], []
    for entry in chosen:
        why = trouble(*entry)
        if why:
            bad.append(f"NO ENTRY   {entry[0]}: {why}")
            print(bad[-1], flush=True)
            continue
        file, text, wrong, test = entry
        label = f"{file}: {text.strip()!r} -> {wrong.strip()!r} | {test}"
        jobs.append((("test", label), lambda test=test: tested([test]), file, text, wrong))
        if run:
            jobs.append((("run", label), lambda file=file: two_steps(file), file, text, wrong))
    if check:
        for path in sorted({entry[3].partition("::")[0] for entry in chosen}):
            tests = sorted({entry[3] for entry in chosen if entry[3].startswith(path + "::")
                            and not trouble(*entry)})
            jobs.insert(0, (("clean", f"{path}, {len(tests)} tests without a fault"),
                            lambda tests=tests: tested(tests)))
    wanted = dict(test="noticed", run="ran", clean="passed")
    for (kind, label), outcome, details, output in results(jobs, processes):
        good = outcome == wanted[kind]
        print(f"{outcome if good else outcome.upper():10} {kind:5} {label}"
              + ("" if good else f"\n           {details}"), flush=True)
        if not good:
            bad.append(label)
            print("\n".join("           " + line for line in output.splitlines()[-15:]))
    faults = len({label for (kind, label), *_ in jobs if kind == "test"})
    print(f"{faults} faults tried; {len(bad)} lines want attention" + ":" * bool(bad))
    for line in bad:
        print("  " + line)
    return len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a file, such as train.py or envs/maze.py")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, without the check")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--run", action="store_true", help="two steps of a run with each as well")
    parser.add_argument("-j", type=int, default=2, help="processes")
    flags = parser.parse_args()
    chosen = sample(flags.sample, flags.seed) if flags.sample else entries(flags.only)
    if not chosen:
        sys.exit(f"--only {flags.only}: no faults of it; there are {', '.join(FAULTS)}")
    sys.exit(try_all(chosen, flags.j, flags.run, check=not flags.sample) > 0)


if __name__ == "__main__":
    main()
