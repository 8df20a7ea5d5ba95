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
import time
from functools import partial
from string import ascii_lowercase
from types import SimpleNamespace
from unittest import mock

import before_torch  # noqa: F401  its name says why
import numpy as np

from chat import Agent, make_tokenizer
from episode import Episode
from rollout import Scheduler
from tests.bench.engine import (
    SHAPES,
    bench_decode,
    generate,
    main,
    make_models,
    medians,
    race,
    ratio,
)
from tests.fakes import LocalClient, collect

GROUP = 8       # episodes of a task


class Words:
    """An environment: a prompt of a length from `prompt` (least, most), which a group shares, then
    `observation` random words a turn, without end."""

    def __init__(self, words, prompt, observation):
        self.words, self.prompt, self.observation = words, prompt, observation

    def reset(self, task_id, stream):
        self.rng, rng = np.random.default_rng(stream), np.random.default_rng(task_id)
        return self.text(rng, rng.integers(self.prompt[0], self.prompt[1] + 1))

    def step(self, action):
        reward = float(self.rng.random() < 0.5)
        return self.text(self.rng, self.observation), reward, False, {}

    def text(self, rng, length):
        return "".join(self.words[i] for i in rng.integers(len(self.words), size=length))

    def close(self):
        pass


def make_agent(shape, prompt, observation, action, horizon):
    """-> (an agent whose replies all have `action` tokens, its environment's client). prompt: the
    (least, most) tokens of it. The template adds three to each text of the environment and one to
    each reply."""
    least, most = prompt
    vocabulary = SHAPES[shape][-1]
    words = [" " + a + b for a in ascii_lowercase for b in ascii_lowercase]     # a token each,
    words = words[:vocabulary - 3 - 256]                        # beside three marks and 256 bytes
    agent = Agent(make_tokenizer(["".join(words)], vocabulary), max_turn_tokens=action,
                  max_context=most + horizon * (observation + action) + 64,
                  module=SimpleNamespace(NAME="words"))
    agent.chat.stop_ids = set()
    assert len(agent.chat.between_replies("".join(words))) == len(words) + 3
    return agent, LocalClient(partial(Words, words, (least - 3, most - 3), observation - 4))


def plain(theirs, agent, client, tasks, group_size, horizon, seed):
    """Turn by turn, `generate` reads each whole history anew -> trajectories (no logprobs)."""
    live = episodes = [Episode(agent, task, (*seed, task, member), horizon)
                       for task in tasks for member in range(group_size)]
    sessions = {}
    while live:
        requests = [(sessions.get(id(e)), e.request) for e in live]
        for episode, answer in zip(live, client.answer(requests)):
            sessions[id(episode)] = answer.session
            episode.observe(answer.observation, answer.reward, answer.done, answer.info)
        live = [e for e in live if e.state != "over"]
        contexts = [e.trajectory.context for e in live]
        replies = live and generate(theirs, contexts, agent.max_turn_tokens).tolist()
        for episode, ids in zip(live, replies):
            episode.reply(ids, [0.0] * len(ids))
    client.close()
    return [episode.trajectory for episode in episodes]


def forgetting(*arguments, **more):
    """`collect`, made to drop a sequence's pages at the end of its turn."""
    plain_draw = Scheduler.draw

    def draw(scheduler, slots, logits):
        plain_draw(scheduler, slots, logits)
        for slot in slots:
            if slot in scheduler.asking:
                scheduler.engine.forget(slot.sequence)
    with mock.patch.object(Scheduler, "draw", draw):
        return collect(*arguments, **more)


def timed(way, *arguments):
    """Seconds, and if it is one of our engines where they went."""
    began = time.perf_counter()
    played = way(*arguments)
    seconds = time.perf_counter() - began
    trajectories, stats = played if isinstance(played, tuple) else (played, None)
    figures = dict(seconds=seconds, actions=sum(sum(t.response_mask) for t in trajectories))
    return figures | (stats.seconds if stats else {})


def bench_turns(shape, args, least, most):
    (ours, theirs), (B, horizon) = make_models(shape), (8, 3) if args.quick else (64, 10)
    agent, client = make_agent(shape, (least, most), 24, 16, horizon)

    def play(way, policy, number):
        tasks = range(number * B // GROUP, (number + 1) * B // GROUP)
        return timed(way, policy, agent, client, tasks, GROUP, horizon, (number,))
    seen = race(args.rounds, {
        "ours": lambda n: play(collect, ours, n),
        "generate": lambda n: play(plain, theirs, n),
        "ours, forgetting": lambda n: play(forgetting, ours, n)})
    mine = medians(seen["ours"])
    print(f"turns {shape} prompt {least} to {most}, 24 + 16 x {horizon}: "
          f"{mine['seconds']:.2f} s, {B / mine['seconds']:.1f} trajectories/s, "
          f"{mine['actions'] / mine['seconds']:.0f} action tok/s; of it "
          + ", ".join(f"{name} {mine[name] / mine['seconds']:.0%}"
                      for name in ("prefill", "decode", "sampling", "environment")))
    for name, target in {"generate": 6, "ours, forgetting": 3.5}.items():
        print(f"    {ratio(seen, name):.2f} x {name} ({medians(seen[name])['seconds']:.2f} s; "
              f"target {target})", flush=True)


if __name__ == "__main__":
    main(__doc__, dict(decode=(bench_decode, [(64, 1.4), (256, 2.0)]),
                       turns=(bench_turns, [(100, 400), (100, 100), (400, 400)])))
