"""todo: questions about an account of projects and tasks, and changes to be made in it, with tools.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: I'm planning my week. Put off "Label
            the seismograph" by 8 days.
            Give me one action.                                                          (task 29)
    agent:  get_projects with Action Input: {}
    env:    Observation: [{'id': '2240021195', 'order': 1, 'color': 'charcoal', 'name': 'Science
            Fair', 'is_favorite': False}, [...]
    agent:  get_tasks with Action Input: {"project": "Science Fair"}
    env:    Observation: ERROR | KeyError('project_id')
    agent:  get_tasks with Action Input: {"project_id": "2240021195"}
    env:    Observation: [{'id': '7223422491', 'order': 1, 'content': 'Label the seismograph',
            'is_completed': False, 'priority': 3, 'due_date': '2020-11-01'}, [...]
    agent:  update_task with Action Input: {"task_id": "7223422491", "due_date": "2020-11-09"}
    env:    Observation: {'message': 'Update the task successfully', 'task': {[...]
    agent:  finish with Action Input: {"answer": "done"}                        reward 1, done

After AgentBoard's todo as AgentGym serves it: its tools, replies and errors (parts/tools.py has
what all such environments share), with the words of Todoist behind them; those that the original
passes on, of dates and ids that are none, are from memory. The accounts are made here, so no score
is comparable to the papers'. Sections and labels the original's tools do not show, nor do ours.

Reward 1, at `finish`, for the right answer, 'done' where something was to be changed, if also the
account is then as it should be: all that was asked for, and nothing else. What is completed or
deleted is gone, as there: after such a mistake the expert goes on, but cannot succeed. All else it
puts right.

With `--data FOLDER` of the scripts, FOLDER being agentenv-tool/Toolusage of AgentGym's repository,
its own 155 tasks are played, under its ids (parts/toolusage.py): the last 20 are TEST, as AgentEval
plays 20 of them and no list is published. The expert knows the account wanted in the end.

Eleven families of requests about 21 projects of 20 tasks each, two to four wordings each, with
days, asides and closing words drawn: 2,000 further tasks have 1,987 distinct goals. TRAIN has 1,980
tasks, TEST 220, about six projects that TRAIN never has. A random player solves 0.4% of TEST,
`expert` all, in 5.2 turns on average and 13 at most.
"""
import copy
import re
from datetime import date, datetime, timedelta
from functools import partial

from envs.parts import todo_prompt, tool_prompt, tools, toolusage
from envs.parts.todo_words import THEMES, PLACES, ITEMS, TIPS, CITIES
from envs.parts.tools import Refused

NAME, HORIZON, SUCCESS = "todo", 15, 1.0
TRAIN, TEST = tuple(i for i in range(2200) if i % 10 != 9), range(9, 2200, 10)
ORIGINAL = range(155)       # the ids that AgentGym's server has, too; its questions are others
TINY = dict(families="complete,favourite", horizons=(8,), max_context=1280, max_turn_tokens=48)
PROMPT = """You look after an account of projects and tasks with tools. Each turn, call one tool:
NAME with Action Input: {arguments as JSON}
get_projects: {}, all projects with their ids
get_tasks: {"project_id"}, the open tasks of a project with their ids, priority 1 to 4 and due date
get_task_description, get_task_duration: {"task_id"}
complete_task, delete_task: {"task_id"}; the task is gone then, for good
update_task: {"task_id", "due_date": "YYYY-MM-DD"}
update_project: {"project_id", "is_favorite": "True" or "False"}
get_user_current_date, get_user_current_location: {}
check_valid_actions: {}, the names of all tools
finish: {"answer": a text, a number or a list; "done" where something was to be changed}, which
ends the task. It is solved if the answer is right and nothing else was changed in the account.
An example: get_tasks with Action Input: {"project_id": "2203306141"}"""
EXAMPLE = "get_projects with Action Input: {}"
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = tools.WIRE
AGENTGYM = tool_prompt.manner(todo_prompt.RULES)
SET_SIZES = dict(agenttraj=70, agenttraj_l=135)

# ---- accounts -----------------------------------------------------------------------------------

HELD_OUT = 6        # the last so many projects of THEMES occur in TEST only


