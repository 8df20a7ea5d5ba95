"""Wrong versions of this code, each of which a test must notice.

    python tests/wrong_versions.py                       all of them: a line each, and a summary
    python tests/wrong_versions.py --only algos.py       those of one file
    python tests/wrong_versions.py --sample 12 --seed 3  a dozen of them

Each fault of tests/more/faults.py, whose head says what an entry is, is put into a copy of this
folder, where the test that it names must then fail by an assertion.

Each fault gets a process, forked from this one after the slow imports, which takes about a second.
"""
import argparse
import ast
import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import textwrap
from importlib.util import cache_from_source, find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "more"))
from faults import FAULTS  # noqa: E402

os.environ["OMP_NUM_THREADS"] = "1"      # before torch: a forked process has none of its threads

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240                            # what a test may take before it counts as hung

# ---- the list -----------------------------------------------------------------------------------

def entries(only=""):
    """[(file, function, text, wrong, test), ...] of all files, or of those whose path ends in
    `only`; without those that only the real chat templates show, if trl is missing."""
    found = []
    for file, faults in FAULTS.items():
        if only and not f"/{file}".endswith(f"/{only}"):
            continue
        for function, text, wrong, test in faults:
            found.append((file, function, text, wrong, located(test)))
    return [entry for entry in found if find_spec("trl") or "test_chat.py" not in entry[-1]]


@functools.cache
def texts_of_tests():
    """{path: text} of the files of tests, the course's among them."""
    paths = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "assignments/tests").glob("test_*.py")]
    return {path: path.read_text() for path in paths}


@functools.cache
def located(test):
    """tests/test_x.py::test for a test without its file, if one file has a test of this name."""
    homes = [path for path, text in texts_of_tests().items()
             if "::" not in test and f"\ndef {test.partition('[')[0]}(" in text]
    return f"{homes[0].relative_to(ROOT)}::{test}" if len(homes) == 1 else test


def trouble(file, function, text, wrong, test):
    """Why this entry cannot be tried, in words; "" if it can."""
    found = len(places((ROOT / file).read_text(), function, text))
    if found != 1:
        return (f"{file}, {function or 'the whole file'}: its place occurs {found} times, expected "
                f"once: the expression has changed, so write the entry anew: {text!r}")
    if text == wrong:
        return "the wrong form is the right one"
    path, _, name = test.partition("::")
    if not name or f"def {name.partition('[')[0]}(" not in (ROOT / path).read_text():
        return f"there is no test {test}, or in several files"
    return ""


# ---- where a fault is put -----------------------------------------------------------------------

def places(source, function, text):
    """Where the fault's right form stands -> [(first character, last + 1, indentation)].

    Syntax trees are compared, so that spaces, line breaks and comments do not matter. What is no
    Python, or stands within a string, is sought as text."""
    try:
        scope = scope_of(ast.parse(source), function)
        sought = [shape(node) for node in ast.parse(text).body]
    except SyntaxError:
        return [(m.start(), m.end(), None) for m in re.finditer(re.escape(text), source)]
    if scope is None:
        return []
    lines = [0, *itertools.accumulate(len(line.encode()) for line in source.splitlines(True))]
    raw = source.encode()
    found = []
    for nodes in runs(scope, sought):
        first, last = nodes[0], nodes[-1]
        begin = len(raw[:lines[first.lineno - 1] + first.col_offset].decode())
        end = len(raw[:lines[last.end_lineno - 1] + last.end_col_offset].decode())
        found.append((begin, end, first.col_offset if isinstance(first, ast.stmt) else None))
    if not found and source.count(text) == 1:       # a piece of a long string
        begin = source.index(text)
        found.append((begin, begin + len(text), None))
    return found


