"""What env_server.py answers: AgentGym's verbs in each environment's own words, and ours.

    shaped("{id observation}", session)     our session -> what the original's client expects
    VERBS["create"](service, {})            a verb: (env_server.Service, body) -> JSON value

The other direction, an original server behind ours, is original.py.
"""
import re
from dataclasses import dataclass, field
from functools import partial

from envs.parts.answers import MAX_ITEMS


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


def wire_of(name):
    return WIRES.get(name, Wire())


LOOK = {"observation": "observation", "detail": "{id observation reward done deleted}"}


def shaped(shape, session):
    """The session's last answer in the shape that the environment's own clients expect."""
    answer, values = session.answer, {}
    words = {**answer, "env_idx": session.id, "null": None, "deleted": False, "truncated": False,
             "state": answer["observation"], "terminated": answer["done"],
             "score": answer["info"]["score"]}
    for word in shape.strip("{[]}").split():
        value = words[word] if word in words else getattr(session.env, word)
        values[word] = value() if callable(value) else value
    if shape[0] == "{":
        return values
    return list(values.values()) if shape[0] == "[" else values[shape]


def reset_shaped(wire, session):
    """The answer to /reset. The original's clients join sciworld's task and room, alfworld's room
    and commands; ours come joined."""
    reply = shaped(wire.reset, session)
    if "task_description" in wire.reset:
        room = reply["observation"].removeprefix(reply["task_description"])
        reply |= {"observation": room.lstrip(), "reward": reply["score"]}       # as the original
    if "available_actions" in wire.reset:
        reply["observation"] = reply["observation"].partition("\nAVAILABLE ACTIONS: ")[0]
    return reply


class Refused(Exception):
    """A request that gets no ordinary answer: its status, one sentence, FastAPI's "detail"."""

    def __init__(self, status, sentence, detail=None):
        super().__init__(sentence)
        self.status, self.detail = status, detail


def field_of(body, key, kind, required=True):
    """body[key] of exactly this type, or a 422 in the form of the original's FastAPI."""
    value = body.get(key) if isinstance(body, dict) else body
    if isinstance(body, dict) and (type(value) is kind or value is None and not required):
        return value
    problem, words = ("missing", "Field required") if value is None else \
        (f"{kind.__name__}_type", f"Input should be {kind.__name__}")
    raise Refused(422, f"body.{key}: {words}",
                  [{"type": problem, "loc": ["body", key], "msg": words}])


# ---- the original's verbs -----------------------------------------------------------------------

def create(service, body):
    with service.hold() as session:
        if "observation" in service.wire.create:
            train = service.module.TRAIN
            session.reset(service.env_class, train[session.id % len(train)])
        return shaped(service.wire.create, session)


def reset(service, body):
    wire, module = service.wire, service.module
    with service.hold(field_of(body, wire.id_key, int)) as session:
        session.ready = False           # their clients pass over an error, and must not play on
        task_id = field_of(body, wire.task_key, int, wire.task_required)
        task_id = module.TRAIN[0] if task_id is None else task_id
        if wire.task_wraps:
            task_id %= 1 + max(module.TRAIN[-1], module.TEST[-1])
        session.reset(service.env_class, task_id, body.get("stream"))
        return reset_shaped(wire, session)


def step(service, body):
    action = field_of(body, "action", str)
    with service.hold(field_of(body, service.wire.id_key, int)) as session:
        session.step(action)
        return shaped(service.wire.step, session) | {"info": session.answer["info"]}


def close(service, body):
    return service.close(field_of(body, service.wire.id_key, int)) and service.wire.closed


def look(service, path, query):
    """GET: whether the server lives, and what a session shows."""
    key = service.wire.id_key
    if path == "":
        return f"This is environment {service.name}." if key == "id" else "ok"
    if path == "list_envs":
        return list(service.sessions)
    shape = (LOOK | service.wire.look).get(path)
    if shape is None:
        raise Refused(404, f"there is no GET /{service.name}/{path}", "Not Found")
    if shape.isupper():
        return list(getattr(service.module, shape))
    number = re.search(rf"\b{key}=([0-9]{{1,18}})(&|$)", query)
    with service.hold(field_of({key: int(number[1])} if number else {}, key, int)) as session:
        if shape != "filtered_vocab":       # wordle's client asks for the words before it resets
            session.check_ready()
        session.env = session.env or service.env_class()
        return shaped(shape, session)


# ---- ours: many episodes in a request, in the same words in every environment -------------------

def reset_item(service, item):
    with service.hold(field_of(item, "id", int, required=False)) as session:
        return session.reset(service.env_class, field_of(item, "task", int), item.get("stream"))


def step_item(service, item):
    action = field_of(item, "action", str)
    with service.hold(field_of(item, "id", int)) as session:
        return session.step(action)


def for_each(act, service, body):
    """Answers in the order of the items. They are executed in that order, too, or side by side in
    threads where the engine frees Python's lock and no two are of one session."""
    items = field_of(body, "items", list)
    if len(items) > MAX_ITEMS:
        raise Refused(422, f"{len(items)} items; {MAX_ITEMS} are the most", "too many items")

    def answer_one(item):
        try:
            return act(service, item)
        except Refused as refusal:
            return {"error": str(refusal), "status": refusal.status}
    ids = [str(item["id"]) for item in items if isinstance(item, dict) and "id" in item]
    side_by_side = service.pool and len(ids) == len(set(ids))
    return {"items": list((service.pool.map if side_by_side else map)(answer_one, items))}


def closes(service, body):
    return {"items": [type(session_id) is int and service.close(session_id)
                      for session_id in field_of(body, "ids", list)]}


VERBS = dict(create=create, reset=reset, step=step, close=close,
             resets=partial(for_each, reset_item), steps=partial(for_each, step_item),
             closes=closes)
