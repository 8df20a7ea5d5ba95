"""pytest tests/more/test_pictures.py: the pictures of docs/ show what the tables beside them say.

Without matplotlib they are skipped.
"""
import json

import pytest

from tests.bench import pictures

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
FILES = ("worlds.png", "results_rules.png", "results_horizons.png")
PAGE = """# Rules

The clone: greedy 20.5 ± 1.1, T=1 9; a random player 13, the expert 100.

| | greedy | T=1 | warned |
|---|---|---|---|
| other | 1.0 | 2.0 | |

## Second

| | greedy | T=1 | warned |
|---|---|---|---|
| GRPO, long | **71.6 ± 1.6** | 61.3 ± 1.7 | 0 of 5 |
| ECHO | 5 | 4.5 ± 0.5 | |

| | greedy | T=1 | of another table |
"""


def test_table_after_reads_the_rows_of_one_table():
    rows = pictures.table_after(PAGE, "## Second", "| | greedy |")
    assert [cells[:3] for cells in rows] == [["GRPO, long", "71.6 ± 1.6", "61.3 ± 1.7"],
                                             ["ECHO", "5", "4.5 ± 0.5"]]
    with pytest.raises(ValueError, match="no table '| | nothing' behind '## Second'"):
        pictures.table_after(PAGE, "## Second", "| | nothing")


def test_of_rules_has_a_row_for_each_rule_and_the_lines_of_the_clone_and_of_chance(
        monkeypatch, tmp_path):
    (tmp_path / "results.md").write_text(PAGE)
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    panel = pictures.of_rules("title", "# Rules", "| | greedy | T=1 |", "## Second")
    assert panel["names"] == ["GRPO, long", "ECHO"]
    assert panel["series"] == {"greedy": [(71.6, 1.6), (5, 0)], "T=1": [(61.3, 1.7), (4.5, 0.5)]}
    assert panel["levels"] == {"where all begin, greedy": 20.5, "random player": 13}


@pytest.mark.parametrize("file", FILES)
def test_a_picture_is_drawn_from_the_table_as_it_is_today(file):
    """If this fails: python -m tests.bench.pictures."""
    drawn = json.loads(Image.open(pictures.DOCS / file).text["Description"])
    assert drawn == json.loads(json.dumps(pictures.pictures()[file]))


def test_draw_names_its_axis_and_keeps_the_figures(tmp_path):
    panel = dict(title="a", names=["x", "y"], series={"greedy": [(50, 1), (60, 2)]}, levels={})
    pictures.draw(tmp_path / "a.png", [panel, panel])
    kept = json.loads(Image.open(tmp_path / "a.png").text["Description"])
    assert [one["series"]["greedy"] for one in kept] == [[[50, 1], [60, 2]]] * 2
