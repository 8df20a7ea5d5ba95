"""From one episode to many: the trajectory, its tokens, the agent's words, `play`, `collect`.

    task_id --reset--> observation --chat tokens--> add_observation --+
                                                                      v
    done <-- observation, reward <--step-- action <-- text <-- add_action(sampled ids, logprobs)

`play` is the definition: one episode, token by token, the whole text read anew each time. `collect`
plays many at once on the engine's pages and is tested to give the very same tokens. `to_batch` then
makes (B, T) tensors in which column t speaks of token t.
"""
import hashlib
import queue
import re
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial

import numpy as np
import torch

from client import EnvError
from engine import Engine, Packed, Sequence, sample, token_logprobs  # noqa: F401


# ---- what an episode leaves behind --------------------------------------------------------------

@dataclass
class Turn:
    """One action: where its tokens lie, and what came of it."""
    start: int                 # token_ids[start:end] were sampled, the stop token included
    end: int
    reward: float = 0.0
    valid: bool = True         # the environment understood it
    observation_hash: int = 0  # of the text it answered: equal texts, equal hashes (GiGPO's anchor)


@dataclass
class Trajectory:
    """One episode as the policy saw it: three parallel lists, one entry per token."""
    task_id: int = 0
    token_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)   # 1: the policy sampled this token
    old_logprobs: list[float] = field(default_factory=list)  # log pi_old(token | context), or 0
    contexts: list[int] = field(default_factory=list)        # where a context begins: [0], or more
    turns: list[Turn] = field(default_factory=list)
    done: bool = False         # ended by the environment
    truncated: str = ""        # or else what ended it: "horizon" or "context"
    score: float = 0.0         # the environment's own, at the end
    success: bool = False

    def begin_context(self, token_ids):
        """Start a context: what follows sees these tokens and nothing before them."""
        self.contexts.append(len(self.token_ids))
        self.add_observation(token_ids)

    def add_observation(self, token_ids):
        """Append what the environment or the chat template wrote: read, never trained on."""
        self.token_ids += token_ids
        self.response_mask += [0] * len(token_ids)
        self.old_logprobs += [0.0] * len(token_ids)

    def add_action(self, token_ids, logprobs):
        """Append what the policy sampled, its stop token included: exactly this is trained on."""
        self.turns.append(Turn(len(self.token_ids), len(self.token_ids) + len(token_ids)))
        self.token_ids += token_ids
        self.response_mask += [1] * len(token_ids)
        self.old_logprobs += logprobs

    @property
    def context(self):
        """The tokens in view now."""
        return self.token_ids[self.contexts[-1]:]

    @property
    def reward(self):
        """The episode's return: the sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    def text(self, tokenizer):
        """The episode as a person reads it; trained tokens stand between ⟦ and ⟧."""
        pieces, at = [], 0
        for turn in self.turns:
            pieces += [tokenizer.decode(self.token_ids[at:turn.start]), "⟦",
                       tokenizer.decode(self.token_ids[turn.start:turn.end]),
                       f"⟧ (reward {turn.reward:g}{'' if turn.valid else ', not understood'})"]
            at = turn.end
        end = "done" if self.done else f"truncated: {self.truncated}"
        return "".join(pieces) + tokenizer.decode(self.token_ids[at:]) + \
            f"\n[task {self.task_id}: return {self.reward:g}, score {self.score:g}, {end}]"


# ---- text to tokens -----------------------------------------------------------------------------

class Chat:
    """The model's own chat template cut into pieces that can be appended: nothing is re-encoded.

    opening(messages) -> ids of a fresh context, up to where the assistant speaks
    turn(text)        -> ids of everything between the assistant's stop token and its next word
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.encode = lru_cache(4096)(      # many observations come again and again
            partial(tokenizer.encode, add_special_tokens=False))
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise ValueError(f"{name}: its tokenizer has no chat template; use a chat model, or "
                             "set tokenizer.chat_template and save the tokenizer")
        a, b, c = "Q1Q", "Q2Q", "Q3Q"                   # told apart from what a template writes
        x, y = "<think>T1T</think>R1R", "<think>T2T</think>R2R"      # some strip earlier thoughts
        messages = said("system", "S1S") + said("user", a) + said("assistant", x) \
            + said("user", b) + said("assistant", y) + said("user", c)
        opening, whole = self._render(messages[:2], True), self._render(messages, True)
        closing = self._render(messages[:3], False).removeprefix(opening + x)
        stop = tokenizer.encode(closing, add_special_tokens=False)[:1]
        end = tokenizer.decode(stop)
        self.before, _, rest = whole.removeprefix(opening + x + end).partition(b)
        self.after = rest.partition(y)[0]
        if whole != "".join([opening, x, end, self.before, b, self.after,
                             y, end, self.before, c, self.after]):
            raise ValueError(f"{name}: its chat template rewrites earlier messages when later ones "
                             "arrive, so tokens cannot be appended; use another template")
        if not stop or stop[0] not in tokenizer.added_tokens_decoder:
            raise ValueError(f"{name}: its chat template ends a reply with {closing!r}, which does "
                             "not begin with a token of its own to stop at; use another template")
        self.stop_id = stop[0]                          # what the assistant ends its turn with
        self.stop_ids = {self.stop_id, tokenizer.eos_token_id} - {None}

    def _render(self, messages, speak):
        return self.tokenizer.apply_chat_template(messages, tokenize=False,
                                                  add_generation_prompt=speak)

    def opening(self, messages):
        return list(self.encode(self._render(messages, True)))     # one prompt for a whole group

    def turn(self, text):
        return list(self.encode(self.before + text + self.after))


