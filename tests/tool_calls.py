"""What the tests of the environments with named tools use: a call, by its arguments."""
from envs.parts import tools


def ask(env, tool, **arguments):
    """A tool's result, or the text that it refuses with."""
    observation, *_, info = env.step(tools.written(tool, arguments))
    assert observation.endswith("\nGive me one action.")
    if info["valid"]:
        result = env.results[env.written(tool, arguments)]
        assert observation == f"Observation: {result}\nGive me one action."
        return result
    return observation.removeprefix("Observation: ").removesuffix("\nGive me one action.")
