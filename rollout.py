"""Many episodes at once: `collect` plays them on paged KV memory, `play_tasks` on all ranks.

    waiting -> asking -> in flight -> ready -> decoding -> asking -> ... -> done
            start     send         receive  prefill     draw

`collect` must sample the very tokens that `episode.play` does. `Slots` holds the episodes by what
each waits for. `Scheduler` is the environments' side: it sends requests and takes the answers.
`Sampler` is the policy's: it prefills contexts and decodes a token of all replies at a time.
"""
import gc
import math
import time
from collections import Counter, defaultdict
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field

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
        sums["pages"] = max(self.pages, other.pages)
        return Stats(**sums)


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
    slots.stats.dropped = len(slots.lost)
    kept = [slot for slot in slots.everyone if slot.group not in slots.lost]
    return [slot.episode.trajectory for slot in kept], slots.stats


def make_engine(policy, agent, rows, memory=None):
    """An engine with rows and pages for so many episodes at a time, within `memory` bytes of KV."""
    page_size = PAGE_SIZES[policy.kernel]
    page_bytes = 2 * math.prod(kv_shape(policy.config)) * page_size * policy.compute_dtype.itemsize
    if memory is None:
        memory = 2**30
        if policy.device.type == "cuda":
            # Models that nobody holds are cycles; torch keeps what the update no longer needs.
            gc.collect()
            torch.cuda.empty_cache()
            memory = 0.8 * torch.cuda.mem_get_info(policy.device)[0]
    # At least one episode must fit; more pages than all rows can use are of no use.
    width = math.ceil(agent.max_context / page_size)
    pages = max(width, min(rows * width, int(memory / page_bytes)))
    # A policy in eval mode recomputes nothing.
    return Engine(policy.eval(), rows, pages, page_size, width=width)


# ---- the episodes -------------------------------------------------------------------------------


@dataclass(eq=False)            # compared by identity, so that it can be the key of a dict
class Slot:
    """An episode while `collect` plays it."""
    episode: Episode
    group: int
    client: EnvClient
    session: object = None      # the environment's id for the episode
    sequence: Sequence = None   # its row and pages in the engine; it may have lost the pages
    failures: int = 0           # of its environment or its server


class Slots:
    """The episodes of one `collect`, and what they share, whoever plays them.

    Each stands in one of six sets, in the order in which it came there; a dict without values
    serves as an ordered set. Arguments: as `collect` has them."""

    def __init__(self, tasks, group_size, horizon, key, places, retries=2, finished=None):
        self.everyone = []
        for group, (world, task_id) in enumerate(tasks):
            turns = min(horizon, world.most_turns)
            for member in range(group_size):
                episode = Episode(world.agent, task_id, (*key, places[group], member), turns)
                self.everyone.append(Slot(episode, group, world.client))

        self.waiting = dict.fromkeys(self.everyone)     # not started
        self.asking = {}            # their requests to the environment are still to be sent
        self.in_flight = {}         # their requests have been sent
        self.ready = {}             # their contexts have tokens to be prefilled
        self.decoding = {}          # their replies are being sampled
        self.done = {}              # played to the end, or given up with their group

        self.idle = {slot.client: [] for slot in self.everyone}     # sessions to be used again
        self.lost = set()           # groups with a member whose environment kept failing
        self.retries = retries
        self.finished = finished
        self.stats = Stats()
        self.bar = progress(None, "episodes", total=len(self.everyone))

    @property
    def playing(self):
        """How many have started and are not done."""
        return len(self.everyone) - len(self.waiting) - len(self.done)

    def too_few(self, slots):
        """Is it better to decode on until more have come? An eighth of those that play is enough
        for a batch."""
        return self.decoding and len(slots) < self.playing // 8

    def start(self, most):
        """Let slots that wait begin until `most` are playing."""
        for slot in list(self.waiting)[:most - self.playing]:
            idle = self.idle[slot.client]
            if idle:
                slot.session = idle.pop()
            move(slot, self.waiting, self.asking)

    def fail(self, slot, error):
        """The environment failed, after the client's own attempts: the episode waits to be played
        anew; after `retries` failures (100, if its server went away) its group is given up."""
        self.stats.failures.append(str(error))
        failed = slot.episode
        slot.episode = Episode(failed.agent, failed.trajectory.task_id, failed.trajectory.key,
                               failed.horizon)
        slot.session = None
        move(slot, self.in_flight, self.waiting)

        slot.failures += 1
        most = 100 if error.away else self.retries
        if slot.failures > most:
            self.lost.add(slot.group)
        for other in list(self.waiting):
            if other.group in self.lost:
                self.finish(other, self.waiting)

    def finish(self, slot, source):
        """The slot's episode is over or its group lost; `finished` is told of a whole group.
        source: the set in which the slot stands."""
        if slot.session:
            self.idle[slot.client].append(slot.session)
        move(slot, source, self.done)
        self.bar.update()
        if self.finished and slot.group not in self.lost:
            group = [other for other in self.everyone if other.group == slot.group]
            if all(other in self.done for other in group):
                self.finished([other.episode for other in group])

    def close(self):
        """Close all sessions."""
        for client in self.idle:
            client.close()
        self.bar.close()


