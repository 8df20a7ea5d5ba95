"""Open Map, http://openstreetmap.org: sixty places in five towns, and the ways between them.

Pages; nothing can be changed:
    GET  /                              the towns, the kinds of places
    GET  /search?q=&page=               each word is in name, kind, street, town, state or zip
    GET  /place/3                       address, coordinates, opening hours, phone
    GET  /directions?from=&to=&mode=    from, to: a name; mode: car, bike, foot
    GET  /nearby?of=NAME&kind=Cafe      places of a kind, the nearest (on foot) first

Tables. x and y are metres.
    place(id, name, kind, street, town, state, zip, phone, hours, x, y)
    spot(id, name, kind, street, town, state, zip, phone, hours, x, y, lat, lon)    a view
    way(start, goal, mode, metres, minutes)     a view: ids of places; every pair in every mode
What is asked about: an address, coordinates, hours; distance and time between two places; the
nearest of a kind; what can be reached within a time.
"""
from envs.web import words
from envs.web.pages import (Field, Filter, Form, Problem, bullets, heading, html, link, listing,
                            select, table, url)

NAME, COLOUR, ABOUT = "Open Map", "#2e6b46", "a map"
MODES = {"car": "Car", "bike": "Bicycle", "foot": "Foot"}
KINDS = [kind for kind, *_ in words.PLACES]
SEARCH = Form("Search", Field("Search", "q"), inline=True)
DIRECTIONS = Form("Go", Field("From", "from"), Field("To", "to"),
                  select("By", "mode", list(MODES.items())), inline=True)
NEARBY = Form("Find", select("Find the nearest", "kind", KINDS), Field("to", "of"), inline=True)
WORDS = "name || ' ' || kind || ' ' || street || ' ' || town || ' ' || state || ' ' || zip"
# Streets run east-west and north-south. detour: percent of that way; speed: metres a minute.
SCHEMA = """
CREATE TABLE place(id INTEGER PRIMARY KEY, name TEXT, kind TEXT, street TEXT, town TEXT,
    state TEXT, zip TEXT, phone TEXT, hours TEXT, x INT, y INT);
CREATE TABLE mode(mode TEXT, detour INT, speed INT);
INSERT INTO mode VALUES ('car', 120, 700), ('bike', 105, 250), ('foot', 100, 80);
CREATE VIEW spot AS SELECT *, round(43.9 + y / 111195.0, 5) AS lat,
    round(-72.4 + x / 80100.0, 5) AS lon FROM place;
CREATE VIEW way AS SELECT a.id AS start, b.id AS goal, mode,
    (abs(a.x - b.x) + abs(a.y - b.y)) * detour / 100 AS metres,
    1 + (abs(a.x - b.x) + abs(a.y - b.y)) * detour / 100 / speed AS minutes
    FROM place AS a, place AS b, mode;
"""
VARY = ("UPDATE place SET x = x + LUCK % 1400 - 700", "UPDATE place SET y = y + LUCK % 1400 - 700")


def fill(db, rng):
    rows = [(kind, name, town, hours) for kind, hours, names in words.PLACES
            for name, town in zip(names.split(", "), words.TOWNS)]
    rng.shuffle(rows)
    for key, (kind, name, (town, state, code, x, y), hours) in enumerate(rows, 1):
        words.add(db, "place", key, name, kind, words.address(rng), town, state, code,
                  f"555-02{key + 20}", hours, x + rng.randint(-1800, 1800),
                  y + rng.randint(-1800, 1800))


# ---- pages --------------------------------------------------------------------------------------

def bar(ask):
    return [SEARCH.show(ask, "/search", ask.query, "get"), link("/directions", "Directions"),
            link("/nearby", "Nearby")]


def home(ask):
    return NAME, [heading("Towns"), bullets(link(url("/search", q=town), f"{town}, {state}")
                                            for town, state, *_ in words.TOWNS),
                  heading("Places"),
                  bullets([link(url("/search", q=kind), kind) for kind in KINDS], "row")]


def search(ask):
    return "Search Results", listing(
        ask, "SELECT * FROM place WHERE FILTERS ORDER BY name", place_table,
        Filter("Words", "q", WORDS))


