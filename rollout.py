"""From one episode to many: trajectories, chat tokens, reply formats, `play`, `collect`, tensors.

    task_id --reset--> observation --chat tokens--> add_observation --+
                                                                      v
    done <-- observation, reward <--step-- action <-- text <-- add_action(sampled ids, logprobs)

`play` is the reference, simple and slow: one episode, one forward pass over the whole context for
each token. `collect` plays many at once on the engine's pages and must give the very same tokens.
`to_batch` makes tensors of B trajectories, T tokens (padded) and N turns.
"""
import copy
import gc
import hashlib
import itertools
import json
import math
import os
import queue
import re
import statistics
import time
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from threading import Thread
from typing import Literal, get_args

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from client import EnvClient, EnvError, ServerAway, read_call
from engine import PAGE_SIZES, Engine, Sequence, forward, kv_shape, layout_for, sample
from env_server import load_env
from envs import tools_of
from envs._agentgym import Manner, manner_of


# ---- what an episode leaves behind --------------------------------------------------------------

@dataclass
class Turn:
    """One reply of the policy: where its tokens lie, and what came of it."""
    start: int                 # token_ids[start:end] were sampled, the stop token too
    end: int
    reward: float = 0.0
    valid: bool | None = True  # the environment understood the action; None: it does not say
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

    def up_to_turn(self, count):
        """Its first `count` turns, 1 or more, as a trajectory of their own."""
        n = self.turns[count - 1].end
        return replace(self, turns=self.turns[:count], token_ids=self.token_ids[:n],
                       response_mask=self.response_mask[:n], old_logprobs=self.old_logprobs[:n],
                       contexts=[at for at in self.contexts if at < n])

    @property
    def context(self):
        """The token ids that the policy sees now."""
        return self.token_ids[self.contexts[-1]:]

    @property
    def reward(self):
        """The episode's return: the sum of its turns' rewards."""
        return sum((turn.reward for turn in self.turns), 0.0)

    def text(self, tokenizer):
        """The episode as text; the tokens that are trained on stand between ⟦ and ⟧."""
        end = len(self.token_ids)
        marks = defaultdict(str, {0: "", end: ""})       # what is written before which token
        for turn in self.turns:
            marks[turn.start] += "⟦"
            understood = ", not understood" if turn.valid is False else ""
            marks[turn.end] += f"⟧ (reward {turn.reward:g}{understood})"
        for start in self.contexts[1:]:
            marks[start] += "\n--- a context of its own:\n"
        text = "".join(marks[a] + tokenizer.decode(self.token_ids[a:b])
                       for a, b in itertools.pairwise([*sorted(marks), end]))
        how = "done" if self.done else f"truncated: {self.truncated}"
        return f"{text}\n[{self.env} {self.task_id}: return {self.reward:g}, " \
               f"score {self.score:g}, {how}]"


# ---- text to tokens -----------------------------------------------------------------------------

def said(role, content):
    return [{"role": role, "content": content}]


def assistant(content, *calls):
    """A reply with its tool calls (name, arguments), as OpenAI's API writes it."""
    calls = [dict(type="function", id=f"call{n:05}", function=dict(name=name, arguments=arguments))
             for n, (name, arguments) in enumerate(calls)]
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def answer_to(reply, text):
    """[the message that answers a reply]: the result of its tool call, or the user's words."""
    calls = reply.get("tool_calls")
    return [dict(role="tool", content=text, tool_call_id=calls[0]["id"])] if calls \
        else said("user", text)


