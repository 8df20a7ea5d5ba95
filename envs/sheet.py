"""sheet: tables to be sorted, filtered, completed and corrected with the tools of a spreadsheet.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: Hello! The sheet "Sheet24" holds the
            plants of the nursery. There, I need the minimum of all Cost figures in G1. Thank you.
            Give me one action.                                                           (task 0)
    agent:  get_all_values with Action Input: {}
    env:    Observation: Please open a sheet before operating it
    agent:  open_sheet with Action Input: {"name": "Sheet24"}
    env:    Observation: <Worksheet 'Sheet24' id:0>
    agent:  get_all_values with Action Input: {}
    env:    Observation: [['Plant', 'Bed', 'Cost', 'Pots', 'Sold'], ['lupin', 'Terrace', [...]
    agent:  update_cell_by_formula with Action Input: {"start_position": "C2", "end_position": "C7",
            "result_position": "G1", "operator": "MIN"}
    env:    Observation: [['Plant', 'Bed', 'Cost', 'Pots', 'Sold', '', '12.54'], [...]
    agent:  finish with Action Input: {}                                        reward 1, done

After AgentBoard's sheet as AgentGym serves it: its tools and replies, on a grid of our own instead
of Google's (parts/tools.py has what such environments share). The tables are made here, so no score
is comparable to the papers'. The reward, at `finish`, is the share of cells that are as wanted. Two
differences are meant: there cells beyond the smaller of the two sheets do not count, so that a
sheet cut to its header scores 1, here they count as wrong; and there the best sheet so far counts,
here the last. Numbers may differ by 0.01, texts in case and blanks. An untouched sheet scores
0.64 on average; info["gain"] is the share of what was to be done, 0 for it.

A text that begins with "=" is a formula, wherever it is written: + - * / ( ), numbers, cells and
ranges in A1 notation, SUM AVERAGE COUNT MAX MIN MINUS PRODUCT. It follows what it refers to when
rows or columns come, go or are sorted. One that refers to itself shows #REF!. The grid has 200 rows
and 26 columns; a change after which formulas would read over 50,000 cells is refused, as are texts
over 200 characters and sheets over 30,000; a number beyond 10 ** 15 is a text. filter_cells takes
texts with | between, ^ before and $ behind, no other regular expression: these can run for hours.
Merged cells show the first of them, also after it has changed; where a range spans several rows,
they are not sorted. The one sheet there is cannot be deleted, as in Google's. Nothing is evaluated
by Python.

Your own tables: with `--data FOLDER` of the scripts the tasks are those of its file tasks.jsonl, a
line {"goal": text, "sheet": "Stock.csv", "wanted": "after.csv"} each (`read_tasks`). What the
formulas of after.csv show is what is wanted. Or AgentGym's 20 tasks, where FOLDER is
agentenv-tool/Toolusage of its repository: they are TEST then, under its ids, and TRAIN is ours. The
expert knows the wanted sheet, not the way that AgentGym has in mind. The original compares texts,
so that 85 is not its 85.0, and its regular expressions in filter_cells are not ours.

    NANO_SHEET_GAIN=1   the reward is info["gain"], for RL: its spread between tries is larger

Eleven families over eight kinds of tables (parts/sheet_tasks.py), two to three wordings each, with
asides and closing words drawn: 4,000 further tasks have 3,996 distinct goals. TRAIN has 2,000
tasks, TEST 200, about two kinds of tables that TRAIN never has. A random player solves none of TEST
(0.08 on average), `expert` all, in 5.5 turns on average and 9 at most. Each process needs 11 MB.
"""
import copy
import functools
import os
import random
import re
from types import SimpleNamespace

from envs.parts import sheet_prompt, sheet_tasks, tool_prompt, tools, toolusage
from envs.parts.grid import (COLUMNS, OPERATORS, ROWS, Grid, Evaluation, entry, inside, label,
                             matching, place, read_csv, share, shown, two_dimensional, whole)
from envs.parts.tools import Refused

