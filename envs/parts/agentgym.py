"""How AgentGym's clients talk to a model: `--format agentgym`, for models that were trained there.

    user:       the rules of the environment
    assistant:  OK. I'll follow your instructions and try my best to solve the task.
    user:       the first observation; some put their long instructions before it
    assistant:  Thought:
                The walls leave one way.

                Action:
                move down

The words, and what is taken for an action, are a protocol: those of agentenv/agentenv/envs and
controller/utils.py in github.com/WooooDyy/AgentGym as of 3ef9235, with which AgentGym-RL (82402a9)
trains. AgentEvol-7B was trained with an older version (f434743), which differs: textcraft's rules
are shorter, sciworld's lack `examine`, the first of two actions counts and a bare reply is one.
Commit 0412982, which also takes "up" in maze and "look" in textcraft, is later than both.

Here is what the environments share. Each has a constant AGENTGYM, its Manner, and its words in a
file of its own, such as textcraft_prompt.py. Its files of trajectories are read by agenttraj.py.
"""
import re
from typing import NamedTuple

AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SEVERAL = "Error: Only one 'Action' is allowed per response. Please adjust your response."


# Readers of replies: text -> (action, complaint). A complaint is all that the model gets to see.

def read_line(reply):
    """The line behind "Action:", of which letters, digits, spaces and commas stay; without it "".
    """
    actions = re.findall(r"Action:\s*([^\n]*)", reply)
    if len(actions) > 1:
        return "", SEVERAL
    kept = re.sub("[^A-Za-z0-9, ]", "", "".join(actions))
    return " ".join(kept.split()), ""


def read_last(reply):
    """All behind the last "Action:". A reply without it is none, unless it holds one of the calls
    that a web shop takes: several clients share this reader."""
    action = reply.rpartition("Action:")[2]
    if action == reply and "search[" not in reply and "click[" not in reply:
        return "", ""
    return action.strip(), ""


def read_first(reply):
    """What stands behind the first "Action:", up to the next; without it the whole reply."""
    return reply.split("Action:")[:2][-1].strip(), ""


def as_it_came(observation, prompt):
    """What the model sees of a first observation, in most environments."""
    return observation


class Manner(NamedTuple):
    """How AgentGym's client of one environment talks to a model."""
    rules: str
    read: object                        # reply -> (action, complaint)
    # (observation, our PROMPT as the server changed it) -> what the model sees of the first one.
    first: object = as_it_came
    rules_first: bool = False           # whether `first` tells the rules
    agreed: str = AGREED                # the model's first words
    write: str = "Thought:\n{thought}\n\nAction:\n{action}"     # a reply in its files


def manner_of(module):
    """The Manner of this environment. ValueError: AgentGym does not have it."""
    if not hasattr(module, "AGENTGYM"):
        raise ValueError(f"format='agentgym': AgentGym has no {module.NAME}; use another format")
    return module.AGENTGYM
