"""pytest -m slow tests/more/test_serving.py: a checkpoint served by stock transformers' own server,
`transformers serve`, and played through recipes/eval_api.py.

Skipped without the server's packages: pip install -r tests/requirements.txt.
"""
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from torch.distributed.elastic.utils.distributed import get_free_port
from transformers.utils.import_utils import is_serve_available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="transformers serve lacks its packages")]
ROOT = Path(__file__).parent.parent.parent


def ours(*words):
    """Run one of our scripts; it must succeed. -> what it printed."""
    ended = subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture
def transformers_serve(here):
    """The address of a server that loads any folder it is asked for by its path."""
    port = get_free_port()
    address = f"http://127.0.0.1:{port}"
    with open("serve.log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1",
             "--port", str(port), "--device", "cpu"], stdout=log, stderr=log)
    try:
        for _ in range(120):
            assert server.poll() is None, Path("serve.log").read_text()
            try:
                requests.get(f"{address}/health", timeout=5)
                break
            except requests.ConnectionError:
                time.sleep(1)
        yield f"{address}/v1"
    finally:
        server.kill()
        server.wait()


def rows_of(folder):
    return json.loads(Path(folder, "results.json").read_text())["rows"]


def games_of(folder):
    """{task: (success, turns, understood, tokens)}."""
    lines = Path(folder, "trajectories.jsonl").read_text().splitlines()
    plays = []
    for line in lines:
        plays += json.loads(line)
    return {play["task_id"]: (play["success"], play["turns"], play["valid"], play["tokens"])
            for play in plays}


def test_a_served_checkpoint_plays_as_it_does_here(transformers_serve):
    """Greedy, game by game. The served folder has said how its policy speaks and for how long: no
    flag repeats it."""
    ours("train.py", "--quick", "--name", "taught")
    (folder,) = map(str, Path("runs/taught").glob("step_*"))
    common = ["--env", "textcraft_small", "--families", "depth 1", "--model", folder, "--n", "64",
              "--temperature", "0"]
    ours("eval.py", *common, "--out", "runs/here")
    said = ours("recipes/eval_api.py", *common, "--out", "runs/served", "--api-base",
                transformers_serve)
    assert rows_of("runs/served") == rows_of("runs/here"), said
    assert games_of("runs/served") == games_of("runs/here")
    assert 0.2 < rows_of("runs/here")[0]["success"] < 1     # else the same would say little
