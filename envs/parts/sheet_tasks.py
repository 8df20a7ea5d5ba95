"""The tasks of sheet (envs/sheet.py): tables, goals in words, wanted sheets, the expert's steps.

A family is a function of a Task that words its goal and returns the wanted sheet, worked out from
the table's numbers, and steps: calls of the tools, worked out from their replies.
"""
import functools
import json
import math
import re

from envs.parts import tools
from envs.parts.grid import label, shown

# What a table is about; the headers of two columns of texts with their words, then of numbers with
# least, most and decimals; a column that can be derived. The last two tables are TEST's.

TABLES = """the product inventory|Product: beef, pork, salmon, shrimp, apples, pears, carrots,
 onions, rice, lentils, bread, butter, honey, coffee, olive oil, pasta
|Supplier: Alder, Brook, Cedar, Marsh
|Price 1 20 2, Quantity 5 200 0, Rating 2 5 1|Value = Price * Quantity
the exam results|Student: PEOPLE|Class: 9A, 9B, 10A, 10C
|Math 40 100 0, English 40 100 0, Physics 40 100 0|Total = Math + English + Physics
the payroll|Employee: PEOPLE|Department: Sales, Finance, Support, Design
|Wage 15 60 2, Hours 60 170 0, Age 21 64 0|Pay = Wage * Hours
the travel expenses|Trip: Oslo, Lisbon, Vienna, Tallinn, Krakow, Ghent, Malaga, Zagreb, Turin,
 Basel, Cork, Bergen, Nantes, Leipzig|Purpose: Training, Trade Fair, Customer, Audit
|Fare 40 400 2, Hotel 80 700 2, Meals 20 150 2|Cost = Fare + Hotel + Meals
the players of the league|Player: PEOPLE|Team: Rovers, United, Wanderers, Athletic
|Games 5 34 0, Goals 0 25 0, Assists 0 20 0|Points = Goals + Assists
the open orders|Customer: PEOPLE|Country: Spain, Japan, Canada, Kenya
|Unit Price 3 90 2, Units 2 60 0, Days Open 1 45 0|Amount = Unit Price * Units
the bookings of the hotel|Guest: PEOPLE|Room Type: Single, Double, Suite, Studio
|Rate 45 220 2, Nights 1 14 0, Extras 0 120 2|Bill = Rate * Nights
the plants of the nursery|Plant: lavender, rosemary, sage, thyme, dahlia, peony, clematis, fern,
 hosta, iris, jasmine, lupin, poppy, tulip|Bed: North, South, Terrace, Greenhouse
|Cost 1 15 2, Pots 4 80 0, Sold 0 60 0|Worth = Cost * Pots"""


@functools.cache
def tables():
    """[(about, [two headers], [their words], {header of numbers: (least, most, decimals)}, (name,
    sign, headers) of the column that can be derived)]"""
    people, found = [f"{a} {b}" for a in tools.FIRST[::2] for b in tools.LAST[::7]], []
    for line in TABLES.replace("\n ", " ").replace("\n|", "|").split("\n"):
        about, *texts, numbers, derived = line.split("|")
        headers, words = zip(*[text.split(": ") for text in texts])
        columns = {name: (float(least), float(most), int(decimals)) for name, least, most, decimals
                   in (part.rsplit(" ", 3) for part in numbers.split(", "))}
        name, _, terms = derived.partition(" = ")
        sign = "*" if "*" in terms else "+"
        found.append((about, headers, [people if word == "PEOPLE" else word.split(", ")
                                       for word in words], columns,
                      (name, sign, terms.split(f" {sign} "))))
    return found


ASIDES = ("", "", "", "", "I need this before noon. ", "It is for the monthly report. ",
          "Could you help me with a table? ", "My colleague is away today. ", "Hello! ")
CLOSINGS = ("", "", "Leave everything else as it is.", "Thank you.", "Change nothing else, please.")


