"""pytest tests/envs/test_todo.py: the tools' replies in the shapes that AgentGym's client shows,
what they change, that answer and final state both count, an expert that makes again what was undone
and ends where it must fail, and goals whose words, read by other code, mean the answers."""
import copy
import json
import re
from datetime import date, datetime, timedelta

import pytest
from players import ask, first_of, play

from envs import open_env, todo
from envs.parts import tools
from envs.todo import Env


@pytest.fixture
def env():
    env = Env()
    env.reset(todo.TEST[0])
    return env


def task_of(kind):
    """The first task of a family."""
    return next(i for i in todo.TEST if todo.family(i) == kind)


def ends(env, task_id=None):
    """The rest of an episode by the expert -> (its last reward, its actions)."""
    turns = play(env, task_id, todo.HORIZON)
    assert all(info["valid"] for *_, info in turns), turns
    return turns[-1][2], [action for action, *_ in turns]


# ---- the replies ----

def test_projects_and_tasks_are_told_in_the_originals_shapes(env):
    """The client's example: [{'id', 'order', 'color', 'name', 'is_favorite'}], and of tasks
    [{'id', 'order', 'content', 'is_completed', 'priority', 'due_date'}]."""
    found = ask(env, "get_projects")
    assert len(found) == 5
    for order, project in enumerate(found, 1):
        assert [*project] == ["id", "order", "color", "name", "is_favorite"]
        assert project["order"] == order and project["color"] == "charcoal"
        assert type(project["id"]) is str and type(project["is_favorite"]) is bool
        tasks = ask(env, "get_tasks", project_id=project["id"])
        assert 3 <= len(tasks) <= 5
        for n, task in enumerate(tasks, 1):
            assert [*task] == ["id", "order", "content", "is_completed", "priority", "due_date"]
            assert task["order"] == n and task["is_completed"] is False
            assert task["priority"] in (1, 2, 3, 4)
        more = ask(env, "get_task_description", task_id=task["id"])
        assert [*more] == ["id", "content", "description"] and more["content"] == task["content"]
        assert [line.split(":")[0] for line in more["description"].split("\n")] == [
            "- Place", "- Contact", "- Bring", "- Tips"]
        lasts = ask(env, "get_task_duration", task_id=int(task["id"]))  # a number does as well
        assert lasts == {"id": task["id"], "content": task["content"],
                         "duration": f"{env.tasks[task['id']]['minutes']}(minute)"}
    assert ask(env, "get_user_current_date") == str(env.task.today)
    assert ask(env, "get_user_current_location") == env.task.home


def test_changes_are_told_and_seen(env):
    project = ask(env, "get_projects")[2]
    for text, value in (("True", True), ("False", False), (True, True), ("false", False)):
        assert ask(env, "update_project", project_id=project["id"], is_favorite=text) == {
            "message": "Update the project successfully.",
            "project": {**project, "is_favorite": value}}
        assert ask(env, "get_projects")[2]["is_favorite"] is value
    first, second, third, *rest = ask(env, "get_tasks", project_id=project["id"])
    moved = {**first, "due_date": "2030-02-28"}
    assert ask(env, "update_task", task_id=first["id"], due_date="2030-02-28") == {
        "message": "Update the task successfully", "task": moved}
    assert ask(env, "complete_task", task_id=second["id"]) == {
        "message": "Complete task successfully.",
        "task": {key: value for key, value in second.items() if key != "is_completed"}}
    assert ask(env, "delete_task", task_id=third["id"]) == {
        "message": "Delete the task successfully.", "task": third}
    assert ask(env, "get_tasks", project_id=project["id"]) == [moved, *rest]


@pytest.mark.parametrize("tool, arguments, refusal", [
    ("get_tasks", {"project_id": "1"}, "Project not found"),
    ("update_project", {"project_id": "1", "is_favorite": "True"}, "Project not found"),
    ("update_task", {"task_id": "1", "due_date": "2030-01-01"}, "Task not found"),
    ("complete_task", {"task_id": "1"}, "Task 1 is not exists."),
    ("delete_task", {"task_id": "1"}, "Task 1 is not exists."),
    ("update_task", {"task_id": 0, "due_date": "2030-02-30"}, "Invalid argument value: due_date"),
    ("update_project", {"project_id": 0, "is_favorite": "maybe"},
     "Invalid argument value: is_favorite"),
])
def test_refusals_change_nothing(env, tool, arguments, refusal):
    first = {"task_id": [*env.tasks][0], "project_id": [*env.projects][0]}      # what 0 stands for
    before = copy.deepcopy((env.projects, env.tasks))
    given = {key: first[key] if value == 0 else value for key, value in arguments.items()}
    assert ask(env, tool, **given) == refusal
    assert (env.projects, env.tasks) == before


# ---- success ----

