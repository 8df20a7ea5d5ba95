"""bird: answer a question about a database with one SQL statement; after BIRD (arXiv:2305.03111) as
AgentGym serves it, where it is called sqlgym.

    env:    hospital contains tables such as ward, doctor, patient, visit. Table ward has columns
            such as id, name, floor, wing. id is the primary key. Table doctor has columns such as
            id, name, specialty, salary, ward_id. ... The ward_id of doctor is the foreign key of id
            of ward. ...

            What is the average salary of the doctors whose ward's wing is north?
    agent:  ```sql
            SELECT AVG(salary) FROM doctor JOIN ward ON ward_id = ward.id WHERE wing = 'north'
            ```
    env:    [(8270.7,)]                           reward 1, done

Reward 1 if the set of rows is that of the reference query, in any order, else 0. There is one try,
as in the original: a statement that SQLite refuses ("no such column: wings") is lost, too; only
text that is no statement leaves the try. An answer is cut at 100 characters. SQL may come bare, as
AgentGym's client sends it. Other than there, decimals count up to the sixth place.

Databases and questions are synthetic (parts/databases.py), so a score here is no score on BIRD.
There are 20 databases, 34 shapes of a query, 3,400 tasks in TRAIN and 408 in TEST, with 3,742
different questions. No query of TEST is one of TRAIN, and half of TEST, every other round of the
shapes, asks about four databases that TRAIN never does. On TEST the random player, who reads a
table, solves 0.2% and the expert, who knows the reference, all.

With `--data FOLDER` TEST is BIRD's dev.json, TRAIN its train.json or, without it, our own; AgentGym
numbers both files in a row, so that its ids are ours only with both.

    NANO_BIRD_EVIDENCE=1    BIRD's hint stands below the question; AgentGym leaves it out
    NANO_BIRD_TRIES=3       three tries, each told that it was wrong

SQL is read in up to four processes of their own, of 28 MB each and 256 MB at most (1 GB with
BIRD's files); they can only read, and end within seconds of the processor's time.
"""
import functools
import itertools
import json
import os
import queue
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import envs
from envs.parts import databases
from envs.parts.agentgym import Manner
from envs.parts.bird_prompt import RULES, read_block
from envs.parts.wires import Wire

NAME, SUCCESS = "bird", 1.0
ENGINE = "SQLite"
TRIES = os.environ.get("NANO_BIRD_TRIES") or "1"
if not re.fullmatch("[1-9][0-9]?", TRIES):
    raise ValueError(f"bird: NANO_BIRD_TRIES is {TRIES!r}; expected a number from 1 to 99")
HORIZON = TRIES = int(TRIES)
PARALLEL = True         # SQL runs in processes of its own
ONE_WORD = (r"```sql\nSELECT|\n```|^\w+ contains tables such as .*\n\n| [A-Z]{3,} |\d|'| |"
            r"\p{L}+?(?=s\b)|\p{L}+")      # a schema; no blanks before words, no plurals
TINY = dict(families="simple", horizons=(1,), max_context=1536, max_turn_tokens=64, steps=40,
            clone=dict(n=3600, steps=2500, heads=2))
TOOLS = {"{sql}": "Answer the question with one SELECT statement of SQLite."}
PROMPT = f"""You are told the tables of an SQLite database and asked a question about its rows.
Answer with one SQL statement that gives exactly what is asked for, its columns in the order of the
question and no others. It may only read. Write it in one line, as a code block:
```sql
SELECT name FROM person WHERE age > 30
```
You are shown what it gives. You have {'one try' if TRIES == 1 else f'{TRIES} tries'}."""
EXAMPLE = "```sql\nSELECT name FROM person\n```"
SEVERAL_LINES = True
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(id_key="env_idx", create="env_idx", task_key="item_id", reset="[observation null]",
            step="{state reward done}")
