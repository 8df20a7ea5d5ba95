"""AgentGym's two evaluations: their environments, numbers of tasks and turns.

    python recipes/suites.py --env agenteval --model runs/NAME/step_80      AgentGym's 1,160 tasks
    python recipes/suites.py --env agentgym_rl --policy expert              AgentGym-RL's 840

Any flag of eval.py; but --n, --horizon and --families are the suite's affair, which is listed in
envs/parts/suites.py. An environment whose engine is not here is left out, and a sentence says so.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import eval as evaluation
from envs import folders_of, open_env
from envs.parts.suites import SUITES, suite_tasks


def open_suite(name, data):
    """The modules of a suite's environments that are here. ValueError: no such suite."""
    if name not in SUITES:
        raise ValueError(f"env={name!r}: expected a suite, {' or '.join(SUITES)}")
    modules, folders = [], folders_of([*SUITES[name]], data)
    for env in SUITES[name]:
        try:
            modules.append(open_env(env, folders.get(env, "")))
        except (ValueError, ImportError) as error:
            print(f"{env} is left out: {str(error).partition(';')[0]}")
    return modules


def tasks_of_suite(cfg, worlds, families):
    """[(World, id)] as the suite has them; sets the most turns of each World."""
    tasks = []
    for world in worlds:
        n, world.most_turns = SUITES[cfg.env][world.module.NAME]
        ids = suite_tasks(world.module, n)
        tasks += [(world, task) for task in sorted(ids)]
    return tasks


if __name__ == "__main__":
    evaluation.open_envs, evaluation.tasks_asked = open_suite, tasks_of_suite
    evaluation.main()