def themes(held_out):
    """[(project's name, [task, ...])] of TEST, or of TRAIN."""
    found = []
    for line in THEMES.replace("\n ", " ").split("\n"):
        name, rest = line.split(": ")
        verbs, things = ([part.strip() for part in side.split(",")] for side in rest.split("/"))
        found.append((name, [f"{verb} {thing}" for verb in verbs for thing in things]))
    return found[-HELD_OUT:] if held_out else found[:-HELD_OUT]


ASIDES = ("", "", "", "", "I'm planning my week. ", "I'm on the train right now. ",
          "Just one thing. ", "My phone is out of reach. ", "Hello! ", "One more thing. ")
DONE = ("", "Answer 'done' when you are through.", "Say 'done' afterwards.")


class Task(tools.Draw):
    """The chances of one task: its day, account and words. projects, tasks: {id: what is known}, as
    they are at first; wanted: the two as they should be in the end."""
    asides = ASIDES     # that suit a request

    def __init__(self, task_id, attempt):
        super().__init__(NAME, task_id, attempt)
        rng = self.rng
        self.today = date(2019, 1, 1) + timedelta(rng.randrange(2500))
        self.home, self.projects, self.tasks = rng.choice(CITIES), {}, {}
        for order, (name, contents) in enumerate(rng.sample(themes(task_id in TEST), 5), 1):
            project_id = str(rng.randrange(22 * 10**8, 23 * 10**8))
            self.projects[project_id] = dict(
                id=project_id, order=order, color="charcoal", name=name,
                is_favorite=rng.random() < 0.3)
            for n, content in enumerate(rng.sample(contents, rng.randint(3, 5)), 1):
                self.add_task(project_id, n, content)
        self.wanted = copy.deepcopy((self.projects, self.tasks))
        self.project = rng.choice([*self.projects.values()])
        self.own = [task for task in self.tasks.values() if task["project"] == self.project["id"]]
        self.task, *self.others = rng.sample(self.own, len(self.own))

    def add_task(self, project_id, order, content):
        """A new task of a project, with a due date, a length and a description by chance."""
        rng, task_id = self.rng, str(self.rng.randrange(72 * 10**8, 73 * 10**8))
        what = dict(Place=rng.choice(PLACES), Contact=f"{rng.choice(tools.FIRST)} "
                    f"{rng.choice(tools.LAST)}", Bring=rng.choice(ITEMS), Tips=rng.choice(TIPS))
        self.tasks[task_id] = dict(
            id=task_id, order=order, content=content, is_completed=False,
            priority=rng.randint(1, 4), project=project_id, minutes=5 * rng.randint(2, 30),
            due_date=(self.today + timedelta(rng.randint(-8, 25))).isoformat(), what=what)

    def named(self, *tasks):
        """(words for tasks of one project, the project's name or "": not told)"""
        quoted, project = self.one("'{}'", '"{}"'), ""
        words = " and ".join(quoted.format(task["content"]) for task in tasks)
        if self.rng.random() < 0.6:
            project = self.projects[tasks[0]["project"]]["name"]
            words += self.one(" in {}", " of the project {}", " in my project {}").format(project)
        return words, project

    def day(self):
        """(words, date, days after today or None: told without today) of a day to come."""
        n = self.rng.randint(3, 12)
        that = self.today + timedelta(n)
        return self.one(
            (f"{that:%B} {that.day}, {that.year}", that, None), (that.isoformat(), that, None),
            ("tomorrow", self.today + timedelta(1), 1), (f"the day {n} days from today", that, n))

    def gone(self, *tasks):
        """These tasks should be completed or deleted in the end."""
        for task in tasks:
            del self.wanted[1][task["id"]]

    def moved(self, tasks, due):
        """These tasks should be due then in the end."""
        for task in tasks:
            self.wanted[1][task["id"]]["due_date"] = due


# ---- steps: generators of calls (thought, tool, arguments) that are sent the results -------------

def projects(say):
    return (yield say("First I look at the projects.", "Which projects are there?",
                      "I need the ids of the projects."), "get_projects", {})