AGENTGYM = Manner(RULES, read_block, agreed="Ok.")
SET_SIZES = dict(agenttraj=2000, agenttraj_l=3000)
ITEM_NAME = "sqlgym"        # its name in files of trajectories


# ---- The tasks ----

class Task(NamedTuple):
    database: str       # a world of parts/databases.py, or the path of an SQLite file
    question: str
    sql: str            # the reference
    thought: str
    family: str


GENERATED, HELD_OUT = 34 * 100, 34 * 12     # how many of our own, for TRAIN and for TEST


def shape_of(task_id):
    """(shape of a generated task, whether it is in TEST, whether TRAIN does not know its world)"""
    test = task_id >= GENERATED
    count, shape = divmod(task_id - GENERATED * test, len(databases.SHAPES))
    return databases.SHAPES[shape], test, test and count % 2 == 1


@functools.lru_cache(maxsize=4096)
def generated(task_id):
    """A Task of our own. A tenth of the questions, by the checksum of their SQL, is in TEST."""
    shape, test, unseen = shape_of(task_id)

    def fits(text):
        return unseen or (zlib.crc32(text.encode()) % 10 == 0) == test
    worlds = [world for world in databases.TABLES if (world in databases.HELD_OUT) == unseen]
    return Task(*databases.draw(worlds, shape, fits, random.Random(f"{NAME} {task_id}")), shape[0])


def read_bird(folder):
    """{"train": Tasks, "dev": Tasks} of a folder of BIRD: dev.json and dev_databases/<db_id>/
    <db_id>.sqlite there or in its folder dev, and likewise, where it has them, train. ValueError:
    the file, the item and the field that is wrong."""
    found = {}
    for split in ("train", "dev"):
        base = Path(folder, split) if Path(folder, split).is_dir() else Path(folder)
        path = base / f"{split}.json"
        if split == "train" and not path.exists():
            continue
        try:
            items = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{NAME}: {path}: no JSON file: {error}; expected BIRD's list of "
                             "questions") from None
        if type(items) is not list or not items:
            raise ValueError(f"{NAME}: {path}: {str(items)[:60]}; expected a list of questions")
        found[split] = [read_question(item, f"{path}: item {i}", base / f"{split}_databases")
                        for i, item in enumerate(items)]
    return found


def read_question(item, where, databases):
    """An item of train.json or dev.json as a Task. ValueError; where: for its sentence."""
    fields = item if type(item) is dict else {}
    for name in ("db_id", "question", "SQL"):
        if type(fields.get(name)) is not str or not fields[name].strip():
            raise ValueError(f"{NAME}: {where}: {name} is {str(fields.get(name))[:60]!r}; expected "
                             "a text")
    path = Path(databases, fields["db_id"], f"{fields['db_id']}.sqlite").absolute()
    if not path.is_file():
        raise ValueError(f"{NAME}: {where}: db_id is {fields['db_id']!r}, but there is no {path}")
    hint = f"\n{fields.get('evidence', '')}" * (os.environ.get("NANO_BIRD_EVIDENCE") == "1")
    return Task(str(path), (fields["question"] + hint).rstrip(), fields["SQL"],
                "I write the statement that selects what is asked for.",
                str(fields.get("difficulty", "unrated")))


OWN = {}            # id: Task, in place of our own: see `use`
TRAIN, TEST = range(GENERATED), range(GENERATED, GENERATED + HELD_OUT)
FAMILIES = tuple(dict.fromkeys(shape[0] for shape in databases.SHAPES))


def use(folder):
    """What differs when it plays BIRD's files in this folder: envs.with_data."""
    found = read_bird(folder)
    train = range(len(found.get("train", TRAIN)))
    test = range(len(train), len(train) + len(found["dev"]))
    own = dict(zip(train, found.get("train", ()))) | dict(zip(test, found["dev"]))

    def family_of(task_id):
        return own[task_id].family if task_id in own else family(task_id)

    return dict(OWN=own, TRAIN=train, TEST=test, family=family_of,
                FAMILIES=tuple(dict.fromkeys(map(family_of, (*train, *test)))),
                unseen_goal=lambda task_id: task_id in test,        # no database is in both
                RUNNERS=runners("THEIRS"))


