"""python -m tests.bench.rollout: `collect` against other ways to play the same episodes.

    python -m tests.bench.rollout                           shapes S and M; about 10 minutes
    python -m tests.bench.rollout --quick --parts turns --shapes S

part      against                                                   target: ours faster by
decode    transformers' generate, left-padded, 64 new tokens        1.4 (batch 64), 2 (batch 256)
turns     generate, the whole history read anew each turn           6
          our own engine made to forget after each turn             3.5

Random weights, the same for all, and actions of a fixed length. A round runs every way once, one
after the other, so that a busy machine slows all alike: a ratio is the median of the rounds'
ratios, other figures are medians over the rounds.
"""
import argparse
import os
import time
from collections import Counter
from string import ascii_lowercase
from types import SimpleNamespace
from unittest import mock

from engine import Engine  # noqa: F401  before torch: see there
import numpy as np
import torch

from client import EnvError, Reply
from chat import Agent, make_tokenizer
from rollout import Episode, Sampler, World, collect
from tests.bench.engine import (SHAPES, bench_decode, generate, make_models, medians, race,
                                ratio)

GROUP = 8       # episodes of a task

# ---- many turns ---------------------------------------------------------------------------------

class Words:
    """An environment's client without a server: a prompt of a length from `prompt` (least, most),
    then `observation` random words a turn, without end."""

    def __init__(self, words, prompt, observation):
        self.words, self.prompt, self.observation = words, prompt, observation
        self.turns = Counter()

    def answer(self, items):
        return [self.one(*item) for item in items]

    def one(self, session, kind, argument):
        task, stream = argument if kind == "reset" else (None, session[1])
        self.turns[stream] = 0 if kind == "reset" else self.turns[stream] + 1
        rng = np.random.default_rng([stream, self.turns[stream]])
        reward, n = float(rng.random() < 0.5), self.observation
        if kind == "reset":                                         # a group shares its prompt
            rng = np.random.default_rng(task)
            n = rng.integers(self.prompt[0], self.prompt[1] + 1)
        text = "".join(self.words[i] for i in rng.integers(len(self.words), size=n))
        return Reply((0, stream), text, reward, False, {})

    def close(self):
        pass


def make_agent(shape, prompt, observation, action, horizon):
    """-> (an agent whose replies all have `action` tokens, its environment's client). prompt: its
    tokens, or (least, most). The template adds three to each text of the environment and one to
    each reply."""
    least, most = (prompt, prompt) if isinstance(prompt, int) else prompt
    vocabulary = SHAPES[shape][-1]
    words = [" " + a + b for a in ascii_lowercase for b in ascii_lowercase]     # a token each,
    words = words[:vocabulary - 3 - 256]                        # beside three marks and 256 bytes
    agent = Agent(make_tokenizer(["".join(words)], vocabulary), max_turn_tokens=action,
                  max_context=most + horizon * (observation + action) + 64,
                  module=SimpleNamespace(NAME="words"))
    agent.chat.stop_ids = set()
    assert len(agent.chat.between_replies("".join(words))) == len(words) + 3
    return agent, Words(words, (least - 3, most - 3), observation - 4)


def plain(theirs, agent, client, tasks, group_size, horizon, seed):
    """Turn by turn, `generate` reads each whole history anew -> trajectories (no logprobs)."""
    live = episodes = [Episode(agent, task, (*seed, task, member), horizon)
                       for task in tasks for member in range(group_size)]
    sessions = {}
    while live:
        requests = [(sessions.get(id(e)), *e.request) for e in live]
        for episode, answer in zip(live, client.answer(requests)):
            if isinstance(answer, EnvError):
                raise answer
            sessions[id(episode)] = answer.session
            episode.observe(answer.observation, answer.reward, answer.done, answer.info)
        live = [e for e in live if not e.over]
        replies = live and generate(theirs, [e.trajectory.context for e in live],
                                    agent.max_turn_tokens, agent.chat.stop_ids).tolist()
        for episode, ids in zip(live, replies):
            end = next((n + 1 for n, t in enumerate(ids) if t in agent.chat.stop_ids), len(ids))
            episode.reply(ids[:end], [0.0] * end)
    client.close()
    return [episode.trajectory for episode in episodes]


def ours_on(policy, agent, client, tasks, *arguments, **more):
    """`collect` in a world of this client and agent."""
    world = World(client, agent)
    return collect(policy, [(world, task) for task in tasks], *arguments, **more)


def forgetting(*arguments, **more):
    """`ours_on`, made to drop a sequence's pages at the end of its turn."""
    plain_draw = Sampler.draw

    def draw(sampler, slots, logits):
        plain_draw(sampler, slots, logits)
        for slot in slots:
            if slot.state == "asking":
                sampler.engine.forget(slot.sequence)
    with mock.patch.object(Sampler, "draw", draw):
        return ours_on(*arguments, **more)


def timed(way, *arguments):
    """Seconds, and if it is one of our engines where they went."""
    began = time.perf_counter()
    played = way(*arguments)
    seconds = time.perf_counter() - began
    trajectories, stats = played if isinstance(played, tuple) else (played, None)
    figures = dict(seconds=seconds, actions=sum(sum(t.response_mask) for t in trajectories))
    return figures | (stats.seconds if stats else {})


def show_turns(title, seen, B, targets):
    mine = medians(seen["ours"])
    print(f"{title}: {mine['seconds']:.2f} s, {B / mine['seconds']:.1f} trajectories/s, "
          f"{mine['actions'] / mine['seconds']:.0f} action tok/s; of it "
          + ", ".join(f"{name} {mine[name] / mine['seconds']:.0%}"
                      for name in ("prefill", "decode", "sampling", "environment")))
    for name, target in targets.items():
        print(f"    {ratio(seen, name):.2f} x {name} ({medians(seen[name])['seconds']:.2f} s; "
              f"target {target})", flush=True)


def bench_turns(shape, args, prompt, observation, action):
    ours, theirs = make_models(shape)
    B, horizon = (8, 3) if args.quick else (64, 10)
    agent, client = make_agent(shape, prompt, observation, action, horizon)

    def play(way, policy, number):
        tasks = range(number * B // GROUP, (number + 1) * B // GROUP)
        return timed(way, policy, agent, client, tasks, GROUP, horizon, (number,))
    seen = race(args.rounds, {
        "ours": lambda n: play(ours_on, ours, n),
        "generate": lambda n: play(plain, theirs, n),
        "ours, forgetting": lambda n: play(forgetting, ours, n)})
    show_turns(f"turns {shape} prompt {prompt}, {observation} + {action} x "
               f"{horizon}", seen, B, {"generate": 6, "ours, forgetting": 3.5})


def main():
    parts = ("decode", "turns")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=("S", "M"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes; the ratios say little")
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {args.rounds} rounds")
    for shape in args.shapes:
        for part in args.parts:
            if part == "decode":
                for B, target in ((16, 1.4),) if args.quick else ((64, 1.4), (256, 2.0)):
                    bench_decode(shape, args, B, target)
            else:
                sizes = ((100, 400), 24, 16), (100, 24, 16), (400, 24, 16)
                for size in sizes[:1 if args.quick else 3]:
                    bench_turns(shape, args, *size)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