def tasks_in(say, project):
    return (yield say(f"Now the tasks of {project['name']}.", f"What is in {project['name']}?"),
            "get_tasks", {"project_id": project["id"]})


def tasks_of(say, name):
    """-> the tasks of the project of this name."""
    found = yield from projects(say)
    return (yield from tasks_in(say, next(x for x in found if x["name"] == name)))


def find(say, content, name=""):
    """-> the task of this content, and its project; name: of the project, "" where not told."""
    for project in (yield from projects(say)):
        if name in ("", project["name"]):
            for task in (yield from tasks_in(say, project)):
                if task["content"] == content:
                    return task, project


def day_meant(say, day, after):
    """-> the day as a text; after: so many days after today, where the goal tells it so."""
    if after is None:
        return day.isoformat()
    today = yield say("To name the day I need today's date.", "Which day is it today?"), \
        "get_user_current_date", {}
    return str(date.fromisoformat(today) + timedelta(after))


# Families: functions of a Task that word its goal -> (answer, steps).

def about(field):
    """The conclusion from the reply of get_task_description."""
    return lambda reply: dict(line[2:].split(": ", 1) for line in reply["description"].split("\n")
                              )[field]


WORDS = "Answer in the words of its description."
DETAILS = (     # ending, sentences, answer from the task, tool for more, conclusion from its reply
    ("date", ("When is {x} due?", "What is the due date of {x}?", "By which day must I do {x}?"),
     lambda task: task["due_date"], "", lambda task: task["due_date"]),
    ("Answer with a number from 1 to 4.", ("What priority does {x} have?",
                                           "How urgent is {x}, as its priority says?"),
     lambda task: task["priority"], "", lambda task: task["priority"]),
    ("number", ("How many minutes will {x} take?", "How long is {x} planned to last, in minutes?"),
     lambda task: task["minutes"], "get_task_duration",
     lambda reply: int(reply["duration"].split("(")[0])),
    (WORDS, ("Where do I have to be for {x}?", "What is the place for {x}?"),
     lambda task: task["what"]["Place"], "get_task_description", about("Place")),
    ("name", ("Whom can I contact about {x}?", "Who is the contact for {x}?"),
     lambda task: task["what"]["Contact"], "get_task_description", about("Contact")),
    (WORDS, ("What should I bring for {x}?", "Which thing must I not forget for {x}?"),
     lambda task: task["what"]["Bring"], "get_task_description", about("Bring")))


def detail(t):
    """What is known of one task."""
    ending, sentences, answer, tool, conclude = t.keep(*DETAILS)
    x, project = t.named(t.task)
    t.ask(ending, *[sentence.format(x=x) for sentence in sentences])

    def steps(say):
        task, _ = yield from find(say, t.task["content"], project)
        if tool:
            task = yield say("I have its id and look further.", "Its details come next."), tool, \
                {"task_id": task["id"]}
        return conclude(task)
    return answer(t.task), steps


def first(t):
    """Which of three or four tasks is due first, or last."""
    tasks, last = t.rng.sample([*t.tasks.values()], t.one(3, 3, 4)), t.one(True, False)
    days = sorted(task["due_date"] for task in tasks)
    *some, other = [f"'{task['content']}'" for task in tasks]
    names, when = f"{', '.join(some)} or {other}", "latest" if last else "first"
    t.ask("Answer with the task only.", f"Which of these is due {when}: {names}?",
          f"{names}: which one has the {'last' if last else 'earliest'} due date?")

    def steps(say):
        wanted, found = {task["content"] for task in tasks}, []
        for project in (yield from projects(say)):
            found += [task for task in (yield from tasks_in(say, project))
                      if task["content"] in wanted]
            if len(found) == len(wanted):
                break
        return sorted(found, key=lambda task: task["due_date"])[-last]["content"]
    best = days[-1] if last else days[0]
    tie = days.count(best) > 1
    return None if tie else next(x["content"] for x in tasks if x["due_date"] == best), steps


CHOICES = (     # words, whether a task fits: (task, day as a text, priority)
    ("due before {day}", lambda task, day, _: task["due_date"] < day),
    ("due on {day} or later", lambda task, day, _: task["due_date"] >= day),
    ("overdue", lambda task, day, _: task["due_date"] < day),       # the day is today
    ("of priority {level}", lambda task, _, level: task["priority"] == level),
    ("of priority {level} or more", lambda task, _, level: task["priority"] >= level))