class Task(tools.Draw):
    """The chances of one task and its table. header and table, rows of texts and numbers, are those
    to begin with; rows, with the header, and notes are on the sheet."""
    merged, frozen = (), 0

    def __init__(self, held_out, task_id, attempt):
        super().__init__("sheet", task_id, attempt)
        rng = self.rng
        self.about, texts, words, self.columns, self.derived = rng.choice(
            tables()[-2:] if held_out else tables()[:-2])
        self.name, self.header = f"Sheet{rng.randint(1, 99)}", [*texts, *self.columns]
        self.kinds = words[1]
        self.keys = rng.sample(words[0], rng.randint(8, 12))
        self.table = [self.row(key) for key in self.keys[3:]]
        self.column = rng.choice([*self.columns])
        self.at = self.header.index(self.column)
        self.falling = rng.random() < 0.6
        self.rows, self.notes = [self.header, *self.table], {}

    def row(self, key):
        """A row of the table: key, kind, numbers."""
        return [key, self.one(*self.kinds), *[self.number(name) for name in self.columns]]

    def number(self, name):
        least, most, decimals = self.columns[name]
        return round(least + (most - least) * self.rng.random(), decimals or None)

    def sorted(self, rows):
        """The rows sorted as the task says; None: two are equal in that column."""
        if len({row[self.at] for row in rows}) < len(rows):
            return None
        return sorted(rows, key=lambda row: row[self.at], reverse=self.falling)

    def order(self):
        """A word for the direction of sorting."""
        return self.one(*(("descending", "falling") if self.falling else ("ascending", "rising")))

    def ask(self, *sentences):
        """Word the goal by one of the sentences, with an aside before and a closing behind it."""
        sheet = self.one('"{}"', 'the sheet "{}"').format(self.name)
        self.goal = self.one(*ASIDES) + self.one(*sentences).format(
            sheet=sheet, start=self.one(f"In {sheet}", f"{sheet[0].upper()}{sheet[1:]} holds "
                                        f"{self.about}. There", f'"{self.name}" is about '
                                        f"{self.about}. In it"))
        self.goal = f"{self.goal} {self.one(*CLOSINGS)}".strip()

    def end(self, rows):
        """The wanted sheet: the header and these rows."""
        return rows and [self.header, *rows]


# Steps: generators of calls (thought, tool, arguments) that are sent the results.

def begin(say, t):
    """-> all values of the sheet, as texts"""
    yield say(f"I open {t.name} first.", f"The goal is about {t.name}."), "open_sheet", \
        {"name": t.name}
    return (yield say("What does it hold?", "I look at all values."), "get_all_values", {})


def arrange(say, t, header):
    """Sort as the goal says, below the header."""
    yield say("The header must stay at the top.", "Before I sort I freeze the header."), \
        "freeze_data", {"dimension": "rows", "num": 1}
    yield say(f"Now I sort by {t.column}.", f"{t.column} decides the order."), \
        "sort_sheet_by_col", {"col_num": header.index(t.column) + 1,
                              "order": "des" if t.falling else "asc"}


def row_of(rows, key):
    """The number of the row, from 1, that begins with a key."""
    return next(n for n, row in enumerate(rows, 1) if row[0] == key)


def write(say, at, value):
    value = value if type(value) is str else json.loads(shown(value))       # 46, not 46.0
    return (yield say(f"I write {value} into {at}.", f"{at} becomes {value}."), "update_cell",
            {"position": at, "value": value})


# Families: functions of a Task that word its goal -> (wanted sheet, steps). None: undecided.

WORDS = {"SUM": ("sum", "total"), "AVERAGE": ("average", "mean"),
         "MAX": ("maximum", "highest value"), "MIN": ("minimum", "lowest value")}
FUNCTIONS = {"SUM": math.fsum, "AVERAGE": lambda x: math.fsum(x) / len(x), "MAX": max, "MIN": min}


def statistic(t):
    """A figure of a column, beside the table or below it."""
    name, at = t.keep(*WORDS), t.one((0, 6), (1, 6), (len(t.rows) + 1, t.at))
    cell, what = label(*at), t.one(*WORDS[name])
    t.ask(f"{{start}}, write the {what} of {t.column} into cell {cell}.",
          f"Put the {what} of the column {t.column} into {cell} of {{sheet}}.",
          f"{{start}}, I need the {what} of all {t.column} figures in {cell}.")

    def steps(say):
        rows = yield from begin(say, t)
        letter = label(0, rows[0].index(t.column))[0]
        yield say(f"{t.column} is column {letter}.", f"The figures go from {letter}2 to "
                  f"{letter}{len(rows)}."), "update_cell_by_formula", {
            "start_position": f"{letter}2", "end_position": f"{letter}{len(rows)}",
            "result_position": cell, "operator": name}
    wanted = [[*row] for row in t.rows] + [[""] * 5 for _ in range(at[0] + 1 - len(t.rows))]
    wanted[at[0]] += [""] * (at[1] + 1 - 5)
    wanted[at[0]][at[1]] = FUNCTIONS[name]([row[t.at] for row in t.table])
    return wanted, steps


