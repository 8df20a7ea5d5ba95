"""pytest tests/envs/test_sheet.py: the grid and its formulas against arithmetic, the tools' replies
in the shapes of AgentGym's client, what they refuse, the reward, the expert, your own tables."""
import copy
import json
import re
import zipfile
from statistics import fmean

import pytest
from players import ask, play, solved

from envs import open_env, record, sheet
from envs.parts import tools, toolusage
from envs.parts.grid import ROWS, Grid, Refused, matching, share
from envs.sheet import Env

TABLE = [["Item", "Price", "Stock"], ["ink", 2.5, 4], ["paper", 4, 10], ["glue", 1.25, "none"]]


def shows(formula, rows=TABLE):
    """What a formula in E1 beside these rows shows."""
    grid = Grid(rows)
    grid.put(0, 4, [[formula]])
    return grid.values()[0][4]


# ---- the grid ----

@pytest.mark.parametrize("formula, value", [
    ("=(1+2)*3", "9"), ("=1+2*3", "7"), ("=2-3-4", "-5"), ("=12/3/2", "2"), ("=---B2*2", "-5"),
    ("=.5+1", "#ERROR!"), ("=0.1+0.2", "0.3"), ("1+1", "1+1"), ("=b2", "2.5"),
    ("=$B$3/B2", "1.6"), ("=D9+1", "1"), ("=SUM(B4:B2)", "7.75"),
    ("=sum(B2:B4)*2+1", "16.5"), ("=SUM(B2*2,SUM(B3:B4),10)", "20.25"),
    ("=AVERAGE(B2:B3)", "3.25"), ("=COUNT(A1:C4)", "5"), ("=MAX(B2:B4)", "4"),
    ("=MIN(B2:B4)", "1.25"), ("=MINUS(B3,B2)", "1.5"), ("=PRODUCT(B2:C2)", "10"),
    ("=PRODUCT(A1:A4)", "0"), ("=AVERAGE(A1:A4)", "#DIV/0!"), ("=B2/D2", "#DIV/0!"),
    ("=A2+1", "#VALUE!"), ("=B2:B3+1", "#VALUE!"), ("=MINUS(B2:B4)", "#N/A"), ("=1+", "#ERROR!"),
    ("=SUM(B2:B3", "#ERROR!"), ("=SUM()", "#ERROR!"), ("=SUM(B2,,B3)", "#ERROR!"),
    ("=B2 B3", "#ERROR!"), ("=FOO(1)", "#ERROR!"), ("=ZZ1", "#REF!"), ("=SUM(A1:A999)", "#REF!"),
])
def test_formulas_against_arithmetic(formula, value):
    assert shows(formula) == value


