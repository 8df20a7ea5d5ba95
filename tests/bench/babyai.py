"""python -m tests.bench.babyai: how often expert and random player succeed, level by level.

    python -m tests.bench.babyai [episodes of each level, default 10: a minute]

The expert gets 120 turns, so that a long level shows itself long, not unsolvable.
"""

import random
import sys

from envs import babyai


def episode(env, task_id, choose, turns):
    """(success, turns taken)."""
    env.reset(task_id)
    for turn in range(1, turns + 1):
        *_, done, info = env.step(choose())
        if done:
            return info["success"], turn
    return False, turns


def report(episodes):
    env, rng, total = babyai.Env(), random.Random(0), []
    print(f"{'level':25} expert<=20  <=30  <=120  turns | random<=20  <=30   ({episodes} test ids)")
    for level, name in enumerate(babyai.FAMILIES):
        ids = [task_id for task_id in babyai.TEST if task_id % 40 == level][:episodes]
        expert = [episode(env, task_id, lambda: env.expert()[1], 120) for task_id in ids]
        by_chance = [episode(env, task_id, lambda: env.random_action(rng), 30)
                     for task_id in ids for _ in range(5)]
        solved = [turns for success, turns in expert if success]
        within = [sum(success and turns <= most for success, turns in runs) / len(runs)
                  for runs, most in ((expert, 20), (expert, 30), (expert, 120),
                                     (by_chance, 20), (by_chance, 30))]
        total.append([*within, sum(solved) / max(1, len(solved))])
        show(f"{level + 1:2} {name}", total[-1])
    one_room = [row for name, row in zip(babyai.FAMILIES, total) if name in babyai.ONE_ROOM]
    for name, rows in (("the ten of one room", one_room), ("all forty", total)):
        show(name, [sum(column) / len(rows) for column in zip(*rows)])


def show(name, row):
    print(f"{name:25} {row[0]:10.0%} {row[1]:5.0%} {row[2]:6.0%} {row[5]:6.1f} |"
          f" {row[3]:10.0%} {row[4]:5.0%}", flush=True)


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
