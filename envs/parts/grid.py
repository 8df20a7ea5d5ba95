"""A grid of cells with formulas, as sheet (envs/sheet.py) needs it: A1 notation, values, moves.

    grid = Grid([["Item", "Price"], ["ink", 2.5], ["paper", 4]])
    grid.put(*place("B4"), [["=SUM(B2:B3)*2"]])
    grid.values()[3]                                            # ["", "13"]

A formula is a text that begins with "=": + - * / ( ), numbers, cells, ranges and the functions in
OPERATORS. It is read here, token by token; Python evaluates nothing. What it may read, and how deep
it may be nested, in other cells too, is bounded.
"""
import csv
import functools
import itertools
import math
import operator
import re

from envs.parts import tools
from envs.parts.tools import Refused

ROWS, COLUMNS, LONGEST, MOST_READS, DEEPEST = 200, 26, 200, 50_000, 60
MOST_SHOWN = 30_000     # characters of all cells together, with quotes, comma and blank
OPERATORS = "SUM", "AVERAGE", "COUNT", "MAX", "MIN", "MINUS", "PRODUCT"
PLACE = r"\$?([A-Z]{1,3})\$?([0-9]{1,7})"
SPAN = re.compile(f"{PLACE}(?::{PLACE})?")
TOKEN = re.compile(rf"#REF!|{PLACE}(?::{PLACE})?|[A-Z]+|[0-9]+(?:\.[0-9]*)?|\S")


class Wrong(Exception):
    """What a formula shows that has no value: #REF!, #DIV/0!, #VALUE!, #N/A, #NUM! or #ERROR!."""


def place(text):
    """ "B3" -> (2, 1), row and column from 0. Refused: no cell, or none of the grid."""
    match = re.fullmatch(PLACE, text.strip()[:20])
    if not match or match[2].strip("0") == "":
        raise Refused(f"IncorrectCellLabel({text[:40]!r})")
    column = functools.reduce(lambda n, letter: 26 * n + ord(letter) - 64, match[1], 0) - 1
    return inside(int(match[2]) - 1, column)


def inside(row, column):
    if not (0 <= row < ROWS and 0 <= column < COLUMNS):
        raise Refused(f"APIError: [400]: Range exceeds grid limits. Max rows: {ROWS}, max columns: "
                      f"{COLUMNS}")
    return row, column


def within(axis, n):
    """Refused: the grid has no row (axis 0) or column (1) of this number."""
    inside(*((0, n) if axis else (n, 0)))


def label(row, column):
    return f"{chr(65 + column)}{row + 1}"


def entry(value):
    """What a cell holds for a value given: a float, or a text; a formula is a text with "=" at its
    beginning, "" an empty cell, and a larger number a text, so that no sum is infinite. Refused:
    neither."""
    if type(value) in (list, dict):
        raise Refused("APIError: [400]: Invalid value: a cell holds a text or a number")
    if value is None or type(value) is bool:
        return "" if value is None else str(value).upper()
    if type(value) is str and len(value) > LONGEST:
        raise Refused(f"APIError: [400]: Your input contains more than {LONGEST} characters")
    found = tools.number(value)
    return value if found is None or abs(found) > tools.LARGEST else found


def is_formula(held):
    return type(held) is str and held.startswith("=")


def shown(value):
    if type(value) is str:
        return value
    value = round(value, 10)
    return str(int(value)) if value == int(value) else repr(value)