# ---- how a reply becomes an action --------------------------------------------------------------
# A format is what the agent is asked for and a function reply -> (action, complaint). A complaint,
# if there is one, is shown before the environment's own answer; the empty action costs its turn.
# The samples are of textcraft_small, as Trajectory.text prints them; "..." is what was cut out.

def act(reply):
    """The reply is the action.

    <|user|>Crafting commands: ... craft 2 flour using 2 wax
    Goal: craft flour.<|end|><|assistant|>⟦get 2 wax<|end|>⟧ (reward 0)
    <|user|>Got 2 wax<|end|><|assistant|>⟦craft 2 flour using 2 wax<|end|>⟧ (reward 1)
    """
    return reply.strip(), ""


def react(reply):
    """AgentGym's default: a thought, then the action.

    ... Goal: craft flour.<|end|><|assistant|>⟦Thought: To craft flour I still need 2 wax, which is
    raw: I get it.
    Action: get 2 wax<|end|>⟧ (reward 0)
    <|user|>Got 2 wax<|end|><|assistant|>⟦Thought: I hold everything for flour, and it is the goal:
    I craft it.
    Action: craft 2 flour using 2 wax<|end|>⟧ (reward 1)
    """
    before, found, action = reply.partition("Action:")
    if not found:
        return "", "Your reply had no line 'Action: ...'."
    if "Action:" in action:
        return "", "Your reply had several actions; give one."
    return action.strip(), ""


def think(reply):
    """RAGEN's form: <think>...</think><answer>a || b</answer>. Only what is answered is done.

    ... Goal: craft flour.<|end|><|assistant|>⟦<think>To craft flour I still need 2 wax, which is
    raw: I get it.</think><answer>get 2 wax</answer><|end|>⟧ (reward 0)
    <|user|>Got 2 wax<|end|><|assistant|>⟦<think>I hold everything for flour, and it is the goal: I
    craft it.</think><answer>craft 2 flour using 2 wax</answer><|end|>⟧ (reward 1)
    """
    match = re.search(r"</think>\s*<answer>(.*?)</answer>", reply, re.DOTALL)
    if not match:
        return "", "Your reply had no <think>...</think><answer>...</answer>."
    return match[1].strip(), ""


ASK_REACT = "Reply with 'Thought: ' and your reasoning, then on a line of its own 'Action: ' " \
            "and one action."
ASK_NOTE = "Earlier turns will not be shown again. Begin each reply with a line 'Note: ' that " \
           "holds all you must remember; it replaces the note before it."
ASK_LESSON = "The try has failed. Write in one or two sentences what went wrong and what you " \
             "will do differently. Then you try again."


