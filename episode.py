"""episode: one episode: trajectory, Episode, and `play`, the slow and obvious way."""
import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
import torch

from attention import layout_for
from chat import ASK_LESSON, CUT, FORMATS, NOTE, Agent, answer_to, said, split_thoughts
from client import EnvClient, EnvError, Reset, Step
from engine import sample
from policy import forward


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
    policy's worlds have the same tokenizer and longest reply."""
    client: EnvClient           # its servers
    agent: Agent
    most_turns: float = math.inf    # of an episode, whatever horizon is asked for

    @property
    def module(self):
        """The environment's file, envs/<name>.py."""
        return self.agent.module


class Episode:
    """One trajectory in the making: what to ask of the environment, what to show the policy.

    `request` is what the environment must answer next: a client.Reset or a client.Step. While it
    is None the policy must reply, unless the episode is `over`.
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
        self.first_request = Reset(task_id, int(luck))     # of every try: the same luck
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
        _, words, cut = split_thoughts(text)
        if self.reflecting:
            turn.valid = None
            for failed in self.trajectory.turns[:-1]:
                failed.reward = 0.0         # the return is the last try's: failing pays nothing
            self.lessons.append(words.strip())
            self.history, self.reflecting = [], False
            self.request = self.first_request
            return
        turn.cut = cut
        if self.agent.format == "think":        # its thoughts are words
            words = text
        self.history.append((self.observation, message, words))
        action, self.complaint = ("", CUT) if cut else self.agent.read(words, message)
        self.request = Step(action)

    def observe(self, observation, reward=0.0, done=False, info=None):
        """Take the environment's answer to `request`: show it to the policy, or end the episode."""
        begins, self.request = isinstance(self.request, Reset), None
        trajectory = self.trajectory
        if begins:
            self.observation = self.agent.first(observation)
            return self._show(self.observation)
        info = info or {}
        turn = trajectory.turns[-1]
        turn.reward, turn.valid = float(reward), info.get("valid", True)
        trajectory.score = float(info.get("score", reward))
        trajectory.success = bool(info.get("success", False))
        self.observation = self.agent.later(observation, self.complaint)
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
            self.messages.append(answer_to(self.messages[-1], text))
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
    messages = [said("user", "\n\n".join([*filter(None, top), first]))]
    for (_, reply, _), observation in zip(recent, later):
        messages += [reply, answer_to(reply, observation)]
    return messages


def play(reply, episode, client, session=None):
    """Play an Episode to its end, the slow and obvious way: `collect` must do exactly this.
    reply(episode) gives it the policy's next reply: `speak` of a policy here, or an API's. session:
    one of the client's that is free, None opens one -> the session, free again. EnvError."""
    while not episode.over:
        if not episode.request:
            reply(episode)
            continue
        (answer,) = client.answer([(session, episode.request)])
        if isinstance(answer, EnvError):
            raise answer
        session = answer.session
        episode.observe(answer.observation, answer.reward, answer.done, answer.info)
    return session


@torch.inference_mode()
def speak(policy, episode, temperature=1.0):
    """The policy's next reply; every token is drawn from a forward pass over the whole context."""
    while not episode.request:
        seen = torch.tensor(episode.seen, device=policy.device)
        logits = forward(policy, seen, layout_for(policy, [len(seen)]), logits_to_keep=1)
        uniform = torch.tensor([episode.uniforms[len(episode.token_ids)]])
        token, logprob = sample(logits, uniform, temperature)
        episode.sampled(token.item(), logprob.item())