def move(slot, source, target):
    """From one set of Slots to another, where it comes last."""
    del source[slot]
    target[slot] = None


# ---- the environments' side ---------------------------------------------------------------------


class Scheduler:
    """The event loop: send requests, receive observations, prefill, decode one token; repeat."""

    def __init__(self, slots, engine, temperature):
        self.slots = slots
        self.engine = engine
        self.sampler = Sampler(engine, slots, temperature)
        self.sent = {}              # future of the answers -> the slots that they are for
        # A PARALLEL world's steps may take long, so its slots do not wait for each other.
        modules = [slot.episode.agent.module for slot in slots.everyone]
        self.lockstep = not any(getattr(module, "PARALLEL", False) for module in modules)

    def run(self):
        with closing(self.slots), ThreadPoolExecutor(32) as pool:
            while len(self.slots.done) < len(self.slots.everyone):
                self.slots.start(self.engine.rows)
                self.send(pool)
                self.receive()
                self.sampler.prefill()
                self.sampler.decode()

    def send(self, pool):
        """In lockstep a client gets all its requests in one call, when enough slots ask or nobody
        decodes. Otherwise each request is a call of its own, at once."""
        asking = list(self.slots.asking)
        if self.lockstep and self.slots.too_few(asking):
            return
        parcels = defaultdict(list)
        for slot in asking:
            receiver = slot.client if self.lockstep else slot
            parcels[receiver].append(slot)
            move(slot, self.slots.asking, self.slots.in_flight)
        for parcel in parcels.values():
            requests = [(slot.session, slot.episode.request) for slot in parcel]
            future = pool.submit(parcel[0].client.answer, requests)
            self.sent[future] = parcel

    def receive(self):
        """Take the answers that are there, in the order of the requests. In lockstep all are waited
        for, so that a run is the same to the bit; else one, if there is nothing else to do."""
        timeout = None
        enough = ALL_COMPLETED
        if not self.lockstep:
            enough = FIRST_COMPLETED
            if self.slots.decoding or self.sampler.readable():
                timeout = 0
        began = time.perf_counter()
        came, _ = wait(self.sent, timeout=timeout, return_when=enough)
        self.slots.stats.seconds["environment"] += time.perf_counter() - began

        answers = {}
        for future in came:
            answers.update(zip(self.sent.pop(future), future.result(), strict=True))
        for slot in list(self.slots.in_flight):
            if slot in answers:
                self.take(slot, answers[slot])

    def take(self, slot, answer):
        """Give a slot its answer: an Answer for its episode, or an EnvError: it is played anew. Who
        does not play on gives pages and row back."""
        if isinstance(answer, EnvError):
            self.slots.fail(slot, answer)
        else:
            slot.session = answer.session
            slot.episode.observe(answer.observation, answer.reward, answer.done, answer.info)
            if slot.episode.state == "over" or slot.group in self.slots.lost:
                self.slots.finish(slot, self.slots.in_flight)
            else:
                move(slot, self.slots.in_flight, self.slots.ready)
        if not slot.sequence:
            return
        if slot in self.slots.ready:
            # Pages that a new context has no use for are free at once, for the others.
            self.engine.keep_prefix(slot.sequence, slot.episode.seen)
        else:
            self.engine.release(slot.sequence)
            slot.sequence = None


# ---- the policy's side --------------------------------------------------------------------------


