"""pytest tests/envs/test_bird.py: questions against plain loops over the rows, SQL that means ill,
the process it runs in, BIRD's files."""
import json
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from statistics import fmean
from unittest.mock import Mock

import pytest
from players import ROOT, printed

from envs import bird, open_env
from envs.parts import databases
from envs.parts.databases import TABLES, Condition, Query, is_good, sql_of, words_of


def block(sql):
    return f"```sql\n{sql}\n```"


def asked(database, sql):
    """An episode about this database whose reference is this SQL, begun."""
    env = bird.Env()
    env.task, env.tries_left, env.done = bird.Task(database, "?", sql, "", ""), 1, False
    return env


def rows_in(world, sql):
    with closing(databases.opened(world)) as connection:
        return connection.execute(sql).fetchall()


# ---- the tree: question, SQL, and a third opinion ----

def read_rows(world):
    """{table: [{column: value}]}, as SELECT * gives them."""
    with closing(databases.opened(world)) as connection:
        connection.row_factory = sqlite3.Row
        return {table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
                for table in TABLES[world]}


def wide(data, table, row):
    """{(table, column): value} of a row and of the rows above it, by the first way to a table."""
    found = {}
    for key in row:
        above = key.removesuffix("_id")
        if key != above:
            [parent] = [r for r in data[above] if r["id"] == row[key]]
            found = wide(data, above, parent) | found
    return {(table, column): value for column, value in row.items()} | found


def holds(data, table, row, condition):
    about, column, is_, value = condition
    here = wide(data, table, row)[about, column]
    if is_.startswith("has"):
        child, inner = value
        some = any(r[f"{table}_id"] == row["id"] and all(holds(data, child, r, c) for c in inner)
                   for r in data[child])
        return some == (is_ == "has")
    if is_ == "above average":
        return here > sum(r[column] for r in data[about]) / len(data[about])
    return {"=": lambda: here == value, ">": lambda: here > value, "<": lambda: here < value,
            "between": lambda: value[0] <= here <= value[1],
            "begins": lambda: here[0] == value, "year": lambda: here.split("-")[0] == value,
            "month": lambda: here.rpartition("-")[0] == value}[is_]()


def answer_by_loops(world, query):
    """The set of rows, computed from the tree without SQL."""
    data, table = read_rows(world), query.table
    kept = [r for r in data[table] if all(holds(data, table, r, c) for c in query.where)]
    told = [tuple(wide(data, table, r)[pair] for pair in query.columns) for r in kept]
    numbers = [r[query.number[1]] for r in kept] if query.number else []
    fold = {"AVG": fmean, "SUM": sum, "MIN": min, "MAX": max}[query.function]
    others = [all(holds(data, table, r, c) for c in query.other) for r in kept]
    counts = Counter(told)

    def split(wanted):
        return [n for n, other in zip(numbers, others) if other == wanted]
    return {
        "columns": lambda: set(told), "distinct": lambda: set(told),
        "count": lambda: {(len(kept),)}, "count_different": lambda: {(len(set(told)),)},
        "aggregate": lambda: {(fold(numbers),)},
        "share": lambda: {(100.0 * sum(others) / len(others),)},
        "difference": lambda: {(fmean(split(True)) - fmean(split(False)),)},
        "count_by": lambda: {(*key, n) for key, n in counts.items()},
        "number_by": lambda: {(*key, fold([n for n, k in zip(numbers, told) if k == key]))
                              for key in counts},
        "having": lambda: {key for key, n in counts.items() if n > query.count},
        "most": lambda: {max(counts, key=counts.get)},
        "top": lambda: {t for _, _, t in sorted(
            (-n if query.function == "MAX" else n, i, t)
            for i, (n, t) in enumerate(zip(numbers, told)))[:query.count]},
    }[query.what]()


def good(query, world="hospital"):
    with closing(databases.opened(world)) as connection:
        return is_good(world, connection, query)


def draw_queries(shape, count, rng):
    """Queries of a shape that are good enough to ask: (world, query)."""
    while count:
        world = rng.choice([*TABLES])
        query = databases.draw_query(world, rng, shape)
        if query and good(query, world):
            yield world, query
            count -= 1


@pytest.mark.parametrize("shape", databases.SHAPES, ids=lambda shape: ":".join(shape[1:]))
def test_sql_of_gives_what_plain_loops_over_the_rows_give(shape):
    for world, query in draw_queries(shape, 3, random.Random(repr(shape))):
        sql = sql_of(world, query)
        rows, expected = (
            {tuple(round(x, 9) if type(x) is float else x for x in row) for row in some}
            for some in (rows_in(world, sql), answer_by_loops(world, query)))
        assert rows == expected, (query, sql)