@pytest.mark.parametrize("kind", ["complete", "postpone", "delete", "favourite", "several"])
def test_judge_wants_the_answer_and_the_state(kind):
    env = Env()
    for task_id in [i for i in todo.TEST if todo.family(i) == kind][:2]:
        env.reset(task_id)                      # the answer alone
        assert env.step('finish with Action Input: {"answer": "done"}')[1:3] == (0.0, True)
        env.reset(task_id)                      # the state alone
        while not (action := env.expert()[1]).startswith("finish"):
            env.step(action)
        assert env.step('finish with Action Input: {"answer": "no"}')[1:3] == (0.0, True)


@pytest.mark.parametrize("kind", ["postpone", "favourite"])
def test_expert_makes_a_change_again_that_was_undone(kind):
    env = Env()
    env.reset(task_of(kind))
    while not (action := env.expert()[1]).startswith("finish"):
        env.step(action)
    t = env.task
    undo = ("update_task", {"task_id": t.task["id"], "due_date": "2001-01-01"}) \
        if kind == "postpone" else ("update_project", {
            "project_id": t.project["id"], "is_favorite": t.project["is_favorite"]})
    env.step(tools.written(*undo))
    assert env.expert()[1].startswith(undo[0]) and ends(env)[0] == 1.0


@pytest.mark.parametrize("kind", ["detail", "minutes", "complete", "postpone", "favourite"])
@pytest.mark.parametrize("gone", ["all", "others"])
def test_expert_ends_unpaid_after_a_deletion_by_mistake(kind, gone):
    """Also where what it needs is gone, or where all was done right but for that."""
    env = Env()
    env.reset(task_of(kind))
    for task_id in [*env.tasks]:
        if gone == "all" or task_id != env.task.task["id"]:
            env.step(tools.written("delete_task", {"task_id": task_id}))
    reward, actions = ends(env)
    assert reward == 0.0 and actions[-1].startswith("finish")


# ---- AgentGym's own tasks ----

def original_folder(tmp_path):
    """agentenv-tool/Toolusage with an account of two projects and three tasks, and four tasks about
    it: two questions, one of which changes something as well, and two requests."""
    tasks = [dict(content=content, description=f"- Place: {content}\n- Tips: none",
                  priority=priority, due_date=due, duration=45, duration_unit="minute")
             for content, priority, due in (("Sweep", 1, "2015-06-01"), ("Mop", 2, "2015-06-09"),
                                            ("Print", 4, "2015-06-05"))]
    projects = [dict(name="Home", is_favorite=False, tasks=tasks[:2]),
                dict(name="Work", is_favorite=False, tasks=tasks[2:])]
    lines = []
    for goal, answer, change in (
            ("How long is it? Answer as 'number(unit)'. ", "45(minute)", {}),
            ("Mop is done. Which tasks are left?", ["Print", "Sweep"], {"Mop": None}),
            ("Make Work a favourite.", "done", {"Work": {"is_favorite": True}}),
            ("Remove Sweep, put Print off to 2015-06-30.", "done",
             {"Sweep": None, "Print": {"due_date": "2015-06-30"}})):
        gold = dict(projects=[dict(name=x["name"], is_favorite=False) | change.get(x["name"], {})
                              for x in projects],
                    tasks=[dict(content=x["content"], is_completed=False, due_date=x["due_date"])
                           | more for x in tasks
                           if (more := change.get(x["content"], {})) is not None])
        config = dict(current_date="2015-05-31", current_location="Ghent")
        lines.append(json.dumps(dict(
            id=len(lines), goal=goal, subgoals=[answer], difficulty="hard",
            additional_info=dict(answer=gold, init_config=config, goal_type=0, tool="todo"))))
    (tmp_path / "data").mkdir()
    (tmp_path / "toolusage/utils/todo").mkdir(parents=True)
    (tmp_path / "data/todo.jsonl").write_text("\n".join(lines))
    (tmp_path / "toolusage/utils/todo/projects.json").write_text(json.dumps(projects))
    return tmp_path


def test_agentgyms_own_tasks_are_played_under_its_ids(tmp_path):
    """The account, what the expert does, and that answer and account count."""
    world = open_env("todo", original_folder(tmp_path))
    assert (world.TRAIN, world.TEST) == (range(2), range(2, 4))
    env = world.Env()
    for task_id, way in enumerate((
            "question: get_projects get_tasks get_tasks finish",
            "both: get_projects get_tasks complete_task finish",
            "change: get_projects update_project finish",
            "change: get_projects get_tasks get_tasks delete_task update_task finish")):
        reward, actions = ends(env, task_id)
        called = " ".join(action.split()[0] for action in actions)
        assert (reward, f"{world.family(task_id)}: {called}") == (1.0, way)
        env.reset(task_id)
        assert env.step('finish with Action Input: {"answer": "done"}')[1] == 0.0
    assert (env.get_user_current_date(), env.get_user_current_location()) == ("2015-05-31", "Ghent")
    what = env.get_task_description([*env.tasks][0])["description"]
    assert (what, env.get_projects()[1]["name"]) == ("- Place: Sweep\n- Tips: none", "Work")