class Evaluation:
    """The values of the formulas in some cells; each is worked out once."""

    def __init__(self, cells):
        self.cells, self.known, self.left, self.depth = cells, {}, MOST_READS, 0

    def value(self, row, column):
        """A float or a text. Wrong: the formula there has none. Refused: too much to read."""
        self.left -= 1
        if self.left < 0:
            raise Refused(f"APIError: [400]: Formulas would read more than {MOST_READS} cells")
        held = self.cells[row][column] if row < len(self.cells) and \
            column < len(self.cells[row]) else ""
        if not is_formula(held):
            return held
        if (row, column) not in self.known:
            self.known[row, column] = Wrong("#REF!")        # as long as it is being worked out
            try:
                tokens = [match[0] for match in TOKEN.finditer(held[1:].upper())][::-1]
                found = self.sum(tokens)
                self.known[row, column] = Wrong("#ERROR!") if tokens else found
            except Wrong as wrong:
                self.known[row, column] = wrong
        if isinstance(found := self.known[row, column], Wrong):
            raise Wrong(str(found))
        return found

    def show(self, row, column):
        try:
            return shown(self.value(row, column))
        except Wrong as wrong:
            return str(wrong)

    # Each of these takes the tokens of one term from the list, the next one last, and returns the
    # term's value.

    def sum(self, tokens):
        return self.chain(tokens, self.product, {"+": operator.add, "-": operator.sub})

    def product(self, tokens):
        return self.chain(tokens, self.factor, {"*": operator.mul, "/": operator.truediv})

    def chain(self, tokens, part, signs):
        """Parts with signs between them, from the left; tokens: the rest, the next one last."""
        total = part(tokens)
        while tokens and tokens[-1] in signs:
            sign, other = tokens.pop(), part(tokens)
            if sign == "/" and other == 0:
                raise Wrong("#DIV/0!")
            total = signs[sign](total, other)
            if not abs(total) < tools.LARGEST:
                raise Wrong("#NUM!")
        return total

    def factor(self, tokens):
        """The number of a bracket, a function, a cell or a figure, with any signs before it."""
        token = tokens.pop() if tokens else ""
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                raise Wrong("#ERROR!")
            if token in ("+", "-"):
                return self.factor(tokens) * (-1 if token == "-" else 1)
            if token == "(":
                return self.close(tokens, self.sum(tokens))
            if token in OPERATORS and tokens and tokens.pop() == "(":
                return apply(token, self.arguments(tokens))
            if SPAN.fullmatch(token):
                values = self.span(token)
                if len(values) > 1 or type(values[0]) is str and values[0]:
                    raise Wrong("#VALUE!")
                return values[0] or 0.0
            if not re.fullmatch("[0-9.]+", token) or tools.number(token) is None:
                raise Wrong("#REF!" if token == "#REF!" else "#ERROR!")
            return float(token)
        finally:
            self.depth -= 1

    def arguments(self, tokens):
        """The numbers between the brackets of a function; of cells, texts are passed over."""
        found = []
        while True:
            if tokens and SPAN.fullmatch(tokens[-1]) and tokens[-2:-1] in ([], [","], [")"]):
                found += [x for x in self.span(tokens.pop()) if type(x) is float]
            else:
                found.append(self.sum(tokens))
            if tokens[-1:] != [","]:
                return self.close(tokens, found)
            tokens.pop()

    @staticmethod
    def close(tokens, found):
        if not tokens or tokens.pop() != ")":
            raise Wrong("#ERROR!")
        return found

    def span(self, token):
        """The values of the cells of "B2" or "B2:D9"."""
        try:
            ends = [place(end) for end in token.split(":")]
        except Refused:
            raise Wrong("#REF!") from None
        (top, bottom), (left, right) = [sorted(pair) for pair in zip(ends[0], ends[-1])]
        bottom = min(bottom, max(top, len(self.cells) - 1))     # below it all is empty
        return [self.value(row, column) for row in range(top, bottom + 1)
                for column in range(left, right + 1)]


def apply(name, numbers):
    """The value of a function."""
    if name == "COUNT":
        return float(len(numbers))
    if name == "MINUS":
        if len(numbers) != 2:
            raise Wrong("#N/A")
        return numbers[0] - numbers[1]
    if name == "AVERAGE":
        if not numbers:
            raise Wrong("#DIV/0!")
        return math.fsum(numbers) / len(numbers)
    if name == "PRODUCT":
        total = math.prod(numbers) if numbers else 0.0
    else:
        total = {"SUM": math.fsum, "MAX": max, "MIN": min}[name](numbers or [0.0])
    if not abs(total) < tools.LARGEST:
        raise Wrong("#NUM!")
    return float(total)


