"""From one episode to many: trajectories, `play`, `collect`, tensors.

    task_id --reset--> observation --chat tokens--> add_observation --+
                                                                      v
    done <-- observation, reward <--step-- action <-- text <-- add_action(sampled ids, logprobs)

`play` is the reference, simple and slow: one episode, and (`speak`) a forward pass over the whole
context for every token. `collect` plays many at once on pages and must give the very same tokens.
`to_batch` makes tensors of B trajectories, T tokens (padded) and N turns.
"""
import gc
import hashlib
import itertools
import math
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from tqdm import tqdm

from chat import ASK_LESSON, CUT, FORMATS, NOTE, Agent, answer_to, said, split_thoughts
from client import EnvClient, EnvError
from engine import PAGE_SIZES, Engine, Sequence, forward, kv_shape, layout_for, sample, upload


# ---- what an episode leaves behind --------------------------------------------------------------

@dataclass
class Turn:
    """One reply of the policy: where its tokens lie, and what came of it."""
    start: int                 # token_ids[start:end] were sampled, the stop token too
    end: int
    reward: float = 0.0
    valid: bool | None = True  # the action was understood; None: nobody says, or it is a lesson
    cut: bool = False          # the reply ended within its thoughts
    observation_hash: int = 0  # of the observation replied to; equal texts, equal hashes (GiGPO)


@dataclass
class Trajectory:
    """One episode as the policy saw it: three parallel lists, one entry per token."""
    task_id: int = 0
    key: tuple[int, ...] = ()  # seeds the episode: see Episode
    env: str = ""              # the environment's name
    token_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)   # 1: the policy sampled this token
    old_logprobs: list[float] = field(default_factory=list)  # log pi_old(token | context), or 0
    contexts: list[int] = field(default_factory=list)        # where each begins: [0], or more
    turns: list[Turn] = field(default_factory=list)
    done: bool = False         # the environment ended the episode
    truncated: str = ""        # what else ended it: "horizon" or "context"
    score: float = 0.0         # the environment's own, at the end
    success: bool = False

    def begin_context(self, token_ids):
        """Start a context: the tokens after this see `token_ids` and nothing from before."""
        self.contexts.append(len(self.token_ids))
        self.add_observation(token_ids)

    def add_observation(self, token_ids):
        """Append what the environment or the chat template wrote: read, never trained on."""
        self.token_ids += token_ids
        self.response_mask += [0] * len(token_ids)
        self.old_logprobs += [0.0] * len(token_ids)

    def add_action(self, token_ids, logprobs):
        """Append what the policy sampled, its stop token too: exactly this is trained on."""
        self.turns.append(Turn(len(self.token_ids), len(self.token_ids) + len(token_ids)))
        self.token_ids += token_ids
        self.response_mask += [1] * len(token_ids)
        self.old_logprobs += logprobs

    @property
    def context(self):
        """The token ids that the policy sees now."""
        return self.token_ids[self.contexts[-1]:]

    @property
    def reward(self):
        """The episode's return: the sum of its turns' rewards."""
        return sum((turn.reward for turn in self.turns), 0.0)


@dataclass(eq=False)            # compared by identity, so that it can be the key of a dict
class World:
    """One environment as it is played: where, and how the policy speaks there. The agents of one
    policy's worlds have the same tokenizer, longest reply and temperature."""
    client: EnvClient           # its servers
    agent: Agent
    most_turns: float = math.inf    # of an episode, whatever horizon is asked for

    @property
    def module(self):
        """The environment's file, envs/<name>.py."""
        return self.agent.module


