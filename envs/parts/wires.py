"""What each original server of AgentGym calls its things: env_server.py speaks so, client.py too.

Rows of environments that are not here yet are there for their original servers.
"""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wire:
    """The JSON of one environment. A shape is a reply without its values: "{id reward}" stands for
    {"id": 3, "reward": 0}, "[observation null]" for ["Crafting ...", null], "env_idx" for 3 alone.
    `shaped` finds a word in the session's last answer or in its Env (sciworld's task_name)."""
    id_key: str = "id"
    task_key: str = "data_idx"
    task_required: bool = True      # if not, a reset without it plays TRAIN[0]
    task_wraps: bool = False        # whether ids beyond the last count on from the first
    create: str = "{id}"            # with an observation in it, create also resets
    reset: str = "{id observation reward done}"
    step: str = "{observation reward done}"
    closed: object = True           # what /close answers when it closed one
    look: dict = field(default_factory=dict)    # GET path: shape; in CAPITALS, a module's constant


B = dict(id_key="env_idx", create="env_idx")    # the second dialect
TOOL = Wire(**B, task_key="id", task_required=False, reset="observation")
WIRES = {   # where AgentGym differs from Wire(); sokoban and yours need no row
    "babyai": Wire(reset="{observation reward score deleted done}",
                   step="{observation reward score done}",
                   look={"observation": "{observation reward score done deleted}"}),
    "textcraft": Wire(create="{id observation done reward}", task_required=False),
    "sciworld": Wire(step="{observation reward score done}", reset="{task_name var_num "
                     "task_description observation reward score deleted done}",
                     look={"task_description": "task_description"}),
    "alfworld": Wire(task_key="game", reset="{id observation available_actions task_type}",
                     step="{observation reward available_actions done}",
                     look={"available_actions": "available_actions"}),
    "maze": Wire(task_key="game", reset="{observation}", look={"available_actions": "ACTIONS"}),
    "wordle": Wire(task_key="seed", task_wraps=True, reset="{id observation}",
                   look={"filtered_vocab": "filtered_vocab"}),
    "webshop": Wire(**B, task_key="session_id", task_required=False, reset="[observation null]",
                    step="{state reward done}", look={
                        "available_actions": "available_actions", "state": "{url html "
                        "instruction_text}", "instruction_text": "instruction_text"}),
    "bird": Wire(**B, task_key="item_id", reset="[observation null]", step="{state reward done}"),
    "webarena": Wire(id_key="env_idx", create="{env_idx}", task_key="idx",
                     reset="{observation sites object}", closed={"closed": "closed"},
                     step="{observation reward terminated truncated}",
                     look={"observation_metadata": "observation_metadata"}),
    "searchqa": Wire(**B, task_key="id", reset="prompted", look={"observation": "prompted"}),
    "weather": TOOL, "movie": TOOL, "academia": TOOL, "sheet": TOOL, "todo": TOOL,
}