def follow(text, axis, new):
    """A formula after its rows (axis 0) or columns (1) went elsewhere: new(old index) -> the new
    one, or None: gone. A range keeps what is left of it."""
    def moved(match):
        """The text of a cell's or a range's name in the new places."""
        ends = [list(place(end)) for end in match[0].split(":")]
        low, high = sorted((ends[0][axis], ends[-1][axis]))
        left = [at for i in range(low, high + 1)
                if (at := new(i)) is not None and 0 <= at < (ROWS, COLUMNS)[axis]]
        if not left:
            return "#REF!"
        ends[0][axis], ends[-1][axis] = left[0], left[-1]
        return ":".join(label(*end) for end in ends)
    try:
        return SPAN.sub(moved, text.upper())
    except Refused:
        return text         # it refers to what is not there, and goes on to


class Grid:
    """A sheet: cells[row][column] as `entry` has them, notes {(row, column): text}, frozen rows,
    merged ranges [(top, left, bottom, right), ...], of which the first cell alone holds a value."""

    def __init__(self, rows, notes=(), merged=(), frozen=0):
        self.cells = [[entry(value) for value in row] for row in rows]
        self.notes, self.merged, self.frozen = dict(notes), [*merged], frozen

    def values(self):
        """All that is shown, as far as something is: a list of rows of texts, equally long. Each
        cell of a merged range shows the first. Refused: too much of it."""
        evaluation, used = Evaluation(self.cells), [
            (i, j) for i, row in enumerate(self.cells) for j, held in enumerate(row) if held != ""]
        height, width = (1 + max((where[axis] for where in used), default=-1) for axis in (0, 1))
        shows = [[evaluation.show(i, j) for j in range(width)] for i in range(height)]
        for top, left, bottom, right in self.merged:
            for i in range(top, min(bottom + 1, height)):
                for j in range(left, min(right + 1, width)):
                    shows[i][j] = shows[top][left]
        if sum(len(text) + 4 for row in shows for text in row) > MOST_SHOWN:
            raise Refused(f"APIError: [400]: The sheet would show over {MOST_SHOWN} characters")
        return shows

    def merge(self, top, left, bottom, right):
        """Make one cell of a range. What overlaps it is no range any more."""
        self.merged = [old for old in self.merged if not (
            old[0] <= bottom and top <= old[2] and old[1] <= right and left <= old[3])]
        for i, row in enumerate(self.cells[top:bottom + 1]):
            first = left + (i == 0)
            row[first:right + 1] = [""] * len(row[first:right + 1])
        if (top, left) != (bottom, right):
            self.merged.append((top, left, bottom, right))

    def put(self, row, column, values):
        """Write rows of values from this cell on."""
        for i, line in enumerate(values, row):
            for j, value in enumerate(line, column):
                inside(i, j)
                while len(self.cells) <= i:
                    self.cells.append([])
                self.cells[i] += [""] * (j + 1 - len(self.cells[i]))
                self.cells[i][j] = entry(value)

    def rearrange(self, axis, order):
        """Make row (axis 0) or column (1) n what was order[n], None: empty. The formulas follow."""
        old, width = self.size(axis), self.size(1)
        within(axis, len(order) - 1)
        self.cells = [row + [""] * (width - len(row)) for row in self.cells]
        where = {n: i for i, n in enumerate(order) if n is not None}

        def new(n):
            return where.get(n) if n < old else n + len(order) - old
        cells = [[follow(held, axis, new) if is_formula(held) else held for held in row]
                 for row in self.cells]
        self.cells = [["" if n is None or n >= old else row[n] for n in order] for row in cells] \
            if axis else [[] if n is None or n >= old else cells[n] for n in order]
        self.notes = {(i, new(j)) if axis else (new(i), j): text
                      for (i, j), text in self.notes.items() if new(j if axis else i) is not None}
        ranges, self.merged = self.merged, []
        for corners in ranges:                  # each keeps what is left of it
            left = [at for n in range(corners[axis], corners[axis + 2] + 1)
                    if (at := new(n)) is not None]
            if left:
                corners = [*corners]
                corners[axis], corners[axis + 2] = left[0], left[-1]
                self.merged.append(tuple(corners))

    def size(self, axis):
        """How many rows (axis 0) or columns (1) it holds, empty ones at the end included."""
        return max(map(len, self.cells), default=0) if axis else len(self.cells)

    def insert(self, axis, lines, at):
        """New rows (axis 0) or columns (1), lists of values, before this one."""
        within(axis, at)
        order = [*range(max(self.size(axis), at))]
        self.rearrange(axis, order[:at] + [None] * len(lines) + order[at:])
        self.put(*((0, at, itertools.zip_longest(*lines, fillvalue="")) if axis
                   else (at, 0, lines)))

    def delete(self, axis, gone):
        """Take away the rows (axis 0) or columns (1) of these numbers."""
        for n in gone:
            within(axis, n)
        self.rearrange(axis, [n for n in range(self.size(axis)) if n not in gone])

    def sort(self, column, descending):
        """Sort the rows below the frozen ones: numbers, then texts, or the other way round; empty
        cells come last. What a formula says of its row goes with it. Refused: a merged range would
        be torn apart."""
        shows, first = Evaluation(self.cells), min(self.frozen, len(self.cells))
        if any(top < bottom >= first for top, _, bottom, _ in self.merged):
            raise Refused("APIError: [400]: You can't sort a range with merged rows")

        def key(n):
            value = entry(shows.show(n, column))
            return type(value) is str, 0 if type(value) is str else value, str(value)
        rows = range(first, len(self.cells))
        filled = [n for n in rows if shows.show(n, column) != ""]
        order = sorted(filled, key=key, reverse=descending) + [n for n in rows if n not in filled]
        kept, notes, ranges = list(self.cells), self.notes, self.merged
        self.notes = {where: text for where, text in notes.items() if where[0] < first}
        self.merged = [corners for corners in ranges if not first <= corners[0] < len(kept)]
        for new, n in enumerate(order, first):
            self.cells[new] = [follow(held, 0, functools.partial(operator.add, new - n))
                               if is_formula(held) else held for held in kept[n]]
            self.notes |= {(new, j): text for (i, j), text in notes.items() if i == n}
            self.merged += [(new, left, new, right) for i, left, _, right in ranges if i == n]