def family(task_id):
    """The difficulty of a task, without drawing it."""
    return shape_of(task_id)[0][0]


def unseen_goal(task_id):
    """Whether no task of TRAIN asks about this task's database."""
    return shape_of(task_id)[2]


# ---- Databases ----

def opened(database):
    """A connection to a world in memory, or to a file, which it only reads."""
    if database in databases.TABLES:
        return databases.opened(database)
    return sqlite3.connect(f"file:{quote(database)}?mode=ro&immutable=1", uri=True)


@functools.lru_cache(maxsize=256)
def schema(database):
    """({table: its columns}, what the original tells of them), all in lower case, as there."""
    with closing(opened(database)) as connection:
        names = [name for name, in connection.execute(
            "SELECT lower(name) FROM sqlite_master WHERE type = 'table' "
            "AND name NOT GLOB 'sqlite_*'")]
        columns = {name: connection.execute(
            "SELECT lower(name), pk FROM pragma_table_info(?)", [name]).fetchall()
            for name in names}
        keys = [(name, *row) for name in names for row in connection.execute(
            'SELECT lower("from"), lower("to"), lower("table") FROM pragma_foreign_key_list(?)',
            [name])]
    primary = {name: ", ".join(c for c, place in columns[name] if place) for name in names}
    said = [f"{Path(database).stem} contains tables such as {', '.join(names)}."]
    for name in names:
        said.append(f"Table {name} has columns such as {', '.join(c for c, _ in columns[name])}.")
        said += [f"{primary[name]} is the primary key."] * bool(primary[name])
    said += [f"The {column} of {name} is the foreign key of {key or primary.get(other)} of {other}."
             for name, column, key, other in keys]
    return {name: [c for c, _ in columns[name]] for name in names}, " ".join(said)


# ---- The process that runs SQL ----
# SQLite's own limits stop most of what is meant ill: those below, and the steps of its machine, so
# that no verdict depends on how busy this computer is. But a kilobyte of WITH can take gigabytes
# before the first step. Therefore it all runs in a process that may have so much memory and time.

class Allowed(NamedTuple):
    """What a statement may take, and the functions that it may not call."""
    megasteps: int
    seconds: int
    memory: int         # bytes
    functions: tuple


OUTSIDE = "load_extension", "fts3_tokenizer"            # functions that reach outside
FILLING = "printf", "format"                            # of no use here, they fill the memory
OURS = Allowed(20, 2, 2**28, OUTSIDE + FILLING)
THEIRS = Allowed(1000, 60, 2**30, OUTSIDE)              # BIRD's databases are larger
SHOWN = 100             # letters of an answer that the agent reads
MAX_ROWS = 100_000      # of an answer
LIMITS = {sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
          sqlite3.SQLITE_LIMIT_ATTACHED: 0}
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION,
       sqlite3.SQLITE_RECURSIVE}
# What Python and SQLite say to a text that is not one whole statement: it costs no try.
NO_SQL = re.compile("syntax error|incomplete input|unrecognized token|one statement|no statement|"
                    "null character|too large")


@functools.lru_cache(maxsize=100)
def guarded(database, allowed):
    """A connection that can read this database and do nothing else."""
    connection = opened(database)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    may_not = allowed.functions
    connection.set_authorizer(lambda action, _, name, *where: (
        sqlite3.SQLITE_OK if action in MAY and name not in may_not else sqlite3.SQLITE_DENY))
    return connection


