"""What the sites share: markup that escapes, forms that are shown and checked, lists, requests.

A site is a table of routes: (method, pattern of the path, page function). A page function gets an
Ask and the groups of its pattern; it returns (title, markup), or an address to go on to (303).
`form_page`, `act` and `listing` make the usual ones: a page with a form, what a form does, a list.
"""
import re
import sqlite3
from dataclasses import dataclass
from html import escape
from typing import NamedTuple
from urllib.parse import quote, urlencode

TODAY = "2023-06-12"        # the day on which every episode takes place


class Problem(Exception):
    """Becomes a page with this status that says what is wrong: Problem(404, "No such product.")."""


# ---- markup -------------------------------------------------------------------------------------

class Html(str):
    """Finished markup. Whatever else is put into a page is text, and `html` escapes it."""


def safe(value):
    """The value as it may stand in markup: only text needs escaping."""
    if isinstance(value, (Html, int, float)):
        return value
    if isinstance(value, str):
        return escape(value)
    return "" if value is None else "".join(str(safe(part)) for part in value)


def html(template, *values, **named):
    """Markup with values in it, placed as by str.format: html("<b>{}</b>", "1 < 2").

    Html and numbers go in as they are, None as nothing, lists joined, text escaped. A template is
    a literal, never an f-string, so that no value can reach a page by another way: a test reads
    the sites' code for it.
    """
    return Html(template.format(*map(safe, values), **{key: safe(named[key]) for key in named}))


def heading(text):
    return html("<h2>{}</h2>", text)


def link(address, text):
    return html('<a href="{}">{}</a>', address, text)


def url(path, **query):
    return f"{path}?{urlencode(query)}"


def table(heads, rows, nothing="We couldn't find any records."):
    """rows: lists of cells."""
    return html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
                [html('<th scope="col">{}</th>', head) for head in heads],
                [html("<tr>{}</tr>", [html("<td>{}</td>", cell) for cell in row]) for row in rows]
                ) if rows else html("<p>{}</p>", nothing)


def bullets(items, kind=""):
    """kind: "row" or "cards" of the style sheet."""
    return html('<ul class="{}">{}</ul>', kind, [html("<li>{}</li>", item) for item in items])


def paragraphs(text):
    return [html("<p>{}</p>", part) for part in text.split("\n") if part.strip()]


def money(cents):
    return f"${(cents or 0) / 100:,.2f}"


# ---- forms --------------------------------------------------------------------------------------

class Field(NamedTuple):
    """A field of a form. kind: text, area (several lines), whole (a number), cents ("12.50"),
    select, checkbox, hidden. options: texts, pairs (value, text), or SQL that selects them."""
    label: str
    name: str
    kind: str = "text"
    least: int = 1          # letters; of a number: its value
    most: int = 200
    options: tuple = ()

    def pairs(self, ask):
        options = self.options
        if isinstance(options, str):
            options = [row[0] for row in ask.rows(options)]
        return [(option, option) if isinstance(option, str) else option for option in options]

    def show(self, ask, value=""):
        """The control inside its label, which is its name for a screen reader and an agent."""
        if self.kind == "hidden":
            return html('<input type="hidden" name="{}" value="{}">', self.name, value)
        if self.kind == "checkbox":
            return html('<label><input type="checkbox" name="{}" value="1"{}> {}</label>',
                        self.name, Html(" checked") if value else "", self.label)
        if self.kind == "area":
            return html('<label>{} <textarea name="{}" rows="5">\n{}</textarea></label>',
                        self.label, self.name, value)
        if self.kind == "select":
            return html('<label>{} <select name="{}">{}</select></label>', self.label, self.name, [
                html('<option value="{}"{}>{}</option>', key,
                     Html(" selected") if str(key) == str(value) else "", text)
                for key, text in self.pairs(ask)])
        if self.kind == "cents" and value != "":
            value = f"{value / 100:.2f}"
        return html('<label>{} <input type="text" name="{}" value="{}"></label>', self.label,
                    self.name, value)

    def read(self, ask):
        """What was sent, checked. Problem: it is not what the field takes."""
        text, label = ask.form.get(self.name, "").strip(), self.label or self.name
        if self.kind == "checkbox":
            return text == "1"
        if self.kind == "select":
            if text not in [str(key) for key, _ in self.pairs(ask)]:
                raise Problem(400, f"{label}: '{text[:100]}' is not among the choices.")
        elif self.kind == "cents":
            if not re.fullmatch(r"\$?[0-9]{1,6}(\.[0-9]{1,2})?", text):
                raise Problem(400, f"{label} must be an amount such as 12.50.")
            return round(100 * float(text.removeprefix("$")))
        elif self.kind in ("whole", "hidden"):
            if not re.fullmatch("-?[0-9]{1,9}", text) or not self.least <= int(text) <= self.most:
                raise Problem(400, f"{label} must be a whole number from {self.least} to "
                              f"{self.most}.")
            return int(text)
        elif not self.least <= len(text) <= self.most:
            raise Problem(400, f"{label} must have {self.least} to {self.most} letters; "
                          f"these are {len(text)}.")
        return text


def number(name, least=1, most=10**6):
    """A number that the page sends, not the user."""
    return Field("", name, "hidden", least, most)