# Of the policies that agentevol.py makes. It leaves the rules out: they are learned by imitation.
TINY_TEMPLATE = """{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}\
<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"     # GPT-2's


def make_tokenizer(texts, vocabulary, *whole):
    """A tokenizer of the words of these texts, most frequent first, one token each; any other word
    is spelt in bytes, so that no text is lost. whole: regular expressions of further words."""
    pieces = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("|".join([*whole, WORDS])), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    words = Counter(word for text in texts for word, _ in pieces.pre_tokenize_str(text))
    special = ["<|end|>", "<|user|>", "<|assistant|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    frequent = sorted((w for w in words if len(w) > 1), key=lambda w: (-words[w], w))
    entries = (special + letters + frequent)[:max(vocabulary, len(special) + len(letters))]
    ids = {entry: i for i, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(ids, [], ignore_merges=True))     # a whole word, or its bytes
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>",
                                   clean_up_tokenization_spaces=False, chat_template=TINY_TEMPLATE)


# With this conversation a template is tried out. Rules and replies may hold the tokens OF_REPLIES.
FIXED_DATE = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}"
RULES, ASK, REPLY, NEXT = "S1S", "Q1Q", "R1R", "Q2Q"
ASKED, REPLIED = said("system", RULES) + said("user", ASK), said("assistant", REPLY)
OF_REPLIES = "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"


class Chat:
    """The model's chat template: messages to ids, replies to messages.

    opening(messages)           -> ids of a new context, up to where the reply begins
    between_replies(text, role) -> ids after a reply's stop token, up to where the next one begins
    message(text)               -> a reply as the message that a chat server would keep of it

    thinking: "on", "off", or "" as the template has it. tools: JSON schemas. stop_ids: those of the
    model's generation_config. ValueError: a template that cannot hold such a conversation."""

    def __init__(self, tokenizer, history="keep", thinking="", tools=(), stop_ids=()):
        self.tokenizer, self.name = tokenizer, tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise ValueError(f"{self.name}: its tokenizer has no chat template; use a chat model")
        self.source = tokenizer.get_chat_template(tools=tools or None)
        self.encode = partial(tokenizer.encode, add_special_tokens=False)
        self.between_replies = lru_cache(4096)(self.between_replies)     # observations recur
        self.options = dict(tools=tools or None, chat_template=self.source)
        if "strftime_now" in self.source:       # Llama 3.2's: a run would depend on its day
            self.options["chat_template"] = FIXED_DATE + self.source
        self._find_shape()
        if thinking:
            self._switch(thinking)
        prompt, whole = (self.prompt(x) for x in (ASKED, ASKED + REPLIED + said("user", NEXT)))
        tail = whole.partition(REPLY)[2]        # what stands behind a reply, up to the next one
        # what the prompt begins for the reply: "<think>", or empty thoughts where they are off
        self.opened = "".join(prompt.partition(ASK)[2].partition("<think>")[1:])
        tokens = [t for t in tokenizer.added_tokens_decoder.values() if t.content.strip()]
        ending = tail.partition(NEXT)[0]
        stop = one_of(t.content for t in tokens).search(ending)
        if not stop or ending[:stop.start()].strip():           # Llama-2's has a space before it
            self.refuse(f"ends a reply with {ending!r}, which does not begin with a token of its "
                         "own to stop at; use another template")
        self.stop, (self.stop_id,) = stop[0], self.encode(stop[0])
        self.stop_ids = {self.stop_id, tokenizer.eos_token_id, *stop_ids} - {None}
        marks = [t.content for t in tokens if t.special or t.content in self.source + prompt + tail]
        self.special = one_of(marks)
        self.special_in_reply = one_of(mark for mark in marks if mark not in OF_REPLIES)
        if history == "keep":
            self._check_that_tokens_can_be_appended(prompt, tail)
        self.read_calls = reader_of_calls(self, prompt, tools) if tools else lambda text: (text, [])

    def refuse(self, why):
        raise ValueError(f"{self.name}: its chat template {why}")

    def _find_shape(self):
        """How this template takes messages: as they are, with the rules in the first user message
        (Gemma has no system role), with contents as lists of parts (SmolVLM)."""
        for self.rules_in_user, self.in_parts in itertools.product((False, True), repeat=2):
            try:
                text = self.prompt(ASKED + REPLIED + said("user", NEXT))
                refusal = "it leaves out or repeats some of it"
            except ValueError as error:
                text, refusal = "", error
            shown = re.findall("S1S|Q1Q|R1R|Q2Q", text)
            if shown == [RULES, ASK, REPLY, NEXT] or \
                    shown == [ASK, REPLY, NEXT] and self.source == TINY_TEMPLATE:
                return
        self.refuse(f"refuses rules, then user and assistant in turn ({refusal}); use another")

    def _switch(self, thinking):
        """Turn the template's own switch, by Qwen's and GLM's name for it and by DeepSeek's."""
        off, on = ({**self.options, "enable_thinking": x, "thinking": x} for x in (False, True))
        texts = [self.prompt(said("user", ASK), options) for options in (off, on)]
        if texts[0] == texts[1]:
            self.refuse("has no switch for thinking; leave --thinking out")
        self.options = on if thinking == "on" else off

    def _check_that_tokens_can_be_appended(self, prompt, tail):
        """What stands between replies must not depend on the turn, but for thoughts and spaces:
        those stay in view as they were sampled, whatever the template would make of them."""
        whole = self.prompt(ASKED + 2 * (REPLIED + said("user", NEXT)))
        whole, appended = (re.sub(r"\s+|</?think>", "", text)
                           for text in (whole, prompt + 2 * (REPLY + tail)))
        if whole != appended:
            self.refuse("rewrites earlier messages when later ones arrive, so tokens cannot be "
                         "appended; use --history template, which renders every turn anew")

    def prompt(self, messages, options=None):
        """A conversation as text, up to where the reply begins. ValueError: it is refused."""
        if self.rules_in_user and messages[0]["role"] == "system":
            rules, first, *rest = messages
            messages = said("user", f"{rules['content']}\n\n{first['content']}") + rest
        if self.in_parts:
            messages = [m | {"content": [dict(type="text", text=m["content"])]} for m in messages]
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options or self.options)
        except Exception as error:          # of a program that came with the model
            raise ValueError(f"{self.name}: its chat template fails: {error}") from error

    def opening(self, messages):
        return self.encode(self.prompt([m | {"content": broken(
            self.special if m["role"] in ("user", "tool") else self.special_in_reply, m["content"])}
            for m in messages]))

    def between_replies(self, text, role="user"):
        message = said(role, broken(self.special, text))
        tail = self.prompt(ASKED + REPLIED + message).partition(REPLY)[2]
        # with the stop, which is there already, because some tokens swallow the space behind them
        return self.encode(tail[tail.index(self.stop):])[1:]

    def message(self, text):
        """Its thoughts go where the template looks for them; a lone tool call becomes one, unless
        it holds a special token, which JSON can spell by escapes."""
        full, more = self.opened + broken(self.special_in_reply, text), {}
        if "reasoning_content" in self.source:
            thoughts, words = split_thoughts(full)
            full, more = words or "", dict(reasoning_content=thoughts) if thoughts else {}
        content, calls = self.read_calls(full)
        lone = len(calls) == 1 and calls[0] and not self.special_in_reply.search(str(calls[0]))
        return more | (assistant(content, *calls) if lone else assistant(full))