@pytest.mark.parametrize("file, old, new, told", [
    ("data/todo.jsonl", '"subgoals"', '"goals"', "line 1: subgoals is missing"),
    ("data/todo.jsonl", '"name": "Home"', '"name": "Hume"', "'Hume' is no project and no task"),
    ("data/todo.jsonl", '"current_date"', '"date"', "init_config.current_date is missing"),
    ("toolusage/utils/todo/projects.json", '"duration"', '"time"', "json: duration is missing"),
    ("toolusage/utils/todo/projects.json", "]", "", "the account's projects are expected")])
def test_agentgyms_files_are_named_where_they_are_broken(file, old, new, told, tmp_path):
    path = original_folder(tmp_path) / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=told):
        todo.use(tmp_path)


# ---- the tasks: what their words mean, in plain loops ----

DAY = r"(tomorrow|the day \d+ days from today|\d{4}-\d\d-\d\d|[A-Z]\w+ \d+, \d{4})"
CHOSEN = rf"due before {DAY}|due on {DAY} or later|(overdue)|of priority (\d)( or more)?"


def day_told(words, today):
    if words == "tomorrow" or words.startswith("the day"):
        return str(today + timedelta(int((re.findall(r"\d+", words) or [1])[0])))
    return words if "-" in words else str(datetime.strptime(words, "%B %d, %Y").date())


def tasks_told(t):
    """The tasks of "of priority 3 or more in the project Band"."""
    found, match = [], re.search(CHOSEN, t.goal)
    before, since, overdue, level, more = match.groups() if match else [None] * 5
    everywhere = re.search("in all my projects|in the whole account", t.goal)
    for task in t.tasks.values():
        name, due = t.projects[task["project"]]["name"], task["due_date"]
        if (everywhere or re.search(rf"\b(in|project) {name}\b", t.goal)) and (
                not before or due < day_told(before, t.today)) and (
                not since or due >= day_told(since, t.today)) and (
                not overdue or due < str(t.today)) and (
                not level or task["priority"] == int(level) or
                more and task["priority"] > int(level)):
            found.append(task)
    return found


def meant(kind, t):
    """(answer, projects and tasks in the end) by the goal's words alone."""
    after = projects, tasks = copy.deepcopy((t.projects, t.tasks))
    goal, answer, day = t.goal, "done", re.findall(DAY, t.goal)
    quoted = [x for x in t.tasks.values() if re.search(f"['\"]{x['content']}['\"]", goal)]
    named = {x["name"] for x in projects.values() if re.search(rf"\b{x['name']}\b", goal)}
    home = t.projects[quoted[0]["project"]] if quoted else {}
    if kind == "detail":
        x, = quoted
        answer = first_of({
            "due|which day": x["due_date"], "priority": x["priority"], "minutes": x["minutes"],
            "place|Where": x["what"]["Place"], "ontact": x["what"]["Contact"],
            "bring|forget": x["what"]["Bring"]}, goal.replace(x["content"], ""))
    elif kind == "first":
        order = sorted(quoted, key=lambda x: x["due_date"], reverse="earliest" not in goal
                       and "due first" not in goal)
        assert order[0]["due_date"] != order[1]["due_date"], "two are right"
        answer = order[0]["content"]
    elif kind in ("listed", "count", "minutes"):
        contents = [x["content"] for x in tasks_told(t)]
        answer = contents if kind == "listed" else len(contents) if kind == "count" else sum(
            x["minutes"] for x in tasks_told(t))
    elif kind == "belongs":
        answer = home["name"] if "hich project" in goal else "Yes" if named == {home["name"]} \
            else "No"
    elif kind == "favourite":
        project, = [x for x in projects.values() if x["name"] in named or x == home]
        project["is_favorite"] = not re.search("off my|Stop|don't want", goal)
    elif kind == "postpone" or kind == "several" and re.search("Set|move", goal):
        longer = re.search(r"(\d+) days( more|\.)", goal) if kind == "postpone" else None
        for x in quoted if kind == "postpone" else tasks_told(t):
            tasks[x["id"]]["due_date"] = day_told(day[-1], t.today) if not longer else str(
                date.fromisoformat(x["due_date"]) + timedelta(int(longer[1])))
    else:
        for x in tasks_told(t) if kind == "several" else quoted:
            del tasks[x["id"]]
    return answer, after


@pytest.mark.parametrize("kind", todo.FAMILIES)
def test_answer_and_account_are_those_that_the_words_mean(kind):
    for task_id in [i for i in [*todo.TEST, *todo.TRAIN] if todo.family(i) == kind][:40]:
        t = todo.task(task_id)
        answer, after = meant(kind, t)
        assert (answer, after) == (t.answer, t.wanted), (task_id, t.goal)
        assert (answer == "done") == (after != (t.projects, t.tasks)), (task_id, t.goal)
