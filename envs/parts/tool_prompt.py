"""What AgentGym's clients of the environments with named tools tell alike, word for word: see
agentgym.py. Each environment's own tools, advice and example are in a file of its own.

An action is a tuple: its name with arguments, what it does, and the lines that follow.
"""
import re

from envs.parts.agentgym import Manner

HEAD = """\
You are an autonomous intelligent agent. You can use actions to help people solve problems.
We detail name, description, input(parameters) and output(returns) of each action as follows:
"""
FORM = """\
Please refer to the format of examples below to solve the requested goal. Please provide your \
thought to solve the question. You should give the thought with no more than 3 sentences. You need \
to give your thought together with your action!

Your response must be in the format of:
Thought: [your thought]

Action: [your action] with Action Input: [your action input]

Here is an example:

"""
CHECK = ("check_valid_actions()", "Get supported actions for current tool.",
         "Returns:\n- actions (Type: array): Supported actions for current tool.")
FINISH = ("finish(answer)", "Return an answer and finish the task", "Parameters:\n"
          "- answer (Type: ['string', 'number', 'array']): The answer to be returned")


def rules(actions, advice, example):
    """The text of all: how the tools are called, what to mind, an example."""
    told = [f"Name: {name}\nDescription: {does}" + "".join(f"\n{line}" for line in lines) + "\n\n"
            for name, does, *lines in actions]
    return HEAD + "".join(told) + advice + FORM + example


def read_tool(reply):
    """The whole reply: the server looks for the last line. A call on the line below "Action:", as
    the others write it, moves up, where the original's server finds it."""
    return re.sub(r"Action:\s*\n\s*", "Action: ", reply), ""


def manner(rules):
    """How the client of an environment with these rules talks to a model."""
    return Manner(rules, read_tool, agreed="Ok.", write="Thought: {thought}\n\nAction: {action}")
