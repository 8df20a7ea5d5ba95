"""The two built-in players of an environment, and how often they succeed. It may have one or none.

    play_builtin(maze, "expert", 7, 15)                -> one episode: success, score, turns, ...
    builtin_rate(maze, "random", maze.TEST[:200], 15)  -> (success rate, standard error)
"""
import math
import random
from contextlib import suppress

from envs import play

METHODS = {"random": "random_action", "expert": "expert"}       # of Env, by which they play


def lacks_player(module, player):
    """A sentence, if this environment has no such player; "" if it has."""
    method = METHODS[player]
    if hasattr(module.Env, method):
        return ""
    return f"{module.NAME} has no {player} player: its Env has no {method}()"


def play_builtin(module, player, task_id, horizon, seed=0, stream=None):
    """One episode of the "random" or the "expert" player -> {"env", "task_id", "success", "score",
    "reward": of all turns, "turns", "valid": how many of them were understood, "conversation"}.
    seed: of the random player's actions."""
    env = module.Env()
    rng = random.Random(f"{seed} {task_id}")

    def choose():
        if player == "expert":
            return env.expert()
        return "", env.random_action(rng)

    moves, last = play(env, task_id, choose, horizon, stream)
    reward = 0
    valid = 0
    conversation = []
    for move in moves:
        reward += float(move.reward)
        valid += move.info.get("valid", True)
        conversation.append(dict(role="user", content=move.observation))
        conversation.append(dict(role="assistant", content=move.action))
    conversation.append(dict(role="user", content=last))
    end = moves[-1].info
    success = bool(end["success"])
    score = float(end["score"])
    return dict(env=module.NAME, task_id=task_id, success=success, score=score, reward=reward,
                turns=len(moves), valid=valid, conversation=conversation)


def mean_and_error(values):
    """Mean, and its standard error sqrt(var / n) with Bessel's correction; nan where undefined."""
    n = len(values)
    if n == 0:
        return math.nan, math.nan
    mean = sum(values) / n
    if n == 1:
        return mean, math.nan
    squares = sum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - 1) / n)


def builtin_rate(module, player, tasks, horizon, seed=0):
    """-> (success rate, standard error): exact where the environment can be solved, else played;
    NaN where it has no such player. A task that the engine refuses (RuntimeError) is left out."""
    if hasattr(module, "exact_success"):
        rates = [module.exact_success(task, player, horizon) for task in tasks]
        return sum(rates) / len(rates), 0.0
    if lacks_player(module, player):
        return math.nan, math.nan
    successes = []
    for task in tasks:
        with suppress(RuntimeError):
            successes.append(play_builtin(module, player, task, horizon, seed)["success"])
    return mean_and_error(successes)


def player_rate(player, worlds):
    """`builtin_rate` on tasks of several environments, [(module, task ids, most turns)] ->
    {"success", "stderr", "n"}; NaN if one of them has no such player."""
    n = sum(len(tasks) for _, tasks, _ in worlds)
    success = 0
    errors = []
    for module, tasks, most_turns in worlds:
        share = len(tasks) / n
        rate, error = builtin_rate(module, player, tasks, most_turns)
        success += share * rate
        errors.append(share * error)
    return dict(success=success, stderr=math.hypot(*errors), n=n)