def whole(value):
    """The whole number that a value is or writes. Refused: in Python's words, as the original."""
    found = tools.number(value)
    if found is None or found != int(found):
        wrong = repr(str(value)[:40])
        raise Refused(f'ValueError("invalid literal for int() with base 10: {wrong}")')
    return int(found)


def two_dimensional(values):
    if type(values) is not list or not values or not all(type(part) is list for part in values):
        raise Refused("'The values_list needs to be a 2D list, please check your parameter'")
    return values


def matching(values, query):
    """The places whose text fits: texts with | between, ^ before and $ behind, in brackets or not.
    """
    front, inner, back = re.fullmatch(r"(\^?)(.*?)(\$?)", query, re.DOTALL).groups()
    words = re.sub(r"^\((.*)\)$", r"\1", inner, flags=re.DOTALL).split("|")
    return [(i, j) for i, row in enumerate(values) for j, text in enumerate(row) if any(
        text == word if front and back else text.startswith(word) if front else
        text.endswith(word) if back else word in text for word in words)]


def share(values, wanted):
    """The share of equal cells, of those that either sheet has."""
    height, width = (max(sizes) for sizes in zip(
        *[(len(rows), max(map(len, rows), default=0)) for rows in (values, wanted)]))

    def at(rows, i, j):
        return rows[i][j] if i < len(rows) and j < len(rows[i]) else ""
    equal = 0
    for i in range(height):
        for j in range(width):
            should = at(wanted, i, j)
            number = tools.number(should)
            equal += tools.same(at(values, i, j), should if number is None else number)
    return equal / (height * width)


def read_csv(path):
    """The rows of a csv file. ValueError: there is no such file, or it does not fit the grid."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = [*csv.reader(file, strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{path}: {problem}; a csv file in UTF-8 is expected") from None
    width = max(map(len, rows), default=0)
    if not width or len(rows) > ROWS or width > COLUMNS:
        raise ValueError(f"{path} has {len(rows)} rows and {width} columns; 1 to {ROWS} rows and 1 "
                         f"to {COLUMNS} columns are expected")
    for n, row in enumerate(rows, 1):
        for value in row:
            if len(value) > LONGEST:
                raise ValueError(f"{path}: row {n} has a text of {len(value)} characters; cells "
                                 f"hold up to {LONGEST}")
    return rows
