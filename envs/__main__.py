"""python -m envs: every environment: tasks, horizon, engine, families, what it lacks here."""
import sys
import textwrap

from envs import known_envs, open_env


def listing():
    """What is printed, as text."""
    lines = []
    for name in known_envs():
        lacks = "nothing"
        try:
            open_env(name)
        except (ValueError, ImportError) as error:
            lacks = str(error)
        if module := sys.modules.get(f"envs.{name}"):       # else it lacks what its file imports
            program = getattr(module, "ENGINE", "our own")
            lines.append(f"{name}: {len(module.TRAIN)} train and {len(module.TEST)} test tasks, "
                         f"horizon {module.HORIZON}, engine: {program}")
            lines += textwrap.wrap(", ".join(module.FAMILIES), 96, initial_indent="    ",
                                   subsequent_indent="    ", break_on_hyphens=False)
        lines.append(f"    missing here: {lacks}" if module else f"{name}: missing here: {lacks}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(listing())