def choose(t):
    """Some tasks of a project or of all -> (their words, the tasks, steps that find them)."""
    (form, fits), everywhere = t.one(*CHOICES), t.rng.random() < 0.3
    level = t.rng.randint(2, 3 if "more" in form else 4)
    day = t.today + timedelta(0 if form == "overdue" else t.rng.randint(1, 12))
    after, name = 0 if form == "overdue" else None, "" if everywhere else t.project["name"]
    words = form.format(day=t.one(str(day), f"{day:%B} {day.day}, {day.year}"), level=level) + (
        t.one(" in all my projects", " in the whole account") if everywhere else
        t.one(" in {}", " in the project {}").format(name))

    def steps(say):
        when, found = (yield from day_meant(say, day, after)), []
        for project in (yield from projects(say)):
            if name in ("", project["name"]):
                found += yield from tasks_in(say, project)
        return [task for task in found if fits(task, when, level)]
    return words, [task for task in (t.tasks.values() if everywhere else t.own)
                   if fits(task, str(day), level)], steps


def listed(t):
    """The tasks that are chosen: one to five, as no empty list should be worth a guess."""
    words, tasks, found = choose(t)
    t.ask("list", f"Which tasks are {words}?", f"Name all tasks {words}.",
          f"I'd like to see the tasks {words}.")

    def steps(say):
        return [task["content"] for task in (yield from found(say))]
    return [task["content"] for task in tasks] if 0 < len(tasks) < 6 else None, steps


def count(t):
    """How many tasks are chosen."""
    words, tasks, found = choose(t)
    t.ask("number", f"How many tasks are {words}?", f"Count the tasks {words}.")

    def steps(say):
        return len((yield from found(say)))
    return len(tasks), steps


def minutes(t):
    """How long all tasks of a project, or those chosen, take together."""
    words, tasks, found = choose(t)
    if t.one(True, False):
        name, tasks = t.project["name"], t.own
        words = t.one("in {}", "of the project {}").format(name)

        def found(say):
            return (yield from tasks_of(say, name))
    t.ask("number", f"How many minutes do the tasks {words} take altogether?",
          f"Add up the durations of the tasks {words}: how many minutes is that?")

    def steps(say):
        total = 0
        for task in (yield from found(say)):
            reply = yield say(f"How long does '{task['content']}' take?",
                              f"Next the duration of '{task['content']}'."), \
                "get_task_duration", {"task_id": task["id"]}
            total += int(reply["duration"].split("(")[0])
        return total
    return sum(task["minutes"] for task in tasks) if 1 < len(tasks) < 7 else None, steps


def belongs(t):
    """Which project a task is in, or whether it is in one. Its words do not tell: half of the time
    it has changed places with a task of another project."""
    task, other = t.task, t.one(*[x for x in t.tasks.values() if x not in t.own])
    if t.one(True, False):
        swapped = {task["id"]: other["content"], other["id"]: task["content"]}
        for tasks in (t.tasks, t.wanted[1]):
            for task_id, content in swapped.items():
                tasks[task_id]["content"] = content
    name, right = t.project["name"], t.keep(True, False)
    if t.one(True, False):
        t.ask("name", f"Which project does '{task['content']}' belong to?",
              f"In which project did I put '{task['content']}'?")

        def steps(say):
            return (yield from find(say, task["content"]))[1]["name"]
        return name, steps
    content = (task if right else other)["content"]
    t.ask("yes", f"Is '{content}' a task of {name}?",
          f"Does '{content}' belong to the project {name}?", f"Did I put '{content}' into {name}?")

    def steps(say):
        found = yield from tasks_of(say, name)
        return "Yes" if content in [x["content"] for x in found] else "No"
    return "Yes" if right else "No", steps