class Episode:
    """One trajectory in the making: what to ask of the environment, what to show the policy.

    `request` is what the environment must answer next: ("reset", (task_id, luck)) or ("step",
    action). While it is None the policy must reply, unless the episode is `over`.
    key: the seed of the episode, a tuple of ints; in training (seed, step, 0, place, member).
    numpy's generator of (*key, n) gives the random numbers of turn n, that of (*key, 2**32 - 1) the
    environment's luck."""

    def __init__(self, agent, task_id, key, horizon):
        self.agent, self.horizon, self.format = agent, horizon, FORMATS[agent.format]
        self.trajectory = Trajectory(task_id, tuple(key), getattr(agent.module, "NAME", ""))
        self.history = []           # of this try: (observation, reply, its words) a turn
        self.messages = []          # the conversation in view, as a chat server would hold it
        self.lessons = []           # what the agent wrote after each failed try (reflect)
        self.observation = ""       # what the policy replies to next
        self.complaint = ""         # about its last reply
        self.token_ids, self.logprobs = [], []      # of the reply that is being sampled
        self.uniforms = None        # a number in [0, 1) for each token that this reply may have
        luck = np.random.default_rng((*key, 2**32 - 1)).integers(2**31)
        self.first_request = ("reset", (task_id, int(luck)))     # of every try: the same luck
        self.request, self.over, self.reflecting = self.first_request, False, False

    @property
    def seen(self):
        """The token ids in view, those of the unfinished reply included."""
        return self.trajectory.context + self.token_ids

    def sampled(self, token, logprob):
        """Take the next token of the policy's reply; the last one sets the `request`."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.agent.chat.stop_ids or len(self.token_ids) == self.agent.max_turn_tokens:
            self.reply(self.token_ids, self.logprobs)
            self.token_ids, self.logprobs = [], []

    def reply(self, token_ids, logprobs):
        """Take the sampled tokens of the policy's reply. FloatingPointError: of a policy that holds
        NaN or infinity, which would fail in every task without a word."""
        if not math.isfinite(sum(logprobs)):
            raise FloatingPointError("a reply's log-probabilities are not finite: use another "
                                     "checkpoint")
        chat = self.agent.chat
        self.trajectory.add_action(token_ids, logprobs)
        stopped = token_ids[-1] in chat.stop_ids
        text = chat.tokenizer.decode(token_ids[:-1] if stopped else token_ids,
                                     clean_up_tokenization_spaces=False)       # Llama 3's would
        if token_ids[-1] != chat.stop_id:            # cut, or another stop token: the template
            self.trajectory.add_observation([chat.stop_id])    # still wants its own, not sampled
        self.replied(chat.opened + text, chat.message(text))

    def replied(self, text, message):
        """Take the policy's reply as text and as a message, and set the request that follows."""
        turn = self.trajectory.turns[-1]
        digest = hashlib.blake2b(self.observation.encode(), digest_size=8).digest()
        turn.observation_hash = int.from_bytes(digest, "big") >> 1   # unlike hash(), on any machine
        self.messages.append(message)
        _, words = split_thoughts(text)
        if self.reflecting:
            turn.valid = None
            for failed in self.trajectory.turns[:-1]:
                failed.reward = 0.0         # the return is the last try's: failing pays nothing
            self.lessons.append((words or "").strip())
            self.history, self.reflecting = [], False
            self.request = self.first_request
            return
        turn.cut = words is None
        words = text if self.agent.format == "think" else words or ""     # its thoughts are words
        self.history.append((self.observation, message, words))
        action, self.complaint = ("", CUT) if turn.cut else self.agent.read(words, message)
        self.request = ("step", action)

    def observe(self, observation, reward=0.0, done=False, info=None):
        """Take the environment's answer to `request`: show it to the policy, or end the episode."""
        kind, self.request = self.request[0], None
        trajectory = self.trajectory
        if kind == "reset":
            self.observation = self.agent.first(observation)
            return self._show(self.observation)
        info = info or {}
        turn = trajectory.turns[-1]
        turn.reward, turn.valid = float(reward), info.get("valid", True)
        trajectory.score = float(info.get("score", reward))
        trajectory.success = bool(info.get("success", False))
        self.observation = (self.complaint or observation) if self.agent.manner else \
            f"{self.complaint}\n{observation}".strip()
        if not done and len(self.history) < self.horizon:
            self._show(self.observation)
        elif not trajectory.success and len(self.lessons) + 1 < self.format.tries:
            self.reflecting = True
            self._show(f"{self.observation}\n{ASK_LESSON}")
        else:
            trajectory.done, trajectory.truncated = bool(done), "" if done else "horizon"
            self.over = True

    def _show(self, text):
        """Show the policy a text; the episode is over if its longest reply would not fit."""
        agent, trajectory = self.agent, self.trajectory
        generator = np.random.default_rng((*trajectory.key, len(trajectory.turns)))
        self.uniforms = generator.random(agent.max_turn_tokens)
        anew = not self.messages or agent.context == "memory" or \
            agent.context == "window" and len(self.history) > agent.window
        if anew:
            self.messages = agent.start() + shortened(self, text)
        else:
            self.messages += answer_to(self.messages[-1], text)
        if not agent.chat:
            return
        if anew or agent.history == "template":
            trajectory.begin_context(agent.chat.opening(self.messages))
        else:
            role = self.messages[-1]["role"]
            trajectory.add_observation(agent.chat.between_replies(text, role))
        if len(trajectory.context) + agent.max_turn_tokens > agent.max_context:
            trajectory.truncated, self.over = "context", True


