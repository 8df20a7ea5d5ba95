"""AgentGym's own tasks of todo (155) and sheet (20), read from its repository's files.

FOLDER is agentenv-tool/Toolusage of github.com/WooooDyy/AgentGym. There the accounts and sheets are
set up at Todoist and Google; here the same ones are played by our own tools.

    read_todo(FOLDER)       data/todo.jsonl: goals, answers and accounts as they should be in the
                            end; toolusage/utils/todo/projects.json: the account at first
    read_sheets(FOLDER)     data/sheet.jsonl: goals and wanted sheets;
                            toolusage/utils/sheet/Test Sheet-For Copy.xlsx: the sheets at first
    read_lines(path)        any file with a JSON object in each line
"""
import copy
import json
import posixpath
import random
import re
import zipfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

from envs.parts.grid import place
from envs.parts.tools import Refused

NONE = ElementTree.Element("none")  # in place of a file that is not there
ANSWERS = str, int, float, list     # the types of an answer


def read_lines(path):
    """[(file and line, object), ...]. ValueError: the file, or the line that holds none."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [*file]
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: {problem}; a line of JSON for each task is expected") from None
    found = []
    for n, line in enumerate(lines, 1):
        try:
            found.append((f"{path}, line {n}", json.loads(line)))
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"{path}, line {n}: {problem}; a JSON object is expected") from None
    return found


def part(where, value, *keys, kind=str):
    """What lies behind these keys. ValueError: nothing, or of another type; where: file and line.
    """
    for key in keys:
        value = value.get(key) if type(value) is dict else None
    if not isinstance(value, kind):
        raise ValueError(f"{where}: {'.'.join(keys)} is missing or of another type; expected is a "
                         "file of AgentGym's agentenv-tool/Toolusage")
    return value


# ---- todo ---------------------------------------------------------------------------------------

def read_todo(folder):
    """The tasks: goal, answer, today, home, and projects, tasks and wanted as todo.Task has them.
    ValueError: the file and the field that is wrong."""
    path = Path(folder, "toolusage/utils/todo/projects.json")
    try:
        projects = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: {problem}; the account's projects are expected") from None
    found = []
    for n, (where, item) in enumerate(read_lines(Path(folder, "data/todo.jsonl"))):
        account = make_account(path, projects, random.Random(f"todo account {n}"))
        answer, = part(where, item, "subgoals", kind=list)[:1] or [None]
        day, home = (part(where, item, "additional_info", "init_config", key)
                     for key in ("current_date", "current_location"))
        part(where, {"subgoals": answer}, "subgoals", kind=ANSWERS)
        found.append(SimpleNamespace(
            goal=part(where, item, "goal").strip(), answer=answer, today=date.fromisoformat(day),
            home=home, projects=account[0], tasks=account[1],
            wanted=in_the_end(where, account, item["additional_info"].get("answer"))))
    return found


def make_account(path, items, rng):
    """(projects, tasks), each {id: what is known}, of projects.json; the ids are drawn."""
    projects, tasks = {}, {}
    for order, item in enumerate(items if type(items) is list else [None], 1):
        project_id = str(rng.randrange(22 * 10**8, 23 * 10**8))
        projects[project_id] = dict(
            id=project_id, order=order, color="charcoal", name=part(path, item, "name"),
            is_favorite=part(path, item, "is_favorite", kind=bool))
        for n, task in enumerate(part(path, item, "tasks", kind=list), 1):
            content, due, what = (part(path, task, key) for key in (
                "content", "due_date", "description"))
            priority, minutes = (part(path, task, key, kind=int) for key in ("priority",
                                                                             "duration"))
            task_id = str(rng.randrange(72 * 10**8, 73 * 10**8))
            tasks[task_id] = dict(
                id=task_id, order=n, content=content, is_completed=False, priority=priority,
                project=project_id, minutes=minutes, due_date=due, what=what)
    return projects, tasks


def in_the_end(where, account, gold):
    """The account after what a line of todo.jsonl asks for: of each project and task that it has
    the same name or content, all it tells; a task that it lacks is gone."""
    projects, tasks = copy.deepcopy(account)
    told = {}
    for kind, name in ("projects", "name"), ("tasks", "content"):
        told |= {(kind, part(where, item, name)): item
                 for item in part(where, gold, kind, kind=list)}
    for project in projects.values():
        project.update(told.pop(("projects", project["name"]), {}))
    kept = {key: task | told.pop(("tasks", task["content"])) for key, task in tasks.items()
            if ("tasks", task["content"]) in told}
    if told:
        raise ValueError(f"{where}: {sorted(told)[0][1]!r} is no project and no task of "
                         "projects.json")
    return projects, kept


# ---- sheet --------------------------------------------------------------------------------------

def read_sheets(folder):
    """The tasks: goal, name of the sheet, its rows, notes, merged ranges and frozen rows, and
    answer, the wanted rows. ValueError: the file and the field that is wrong."""
    path = Path(folder, "toolusage/utils/sheet/Test Sheet-For Copy.xlsx")
    try:
        book = read_workbook(path)
    except (OSError, zipfile.BadZipFile, KeyError, IndexError, ValueError, ElementTree.ParseError,
            Refused) as problem:
        raise ValueError(f"{path}: {problem}; AgentGym's workbook is expected") from None
    found = []
    for where, item in read_lines(Path(folder, "data/sheet.jsonl")):
        goal = part(where, item, "goal").strip()
        name = next((name for name in re.findall(r'"(Sheet\d+)"', goal) if name in book), None)
        if name is None:
            raise ValueError(f"{where}: goal names no sheet of {path.name}")
        try:
            answer = json.loads(part(where, item, "additional_info", "answer"))
        except ValueError as problem:
            raise ValueError(f"{where}: additional_info.answer: {problem}; rows as a JSON list are "
                             "expected") from None
        found.append(dict(goal=goal, name=name, answer=answer, **book[name]))
    return found


def read_workbook(path):
    """{sheet: dict(rows, notes, merged, frozen)} of an xlsx file: what its cells show, no styles.
    """
    with zipfile.ZipFile(path) as file:
        def tree(name):
            return ElementTree.fromstring(file.read(name)) if name in file.namelist() else NONE

        def related(name):
            """{id: file} of what this file refers to."""
            folder, base = posixpath.split(name)
            return {item.get("Id"): posixpath.normpath(posixpath.join(
                f"/{folder}", item.get("Target")))[1:]
                for item in tree(f"{folder}/_rels/{base}.rels")}
        strings = [text_of(item) for item in tree("xl/sharedStrings.xml")]
        files, found = related("xl/workbook.xml"), {}
        for sheet in tree("xl/workbook.xml").findall(".//{*}sheet"):
            name = files[next(sheet.get(key) for key in sheet.keys() if key.endswith("}id"))]
            notes = {place(item.get("ref")): text_of(item) for other in related(name).values()
                     if "comments" in other for item in tree(other).findall(".//{*}comment")}
            found[sheet.get("name")] = dict(read_sheet(tree(name), strings), notes=notes)
    return found


def text_of(item):
    """All the text in an element."""
    return "".join(text.text or "" for text in item.findall(".//{*}t"))


def read_sheet(root, strings):
    """{"rows", "merged", "frozen"} of one sheet's XML. strings: the workbook's shared ones."""
    cells = {}
    for cell in root.findall(".//{*}c"):
        value = text_of(cell) or cell.findtext("{*}v", "")
        if value:
            cells[place(cell.get("r"))] = strings[int(value)] if cell.get("t") == "s" else value
    height, width = (1 + max((where[axis] for where in cells), default=-1) for axis in (0, 1))
    pane = root.find(".//{*}pane")
    frozen = pane is not None and pane.get("state", "").startswith("frozen")
    return dict(rows=[[cells.get((i, j), "") for j in range(width)] for i in range(height)],
                merged=[tuple(x for end in item.get("ref").split(":") for x in place(end))
                        for item in root.findall(".//{*}mergeCell")],
                frozen=int(float(pane.get("ySplit", 0))) if frozen else 0)