def complete(t):
    """Complete one task, or two of one project."""
    tasks = [t.task, *t.others[:t.one(0, 0, 1)]]
    x, project = t.named(*tasks)
    t.ask(t.one(*DONE), f"I have finished {x}. Please mark that as completed.",
          f"Tick off {x}, please.", f"I am through with {x}: complete that for me, please.")

    def steps(say):
        for task in tasks:
            found, _ = yield from find(say, task["content"], project)
            yield say("That one is done.", "I mark it as completed."), "complete_task", \
                {"task_id": found["id"]}
        return "done"
    t.gone(*tasks)
    return "done", steps


def postpone(t):
    """Give a task another date, told as a day or by how many days it moves."""
    (words, day, after), (x, project), n = t.day(), t.named(t.task), t.rng.randint(2, 9)
    by = t.one(True, False)
    if by:
        day = date.fromisoformat(t.task["due_date"]) + timedelta(n)
        t.ask(t.one(*DONE), f"I won't manage {x} in time. Give me {n} days more for it.",
              f"Put off {x} by {n} days.", f"Please extend the deadline of {x} by {n} days.")
    else:
        t.ask(t.one(*DONE), f"Move {x} to {words}.", f"Please set the due date of {x} to {words}.",
              f"The deadline of {x} has changed to {words}. Please update it.")

    def steps(say):
        when = "" if by else (yield from day_meant(say, day, after))
        found, _ = yield from find(say, t.task["content"], project)
        when = when or str(date.fromisoformat(found["due_date"]) + timedelta(n))
        yield say(f"It is due on {found['due_date']} so far.", f"I set its date to {when}."), \
            "update_task", {"task_id": found["id"], "due_date": when}
        return "done"
    t.moved([t.task], str(day))
    new = str(day) > str(t.today) and str(day) != t.task["due_date"]
    return "done" if new else None, steps


def delete(t):
    """Delete a task."""
    x, project = t.named(t.task)
    t.ask(t.one(*DONE), f"I no longer need {x}. Delete it, please.", f"Please delete {x}.",
          f"Remove {x} from my list for good, since it was called off.")

    def steps(say):
        found, _ = yield from find(say, t.task["content"], project)
        yield say("This task can go.", "I delete it."), "delete_task", {"task_id": found["id"]}
        return "done"
    t.gone(t.task)
    return "done", steps


def favourite(t):
    """A project, named or told by one of its tasks, becomes a favourite or ceases to be one."""
    new, name, told = not t.project["is_favorite"], t.project["name"], t.rng.random() < 0.6
    x = t.one("{}", "the project {}").format(name) if told else \
        f"the project that holds '{t.task['content']}'"
    t.ask(t.one(*DONE), *((f"Make {x} one of my favourites.", f"Please mark {x} as a favourite.",
                           f"From now on, show {x} among my favourites.") if new else
                          (f"Take {x} off my favourites.", f"Stop showing {x} as a favourite.",
                           f"I don't want {x} among my favourites any longer.")))

    def steps(say):
        if told:
            project = next(x for x in (yield from projects(say)) if x["name"] == name)
        else:
            _, project = yield from find(say, t.task["content"])
        yield say(f"It is {project['name']} that I change.", "I have its id now."), \
            "update_project", {"project_id": project["id"], "is_favorite": str(new)}
        return "done"
    t.wanted[0][t.project["id"]]["is_favorite"] = new
    return "done", steps


def several(t):
    """Complete, delete or move all the tasks that are chosen."""
    words, tasks, found = choose(t)
    (when, day, after), tool = t.day(), t.one("complete_task", "delete_task", "update_task")
    t.ask(t.one(*DONE), *{
        "complete_task": (f"I have done all the tasks {words}: complete them.",
                          f"Mark every task {words} as completed."),
        "delete_task": (f"Delete all tasks {words}.", f"The tasks {words} can all be deleted."),
        "update_task": (f"Please move all tasks {words} to {when}.",
                        f"Set the due date of every task {words} to {when}.")}[tool])

    def steps(say):
        more = {}
        if tool == "update_task":
            more["due_date"] = yield from day_meant(say, day, after)
        for task in (yield from found(say)):
            if more.get("due_date") != task["due_date"]:
                yield say(f"'{task['content']}' is one of them.",
                          f"Now '{task['content']}'."), tool, {"task_id": task["id"], **more}
        return "done"
    t.moved(tasks, str(day)) if tool == "update_task" else t.gone(*tasks)
    return "done" if 1 < len(tasks) < 6 else None, steps