@dataclass(frozen=True)
class Format:
    """A form of replies. Two of them are `react` with something more:

    plan: the first reply begins with a plan, which stays in view and may be written anew.
        ... Goal: craft flour.<|end|><|assistant|>⟦Plan: To craft flour I still need 2 wax, ...
        Thought: To craft flour I still need 2 wax, which is raw: I get it.
        Action: get 2 wax<|end|>⟧ (reward 0)
        <|user|>Got 2 wax<|end|><|assistant|>⟦Thought: I hold everything for flour, and ...
        Action: craft 2 flour using 2 wax<|end|>⟧ (reward 1)
    reflect: after a try that failed the agent writes a lesson and tries the task again (Reflexion,
        arXiv:2303.11366). One trajectory holds all tries; each has the whole horizon.
        ... Action: get 1 flour<|end|>⟧ (reward 0, not understood)
        <|user|>Could not find flour
        The try has failed. Write in one or two sentences what went wrong and ...<|end|>
        <|assistant|>⟦Flour is not found, it is crafted. I will get its wax first.<|end|>⟧ ...
        <|user|>Crafting commands: ... Goal: craft flour.<|end|><|assistant|>⟦Thought: To craft ...
        Action: get 2 wax<|end|>⟧ (reward 0)
    """
    ask: str            # what the agent is told
    read: object        # reply -> (action, complaint)
    write: str          # how a demonstration's thought and action become a reply
    first: str = ""     # what its first reply begins with

    def compose(self, thought, action, turn=0, note=None):
        """A demonstration's reply; note: what to put in it in the context mode `memory`."""
        reply = ("" if turn else self.first) + self.write
        reply = reply.format(thought=thought, action=action)
        return reply if note is None else f"Note: {note}\n{reply}"


WRITE_REACT = "Thought: {thought}\nAction: {action}"
FORMATS = {
    "act": Format("Reply with one action and nothing else.", act, "{action}"),
    "react": Format(ASK_REACT, react, WRITE_REACT),
    "think": Format("Reply with <think>your reasoning</think><answer>your action</answer>; several "
                    "actions are joined by ' || '.", think,
                    "<think>{thought}</think><answer>{action}</answer>"),
    "plan": Format("Begin your first reply with 'Plan: ' and the steps you intend; later, write "
                   "'Plan: ' again only to change them. " + ASK_REACT, react, WRITE_REACT,
                   first="Plan: {thought}\n"),
    "reflect": Format(ASK_REACT, react, WRITE_REACT),
}


NOTE = re.compile(r"^Note:(.*)\n?", re.MULTILINE)                       # a line
PLAN = re.compile(r"^Plan:(.*?)(?=^(?:Thought|Action|Plan|Note):|\Z)", re.DOTALL | re.MULTILINE)


def last(pattern, replies):
    """The newest note or plan among the replies, or ""."""
    found = pattern.findall("\n".join(replies))
    return found[-1].strip() if found else ""


@dataclass
class Agent:
    """How the policy speaks: its template, the form of its replies, what it keeps in view."""
    tokenizer: object
    prompt: str = ""                # the environment's rules, as the system message
    format: str = "act"             # act, react, think, plan or reflect: see FORMATS
    context: str = "full"           # full, window or memory
    window: int = 3                 # turns in view (window)
    tries: int = 2                  # of one task (reflect)
    max_turn_tokens: int = 32       # a longer reply is cut
    max_context: int = 1024         # tokens in view; an episode that would not fit is truncated
    temperature: float = 1.0

    def __post_init__(self):
        self.chat = Chat(self.tokenizer)
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r}; known: {', '.join(FORMATS)}")
        if self.context not in ("full", "window", "memory"):
            raise ValueError(f"context={self.context!r}; known: full, window, memory")
        if self.window < 1:
            raise ValueError(f"window={self.window}: keep 1 turn or more in view")
        if not 0 < self.max_turn_tokens < self.max_context:
            raise ValueError(f"max_turn_tokens={self.max_turn_tokens}: give a reply 1 token or "
                             f"more, and fewer than max_context={self.max_context}")

    def system(self):
        """The system message: the rules, and the form of a reply."""
        note = ASK_NOTE if self.context == "memory" else ""
        parts = [self.prompt, FORMATS[self.format].ask, note]
        return {"role": "system", "content": "\n\n".join(filter(None, parts))}


