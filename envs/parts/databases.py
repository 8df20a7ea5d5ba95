"""The databases and questions of bird.py: twenty small worlds, 34 shapes of a query.

    Query("columns", "doctor", (("doctor", "name"),), (Condition("ward", "wing", "=", "north"),))
        words_of   ->  Which are the doctors whose ward's wing is north? Give the name of each.
        sql_of     ->  SELECT doctor.name FROM doctor JOIN ward ON doctor.ward_id = ward.id
                       WHERE ward.wing = 'north'

Question and SQL come from one tree, so they cannot disagree. A query is kept only if its answer is
neither empty nor 0, if each of its conditions changes the answer, and if no tie decides it. Where
rows are counted by a column, each of its values has one.
"""
import functools
import random
import re
import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

# A world: its tables, those above first. A table: its rows, ">" tables it refers to, columns. A
# column: the least and the largest number, or the words it takes, "date", "town", or one of NAMES.
WORLDS = """
hospital: ward 9 name=place floor=1-9 wing=north,south,east,west
    doctor 40 >ward name=person specialty=surgery,cardiology,neurology,dermatology salary=3000-9900
    patient 60 name=person town=town birth_year=1935-2015
    visit 220 >doctor >patient day=date cost=20-900 reason=injury,fever,operation,vaccination
library: author 18 name=person country=Kenya,Peru,Norway,Japan,Canada birth_year=1880-1990
    book 60 >author name=title genre=crime,history,poetry,travel length=80-900 print_year=1920-2022
    member 50 name=person town=town age=12-90
    loan 230 >book >member day=date duration=1-60 return=punctual,late,missing
football: club 12 name=place founding_year=1880-1990 capacity=4000-60000 division=first,second,third
    player 70 >club name=person position=goalkeeper,defender,midfielder,striker age=17-38 wage=1-90
    referee 14 name=person town=town experience=1-25
    booking 200 >player >referee day=date minute=1-90 colour=yellow,red
retail: supplier 12 name=firm town=town rating=1-100
    product 60 >supplier name=title category=toy,garden,kitchen,sport price=2-400 stock=0-500
    customer 60 name=person town=town age=18-85 status=bronze,silver,gold
    purchase 240 >product >customer day=date quantity=1-20 payment=card,cash,transfer
dining: restaurant 12 name=place cuisine=Thai,Greek,Mexican,French capacity=20-160
    dish 60 >restaurant name=title course=starter,main,dessert price=4-60 energy=90-1400
    guest 50 name=person town=town age=18-85
    review 220 >dish >guest day=date score=1-100 meal=lunch,dinner
university: department 7 name=title building=A,B,C budget=100-900
    lecturer 24 >department name=person rank=assistant,associate,full salary=3000-9000
    subject 40 >lecturer name=title level=bachelor,master effort=2-12
    student 70 name=person town=town age=18-40
    enrolment 230 >subject >student day=date mark=1-100 form=written,oral,project
cinema: director 16 name=person country=Italy,India,Brazil,Korea birth_year=1930-1995
    film 60 >director name=title genre=drama,comedy,thriller,western length=70-210 budget=1-200
    viewer 50 name=person town=town age=12-80
    rating 230 >film >viewer day=date score=1-10 device=phone,television,laptop
music: label 9 name=firm town=town founding_year=1950-2010
    band 28 >label name=title style=jazz,rock,folk,metal size=2-9
    album 60 >band name=title release_year=1970-2023 income=1000-90000
    concert 200 >band day=date audience=100-20000 venue=club,arena,park,church
bank: branch 10 name=place region=coast,valley,hills staff=4-60
    account 60 >branch name=person type=savings,current,joint balance=10-9000 opening_year=1995-2023
    payment 260 >account day=date amount=1-2000 purpose=rent,food,travel,salary
garage: maker 9 name=firm country=Sweden,Spain,Japan,France founding_year=1900-1980
    car 50 >maker name=title fuel=petrol,diesel,electric power=50-400 model_year=1990-2023
    mechanic 18 name=person experience=1-30 town=town
    repair 220 >car >mechanic day=date duration=1-40 part=brake,engine,gearbox,battery
hotel: hotel 10 name=place rating=1-5 pool=indoor,outdoor,rooftop opening_year=1950-2020
    room 50 >hotel name=title view=sea,garden,street price=40-400 capacity=1-4
    guest 60 name=person town=town age=18-85
    stay 230 >room >guest day=date length=1-21 channel=phone,website,agency
software: team 8 name=title office=Porto,Lyon,Turin size=3-20
    developer 36 >team name=person language=Python,Rust,Java,Go salary=3000-9500 age=21-63
    bug 230 >developer day=date effort=1-90 severity=minor,major,critical status=open,closed
school: school 9 name=place type=public,private,church founding_year=1850-2010
    pupil 70 >school name=person age=6-18 sport=judo,tennis,hockey
    exam 240 >pupil day=date score=1-100 subject=maths,art,physics,geography
farming: farm 10 name=place owner_age=25-80 method=organic,mixed,standard
    field 44 >farm name=title soil=clay,sand,loam area=1-90
    harvest 220 >field day=date amount=1-200 crop=wheat,maize,barley,oats
theatre: playwright 14 name=person country=Ireland,Poland,Chile,Egypt birth_year=1850-1990
    play 44 >playwright name=title mood=comic,tragic,satirical length=1-5 premiere_year=1880-2022
    performance 220 >play day=date attendance=10-900 hall=blue,round,studio
fitness: studio 9 name=place area=80-900 sauna=dry,steam,infrared
    trainer 30 >studio name=person sport=yoga,boxing,rowing,climbing wage=12-60
    member 60 name=person town=town age=16-80
    session 230 >trainer >member day=date duration=15-120 pulse=80-190
museum: artist 16 name=person country=Greece,Mexico,China,Denmark birth_year=1600-1980
    painting 56 >artist name=title technique=oil,ink,chalk,acrylic height=20-300
    gallery 12 name=place town=town size=2-40
    exhibition 210 >painting >gallery day=date attendance=50-9000 season=spring,summer,autumn,winter
zoo: enclosure 10 name=place climate=tropical,polar,desert area=50-5000
    animal 50 >enclosure name=title diet=meat,plants,insects weight=1-900 age=1-40
    keeper 16 name=person experience=1-30 shift=early,late,night
    feeding 230 >animal >keeper day=date amount=1-60 food=hay,fish,fruit,grain
airline: carrier 8 name=firm alliance=blue,orange,white staff=100-9000
    plane 36 >carrier name=title engine=jet,propeller capacity=20-400 delivery_year=1985-2023
    pilot 28 name=person rank=junior,senior,captain age=24-64
    flight 240 >plane >pilot day=date distance=100-9000 delay=0-180
courier: depot 9 name=place region=harbour,centre,airport capacity=2-30
    driver 34 >depot name=person vehicle=van,truck,bicycle age=19-64
    client 40 name=firm town=town discount=0-30
    parcel 240 >driver >client day=date weight=1-300 status=delivered,lost,returned
"""
HELD_OUT = ("museum", "zoo", "airline", "courier")      # no task of TRAIN asks these
FIRST = ("Ada Bruno Carla David Elena Farid Grace Hugo Ines Jonas Kira Luca Maya Nils Olga Paul "
         "Rosa Sami Tessa Viktor")
