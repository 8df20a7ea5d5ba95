"""Successes of the built-in experts in AgentGym's own JSON (AgentTraj), for other trainers.

    python recipes/demos.py --env maze --set agenttraj --out maze.json     as many as AgentTraj has
    python recipes/demos.py --env textcraft,babyai --n 300 --out demos.json

Each demonstration gives its reasons in one of five wordings.
"""
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cloning import demonstrations_for
from envs import load_env
from envs.parts.agentgym import Manner
from flags import Natural, Worlds, flag, parse_flags
from run import one_sentence

WORDINGS = ("{}", "Let me think. {}", "{} So this is my next step.", "What do I know? {}",
            "{} That brings me closer to the goal.")
FORM = "Your response should use the following format:\nThought:\n<Your Thought>\n\n" \
       "Action:\n<Your Action>"


@dataclass
class Config(Worlds):
    out: str = flag("demos.json", "the file", heading="demonstrations")
    n: Natural = flag(300, "of each environment, as far as there are training tasks")
    set: str = flag("", "instead: as many as AgentGym's set has", ("", "agenttraj", "agenttraj_l"))
    seed: Natural = flag(0, "of everything random")

    # What `demonstrations_for` reads beside the flags.
    skill = 1.0
    goal = "task"
    demos = ""
    horizon = 0
    format = "agentgym"
    context = "full"


def write_trajectories(path, demos, seed):
    """Write the successes among an expert's demonstrations (envs.record) as a file of AgentTraj's
    form, its reasons in several wordings -> how many."""
    rng = random.Random(seed)
    items = []
    for demo in demos:
        module = load_env(demo["env"])
        messages = conversation(module, demo["turns"], rng)
        if demo["success"]:
            items.append(dict(item_id=f"{module.NAME}_{demo['task_id']}", conversations=messages))
    if not items:
        raise ValueError("no demonstration to write: the expert played none, or had no success")
    if os.path.exists(path):
        raise ValueError(f"{path} is there already; remove it, or give another --out")
    with open(path, "w") as file:
        json.dump(items, file, indent=1)
    return len(items)


def conversation(module, turns, rng):
    """The messages of a demonstration, human's and gpt's by turns."""
    manner = getattr(module, "AGENTGYM", None) or Manner(f"{module.PROMPT}\n{FORM}", None)
    messages = [message("human", None, manner.rules), message("gpt", False, manner.agreed)]
    seen = [move.observation for move in turns]
    seen[0] = manner.first(seen[0], module.PROMPT)
    for observation, move in zip(seen, turns):
        thought = rng.choice(WORDINGS).format(move.thought)
        reply = manner.write.format(thought=thought, action=move.action)
        messages += [message("human", None, observation), message("gpt", True, reply)]
    return messages


def message(who, loss, text):
    return {"from": who, "loss": loss, "value": text}


def main():
    with one_sentence("demos.py"):
        cfg, _ = parse_flags(Config, description=__doc__)
        demos = demonstrations_for(cfg)
        print("successes written:", write_trajectories(cfg.out, demos, cfg.seed))


if __name__ == "__main__":
    main()