class Episode:
    """One trajectory in the making: what to ask the environment, what to show the policy.

    `play` and `collect` both drive it. `request` is what the environment must answer next:
    ("reset", (task_id, stream)) or ("step", action); None: the policy speaks, or it is `over`.
    """

    def __init__(self, agent, task_id, member, horizon, seed):
        self.agent, self.horizon = agent, horizon
        self.task_id, self.member, self.seed = task_id, member, seed
        self.trajectory = Trajectory(task_id)
        self.history = []           # (observation, reply) texts of this try
        self.lessons = []           # what the agent wrote after each failed try (reflect)
        self.observation = ""       # what the policy answers next
        self.request, self.over, self.reflecting = self._reset(), False, False

    def _reset(self):
        """The request for an episode whose hidden luck (bandit, frozenlake) is this member's."""
        key = (*self.seed, self.task_id, self.member, 2**32 - 1)      # no turn's: see `uniforms`
        return "reset", (self.task_id, int(np.random.default_rng(key).integers(2**31)))

    def uniforms(self):
        """This turn's own random numbers: a function of seed, task, member and turn alone."""
        key = (*self.seed, self.task_id, self.member, len(self.trajectory.turns))
        return np.random.default_rng(key).random(self.agent.max_turn_tokens)

    def act(self, token_ids, logprobs):
        """Take what the policy sampled, and set the request that follows from it."""
        chat, trajectory = self.agent.chat, self.trajectory
        trajectory.add_action(token_ids, logprobs)
        trajectory.turns[-1].observation_hash = text_hash(self.observation)
        stopped = token_ids[-1] in chat.stop_ids
        reply = chat.tokenizer.decode(token_ids[:-1] if stopped else token_ids)
        if token_ids[-1] != chat.stop_id:            # the template's end of a message, not sampled
            trajectory.add_observation([chat.stop_id])
        if self.reflecting:
            self.lessons.append(reply.strip())
            self.history, self.reflecting = [], False
            self.request = self._reset()
            return
        self.history.append((self.observation, reply))
        if self.agent.context == "memory":
            reply = NOTE.sub("", reply)
        action, self.complaint = FORMATS[self.agent.format].read(reply)
        self.request = ("step", action)

    def observe(self, observation, reward=0.0, done=False, info=None):
        """Take the environment's answer to `request`: show it to the policy, or end the episode."""
        kind, self.request = self.request[0], None
        trajectory = self.trajectory
        if kind == "reset":
            self.observation = observation
            self._show(observation)
            return
        info = info or {}
        turn = trajectory.turns[-1]
        turn.reward, turn.valid = float(reward), bool(info.get("valid", True))
        trajectory.score = float(info.get("score", reward))
        trajectory.success = bool(info.get("success", False))
        self.observation = f"{self.complaint}\n{observation}".strip()
        if not done and len(self.history) < self.horizon:
            self._show(self.observation)
        elif self.agent.format == "reflect" and not trajectory.success \
                and len(self.lessons) + 1 < self.agent.tries:
            self.reflecting = True
            self._show(f"{self.observation}\n{ASK_LESSON}")
        else:
            trajectory.done, trajectory.truncated = bool(done), "" if done else "horizon"
            self.over = True

    def _show(self, text):
        """Put the environment's words in view, appended or in a context made anew; then look
        whether the longest reply would still fit."""
        agent, trajectory = self.agent, self.trajectory
        cut = agent.context == "memory" or \
            agent.context == "window" and len(self.history) > agent.window
        if not trajectory.contexts:
            trajectory.begin_context(agent.chat.opening([agent.system(), *said("user", text)]))
        elif not cut:
            trajectory.add_observation(agent.chat.turn(text))
        else:
            trajectory.begin_context(agent.chat.opening([agent.system(), *self._in_view(text)]))
        if len(trajectory.context) + agent.max_turn_tokens > agent.max_context:
            trajectory.truncated, self.over = "context", True

    def _in_view(self, text):
        """The messages of a shortened context: the task, what the agent wrote to keep, the end.

        window (of one turn): what was said by then is told again, and not trained on again.
            <|user|>Crafting commands: ... Goal: craft ink.
            (earlier turns not shown: 1)
            Got 2 wax<|end|><|assistant|>craft 2 flour using 2 wax<|end|>
            <|user|>Crafted 2 flour<|end|><|assistant|>⟦craft 3 ink using 1 flour<|end|>⟧ (reward 1)
        memory: a note takes the place of all turns.
            <|user|>Crafting commands: ... Goal: craft ink.
            Your note: get 2 wax
            Crafted 2 flour<|end|><|assistant|>⟦Note: get 2 wax; craft 2 flour using 2 wax
            craft 3 ink using 1 flour<|end|>⟧ (reward 1)
        """
        first = self.history[0][0] if self.history else ""
        replies = [reply for _, reply in self.history]
        keep = [first, *(f"After an earlier try you wrote: {lesson}" for lesson in self.lessons)]
        if self.agent.format == "plan" and last(PLAN, replies):
            keep.append(f"Your plan: {last(PLAN, replies)}")
        if self.agent.context == "memory":
            if last(NOTE, replies):
                keep.append(f"Your note: {last(NOTE, replies)}")
            return said("user", "\n\n".join([*filter(None, keep), text]))
        recent = self.history[-self.agent.window:]
        keep.append(f"(earlier turns not shown: {len(self.history) - len(recent)})")
        messages = said("user", "\n\n".join([*filter(None, keep), recent[0][0]]))
        for (_, reply), observation in zip(recent, [o for o, _ in recent[1:]] + [text]):
            messages += said("assistant", reply) + said("user", observation)
        return messages


