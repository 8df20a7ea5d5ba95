"""Successes of the built-in experts in AgentGym's own JSON (AgentTraj), for other trainers.

    python recipes/demos.py --env maze --set agenttraj --out maze.json     as many as AgentTraj has
    python recipes/demos.py --env textcraft,babyai --n 300 --out demos.json

Each demonstration gives its reasons in one of five wordings.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cloning import lesson
from envs.parts.agenttraj import write_trajectories
from flags import Natural, Worlds, flag, parse_flags
from run import one_sentence


@dataclass
class Config(Worlds):
    out: str = flag("demos.json", "the file", heading="demonstrations")
    n: Natural = flag(300, "of each environment, as far as there are training tasks")
    set: str = flag("", "instead: as many as AgentGym's set has", ("", "agenttraj", "agenttraj_l"))
    seed: Natural = flag(0, "of everything random")
    skill, goal, demos, horizon, format = 1.0, "task", "", 0, "agentgym"        # no flags here


def main():
    with one_sentence("demos.py"):
        cfg, _ = parse_flags(Config, description=__doc__)
        print("successes written:", write_trajectories(cfg.out, lesson(cfg), cfg.seed))


if __name__ == "__main__":
    main()