LAST = ("Abbott Brandt Castro Duarte Evans Fischer Garcia Hansen Ivanov Jensen Keller Lindner "
        "Moreau Novak Okafor Petrov Quinn Rossi Suzuki Weber")
NAMES = {       # kind: two lists of words, and what stands between them
    "person": (FIRST, LAST, " "),
    "place": ("Ash Birch Black Clear East Green High Long North Oak Red Silver Stone West White",
              "bridge dale field ford gate haven hill mere port wood", ""),
    "title": ("Amber Bold Calm Copper Crimson Distant Early Frozen Gentle Golden Hidden Iron "
              "Little Lost Quiet Silent Sunny Velvet Wild Winter", "Anchor Beacon Canyon Comet "
              "Dragon Echo Falcon Garden Harbor Island Lantern Maple Meadow Otter River Sparrow "
              "Summit Thunder Tiger Violet", " "),
    "firm": (LAST, "Ltd Partners Works Brothers Group", " ")}
TOWNS = "Alden,Brigg,Corby,Dunmore,Elgin,Fenwick"
MONTHS = ("January February March April May June July August September October November "
          "December").split()


class Table(NamedTuple):
    rows: int
    above: list         # the tables it refers to
    columns: dict       # name -> form, as in WORLDS; the columns id and <above>_id are not there