def sort(t):
    """Rows by a column."""
    t.ask(f"{{start}}, sort the rows by {t.column} in {t.order()} order.",
          f"Please sort {{sheet}} by {t.column} in {t.order()} order; the header stays on top.",
          f"I'd like {{sheet}} in {t.order()} order of {t.column}.")

    def steps(say):
        rows = yield from begin(say, t)
        yield from arrange(say, t, rows[0])
    wanted = t.sorted(t.table)
    return t.end(None if wanted == t.table else wanted), steps


def update(t):
    """Changes of some figures, told in the goal, then perhaps sorted."""
    chosen, and_sort = t.rng.sample(t.table, t.rng.randint(2, 4)), t.one(True, False)
    new = {row[0]: t.number(t.column) for row in chosen}
    told = ", ".join(f"{key} {shown(value)}" for key, value in new.items())
    then = f" Then sort by {t.column} in {t.order()} order." if and_sort else ""
    t.ask(f"{{start}}, the figures of {t.column} have changed: {told}. Please enter them.{then}",
          f"Update {{sheet}} with the new figures of {t.column}: {told}.{then}",
          f"Here are the latest figures of {t.column} for {{sheet}}: {told}. Correct the "
          f"table.{then}")

    def steps(say):
        rows = yield from begin(say, t)
        letter = label(0, rows[0].index(t.column))[0]
        for key, value in new.items():
            yield from write(say, f"{letter}{row_of(rows, key)}", value)
        if and_sort:
            yield from arrange(say, t, rows[0])
    table = [[*row[:t.at], new.get(row[0], row[t.at]), *row[t.at + 1:]] for row in t.table]
    return t.end(None if table == t.table else t.sorted(table) if and_sort else table), steps


def filter_rows(t):
    """Rows of a kind, or with small or large figures, go; the rest is perhaps sorted."""
    kind, limit, by, and_sort = t.one(*t.kinds), t.one(*t.table)[t.at], t.one(0, 1, 2), t.one(0, 1)
    goes = (lambda row: row[1] == kind, lambda row: row[t.at] < limit,
            lambda row: row[t.at] > limit)[by]
    what = (f"whose {t.header[1]} is {kind}", f"with {t.column} below {shown(limit)}",
            f"with {t.column} above {shown(limit)}")[by]
    then = f" Then sort the rest by {t.column} in {t.order()} order." if and_sort else ""
    t.ask(f"{{start}}, delete all rows {what}.{then}",
          f"Remove the rows {what} from {{sheet}}.{then}",
          f"{{start}}, the rows {what} are not needed any more. Delete them.{then}")

    def steps(say):
        rows = yield from begin(say, t)
        at = rows[0].index(t.column)
        index = [n for n, row in enumerate(rows[1:], 2) if (
            row[1] == kind if by == 0 else float(row[at]) < limit if by == 1
            else float(row[at]) > limit)]
        yield say(f"The numbers of the rows to delete: {index}.", "I delete what must go."), \
            "delete_batch_data", {"dimension": "row", "index_list": index}
        if and_sort:
            yield from arrange(say, t, rows[0])
    rest = [row for row in t.table if not goes(row)]
    few = not 2 <= len(rest) < len(t.table)
    return t.end(None if few else t.sorted(rest) if and_sort else rest), steps