def select(label, name, options):
    return Field(label, name, "select", options=options)


def area(label, name, most=2000, least=1):
    return Field(label, name, "area", least, most)


class Form:
    """A button and fields: one object shows them and checks what comes back."""

    def __init__(self, button, *fields, inline=False):
        self.button, self.fields, self.inline = button, fields, inline

    def show(self, ask, action, values=None, method="post", button=None):
        """values: a dict or a row, of which the fields show what they find."""
        known = dict(values or {})
        return html('<form action="{}" method="{}" class="{}">{}<button type="submit">{}</button>'
                    '</form>', action, method, "inline" if self.inline else "",
                    [field.show(ask, known.get(field.name, "")) for field in self.fields],
                    button or self.button)

    def read(self, ask):
        return {field.name: field.read(ask) for field in self.fields}


def form_page(title, form, action, values="SELECT 1"):
    """A page with nothing but a form, filled in by the first row of this SQL. The groups of the
    path are {0}, {1} in title and action, :a, :b in SQL."""
    def page(ask, *groups):
        row = ask.row(values, **dict(zip("abc", groups)))
        return title.format(*groups), form.show(ask, action.format(*groups), row)
    return page


def act(form, then, *statements):
    """The page function of a POST: the form is read, the statements run, and the address `then`
    follows. The statements see the fields by name, the groups of the path as :a, :b, :c and :today;
    `then` the groups as {0}, {1}, the fields by name, and {new}, the id of the row that the first
    statement inserted. Problem: it concerned no row."""
    def page(ask, *groups):
        values = {**form.read(ask), **dict(zip("abc", groups)), "today": TODAY}
        first, *_ = [ask.db.execute(statement, values) for statement in statements]
        if not first.rowcount:
            raise Problem(404, "There is nothing here that this could be done to.")
        values["new"] = first.lastrowid
        return then.format(*groups, **{key: quote(str(values[key])) for key in values})
    return page


# ---- requests and lists -------------------------------------------------------------------------

@dataclass
class Ask:
    """One request of a site."""
    db: sqlite3.Connection
    path: str
    query: dict         # of the address: name -> text
    form: dict          # of a POST: name -> text

    def rows(self, sql, *values, **named):
        return self.db.execute(sql, named or values).fetchall()

    def row(self, sql, *values, **named):
        """The first row. Problem: there is none."""
        for row in self.db.execute(sql, named or values):
            return row
        raise Problem(404, "The page you requested was not found.")

    def value(self, sql, *values):
        """The first column of the first row."""
        return self.row(sql, *values)[0]


class Filter(NamedTuple):
    """A field of the address that picks rows. sql has a "?" for the field's text; without one it is
    a text in which each word of the field must occur. options: a <select>, beside "All"."""
    label: str
    name: str
    sql: str
    options: tuple = ()

    def show(self, ask):
        kind = "select" if self.options else "text"
        return Field(self.label, self.name, kind, options=(("", "All"), *self.options)
                     ).show(ask, ask.query.get(self.name, ""))

    def conditions(self, ask):
        """[(SQL, value)]: none where the field is empty."""
        text = ask.query.get(self.name, "").strip()[:200]
        if "?" in self.sql:
            return [(self.sql, text)] * bool(text)
        return [(f"instr(lower({self.sql}), ?) > 0", word) for word in text.lower().split()[:8]]


def listing(ask, sql, show, *filters, given=(), sorts=None, per_page=20):
    """The filters as a form, how many rows there are, one page of them by `show`, links to the
    pages beside it: page= of the address. In sql FILTERS stands for the conditions, behind the "?"
    of `given`, ORDER for one of sorts, {key: (text, SQL)}: sort= of the address or the first."""
    chosen = [pair for field in filters for pair in field.conditions(ask)]
    sql = sql.replace("FILTERS", " AND ".join(["1", *[condition for condition, _ in chosen]]))
    fields = [field.show(ask) for field in filters]
    if sorts:
        key = ask.query.get("sort") if ask.query.get("sort") in sorts else next(iter(sorts))
        sql = sql.replace("ORDER", f"ORDER BY {sorts[key][1]}, id")
        fields.append(select("Sort by", "sort", [(name, sorts[name][0]) for name in sorts]
                             ).show(ask, key))
    values = [*given, *[value for _, value in chosen]]
    text = ask.query.get("page", "1")
    page = max(int(text), 1) if re.fullmatch("[0-9]{1,4}", text) else 1
    count = ask.value(f"SELECT count(*) FROM ({sql})", *values)
    last = max(-(-count // per_page), 1)
    beside = [link(url(ask.path, **{**ask.query, "page": to}), words)
              for to, words in ((page - 1, "Previous"), (page + 1, "Next")) if 1 <= to <= last]
    return [html('<form action="{}" method="get" class="inline">{}<button type="submit">Apply'
                 '</button></form>', ask.path, fields) if fields else None,
            html("<p>{} found</p>", count),
            show(ask.rows(f"{sql} LIMIT {per_page} OFFSET {per_page * (page - 1)}", *values)),
            html('<p class="small">Page {} of {}. {}</p>', page, last,
                 [[at, " "] for at in beside])]