def said(role, content):
    return [{"role": role, "content": content}]


def text_hash(text):
    """63 bits that are the same on every machine, unlike hash()."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


# ---- playing ------------------------------------------------------------------------------------

@torch.inference_mode()
def play(policy, agent, client, task_id, horizon, seed=(0,), member=0):
    """One episode, the slow and obvious way: `collect` must give exactly this -> Trajectory.

    Every token is drawn from a forward pass over all the text in view. seed: a tuple of ints.
    """
    episode, session = Episode(agent, task_id, member, horizon, seed), None
    try:
        while not episode.over:
            if episode.request:
                (reply,) = client.answer([(session, *episode.request)])
                if isinstance(reply, EnvError):
                    raise reply
                session = reply.session
                episode.observe(reply.observation, reply.reward, reply.done, reply.info)
                continue
            token_ids, logprobs, uniforms = [], [], episode.uniforms()
            while not token_ids or (token_ids[-1] not in agent.chat.stop_ids
                                    and len(token_ids) < agent.max_turn_tokens):
                seen = torch.tensor(episode.trajectory.context + token_ids, device=policy.device)
                layout = Packed([len(seen)], policy.device, policy.kernel)
                logits = policy(seen[None], position_ids=layout.position[None], use_cache=False,
                                logits_to_keep=1, layout=layout).logits[0]
                uniform = torch.tensor(uniforms[len(token_ids):len(token_ids) + 1])
                token, logprob = sample(logits, uniform, agent.temperature)
                token_ids.append(token.item())
                logprobs.append(logprob.item())
            episode.act(token_ids, logprobs)
    finally:
        client.close([session])
    return episode.trajectory


def collect(policy, agent, client, tasks, group_size, horizon, seed=(0,), engine=None,
            max_concurrent=None, retries=2, first_members=None):
    """Many episodes at once on paged KV memory -> (trajectories, report).

    tasks: task ids; each is played by group_size members, adjacent in the result. A group with a
    member whose environment failed `retries` + 1 times is left out whole: it is no reward of 0.
    first_members: the number of each group's first member, by which its random numbers differ from
    those of another group of the same task (0).
    report: {"groups": indices into tasks of the groups that were played, "dropped": count of the
    others, "failures": [text], "seconds": {phase: s}, "tokens": {...}, "pages": most in use,
    "preempted": count}. EnvError when not one group could be played.
    """
    engine = engine or make_engine(policy, agent, len(tasks) * group_size, max_concurrent)
    rollout = Rollout(engine, agent, client, retries)
    for group, task_id in enumerate(tasks):
        first = first_members[group] if first_members else 0
        for member in range(first, first + group_size):
            rollout.add(Player(Episode(agent, task_id, member, horizon, seed), group))
    rollout.run()
    lost = {p.group for p in rollout.players if p.failed}
    kept = [g for g in range(len(tasks)) if g not in lost]
    if tasks and not kept:
        raise EnvError(f"no episode could be played: {rollout.failures[-1]}")
    report = dict(groups=kept, dropped=len(lost), failures=rollout.failures,
                  seconds=dict(engine.seconds), tokens=dict(engine.tokens),
                  pages=rollout.most_pages, preempted=rollout.preempted)
    return [p.episode.trajectory for p in rollout.players if p.group not in lost], report


def make_engine(policy, agent, episodes, max_concurrent=None, memory=None):
    """An engine with rows and pages for `episodes` at a time, within `memory` bytes of KV."""
    rows = min(episodes, max_concurrent or episodes)
    size = 32 if policy.kernel == "torch" else 256
    config = policy.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    page_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head * size \
        * policy.compute_dtype.itemsize
    if memory is None:
        memory = 2**30
        if policy.device.type == "cuda":
            torch.cuda.empty_cache()                # what the update held and no longer needs
            memory = 0.8 * torch.cuda.mem_get_info(policy.device)[0]
    each = -(-agent.max_context // size)
    pages = max(each, min(rows * each, int(memory / page_bytes)))
    return Engine(policy, rows, pages, size)


@dataclass(eq=False)
class Player:
    """An episode and its place in the engine while it is being played."""
    episode: Episode
    group: int
    session: object = None          # the environment's id for it
    sequence: Sequence = None
    token_ids: list[int] = field(default_factory=list)       # of the reply being sampled
    logprobs: list[float] = field(default_factory=list)
    uniforms: object = None
    failures: int = 0
    failed: bool = False

    @property
    def unread(self):
        """Tokens in view that the engine has not cached yet."""
        return (self.episode.trajectory.context + self.token_ids)[self.sequence.length:]


class Rollout:
    """The scheduler: environments answer, what they said is prefilled, replies are sampled, all in
    one loop. With a request for each episode nobody waits for another's environment.

    A player is in one place: `waiting` (not started), `asking` (its request is to be sent), in
    flight, `ready` (its text is to be prefilled), decoding (`engine.active`), or at its end.
    """

    def __init__(self, engine, agent, client, retries):
        self.engine, self.agent, self.client, self.retries = engine, agent, client, retries
        self.players, self.waiting, self.asking, self.ready = [], deque(), [], []
        self.playing = {}                      # sequence row -> player, of those that decode
        self.live = self.flying = self.most_pages = self.preempted = 0
        self.awaited = Counter()               # group -> members without a first observation
        self.answers, self.failures = queue.SimpleQueue(), []
        self.sessions, self.idle = set(), []   # the environment's: all, and those free to be reused

    def add(self, player):
        self.players.append(player)
        self.waiting.append(player)

    def run(self):
        try:
            with ThreadPoolExecutor(self.client.connections) as pool:
                while self.waiting or self.live:
                    self.start()
                    self.send(pool)
                    self.receive()
                    self.prefill()
                    self.decode()
        finally:
            for player in self.players:
                if player.sequence:
                    self.engine.release(player.sequence)
            self.client.close(list(self.sessions))

    def start(self):
        while self.waiting and self.live < self.engine.rows:
            player = self.waiting.popleft()
            player.session = self.idle.pop() if self.idle else None
            self.live += 1
            self.awaited[player.group] += 1
            self.asking.append(player)

    # -- the environment's side

    def send(self, pool):
        """To a server that takes many at once, an eighth of the live together, and the answer is
        awaited here: a run is then the same to the last bit. Else each by itself, awaited nowhere.
        """
        if not self.asking:
            return
        if self.client.batched and self.engine.active and len(self.asking) < self.live // 8:
            return
        batch, self.asking = self.asking, []
        self.flying += len(batch)
        if self.client.batched:
            began = time.perf_counter()
            self.ask(batch)
            self.engine.seconds["environment"] += time.perf_counter() - began
        else:
            for player in batch:
                pool.submit(self.ask, [player])

    def ask(self, players):                    # in a thread of the pool, if one by one
        try:
            answers = self.client.answer([(p.session, *p.episode.request) for p in players])
            self.sessions.update(a.session for a in answers if not isinstance(a, EnvError))
            for answer in zip(players, answers, strict=True):
                self.answers.put(answer)
        except BaseException as error:         # a bug of ours: shown, by the loop that waits for it
            self.answers.put((None, error))

    def receive(self):
        """Take what has come; wait for something only if there is nothing else to do."""
        idle = not self.readable() and not self.engine.active
        began = time.perf_counter()
        while self.flying and (idle or not self.answers.empty()):
            player, answer = self.answers.get()
            idle = False
            if player is None:
                raise answer
            self.flying -= 1
            self.take(player, answer)
        self.engine.seconds["environment"] += time.perf_counter() - began

    def take(self, player, answer):
        episode, broken = player.episode, isinstance(answer, EnvError)
        player.session = None if broken else answer.session
        if not episode.trajectory.contexts:
            self.awaited[player.group] -= 1
        if player.failed:                      # a member of its group failed for good meanwhile
            return self.finish(player)
        if broken:
            return self.fail(player, answer)
        contexts = len(episode.trajectory.contexts)
        episode.observe(answer.observation, answer.reward, answer.done, answer.info)
        if episode.over:
            return self.finish(player)
        if player.sequence and len(episode.trajectory.contexts) > contexts:
            self.engine.forget(player.sequence)
        self.ready.append(player)

    def fail(self, player, error):
        """The environment broke: play the episode again from its start, or give the group up."""
        self.failures.append(str(error))
        player.failures += 1
        if player.sequence:
            self.engine.release(player.sequence)
            player.sequence = None
        if player.failures <= self.retries:
            old = player.episode
            player.episode = Episode(old.agent, old.task_id, old.member, old.horizon, old.seed)
            self.awaited[player.group] += 1
            self.asking.append(player)
            return
        for member in self.players:
            if member.group == player.group:
                member.failed = True
        self.finish(player)

    def finish(self, player):
        if player.sequence:
            self.engine.release(player.sequence)
            player.sequence = None
        if player.session:
            self.idle.append(player.session)
        self.live -= 1

    # -- the policy's side

    def readable(self):
        """Those of `ready` that wait for no other: a group's first prompts are read together."""
        return [p for p in self.ready if p.sequence or not self.awaited[p.group]]

    def prefill(self):
        """Read new text of those that are ready, once enough of them are: a prefill is a whole
        forward pass. A prompt that several begin with is read once."""
        ready = self.readable()
        if len(ready) < max(1, self.live // 8) and self.engine.active or not ready:
            return
        began = time.perf_counter()
        admitted = self.admit(ready)
        self.ready = [p for p in self.ready if p not in admitted]
        first = {}                             # prompt -> the player that reads it
        readers, copies = [], []
        for player in admitted:
            prompt = None if player.sequence else tuple(player.episode.trajectory.context)
            if prompt in first:
                copies.append((player, first[prompt]))
                continue
            if prompt is not None:
                first[prompt] = player
                player.sequence = self.engine.start()
            readers.append(player)
        if not readers:
            return
        logits = self.engine.prefill([p.sequence for p in readers], [p.unread for p in readers])
        row = {id(player): i for i, player in enumerate(readers)}
        for player, reader in copies:
            player.sequence = self.engine.fork(reader.sequence)
            row[id(player)] = row[id(reader)]
        players = readers + [player for player, _ in copies]
        self.most_pages = max(self.most_pages, self.engine.pages.in_use)
        self.engine.seconds["prefill"] += time.perf_counter() - began
        for player in players:
            self.engine.join(player.sequence)
            self.playing[player.sequence.row] = player
            if not player.token_ids:
                player.uniforms = player.episode.uniforms()
        self.draw(players, logits[[row[id(p)] for p in players]])

    def decode(self):
        if not self.engine.active:
            return
        began = time.perf_counter()
        while self.engine.pages_short() > 0:         # the first of them goes on in any case
            self.preempt(spare=self.playing[self.engine.active[0].row])
        players = [self.playing[s.row] for s in self.engine.active]
        logits = self.engine.decode(torch.tensor([p.token_ids[-1] for p in players]))
        self.most_pages = max(self.most_pages, self.engine.pages.in_use)
        self.engine.seconds["decode"] += time.perf_counter() - began
        self.draw(players, logits)

    def draw(self, players, logits):
        """Sample one token for each; a reply that has ended becomes an action and a request."""
        began, agent = time.perf_counter(), self.agent
        uniforms = torch.tensor([p.uniforms[len(p.token_ids)] for p in players])
        ids, logprobs = sample(logits, uniforms.to(logits.device), agent.temperature)
        for player, token, logprob in zip(players, ids.tolist(), logprobs.tolist()):
            player.token_ids.append(token)
            player.logprobs.append(logprob)
            if token in agent.chat.stop_ids or len(player.token_ids) == agent.max_turn_tokens:
                self.engine.leave(player.sequence)
                player.episode.act(player.token_ids, player.logprobs)
                player.token_ids, player.logprobs = [], []
                self.asking.append(player)
        self.engine.seconds["sampling"] += time.perf_counter() - began

    # -- memory

    def admit(self, ready):
        """Those of `ready` whose text fits into free pages, one page kept for each that decodes."""
        size = self.engine.pages.page_size
        while True:
            admitted, room = [], len(self.engine.pages.free) - len(self.engine.active)
            for player in ready:
                held = len(player.sequence.pages) if player.sequence else 0
                tokens = len(player.episode.trajectory.context) + len(player.token_ids) + 1
                if -(-tokens // size) - held > room:
                    break
                room -= -(-tokens // size) - held
                admitted.append(player)
            if admitted or self.engine.active:
                return admitted
            self.preempt(spare=ready[0])                 # everything is held by those that wait

    def preempt(self, spare):
        """Take the pages of the youngest but `spare`; its text is prefilled again later, to the
        same tokens."""
        holders = [p for p in self.players if p.sequence and p.sequence.pages and p is not spare]
        youngest = holders[-1]
        if youngest.sequence in self.engine.active:
            self.ready.append(youngest)
        self.engine.forget(youngest.sequence)
        self.preempted += 1


# ---- from episodes to tensors -------------------------------------------------------------------

@dataclass
class Batch:
    """Trajectories as tensors: (B, T) unless said, column t speaks of token t."""
    token_ids: torch.Tensor          # -1 behind a row's end
    position_ids: torch.Tensor       # place in its context; a 0 begins a new one
    response_mask: torch.Tensor      # bool
    old_logprobs: torch.Tensor
    token_rewards: torch.Tensor      # a turn's reward on its last sampled token
    turn_ids: torch.Tensor           # index of the turn, -1 off the mask
    rewards: torch.Tensor            # (B,): their sums
    observation_hashes: torch.Tensor     # (B, N) of what each turn answered, -1 beyond the last
    advantages: torch.Tensor = None  # these are added by the training step
    weights: torch.Tensor = None
    ref_logprobs: torch.Tensor = None
    values: torch.Tensor = None
    returns: torch.Tensor = None
    value_weights: torch.Tensor = None

    def rows(self, index):
        """The rows of `index`, cut to the longest of them."""
        longest = max(1, int((self.token_ids[index] >= 0).sum(1).max())) if len(index) else 1
        picked = {f.name: getattr(self, f.name) for f in fields(self)}
        per_token = self.token_ids.shape[1]
        for name, x in picked.items():
            if x is not None:
                cut = x.dim() == 2 and x.shape[1] == per_token and name != "observation_hashes"
                picked[name] = x[index][:, :longest] if cut else x[index]
        return Batch(**picked)

    def split(self, tokens):
        """Row indices of parts of about `tokens` tokens each (one row at least), long rows first:
        the packed forward pads inside attention only, and rows of like length waste little."""
        lengths = (self.token_ids >= 0).sum(1)
        parts, room = [], 0
        for row in lengths.argsort(descending=True, stable=True).tolist():
            if not parts or room < lengths[row]:
                parts.append([])
                room = tokens
            parts[-1].append(row)
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
        for start, end in zip(trajectory.contexts, [*trajectory.contexts[1:], n]):
            position_ids[row, start:end] = range(end - start)
        for index, turn in enumerate(trajectory.turns):
            turn_ids[row, turn.start:turn.end] = index
            token_rewards[row, turn.end - 1] = turn.reward
            hashes[row, index] = turn.observation_hash
    arrays = (token_ids, position_ids, mask, old_logprobs, token_rewards, turn_ids,
              token_rewards.sum(1), hashes)
    return Batch(*(torch.from_numpy(a).to(device) for a in arrays))