def rank(t):
    """Sort by a column and number the rows in a new one behind it."""
    name = f"{t.column} Rank"
    t.falling = True
    t.ask(f'{{start}}, sort by {t.column} in {t.order()} order and insert a column "{name}" right '
          f"behind {t.column}, with 1 for the highest.",
          f'Rank {{sheet}} by {t.column}, highest first: sort it, then add the column "{name}" '
          f"after {t.column}, counting from 1.")

    def steps(say):
        rows = yield from begin(say, t)
        yield from arrange(say, t, rows[0])
        yield say("Now the ranks.", f"The new column counts from 1 to {len(rows) - 1}."), \
            "insert_cols", {"values_list": [[name, *range(1, len(rows))]],
                            "col_idx": rows[0].index(t.column) + 2}
    table = t.sorted(t.table)
    return table and [[*row[:t.at + 1], new, *row[t.at + 1:]] for new, row in zip(
        [name, *range(1, len(t.table) + 1)], [t.header, *table])], steps


def derive(t):
    """A new last column, worked out from others row by row."""
    name, sign, terms = t.derived
    how = f" {sign} ".join(terms)
    t.ask(f'{{start}}, add a column "{name}" at the end: {how}.',
          f'Add a last column "{name}" to {{sheet}}. In each row it is {how}.',
          f'{{start}}, work out "{name}", which is {how}, in a new column behind the last.')

    def steps(say):
        rows = yield from begin(say, t)
        cells = [label(0, rows[0].index(term))[0] for term in terms]
        formulas = ["=" + sign.join(f"{letter}{n}" for letter in cells)
                    for n in range(2, len(rows) + 1)]
        yield say("A formula for each row does it.", f"I let {formulas[0]} and so on work it out."
                  ), "insert_cols", {"values_list": [[name, *formulas]],
                                     "col_idx": len(rows[0]) + 1}
    at = [t.header.index(term) for term in terms]
    return [[*t.header, name]] + [[*row, (math.prod if sign == "*" else math.fsum)(
        row[i] for i in at)] for row in t.table], steps


def summary(t):
    """A last row with the sum, average, highest or lowest of two or three columns."""
    name, columns = t.keep(*WORDS), [*t.columns][:t.rng.randint(2, 3)]
    what, title = t.one(*WORDS[name]), t.one("Summary", "Overall")
    told = f"{', '.join(columns[:-1])} and {columns[-1]}"
    t.ask(f'{{start}}, add a row "{title}" right below the last one, with the {what} of each of '
          f"these columns: {told}.",
          f'Below the last row of {{sheet}}, write "{title}" in the first column and, under '
          f"{told}, the {what} of each column.")

    def steps(say):
        rows = yield from begin(say, t)
        last = len(rows)
        yield from write(say, f"A{last + 1}", title)
        for column in columns:
            letter = label(0, rows[0].index(column))[0]
            yield say(f"Next the {what} of {column}.", f"{column} is in column {letter}."), \
                "update_cell_by_formula", {
                    "start_position": f"{letter}2", "end_position": f"{letter}{last}",
                    "result_position": f"{letter}{last + 1}", "operator": name}
    return [*t.rows, [title, ""] + [FUNCTIONS[name]([row[i] for row in t.table])
                                    if column in columns else ""
                                    for i, column in enumerate(t.columns, 2)]], steps


def notes(t):
    """Cells have notes that tell what to change in their rows."""
    chosen, new = t.rng.sample(range(len(t.table)), t.rng.randint(2, 3)), {}
    for n in chosen:
        column = t.one(*t.columns)
        new[n] = column, t.number(column)
        t.notes[n + 1, 0] = t.one("Change {} to {}.", "Set {} to {}.", "New {}: {}").format(
            column, shown(new[n][1]))
    names = [t.table[n][0] for n in chosen]
    told = f"{', '.join(names[:-1])} and {names[-1]}"
    t.ask(f"{{start}}, the cells of {told} have notes. Change the table as they say.",
          f"Please update {{sheet}} as the notes on the cells {told} tell.",
          f"There are notes on {told} in {{sheet}}: do what they ask for.")

    def steps(say):
        rows = yield from begin(say, t)
        for name in names:
            n = row_of(rows, name)
            note = yield say(f"What does the note on {name} say?", f"I read the note on {name}."), \
                "get_note", {"position": f"A{n}"}
            column = next(x for x in rows[0] if x in note)
            value = re.findall(r"[0-9.]*[0-9]", note)[-1]
            yield from write(say, f"{label(0, rows[0].index(column))[0]}{n}", float(value))
    table = [[*row] for row in t.table]
    for n, (column, value) in new.items():
        table[n][t.header.index(column)] = value
    return t.end(None if table == t.table else table), steps