def read_worlds(text):
    """{world: {table: Table}}"""
    worlds = {}
    for world, tables in re.findall(r"(?m)^(\w+):((?:.*\n)(?: .*\n)*)", text):
        worlds[world] = {}
        for line in tables.strip().split("\n"):
            table, rows, *words = line.split()
            worlds[world][table] = Table(
                int(rows), [word[1:] for word in words if word[0] == ">"],
                dict(word.split("=") for word in words if word[0] != ">"))
    return worlds


TABLES = read_worlds(WORLDS)


def kind_of(form):
    """number, name, date or word: what a column of this form holds."""
    return "number" if re.fullmatch("[0-9]+-[0-9]+", form) else "name" if form in NAMES else \
        "date" if form == "date" else "word"


def draw_value(rng, form):
    """A value for a column of this form."""
    if (kind := kind_of(form)) == "number":
        return rng.randint(*map(int, form.split("-")))
    if kind == "name":
        first, second, between = NAMES[form]
        return rng.choice(first.split()) + between + rng.choice(second.split())
    if kind == "date":
        return f"{rng.randint(2019, 2023)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return rng.choice((TOWNS if form == "town" else form).split(","))


@functools.cache
def database(world):
    """The SQLite file of a world, as bytes: about 30 kB. No value is NULL, no name occurs twice in
    a table, and some rows are referred to by none."""
    rng, connection = random.Random(f"bird {world}"), sqlite3.connect(":memory:")
    for name, table in TABLES[world].items():
        columns = ["id INTEGER PRIMARY KEY", *(
            f"{column} {'INTEGER' if kind_of(form) == 'number' else 'TEXT'}"
            for column, form in table.columns.items()), *(
            f"{above}_id INTEGER REFERENCES {above}(id)" for above in table.above)]
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        rows, taken = [], set()
        while len(rows) < table.rows:
            row = [draw_value(rng, form) for form in table.columns.values()]
            if "name" in table.columns and row[0] in taken:
                continue
            taken.add(row[0])
            rows.append([len(rows) + 1, *row, *(        # the first rows are referred to most
                min(rng.randint(1, TABLES[world][above].rows) for _ in range(2))
                for above in table.above)])
        connection.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.commit()
    return connection.serialize()


def opened(world):
    """A connection to a copy of its own, in memory."""
    connection = sqlite3.connect(":memory:")
    connection.deserialize(database(world))
    return connection


@functools.cache
def values_of(world, table, column):
    """A column's values, in the order of the rows."""
    with closing(opened(world)) as connection:
        return [value for value, in connection.execute(f"SELECT {column} FROM {table}")]


def way_up(tables, table, above):
    """The tables from one up to another that it refers to, both included; [] if there is no way."""
    if table == above:
        return [table]
    ways = (way_up(tables, parent, above) for parent in tables[table].above)
    return next(([table, *way] for way in ways if way), [])


# ---- The tree of a question ----

class Condition(NamedTuple):
    table: str          # the table asked about, or one above it
    column: str
    is_: str            # a key of CONDITIONS
    value: object       # "has", "has no": (a table that refers to this one, Conditions on it)


class Query(NamedTuple):
    what: str           # a key of QUESTIONS
    table: str          # whose rows are asked about
    columns: tuple = ()     # what is told: (table, column), ...
    where: tuple = ()       # Conditions, all of which hold
    number: tuple = ()      # (table, column): what is averaged, or decides who comes first
    function: str = ""      # a key of FUNCTIONS
    count: int = 0          # top: how many rows; having: more than this
    other: tuple = ()       # share, difference: one more Condition

    @property
    def first(self):        # of the rows that are sorted
        return f"first {self.count}" if self.count > 1 else "first"