def said_of(condition):
    """What must stand in the question for this condition."""
    value = condition.value
    if condition.is_.startswith("has"):
        return [value[0], *(said for inner in value[1] for said in said_of(inner))]
    column = condition.column.replace("_", " ")
    if condition.is_ == "month":
        year, month = value.split("-")
        return [f"{databases.MONTHS[int(month) - 1]} {year}"]
    if condition.is_ == "year":
        return [value]
    if condition.is_ == "above average":
        return [column, "average"]
    return [column, *map(str, value if condition.is_ == "between" else [value])]


@pytest.mark.parametrize("shape", databases.SHAPES, ids=lambda shape: ":".join(shape[1:]))
def test_words_of_name_all_that_the_answer_depends_on(shape):
    rng = random.Random(repr(shape))
    for world, query in draw_queries(shape, 5, rng):
        question = words_of(world, query, rng)
        needed = [query.table[:-1], *(pair[1].replace("_", " ") for pair in query.columns)]
        for condition in query.where + query.other:
            needed += said_of(condition)
        if query.number:
            needed.append(query.number[1].replace("_", " "))
        if query.what == "having" or query.what == "top" and query.count > 1:
            needed.append(str(query.count))
        assert all(word in question for word in needed), (question, needed)
        # and no column is told that a condition gives
        assert not {c[:2] for c in query.where if c.is_ == "="} & set(query.columns), query
        assert question[0].isupper() and question[-1] in ".?" and "{" not in question
        thought = databases.thought_of(world, query, rng)
        assert not re.search(r"first 1\b|(every|each) \w+ that have", question + thought)


@pytest.mark.parametrize("is_, said", [
    ("=", "is|with"), (">", "above|exceeds|greater"), ("<", "below|less|under"),
    ("has", "at least one|some|there is a"), ("has no", "no|without any"),
    ("above average", "(above|exceeds) the average")])
def test_conditions_words_say_the_side(is_, said):
    value = ("visit", ()) if is_.startswith("has") else 5000
    condition = Condition("doctor", "salary", is_, value)
    words = {databases.conditions_words("hospital", "doctor", [condition], random.Random(i))
             for i in range(40)}
    assert len(words) == len(databases.CONDITIONS[is_][1])
    assert all(re.search(rf"\b({said})\b", text) for text in words)


def test_is_good_refuses_questions_that_ask_for_nothing():
    salary, name = ("doctor", "salary"), (("doctor", "name"),)
    everybody, nobody = (Condition(*salary, is_, 1) for is_ in "><")
    some = Condition("doctor", "salary", ">", 6000)
    assert good(Query("columns", "doctor", name, (some,)))
    assert not good(Query("columns", "doctor", name, (nobody,)))            # no row
    assert not good(Query("count", "doctor", where=(nobody,)))              # 0
    assert not good(Query("aggregate", "doctor", (), (nobody,), salary, "AVG"))     # NULL
    assert not good(Query("columns", "doctor", name, (some, everybody)))    # it changes nothing
    assert not good(Query("columns", "visit", (("visit", "cost"), ("visit", "day")),
                          (Condition("visit", "cost", ">", 100),)))         # too many rows


def test_counts_by_a_column_are_asked_where_no_value_is_without_a_row():
    """Else a careful answer with a 0 were wrong. Of tasks, whose SQL here loses its WHERE."""
    asked_of = [i for i in (*bird.TRAIN, *bird.TEST) if bird.shape_of(i)[0][1] == "count_by"]
    assert len(asked_of) == 112
    for task in map(bird.generated, asked_of):
        without = re.sub(" WHERE .* GROUP", " GROUP", task.sql)
        assert without != task.sql and [group for group, _ in rows_in(task.database, task.sql)] == [
            group for group, _ in rows_in(task.database, without)], task.question


def test_is_good_refuses_ties():
    floors = sorted((row["floor"] for row in read_rows("hospital")["ward"]), reverse=True)
    assert len(set(floors)) < len(floors)           # there is a tie to refuse
    for count in range(1, len(floors)):
        query = Query("top", "ward", (("ward", "name"),), (), ("ward", "floor"), "MAX", count)
        assert good(query) == (floors[count - 1] != floors[count])
    for world, tables in TABLES.items():
        for table, column in ((t, c) for t in tables for c, form in tables[t].columns.items()
                              if databases.kind_of(form) == "word"):
            (_, first), (_, second), *_ = Counter(
                row[column] for row in read_rows(world)[table]).most_common(2)
            assert good(Query("most", table, ((table, column),)), world) == (first != second)