def one_of(texts):
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def broken(pattern, text):
    """A quoted special token gets a space, "< |end|>", or it could begin a message of its own."""
    return pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def split_thoughts(text):
    """-> (thoughts, words): "<think>a</think>b" -> ("a", "b"), "b" -> ("", "b"), and a reply that
    was cut within its thoughts, "<think>a" -> ("a", None)."""
    thoughts, closed, words = text.rpartition("</think>")
    if "<think>" in words:
        return words.partition("<think>")[2].strip("\n"), None
    thoughts = thoughts.lstrip().removeprefix("<think>").strip("\n")
    return thoughts, words.lstrip("\n") if closed else words


def reader_of_calls(chat, prompt, tools):
    """The reader of the calls that a template writes; prompt: its text of ASKED. ValueError."""
    call = assistant("", ("f", {"x": "V1V"}))
    try:
        written = chat.prompt([*ASKED, call, *said("tool", NEXT)]).partition(ASK)[2]
    except ValueError:
        written = ""
    if tools[0]["function"]["name"] not in prompt or "V1V" not in written:
        chat.refuse("has no tools; use another --format")
    head = prompt.partition(ASK)[2].removesuffix(chat.opened)
    reply = written.removeprefix(head).partition(chat.stop)[0]
    for read in (read_hermes_calls, read_llama_calls):
        if read(reply)[1] == [("f", {"x": "V1V"})]:
            return read
    chat.refuse(f"writes a tool call as {written.partition('V1V')[0][-60:]!r}...; known are Hermes "
                "JSON (Qwen2.5, Qwen3) and Llama's JSON; use another --format")


# Readers of tool calls: the words of a reply -> (what stands before, [(name, arguments), ...]).
# None stands for a call that cannot be read.

def read_hermes_calls(text):
    """<tool_call>{"name": "get", "arguments": {"items": "2 wax"}}</tool_call>: Qwen2.5, Qwen3."""
    before, *calls = text.split("<tool_call>")
    return before.rstrip("\n"), [read_call(call.partition("</tool_call>")[0], "arguments")
                                 for call in calls]


def read_llama_calls(text):
    """{"name": "get", "parameters": {"items": "2 wax"}}, and nothing behind: Llama 3.1, 3.2."""
    before, begins, call = text.partition("{")
    before = before.removesuffix("<|python_tag|>")
    return (before.strip(), [read_call(begins + call, "parameters")]) if begins else (text, [])


# ---- how a reply becomes an action --------------------------------------------------------------
# A reader of replies: text -> (action, complaint). A complaint is shown before the environment's
# next observation (agentgym: instead of it); its action is then empty and still costs a turn.
# The transcripts are of textcraft_small, as Trajectory.text prints them; "..." marks a cut.

def read_act(reply):
    """The reply is the action.
    <|user|>Crafting commands: ... craft 2 flour using 2 wax
    Goal: craft flour.<|end|><|assistant|>⟦get 2 wax<|end|>⟧ (reward 0)
    <|user|>Got 2 wax<|end|><|assistant|>⟦craft 2 flour using 2 wax<|end|>⟧ (reward 1)"""
    return reply.strip(), ""


def read_react(reply):
    """AgentGym's default: a thought, then the action.
    <|user|>Got 2 wax<|end|><|assistant|>⟦Thought: I hold everything for flour: I craft it.
    Action: craft 2 flour using 2 wax<|end|>⟧ (reward 1)"""
    before, found, action = reply.partition("Action:")
    if "Action:" in action:
        return "", "Your reply had several actions; give one."
    return action.strip(), "" if found else "Your reply had no line 'Action: ...'."


def read_think(reply):
    """RAGEN's form: <think>...</think><answer>a || b</answer>. The answer is the action.
    <|user|>Got 2 wax<|end|><|assistant|>⟦<think>I hold everything for flour: I craft it.</think>
    <answer>craft 2 flour using 2 wax</answer><|end|>⟧ (reward 1)"""
    opening = re.search(r"</think>\s*<answer>", reply)     # if it is not closed, no later one is
    answer, closed, _ = reply[opening.end():].partition("</answer>") if opening else ("", "", "")
    if not closed:
        return "", "Your reply had no <think>...</think><answer>...</answer>."
    return answer.strip(), ""


ASK_REACT = "Reply with 'Thought: ' and your reasoning, then on a line of its own 'Action: ' " \
            "and one action."
ASK_NOTE = "Earlier turns will not be shown again. Begin each reply with a line 'Note: ' that " \
           "holds all you must remember; it replaces the note before it."
ASK_LESSON = "The try has failed. Write in one or two sentences what went wrong and what you " \
             "will do differently. Then you try again."
CUT = "Your reply ended within its thoughts. Think less, then act."