KINDS = {"detail": detail, "first": first, "listed": listed, "count": count, "minutes": minutes,
         "belongs": belongs, "complete": complete, "postpone": postpone, "delete": delete,
         "favourite": favourite, "several": several}
FAMILIES = tuple(KINDS)

# ---- AgentGym's own tasks -----------------------------------------------------------------------

OWN = ()        # in place of those made here: see `use`


def use(folder):
    """What differs when it plays AgentGym's tasks; the last 20 are TEST, as many as AgentEval
    plays: envs.with_data. ValueError: the file and the field that is wrong."""
    found = toolusage.read_todo(folder)
    if len(found) < 2:
        raise ValueError(f"{folder} has {len(found)} tasks of todo; 2 are needed, one for TEST")
    for own in found:
        own.steps = partial(steps_to_the_end, own)
    first = len(found) - min(20, len(found) // 2)
    return dict(OWN=found, TRAIN=range(first), TEST=range(first, len(found)),
                FAMILIES=("question", "change", "both"),
                **{f.__name__: partial(f, own=found) for f in (family, task, fingerprint)})


def steps_to_the_end(t, say):
    """Steps of a task without a way told: the expert knows the answer and the account wanted."""
    changed = [key for before, after in zip((t.projects, t.tasks), t.wanted)
               for key in before if before[key] != after.get(key)]
    where = {t.tasks[key]["project"] for key in changed if key in t.tasks}
    for project in (yield from projects(say)):
        if project["id"] in where or not changed:
            yield from tasks_in(say, project)
    for key in changed:
        if key in t.projects:
            tool, more = "update_project", {"project_id": key, "is_favorite": str(
                t.wanted[0][key]["is_favorite"])}
        elif key in t.wanted[1]:
            tool, more = "update_task", {"task_id": key, "due_date": t.wanted[1][key]["due_date"]}
        else:
            tool = "delete_task" if re.search("delet|remov", t.goal.lower()) else "complete_task"
            more = {"task_id": key}
        yield say("This is to be changed.", "Now this one."), tool, more
    return t.answer


def family(task_id, own=()):
    if not own:
        return FAMILIES[task_id % len(FAMILIES)]
    t = own[task_id]
    if t.wanted == (t.projects, t.tasks):
        return "question"
    return "change" if t.answer == "done" else "both"


def task(task_id, own=()):
    return own[task_id] if own else tools.task_of(Task, KINDS[family(task_id)], task_id)


def fingerprint(task_id, own=()):
    t = task(task_id, own)
    return f"{t.goal} {t.today} {[x['content'] for x in t.tasks.values()]}"


# ---- the tools ----------------------------------------------------------------------------------

CHANGES = "update_project", "update_task", "complete_task", "delete_task"
HIDDEN = "project", "minutes", "what"       # of a task, in get_tasks


def shown(task, *hidden):
    return {key: value for key, value in task.items() if key not in (*HIDDEN, *hidden)}


class Env(tools.Env):
    tools = tuple("""get_user_current_date get_user_current_location get_projects update_project
        get_tasks get_task_description get_task_duration complete_task update_task
        delete_task""".split())

    def start(self, task_id):
        observation = super().start(task_id)
        self.projects, self.tasks = copy.deepcopy((self.task.projects, self.task.tasks))
        return observation

    def judge(self, answer):
        """1: the answer is right, and the account as it should be."""
        right = super().judge(answer) and (self.projects, self.tasks) == self.task.wanted
        return float(right)

    def get_user_current_date(self):
        return self.task.today.isoformat()

    def get_user_current_location(self):
        return self.task.home

    def get_projects(self):
        return [{**project} for project in self.projects.values()]

    def get_tasks(self, project_id: str):
        self.known(self.projects, project_id, "Project not found")
        return [shown(task) for task in self.tasks.values() if task["project"] == project_id]

    def get_task_description(self, task_id: str):
        found = self.known(self.tasks, task_id, "Task not found")
        what = found["what"] if self.module.OWN else "\n".join(
            f"- {key}: {value}" for key, value in found["what"].items())
        return {"id": task_id, "content": found["content"], "description": what}

    def get_task_duration(self, task_id: str):
        found = self.known(self.tasks, task_id, "Task not found")
        return {"id": task_id, "content": found["content"],
                "duration": f"{found['minutes']}(minute)"}

    def update_project(self, project_id: str, is_favorite: object):
        """Make a project a favourite, or not."""
        found = self.known(self.projects, project_id, "Project not found")
        new = {"true": True, "false": False}.get(str(is_favorite).lower())
        if new is None:
            raise Refused("Invalid argument value: is_favorite")
        found["is_favorite"] = new
        self.forget("update_project", project_id)
        return {"message": "Update the project successfully.", "project": {**found}}

    def update_task(self, task_id: str, due_date: str):
        """Set the due date of a task."""
        found = self.known(self.tasks, task_id, "Task not found")
        try:
            found["due_date"] = datetime.strptime(due_date[:40], "%Y-%m-%d").date().isoformat()
        except ValueError:
            raise Refused("Invalid argument value: due_date") from None
        self.forget("update_task", task_id)
        return {"message": "Update the task successfully", "task": shown(found)}

    def complete_task(self, task_id: str):
        found = self.known(self.tasks, task_id, f"Task {task_id[:80]} is not exists.")
        del self.tasks[task_id]
        return {"message": "Complete task successfully.", "task": shown(found, "is_completed")}

    def delete_task(self, task_id: str):
        found = self.known(self.tasks, task_id, f"Task {task_id[:80]} is not exists.")
        del self.tasks[task_id]
        return {"message": "Delete the task successfully.", "task": shown(found)}

    @staticmethod
    def known(things, key, refusal):
        """The project or task of this id. Refused: there is none."""
        if key not in things:
            raise Refused(refusal)
        return things[key]

    def forget(self, tool, key):
        """Earlier updates of a thing no longer hold: the expert may have to repeat them."""
        self.results = {action: result for action, result in self.results.items()
                        if not (action.startswith(tool) and f'"{key}"' in action)}

    def script(self, say):
        """The task's steps, played on an account of their own; a change is made where this one
        differs from that. Then what else differs is put right, as far as it can be. What is gone by
        mistake is not asked about: it would be refused for ever."""
        twin, gone = type(self)(), self.task.tasks.keys() - self.tasks.keys()
        twin.task, twin.results = self.task, {}
        twin.projects, twin.tasks = copy.deepcopy((self.task.projects, self.task.tasks))
        steps = self.task.steps(say)
        try:
            call = next(steps)
            while True:
                _, tool, arguments = call
                result = getattr(twin, tool)(**arguments)
                key = next(iter(arguments.values()), "")        # the id of what it is about
                if key not in gone and (tool not in CHANGES or self.differ(twin, key)):
                    yield call
                call = steps.send(result)
        except StopIteration as end:
            answer = end.value
        for key in (*self.projects, *self.tasks):
            if key in (twin.projects | twin.tasks) and self.differ(twin, key):
                wrong = say("I changed this by mistake.", "This must be as it was.")
                yield wrong, *(("update_project", {"project_id": key, "is_favorite": str(
                    twin.projects[key]["is_favorite"])}) if key in self.projects else
                    ("update_task", {"task_id": key, "due_date": twin.tasks[key]["due_date"]}))
        yield tools.conclusion(say, answer) if answer != "done" else (
            say("That was all.", "All is done as asked."), "finish", {"answer": "done"})

    def differ(self, twin, key):
        """Whether a project or task is not the same in both accounts."""
        return (self.projects | self.tasks).get(key) != (twin.projects | twin.tasks).get(key)

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        t = self.task
        if key == "answer":
            return rng.choice(["done", "Yes", "No", rng.randint(0, 6),
                               rng.choice([*t.tasks.values()])["content"]])
        return {"project_id": rng.choice([*t.projects]), "task_id": rng.choice([*t.tasks]),
                "is_favorite": rng.choice(["True", "False"]),
                "due_date": str(t.today + timedelta(rng.randint(0, 9)))}[key]