def shortened(episode, text):
    """The messages of a new context: the task, what the agent wrote to keep, the end.
    window (of one turn): the last turns are repeated; their replies are not trained on again.
        <|user|>Crafting commands: ... Goal: craft ink.
        (earlier turns not shown: 1)
        Got 2 wax<|end|><|assistant|>craft 2 flour using 2 wax<|end|>
        <|user|>Crafted 2 flour<|end|><|assistant|>⟦craft 3 ink using 1 flour<|end|>⟧ (reward 1)
    memory: a note takes the place of all turns.
        <|user|>Crafting commands: ... Goal: craft ink.
        Your note: get 2 wax
        Crafted 2 flour<|end|><|assistant|>⟦Note: get 2 wax; craft 2 flour using 2 wax
        craft 3 ink using 1 flour<|end|>⟧ (reward 1)"""
    memory = episode.agent.context == "memory"
    task = episode.history[0][0] if episode.history else ""
    replies = [words for *_, words in episode.history]
    top = [task, *(f"After an earlier try you wrote: {lesson}" for lesson in episode.lessons)]
    for name, pattern in (episode.format.keeps | ({"note": NOTE} if memory else {})).items():
        if newest := "".join(pattern.findall("\n".join(replies))[-1:]).strip():
            top.append(f"Your {name}: {newest}")
    recent = [] if memory else episode.history[-episode.agent.window:]
    if recent:
        top.append(f"(earlier turns not shown: {len(episode.history) - len(recent)})")
    first, *later = [observation for observation, *_ in recent] + [text]
    messages = said("user", "\n\n".join([*filter(None, top), first]))
    for (_, reply, _), observation in zip(recent, later):
        messages += [reply, *answer_to(reply, observation)]
    return messages


# ---- playing ------------------------------------------------------------------------------------

def play(reply, episode, client, session=None):
    """Play an Episode to its end, the slow and obvious way: `collect` must do exactly this.
    reply(episode) gives it the policy's next reply: `speak` of a policy here, or an API's. session:
    one of the client's that is free, None opens one -> the session, free again. EnvError."""
    while not episode.over:
        if not episode.request:
            reply(episode)
            continue
        (answer,) = client.answer([(session, *episode.request)])
        if isinstance(answer, EnvError):
            raise answer
        session = answer.session
        episode.observe(answer.observation, answer.reward, answer.done, answer.info)
    return session


@torch.inference_mode()
def speak(policy, episode):
    """The policy's next reply; every token is drawn from a forward pass over the whole context."""
    while not episode.request:
        seen = torch.tensor(episode.seen, device=policy.device)
        logits = forward(policy, seen, layout_for(policy, [len(seen)]), logits_to_keep=1)
        uniform = torch.tensor([episode.uniforms[len(episode.token_ids)]])
        token, logprob = sample(logits, uniform, episode.agent.temperature)
        episode.sampled(token.item(), logprob.item())


def progress(items, what, **options):
    """The items, with a bar: on a terminal, of one rank, for what takes more than two seconds."""
    silent = os.environ.get("RANK", "0") != "0" or None            # None: if it is no terminal
    return tqdm(items, **dict(desc=what, leave=False, delay=2, disable=silent) | options)


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


