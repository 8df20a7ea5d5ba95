"""From one episode to many: trajectories, `play`, `collect`, tensors.

    task_id --reset--> observation --chat tokens--> add_observation --+
                                                                      v
    done <-- observation, reward <--step-- action <-- text <-- add_action(sampled ids, logprobs)

`play` is the reference, simple and slow: one episode, and (`speak`) a forward pass over the whole
context for every token. `collect` plays many at once on pages and must give the very same tokens.
`to_batch` makes tensors of B trajectories, T tokens (padded) and N turns.
"""
import gc
import itertools
import math
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from attention import PAGE_SIZES, kv_shape, upload
from client import EnvClient, EnvError, ServersGone
from engine import Engine, Sequence, sample
from episode import Episode
from parallel import gathered, gathered_weights, progress, rank, world_size

# ---- playing ------------------------------------------------------------------------------------


@dataclass
class Stats:
    """What `collect` counted besides the trajectories; + joins those of several calls or ranks."""
    dropped: int = 0                # groups left out because their environment kept failing
    failures: list[str] = field(default_factory=list)     # text: an error would hold the engine
    seconds: Counter = field(default_factory=Counter)     # environment, prefill, decode, sampling
    tokens: Counter = field(default_factory=Counter)      # as the engine counts them
    pages: int = 0                  # most in use at a time
    preempted: int = 0              # how often a sequence lost its pages to another
    gone: str = ""                  # why no server is left, which ends the run

    def __add__(self, other):
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Stats(**sums | {"pages": max(self.pages, other.pages)})

    @contextmanager
    def clock(self, phase):
        """Add the seconds spent inside to seconds[phase]."""
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began


def collect(policy, tasks, group_size, horizon, key=(0,), places=None, temperature=1.0,
            engine=None, max_concurrent=math.inf, retries=2, finished=None):
    """Many episodes at once on paged KV memory -> (trajectories, Stats).

    tasks: [(World, task id)]; each is played by group_size members, adjacent in the result. A group
    with a member whose environment failed `retries` + 1 times is left out whole: it is no reward of
    0. An episode's key is (*key, place, member). places[i] is the place of tasks[i] in the whole
    step (i by default), so that a rank draws the numbers that one process would. temperature: of
    the sampler; 0 takes the most likely token.
    finished(the group's Episodes) is called as soon as a group is played. ServersGone when no
    server has answered for the client's patience."""
    if not tasks:
        return [], Stats()
    rows = min(len(tasks) * group_size, max_concurrent)
    engine = engine or make_engine(policy, tasks[0][0].agent, rows)
    slots = Slots(tasks, group_size, horizon, key, places or range(len(tasks)), retries, finished)
    Scheduler(slots, engine, temperature).run()
    slots.stats.tokens = engine.tokens.copy()
    return slots.played()


