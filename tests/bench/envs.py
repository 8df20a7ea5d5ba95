"""python -m tests.bench.envs: how fast the environments answer, in process and over HTTP.

    python -m tests.bench.envs                        every environment; a few minutes
    python -m tests.bench.envs babyai textcraft --quick

A random player's actions on tasks of TEST are recorded first (an id decides its episode), so that
the timed parts only replay them and no time of choosing an action is counted.

    reset, step           medians in process, ms
    in process            steps/s of one thread without HTTP
    1 client              steps/s over HTTP, a request each step, the connection kept alive
    batched, 2 workers    steps/s over HTTP, up to 64 episodes (sciworld: 16) side by side, one
                          request a turn to each server process
    start, MB             seconds until a server answers; its memory and that of the processes it
                          starts, with those episodes played and not closed

Steps/s are counted over steps alone: episodes are reset before the clock starts, the player's turns
that follow are cut where the episode is done. The original servers' steps/s (one client, two cores)
were measured on a machine of the same kind; targets of "batched": babyai 5 times theirs, textcraft
8, sciworld 10, searchqa 200, webarena 500 steps/s, others 1,000; start in 2 s, 16 sciworld games in
under 1 GB.
"""
import argparse
import os
import random
import before_torch  # noqa: F401  its name says why
import statistics
import time
from pathlib import Path

from client import EnvClient, EnvError, Reset, Step
from curriculum import choose_tasks
from env_server import local_server
from envs import known_envs, load_env
from tests.players import children

ORIGINAL = dict(babyai=158, textcraft=434, sciworld=12, maze=575, wordle=456)     # steps/s
TARGET = dict(babyai=5 * 158, textcraft=8 * 434, sciworld=10 * 12, searchqa=200, webarena=500)
SESSIONS = dict(sciworld=16)                                                      # else 64


def record(module, tasks, turns):
    """-> [(task, actions)], and the seconds of each reset and step."""
    episodes, seconds = [], ([], [])

    def timed(which, call, *argument):
        began = time.perf_counter()
        answer = call(*argument)
        seconds[which].append(time.perf_counter() - began)
        return answer
    for task in tasks:
        env = module.Env()
        timed(0, env.reset, task)
        rng, actions, done = random.Random(task), [], False
        while not done and len(actions) < turns:
            actions.append(env.random_action(rng))
            *_, done, _ = timed(1, env.step, actions[-1])
        env.close()
        episodes.append((task, actions))
    return episodes, *seconds


def answered(client, items):
    replies = client.answer(items)
    for reply in replies:
        if isinstance(reply, EnvError):
            raise reply
    return replies


def open_sessions(client, episodes):
    """-> [(session, actions)], reset and ready."""
    replies = answered(client, [(None, Reset(task)) for task, _ in episodes])
    return [(reply.session, actions) for reply, (_, actions) in zip(replies, episodes)]


def one_by_one(client, opened):
    """One client's steps, a request each."""
    for session, actions in opened:
        for action in actions:
            answered(client, [(session, Step(action))])


def together(client, opened):
    """All episodes side by side: one request a turn."""
    for turn in range(max(len(actions) for _, actions in opened)):
        answered(client, [(session, Step(actions[turn])) for session, actions in opened
                          if turn < len(actions)])


def steps_per_second(client, episodes, way):
    opened = open_sessions(client, episodes)
    began = time.perf_counter()
    way(client, opened)
    seconds = time.perf_counter() - began
    client.close()
    return sum(len(actions) for _, actions in opened) / seconds


def bench(name, quick, rounds):
    module = load_env(name)
    tasks = choose_tasks(module, "test", 16 if quick else SESSIONS.get(name, 64))
    try:
        episodes, reset, step = record(module, tasks, min(module.HORIZON, 20))
    except RuntimeError as reason:                            # its engine is not installed
        print(f"{name:16} {reason}")
        return
    while len(episodes) < 16:                                 # few tasks: wordle, bandit
        episodes += episodes
    ms = [1000 * statistics.median(seconds) for seconds in (reset, step)]
    began = time.perf_counter()
    with local_server(name) as one:
        start = time.perf_counter() - began
        single, batched = EnvClient(one, name), EnvClient(one, name)
        together(batched, open_sessions(batched, episodes))         # warm, too
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1])     # resident (Linux)
                    for pid in children(os.getpid()))
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        batched.close()
        with local_server(name) as other:
            spread = EnvClient(f"{one},{other}", name)
            ways = [lambda: steps_per_second(single, episodes[:16], one_by_one),
                    lambda: steps_per_second(batched, episodes, together),
                    lambda: steps_per_second(spread, episodes, together)]
            seen = [[way() for way in ways] for _ in range(rounds)]
    rates = [len(step) / sum(step), *(statistics.median(column) for column in zip(*seen))]
    target, theirs = TARGET.get(name, 1000), ORIGINAL.get(name, "-")
    print(f"{name:16}" + "".join(f"{x:9.2f}" for x in ms) + "".join(f"{x:11.0f}" for x in rates)
          + f"{start:8.1f}{megabytes:6.0f}{target:8}{theirs:>9}"
          + " below" * (rates[2] < target), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=known_envs())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="16 episodes, one round")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':16}{'reset':>9}{'step ms':>9}{'in process':>11}{'1 client':>11}{'batched':>11}"
          f"{'2 workers':>11}{'start s':>8}{'MB':>6}{'target':>8}{'original':>9}")
    for name in args.names:
        bench(name, args.quick, 1 if args.quick else args.rounds)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