FUNCTIONS = {"AVG": ("average", "mean"), "SUM": ("total", "combined"),
             "MIN": ("lowest", "smallest"), "MAX": ("highest", "largest")}
NO_SUM = re.compile("(^|_)(year|age|rating|floor|minute|pulse)$")   # columns that nobody adds up
CONDITIONS = {      # (SQL, wordings); {c} the column, {v} the value, {q} the same as an SQL literal
    "=": ("{c} = {q}", ("whose {c} is {v}", "where the {c} is {v}", "with {v} as the {c}")),
    ">": ("{c} > {q}", ("whose {c} is above {v}", "where the {c} exceeds {v}",
                        "with {c} greater than {v}")),
    "<": ("{c} < {q}", ("whose {c} is below {v}", "where the {c} is less than {v}",
                        "with {c} under {v}")),
    "between": ("{c} BETWEEN {v[0]} AND {v[1]}", (
        "whose {c} is at least {v[0]} and at most {v[1]}",
        "where the {c} lies between {v[0]} and {v[1]} inclusive")),
    "begins": ("{c} LIKE '{v}%'", ("whose {c} begins with {v}", "where the {c} starts with {v}",
                                   "with {v} as the first letter of the {c}")),
    "year": ("strftime('%Y', {c}) = '{v}'", ("whose {c} is in {v}", "where the {c} falls in {v}",
                                             "from the year {v}")),
    "month": ("strftime('%Y-%m', {c}) = '{v}'", ("whose {c} is in {v}", "from the month {v}",
                                                 "where the {c} falls in {v}")),
    "above average": ("{c} > (SELECT AVG({c}) FROM {t})", (
        "whose {c} is above the average {c} of all rows of {t}",
        "where the {c} exceeds the average over the whole table {t}")),
    "has": ("{t} IN ({v})", ("with at least one {v}", "with some {v}",
                             "for which there is a {v}")),
    "has no": ("{t} NOT IN ({v})", ("with no {v}", "without any {v}",
                                    "for which there is no {v}")),
}
# {many}: the rows asked about, {one}: each of them, {top}: the first few; {c}: the columns told,
# {n}: the number, {f}: its function, {k}: the count, {first}: "first 3", {other}: the rows with one
# more condition, {more}
QUESTIONS = {       # (the columns in SQL, what follows the conditions, the thought, wordings)
    "columns": ("{c}", "", "select {c}", (
        "For every {one}, list the {c}.", "Show the {c} for each {one}.",
        "For all {many}, give the {c}.", "I need the {c} for all {many}.",
        "Which are the {many}? Give the {c} of each.", "Find all {many} and report their {c}.")),
    "distinct": ("DISTINCT {c}", "", "select each {c} once", (
        "Which different values of the {c} occur among the {many}?",
        "List each {c} that occurs among the {many}, without repetition.",
        "What are the distinct values of the {c} of the {many}?")),
    "count": ("COUNT(*)", "", "count the rows", (
        "How many {many} are there?", "What is the number of {many}?", "Count the {many}.",
        "Tell me how many {many} the database holds.")),
    "count_different": ("COUNT(DISTINCT {c})", "", "count the different values of {c}", (
        "How many different values of the {c} occur among the {many}?",
        "Count the distinct values of the {c} of the {many}.",
        "Among the {many}, how many different values does the {c} take?")),
    "aggregate": ("{f}({n})", "", "take {f} of {n}", (
        "What is the {f} {n} of the {many}?", "Compute the {f} {n} over all {many}.",
        "Taking all {many} together, what is the {f} {n}?", "Report the {f} {n} of all {many}.")),
    "share": ("100.0 * SUM(CASE WHEN {more} THEN 1 ELSE 0 END) / COUNT(*)", "",
              "divide the rows with {more} by all of them", (
        "What percentage of the {many} are {other}?",
        "Of all {many}, what percentage are {other}?",
        "Give the share of {other} among all {many}, in percent.")),
    "difference": ("AVG(CASE WHEN {more} THEN {n} END) - AVG(CASE WHEN NOT {more} THEN {n} END)",
                   "", "take the average {n} with {more} and subtract that without", (
        "Among the {many}, by how much is the average {n} of the {other} above that of the rest?",
        "Of all {many}, take the average {n} of the {other} and subtract that of all others.")),
    "count_by": ("{c}, COUNT(*)", " GROUP BY {c}", "count the rows of each {c}", (
        "For each {c}, how many {many} are there? Give the {c} and the number.",
        "Group the {many} by {c} and show each {c} with its number of rows.",
        "Count the {many} separately by {c}; answer with the {c} and the count.")),
    "number_by": ("{c}, {f}({n})", " GROUP BY {c}", "take {f} of {n} for each {c}", (
        "For each {c} among the {many}, give the {c} and the {f} {n}.",
        "Group the {many} by {c} and show each {c} with the {f} {n}.",
        "What is the {f} {n} of the {many} by {c}? Answer with the {c} and that number.")),
    "having": ("{c}", " GROUP BY {c} HAVING COUNT(*) > {k}",
               "keep each {c} with more than {k} rows", (
        "Which values of the {c} have more than {k} {many}?",
        "List each {c} that occurs more than {k} times among the {many}.",
        "Group the {many} by {c} and name every {c} with more than {k} rows.")),
    "most": ("{c}", " GROUP BY {c} ORDER BY COUNT(*) DESC LIMIT 1",
             "take the {c} with the most rows", (
        "Which {c} is the most frequent among the {many}?",
        "Of the {many}, which {c} occurs most often?",
        "Name the {c} that the largest number of {many} share.")),
    "top": ("{c}", " ORDER BY {n} {order} LIMIT {k}", "sort by {n} and take the {first}", (
        "Give the {c} of the {top} with the {f} {n}.",
        "I want the {c} of the {top} with the {f} {n}.",
        "Sort the {many} by {n}, {f} first, and show the {c} of the {first}.")),
}
THOUGHTS = (        # {t}: tables, {where}: conditions, {verb}: of QUESTIONS
    "The answer is in {t}. {where}I {verb}.", "I need {t}. {where}Then I {verb}.",
    "What is asked for stands in {t}. {where}From there I {verb}.")