@pytest.mark.parametrize("formula", [
    "=__import__('os').system('touch EXECUTED')", "=().__class__", "=2**10**10", "=lambda: 1",
    '="a"*9', "=B2 if 1 else 2", "=0x10", "=1_000", "=1e5", "=inf+1", "=[1]", "=B2;B3",
    "=\u0661+1", "=" + "(" * 199, "=" + "-" * 199, "=" + "1+" * 99 + "B",
])
def test_formulas_run_no_python(formula, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shows(formula).startswith("#") and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("formula, value", [
    ("=SUM(A1:B1)", "0"), ("=MINUS(A1,B1)", "#N/A"), ("=A1+1", "#VALUE!"),
    ("=SUM(C1:D1)", "#NUM!"), ("=AVERAGE(C1:D1)", "9" * 15), ("=C1*C1", "#NUM!"),
])
def test_formulas_never_become_infinite(formula, value):
    """What is beyond 10 ** 15 is a text, which functions pass over: 1e308 + 1e308 has no float."""
    huge = ["1e308", "-1e308", "9" * 15, "9" * 15]
    assert Grid([huge, [formula]]).values() == [huge, [value, "", "", ""]]


def test_formulas_that_refer_to_themselves_show_ref():
    assert shows("=E1") == shows("=E1+1") == shows("=SUM(A1:E4)") == "#REF!"
    grid = Grid([["=B1", "=C1+1", "=A1*2", "=SUM(A1:C1)", 3, "=E1*2"]])
    assert grid.values() == [["#REF!", "#REF!", "#REF!", "#REF!", "3", "6"]]


def test_formulas_and_notes_follow_their_cells():
    """The sums of each row and of a column, while rows and columns come, go and are sorted."""
    grid = Grid([["n", 1, 10, "=SUM(B1:C1)"], ["m", 2, 20, "=B2+C2"], ["k", 3, 30, "=B3+C3"],
                 ["", "=SUM(B1:B3)", "=C1", "=MAX(D1:D3)"]], {(0, 1): "one", (2, 2): "thirty"})

    def column(letter):
        return [row[ord(letter) - 65] for row in grid.values()]
    assert column("D") == ["11", "22", "33", "33"]
    grid.insert(0, [["x", 5, 5, "=B2*C2"]], 1)
    assert column("D") == ["11", "25", "22", "33", "33"] and column("B")[-1] == "11"
    assert grid.notes == {(0, 1): "one", (3, 2): "thirty"}
    grid.insert(1, [["new"]], 0)
    assert column("E") == ["11", "25", "22", "33", "33"] and column("C")[-1] == "11"
    assert grid.notes == {(0, 2): "one", (3, 3): "thirty"}
    grid.delete(0, {0})
    assert column("E") == ["25", "22", "33", "33"] and column("C")[-1] == "10"
    assert column("D")[-1] == "#REF!"           # what it was is gone
    assert grid.notes == {(2, 3): "thirty"}
    grid.frozen = 0
    grid.delete(0, {3})
    grid.sort(4, True)
    assert column("E") == ["33", "25", "22"] and column("B") == ["k", "x", "m"]
    grid.delete(1, {2})
    assert column("D") == ["#REF!", "#REF!", "#REF!"]
    assert grid.notes == {(0, 2): "thirty"}     # it was sorted to the top


def test_sort_puts_numbers_before_texts_and_empty_cells_last():
    grid = Grid([["h", "N"], ["a", 3], ["b", ""], ["c", "x"], ["d", -1], ["e", 3], ["f", "10"]],
                {(1, 0): "of a"})
    grid.frozen = 1
    grid.sort(1, False)
    assert [row[0] for row in grid.values()] == ["h", "d", "a", "e", "f", "c", "b"]
    assert grid.notes == {(2, 0): "of a"}
    grid.sort(1, True)
    assert [row[0] for row in grid.values()] == ["h", "c", "f", "a", "e", "d", "b"]


def test_merged_cells_show_the_first_whatever_happens_to_it():
    """They follow it, keep what is left of them, and hold no values of their own."""
    grid = Grid([["n", "a", "b"], ["x", 1, 2], ["y", 3, 4], ["z", 5, 6]], frozen=1)
    grid.merge(1, 1, 2, 2)
    assert grid.values() == [["n", "a", "b"], ["x", "1", "1"], ["y", "1", "1"], ["z", "5", "6"]]
    grid.put(1, 1, [["=B4*2"]])
    assert grid.values()[1:3] == [["x", "10", "10"], ["y", "10", "10"]]
    grid.put(0, 3, [["=SUM(B2:C3)"]])
    assert grid.values()[0][3] == "10"          # the three others are empty
    with pytest.raises(Refused, match="sort"):
        grid.sort(0, True)
    grid.insert(0, [["new"]], 2)                # within the range
    assert [row[1:3] for row in grid.values()] == [["a", "b"]] + [["10"] * 2] * 3 + [["5", "6"]]
    grid.delete(0, {2, 3})
    grid.delete(1, {0})
    assert grid.values() == [["a", "b", "10"], ["10", "10", ""], ["5", "6", ""]]
    grid.sort(0, False)                         # of one row by now: it goes with it
    grid.put(2, 0, [[7]])
    assert grid.values() == [["a", "b", "11"], ["5", "6", ""], ["7", "7", ""]]


@pytest.mark.parametrize("query, found", [
    ("ink", ["ink", "inkwell"]), ("^ink$", ["ink"]), ("well$", ["inkwell"]),
    ("^(ink|glue)$", ["ink", "glue"]), ("Ink", []), ("$", ["ink", "glue", "inkwell"]),
    (".*", []), ("(ink)+$", [])])          # no other regular expression: these can run for hours
def test_matching_takes_texts_and_anchors(query, found):
    rows = [["ink", "glue"], ["inkwell"]]
    assert [rows[i][j] for i, j in matching(rows, query)] == found


@pytest.mark.parametrize("values, wanted, equal", [
    ([["a", "1"]], [["a", 1.0]], 1), ([["A ", "1.005"]], [["a", 1]], 1),
    ([["a", "1.1"]], [["a", 1]], 1 / 2), ([["a", "1"], ["b", "2"]], [["a", 1]], 1 / 2),
    ([["a"]], [["a", ""]], 1), ([["a"]], [["a", 1], ["b", 2]], 1 / 4), ([], [["a"]], 0)])
def test_share_counts_the_cells_of_either(values, wanted, equal):
    assert share(values, wanted) == equal


# ---- the tools ----

@pytest.fixture
def env():
    env = Env()
    env.reset(0)
    env.task.name, env.grid, env.opened = "Sheet1", Grid(TABLE), True
    return env


def test_a_sheet_must_be_open(env):
    env.opened = False
    closed = "Please open a sheet before operating it"
    assert ask(env, "get_all_values") == ask(env, "update_cell", position="A1", value=1) == closed
    assert ask(env, "open_sheet", name="Sheet2") == "WorksheetNotFound('Sheet2')"
    assert ask(env, "open_sheet", name="Sheet1") == "<Worksheet 'Sheet1' id:0>"
    assert ask(env, "get_all_values")[1] == ["ink", "2.5", "4"]
    assert "can't remove all the sheets" in ask(env, "del_sheet", name="Sheet1")
    assert ask(env, "nothing").startswith("ERROR | Invalid action: nothing. Please choose another "
                                          "valid action from ['open_sheet', 'del_sheet', ")


def test_reading_tools(env):
    assert ask(env, "get_range_values", start_position="A2", end_position="B3") == [
        ["ink", "2.5"], ["paper", "4"]]
    assert ask(env, "get_cell_value", position="C3") == "10"
    assert ask(env, "get_cell_value", position="F9") is None
    assert ask(env, "get_A1_annotation", row=3, col="2") == "B3"
    assert ask(env, "get_value_by_formula", start_position="B2", end_position="B4",
               operator="SUM") == "7.75"
    assert ask(env, "get_value_by_formula", position_list=["B3", "B2"], operator="MINUS") == "1.5"
    assert ask(env, "filter_cells", query="4", in_column=3) == ["C2"]
    assert ask(env, "filter_cells", query="e", in_row=1) == ["A1", "B1"]
    assert ask(env, "get_note", position="B2") == ""
    assert ask(env, "update_note", position="B2", content="Check.") == \
        "Updated! the B2's note is Check."
    assert ask(env, "get_note", position="B2") == "Check."


def test_changing_tools(env):
    item, *_ = env.grid.values()
    assert ask(env, "update_cell", position="C4", value="7")[3] == ["glue", "1.25", "7"]
    assert ask(env, "update_cell_by_formula", start_position="C2", end_position="C4",
               result_position="C5", operator="SUM")[4] == ["", "", "21"]
    assert ask(env, "update_cell_by_formula", position_list=["B2", "C2"], result_position="D2",
               operator="PRODUCT")[1] == ["ink", "2.5", "4", "10"]
    assert ask(env, "update_range", start_position="B2", end_position="B3",
               values_list=[[3], ["=B2+1"]])[1:3] == [
        ["ink", "3", "4", "12"], ["paper", "4", "10", ""]]
    assert ask(env, "delete_batch_data", dimension="row", index_list=[5, "3"])[1:] == [
        ["ink", "3", "4", "12"], ["glue", "1.25", "7", ""]]
    assert ask(env, "delete_batch_data", dimension="col", index_list=[4])[0] == item
    assert ask(env, "insert_rows", values_list=[["pen", 9, 1], ["nib", 1, 2]], row_idx=3)[2:] == [
        ["pen", "9", "1"], ["nib", "1", "2"], ["glue", "1.25", "7"]]
    assert ask(env, "insert_cols", values_list=[["Code", 1, 2]], col_idx=1)[:4] == [
        ["Code", *item], ["1", "ink", "3", "4"], ["2", "pen", "9", "1"], ["", "nib", "1", "2"]]
    assert ask(env, "freeze_data", dimension="rows", num=1) == \
        "You have successfully freeze the rows 1"
    assert [row[1] for row in ask(env, "sort_sheet_by_col", col_num=3, order="des")] == [
        "Item", "pen", "ink", "glue", "nib"]
    assert ask(env, "merge_cells", start_position="A1", end_position="B1")[0][:2] == ["Code"] * 2


@pytest.mark.parametrize("tool, arguments, refusal", [
    ("update_cell", dict(position="A0", value=1), "IncorrectCellLabel('A0')"),
    ("update_cell", dict(position="A201", value=1), "exceeds grid limits"),
    ("update_cell", dict(position="A1", value={"a": 1}), "a cell holds a text or a number"),
    ("update_range", dict(start_position="A1", end_position="C4", values_list=[[1]]),
     "'Warning: You cannot update whole sheet at once, please try other functions'"),
    ("update_range", dict(start_position="A1", end_position="A2", values_list=[[1, 2]]),
     "tried writing beyond it"),
    ("insert_rows", dict(values_list=[[1]] * ROWS, row_idx=1), "exceeds grid limits"),
    ("delete_batch_data", dict(dimension="row", index_list=[1, 2, 3]), "cannot delete whole sheet"),
    ("delete_batch_data", dict(dimension="rows", index_list=[1]),
     "'Wrong dimension, please choose from row/col'"),
    ("sort_sheet_by_col", dict(col_num=2, order="up"), "Either 'asc' or 'des' should be specified"),
    ("freeze_data", dict(dimension="rows", num=ROWS), "can't freeze all visible rows"),
    ("merge_cells", dict(start_position="A2", end_position="B1"), "end lies before the start"),
    ("update_note", dict(position="A1", content="x" * 201), "more than 200 characters"),
    ("get_value_by_formula", dict(position_list=["B2"], operator="MEDIAN"), '"MINUS", "PRODUCT"]'),
    ("get_value_by_formula", dict(position_list=["B2;1"], operator="SUM"),
     "you should use A1 notation"),
])
def test_refusals_change_nothing(env, tool, arguments, refusal):
    before = env.grid.values()
    assert refusal in ask(env, tool, **arguments)
    assert env.grid.values() == before


@pytest.mark.parametrize("held, line, told", [
    ([[""] * 25 + [1]] * 199, ["=SUM(A1:Z199)"] * 25, "would read more than 50000 cells"),
    ([["x" * 200] * 22] * 6, ["x" * 200] * 22, "would show over 30000 characters")])    # 31,416
def test_a_change_that_asks_too_much_is_taken_back(env, held, line, told):
    env.grid = Grid(held)
    before = copy.deepcopy(env.grid.cells)
    observation, *_, info = env.step(tools.written("insert_rows", {
        "values_list": [line], "row_idx": len(held) + 1}))
    assert told in observation and len(observation) < 200
    assert not info["valid"] and env.grid.cells == before
    assert len(env.grid.values()) == len(held)          # what was there is not too much


# ---- tasks, reward, expert ----

@pytest.mark.parametrize("gain", [False, True])
def test_the_reward_is_the_share_or_on_request_the_gain(gain, monkeypatch):
    """The share of what was to be done: 0 of a sheet left as it was or made worse, 1 at the end."""
    monkeypatch.setattr(sheet, "GAIN", gain)
    env, gains = Env(), set()
    for task_id in range(11):
        env.reset(task_id)
        for _ in range(1 + task_id % 4):
            env.step(env.expert()[1])
        if task_id % 2:
            ask(env, "merge_cells", start_position="A1", end_position="E9")
        left = share(env.grid.values(), env.task.answer)
        untouched = share(Grid(env.task.rows).values(), env.task.answer)
        done_of_it = max(0.0, left - untouched) / (1 - untouched)
        _, reward, done, info = env.step("finish with Action Input: {}")
        assert (reward, done) == (info["gain"] if gain else left, True)
        assert info == {"success": left == 1, "valid": True, "score": left,
                        "gain": pytest.approx(done_of_it)}
        gains.add(done_of_it)
    assert 0 in gains and any(0 < each < 1 for each in gains)
    assert play(env, 0)[-1][2:] == (1.0, True, dict(success=True, valid=True, score=1.0, gain=1.0))


def worked_out(what, figures):
    return {"sum": sum, "total": sum, "average": fmean, "mean": fmean, "maximum": max,
            "highest value": max, "minimum": min, "lowest value": min}[what](figures)


def meant(family, t):
    """The sheet that a goal's words ask for, in plain loops."""
    goal, rows = t.goal, copy.deepcopy(t.rows)
    columns = [n for n, name in enumerate(t.header) if n > 1 and re.search(rf"\b{name}\b", goal)]
    at = columns[0] if columns else None
    what = re.search("sum|total|average|mean|m[a-z]+imum|(high|low)est value", goal)
    if family == "statistic":
        letter, row = re.search(r"\b([A-Z])([0-9]+)\b", goal).groups()
        found = worked_out(what[0], [row[at] for row in rows[1:]])
        rows = [[*row, "", ""] for row in [*rows, [""] * 5, [""] * 5]]
        rows[int(row) - 1][ord(letter) - 65] = found
        return rows
    if family == "derive":
        name = re.search('(column|out) "(.*?)"', goal)[2]
        for row in rows[1:]:
            a, b, *c = [row[j] for j in columns]
            row.append(a * b if "*" in goal else a + b + sum(c))
        return [[*rows[0], name], *rows[1:]]
    if family == "summary":
        title = re.search('(row|write) "(.*?)"', goal)[2]
        return [*rows, [title, "", *[worked_out(what[0], [row[j] for row in rows[1:]])
                                     if j in columns else "" for j in (2, 3, 4)]]]
    if family == "tidy":
        assert [any(row) for row in rows].count(False) >= 2, "empty rows, as the goal says"
        rows = [row for row in rows if any(row)]
        rows = [[x for j, x in enumerate(row) if rows[0][j]] for row in rows]
        rows[0][1] = rows[0][0] if "merge" in goal else rows[0][1]
        return rows
    return meant_in_rows(family, t, rows, at)


def meant_in_rows(family, t, rows, at):
    """The same of the families that change, take away, add, sort or number rows."""
    goal, told = t.goal, re.findall(r"\[\[.*\]\]", t.goal)
    kind = next((x for x in t.kinds if re.search(rf"(is|{t.header[1]}) {x}\b", goal)), None)
    for (i, _), note in t.notes.items():
        name, = [x for x in t.header[2:] if x in note]
        rows[i][t.header.index(name)] = float(note.replace(name, "").strip(".: ").split()[-1])
    below, above = (re.search(rf"{word} ([0-9.]*[0-9])", goal) for word in ("below", "above"))
    kept = [rows[0]]
    for row in rows[1:]:
        if family == "update" and (new := re.search(rf"{row[0]} ([0-9.]*[0-9])", goal)):
            row[at] = float(new[1])
        if family == "raise" and row[1] == kind:
            assert t.columns[t.header[at]][2] == 2, "whole things do not grow by percent"
            percent = float(re.search(r"by ([0-9]+)(%| percent)", goal)[1])
            row[at] += row[at] * percent / 100 * (-1 if "ower" in goal else 1)
        if family != "filter" or not (row[at] < float(below[1]) if below else row[at] > float(
                above[1]) if above else row[1] == kind):
            kept.append(row)
    kept += [[float(x) if re.fullmatch("[0-9.]+", x) else x for x in row]
             for text in told for row in json.loads(text)]
    if re.search("sort|order|Rank", goal.replace("orders", "")):
        order = re.search("ascending|rising", goal)
        assert len({row[at] for row in kept}) == len(kept), "two orders are right"
        kept[1:] = sorted(kept[1:], key=lambda row: row[at], reverse=not order)
    if family == "rank":
        for n, row in enumerate(kept):
            row.insert(at + 1, n or re.search('column "(.*?)"', goal)[1])
    return kept


@pytest.mark.parametrize("kind", sheet.FAMILIES)
def test_wanted_sheet_is_the_one_that_the_words_mean(kind):
    for task_id in [i for i in [*sheet.TEST, *sheet.TRAIN] if sheet.family(i) == kind][:40]:
        t = sheet.task(task_id)
        assert share(Grid(meant(kind, t)).values(), t.answer) == 1, (task_id, t.goal)
        assert share(Grid(t.rows).values(), t.answer) < 1, (task_id, t.goal)


# ---- your own tables ----

def folder_of(tmp_path, lines, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    return tmp_path


LINE = json.dumps({"goal": 'In "Stock", sort by Price.', "sheet": "Stock.csv", "wanted": "new.csv"})
STOCK, NEW = 'Item,Price\n"ink, red",4\nglue,1\n', 'Item,Price\nglue,1\n"ink, red",4\n'


def test_your_own_tables_are_played_where_they_are_opened(tmp_path):
    """And the expert puts them right. Of two tasks one is TEST. What is wanted may be written as a
    formula."""
    folder_of(tmp_path, [LINE] * 2, Stock='Item,Price\n"ink, red",4\nglue,=B2/8\nall,1\n,,x\n',
              new='Item,Price\nglue,0.5\n"ink, red",4\nall,=SUM(B2:B3)\n')
    world = open_env("sheet", tmp_path)
    assert (len(world.TRAIN), len(world.TEST), world.family(0)) == (1, 1, "own")
    assert world.fingerprint(0).startswith('In "Stock", sort by Price. [')
    game = record("sheet", 1.0, 0, world.TEST[0], data=str(tmp_path))
    assert 'goal: In "Stock", sort by Price.\n' in game["turns"][0].observation
    assert "['ink, red', '4'], ['all', '4.5']]" in game["last"] and game["success"]
    assert len(sheet.TRAIN) == 2000 and sheet.family(0) == "statistic"      # as ever


@pytest.mark.parametrize("wanted", [
    "a,b\n1,2\n3,5\n", "a,b\n1,2\n3,4\n5,6\n", "a,b,c\n1,2,7\n3,4,8\n", "b\n2\n4\n",
    "a,b\n3,4\n1,2\n", "a,b\n3,4\n", "a,b,,,,,x\n1,2\n3,4\n"])
@pytest.mark.parametrize("first", ["", "A1:B3", "A2:A3"])
def test_expert_makes_any_sheet_of_your_own(wanted, first, tmp_path):
    """A cell changed; a row, a column more; one less; sorted; a cell far away. Also after somebody
    has merged cells."""
    folder_of(tmp_path, [LINE] * 2, Stock="a,b\n1,2\n3,4\n", new=wanted)
    env = open_env("sheet", tmp_path).Env()
    env.reset(0)
    if first:
        ask(env, "open_sheet", name="Stock")
        ask(env, "merge_cells", start_position=first[:2], end_position=first[3:])
    assert solved(env, most=6)


BOOK = "toolusage/utils/sheet/Test Sheet-For Copy.xlsx"
MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
REL = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
TEXTS = "Name", "Group", "Score", "Ada Lee", "Bo Ek", "North"
WORKBOOK = {        # the files in an xlsx file as Google writes it: two sheets, one with a comment
    "xl/workbook.xml": f"""<workbook {MAIN} {REL}><sheets><sheet name="Answer1" r:id="rId0"/>
<sheet name="Sheet1" r:id="rId1"/></sheets></workbook>""",
    "xl/_rels/workbook.xml.rels": """<Relationships>
<Relationship Id="rId0" Target="worksheets/sheet0.xml"/>
<Relationship Id="rId1" Target="worksheets/sheet1.xml"/></Relationships>""",
    "xl/sharedStrings.xml": f"<sst {MAIN}>" + "".join(
        f"<si><t>{text}</t></si>" for text in TEXTS) + "</sst>",
    "xl/worksheets/sheet0.xml": f"<worksheet {MAIN}><sheetData/></worksheet>",
    "xl/worksheets/sheet1.xml": f"""<worksheet {MAIN}><sheetViews><sheetView>
<pane ySplit="1.0" state="frozen"/></sheetView></sheetViews>
<sheetData><row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c>
<c r="C1" t="s"><v>2</v></c></row>
<row r="2"><c r="A2" t="s"><v>3</v></c><c r="B2" t="s"><v>5</v></c><c r="C2"><v>40.5</v></c></row>
<row r="3"><c r="A3" t="s"><v>4</v></c><c r="B3" s="7"/><c r="C3"><f>40+2</f><v>42.0</v></c></row>
<row r="9"><c r="ZZ900" s="2"/></row></sheetData>
<mergeCells><mergeCell ref="B2:B3"/></mergeCells></worksheet>""",
    "xl/worksheets/_rels/sheet1.xml.rels": """<Relationships>
<Relationship Id="rId1" Target="../comments1.xml"/></Relationships>""",
    "xl/comments1.xml": f"""<comments {MAIN}><commentList><comment ref="A2"><text>
<r><t>Score: </t></r><r><t>45</t></r></text></comment></commentList></comments>"""}


def original_folder(tmp_path, answer):
    """agentenv-tool/Toolusage with two tasks about one sheet."""
    (tmp_path / "data").mkdir()
    (tmp_path / "toolusage/utils/sheet").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / BOOK, "w") as file:
        for name, text in WORKBOOK.items():
            file.writestr(name, text)
    line = {"id": 0, "goal": 'In "Sheet1", change the score as the note on "Ada Lee" says. ',
            "subgoals": "Reference Action Path: ...", "additional_info": {"answer": answer}}
    (tmp_path / "data/sheet.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    return tmp_path


def test_agentgyms_own_tasks_are_test_and_train_is_ours(tmp_path):
    """Rows, a frozen row, a merged range and a note of its workbook."""
    answer = '[["Name", "Group", "Score"], ["Ada Lee", "North", "45.0"], ["Bo Ek", "North", "42"]]'
    task, other = toolusage.read_sheets(original_folder(tmp_path, answer))
    assert task == other == dict(
        goal='In "Sheet1", change the score as the note on "Ada Lee" says.', name="Sheet1",
        rows=[["Name", "Group", "Score"], ["Ada Lee", "North", "40.5"], ["Bo Ek", "", "42.0"]],
        answer=json.loads(answer), notes={(1, 0): "Score: 45"}, merged=[(1, 1, 2, 1)], frozen=1)
    world = open_env("sheet", tmp_path)
    assert (len(world.TRAIN), world.TEST) == (2000, range(2))
    assert world.FAMILIES[:2] == ("agentgym", "statistic")
    env = world.Env()
    for task_id, kind, notes in ((0, "agentgym", 1), (1, "agentgym", 1), (227, "notes", 2)):
        env.reset(task_id)
        assert (world.family(task_id), env.grid.frozen) == (kind, kind == "agentgym")
        assert len(env.grid.notes) == notes and env.grid.notes == env.task.notes
        assert solved(env, most=sheet.HORIZON)


@pytest.mark.parametrize("broken, told", [
    ("data/sheet.jsonl", "line 1: .*a JSON object is expected"),
    (BOOK, "AgentGym's workbook is expected")])
def test_agentgyms_files_are_named_where_they_are_broken(broken, told, tmp_path):
    folder = original_folder(tmp_path, "[]")
    with pytest.raises(ValueError, match="the wanted sheet shows 0 rows"):
        sheet.use(folder)
    (folder / broken).write_text("x")
    with pytest.raises(ValueError, match=told):
        toolusage.read_sheets(folder)


@pytest.mark.parametrize("lines, files, told", [
    ([LINE, "[]"], dict(Stock=STOCK, new=NEW), r"tasks.jsonl, line 2: goal is missing"),
    (['{"goal": "x", "sheet": 3}'], {}, r"line 1: sheet is missing or no text"),
    ([LINE], dict(Stock=STOCK), r"new.csv: .*a csv file in UTF-8 is expected"),
    ([LINE], dict(Stock="a\n" * 201, new=NEW), r"Stock.csv has 201 rows and 1 columns; 1 to 200"),
    ([LINE], dict(Stock="a,b\n1," + "x" * 201, new=NEW), r"row 2 has a text of 201 characters"),
    ([LINE.replace('\\"Stock\\"', "it")], dict(Stock=STOCK, new=NEW), "does not name the sheet"),
    ([LINE], dict(Stock=STOCK, new=NEW), "has 1 tasks; 2 are needed"),
    ([LINE], dict(Stock=STOCK, new=("1," * 25 + "1\n") * 180 + "=SUM(A1:Z180)," * 12),
     "line 1: .*would read more than 50000 cells; make it smaller, with fewer formulas"),
])
def test_read_tasks_names_file_line_and_field(tmp_path, lines, files, told):
    with pytest.raises(ValueError, match=told):
        sheet.read_tasks(folder_of(tmp_path, lines, **files))
    with pytest.raises(ValueError, match="tasks.jsonl: .*a line of JSON for each task"):
        sheet.read_tasks(tmp_path / "elsewhere")