def collect(policy, tasks, group_size, horizon, key=(0,), places=None, engine=None,
            max_concurrent=math.inf, retries=2, finished=None):
    """Many episodes at once on paged KV memory -> (trajectories, Stats).

    tasks: [(World, task id)]; each is played by group_size members, adjacent in the result. A group
    with a member whose environment failed `retries` + 1 times is left out whole: it is no reward of
    0. An episode's key is (*key, place, member). places[i] is the place of tasks[i] in the whole
    step (i by default), so that a rank draws the numbers that one process would.
    finished(the group's Episodes) is called as soon as a group is played. ServersGone when no
    server has answered for the client's patience."""
    if not tasks:
        return [], Stats()
    rows = min(len(tasks) * group_size, max_concurrent)
    engine = engine or make_engine(policy, tasks[0][0].agent, rows)
    slots = Slots(tasks, group_size, horizon, key, places or range(len(tasks)), retries, finished)
    Scheduler(slots, engine).run()
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

    def __init__(self, slots, engine):
        self.slots, self.engine, self.sampler = slots, engine, Sampler(engine, slots)
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
            requests = [(slot.session, *slot.episode.request) for slot in parcel]
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
        """Give a slot its answer: a Reply for its episode, or an EnvError: it is played anew. Who
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

    def __init__(self, engine, slots):
        self.engine, self.slots, self.stats = engine, slots, slots.stats
        self.temperature = slots.everyone[0].episode.agent.temperature

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

@dataclass
class Batch:
    """Trajectories as tensors: (B, T) unless said, column t speaks of token t. x[response_mask] are
    the (A,) numbers of the sampled tokens, response_mask.nonzero()[:, 0] their rows."""
    token_ids: torch.Tensor          # -1 after a row's end
    position_ids: torch.Tensor       # place in its context; a 0 begins a new context
    response_mask: torch.Tensor      # bool: the policy sampled this token
    old_logprobs: torch.Tensor
    token_rewards: torch.Tensor      # a turn's reward on its last sampled token
    turn_ids: torch.Tensor           # index of the turn, -1 off the mask
    rewards: torch.Tensor            # (B,): their sums
    observation_hashes: torch.Tensor     # (B, N): see Turn; -1 after the last turn
    advantages: torch.Tensor = None  # from here on: added by the training step
    weights: torch.Tensor = None
    rollout_logprobs: torch.Tensor = None   # the sampler's; old_logprobs may become the trainer's
    ref_logprobs: torch.Tensor = None
    values: torch.Tensor = None
    returns: torch.Tensor = None
    value_weights: torch.Tensor = None

    def rows(self, index, begin=0, end=None):
        """The rows of `index`, of each its tokens begin:end -> Batch."""
        picked = {name: x[index] for name, x in vars(self).items() if x is not None}
        for name, x in picked.items():
            if x.dim() == 2 and name != "observation_hashes":
                picked[name] = x[:, begin:end]
        return Batch(**picked)

    def parts(self, tokens, whole_rows=False):
        """What to compute at a time: arguments of `rows`, for at most `tokens` tokens, longest rows
        first: attention pads the rows of a part, so their lengths should be alike. A longer row is
        a part alone if whole_rows; else it is cut between contexts, which are independent."""
        lengths = (self.token_ids >= 0).sum(1)
        parts, room = [], 0
        for row in lengths.argsort(descending=True, stable=True).tolist():
            if lengths[row] > tokens and not whole_rows:
                starts = (self.position_ids[row, :lengths[row]] == 0).nonzero()[:, 0].tolist()
                begin = 0
                for start, end in itertools.pairwise([*starts, int(lengths[row])]):
                    if begin < start and end - begin > tokens:
                        parts.append(([row], begin, start))
                        begin = start
                parts.append(([row], begin, end))
                continue
            if room < lengths[row]:
                parts.append(([], 0, None))
                room = tokens
            parts[-1][0].append(row)
            room -= int(lengths[row])
        return parts


def to_batch(trajectories, device="cpu"):
    """Trajectories, members of a group adjacent -> Batch, on the device of the training."""
    B, T = len(trajectories), max(len(t.token_ids) for t in trajectories)
    token_ids, turn_ids = np.full((B, T), -1), np.full((B, T), -1)
    position_ids, mask = np.zeros((B, T), int), np.zeros((B, T), bool)
    old_logprobs, token_rewards = np.zeros((B, T), np.float32), np.zeros((B, T), np.float32)
    hashes = np.full((B, max(len(t.turns) for t in trajectories)), -1)
    for row, trajectory in enumerate(trajectories):
        n = len(trajectory.token_ids)
        token_ids[row, :n] = trajectory.token_ids
        mask[row, :n] = trajectory.response_mask
        old_logprobs[row, :n] = trajectory.old_logprobs
        for start, end in itertools.pairwise([*trajectory.contexts, n]):
            position_ids[row, start:end] = range(end - start)
        for index, turn in enumerate(trajectory.turns):
            turn_ids[row, turn.start:turn.end] = index
            token_rewards[row, turn.end - 1] = turn.reward
            hashes[row, index] = turn.observation_hash
    return Batch(*(torch.from_numpy(x).to(device) for x in (
        token_ids, position_ids, mask, old_logprobs, token_rewards, turn_ids,
        token_rewards.sum(1), hashes)))
