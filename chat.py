"""chat: all that knows text: messages to ids by a template, reply formats, a tiny tokenizer.

    messages --Chat.opening--> ids of a context --policy--> ids of a reply --Agent.read--> action

`Agent` says how a policy speaks in an environment: rollout.py's `Episode` asks it for the messages
that the policy is shown and for the action that a reply means.
"""
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envs import tools_of
from envs.parts.agentgym import manner_of
from envs.parts.tool_calls import action_of, assistant, reader_of


# ---- text to tokens -----------------------------------------------------------------------------

def said(role, content):
    return [{"role": role, "content": content}]


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


FIXED_DATE = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}"      # before any template
# With this conversation a template is tried out; rules and replies may hold OF_REPLIES.
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
        self.source = tokenizer.get_chat_template(tools=tools or None)
        self.encode = partial(tokenizer.encode, add_special_tokens=False)
        self.between_replies = lru_cache(4096)(self.between_replies)     # observations recur
        # Llama 3.2's template tells the date: a run would depend on its day
        self.options = dict(tools=tools or None, chat_template=FIXED_DATE + self.source)
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
        self.read_calls = reader_of(self, ASKED, tools) if tools else lambda text: (text, [])

    def refuse(self, why):
        raise ValueError(f"{self.name}: its chat template {why}")

    def _find_shape(self):
        """How this template takes messages: as they are, or with the rules in the first user
        message (Gemma has no system role)."""
        rules = [] if self.source == TINY_TEMPLATE else [RULES]
        for self.rules_in_user in (False, True):        # the first that fits stays set
            with suppress(ValueError):
                text = self.prompt(ASKED + REPLIED + said("user", NEXT))
                if re.findall("S1S|Q1Q|R1R|Q2Q", text) == [*rules, ASK, REPLY, NEXT]:
                    return
        self.refuse("does not show rules, then user and assistant in turn; use another")

    def _switch(self, thinking):
        """Turn the template's own switch, by Qwen's and GLM's name for it and by DeepSeek's."""
        texts = set()
        for on in (thinking == "off", thinking == "on"):       # the last stays: what is asked for
            self.options |= dict(enable_thinking=on, thinking=on)
            texts.add(self.prompt(said("user", ASK)))
        if len(texts) == 1:
            self.refuse("has no switch for thinking; leave --thinking out")

    def _check_that_tokens_can_be_appended(self, prompt, tail):
        """What stands between replies must not depend on the turn, but for thoughts and spaces:
        those stay in view as they were sampled, whatever the template would make of them."""
        whole = self.prompt(ASKED + 2 * (REPLIED + said("user", NEXT)))
        whole, appended = (re.sub(r"\s+|</?think>", "", text)
                           for text in (whole, prompt + 2 * (REPLY + tail)))
        if whole != appended:
            self.refuse("rewrites earlier messages when later ones arrive, so tokens cannot be "
                         "appended; use --history template, which renders every turn anew")

    def prompt(self, messages):
        """A conversation as text, up to where the reply begins. ValueError: it is refused."""
        if self.rules_in_user and messages[0]["role"] == "system":
            rules, first, *rest = messages
            messages = said("user", f"{rules['content']}\n\n{first['content']}") + rest
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.options)
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


# ---- how a reply becomes an action --------------------------------------------------------------
# A reader of replies: text -> (action, complaint). A complaint is shown before the environment's
# next observation (agentgym: instead of it); its action is then empty and still costs a turn.
# The transcripts are of textcraft_small, as report.py prints them; "..." marks a cut.

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
    opening = re.search(r"</think>\s*<answer>", reply)     # an unclosed one: so are all after
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


@dataclass(kw_only=True)
class Speaks:
    # how the agent speaks
    format: FORMATS = "act"       # form of a reply; chat models: react
    context: Literal["full", "window", "memory"] = "full"   # in view: all turns, the last, a note
    history: Literal["keep", "template"] = "keep"   # earlier turns: as sampled, or rendered anew
    thinking: Literal["", "on", "off"] = ""     # the template's switch; empty: as it has it
    max_turn_tokens: int = 24     # a longer reply is cut; chat models: 512
    max_context: int = 512        # tokens in view, else the episode is truncated; chat models: 8192


@dataclass
class Agent(Speaks):
    """How the policy speaks: its chat template, the form of its replies, what it keeps in view."""
    tokenizer: object               # None: the policy is an API's and takes messages
    prompt: str = ""                # the environment's rules, as the system message
    window: int = 3                 # turns in view in the mode "window"
    temperature: float = 1.0
    module: object = None           # envs/<name>.py, for its NAME and TOOLS
    stop_ids: tuple = ()            # see Chat

    def __post_init__(self):
        if self.max_turn_tokens < 1:
            raise ValueError(f"max_turn_tokens={self.max_turn_tokens}: expected 1 or more")
        self.tools = tools_of(self.module) if self.format == "tool" else {}
        self.manner = self.format == "agentgym" and manner_of(self.module)
        self.chat = self.tokenizer and Chat(
            self.tokenizer, self.history, self.thinking,
            [schema for _, schema in self.tools.values()], self.stop_ids)

    def start(self):
        """The messages before the first observation: the rules and the form of a reply."""
        parts = [self.manner.rules if self.manner else self.prompt, FORMATS[self.format].ask,
                 ASK_NOTE * (self.context == "memory")]
        text = "\n\n".join(filter(None, parts))
        return (said("user", text) + [assistant(self.manner.agreed)]) if self.manner \
            else said("system", text)

    def first(self, observation):
        """A first observation as the policy reads it."""
        return self.manner.first(observation, self.prompt) if self.manner else observation

    def read(self, words, message):
        """A reply without its thoughts, and as a message -> (action, complaint)."""
        if self.format != "tool":
            return (self.manner or FORMATS[self.format]).read(
                NOTE.sub("", words) if self.context == "memory" else words)
        return action_of(message, self.tools)
