"""What the five sites share: markup that escapes, forms and tables, a request, its errors."""
import re
import sqlite3
from dataclasses import dataclass
from html import escape
from urllib.parse import urlencode

TODAY = "2023-06-12"        # the day on which every episode takes place


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


def url(path, **query):
    return f"{path}?{urlencode(query)}"


def link(address, text):
    return html('<a href="{}">{}</a>', address, text)


def table(heads, rows, nothing="We couldn't find any records."):
    """rows: lists of cells."""
    if not rows:
        return html("<p>{}</p>", nothing)
    return html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
                [html('<th scope="col">{}</th>', head) for head in heads],
                [html("<tr>{}</tr>", [html("<td>{}</td>", cell) for cell in row]) for row in rows])


def bullets(items, kind=""):
    return html('<ul class="{}">{}</ul>', kind, [html("<li>{}</li>", item) for item in items])


# Each control stands inside its label, which is its name for a screen reader and an agent.

def field(label, name, value="", kind="text"):
    return html('<label>{} <input type="{}" name="{}" value="{}"></label>', label, kind, name,
                value)


def area(label, name, value=""):
    return html('<label>{} <textarea name="{}" rows="5">\n{}</textarea></label>', label, name,
                value)


def select(label, name, options, chosen=""):
    """options: texts, or pairs (value, text)."""
    pairs = [(option, option) if isinstance(option, str) else option for option in options]
    return html('<label>{} <select name="{}">{}</select></label>', label, name, [
        html('<option value="{}"{}>{}</option>', value,
             Html(" selected") if str(value) == str(chosen) else "", text)
        for value, text in pairs])


def checkbox(label, name, checked=False):
    return html('<label><input type="checkbox" name="{}" value="1"{}> {}</label>', name,
                Html(" checked") if checked else "", label)


def form(action, button, *fields, method="post", kind=""):
    """kind "inline": in one line with what stands beside it."""
    return html('<form action="{}" method="{}" class="{}">{}<button type="submit">{}</button>'
                '</form>', action, method, kind, fields, button)


def hidden(name, value):
    return html('<input type="hidden" name="{}" value="{}">', name, value)


def money(cents):
    return f"${cents / 100:,.2f}"


def paragraphs(text):
    return [html("<p>{}</p>", part) for part in text.split("\n") if part.strip()]


# ---- a request ----------------------------------------------------------------------------------

class Problem(Exception):
    """A page with a status of its own that says what is wrong: Problem(404, "No such product")."""


@dataclass
class Ask:
    """One request of a site: a page function gets it, and the groups of its path."""
    db: sqlite3.Connection
    path: str
    query: dict         # of the address: name -> text
    form: dict          # of a POST: name -> text

    def rows(self, sql, *values):
        return self.db.execute(sql, values).fetchall()

    def row(self, sql, *values):
        """The first row. Problem: there is none."""
        found = self.db.execute(sql, values).fetchone()
        if found is None:
            raise Problem(404, "The page you requested was not found.")
        return found

    def value(self, sql, *values):
        """The first column of the first row."""
        return self.row(sql, *values)[0]

    def run(self, sql, *values):
        """Write; -> the number of rows that it concerned."""
        return self.db.execute(sql, values).rowcount

    def paged(self, sql, *values, per_page=20):
        """(one page of the rows, how many there are in all, links to the pages beside it)."""
        text = self.query.get("page", "1")
        number = max(int(text), 1) if re.fullmatch("[0-9]{1,4}", text) else 1
        count = self.value(f"SELECT count(*) FROM ({sql})", *values)
        last = -(-count // per_page)
        links = [link(url(self.path, **{**self.query, "page": page}), words)
                 for page, words in ((number - 1, "Previous"), (number + 1, "Next"))
                 if 1 <= page <= last]
        found = self.rows(f"{sql} LIMIT {per_page} OFFSET {per_page * (number - 1)}", *values)
        return found, count, html('<p class="small">Page {} of {}. {}</p>', number, max(last, 1),
                                  bullets(links, "row") if links else None)

    def where(self, **conditions):
        """(a condition of SQL, its values) of the address's fields that are filled in: name -> SQL
        with a "?" for the field, or without one, a text in which each word of it must occur."""
        parts, values = ["1"], []
        for name, condition in conditions.items():
            text = self.query.get(name, "").strip()[:200]
            words = [text] if "?" in condition and text else text.lower().split()[:8]
            parts += [condition if "?" in condition else f"instr(lower({condition}), ?) > 0"
                      ] * len(words)
            values += words
        return " AND ".join(parts), values

    def text(self, name, most=200, least=1):
        """A field of the form, stripped, of least to most letters."""
        text = self.form.get(name, "").strip()
        if len(text) < least:
            raise Problem(400, f"{name} is a required field.")
        if len(text) > most:
            raise Problem(400, f"{name} may have at most {most} letters; these are {len(text)}.")
        return text

    def whole(self, name, least, most):
        """A whole number of the form, from least to most."""
        text = self.form.get(name, "").strip()
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise Problem(400, f"{name} must be a whole number from {least} to {most}.")
        return int(text)

    def cents(self, name):
        """An amount of the form, "12" or "12.50", in cents."""
        text = self.form.get(name, "").strip().removeprefix("$")
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,2})?", text):
            raise Problem(400, f"{name} must be an amount such as 12.50.")
        return round(100 * float(text))

    def choice(self, name, options):
        """A field of the form that must be one of the options; "" stands for a field left out."""
        text = self.form.get(name, "")
        if text not in options:
            raise Problem(400, f"{name} must be one of: {', '.join(options)}.")
        return text