def make_engine(policy, agent, rows, memory=None):
    """An engine with rows and pages for so many episodes at a time, within `memory` bytes of KV."""
    size = PAGE_SIZES[policy.kernel]
    page_bytes = 2 * math.prod(kv_shape(policy.config)) * size * policy.compute_dtype.itemsize
    if memory is None and policy.device.type == "cuda":
        gc.collect()                            # models that nobody holds are cycles
        torch.cuda.empty_cache()                # what the update held and no longer needs
        memory = 0.8 * torch.cuda.mem_get_info(policy.device)[0]
    each = -(-agent.max_context // size)
    pages = max(each, min(rows * each, int((memory or 2**30) / page_bytes)))
    return Engine(policy.eval(), rows, pages, size, width=each)    # eval: nothing is recomputed


# ---- many episodes in one loop ------------------------------------------------------------------

State = Literal["waiting",      # not started: as many as the engine has rows are being played
                "asking",       # its request to the environment is still to be sent
                "in flight",    # the request has been sent
                "ready",        # its context has tokens to be prefilled
                "decoding",     # its reply is being sampled
                "done"]         # played to the end, or given up with its group


@dataclass(eq=False)            # compared by identity, so that it can be the key of a dict
class Slot:
    """An episode while `collect` plays it."""
    episode: Episode
    group: int
    client: EnvClient
    state: State = "waiting"
    session: object = None      # the environment's id for the episode
    sequence: Sequence = None   # its row and pages in the engine; it may have lost the pages
    failures: int = 0           # of its environment or its server


class Slots(dict):
    """state -> its slots, in the order in which they came to it (dicts serve as ordered sets);
    beside them what the episodes share, whoever plays them. Arguments: as `collect` has them."""

    def __init__(self, tasks, group_size, horizon, key, places, retries=2, finished=None):
        self.everyone = [Slot(Episode(world.agent, task_id, (*key, places[group], member),
                                      min(horizon, world.most_turns)), group, world.client)
                         for group, (world, task_id) in enumerate(tasks)
                         for member in range(group_size)]
        super().__init__({state: {} for state in get_args(State)},
                         waiting=dict.fromkeys(self.everyone))
        self.idle = {slot.client: [] for slot in self.everyone}     # sessions to be used again
        self.lost = set()           # groups with a member whose environment kept failing
        self.retries, self.finished, self.stats = retries, finished, Stats()
        self.bar = progress(None, "episodes", total=len(self.everyone))

    def move(self, slot, state):
        del self[slot.state][slot]
        slot.state = state
        self[state][slot] = None

    @property
    def playing(self):
        """How many have started and are not done."""
        return len(self.everyone) - len(self["waiting"]) - len(self["done"])

    def start(self, most):
        """Let slots that wait begin until `most` are playing."""
        for slot in list(self["waiting"])[:most - self.playing]:
            idle = self.idle[slot.client]
            slot.session = idle.pop() if idle else None
            self.move(slot, "asking")

    def fail(self, slot, error):
        """The environment failed, after the client's own attempts: the episode waits to be played
        anew; after `retries` failures (100, if its server went away) its group is given up."""
        self.stats.failures.append(str(error))
        old, slot.session = slot.episode, None
        slot.episode = Episode(old.agent, old.trajectory.task_id, old.trajectory.key, old.horizon)
        self.move(slot, "waiting")
        slot.failures += 1
        if slot.failures > (100 if error.away else self.retries):
            self.lost.add(slot.group)
        for other in [s for s in self["waiting"] if s.group in self.lost]:
            self.finish(other)

    def finish(self, slot):
        """The slot's episode is over or its group lost; `finished` is told of a whole group."""
        if slot.session:
            self.idle[slot.client].append(slot.session)
        self.move(slot, "done")
        self.bar.update()
        if self.finished and slot.group not in self.lost:
            group = [s for s in self.everyone if s.group == slot.group]
            if {s.state for s in group} == {"done"}:
                self.finished([s.episode for s in group])

    def close(self):
        for client in self.idle:
            client.close()
        self.bar.close()

    def played(self):
        """-> (trajectories of all groups but the lost ones, Stats)."""
        self.stats.dropped = len(self.lost)
        kept = [s.episode.trajectory for s in self.everyone if s.group not in self.lost]
        return kept, self.stats


class Scheduler:
    """The event loop: send requests, receive observations, prefill, decode one token; repeat.
    Here is the environments' side: who asks, and what an answer leads to."""

    def __init__(self, slots, engine, temperature):
        self.slots, self.engine = slots, engine
        self.sampler = Sampler(engine, slots, temperature)
        self.sent = {}              # future of the answers -> the slots that they are for
        # A PARALLEL world's steps may take long, so its slots do not wait for each other.
        self.lockstep = not any(getattr(slot.episode.agent.module, "PARALLEL", False)
                                for slot in slots.everyone)

    def run(self):
        with closing(self.slots), ThreadPoolExecutor(32) as pool:
            while self.slots["waiting"] or self.slots.playing:
                self.slots.start(self.engine.rows)
                self.send(pool)
                self.receive()
                self.sampler.prefill()
                self.sampler.decode()

    def send(self, pool):
        """In lockstep a client gets all its requests in one call, when an eighth of the playing
        slots ask or nobody decodes. Otherwise each request is a call of its own, at once."""
        asking = list(self.slots["asking"])
        few = len(asking) < self.slots.playing // 8 and self.slots["decoding"]
        if self.lockstep and few:
            return
        parcels = defaultdict(list)
        for slot in asking:
            parcels[slot.client if self.lockstep else slot].append(slot)
            self.slots.move(slot, "in flight")
        for parcel in parcels.values():
            requests = [(slot.session, slot.episode.request) for slot in parcel]
            self.sent[pool.submit(parcel[0].client.answer, requests)] = parcel

    def receive(self):
        """Take the answers that are there, in the order of the requests. In lockstep all are waited
        for, so that a run is the same to the bit; else one, if there is nothing else to do."""
        enough = ALL_COMPLETED if self.lockstep else FIRST_COMPLETED
        busy = not self.lockstep and (self.slots["decoding"] or self.sampler.readable())
        with self.slots.stats.clock("environment"):
            came, _ = wait(self.sent, timeout=0 if busy else None, return_when=enough)
        answers = {}
        for future in came:
            answers.update(zip(self.sent.pop(future), future.result(), strict=True))
        for slot in list(self.slots["in flight"]):
            if slot in answers:
                self.take(slot, answers[slot])

    def take(self, slot, answer):
        """Give a slot its answer: an Answer for its episode, or an EnvError: it is played anew. Who
        does not play on gives pages and row back."""
        if isinstance(answer, EnvError):
            self.slots.fail(slot, answer)
        else:
            slot.session, trajectory = answer.session, slot.episode.trajectory
            contexts, before = len(trajectory.contexts), slot.episode.seen if slot.sequence else []
            slot.episode.observe(answer.observation, answer.reward, answer.done, answer.info)
            if slot.sequence and len(trajectory.contexts) > contexts:
                # pages of what begins both are kept; the last token is read anew, for its logits
                same = os.path.commonprefix([before, slot.episode.seen[:-1]])
                if len(same) < slot.sequence.length:
                    self.engine.forget(slot.sequence, keep=len(same))
            if slot.group in self.slots.lost or slot.episode.over:
                self.slots.finish(slot)
            else:
                self.slots.move(slot, "ready")
        if slot.sequence and slot.state != "ready":
            self.engine.release(slot.sequence)
            slot.sequence = None


class Sampler:
    """The policy's side: contexts are prefilled, replies decoded, pages given and taken."""

    def __init__(self, engine, slots, temperature):
        self.engine, self.slots, self.stats = engine, slots, slots.stats
        self.temperature = temperature

    def readable(self):
        """Slots to prefill now. A first prompt waits for the group's other members, to be read
        once; while others decode, all wait until an eighth of the playing slots are ready."""
        awaited = {slot.group for state in ("asking", "in flight") for slot in self.slots[state]
                   if not slot.episode.trajectory.contexts}
        ready = [s for s in self.slots["ready"] if s.sequence or s.group not in awaited]
        few = len(ready) < self.slots.playing // 8
        return [] if few and self.slots["decoding"] else ready

    def prefill(self):
        """Read what the readable slots have not read, equal first prompts once, and sample."""
        if not (admitted := self.admit(self.readable())):
            return
        first = {}                         # a new prompt -> the slot that reads it
        for slot in admitted:
            if not slot.sequence and first.setdefault(tuple(slot.episode.seen), slot) is slot:
                slot.sequence = self.engine.start()
        readers = [slot for slot in admitted if slot.sequence]
        with self.stats.clock("prefill"):
            logits = self.engine.prefill([s.sequence for s in readers],
                                         [s.episode.seen[s.sequence.length:] for s in readers])
        row = {slot: i for i, slot in enumerate(readers)}      # slot -> its row of the logits
        for slot in admitted:
            if not slot.sequence:
                reader = first[tuple(slot.episode.seen)]
                slot.sequence, row[slot] = self.engine.fork(reader.sequence), row[reader]
        for slot in row:
            self.slots.move(slot, "decoding")
        self.draw(list(row), logits[list(row.values())])

    def decode(self):
        """Read the last token of each slot that decodes, and sample the next one."""
        while slots := list(self.slots["decoding"]):
            sequences = [slot.sequence for slot in slots]
            if self.engine.pages_short(sequences) <= 0:
                with self.stats.clock("decode"):
                    last = torch.tensor([slot.episode.token_ids[-1] for slot in slots])
                    logits = self.engine.decode(sequences, last)
                return self.draw(slots, logits)
            self.preempt(spare=slots[0])            # the first of them always goes on

    def draw(self, slots, logits):
        """Sample a token for each slot; a reply that has ended becomes a request."""
        self.stats.pages = max(self.stats.pages, self.engine.pages.in_use)
        with self.stats.clock("sampling"):
            uniforms = torch.tensor([s.episode.uniforms[len(s.episode.token_ids)] for s in slots])
            drawn = sample(logits, upload(uniforms, logits.device), self.temperature)
            drawn = torch.stack([x.double() for x in drawn]).tolist()       # waits for a GPU once
            for slot, token, logprob in zip(slots, *drawn):
                slot.episode.sampled(int(token), logprob)
                if slot.episode.request:
                    self.slots.move(slot, "asking")

    def admit(self, ready):
        """The first of `ready` that fit into free pages; one page is left for each that decodes.
        If none fits and nobody decodes, slots that wait elsewhere give theirs back."""
        def missing(slot):                      # pages for what it has in view and a token more
            size, cached = self.engine.pages.page_size, slot.sequence.length if slot.sequence else 0
            return -(-(len(slot.episode.seen) + 1) // size) - -(-cached // size)

        free, decoding = self.engine.pages.free, len(self.slots["decoding"])
        while ready and not decoding and missing(ready[0]) > len(free):
            self.preempt(spare=ready[0])
        needed = itertools.accumulate(map(missing, ready))
        return [slot for slot, pages in zip(ready, needed) if pages <= len(free) - decoding]

    def preempt(self, spare):
        """Take the pages of the last slot that has any, except `spare`; it is read again later."""
        slot = next(s for s in reversed(self.slots.everyone)
                    if s.sequence and s.sequence.length and s is not spare)
        if slot.state == "decoding":
            self.slots.move(slot, "ready")
        self.engine.forget(slot.sequence)
        self.stats.preempted += 1


# ---- from episodes to tensors -------------------------------------------------------------------


def play_tasks(policy, tasks, group_size, horizon, key, temperature, max_concurrent):
    """Each task [(World, id)] `group_size` times, dealt over the ranks -> (trajectories, Stats) of
    all ranks.

    Groups come in the order of `tasks`; one whose environment failed is left out and counted. key:
    the ints from which all random numbers of these episodes follow. On every rank alike: EnvError
    if none was played or one rank's servers are gone, ValueError if no prompt fits.
    """
    places = range(rank(), len(tasks), world_size())
    with gathered_weights(policy):
        try:
            mine = collect(policy, [tasks[place] for place in places], group_size, horizon, key,
                           places, temperature, max_concurrent=max_concurrent)
        except ServersGone as error:        # the other ranks wait for this one's share
            mine = [], Stats(dropped=len(places), failures=[str(error)], gone=str(error))
    parts = gathered(mine)
    played = sorted((t for part, _ in parts for t in part), key=lambda t: t.key)
    stats = sum((counted for _, counted in parts), Stats())
    if stats.gone:
        raise ServersGone(stats.gone)
    if not played:
        raise EnvError(stats.failures[-1])
    if not any(t.turns for t in played):
        agent = tasks[0][0].agent
        raise ValueError(f"no prompt fits: the shortest has {min(len(t.token_ids) for t in played)}"
                         f" tokens, with a reply of {agent.max_turn_tokens} more than max_context="
                         f"{agent.max_context}; give a larger --max-context")
    return played, stats
