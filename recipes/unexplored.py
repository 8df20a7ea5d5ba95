"""AgentEvol of several environments, some of which are cloned and evaluated, but never explored.

    python recipes/unexplored.py --env maze,textcraft_small --unexplored maze    any flag of evolve

Does a policy grow better in an environment by what it finds in others?
"""
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import agentevol
from flags import flag


@dataclass
class Config(agentevol.Evolve):
    unexplored: str = flag("", "those that are not explored, comma-separated",
                           heading="AgentEvol of some environments")


plain_explore = agentevol.explore


def explore(run):
    """agentevol.explore in the others alone."""
    names = run.cfg.unexplored.split(",")
    tasks = {world: ids for world, ids in run.tasks.items() if world.module.NAME not in names}
    if not tasks:
        raise ValueError(f"unexplored={run.cfg.unexplored!r}: nothing of {run.cfg.env} is left")
    return plain_explore(replace(run, tasks=tasks))


if __name__ == "__main__":
    agentevol.explore = explore
    agentevol.main(["evolve", *sys.argv[1:]], Config)