def scope_of(tree, function):
    """The node of "Class.method"; of "" the whole file; None: there is none."""
    for name in function.split(".") if function else ():
        inside = [node for node in ast.walk(tree) if getattr(node, "name", None) == name
                  and isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        if not inside:
            return None
        tree = inside[0]
    return tree


def shape(node):
    """What a node says, without where it stands and whether it is read or written."""
    return re.sub(r"ctx=\w+\(\)", "", ast.dump(node))


def runs(scope, sought):
    """The nodes of a scope that say the same: one expression, or statements in a row."""
    expression = len(sought) == 1 and sought[0].startswith("Expr(")
    for node in ast.walk(scope):
        if expression and isinstance(node, ast.expr) and f"Expr(value={shape(node)})" == sought[0]:
            yield [node]
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if expression or not isinstance(body, list):
                continue
            for i in range(len(body) - len(sought) + 1):
                if [shape(x) for x in body[i:i + len(sought)]] == sought:
                    yield body[i:i + len(sought)]


def broken(source, function, text, wrong):
    """The source with the fault in it. A wrong expression gets parentheses, wrong statements the
    indentation of the right ones."""
    ((begin, end, indentation),) = places(source, function, text)
    as_text = source[begin:end] == text and indentation is None and not is_expression(text)
    if indentation is not None:
        wrong = textwrap.indent(wrong, " " * indentation).lstrip()
    elif not as_text and is_expression(wrong):
        wrong = f"({wrong})"
    return source[:begin] + wrong + source[end:]


def is_expression(text):
    try:
        return bool(ast.parse(text, mode="eval"))
    except SyntaxError:
        return False


# ---- one fault, in a process of its own ---------------------------------------------------------

def copy_with(folder, file="", function="", text="", wrong=""):
    """A copy of this checkout in `folder`, with the fault if one is given."""
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(
        ".*", "runs", "shared", "*.png", "*.svg"))      # compiled files go along: they save seconds
    if file:
        place = Path(folder, file)
        place.write_text(broken(place.read_text(), function, text, wrong))
        Path(cache_from_source(str(place))).unlink(missing_ok=True)
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
            within = "\nAssertionError" in str(call.excinfo.value)      # in another process
            name = ("AssertionError" if within or call.excinfo.errisinstance(said)
                    else call.excinfo.typename)
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


def in_a_process(tests, *fault):
    """Fork; there copy the code with the fault and run the tests -> (pid, the folder it used). What
    `tested` returns is left in result.json, what is printed in output.txt."""
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
            json.dump(tested(tests), file)
        status = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def results(jobs, processes):
    """jobs: (label, wanted, tests, *fault) each -> (label, wanted, outcome, details, output), as
    they end."""
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < processes:
            label, wanted, tests, *fault = waiting.pop()
            pid, folder = in_a_process(tests, *fault)
            running[pid] = label, wanted, folder
        pid, status = os.wait()
        label, wanted, folder = running.pop(pid)
        output = Path(folder, "output.txt").read_text(errors="replace")
        outcome = "hung" if os.WIFSIGNALED(status) else "crashed"
        details = (output.strip().splitlines() or [""])[-1]
        with contextlib.suppress(ValueError, OSError):       # an ended process left none
            outcome, details = json.loads(Path(folder, "result.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        yield label, wanted, outcome, details, output


# ---- all of them --------------------------------------------------------------------------------

def try_all(chosen, processes=2, check=True):
    """Try every entry, print a line each -> how many went wrong. check: first see that the named
    tests pass without a fault."""
    import numpy  # noqa: F401  once, here, and not in each of the processes
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import (  # noqa: F401
        AutoModelForCausalLM,
        LlamaConfig,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen3Config,
    )
    bad = [f"NO ENTRY   {entry[0]}: {why}" for entry in chosen if (why := trouble(*entry))]
    good = [entry for entry in chosen if not trouble(*entry)]
    jobs = []
    for path in sorted({test.partition("::")[0] for *_, test in good}) * check:
        tests = sorted({test for *_, test in good if test.startswith(f"{path}::")})
        jobs.append((f"clean {path}, {len(tests)} tests without a fault", "passed", tests))
    for file, function, text, wrong, test in good:
        label = f"test  {file}, {function}: {text!r} -> {wrong!r} | {test}"
        jobs.append((label, "noticed", [test], file, function, text, wrong))
    for label, wanted, outcome, details, output in results(jobs, processes):
        if outcome == wanted:
            print(f"{outcome:10} {label}", flush=True)
        else:
            bad.append(f"{outcome.upper():10} {label}")
            print("\n           ".join([bad[-1], details, *output.splitlines()[-15:]]), flush=True)
    print(f"{len(good)} faults tried; {len(bad)} lines want attention" + ":" * bool(bad))
    for line in bad:
        print("  " + line)
    return len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a file, such as train.py or envs/maze.py")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, without the check")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("-j", type=int, default=2, help="processes")
    flags = parser.parse_args()
    chosen = entries(flags.only)
    if flags.sample:
        chosen = random.Random(flags.seed).sample(chosen, flags.sample)
    if not chosen:
        sys.exit(f"--only {flags.only}: no faults of it; there are {', '.join(FAULTS)}")
    sys.exit(try_all(chosen, flags.j, check=not flags.sample) > 0)


if __name__ == "__main__":
    main()