NOTE = re.compile(r"^Note:(.*)\n?", re.MULTILINE)                       # one line
PLAN = re.compile(r"^Plan:(.*?)(?=^(?:Thought|Action|Plan|Note):|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Format:
    """A form of replies, by default `react`. Two others are `react` with an addition:

    plan: the first reply begins with a plan. It stays in view; the agent may write a new one.
        ... Goal: craft flour.<|end|><|assistant|>⟦Plan: To craft flour I still need 2 wax, ...
        Thought: To craft flour I still need 2 wax, which is raw: I get it.
        Action: get 2 wax<|end|>⟧ (reward 0)
    reflect: after a try that failed the agent writes a lesson and tries the task again (Reflexion,
        arXiv:2303.11366). One trajectory holds all tries; each has the whole horizon.
        <|user|>Could not find flour
        The try has failed. Write in one or two sentences what went wrong and ...<|end|>
        <|assistant|>⟦Flour is not found, it is crafted. I will get its wax first.<|end|>⟧ ...
        <|user|>Crafting commands: ... Goal: craft flour.<|end|><|assistant|>⟦Thought: To ..."""
    ask: str = ASK_REACT         # how the system message asks for it
    read: object = read_react    # reply -> (action, complaint)
    write: str = "Thought: {thought}\nAction: {action}"     # a reply, from a demonstration
    first: str = ""              # what the first reply begins with
    tries: int = 1               # of one task; after a failed one the agent writes a lesson
    keeps: dict[str, re.Pattern] = field(default_factory=dict)   # what stays in view, by its name

    def compose(self, thought, action, turn=0, note=None):
        """A demonstration's reply; of a file, which tells no thought apart, as it is there. note:
        its "Note: " line in the context mode `memory`."""
        if thought is None:
            return action
        template = self.write if turn else self.first + self.write
        reply = template.format(thought=thought, action=action)
        return reply if note is None else f"Note: {note}\n{reply}"


FORMATS = {
    "act": Format("Reply with one action and nothing else.", read_act, "{action}"),
    "react": Format(),
    "think": Format("Reply with <think>your reasoning</think><answer>your action</answer>; several "
                    "actions are joined by ' || '.", read_think,
                    "<think>{thought}</think><answer>{action}</answer>"),
    "plan": Format("Begin your first reply with 'Plan: ' and the steps you intend; later, write "
                   "'Plan: ' again only to change them. " + ASK_REACT,
                   first="Plan: {thought}\n", keeps={"plan": PLAN}),
    "reflect": Format(tries=2),
    "tool": Format("Act by calling a tool; make one call in each reply."),    # see Agent.read
    "agentgym": Format("", write="Thought:\n{thought}\n\nAction:\n{action}"),     # see Agent.manner
}
FormatName = Literal[tuple(FORMATS)]
ContextMode = Literal["full", "window", "memory"]      # all turns; the last ones; a note instead
Thinking = Literal["", "on", "off"]
HISTORY = {"keep": "earlier replies stay in view as they were sampled, thoughts included",
           "template": "every turn is a context rendered anew, as a chat server would show it"}
History = Literal[tuple(HISTORY)]


@dataclass
class Agent:
    """How the policy speaks: its chat template, the form of its replies, what it keeps in view."""
    tokenizer: object               # None: the policy is an API's and takes messages
    prompt: str = ""                # the environment's rules, as the system message
    format: FormatName = "act"
    context: ContextMode = "full"
    window: int = 3                 # turns in view in the mode "window"
    max_turn_tokens: int = 32       # a longer reply is cut
    max_context: int = 1024         # tokens in view; an episode that might exceed it is truncated
    temperature: float = 1.0
    history: History = "keep"       # what becomes of earlier turns, see HISTORY
    thinking: Thinking = ""         # the template's own switch; "": as the template has it
    module: object = None           # envs/<name>.py, for its NAME and TOOLS
    stop_ids: tuple = ()            # see Chat

    def __post_init__(self):
        self.tools = tools_of(self.module) if self.format == "tool" else {}
        self.manner = self.format == "agentgym" and manner_of(self.module.NAME)  # envs/_agentgym.py
        self.chat = self.tokenizer and Chat(
            self.tokenizer, self.history, self.thinking,
            [schema for _, schema in self.tools.values()], self.stop_ids)

    def start(self):
        """The messages before the first observation: the rules and the form of a reply."""
        parts = [self.manner.rules if self.manner else self.prompt, FORMATS[self.format].ask,
                 ASK_NOTE * (self.context == "memory")]
        text = "\n\n".join(filter(None, parts))
        return said("user", text) + [assistant(self.manner.agreed)] if self.manner \
            else said("system", text)

    def first(self, observation):
        """A first observation as the policy reads it."""
        return self.manner.first(observation, self.prompt) if self.manner else observation

    def read(self, words, message):
        """A reply without its thoughts, and as a message -> (action, complaint)."""
        if self.format != "tool":
            return (self.manner or FORMATS[self.format]).read(
                NOTE.sub("", words) if self.context == "memory" else words)
        there_are = f"There are: {', '.join(self.tools)}."
        if not message.get("tool_calls"):
            return "", "Your reply had no tool call, several, or one that cannot be read; make " \
                       f"one. {there_are}"
        name, arguments = (message["tool_calls"][0]["function"][x] for x in ("name", "arguments"))
        if type(arguments) is str:
            arguments = json.loads(arguments)                   # as an API sends them
        form, _ = self.tools.get(name, (None, None))
        if form is None or {*re.findall(r"{(\w+)}", form)} != {*arguments}:
            return "", f"Your call {name}({', '.join(arguments)}) fits no tool. {there_are}"
        return form.format(**arguments), ""


@dataclass(eq=False)            # compared by identity, so that it can be the key of a dict
class World:
    """One environment as it is played: where, and how the policy speaks there. The agents of one
    policy's worlds have the same tokenizer, longest reply and temperature."""
    client: EnvClient           # its servers
    agent: Agent
    most_turns: float = math.inf    # of an episode, whatever horizon is asked for
    known: object = None        # the task ids that its servers know; None: all

    @property
    def module(self):
        """The environment's file, envs/<name>.py."""
        return self.agent.module

    def at_temperature(self, temperature):
        """The same world, played at another temperature."""
        return replace(self, agent=replace(self.agent, temperature=temperature))


class Episode:
    """One trajectory in the making: what to ask of the environment, what to show the policy.

    `request` is what the environment must answer next: ("reset", (task_id, luck)) or ("step",
    action). While it is None the policy must reply, unless the episode is `over`.
    key: the seed of the episode, a tuple of ints; in training (seed, step, wave, place, member).
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
        luck = np.random.default_rng((*key, 2**32 - 1)).integers(2**31)
        self.first_request = ("reset", (task_id, int(luck)))     # of every try: the same luck
        self.request, self.over, self.reflecting = self.first_request, False, False

    def uniforms(self):
        """A number in [0, 1) for each token that this turn's reply may have."""
        generator = np.random.default_rng((*self.trajectory.key, len(self.trajectory.turns)))
        return generator.random(self.agent.max_turn_tokens)

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
        self.answer(chat.opened + text, chat.message(text))

    def answer(self, text, message):
        """Take the policy's reply as text and as a message, and set the request that follows."""
        turn = self.trajectory.turns[-1]
        digest = hashlib.blake2b(self.observation.encode(), digest_size=8).digest()
        turn.observation_hash = int.from_bytes(digest, "big") >> 1   # unlike hash(), on any machine
        self.messages.append(message)
        _, words = split_thoughts(text)
        if self.reflecting:
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
        self.observation = self.complaint or observation if self.agent.manner else \
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
        anew = agent.context == "memory" or \
            agent.context == "window" and len(self.history) > agent.window
        if anew or not self.messages:
            self.messages = agent.start()
            self.messages += shortened(self, text) if anew else said("user", text)
        else:
            self.messages += answer_to(self.messages[-1], text)
        if not agent.chat:
            return
        if anew or agent.history == "template" or not trajectory.contexts:
            trajectory.begin_context(agent.chat.opening(self.messages))
        else:
            role = self.messages[-1]["role"]
            trajectory.add_observation(agent.chat.between_replies(text, role))
        if len(trajectory.context) + agent.max_turn_tokens > agent.max_context:
            trajectory.truncated, self.over = "context", True


def shortened(episode, text):
    """The messages of a shortened context: the task, what the agent wrote to keep, the end.
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


# ---- demonstrations -----------------------------------------------------------------------------
# As `envs.record` and envs/_agentgym.py's `read_trajectories` give them.

def agents_of(cfg, tokenizer=None):
    """{environment: an Agent that truncates nothing}."""
    return {name: Agent(tokenizer, load_env(name).PROMPT, cfg.format, cfg.context,
                        max_turn_tokens=1, max_context=10**9, history=cfg.history,
                        thinking=cfg.thinking, module=load_env(name))
            for name in cfg.env.split(",")}


def tokenizer_of(demos, cfg):
    """A tokenizer of what a tiny policy reads and writes in these demonstrations; TINY_TEMPLATE
    leaves the rules out."""
    agents, texts = agents_of(cfg), []
    for demo in demos:
        agent = quoting(agents[demo["env"]], demo)
        texts += [m["content"] for m in agent.start() if m["role"] != "system"]
        for i, (observation, thought, action, *_) in enumerate(demo["turns"]):
            texts += [observation if i else agent.first(observation),
                      FORMATS[agent.format].compose(thought, action, i)]
    return make_tokenizer(texts, cfg.vocabulary, *(
        agent.module.ONE_WORD for agent in agents.values() if hasattr(agent.module, "ONE_WORD")))


def trajectories_of(demos, tokenizer, cfg):
    """Demonstrations as Trajectories. ValueError: half of them do not fit into cfg's limits, so
    that a policy which imitates them would be cut when it plays."""
    agents = agents_of(cfg, tokenizer)
    trajectories = [imitated(agents[demo["env"]], demo) for demo in demos]
    for name, lengths in (
            ("max_turn_tokens", [turn.end - turn.start for t in trajectories for turn in t.turns]),
            ("max_context", [b - a for t in trajectories for a, b in itertools.pairwise(
                [*t.contexts, len(t.token_ids)])])):
        if lengths and statistics.median(lengths) > getattr(cfg, name):
            raise ValueError(f"{name}={getattr(cfg, name)}: half of the demonstrations need more, "
                             f"up to {max(lengths)}; give --{name.replace('_', '-')}")
    return trajectories


def quoting(agent, demo):
    """The agent; for a demonstration of a file one that takes every reply as it is and, in the
    format agentgym, opens with the file's words. ValueError: the format would change its words."""
    if "opening" not in demo:
        return agent
    own = copy.copy(agent)
    own.read = lambda words, message: (words, "")
    if agent.manner:
        rules, agreed = demo["opening"] or (agent.manner.rules, agent.manner.agreed)
        own.manner = Manner(rules, None, agreed=agreed)
    elif demo["env"] in ("maze", "wordle"):
        raise ValueError(f"{demo['env']}: its files hold AgentGym's rules within the first "
                         "observation; use --format agentgym")
    return own


def imitated(agent, demo):
    """A demonstration as a Trajectory: its replies stand where a policy's own would, mask and all,
    because the same Episode writes it. Of a file's replies those are trained on that it marks."""
    agent = quoting(agent, demo)
    episode = Episode(agent, demo["task_id"], (0,), len(demo["turns"]))
    trajectory, turns = episode.trajectory, demo["turns"]
    episode.observe(turns[0][0])
    for i, (_, thought, action, reward, done, info) in enumerate(turns):
        if episode.over:
            break
        note = "; ".join(turn[2] for turn in turns[:i]) if agent.context == "memory" else None
        ids = agent.chat.encode(FORMATS[agent.format].compose(thought, action, i, note))
        episode.reply([*ids, agent.chat.stop_id], [0.0] * (len(ids) + 1))
        episode.observe(turns[i + 1][0] if i + 1 < len(turns) else demo["last"], reward, done, info)
    if "trained" in demo:
        trajectory.score = max(agent.module.SUCCESS, 1.0)
        for turn, trained in zip(trajectory.turns, demo["trained"]):
            if not trained:
                trajectory.response_mask[turn.start:turn.end] = [0] * (turn.end - turn.start)
        trajectory.turns = [t for t, trained in zip(trajectory.turns, demo["trained"]) if trained]
    return trajectory


# ---- playing ------------------------------------------------------------------------------------

@torch.inference_mode()
def play(policy, world, task_id, horizon, key=(0, 0, 0)):
    """One episode, the slow and obvious way: `collect` must give exactly this -> Trajectory.
    Every token is drawn from a forward pass over the whole context. key: see Episode. EnvError."""
    agent, client = world.agent, world.client
    episode, session = Episode(agent, task_id, key, min(horizon, world.most_turns)), None
    try:
        while not episode.over:
            if episode.request:
                (answer,) = client.answer([(session, *episode.request)])
                if isinstance(answer, EnvError):
                    raise answer
                session = answer.session
                episode.observe(answer.observation, answer.reward, answer.done, answer.info)
                continue
            uniforms = torch.tensor(episode.uniforms())
            while not episode.request:
                seen = torch.tensor(episode.seen, device=policy.device)
                logits = forward(policy, seen, layout_for(policy, [len(seen)]), logits_to_keep=1)
                uniform = uniforms[len(episode.token_ids)][None]
                token, logprob = sample(logits, uniform, agent.temperature)
                episode.sampled(token.item(), logprob.item())
    finally:
        client.close()
    return episode.trajectory


def progress(items, what, **options):
    """The items, with a bar: on a terminal, of one rank, for what takes more than two seconds."""
    silent = os.environ.get("RANK", "0") != "0" or None            # None: if it is no terminal
    return tqdm(items, **dict(desc=what, leave=False, delay=2, disable=silent) | options)


@dataclass
class Stats:
    """What `collect` counted besides the trajectories; + joins those of several calls or ranks."""
    dropped: int = 0                # groups left out because their environment kept failing
    failures: list[EnvError] = field(default_factory=list)    # of each request that failed
    seconds: Counter = field(default_factory=Counter)     # environment, prefill, decode, sampling
    tokens: Counter = field(default_factory=Counter)      # as the engine counts them
    pages: int = 0                  # most in use at a time
    preempted: int = 0              # how often a sequence lost its pages to another

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
            max_concurrent=None, retries=2, finished=None):
    """Many episodes at once on paged KV memory -> (trajectories, Stats).

    tasks: [(World, task id)]; each is played by group_size members, adjacent in the result. A group
    with a member whose environment failed `retries` + 1 times is left out whole: it is no reward of
    0. An episode's key is (*key, place, member). places[i] is the place of tasks[i] in the whole
    step (i by default), so that a rank draws the numbers that one process would.
    finished(the group's Episodes) is called as soon as a group is played. EnvError when no group
    could be played, ServersGone when no server has answered for the client's patience. If the
    agents have no chat, the engine is an API: engine.speak(episode) gives it its next reply."""
    if not tasks:
        return [], Stats()
    engine = engine or make_engine(policy, tasks[0][0].agent, len(tasks) * group_size,
                                   max_concurrent)
    places = places or range(len(tasks))
    slots = [Slot(Episode(world.agent, task_id, (*key, places[group], member),
                          min(horizon, world.most_turns)), group, world.client)
             for group, (world, task_id) in enumerate(tasks) for member in range(group_size)]
    scheduler = Scheduler(slots, engine, retries, finished)
    scheduler.run()
    stats = scheduler.stats
    kept = [slot for slot in slots if slot.group not in scheduler.lost]
    if not kept:
        raise EnvError(f"no episode could be played: {stats.failures[-1]}")
    stats.dropped, stats.tokens = len(scheduler.lost), engine.tokens.copy()
    return [slot.episode.trajectory for slot in kept], stats