class Sampler:
    """Contexts are prefilled, replies decoded, pages given and taken."""

    def __init__(self, engine, slots, temperature):
        self.engine = engine
        self.slots = slots
        self.stats = slots.stats
        self.temperature = temperature

    def readable(self):
        """Slots to prefill now. A first prompt waits for the group's other members, to be read
        once; while others decode, all wait until enough are ready."""
        awaited = set()
        for slot in self.slots.asking | self.slots.in_flight:
            if not slot.episode.trajectory.contexts:
                awaited.add(slot.group)
        ready = [s for s in self.slots.ready if s.sequence or s.group not in awaited]
        if self.slots.too_few(ready):
            return []
        return ready

    def prefill(self):
        """Read what the readable slots have not read, equal first prompts once, and sample."""
        admitted = self.admit(self.readable())
        if not admitted:
            return

        # Members of a group begin with the same prompt: one of them reads it, the others fork
        # from that one.
        readers = []
        followers = []
        reader_of = {}          # a new prompt -> its reader's place in `readers`
        rows = []               # of the logits, of each follower
        for slot in admitted:
            if not slot.sequence:
                prompt = tuple(slot.episode.seen)
                if prompt in reader_of:
                    followers.append(slot)
                    rows.append(reader_of[prompt])
                    continue
                reader_of[prompt] = len(readers)
                slot.sequence = self.engine.start()
            readers.append(slot)

        began = time.perf_counter()
        sequences = [slot.sequence for slot in readers]
        logits = self.engine.prefill(sequences, [slot.episode.seen for slot in readers])
        self.stats.seconds["prefill"] += time.perf_counter() - began
        for slot, row in zip(followers, rows):
            slot.sequence = self.engine.fork(sequences[row])

        for slot in readers + followers:
            move(slot, self.slots.ready, self.slots.decoding)
        self.draw(readers + followers, logits[[*range(len(readers)), *rows]])

    def decode(self):
        """Read the last token of each slot that decodes, and sample the next one."""
        while self.slots.decoding:
            slots = list(self.slots.decoding)
            sequences = [slot.sequence for slot in slots]
            if self.engine.pages_short(sequences) > 0:
                self.preempt(spare=slots[0])        # the first of them always goes on
                continue
            began = time.perf_counter()
            last = [slot.episode.token_ids[-1] for slot in slots]
            logits = self.engine.decode(sequences, last)
            self.stats.seconds["decode"] += time.perf_counter() - began
            self.draw(slots, logits)
            return

    def draw(self, slots, logits):
        """Sample a token for each slot; a reply that has ended becomes a request."""
        self.stats.pages = max(self.stats.pages, self.engine.pages.in_use)
        began = time.perf_counter()
        episodes = [slot.episode for slot in slots]
        uniforms = torch.tensor([one.uniforms[len(one.token_ids)] for one in episodes])
        ids, logprobs = sample(logits, upload(uniforms, logits.device), self.temperature)
        # As one tensor, they wait for a GPU once.
        drawn = torch.stack([ids.double(), logprobs.double()]).tolist()
        for slot, token, logprob in zip(slots, *drawn):
            slot.episode.sampled(int(token), logprob)
            if slot.episode.state == "asking":
                move(slot, self.slots.decoding, self.slots.asking)
        self.stats.seconds["sampling"] += time.perf_counter() - began

    def admit(self, ready):
        """The first of `ready` that fit into free pages; one page is left for each that decodes.
        If none fits and nobody decodes, slots that wait elsewhere give theirs back."""
        decoding = len(self.slots.decoding)
        free = self.engine.pages.free
        while ready and not decoding and self.pages_missing(ready[0]) > len(free):
            self.preempt(spare=ready[0])
        admitted = []
        room = len(free) - decoding
        for slot in ready:
            room -= self.pages_missing(slot)
            if room >= 0:
                admitted.append(slot)
        return admitted

    def pages_missing(self, slot):
        """Pages for what the slot has in view and a token more, beyond those that it has."""
        page_size = self.engine.pages.page_size
        cached = slot.sequence.length if slot.sequence else 0
        wanted = len(slot.episode.seen) + 1
        return math.ceil(wanted / page_size) - math.ceil(cached / page_size)

    def preempt(self, spare):
        """Take the pages of the last slot that has any, except `spare`; it is read again later."""
        others = [slot for slot in self.slots.everyone if slot is not spare and slot.sequence]
        slot = [slot for slot in others if slot.sequence.length][-1]
        if slot in self.slots.decoding:
            move(slot, self.slots.decoding, self.slots.ready)
        self.engine.forget(slot.sequence)
        self.stats.preempted += 1


# ---- all ranks ----------------------------------------------------------------------------------


def play_tasks(policy, tasks, group_size, horizon, key, temperature, max_concurrent):
    """Each task [(World, id)] `group_size` times, dealt over the ranks -> (trajectories, Stats) of
    all ranks.

    Groups come in the order of `tasks`; one whose environment failed is left out and counted. key:
    the ints from which all random numbers of these episodes follow. On every rank alike: EnvError
    if none was played or one rank's servers are gone, ValueError if no prompt fits.
    """
    places = range(rank(), len(tasks), world_size())
    mine = [tasks[place] for place in places]
    with gathered_weights(policy):
        try:
            share = collect(policy, mine, group_size, horizon, key, places, temperature,
                            max_concurrent=max_concurrent)
        except ServersGone as error:        # the other ranks wait for this one's share
            words = str(error)
            share = [], Stats(dropped=len(places), failures=[words], gone=words)

    played = []
    stats = Stats()
    for trajectories, counted in gathered(share):
        played += trajectories
        stats += counted
    played.sort(key=lambda trajectory: trajectory.key)
    if stats.gone:
        raise ServersGone(stats.gone)
    if not played:
        raise EnvError(stats.failures[-1])
    if not any(trajectory.turns for trajectory in played):
        agent = tasks[0][0].agent
        shortest = min(len(trajectory.token_ids) for trajectory in played)
        raise ValueError(f"no prompt fits: the shortest has {shortest} tokens, with a reply of "
                         f"{agent.max_turn_tokens} more than max_context={agent.max_context}; give "
                         "a larger --max-context")
    return played, stats
