"""pytest tests/more/test_deleting_worlds.py: a world can be deleted, and nothing else fails.

In a copy of the project a world's file goes, those of envs/ that nobody else needs, its tests, and
the worlds that are built on it. What is left must start, and the core's tests must be green.
"""
import ast
import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from players import ROOT

WORLDS = sorted(path.stem for path in (ROOT / "envs").glob("[!_]*.py"))

CORE = sorted((ROOT / "tests").glob("test_*.py"))
WITHOUT_WORLDS = ("test_algos", "test_batch", "test_engine", "test_policy", "test_client",
                  "test_ranks")
HELPERS = [ROOT / "tests" / name for name in ("conftest.py", "fakes.py", "families.py",
                                              "players.py")]


@functools.cache
def modules_of(file):
    """The modules of envs/ that a Python file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("envs.")}


def file_of(root, module):
    return root / (module.replace(".", "/") + ".py")


def needed(root, files):
    """These files and the files of envs/ that they import, and those import, ..."""
    reached = set()
    waiting = [*files]
    while waiting:
        file = waiting.pop()
        if file.exists() and file not in reached:
            reached.add(file)
            waiting += [file_of(root, module) for module in modules_of(file)]
    return reached


def delete(root, names):
    """Delete these worlds and all that is theirs alone -> {path: text} of what is gone."""
    files = {name: file_of(root, f"envs.{name}") for name in WORLDS}
    gone = {files[name] for name in names}
    left = []
    for file in files.values():
        if gone & needed(root, [file]):             # built on one of them
            gone.add(file)
        else:
            left.append(file)
    core = [*root.glob("*.py"), root / "envs/__init__.py", root / "envs/__main__.py"]
    kept = needed(root, [*core, *left])
    gone |= {file for file in (root / "envs").rglob("*.py")
             if file not in kept and file.name != "__init__.py"}
    tests = [*root.glob("tests/envs/*.py"), *root.glob("tests/more/*.py")]
    gone |= {file for file in tests if gone & needed(root, [file])}
    was = {file: file.read_text() for file in gone}
    for file in gone:
        file.unlink()
    return was


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of what git knows, or would add."""
    folder = tmp_path_factory.mktemp("fork")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, listed):
        if (ROOT / name).is_file() and not name.startswith("docs/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "docs").symlink_to(ROOT / "docs")
    return folder


# Forked, so that the libraries are imported once for all worlds.
STARTS = """
import json, os, sys
root = sys.argv[1]
sys.path.insert(0, root)
os.chdir(root)

def start():
    import agentevol, chat, env_server, envs, eval, rollout, train
    assert not [name for name in gone if name in sys.modules]
    for name in envs.known_envs():
        __import__(f"envs.{name}")
    sys.argv = ["train.py", "--help"]
    try:
        train.main()
    except SystemExit as end:
        assert not end.code, end.code

gone = []
out = os.dup(1)
os.dup2(2, 1)
start()
ours = {"envs", *(name[:-3] for name in os.listdir(root) if name.endswith(".py"))}
for name in list(sys.modules):
    if name.partition(".")[0] in ours:
        del sys.modules[name]
for line in sys.stdin:
    gone = json.loads(line)
    if os.fork() == 0:
        start()
        os._exit(0)
    _, status = os.wait()
    os.write(out, b"%d\\n" % status)
"""


@pytest.fixture(scope="module")
def starts(copied):
    """starts(modules that are gone): what is left in the copy can be started."""
    errors = copied / "errors.txt"
    with open(errors, "w") as file, subprocess.Popen(
            [sys.executable, "-c", STARTS, str(copied)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=file) as process:
        def check(gone):
            file.truncate(0)
            process.stdin.write(repr(gone).replace("'", '"') + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", errors.read_text()[-3000:]
        yield check
        process.stdin.close()


@pytest.mark.parametrize("name", WORLDS)
def test_without_a_world_the_rest_starts(copied, starts, name):
    was = delete(copied, [name])
    gone = [str(file.relative_to(copied))[:-3].replace("/", ".") for file in was]
    assert f"envs.{name}" in gone
    try:
        starts(gone)
    finally:
        for file, text in was.items():
            file.write_text(text)


@pytest.mark.parametrize("file", [*CORE, *HELPERS], ids=lambda file: file.name)
def test_the_cores_tests_import_no_world(file):
    """So that they can be collected whichever is gone."""
    assert not modules_of(file) & {f"envs.{name}" for name in WORLDS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bandit"])
def test_with_one_world_left_the_core_is_green_and_trains(copied, name, tmp_path):
    fork = tmp_path / "fork"
    shutil.copytree(copied, fork, symlinks=True)
    delete(fork, [world for world in WORLDS if world != name])
    assert [path.stem for path in (fork / "envs").glob("[!_]*.py")] == [name]

    def run(*arguments):
        done = subprocess.run([sys.executable, *arguments], cwd=fork, text=True,
                              capture_output=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        return done.stdout

    # Those that know no world at all need not be run again.
    files = [f"tests/{file.name}" for file in CORE if file.stem not in WITHOUT_WORLDS]
    run("-m", "pytest", "-x", "-p", "no:cacheprovider", *files)
    run("train.py", "--env", name, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2",
        "--name", "one")
    assert Path(fork, "runs/one/result.json").exists()