WHERE = ("I keep the rows with {}. ", "The condition is {}. ", "Only rows with {} count. ")


def plural(noun):
    """gallery -> galleries, play -> plays, branch -> branches"""
    return re.sub("(?<![aeo])y$", "ie", noun) + ("es" if noun.endswith(("s", "ch", "sh")) else "s")


def literal(value):
    return str(value) if type(value) is int else "'" + value.replace("'", "''") + "'"


def names_of(world, query):
    """(what stands behind FROM; a function: (table, column) -> what the column is called there)"""
    joins = {}
    for table, _ in (*query.columns, query.number or (query.table, ""),
                     *(condition[:2] for condition in query.where + query.other)):
        for below, above in pairwise(way_up(TABLES[world], query.table, table)):
            joins[above] = f" JOIN {above} ON {below}.{above}_id = {above}.id"
    return query.table + "".join(joins.values()), \
        (lambda pair: ".".join(pair)) if joins else lambda pair: pair[1]


def conditions_sql(world, conditions, name):
    """What stands behind WHERE; name: of `names_of`."""
    written = []
    for table, column, is_, value in conditions:
        t, v = table, value
        if is_.startswith("has"):
            t, (child, inner) = name((table, "id")), value
            v = sql_of(world, Query("columns", child, ((child, f"{table}_id"),), inner))
        written.append(CONDITIONS[is_][0].format(
            c=name((table, column)), t=t, v=v, q=literal(v) if is_ in "=><" else ""))
    return " AND ".join(written)


def parts_of(world, query):
    """The pieces from which SQL and the expert's thought are put together."""
    source, name = names_of(world, query)
    return dict(
        source=source, where=conditions_sql(world, query.where, name),
        more=conditions_sql(world, query.other, name), c=", ".join(map(name, query.columns)),
        n=query.number and name(query.number), f=query.function, k=query.count, first=query.first,
        order={"MAX": "DESC", "MIN": "ASC"}.get(query.function))


