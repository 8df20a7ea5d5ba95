"""Successes of the built-in experts in AgentGym's own JSON (AgentTraj), for other trainers.

    python recipes/demos.py --env maze --set agenttraj --out maze.json     as many as AgentTraj has
    python recipes/demos.py --env textcraft,babyai --n 300 --out demos.json

Each demonstration gives its reasons in one of five wordings.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cloning import demonstrations_for
from envs.parts.agenttraj import write_trajectories
from flags import Natural, Worlds, flag, parse_flags
from run import one_sentence


@dataclass
class Config(Worlds):
    out: str = flag("demos.json", "the file", heading="demonstrations")
    n: Natural = flag(300, "of each environment, as far as there are training tasks")
    set: str = flag("", "instead: as many as AgentGym's set has", ("", "agenttraj", "agenttraj_l"))
    seed: Natural = flag(0, "of everything random")

    # What `demonstrations_for` reads beside the flags.
    skill = 1.0
    goal = "task"
    demos = ""
    horizon = 0
    format = "agentgym"
    context = "full"


def main():
    with one_sentence("demos.py"):
        cfg, _ = parse_flags(Config, description=__doc__)
        demos = demonstrations_for(cfg)
        print("successes written:", write_trajectories(cfg.out, demos, cfg.seed))


if __name__ == "__main__":
    main()