# ---- tasks ----

def test_worlds_are_twenty_with_names_that_occur_once():
    assert len(TABLES) == 20 and set(databases.HELD_OUT) < set(TABLES)
    for world, tables in TABLES.items():
        data = read_rows(world)
        for name, table in tables.items():
            assert len(data[name]) == table.rows
            assert None not in [value for row in data[name] for value in row.values()]
            if "name" in table.columns:
                assert len({row["name"] for row in data[name]}) == table.rows


def test_train_and_test_share_no_query_and_hold_what_agentgym_holds():
    assert len(bird.TRAIN) >= 3000 and len(bird.TEST) >= 200
    train, test = (
        [bird.generated(i) for i in ids] for ids in (bird.TRAIN[:340], bird.TEST))
    assert not {(t.database, t.sql) for t in train} & {(t.database, t.sql) for t in test}
    assert {t.database for t in train} == set(TABLES) - set(databases.HELD_OUT)
    assert [t.database in databases.HELD_OUT for t in test] == [*map(bird.unseen_goal, bird.TEST)]
    assert sum(map(bird.unseen_goal, bird.TEST)) == len(bird.TEST) / 2
    assert not any(map(bird.unseen_goal, bird.TRAIN))
    assert len({t.question for t in train + test}) > 0.97 * len(train + test)
    assert [t.family for t in test] == list(map(bird.family, bird.TEST))


# ---- an answer ----

TOWNS = "SELECT name, town FROM patient WHERE birth_year > 2000"
MEAN_COST = "SELECT SUM(cost) * 1.0 / COUNT(*) FROM visit"


@pytest.mark.parametrize("reference, sql, right", [
    (TOWNS, f"{TOWNS} ORDER BY town DESC, id", True),                   # another order
    (TOWNS, f"{TOWNS} UNION ALL {TOWNS}", True),                        # each twice
    (TOWNS, "SELECT p.name, p.town FROM patient AS p WHERE p.birth_year >= 2001;", True),
    (TOWNS, TOWNS.replace("name, town", "town, name"), False),
    (TOWNS, TOWNS.replace(", town", ""), False),
    (TOWNS, f"{TOWNS} LIMIT 3", False),
    (TOWNS, "SELECT name, town FROM patient", False),
    (MEAN_COST, MEAN_COST.replace("FROM", "+ 1e-9 FROM"), True),        # to the sixth place
    (MEAN_COST, "SELECT AVG(cost) + 0.01 FROM visit", False),
])
def test_step_rewards_the_set_of_rows(reference, sql, right):
    rows = str(rows_in("hospital", sql))
    assert asked("hospital", reference).step(block(sql)) == (
        rows if len(rows) <= 100 else rows[:100] + "...", float(right), True,
        dict(success=right, valid=True, score=float(right)))


@pytest.mark.parametrize("text", ["north", "", "-- only a comment", "SELECT 1; SELECT 2",
                                  block("SELECT 1") + "\n" + block("SELECT 1"), "SELECT (",
                                  "SELECT 'a", "SELECT '\x00'",
                                  "SELECT '" + "x" * 50_000 + "'"])
def test_step_leaves_the_try_to_what_is_no_statement(text):
    env = asked("hospital", "SELECT 1")
    observation, reward, done, info = env.step(text)
    assert observation.endswith("Answer with one SELECT statement in a block: ```sql ... ```")
    assert len(observation) < 180 and (reward, done, info["valid"]) == (0.0, False, False)
    assert env.step(env.expert()[1])[1:3] == (1.0, True)


def test_step_gives_as_many_tries_as_are_set(monkeypatch):
    monkeypatch.setattr(bird, "TRIES", 3)
    env = bird.Env()
    env.reset(bird.TEST[0])
    wrong = dict(success=False, valid=False, score=0.0)
    assert env.step("SELECT wings") == (
        "no such column: wings\nThat is not what was asked for. Tries left: 2.", 0.0, False, wrong)
    assert env.step("what?")[2:] == (False, wrong)
    assert env.step("SELECT 'no'")[0] == "[('no',)]\nThat is not what was asked for. Tries left: 1."
    observation, reward, done, _ = env.step(env.expert()[1])
    assert (reward, done) == (1.0, True) and "asked for" not in observation
    env.reset(bird.TEST[0])
    assert [env.step("SELECT 'no'")[2] for _ in range(3)] == [False, False, True]