def sql_of(world, query):
    """The reference: one SELECT statement."""
    parts, (what, rest, *_) = parts_of(world, query), QUESTIONS[query.what]
    where = f" WHERE {parts['where']}" if query.where else ""
    return f"SELECT {what.format(**parts)} FROM {parts['source']}{where}{rest.format(**parts)}"


def thought_of(world, query, rng):
    """Why the SQL is as it is, in a sentence or three."""
    parts = parts_of(world, query)
    where = rng.choice(WHERE).format(parts["where"]) if query.where else ""
    joined = re.findall("JOIN ([a-z_]+)", parts["source"])
    return rng.choice(THOUGHTS).format(
        t=" joined with ".join([query.table, *joined]), where=where,
        verb=QUESTIONS[query.what][2].format(**parts))


def phrase(world, table, pair):
    """A column as it is called in a question about the table: "salary", "ward's wing"."""
    way = way_up(TABLES[world], table, pair[0])[1:]
    return "'s ".join([*way, pair[1]]).replace("_", " ")


def conditions_words(world, table, conditions, rng):
    """What follows the noun: " whose wing is north and with salary under 4000"."""
    said = []
    for above, column, is_, value in conditions:
        if is_.startswith("has"):
            value = value[0] + conditions_words(world, value[0], value[1], rng)
        if is_ == "month":
            value = f"{MONTHS[int(value[5:]) - 1]} {value[:4]}"
        said.append(" " + rng.choice(CONDITIONS[is_][1]).format(
            c=phrase(world, table, (above, column)), v=value, t=above))
    return " and".join(said)


def words_of(world, query, rng):
    """The question."""
    where = conditions_words(world, query.table, query.where, rng)
    one, many = query.table + where, plural(query.table) + where
    return rng.choice(QUESTIONS[query.what][3]).format(
        one=one, many=many, top=f"{query.count} {many}" if query.count > 1 else one,
        c=" and ".join(phrase(world, query.table, pair) for pair in query.columns),
        n=query.number and phrase(world, query.table, query.number), k=query.count,
        first=query.first,
        f=rng.choice(FUNCTIONS.get(query.function, [""])),
        other=plural(query.table) + conditions_words(world, query.table, query.other, rng))


# ---- Drawing one ----

# (family, what is asked, a letter for each condition, of which table the columns are): t word, n
# number, b range, l first letter, w name, y year, m month, a above average; T, N, W the same of the
# table above, U of the one above that; + has rows that refer to it, H those that also refer to some
# other row, - has none, 0 has none of a year
SHAPES = tuple((family, *f"{shape}:own".split(":")[:3]) for family, shapes in {
    "simple": "columns:t columns:n columns:b columns:l columns:tn columns:w columns:y count:t "
              "count:n aggregate:t distinct:n top:",
    "moderate": "columns:T columns:tN columns:w:above columns:a columns:- count:W count:tm "
                "count_different:n count_by:n number_by:y having: most:n top:T",
    "challenging": "columns:n+ columns:H columns:++ columns:T0 count:yU share:T difference: "
                   "having:y:above most:t:above"}.items() for shape in shapes.split())


def draw_condition(world, rng, table, kind):
    """A Condition of this kind, a letter of SHAPES, whose value occurs; None: this try failed."""
    def draw_other(table, kind):
        return table and draw_condition(world, rng, table, kind)
    tables = TABLES[world]
    if kind in "TNWU":
        return draw_other(rng.choice([*tables[table].above, None]),
                          dict(T="t", N="n", W="w", U="T")[kind])
    if kind in "+H-0":
        child = rng.choice([None, *(name for name in tables if table in tables[name].above)])
        inner = draw_other(child, {"+": rng.choice("tny"), "H": "T", "-": "n", "0": "y"}[kind])
        if inner is None or inner.table == table:
            return None
        return Condition(table, "id", "has" if kind in "+H" else "has no",
                         (child, () if kind == "-" else (inner,)))
    wanted = dict(t="word", l="name", w="name", y="date", m="date").get(kind, "number")
    columns = [c for c, form in tables[table].columns.items() if kind_of(form) == wanted]
    if not columns:
        return None
    column = rng.choice(columns)
    value = rng.choice(values_of(world, table, column))
    if kind in "lym":
        value = value[:dict(l=1, y=4, m=7)[kind]]
    if kind == "b":
        value = tuple(sorted((value, rng.choice(values_of(world, table, column)))))
    return Condition(table, column, dict(
        t="=", w="=", n=rng.choice("<>"), b="between", l="begins", y="year", m="month",
        a="above average")[kind], value)


