"""The pictures of docs/worlds.md and docs/results.md, drawn from the tables beside them.

    python -m tests.bench.pictures      writes worlds.png, results_rules.png, results_horizons.png

Each row of a table becomes a line of marks: success in % on held-out tasks, with one standard
error. The colours are Okabe and Ito's, which differ for the colour-blind as well; so do the marks'
shapes. What is drawn is also kept in the file as text, so that a test can tell when a table has
changed since.
"""
import json
import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"
# How each series is drawn: colour, mark, filled.
LOOKS = {"random player": (GREY, "|", True), "after cloning, greedy": (ORANGE, "o", False),
         "after RL, greedy": (BLUE, "o", True), "greedy": (BLUE, "o", True),
         "T=1": (ORANGE, "s", False)}
LEVELS = {"where all begin, greedy": (GREEN, "--"), "random player": (GREY, ":")}
RATE = re.compile(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


def rate(text):
    """What a text begins with, in %: "66.0 ± 3.0, 67.2 ± 2.9" -> (66.0, 3.0). An error that is not
    told is 0."""
    mean, error = RATE.match(text).groups()
    return float(mean), float(error or 0)


def table_after(text, anchor, head):
    """The rows of the first table behind the anchor whose head begins so, as lists of cells.
    ValueError: there is none."""
    _, found, lines = text.partition(anchor)[2].partition(f"\n{head}")
    if not found:
        raise ValueError(f"no table '{head}' behind '{anchor}'")
    rows = []
    # Behind the head's own end and the line of dashes.
    for line in lines.splitlines()[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.replace("**", "").split("|")]
        rows.append(cells[1:])
    return rows


def of_worlds():
    """The panel of worlds.png: the worlds of the table, each once."""
    text = (DOCS / "worlds.md").read_text()
    names = []
    series = {"random player": [], "after cloning, greedy": [], "after RL, greedy": []}
    for cells in table_after(text, "Other worlds", "| world | n | random |"):
        if cells[0].startswith("the same"):
            continue
        names.append(cells[0].partition(", seeds")[0])
        for name, cell in zip(series, cells[2:5]):
            series[name].append(rate(cell))
    return dict(title="", names=names, series=series, levels={})


def of_rules(title, start, head="| | greedy | T=1 |", table=None):
    """A panel of results.md: a row for each rule. start: words behind which stand the clone's rate
    and the random player's; table: those behind which the table stands, if others."""
    text = (DOCS / "results.md").read_text()
    names = []
    series = {"greedy": [], "T=1": []}
    at = head.split(" | ").index("greedy") - 1
    for cells in table_after(text, table or start, head):
        names.append(cells[0])
        series["greedy"].append(rate(cells[at + 1]))
        series["T=1"].append(rate(cells[at + 2]))
    told = text.partition(start)[2]
    levels = {"where all begin, greedy": rate(told.partition("The clone: greedy ")[2])[0],
              "random player": rate(told.partition("a random player ")[2])[0]}
    return dict(title=title, names=names, series=series, levels=levels)


def pictures():
    """{file: its panels}, read from the tables as they are now."""
    return {
        "worlds.png": [of_worlds()],
        "results_rules.png": [
            of_rules("textcraft_small, 60 steps", "# The papers' claims"),
            of_rules("sokoban, 40 steps", "The same in sokoban")],
        "results_horizons.png": [
            of_rules("textcraft_small, turns that an episode may take", "# The papers' claims",
                     "| | steps | greedy | T=1 |", "## ScalingInter-RL")]}


def draw(path, panels):
    """Write a picture of these panels, one below the other on one scale."""
    from matplotlib.figure import Figure
    heights = [0.7 + 0.27 * len(panel["names"]) for panel in panels]
    figure = Figure((8, 0.6 + sum(heights)), dpi=110, layout="constrained")
    every = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
    for axes, panel in zip(every.flat, panels):
        names = [textwrap.fill(name, 40) for name in panel["names"]]
        for name, level in panel["levels"].items():
            color, dashes = LEVELS[name]
            axes.axvline(level, color=color, ls=dashes, lw=1.2, label=name)
        for series, (name, rates) in enumerate(panel["series"].items()):
            color, mark, filled = LOOKS[name]
            means, errors = zip(*rates)
            # Slightly below each other: marks of like rates do not hide one another.
            below = 0.2 * (series - (len(panel["series"]) - 1) / 2)
            rows = [row + below for row in range(len(names))]
            axes.errorbar(means, rows, xerr=errors, fmt=mark, ms=7, mew=1.5, color=color, capsize=2,
                          mfc=color if filled else "white", label=name)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(left=-2)
        axes.set_title(panel["title"], fontsize=10)
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
    axes.set_xlabel("success on held-out tasks, % ± standard error")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9,
                  frameon=False)
    figure.savefig(path, metadata=dict(Description=json.dumps(panels)))


if __name__ == "__main__":
    for file, panels in pictures().items():
        draw(DOCS / file, panels)
        print(f"docs/{file}: {sum(len(panel['names']) for panel in panels)} rows")