# ---- SQL that means ill ----

def copies(levels):
    """A kilobyte that SQLite would unfold into 2^levels tables before it takes its first step."""
    return "WITH c0 AS (SELECT 1 AS x)" + "".join(
        f", c{i + 1} AS (SELECT a.x FROM c{i} a, c{i} b)" for i in range(levels)) \
        + f" SELECT * FROM c{levels}"


FOR_EVER = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"
ILL = {
    "write": ("INSERT INTO ward (name) VALUES ('x')", "not authorized"),
    "drop": ("DROP TABLE ward", "not authorized"),
    "create": ("CREATE TEMP TABLE x (a)", "not authorized"),
    "attach": ("ATTACH 'stolen.db' AS stolen", "not authorized"),
    "vacuum into": ("VACUUM INTO 'stolen.db'", "authorization denied"),
    "pragma": ("PRAGMA writable_schema = 1", "not authorized"),
    "pragma as a table": ("SELECT * FROM pragma_database_list", "not authorized"),
    "transaction": ("BEGIN EXCLUSIVE", "not authorized"),
    "extension": ("SELECT Load_Extension('evil')", "not authorized to use function.*"),
    "file": ("SELECT readfile('/etc/passwd')", "no such function: readfile"),
    "loop": (f"{FOR_EVER} SELECT COUNT(*) FROM t", "interrupted"),
    "ten million rows": (f"{FOR_EVER} SELECT x FROM t LIMIT 10000000", "more than 100000 rows"),
    "blob": ("SELECT randomblob(1000000000)", "string or blob too big"),
    "printf": ("SELECT printf('%1000000000d', 1)", "not authorized to use function: printf"),
    "format": ("SELECT format('%.*c', 999999999, 'x')", "not authorized to use function: format"),
    "memory": (f"{FOR_EVER} SELECT hex(zeroblob(490000)) FROM t", "out of memory"),
    "sorting": (f"{FOR_EVER} SELECT x, hex(zeroblob(9000)) FROM t ORDER BY 1", "out of memory"),
    "rows too large to show": (f"{FOR_EVER} SELECT b, b, b, b FROM (SELECT hex(zeroblob(490000)) "
                               "AS b FROM t LIMIT 40)", "out of memory"),
    "copies": (copies(100), "out of memory|interrupted"),
    "depth": ("SELECT " + "(" * 4000 + "1" + ")" * 4000, "parser stack overflow|.*too large.*"),
}


@pytest.mark.parametrize("kind", ILL)
def test_step_survives_sql_that_means_ill(kind):
    sql, said = ILL[kind]
    env = asked("hospital", "SELECT 1")
    observation, reward, _, info = env.step(block(sql))
    assert re.fullmatch(said, observation.partition("\n")[0])
    assert reward == 0.0 and not info["success"]
    whole = str(rows_in("hospital", "SELECT * FROM ward"))
    assert asked("hospital", "SELECT 1").step("SELECT * FROM ward")[0] == whole[:100] + "..."
    assert not list(ROOT.glob("**/stolen.db"))


@pytest.mark.slow
def test_step_ends_a_single_operation_that_takes_minutes():
    """No limit of SQLite's sees it: the process is ended, by the processor's time it has used."""
    env = asked("hospital", "SELECT 1")
    needle = " + ".join(f"instr(hex(zeroblob(499990)), hex(zeroblob(240000)) || '{digit}')"
                        for digit in range(1, 9))
    assert env.step(f"SELECT SUM({needle} + v.id) FROM visit v")[0] == "interrupted"
    assert asked("hospital", "SELECT 1").step("SELECT 1")[1] == 1.0


def test_runner_tells_a_broken_reference_from_a_wrong_answer():
    """A failure of ours is never a reward of 0."""
    env = asked("hospital", "SELECT wings FROM ward")
    with pytest.raises(RuntimeError, match="bird: the process that runs SQL ended with code 1"):
        env.step("SELECT 1")
    assert asked("hospital", "SELECT 1").step("SELECT 1")[1] == 1.0