NAME, HORIZON, SUCCESS = "sheet", 15, 1.0
FAMILIES = tuple(sheet_tasks.KINDS)
TEST = range(200)
TRAIN = range(200, 2200)
ORIGINAL = range(20)        # the ids that AgentGym's server has, too; its tasks are others
GAIN = os.environ.get("NANO_SHEET_GAIN") == "1"
TINY = dict(families="statistic", horizons=(6,), max_context=1280, max_turn_tokens=64)
PROMPT = """You work on a sheet with tools. Open the sheet that the goal names, change what the goal
asks for and nothing else, then call finish. Each turn, call one tool:
NAME with Action Input: {arguments as JSON}
open_sheet: {"name"}; get_all_values: {}; get_range_values: {"start_position", "end_position"};
get_cell_value, get_note: {"position"}; filter_cells: {"query"}, the positions of a text
get_A1_annotation: {"row", "col"}; rows and columns count from 1
update_cell: {"position", "value"}; update_range: {"start_position", "end_position",
"values_list": a list of rows}; update_note: {"position", "content"}
insert_rows: {"values_list", "row_idx"}; insert_cols: {"values_list": a list of columns, "col_idx"}
delete_batch_data: {"dimension": "row" or "col", "index_list": numbers}
get_value_by_formula: {"start_position", "end_position" or "position_list", "operator"}: SUM,
AVERAGE, COUNT, MAX, MIN, MINUS or PRODUCT
update_cell_by_formula: the same and {"result_position"}
freeze_data: {"dimension": "rows" or "columns", "num"}; freeze the first row before you sort
sort_sheet_by_col: {"col_num", "order": "asc" or "des"}; merge_cells: {"start_position",
"end_position"}; del_sheet: {"name"}; finish: {}
An example: update_cell with Action Input: {"position": "D2", "value": "=SUM(B2:C2)"}"""
EXAMPLE = 'open_sheet with Action Input: {"name": "Sheet1"}'
# As AgentGym has it: its JSON, how its client talks to a model.
WIRE = tools.WIRE
AGENTGYM = tool_prompt.manner(sheet_prompt.RULES)


def family(task_id, own=()):
    return own[task_id].family if task_id < len(own) else FAMILIES[task_id % len(FAMILIES)]


def task(task_id, own=()):
    make = functools.partial(sheet_tasks.Task, task_id in TEST)
    return own[task_id] if task_id < len(own) else tools.task_of(
        make, sheet_tasks.KINDS[family(task_id)], task_id)


def fingerprint(task_id, own=()):
    t = task(task_id, own)
    return f"{t.goal} {t.rows}"


# ---- your own tables ----------------------------------------------------------------------------

OWN = ()        # tasks in place of those made here: see `use`


def read_tasks(folder):
    """The tasks of a folder: goal, sheet and wanted sheet of each line of its tasks.jsonl.
    ValueError: file, line and field that are wrong."""
    path, found = os.path.join(folder, "tasks.jsonl"), []
    for where, item in toolusage.read_lines(path):
        for field in ("goal", "sheet", "wanted"):
            if type(item) is not dict or type(item.get(field)) is not str or not item[field]:
                raise ValueError(f"{where}: {field} is missing or no text; expected are goal, and "
                                 "sheet and wanted, the names of csv files")
        rows, after = (read_csv(os.path.join(folder, item[x])) for x in ("sheet", "wanted"))
        own = own_task(where, "own", item["goal"], os.path.splitext(item["sheet"])[0], rows, after)
        if own.name not in own.goal:
            raise ValueError(f"{where}: goal does not name the sheet, {own.name!r}; the agent must "
                             "know which one to open")
        found.append(own)
    if len(found) < 2:
        raise ValueError(f"{path} has {len(found)} tasks; 2 are needed, one of them for TEST")
    return found


def own_task(where, family, goal, name, rows, answer, notes=(), merged=(), frozen=0):
    """A task that is not made here. ValueError: its sheets are too large, or the wanted one too
    small; where: file and line."""
    try:
        _, wanted = Grid(rows, notes, merged).values(), Grid(answer).values()   # what formulas show
    except Refused as problem:
        raise ValueError(f"{where}: {problem}; make it smaller, with fewer formulas") from None
    if len(wanted) < 2:
        raise ValueError(f"{where}: the wanted sheet shows {len(wanted)} rows; 2 or more are "
                         "needed, as a whole sheet cannot be deleted")
    own = SimpleNamespace(family=family, goal=goal, name=name, rows=rows, answer=wanted,
                          notes=notes, merged=merged, frozen=frozen)
    own.steps = functools.partial(sheet_tasks.begin, t=own)
    return own


