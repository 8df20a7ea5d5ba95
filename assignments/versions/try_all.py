"""Try the course on itself: correct versions must pass a step's tests, wrong ones must not.

    python assignments/versions/try_all.py              all steps: a quarter of an hour on two cores
    python assignments/versions/try_all.py 2 6          these
    python assignments/versions/try_all.py 2 --runs 0,1,2,3,4       the self-graded run, by seeds

Wrong versions are tried as tests/wrong_versions.py tries its faults: each in a process of its own,
forked after the slow imports. Correct ones are graded by check.py, as submissions.
"""
import argparse
import ast
import functools
import random
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import wrong_versions
from blank import ROOT, copy_project, functions_of, read_sheet, sheets
from check import play_run
from wrong import SHOWN, WRONG

HERE = Path(__file__).resolve().parent
STYLES = "loops", "vectorised"


@functools.cache
def places(source):
    """{qualified name: (first line, last line, indentation)} of the functions in a text, decorators
    included; lines count from 0, the last one is excluded."""
    return {name: (min(x.lineno for x in [node, *node.decorator_list]) - 1, node.end_lineno,
                   node.col_offset) for name, node in functions_of(ast.parse(source))}


def versions(path):
    """{qualified name: source} of the functions of a file."""
    source = Path(path).read_text()
    lines = source.splitlines()
    return {name: textwrap.dedent("\n".join(lines[begin:end])) + "\n"
            for name, (begin, end, _) in places(source).items()}


def put(source, bodies):
    """A file's text with other versions, {qualified name: source}, of some of its functions."""
    lines = source.splitlines()
    for name, (begin, end, indent) in reversed(places(source).items()):
        if name in bodies:
            lines[begin:end] = textwrap.indent(bodies[name], " " * indent).splitlines()
    return "\n".join(lines) + "\n"


def wrong_jobs(step):
    """[(label, tests, file, the project's text, a wrong text), ...] of a step. ValueError: an entry
    has lost its place."""
    _, functions, tests, *_ = read_sheet(step)
    own, jobs = versions(HERE / "loops.py"), []
    for label, name, text, wrong in WRONG[step]:
        file = next(file for file, names in functions.items() if name in names)
        source = own.get(name) or versions(ROOT / file)[name]
        if source.count(text) != 1:
            raise ValueError(f"{step}, {label}: its text occurs {source.count(text)} times in "
                             f"{name}, expected once: {text!r}")
        project = (ROOT / file).read_text()
        altered = put(project, {name: source.replace(text, wrong)})
        jobs.append((f"{step} {name}: {label}", [*tests], file, project, altered))
    return jobs


def submission(step, style, folder):
    """Write a step's files in this style, correct, into a folder."""
    _, functions, *_ = read_sheet(step)
    bodies = versions(HERE / f"{style}.py")
    for file, names in functions.items():
        text = put((ROOT / file).read_text(), {n: bodies[n] for n in names if n in bodies
                                               and not file.startswith("recipes/")})
        Path(folder, file).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, file).write_text(text)


def try_wrong(steps, most):
    """-> the labels of wrong versions that passed; of each step at most so many are tried."""
    import numpy  # noqa: F401  once, here, and not in each of the processes
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import (AutoModelForCausalLM, LlamaConfig,  # noqa: F401
                              PreTrainedTokenizerFast, Qwen2Config, Qwen3Config)
    jobs = [(label, "noticed", ["-x", *tests], file, "", project, altered)
            for step in steps for label, tests, file, project, altered in
            random.Random(0).sample(wrong_jobs(step), min(most, len(WRONG[step])))]
    passed = []
    for label, _, outcome, details, output in wrong_versions.results(jobs, 2):
        print(f"{outcome:10} {label} | {details[:90]}", flush=True)
        if outcome not in ("noticed", "crashed"):
            passed.append(label)
            print(*output.splitlines()[-8:], sep="\n")
    return passed


def try_right(steps, styles):
    """-> the names of correct versions that did not pass."""
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            names = [f"{folder}/{step} {style}" for style in styles]
            for name, style in zip(names, styles):
                submission(step, style, name)
            done = subprocess.run([sys.executable, ROOT / "assignments/check.py", step, "--tests",
                                   "--out", f"{folder}/reports", "--grade", *names],
                                  capture_output=True, text=True)
            print(done.stdout, done.stderr, flush=True)
            if done.returncode:
                failed.append(step)
                for report in Path(folder, "reports").glob("*/*.txt"):
                    print(*[line for line in report.read_text().splitlines()
                            if not line.startswith("passed")], sep="\n")
    return failed


def try_runs(steps, seeds):
    """Play the run of each step with the project's own code and with the wrong versions that are
    meant to show in it; print a line each -> the labels of those that did not come out so. The
    policy from which a seed's runs start is cloned once, by the project's own code."""
    bad = []
    with tempfile.TemporaryDirectory() as starts:
        for step in steps:
            *_, commands, threshold = read_sheet(step)
            versions = [("right", None, "")] + [
                (label, file, altered) for label, _, file, _, altered in wrong_jobs(step)
                if label.partition(": ")[2] in SHOWN[step]]
            for label, file, altered in versions:
                with tempfile.TemporaryDirectory() as folder:
                    copy_project(Path(folder))
                    if file:
                        Path(folder, file).write_text(altered)
                    for seed in seeds:
                        run = play_run(folder, from_start(commands, seed, Path(starts)), threshold,
                                       3600, 32 * 2**30, seed=seed)
                        print(f"{step} seed {seed} {label}: {run['said']} ({run['seconds']} s)",
                              flush=True)
                        bad += [f"{label}, seed {seed}"] * (run["passed"] != (label == "right"))
    return bad


def from_start(commands, seed, starts):
    """A run's commands without the first, which makes `start` if that of this seed is not there."""
    (_, script, *flags), start = commands[0].replace("SEED", str(seed)).split(), starts / str(seed)
    if not start.exists():
        flags[flags.index("start")] = str(start)
        subprocess.run([sys.executable, ROOT / script, *flags], check=True, capture_output=True)
    return [command.replace("--model start", f"--model {start}") for command in commands[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=[step for step in sheets() if step in WRONG])
    parser.add_argument("--right", action="store_true", help="correct versions alone")
    parser.add_argument("--wrong", action="store_true", help="wrong versions alone")
    parser.add_argument("--sample", type=int, default=99, help="so many wrong versions of a step")
    parser.add_argument("--style", choices=STYLES, help="correct versions of this style alone")
    parser.add_argument("--runs", default="", metavar="SEED,...", help="self-graded runs alone")
    flags = parser.parse_args()
    if flags.runs:
        bad = try_runs([step for step in flags.steps if step in SHOWN],
                       [int(seed) for seed in flags.runs.split(",")])
        print(f"unexpected: {bad or 'none'}")
        sys.exit(len(bad) > 0)
    bad = [] if flags.right else try_wrong(flags.steps, flags.sample)
    if not flags.wrong:
        styles = [flags.style] if flags.style else STYLES
        bad += try_right(flags.steps, styles)
    print(f"steps {', '.join(flags.steps)}: unexpected: {bad or 'none'}")
    sys.exit(len(bad) > 0)


if __name__ == "__main__":
    main()
