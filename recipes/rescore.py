"""Rewards of stored episodes, computed again by another rule.

    python recipes/rescore.py runs/NAME                            by `shorter`, below
    python recipes/rescore.py runs/NAME --rule my_module:my_rule

A rule is a function(episode) -> float of an episode as samples.jsonl holds it: "reward", "score",
"success", "turns" (each with "reward" and "valid"), "texts" (token by token), "env", "task_id".
Printed is, for each step, the mean reward by both rules, and how many of the groups that taught
something by the stored rewards still do: a rule under which all members of a group earn the same
teaches nothing. Rewards go to rescored.jsonl, nothing is changed.
"""
import argparse
import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path.cwd()))


def shorter(episode):
    """The stored reward, of a success less 0.02 a turn."""
    if not episode["success"]:
        return episode["reward"]
    return episode["reward"] - 0.02 * len(episode["turns"])


def varied(rewards):
    """Whether a group's members earned different rewards."""
    return max(rewards) - min(rewards) > 1e-9


def read_episodes(folder):
    """The stored training episodes of a run. ValueError: there are none."""
    path = Path(folder, "samples.jsonl")
    if not path.exists():
        raise ValueError(f"{path} is not there; give the folder of a run of train.py")
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    return [episode for episode in episodes if episode["split"] == "train"]


def by_step(episodes, rule):
    """{step: [(stored rewards of a group's members, new ones), ...]}."""
    groups = defaultdict(list)
    for episode in episodes:
        groups[episode["step"], episode["env"], episode["task_id"]].append(episode)
    steps = defaultdict(list)
    for (step, _, _), members in groups.items():
        stored = [episode["reward"] for episode in members]
        steps[step].append((stored, [rule(episode) for episode in members]))
    return steps


def lines_of(steps):
    """What is printed."""
    lines = ["step episodes stored    new  groups that teach: stored, new, both"]
    for step, groups in sorted(steps.items()):
        stored = sum((group[0] for group in groups), [])
        new = sum((group[1] for group in groups), [])
        before = {i for i, group in enumerate(groups) if varied(group[0])}
        after = {i for i, group in enumerate(groups) if varied(group[1])}
        lines.append(f"{step:4d} {len(stored):8d} {sum(stored) / len(stored):6.3f} "
                     f"{sum(new) / len(new):6.3f}  {len(before)}, {len(after)}, "
                     f"{len(before & after)} of {len(groups)}")
    return lines


def rule_of(name):
    """The function that --rule names. ValueError: there is none."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--rule {name}: {error}; give MODULE:FUNCTION of a file in this folder "
                         "or on PYTHONPATH") from None


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of a run")
    parser.add_argument("--rule", default="", metavar="MODULE:FUNCTION", help="[shorter]")
    args = parser.parse_args(argv)
    try:
        rule = rule_of(args.rule) if args.rule else shorter
        episodes = read_episodes(args.folder)
    except ValueError as error:
        sys.exit(f"rescore.py: {error}")
    with open(Path(args.folder, "rescored.jsonl"), "w") as file:
        for episode in episodes:
            kept = dict(step=episode["step"], env=episode["env"], task_id=episode["task_id"],
                        stored=episode["reward"], reward=rule(episode))
            file.write(json.dumps(kept) + "\n")
    print("\n".join(lines_of(by_step(episodes, rule))))


if __name__ == "__main__":
    main()