def use(folder):
    """What differs when it plays the tasks of this folder: envs.with_data. The last tenth of your
    own is TEST, or all that are AgentGym's."""
    if os.path.exists(os.path.join(folder, "data", "sheet.jsonl")):
        own = [own_task(f"{folder}: task {n}", "agentgym", **fields)
               for n, fields in enumerate(toolusage.read_sheets(folder))]
        changed = dict(FAMILIES=("agentgym", *FAMILIES), TEST=range(len(own)))
    else:
        own = read_tasks(folder)
        first = len(own) - max(1, len(own) // 10)
        changed = dict(FAMILIES=("own",), TRAIN=range(first), TEST=range(first, len(own)))
    functions = {f.__name__: functools.partial(f, own=own) for f in (family, task, fingerprint)}
    return dict(OWN=own, **changed, **functions)


# ---- the tools ----------------------------------------------------------------------------------

NO_A1 = repr("In the sheet formula, you should use A1 notation to display all positions in the "
             "sheet and you can use get_A1_annotation(row, col) to get its A1 address.")
NO_OPERATOR = repr(f"the operator should be one of the {[*OPERATORS]}".replace("'", '"'))
WHOLE_SHEET = "'Warning: You cannot {} whole sheet at once, please try other functions'"
NO_ORDER = 'ValueError("Either \'asc\' or \'des\' should be specified as sort order.")'


def formula_of(operator, start_position, end_position, position_list):
    """The formula of these arguments: cells in a list, or from start to end."""
    if operator not in OPERATORS:
        raise Refused(NO_OPERATOR)
    if type(position_list) is not list:
        if missing := [key for key, value in (("start_position", start_position),
                                              ("end_position", end_position)) if not value]:
            raise Refused(f"ERROR | KeyError({missing[0]!r})")
        position_list = [f"{start_position}:{end_position}"]
    for cells in position_list:
        if type(cells) is not str or not re.fullmatch("[A-Z][0-9]+(:[A-Z][0-9]+)?", cells):
            raise Refused(NO_A1)
    return f"={operator}({','.join(position_list)})"


def sheet_of(task):
    """The task's sheet, as it is at first."""
    return Grid(task.rows, task.notes, task.merged, task.frozen)


def planned(task, say):
    """[(state before, thought, tool, arguments), ...] of the steps from the beginning to finish,
    played on a sheet of their own."""
    twin, plan, result = Env(), [], None
    twin.task, twin.results, twin.opened = task, {}, False
    twin.grid = sheet_of(task)
    steps = task.steps(say)
    try:
        while True:
            thought, tool, arguments = steps.send(result)
            plan.append((twin.state(), thought, tool, arguments))
            result = getattr(twin, tool)(**arguments)
    except StopIteration:       # the last is finish, unless the steps leave something (your own)
        left = repair(task, twin.grid)
        thoughts = ("The sheet is as it should be.", "That was all.") if left[0] == "finish" \
            else ("I correct what is not as asked for.",)
        return [*plan, (twin.state(), say(*thoughts), *left)]


def inserted(values, before):
    """The arguments of delete_batch_data that make the values of a sheet those before: one run of
    rows or columns was inserted. None: that is not the difference."""
    for dimension, lines, target in (("row", values, before),
                                     ("col", [*zip(*values)], [*zip(*before)])):
        more = len(lines) - len(target)
        for at in range(len(target) + 1 if more > 0 else 0):
            if lines[:at] + lines[at + more:] == target:
                return {"dimension": dimension, "index_list": [*range(at + 1, at + more + 1)]}
    return None


def repair(task, grid):
    """The next call, with its arguments, that brings an open sheet nearer to the wanted one."""
    shows, width = grid.values(), max(map(len, task.answer))
    wanted = [[shown(entry(value)) for value in [*row] + [""] * (width - len(row))]
              for row in task.answer]
    for dimension, most, size in (("row", len(wanted), len(shows)),
                                  ("col", width, len(shows[0]) if shows else 0)):
        if size > most:
            return "delete_batch_data", {"dimension": dimension,
                                         "index_list": [*range(most + 1, size + 1)]}
    wrong = [n for n, row in enumerate(wanted) if share(shows[n:n + 1], [row]) < 1]
    if not wrong:
        return "finish", {}
    if any(len({value for row in wanted[top:bottom + 1] for value in row[left:right + 1]}) > 1
           for top, left, bottom, right in grid.merged):
        return "insert_rows", {"values_list": wanted, "row_idx": 1}     # the rest goes next
    top, bottom = wrong[0], wrong[-1]
    if top == 0 and bottom == len(shows) - 1:
        bottom = 0                                  # the whole sheet at once is refused
    return "update_range", {"start_position": label(top, 0), "values_list": wanted[top:bottom + 1],
                            "end_position": label(bottom, width - 1)}


class Env(tools.Env):
    tools = tuple("""open_sheet del_sheet freeze_data get_A1_annotation insert_cols insert_rows
        delete_batch_data update_cell update_cell_by_formula update_range sort_sheet_by_col
        merge_cells update_note get_all_values get_range_values get_cell_value get_value_by_formula
        filter_cells get_note""".split())
    hint = f" Please choose another valid action from {[*tools, 'finish']}"

    def start(self, task_id):
        observation = super().start(task_id)
        self.grid, self.opened, self.plan = sheet_of(self.task), False, None
        return observation

    def act(self, action):
        """As all tools; a call that is refused has changed nothing."""
        before = copy.deepcopy(self.grid)
        observation, reward, done, info = super().act(action)
        if not info["valid"]:
            self.grid = before
        if done:
            untouched = share(sheet_of(self.task).values(), self.task.answer)
            info["gain"] = max(0.0, (reward - untouched) / (1 - untouched or 1))
            reward = info["gain"] if GAIN else reward
        return observation, reward, done, info

    @property
    def sheet(self):
        if not self.opened:
            raise Refused("Please open a sheet before operating it")
        return self.grid

    def judge(self, values):
        return share(values, self.task.answer)

    def finish(self):
        return self.sheet.values()

    def open_sheet(self, name: str):
        if name != self.task.name:
            raise Refused(f"WorksheetNotFound({name[:40]!r})")
        self.opened = True
        return f"<Worksheet {name!r} id:0>"

    def del_sheet(self, name: str):
        if name != self.task.name:
            raise Refused(f"WorksheetNotFound({name[:40]!r})")
        raise Refused("APIError: [400]: Invalid requests[0].deleteSheet: You can't remove all the "
                      "sheets in a document.")

    def freeze_data(self, dimension: str, num: object):
        """Keep so many rows at the top out of sorting; frozen columns change nothing."""
        sheet, number = self.sheet, whole(num)
        if dimension not in ("rows", "columns"):
            raise Refused("'Error: the dimension should be one of the rows/columns'")
        if not 0 <= number < (ROWS if dimension == "rows" else COLUMNS):
            raise Refused("APIError: [400]: You can't freeze all visible rows or columns.")
        if dimension == "rows":
            sheet.frozen = number
        return f"You have successfully freeze the {dimension} {number}"

    def get_A1_annotation(self, row: object, col: object):
        return self.sheet and label(*inside(whole(row) - 1, whole(col) - 1))    # once it is open

    def insert_cols(self, values_list: object, col_idx: object):
        self.sheet.insert(1, two_dimensional(values_list), whole(col_idx) - 1)
        return self.sheet.values()

    def insert_rows(self, values_list: object, row_idx: object):
        self.sheet.insert(0, two_dimensional(values_list), whole(row_idx) - 1)
        return self.sheet.values()

    def delete_batch_data(self, dimension: str, index_list: list):
        """Delete the rows or columns of these numbers, which count from 1."""
        sheet, gone = self.sheet, {whole(index) - 1 for index in index_list}
        if dimension not in ("row", "col"):
            raise Refused("'Wrong dimension, please choose from row/col'")
        shows, axis = sheet.values(), int(dimension == "col")
        if len(gone) >= (len(shows[0]) if axis and shows else len(shows) - 1):
            raise Refused(WHOLE_SHEET.format("delete"))
        sheet.delete(axis, gone)
        return sheet.values()

    def update_cell(self, position: str, value: object):
        self.sheet.put(*place(position), [[value]])
        return self.sheet.values()

    def update_cell_by_formula(self, *, start_position: str = "", end_position: str = "",
                               position_list: object = None, result_position: str, operator: str):
        return self.update_cell(result_position, formula_of(
            operator, start_position, end_position, position_list))

    def update_range(self, start_position: str, end_position: str, values_list: object):
        sheet, lines = self.sheet, two_dimensional(values_list)
        (top, left), (bottom, right), shows = place(start_position), place(end_position), \
            sheet.values()
        if (top, left) == (0, 0) and shows and (bottom, right) == (len(shows) - 1,
                                                                   len(shows[0]) - 1):
            raise Refused(WHOLE_SHEET.format("update"))
        if len(lines) > bottom - top + 1 or max(map(len, lines)) > right - left + 1:
            raise Refused(f"APIError: [400]: Requested writing within range [{start_position}:"
                          f"{end_position}], but tried writing beyond it")
        sheet.put(top, left, lines)
        return sheet.values()

    def sort_sheet_by_col(self, col_num: object, order: str):
        _, column = inside(0, whole(col_num) - 1)
        if order not in ("asc", "des"):
            raise Refused(NO_ORDER)
        self.sheet.sort(column, order == "des")
        return self.sheet.values()

    def merge_cells(self, start_position: str, end_position: str):
        """Every cell of a range shows its first from now on."""
        (top, left), (bottom, right) = place(start_position), place(end_position)
        if bottom < top or right < left:
            raise Refused("APIError: [400]: Invalid range: the end lies before the start")
        self.sheet.merge(top, left, bottom, right)
        return self.sheet.values()

    def update_note(self, position: str, content: str):
        entry(content)              # a note is as short as a cell
        self.sheet.notes[place(position)] = content
        return f"Updated! the {position}'s note is {content}"

    def get_all_values(self):
        return self.sheet.values()

    def get_range_values(self, start_position: str, end_position: str):
        (top, left), (bottom, right) = place(start_position), place(end_position)
        return [row[left:right + 1] for row in self.sheet.values()[top:bottom + 1]]

    def get_cell_value(self, position: str):
        return Evaluation(self.sheet.cells).show(*place(position)) or None

    def get_value_by_formula(self, *, start_position: str = "", end_position: str = "",
                             position_list: object = None, operator: str):
        cells = self.sheet.cells
        formula = formula_of(operator, start_position, end_position, position_list)
        return Evaluation([*cells, [formula]]).show(len(cells), 0)

    def filter_cells(self, query: str, in_row: object = None, in_column: object = None):
        row, column = (None if value is None else whole(value) - 1 for value in (in_row, in_column))
        return [label(i, j) for i, j in matching(self.sheet.values(), query)
                if row in (None, i) and column in (None, j)]

    def get_note(self, position: str):
        return self.sheet.notes.get(place(position), "")

    def state(self):
        """What the expert's steps depend on."""
        return self.opened, self.grid.values(), self.grid.frozen, self.grid.merged

    def expert(self):
        """The next of the task's steps, from where the sheet is as after one of them. Else what
        was inserted since goes, if that is all; else the sheet is put right row by row. Your own
        tasks have no steps that lead to the wanted sheet, so what `repair` inserted stays."""
        rng = random.Random(self.task.goal)

        def say(*thoughts):
            return rng.choice(thoughts)
        self.plan = self.plan or planned(self.task, say)
        here, found = self.state(), None
        for before, thought, tool, arguments in self.plan:
            if before == here:
                found = thought, self.written(tool, arguments)
                if found[1] not in self.results:
                    return found
        if found is not None:
            return found
        call = repair(self.task, self.grid) if self.opened else (
            "open_sheet", {"name": self.task.name})
        for (opened, values, *rest), *_ in [] if self.task in self.module.OWN else self.plan:
            if [opened, *rest] == [here[0], *here[2:]] and (lines := inserted(here[1], values)):
                call = "delete_batch_data", lines
        return say("The sheet is not as it should be yet.", "I put this right."), \
            self.written(*call)

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        cell = label(rng.randrange(len(self.task.rows) + 1), rng.randrange(6))
        text = rng.choice([value for row in self.task.rows for value in row if value != ""])
        return {
            "name": self.task.name, "dimension": rng.choice(["rows", "columns", "row", "col"]),
            "num": rng.randint(0, 2), "index_list": [rng.randint(2, 9)], "value": text,
            "values_list": [[text, rng.randint(1, 99)]], "order": rng.choice(["asc", "des"]),
            "operator": rng.choice(OPERATORS), "query": str(text), "content": "Checked.",
            "position_list": [cell, label(rng.randrange(1, 6), 3)], "in_row": None,
            "in_column": None, "answer": "done"}.get(key, cell if "position" in key else
                                                     rng.randint(1, 6))
