"""pytest tests/more/test_templates.py: stop tokens and tools of real models' chat templates, as the
table "Chat templates" of docs/models.md has them; its other columns: tests/test_chat.py.
"""
import re

import pytest
from families import FAMILIES, FOLDER, WITHOUT_TRL
from test_chat import NAMES, SCHEMAS, TABLE, WORLD, agent_of, rendered

from chat import said
from envs.parts.tool_calls import HERMES, LLAMA

pytestmark = pytest.mark.skipif(FOLDER is None, reason=WITHOUT_TRL)


@pytest.mark.parametrize("name", NAMES)
def test_chat_finds_the_stop_tokens(name):
    family, who = FAMILIES[name], agent_of(name)
    assert f"`{family.stop}`" == TABLE[name]["stop"] and who.chat.stop == family.stop
    assert who.chat.stop_ids == set(who.tokenizer.convert_tokens_to_ids(
        [family.stop, family.eos, *family.others.split()]))


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_offered_by_the_template_or_refused(name):
    if TABLE[name]["tools"] in ("other", "–"):
        form = {"Q": "<function=f>", "G": "<tool_call>f", "L": "[f(x="}.get(name[0])
        why = f"writes a tool call as .*{re.escape(str(form))}.*; known are Hermes JSON" \
            if TABLE[name]["tools"] == "other" else "has no tools"
        with pytest.raises(ValueError, match=f"{re.escape(name)}: its chat template {why}"):
            agent_of(name, format="tool", module=WORLD)
        return
    who = agent_of(name, format="tool", module=WORLD)
    pattern = {"Hermes": HERMES, "Llama": LLAMA}[TABLE[name]["tools"]]
    assert who.chat.call_syntax == pattern
    talk = [*who.start(), said("user", "Go")]
    text, ids = rendered(name, talk, tools=SCHEMAS)
    assert who.chat.opening(talk) == ids and all(
        f'"name": "{s["function"]["name"]}"' in text for s in SCHEMAS)
