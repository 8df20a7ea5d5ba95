"""AgentGym's two evaluations: their environments, how many tasks of each, within how many turns.

The counts and turns of AgentEval are those of arXiv:2406.04151, the others those of AgentGym-RL
(arXiv:2509.08755). Neither paper lists its tasks. COMPOSITION is what the percentages in the tables
of the second one tell, a group of families shared out evenly where it counts the group alone:

    textcraft   31, 41, 25 and 3 goals of depth 1, 2, 3 and 4
    babyai      GoTo 55 (the eleven levels GoTo...), Pickup 15 (of three levels, which three is not
                known: ours are Pickup, PickupLoc and PickupAbove), ActionObjDoor, FindObjS7,
                OneRoomS20 and SynthLoc 5 each
    sciworld    Measure 53 (use-thermometer and the two measure-...), Test-Cond 83 (both
                test-conductivity...), Find 44 (four), Chem-Mix 5 (three), Lifespan 15 (three)
    searchqa    50 of each question set, 100 of MuSiQue
    webarena    15 of the shop, 15 of its administration, 10 of the map, 10 of forum and code host;
                of AgentEval's 20 as many parts
"""
from curriculum import choose_tasks
from envs import data_of, open_env

# name -> {environment: (tasks, most turns)}
SUITES = {
    "agenteval": {
        "webshop": (200, 10), "webarena": (20, 25), "maze": (25, 15), "wordle": (25, 8),
        "alfworld": (200, 30), "sciworld": (200, 30), "babyai": (90, 20), "textcraft": (100, 20),
        "weather": (20, 10), "movie": (20, 12), "academia": (20, 12), "sheet": (20, 15),
        "todo": (20, 15), "bird": (200, 1)},
    "agentgym_rl": {
        "webarena": (50, 15), "searchqa": (400, 4), "textcraft": (100, 20), "babyai": (90, 20),
        "sciworld": (200, 20)},
}
# environment -> {family: tasks}. Of any other: a sample of all its tasks.
COMPOSITION = {
    "textcraft": {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3},
    "babyai": dict.fromkeys("""
        GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7
        GoToImpUnlock GoToSeqS5R2 GoToRedBlueBall GoToDoor GoToObjDoor Pickup PickupLoc PickupAbove
        ActionObjDoor FindObjS7 OneRoomS20 SynthLoc""".split(), 5),
    "sciworld": {
        "use-thermometer": 18, "measure-melting-point-known-substance": 18,
        "measure-melting-point-unknown-substance": 17, "test-conductivity": 42,
        "test-conductivity-of-unknown-substances": 41, "find-living-thing": 11,
        "find-non-living-thing": 11, "find-plant": 11, "find-animal": 11, "chemistry-mix": 2,
        "chemistry-mix-paint-secondary-color": 2, "chemistry-mix-paint-tertiary-color": 1,
        "lifespan-longest-lived": 5, "lifespan-shortest-lived": 5,
        "lifespan-longest-lived-then-shortest-lived": 5},
    "searchqa": {"nq": 50, "triviaqa": 50, "popqa": 50, "hotpotqa": 50, "2wikimultihopqa": 50,
                 "musique": 100, "bamboogle": 50},
    "webarena": {"shopping": 15, "shopping_admin": 15, "map": 10, "reddit": 5, "gitlab": 5},
}


def open_suite(name, data):
    """The modules of a suite's environments that are here; of each other a sentence is printed."""
    modules = []
    for env, own in data_of([*SUITES[name]], data).items():
        try:
            modules.append(open_env(env, own))
        except (ValueError, ImportError) as error:
            print(f"{env} is left out: {str(error).partition(';')[0]}")
    return modules


def suite_tasks(module, n):
    """The ids of an environment's n tasks in a suite, from its TEST split; of a family that holds
    fewer, all."""
    held = {module.family(task) for task in choose_tasks(module, "test", 0)}
    parts = COMPOSITION.get(module.NAME, {})
    share = n / max(sum(parts.values()), 1)
    tasks = []
    for family, count in parts.items():
        if family in held:
            tasks += choose_tasks(module, "test", round(share * count), family)
    return tasks or choose_tasks(module, "test", n)