def draw_query(world, rng, shape):
    """A Query of this shape on some table of a world; None: this try failed."""
    (_, what, kinds, whose), tables = shape, TABLES[world]
    table, sql = rng.choice([*tables]), "".join(QUESTIONS[what][:2])
    told = table if whose == "own" else rng.choice([*tables[table].above, None])
    where = tuple(draw_condition(world, rng, table, kind) for kind in kinds)
    if told is None or None in where:
        return None
    known = [(told, condition.column) for condition in where if condition.is_ == "="]
    forms = {(told, column): kind_of(form) for column, form in tables[told].columns.items()
             if (told, column) not in known}
    columns, number, other = (), (), ()
    if what in ("columns", "top"):
        columns = tuple(rng.sample(sorted(forms), min(len(forms), rng.choice((1, 1, 2)))))
        if (told, "name") in forms and rng.random() < 0.7:
            columns = ((told, "name"), *(pair for pair in columns if pair[1] != "name"))[:2]
    elif "{c}" in sql:
        columns = tuple(pair for pair, kind in forms.items()
                        if kind == ("word" if told == table else "name"))
        columns = columns and (rng.choice(columns),)
    if "{n}" in sql:
        number = [(table, column) for column, form in tables[table].columns.items()
                  if kind_of(form) == "number"]
        number = number and rng.choice(number)
    if "{more}" in sql:
        other = (draw_condition(world, rng, table, "t"),)
    functions = [f for f in FUNCTIONS if f != "SUM" or not (number and NO_SUM.search(number[1]))]
    if "{c}" in sql and not columns or "{n}" in sql and not number or None in other:
        return None
    return Query(what, table, columns, where, number, other=other,
                 function=rng.choice(("MIN", "MAX") if what == "top" else functions),
                 count=rng.choice((2, 3, 5, 8, 12, 20, 40) if what == "having" else
                                  (2, 3, 5) if kinds else (1,)))


def is_good(world, connection, query):
    """Whether the answer says something, each condition matters, and no tie decides, nor whether
    empty groups are counted."""
    def rows_of(**changed):
        return connection.execute(sql_of(world, query._replace(**changed))).fetchall()
    rows, where = rows_of(), query.where
    if not rows or len(rows) > 60 or not all(any(row) and None not in row for row in rows):
        return False
    if any(set(rows) == set(rows_of(where=where[:i] + where[i + 1:])) for i in range(len(where))):
        return False
    if query.what == "top":
        first = rows_of(columns=(query.number,), count=query.count + 1)
        return len(first) > query.count and first[-1] != first[-2]
    if query.what == "count_by":        # no value without a row, which some would count as 0
        return len(rows) == len(rows_of(where=()))
    if query.what == "most":
        counts = sorted(count for _, count in rows_of(what="count_by"))
        return len(counts) > 1 and counts[-1] > counts[-2]
    if query.what == "having":
        return len(rows) < len(rows_of(count=0))
    return query.what != "difference" or rows[0][0] > 0


def draw(worlds, shape, fits, rng):
    """(world, question, SQL, thought) of this shape on one of these worlds. fits: text -> whether
    it may be taken, of the world and the SQL."""
    while True:
        world = rng.choice(worlds)
        query = draw_query(world, rng, shape)
        if query and fits(f"{world} {sql_of(world, query)}"):
            with closing(opened(world)) as connection:
                if is_good(world, connection, query):
                    return world, words_of(world, query, rng), sql_of(world, query), \
                        thought_of(world, query, rng)
