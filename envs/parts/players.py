"""The two built-in players of every environment, and how often they succeed.

    play_builtin(maze, "expert", 7, 15)                -> one episode: success, score, turns, ...
    builtin_rate(maze, "random", maze.TEST[:200], 15)  -> (success rate, standard error)
"""
import functools
import math
import random
from collections import defaultdict
from contextlib import suppress


def mean_and_error(values):
    """Mean, and its standard error sqrt(var / n) with Bessel's correction; nan where undefined."""
    n = len(values)
    mean = sum(values) / n if n else math.nan
    if n < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)


def play_builtin(module, player, task_id, horizon, seed=0, stream=None):
    """One episode of the "random" or the "expert" player -> {"env", "task_id", "success", "score",
    "reward": of all turns, "turns", "valid": how many of them were understood, "conversation"}.
    seed: of the random player's actions; stream: of the environment's luck, see envs.Base.reset."""
    env, rng = module.Env(), random.Random(f"{seed} {task_id}")
    messages, rewards, valid, done = [("user", env.reset(task_id, stream))], [], [], False
    while not done and len(rewards) < horizon:
        action = env.expert()[1] if player == "expert" else env.random_action(rng)
        observation, reward, done, info = env.step(action)
        rewards.append(float(reward))
        valid.append(info.get("valid", True))
        messages += [("assistant", action), ("user", observation)]
    env.close()
    return dict(env=module.NAME, task_id=task_id, success=bool(info["success"]),
                score=float(info["score"]), reward=sum(rewards), turns=len(rewards),
                valid=sum(valid),
                conversation=[dict(role=role, content=text) for role, text in messages])


def builtin_rate(module, player, tasks, horizon, seed=0):
    """-> (success rate, standard error): exact where the environment can be solved, else played."""
    if hasattr(module, "exact_success"):
        rates = [module.exact_success(t, player, horizon) for t in tasks]
        return sum(rates) / len(rates), 0.0
    successes = []
    for task in tasks:
        with suppress(RuntimeError):        # of the engine: a task that it refuses is left out
            successes.append(play_builtin(module, player, task, horizon, seed)["success"])
    return mean_and_error(successes)


@functools.cache
def player_rate(player, tasks, horizon):
    """`builtin_rate` on the tasks ((rollout.World, id), ...) of several environments -> {"success",
    "stderr", "n"}."""
    ids = defaultdict(list)
    for world, task in tasks:
        ids[world].append(task)
    rates = [(len(own) / len(tasks), *builtin_rate(world.module, player, own,
                                                   min(horizon, world.most_turns)))
             for world, own in ids.items()]
    return dict(success=sum(share * rate for share, rate, _ in rates), n=len(tasks),
                stderr=math.hypot(*(share * error for share, _, error in rates)))
