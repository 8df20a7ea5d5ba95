"""python -m tests.bench.outage: what a run loses when one of its two servers dies.

Each run is train.py as it is, of default sizes, on two servers (--env-url):

    one server        the run on one server alone: the seconds of a step to compare with
    killed            one of two servers is killed (SIGKILL) once step 2 is logged
    killed, restarted ... and started again on its port two steps later; its sessions show its use

    dropped           groups left out, in all steps
    s/step            median seconds of the steps from 4 on (the kill falls into step 3)
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests

ROOT = Path(__file__).parent.parent.parent


QUICK = ["--tasks-per-step=4", "--group-size=4", "--eval-tasks=4"]


def start(folder, flags, *urls):
    """train.py in a folder of its own, with a policy that was cloned before."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), "--model", str(folder / "clone"), "--name", "run",
         "--eval-every=0", "--eval-tasks=16", f"--env-url={','.join(urls)}", *flags],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})


def logged(folder):
    path = folder / "runs/run/metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(folder, run, steps):
    while len(logged(folder)) < steps:
        if run.poll() is not None:
            raise RuntimeError(run.stdout.read())
        time.sleep(0.02)


def server(port=0):
    """One server process -> (process, its address)."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "env_server.py"), "textcraft_small", f"--port={port}"],
        stdout=subprocess.PIPE, text=True)
    return process, re.search("http://[^/]+", process.stdout.readline())[0]


def report(title, folder, run):
    output, _ = run.communicate()
    lines = logged(folder)
    later = [line["seconds"] for line in lines[4:]]
    print(f"{title:20} exit {run.returncode}, {len(lines)} steps, dropped "
          f"{[line['dropped'] for line in lines]}, s/step {statistics.median(later):.2f}",
          flush=True)
    if run.returncode:
        print(output[-2000:])
    return statistics.median(later)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="six small steps, to try this file")
    args = parser.parse_args()
    steps = 6 if args.quick else args.steps
    flags = [f"--steps={steps}", *(QUICK if args.quick else ())]
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        subprocess.run([sys.executable, str(ROOT / "agentevol.py"), "clone", "--out",
                        str(base / "clone"), *(["--steps=9", "--n=300"] if args.quick else ())],
                       check=True, stdout=subprocess.DEVNULL)

        def place(name):
            (base / name).mkdir()
            (base / name / "clone").symlink_to(base / "clone")
            return base / name

        folder, (one, url) = place("one"), server()
        alone = report("one server", folder, start(folder, flags, url))
        one.kill()
        for title, again in (("killed", False), ("killed, restarted", True)):
            folder, (one, first), (two, second) = place(title), server(), server()
            run = start(folder, flags, first, second)
            wait_for(folder, run, 3)
            two.send_signal(signal.SIGKILL)
            if again:
                two.wait()
                wait_for(folder, run, 5)
                two, _ = server(int(second.rpartition(":")[2]))
                seen = 0            # sessions are closed at the end of each rollout
                while run.poll() is None and len(logged(folder)) < steps - 1:
                    health = requests.get(f"{second}/health", timeout=5).json()
                    seen = max(seen, health["sessions"])
                    time.sleep(0.02)
                print(f"    most sessions on the restarted server: {seen}")
            print(f"    s/step over one server alone: {report(title, folder, run) / alone:.2f}")
            one.kill(), two.kill()


if __name__ == "__main__":
    main()