def tidy(t):
    """Empty rows and a column go, and two titles are merged."""
    gap, both = t.rng.randint(1, 4), t.one(True, False)
    spread = [[*row[:gap], "", *row[gap:]] for row in t.rows]
    for n in sorted(t.rng.sample(range(2, len(spread)), t.rng.randint(2, 3)), reverse=True):
        spread.insert(n, [""] * 6)
    t.rows = spread
    then = f" Then merge the titles {t.header[0]} and {t.header[1]} into one cell." * both
    t.ask(f"{{start}}, delete the empty rows and the empty column.{then}",
          f"Please tidy up {{sheet}}: no row and no column may be empty.{then}",
          f"{{start}}, get rid of all empty rows and columns.{then}")

    def steps(say):
        rows = yield from begin(say, t)
        index = [n for n, row in enumerate(rows, 1) if not any(row)]
        yield say(f"Empty rows: {index}.", "First the empty rows."), "delete_batch_data", {
            "dimension": "row", "index_list": index}
        index = [n for n, column in enumerate(zip(*rows), 1) if not any(column)]
        yield say(f"Column {index[0]} is empty.", "Now the empty column."), "delete_batch_data", {
            "dimension": "col", "index_list": index}
        if both:
            yield say("The titles are in A1 and B1.", "Last, the titles."), "merge_cells", {
                "start_position": "A1", "end_position": "B1"}
    header = [t.header[0], t.header[0], *t.header[2:]] if both else t.header
    return [header, *t.table], steps


def raised(t):
    """The figures of one kind of rows, with decimals, grow or shrink by some percent."""
    kind, percent = t.one(*t.kinds), t.one(5, 10, 20, 25, 50) * t.one(1, 1, -1)
    verb = "Raise" if percent > 0 else "Lower"
    t.ask(f"{{start}}, {verb.lower()} {t.column} by {abs(percent)}% in all rows whose "
          f"{t.header[1]} is {kind}. Round to two decimals.",
          f"{verb} {t.column} of {t.header[1]} {kind} in {{sheet}} by {abs(percent)} percent, "
          "rounded to two decimals.")

    def steps(say):
        rows = yield from begin(say, t)
        cells = yield say(f"Which rows are {kind}?", f"I look for {kind}."), "filter_cells", {
            "query": f"^{kind}$"}
        at = rows[0].index(t.column)
        for cell in cells:
            n = int(cell[1:])
            value = float(rows[n - 1][at]) * (100 + percent) / 100
            yield from write(say, f"{label(0, at)[0]}{n}", round(value, 2))
    table = [[*row[:t.at], round(row[t.at] * (1 + percent / 100), 2), *row[t.at + 1:]]
             if row[1] == kind else row for row in t.table]
    fits = t.columns[t.column][2] == 2 and 0 < [row[1] for row in t.table].count(kind) < 5
    return t.end(table if fits else None), steps


def append(t):
    """New rows, told in the goal, at the end, then perhaps sorted."""
    new = [t.row(key) for key in t.keys[:t.rng.randint(2, 3)]]
    and_sort = t.one(True, False)
    told = json.dumps([[shown(value) for value in row] for row in new], ensure_ascii=False)
    then = f" Then sort by {t.column} in {t.order()} order." if and_sort else ""
    t.ask(f"{{start}}, add these rows at the end: {told}.{then}",
          f"Please append {told} to {{sheet}}, a row each.{then}")

    def steps(say):
        rows = yield from begin(say, t)
        yield say("They go below the last row.", f"The next free row is {len(rows) + 1}."), \
            "insert_rows", {"values_list": new, "row_idx": len(rows) + 1}
        if and_sort:
            yield from arrange(say, t, rows[0])
    table = t.table + new
    return t.end(t.sorted(table) if and_sort else table), steps


KINDS = {"statistic": statistic, "sort": sort, "update": update, "filter": filter_rows,
         "rank": rank, "derive": derive, "summary": summary, "notes": notes, "tidy": tidy,
         "raise": raised, "append": append}