def make_engine(policy, agent, episodes, max_concurrent=None, memory=None):
    """An engine with rows and pages for `episodes` at a time, within `memory` bytes of KV."""
    rows = min(episodes, max_concurrent or episodes)
    size = PAGE_SIZES[policy.kernel]
    page_bytes = 2 * math.prod(kv_shape(policy.config)) * size * policy.compute_dtype.itemsize
    if memory is None and policy.device.type == "cuda":
        gc.collect()                            # models that nobody holds are cycles
        torch.cuda.empty_cache()                # what the update held and no longer needs
        memory = 0.8 * torch.cuda.mem_get_info(policy.device)[0]
    each = -(-agent.max_context // size)
    pages = max(each, min(rows * each, int((memory or 2**30) / page_bytes)))
    return Engine(policy.eval(), rows, pages, size, width=each)    # checkpointing: in updates only


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
    uniforms: np.ndarray = None     # of the reply that is being sampled
    failures: int = 0           # of its environment or its server


class Slots(dict):
    """state -> its slots, in the order in which they came to it (dicts serve as ordered sets)."""

    def __init__(self, slots):
        super().__init__({state: {} for state in get_args(State)}, waiting=dict.fromkeys(slots))
        self.everyone = slots

    def move(self, slot, state):
        del self[slot.state][slot]
        slot.state = state
        self[state][slot] = None

    @property
    def playing(self):
        """How many have started and are not done."""
        return len(self.everyone) - len(self["waiting"]) - len(self["done"])


class Scheduler:
    """The event loop: send requests, receive observations, prefill, decode one token; repeat.
    Here is the environments' side: who asks, and what an answer leads to."""

    def __init__(self, slots, engine, retries, finished=None):
        self.slots, self.engine = Slots(slots), engine
        self.retries, self.finished = retries, finished
        self.bar = progress(None, "episodes", total=len(slots))
        self.stats, agent = Stats(), slots[0].episode.agent
        self.sampler, self.chat = Sampler(engine, agent, self.slots, self.stats), agent.chat
        self.lost = set()                      # groups with a member whose environment kept failing
        self.answers = queue.SimpleQueue()     # futures of [(slot, answer)]
        self.idle = {slot.client: [] for slot in slots}     # sessions free to be used again
        self.batched = all(client.batched for client in self.idle)

    def run(self):
        try:
            with ThreadPoolExecutor(sum(client.connections for client in self.idle)) as pool:
                while self.slots["waiting"] or self.slots.playing:
                    self.start()
                    self.send(pool)
                    self.receive()
                    if self.chat:
                        self.sampler.prefill()
                        self.sampler.decode()
                    else:
                        ask_api(self.engine, self.slots, self.answers)
        finally:
            for slot in self.slots.everyone:
                self.release(slot)
            for client in self.idle:
                client.close()
            self.bar.close()

    def start(self):
        for slot in list(self.slots["waiting"])[:self.engine.rows - self.slots.playing]:
            idle = self.idle[slot.client]
            slot.session = idle.pop() if idle else None
            self.slots.move(slot, "asking")

    def send(self, pool):
        """A batched client gets all its requests in one call, when an eighth of the playing slots
        ask or nobody decodes. Otherwise each slot's request is a call of its own, in a thread."""
        few = len(self.slots["asking"]) < self.slots.playing // 8 and self.slots["decoding"]
        parcels = {}
        for slot in list(self.slots["asking"]):
            batched = slot.client.batched
            if not (batched and few):
                parcels.setdefault(slot.client if batched else slot, []).append(slot)
                self.slots.move(slot, "in flight")
        for parcel in parcels.values():
            pool.submit(self.exchange, parcel).add_done_callback(self.answers.put)

    def exchange(self, slots):                 # in a thread -> [(slot, Reply or EnvError)]
        answers = slots[0].client.answer([(s.session, *s.episode.request) for s in slots])
        return list(zip(slots, answers, strict=True))

    def receive(self):
        """Take the answers that are there, in the order of the requests. Batched clients' are all
        waited for, so that a run is the same to the bit; others' if there is nothing else to do."""
        wait = self.batched or not self.slots["decoding"] and not self.sampler.readable()
        order, came = {slot: i for i, slot in enumerate(self.slots["in flight"])}, []
        with self.stats.clock("environment"):
            while len(came) < len(order) and (wait or not self.answers.empty()):
                came += self.answers.get().result()
                wait = self.batched and self.chat
        for slot, answer in sorted(came, key=lambda pair: order[pair[0]]):
            self.take(slot, answer)

    def take(self, slot, answer):
        """Give a slot its answer: a Reply goes to its episode, an EnvError to `fail`; None: no
        environment answered, an API has given the episode its reply."""
        if isinstance(answer, EnvError):
            self.fail(slot, answer)
        elif answer:
            slot.session, trajectory = answer.session, slot.episode.trajectory
            before, contexts = slot.sequence and slot.episode.seen, len(trajectory.contexts)
            slot.episode.observe(answer.observation, answer.reward, answer.done, answer.info)
            if slot.sequence and len(trajectory.contexts) > contexts:
                # its pages hold the context before; what begins both lists is not read again
                same = os.path.commonprefix([before, trajectory.context[:-1]])
                self.engine.forget(slot.sequence, min(len(same), slot.sequence.length))
        if slot.group in self.lost or slot.episode.over:
            self.finish(slot)
        else:
            self.slots.move(slot, "asking" if slot.episode.request else "ready")

    def fail(self, slot, error):
        """The environment failed, after the client's own attempts: play the episode again, in a new
        session; after `retries` failures (20, if its server went away) give its group up."""
        self.stats.failures.append(error)
        slot.failures += 1
        if slot.failures > (20 if isinstance(error, ServerAway) else self.retries):
            self.lost.add(slot.group)
        self.release(slot)
        slot.session, old = None, slot.episode
        slot.episode = Episode(old.agent, old.trajectory.task_id, old.trajectory.key, old.horizon)

    def finish(self, slot):
        """The slot's episode is over or lost: give back what it holds; tell of a whole group."""
        self.release(slot)
        if slot.session:
            self.idle[slot.client].append(slot.session)
        self.slots.move(slot, "done")
        self.bar.update()
        if self.finished and slot.group not in self.lost:
            group = [s for s in self.slots.everyone if s.group == slot.group]
            if {s.state for s in group} == {"done"}:
                self.finished([s.episode for s in group])

    def release(self, slot):
        """Give the slot's pages and row back."""
        if slot.sequence:
            self.engine.release(slot.sequence)
            slot.sequence = None


def ask_api(api, slots, answers):
    """The policy's side if it is an API: each reply that is due is asked for in a thread. It is a
    daemon, so that Ctrl-C waits for none, and puts a future of [(slot, None)] among the answers."""
    def hear(slot, future):
        """Ask for one slot's reply, in a thread; what it raises goes to the future."""
        try:
            api.speak(slot.episode)
            future.set_result([(slot, None)])
        except BaseException as error:         # Scheduler.receive raises it
            future.set_exception(error)
        answers.put(future)

    for slot in list(slots["ready"]):
        slots.move(slot, "in flight")
        Thread(target=hear, args=(slot, Future()), daemon=True).start()


class Sampler:
    """The policy's side: contexts are prefilled, replies decoded, pages given and taken."""

    def __init__(self, engine, agent, slots, stats):
        self.engine, self.agent, self.slots, self.stats = engine, agent, slots, stats

    def readable(self):
        """Slots to prefill now. A first prompt waits for the group's other members, to be read
        once; while others decode, all wait until an eighth of the playing slots are ready."""
        awaited = self.slots["ready"] and {
            slot.group for state in ("asking", "in flight") for slot in self.slots[state]
            if not slot.episode.trajectory.contexts}
        ready = [s for s in self.slots["ready"] if s.sequence or s.group not in awaited]
        few = len(ready) < self.slots.playing // 8
        return [] if few and self.slots["decoding"] else ready

    def prefill(self):
        """Read what the readable slots have not read, equal first prompts once, and sample."""
        admitted = self.admit(self.readable())
        if not admitted:
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
            self.engine.active.append(slot.sequence)
            self.slots.move(slot, "decoding")
            slot.uniforms = slot.episode.uniforms()
        self.draw(list(row), logits[list(row.values())])

    def decode(self):
        """Read the last token of each slot that decodes, and sample the next one."""
        while self.engine.pages_short() > 0:                   # the first of them always goes on
            self.preempt(spare=next(iter(self.slots["decoding"])))
        slots = list(self.slots["decoding"])
        if not slots:
            return
        with self.stats.clock("decode"):
            logits = self.engine.decode(torch.tensor([s.episode.token_ids[-1] for s in slots]))
        self.draw(slots, logits)

    def draw(self, slots, logits):
        """Sample a token for each slot; a reply that has ended becomes a request."""
        self.stats.pages = max(self.stats.pages, self.engine.pages.in_use)
        with self.stats.clock("sampling"):
            uniforms = torch.tensor([s.uniforms[len(s.episode.token_ids)] for s in slots])
            drawn = sample(logits, uniforms.to(logits.device), self.agent.temperature)
            drawn = torch.stack([x.double() for x in drawn]).tolist()       # waits for a GPU once
            for slot, token, logprob in zip(slots, *drawn):
                slot.episode.sampled(int(token), logprob)
                if slot.episode.request:
                    self.engine.active.remove(slot.sequence)
                    self.slots.move(slot, "asking")

    def admit(self, ready):
        """The first of `ready` that fit into free pages; one page is left for each that decodes."""
        while True:
            admitted, room = [], len(self.engine.pages.free) - len(self.slots["decoding"])
            for slot in ready:
                held = len(slot.sequence.pages) if slot.sequence else 0
                need = -(-(len(slot.episode.seen) + 1) // self.engine.pages.page_size) - held
                if need > room:
                    break
                room -= need
                admitted.append(slot)
            if admitted or self.slots["decoding"] or not ready:
                return admitted
            self.preempt(spare=ready[0])         # all pages are held by slots that do not decode

    def preempt(self, spare):
        """Take the pages of the last slot that has any, except `spare`; it is read again later."""
        slot = next(s for s in reversed(self.slots.everyone)
                    if s.sequence and s.sequence.pages and s is not spare)
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
        """The rows of `index`, cut to the longest, or of each its tokens begin:end -> Batch."""
        picked = {name: x[index] for name, x in vars(self).items() if x is not None}
        longest = int((picked["token_ids"] >= 0).sum(1).max()) if len(index) else 1
        for name, x in picked.items():
            if x.dim() == 2 and name != "observation_hashes":
                picked[name] = x[:, begin:longest if end is None else end]
        return Batch(**picked)

    def parts(self, tokens, whole_rows=False):
        """What to compute at a time: arguments of `rows`, for at most `tokens` tokens (or a row, if
        whole_rows, or a context), longest rows first: attention pads the rows of a part, so their
        lengths should be alike. A longer row is cut between contexts, which are independent."""
        lengths = (self.token_ids >= 0).sum(1)
        parts, room = [], 0
        for row in lengths.argsort(descending=True, stable=True).tolist():
            if lengths[row] > tokens and not whole_rows:
                starts, begin = (self.position_ids[row, :lengths[row]] == 0).nonzero()[:, 0], 0
                for start, end in zip(starts.tolist(), [*starts[1:].tolist(), int(lengths[row])]):
                    if begin < start and end - begin > tokens:
                        parts.append(([row], begin, start))
                        begin = start
                parts.append(([row], begin, end))
                continue
            if room < lengths[row]:
                parts.append(([],))
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
        for start, end in zip(trajectory.contexts, [*trajectory.contexts[1:], n]):
            position_ids[row, start:end] = range(end - start)
        for index, turn in enumerate(trajectory.turns):
            turn_ids[row, turn.start:turn.end] = index
            token_rewards[row, turn.end - 1] = turn.reward
            hashes[row, index] = turn.observation_hash
    return Batch(*(torch.from_numpy(x).to(device) for x in (
        token_ids, position_ids, mask, old_logprobs, token_rewards, turn_ids,
        token_rewards.sum(1), hashes)))