def place_table(found):
    return table(["Place", "Kind", "Address"], [
        [link(f"/place/{x['id']}", x["name"]), x["kind"], address(x)] for x in found],
        "No results found.")


def address(x):
    return f"{x['street']}, {x['town']}, {x['state']} {x['zip']}"


def place(ask, key):
    x = ask.row("SELECT * FROM spot WHERE id = ?", key)
    return x["name"], [
        table(["Tag", "Value"], [["Kind", x["kind"]], ["Address", address(x)],
                                 ["Coordinates", f"{x['lat']:.5f}, {x['lon']:.5f}"],
                                 ["Opening hours", x["hours"]], ["Phone", x["phone"]]]),
        html("<p>{}</p><p>{}</p>",
             link(url("/directions", **{"from": x["name"]}), "Directions from here"),
             link(url("/directions", to=x["name"]), "Directions to here"))]


def named(ask, text):
    """The place of this name, or the only one that the words fit. Problem: there is none."""
    found = ask.rows("SELECT * FROM place WHERE lower(name) = lower(?)", text.strip())
    if not found:
        parts = text.lower().split()[:8]
        found = ask.rows(" AND ".join(["SELECT * FROM place WHERE 1",
                                       *[f"instr(lower({WORDS}), ?)"] * len(parts)]), *parts)
    if len(found) != 1:
        names = ", ".join(x["name"] for x in found[:9]) or "none"
        raise Problem(404, f"Which place is '{text[:100]}'? These fit: {names}.")
    return found[0]


def directions(ask):
    start, goal = ask.query.get("from", ""), ask.query.get("to", "")
    mode, asked = ask.query.get("mode", "car"), DIRECTIONS.show(ask, "/directions", ask.query,
                                                                "get")
    if not start or not goal or mode not in MODES:
        return "Directions", [asked, html("<p>Enter two places.</p>")]
    a, b = named(ask, start), named(ask, goal)
    way = ask.row("SELECT * FROM way WHERE start = ? AND goal = ? AND mode = ?", a["id"],
                  b["id"], mode)
    east, north = b["x"] - a["x"], b["y"] - a["y"]
    detour = way["metres"] / max(abs(east) + abs(north), 1)
    return "Directions", [
        asked, html("<p>{} to {} by {}</p><p>Distance: <strong>{}</strong>. Time: <strong>{}"
                    "</strong></p>", link(f"/place/{a['id']}", a["name"]),
                    link(f"/place/{b['id']}", b["name"]), MODES[mode], kilometres(way["metres"]),
                    clock(way["minutes"])),
        html("<ol><li>{}</li><li>{}</li><li>{}</li></ol>",
             f"Start at {address(a)}, go {'east' if east > 0 else 'west'} for "
             f"{kilometres(abs(east) * detour)}",
             f"Turn {'north' if north > 0 else 'south'}, go on for "
             f"{kilometres(abs(north) * detour)}", f"Arrive at {address(b)}")]


def kilometres(metres):
    return f"{metres / 1000:.1f}km" if metres >= 1000 else f"{metres:.0f}m"


def clock(minutes):
    """Hours and minutes: 75 -> "1:15"."""
    return f"{minutes // 60}:{minutes % 60:02}"


def nearby(ask):
    name, kind = ask.query.get("of", ""), ask.query.get("kind", KINDS[0])
    asked = NEARBY.show(ask, "/nearby", ask.query, "get")
    if not name:
        return "Nearby", [asked, html("<p>Enter a place.</p>")]
    here = named(ask, name)
    found = ask.rows("SELECT place.*, metres, minutes FROM place JOIN way ON goal = id WHERE "
                     "start = ? AND goal != start AND kind = ? AND mode = 'foot' ORDER BY "
                     "metres, id LIMIT 10", here["id"], kind)
    return "Nearby", [asked, table(["Place", "Address", "Distance", "Time on foot"], [
        [link(f"/place/{x['id']}", x["name"]), address(x), kilometres(x["metres"]),
         clock(x["minutes"])] for x in found])]


ROUTES = [("GET", "/", home), ("GET", "/search", search), ("GET", "/place/(\\d+)", place),
          ("GET", "/directions", directions), ("GET", "/nearby", nearby)]