def test_runner_gives_no_answer_to_the_wrong_question(monkeypatch):
    """Ctrl-C between question and answer: the next question gets its own."""
    runner = bird.Runner("OURS")
    runner.ask("hospital", "SELECT 1", "SELECT 1")
    process = runner.process
    monkeypatch.setattr(process.stdout, "readline", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runner.ask("hospital", "SELECT 1", "SELECT 1")
    assert runner.ask("hospital", "SELECT 2", "SELECT 3") == ["[(2,)]", "rows", False]
    assert process.wait() and runner.process.poll() is None
    runner.process.kill()


# ---- BIRD's own files ----

def write_bird(folder, split="dev", **changes):
    """A folder of one database and two questions, as BIRD ships it."""
    path = folder / f"{split}_databases" / "Town"
    path.mkdir(parents=True)
    with closing(sqlite3.connect(path / "Town.sqlite")) as connection:
        connection.executescript("""
            CREATE TABLE Street (ID INTEGER PRIMARY KEY AUTOINCREMENT, `Long Name` TEXT);
            CREATE TABLE house (street INTEGER, number INTEGER, PRIMARY KEY (street, number),
                                FOREIGN KEY (street) REFERENCES Street);
            INSERT INTO Street VALUES (1, 'Elm'), (2, 'Oak');
            INSERT INTO house VALUES (1, 7), (1, 9), (2, 4);""")
    question = dict(db_id="Town", question="How many houses are in Elm?", evidence="Elm is 1",
                    SQL="SELECT COUNT(*) FROM house WHERE street = 1", difficulty="simple")
    second = question | dict(question="Which streets?", SQL="SELECT `Long Name` FROM Street",
                             difficulty="challenging") | changes
    (folder / f"{split}.json").write_text(json.dumps([question, second]))
    return folder


DESCRIBED = ("Town contains tables such as street, house. Table street has columns such as id, "
             "long name. id is the primary key. Table house has columns such as street, number. "
             "street, number is the primary key. The street of house is the foreign key of id of "
             "street.")
PLAY = """
from envs import open_env
bird = open_env("bird", {folder!r})
print(bird.TRAIN, bird.TEST, bird.FAMILIES)
env = bird.Env()
for task_id in bird.TEST:
    print(env.reset(task_id))
    print(*env.step(env.expert()[1])[:3])
"""


def test_dev_is_the_test_split_where_it_is_opened_and_nowhere_else(tmp_path):
    world, own = open_env("bird", write_bird(tmp_path / "100% #1?")), bird.Env()
    before = own.reset(3400)
    assert (world.TRAIN, world.TEST) == (range(3400), range(3400, 3402))
    assert world.FAMILIES == ("simple", "moderate", "challenging")
    assert [*map(world.unseen_goal, (0, 3399, 3400))] == [False, False, True]
    env = world.Env()
    for task_id, question, rows in ((3400, "How many houses are in Elm?", "[(2,)]"),
                                    (3401, "Which streets?", "[('Elm',), ('Oak',)]")):
        assert env.reset(task_id) == f"{DESCRIBED}\n\n{question}"
        assert env.step(env.expert()[1])[:3] == (rows, 1.0, True)
    assert env.reset(7) == own.reset(7) and own.reset(3400) == before
    assert bird.TEST == range(3400, 3808) and world.family(7) == bird.family(7)


def test_read_bird_takes_train_and_dev_from_folders_of_their_own(tmp_path):
    """And the hints, if they are asked for."""
    write_bird(tmp_path / "train", "train")
    write_bird(tmp_path / "dev")
    played = partial(printed, PLAY.format(folder=str(tmp_path)))
    assert "Elm is 1" not in played(NANO_BIRD_EVIDENCE="0", NANO_BIRD_TRIES="")
    text = played(NANO_BIRD_EVIDENCE="1")
    assert text.startswith("range(0, 2) range(2, 4) ('simple', 'challenging')\n")
    assert "How many houses are in Elm?\nElm is 1\n[(2,)]" in text


@pytest.mark.parametrize("changes, said", [
    (dict(question=" "), r"dev.json: item 1: question is ' '; expected a text"),
    (dict(db_id=None), r"dev.json: item 1: db_id is 'None'; expected a text"),
    (dict(db_id="Village"), r"dev.json: item 1: db_id is 'Village', but there is no \S+sqlite"),
])
def test_read_bird_names_item_and_field(tmp_path, changes, said):
    with pytest.raises(ValueError, match=rf"^bird: \S*{said}$"):
        bird.read_bird(write_bird(tmp_path, **changes))
