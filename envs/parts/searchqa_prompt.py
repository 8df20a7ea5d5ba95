"""What AgentGym's client of searchqa tells a model, word for word: see agentgym.py."""

RULES = """\
You must always reason inside <think>...</think> first; if you lack knowledge, issue a \
<search>...</search> and then stop; do not generate <information> or <answer> yet; wait for \
external input between <information>...</information> before continuing; resume only when new \
<information> is given; do not skip steps or anticipate answers early."""

# What an original server writes before the question.
TASK = """\
You must reason inside <think>...</think> first. If you do not have enough knowledge, issue a \
<search>...</search> and then STOP. Do not generate <information> or <answer> yet. Wait for \
external input wrapped in <information>...</information>. After receiving information, reason \
again in <think>. If confident, output your final answer in <answer>...</answer>. Do not output \
<answer> before receiving <information> unless you are fully confident. If you find no further \
external knowledge needed, you can directly provide the answer inside <answer> and </answer>, \
without detailed illustrations. For example, <answer> Beijing </answer>. Follow this process every \
time.\n\n """


def read_whole(reply):
    """The reply as it is: the server looks for the action in it."""
    return reply, ""


def first(observation, prompt):
    """With the words that an original server writes before the question; its own has them."""
    return TASK + observation.removeprefix(TASK)