def rows_of(database, sql, allowed):
    """The rows that a statement gives. sqlite3.Error, ValueError, MemoryError: why it gives none.
    """
    connection, ticks = guarded(database, allowed), itertools.count()
    connection.set_progress_handler(lambda: next(ticks) >= 100 * allowed.megasteps, 10_000)
    cursor = connection.execute(sql)
    if cursor.description is None:
        raise ValueError("no statement")
    rows = cursor.fetchmany(MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise ValueError(f"more than {MAX_ROWS} rows")
    return rows


def judged(database, sql, reference, allowed):
    """(what SQLite says, "rows" | "error" | "no SQL", whether the rows are right)"""
    def compared(rows):
        return {tuple(round(x, 6) if type(x) is float else x for x in row) for row in rows}
    expected = compared(rows_of(database, reference, allowed))
    try:
        rows = rows_of(database, sql, allowed)
        return str(rows[:50])[:SHOWN + 1], "rows", compared(rows) == expected
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        return str(error) or "out of memory", "no SQL" if NO_SQL.search(str(error)) else "error", \
            False


def serve(allowed):
    """What the process does: a line of JSON in, the arguments of `judged`, a line out."""
    for limit, most in ((resource.RLIMIT_AS, allowed.memory), (resource.RLIMIT_FSIZE, 0),
                        (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    for line in sys.stdin:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (
            int(used) + 1 + allowed.seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        print(json.dumps(judged(*json.loads(line), allowed)), flush=True)


class Runner:
    """Such a process, started when it is needed and again when it was ended. allowed: "OURS" or
    "THEIRS"."""
    process = None

    def __init__(self, allowed):
        self.program = f"from envs.{NAME} import {allowed}, serve; serve({allowed})"

    def ask(self, *request):
        """What `judged` answers. RuntimeError: the reference failed, or the process did."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.program],
                cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True)      # Ctrl-C is not for it; it ends with stdin
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BaseException:           # its answer must not become that to the next request
            self.process.kill()
            self.process = None
            raise
        if line:
            return json.loads(line)
        if (code := self.process.wait()) == -signal.SIGXCPU:
            return "interrupted", "error", False
        raise RuntimeError(f"{NAME}: the process that runs SQL ended with code {code}")


def runners(allowed):
    """Four of them: while a slow statement keeps one, the others go on."""
    four = queue.LifoQueue()
    for _ in range(4):
        four.put(Runner(allowed))
    return four


RUNNERS = runners("OURS")


class Env(envs.Base):
    def start(self, task_id):
        self.task = self.module.OWN.get(task_id) or generated(task_id)
        self.tries_left = TRIES
        return f"{schema(self.task.database)[1]}\n\n{self.task.question}"

    def act(self, action):
        block = re.fullmatch(r"```(?:sql)?\s((?:(?!```).)*)```", action.strip(), re.DOTALL)
        sql, runners = (block[1] if block else action).strip(), self.module.RUNNERS
        runner = runners.get()
        try:
            said, kind, right = runner.ask(self.task.database, sql[:20_000], self.task.sql)
        finally:
            runners.put(runner)
        self.tries_left -= kind != "no SQL"
        observation = said[:SHOWN] + "..." * (len(said) > SHOWN)
        if kind == "no SQL":
            observation += "\nAnswer with one SELECT statement in a block: ```sql ... ```"
        elif TRIES > 1 and not right:
            observation += f"\nThat is not what was asked for. Tries left: {self.tries_left}."
        info = {"success": right, "valid": kind == "rows", "score": float(right)}
        return observation, float(right), right or not self.tries_left, info

    def expert(self):
        return self.task.thought, f"```sql\n{self.task.sql}\n```"

    def random_action(self, rng):
        """One or two columns of a table, or the number of its rows."""
        tables, _ = schema(self.task.database)
        table = rng.choice([*tables])
        columns = rng.sample(tables[table], min(len(tables[table]), rng.choice((1, 1, 2))))
        what = rng.choice(["COUNT(*)", *[", ".join(f'"{c}"' for c in columns)] * 3])
        return f'```sql\nSELECT {what} FROM "{table}" LIMIT {rng.choice((1, 5, 100))}\n```'
