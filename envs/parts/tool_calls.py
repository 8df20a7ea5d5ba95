"""tool_calls: how models write the tool calls in their replies, and how a call is read."""
import json
import re

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
