"""tool_calls: how models write the tool calls in their replies, and how a call is read."""
import json
import re
from functools import partial

HERMES = re.compile("<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)    # of Qwen2.5, Qwen3:
# <tool_call>{"name": "get", "arguments": {"items": "2 wax"}}</tool_call>
LLAMA = re.compile(r"(?:<\|python_tag\|>)?({.*)", re.DOTALL)            # of Llama 3.1, 3.2:
# {"name": "get", "parameters": {"items": "2 wax"}}, and nothing behind


def read_calls(pattern, text):
    """The words of a reply -> (what stands before its calls, [(name, arguments), ...]). None stands
    for a call that cannot be read."""
    calls = list(pattern.finditer(text))
    before = text[:calls[0].start()].rstrip("\n") if calls else text
    return before, [read_call(call[1]) for call in calls]


def read_call(text):
    """JSON -> (name, {argument: text or number}), or None."""
    try:
        call = json.loads(text)
        json.dumps(call, ensure_ascii=False).encode()           # no half of a surrogate pair
        name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        plain = {type(x) for x in [name, *arguments.values()]} <= {str, int, float}
        return (name, arguments) if plain and type(name) is str else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def assistant(content, *calls):
    """A reply with its tool calls (name, arguments), as OpenAI's API writes it."""
    calls = [dict(type="function", id=f"call{n:05}", function=dict(name=name, arguments=arguments))
             for n, (name, arguments) in enumerate(calls)]
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def reader_of(chat, asked, tools):
    """The reader of the calls that a chat template writes: text -> as `read_calls` has it. chat:
    chat.py's Chat; asked: messages that it may answer by a call. ValueError: it has no tools."""
    call = assistant("", ("f", {"x": "V1V"}))
    prompt = chat.prompt(asked)
    try:
        written = chat.prompt([*asked, call, dict(role="tool", content="V2V")])
    except ValueError:
        written = ""
    if tools[0]["function"]["name"] not in prompt or "V1V" not in written:
        chat.refuse("has no tools; use another --format")
    reply = written.removeprefix(prompt.removesuffix(chat.opened)).partition(chat.stop)[0]
    for pattern in (HERMES, LLAMA):
        if read_calls(pattern, reply)[1] == [("f", {"x": "V1V"})]:
            return partial(read_calls, pattern)
    chat.refuse(f"writes a tool call as {written.partition('V1V')[0][-60:]!r}...; known are Hermes "
                "JSON (Qwen2.5, Qwen3) and Llama's JSON; use another --format")


def action_of(message, tools):
    """A reply as a message -> (the action that its call means, complaint). tools: {name: (the
    action's form, schema)}."""
    there_are = f"There are: {', '.join(tools)}."
    if not message.get("tool_calls"):
        return "", "Your reply had no tool call, several, or one that cannot be read; make one. " \
                   f"{there_are}"
    name, arguments = (message["tool_calls"][0]["function"][x] for x in ("name", "arguments"))
    if type(arguments) is str:
        arguments = json.loads(arguments)                       # as an API sends them
    form, _ = tools.get(name, (None, None))
    if form is None or {*re.findall(r"{(\w+)}", form)} != {*arguments}:
        return "", f"Your call {name}({', '.join(arguments)}) fits no tool. {there_are}"
    return form.format(**arguments), ""
