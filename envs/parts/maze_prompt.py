"""What AgentGym's client of maze tells a model, word for word: see agentgym.py."""
import re

RULES = "You are an expert maze solver."

# Its instructions stand before the first observation.
WALK = """\
5, 6. There is a wall above you. left
5, 5. There are walls above you, below you. left
5, 4. There are walls above you, below you. up
5, 4. There are walls above you, below you. left
5, 3. There are walls to your left, below you. down
5, 3. There are walls to your left, below you. left
5, 3. There are walls to your left, below you. down
5, 3. There are walls to your left, below you. left
5, 3. There are walls to your left, below you. right
5, 4. There are walls above you, below you. down
5, 4. There are walls above you, below you. right
5, 5. There are walls above you, below you. right
5, 6. There is a wall above you. down
6, 6. There are walls to your right, to your left. down
7, 6. There are walls to your right, to your left. right
7, 6. There are walls to your right, to your left. down"""
EXAMPLE = re.sub("(?m)^(.*) ([a-z]+)$", r"environment: The goal is at position 8, 6. Your current "
                 r"position is at position \1\naction: move \2", WALK)

MAZE = f"""\
Your objective is to reach the goal in as few steps as possible. At each step you will be given \
information about where the goal is, your current position,
and the walls that surround you. \n
When you move right you increase your y position by 1, when you move down you increase your x \
position by 1. \n
Here is an example.

```
{EXAMPLE}
environment: Success
```

Your possible actions are "move up", "move down", "move left", "move right". Formally, your return \
should be in this format:
Thought:
<Your Thought>

Action:
<Your Action>

Now let's start a new game. Return your action and your thought in the format above strictly. Now, \
make the optimal action given the current environment state:
"""


def first(observation, prompt):
    return MAZE + observation
