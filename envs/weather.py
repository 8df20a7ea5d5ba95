"""weather: questions about temperature, rain, snow, air, height and distance, answered with tools.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: Count the days on which the average
            temperature in Zurich will be above 12 °C over the next 8 days, starting tomorrow.
            Please provide the answer as a number.
            Give me one action.                                                          (task 39)
    agent:  get_user_current_date with Action Input: {}
    env:    Observation: 2023-04-29
            Give me one action.
    agent:  get_latitude_longitude with Action Input: {"name": "Zurich"}
    env:    Observation: {'results': [{'name': 'Zurich', 'latitude': 47.37, 'longitude': 8.55, [...]
    agent:  get_temp_forecast with Action Input: {"latitude": 47.37, "longitude": 8.55,
            "start_date": "2023-04-29", "end_date": "2023-05-07"}
    env:    Observation: Error: start_date should be later than current_date
    agent:  get_temp_forecast with Action Input: {"latitude": 47.37, "longitude": 8.55,
            "start_date": "2023-04-30", "end_date": "2023-05-07"}
    env:    Observation: {'latitude': 47.4, [...] 'temperature_2m_mean': [10.4, 14.3, 12.4, [...]
    agent:  finish with Action Input: {"answer": 5}                             reward 1, done

After AgentBoard's weather as AgentGym serves it: its tools, replies and errors (parts/tools.py has
what all such environments share). The weather is a function of place and day, made here: it is not
that of the cities named, and no score is comparable to the papers'. Of the original's thresholds of
air quality the gaps (21, 41, ...) are closed. Reward 1 for the right answer, which ends the task.

Nine families of questions about 54 cities, two to four wordings each, with days, places, reasons
and closing words drawn: 20,000 further tasks have 18,800 distinct goals. The 220 tasks of TEST ask
about nine cities that the 1,980 of TRAIN never name. A random player solves 1.1% of TEST, who
always says No 6%, `expert` all, in 4.7 turns on average and 8 at most. Each process needs 20 MB.
"""
import functools
import re
from datetime import date, datetime, timedelta
from hashlib import blake2b
from math import asin, cos, pi, radians, sin, sqrt
from typing import NamedTuple

from envs.parts import tool_prompt, tools, weather_prompt
from envs.parts.tools import Refused
from envs.parts.weather_places import PLACES

NAME, HORIZON, SUCCESS = "weather", 10, 1.0
TRAIN, TEST = tuple(i for i in range(2200) if i % 10 != 9), range(9, 2200, 10)
ORIGINAL = range(343)       # the ids that AgentGym's server has, too; its questions are others
TINY = dict(families="place", horizons=(6,), max_context=768, max_turn_tokens=64)
PROMPT = """You answer a question about weather and places with tools. Each turn, call one tool:
NAME with Action Input: {arguments as JSON}
get_user_current_date: {}; get_user_current_location: {}, the user's city
get_latitude_longitude: {"name": city}; the first result is the city that is meant
get_historical_temp, get_historical_rain, get_historical_snow, get_historical_air_quality_index:
{"latitude", "longitude", "start_date", "end_date"}, days before today as YYYY-MM-DD, at most 30
get_temp_forecast, get_rain_forecast, get_snow_forecast: the same for days after today
get_current_temp, get_current_rain, get_current_snow, get_current_air_quality_index: {"latitude",
"longitude", "current_date"}
get_air_quality_level: {"air_quality_index"}; get_elevation: {"latitude", "longitude"}, in metres
get_distance: {"latitude1", "longitude1", "latitude2", "longitude2"}, in km
check_valid_actions: {}; finish: {"answer": a text, a number or a list}, which ends the task
An example: get_elevation with Action Input: {"latitude": 52.52, "longitude": 13.41}"""
EXAMPLE = 'get_elevation with Action Input: {"latitude": 52.52, "longitude": 13.41}'
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = tools.WIRE
AGENTGYM = tool_prompt.manner(weather_prompt.RULES)
SET_SIZES = dict(agenttraj=160, agenttraj_l=311)


class City(NamedTuple):
    name: str
    latitude: float
    longitude: float
    country: str
    elevation: float        # metres


@functools.cache
def cities():
    """{name in lower case: City}; no two are within 0.1 degrees."""
    found = [line.split() for line in PLACES.split(",")]
    return {" ".join(name).lower(): City(" ".join(name), float(a), float(b), land, float(height))
            for *name, a, b, land, height in found}


# ---- the weather: a function of place and day ---------------------------------------------------

FIELDS = {      # what a kind of tool tells, in the words of Open-Meteo
    "temp": {"temperature_2m_max": "°C", "temperature_2m_min": "°C", "temperature_2m_mean": "°C"},
    "rain": {"rain_sum": "mm"}, "snow": {"snowfall_sum": "cm"},
    "air_quality_index": {"european_aqi_pm2_5": "EAQI"}}
LEVELS = {20: "good", 40: "fair", 60: "moderate", 80: "poor", 100: "very poor"}


def chances(*key):
    """Eight numbers in [0, 1), for the same key the same everywhere."""
    return [byte / 256 for byte in blake2b(repr(key).encode(), digest_size=8).digest()]


@functools.lru_cache(maxsize=10_000)
def elevation_at(latitude, longitude):
    """Metres above the sea: a city's own, elsewhere by chance."""
    at = round(latitude, 1), round(longitude, 1)
    near = [city.elevation for city in cities().values()
            if (round(city.latitude, 1), round(city.longitude, 1)) == at]
    return near[0] if near else float(round(900 * chances("height", *at)[0] ** 2))


@functools.lru_cache(maxsize=10_000)
def weather_at(latitude, longitude, day):
    """{field: value} of a day, within 0.1 degrees the same: a mean that follows latitude, height
    and season, and chance. Below 1 °C what falls is snow."""
    latitude, longitude = round(latitude, 1), round(longitude, 1)
    a, b, c, d, wet, amount, air, haze = chances(latitude, longitude, day.isoformat())
    climate, dirt, *_ = chances("climate", latitude, longitude)
    season = cos(2 * pi * (day.timetuple().tm_yday - 200) / 365) * (1 if latitude > 0 else -1)
    mean = 28 - 0.0066 * latitude ** 2 + 0.2 * abs(latitude) * season + 4 * (a + b - 1) \
        - 0.0045 * elevation_at(latitude, longitude)
    falls = 40 * amount ** 3 + 0.2 if wet < 0.2 + 0.4 * climate else 0.0
    return dict(
        temperature_2m_max=round(mean + 1.5 + 6 * c, 1), temperature_2m_mean=round(mean, 1),
        temperature_2m_min=round(mean - 1.5 - 6 * d, 1),
        rain_sum=round(falls, 1) if mean > 1 else 0.0,
        snowfall_sum=0.0 if mean > 1 else round(falls / 2, 1),
        european_aqi_pm2_5=int(8 + 60 * dirt * (0.5 + air) + 25 * haze ** 4))


def kilometres(latitude1, longitude1, latitude2, longitude2):
    """Along a great circle; the original's ellipsoid differs by up to 0.5%."""
    a, b, turn = radians(latitude1), radians(latitude2), radians(longitude2 - longitude1)
    half = sin((b - a) / 2) ** 2 + cos(a) * cos(b) * sin(turn / 2) ** 2
    return 2 * 6371 * asin(min(1.0, sqrt(half)))


# ---- questions: a sentence, its answer from the tables above, the expert's steps with the tools --

MONTHS = """January February March April May June July August September October November
December""".split()      # strftime's depend on the locale


def spelt(day):
    return f"{MONTHS[day.month - 1]} {day.day}"


class Days(NamedTuple):
    """One day or several: words, and how many days after today are the first and the last."""
    phrase: str
    first: int
    last: int

    def dates(self, today):
        return [today + timedelta(n) for n in range(self.first, self.last + 1)]


QUANTITIES = {      # their names in questions: the tool's kind and field
    "average temperature": ("temp", "temperature_2m_mean"),
    "maximum temperature": ("temp", "temperature_2m_max"),
    "minimum temperature": ("temp", "temperature_2m_min"),
    "rainfall": ("rain", "rain_sum"), "snowfall": ("snow", "snowfall_sum"),
    "air quality index": ("air_quality_index", "european_aqi_pm2_5")}
*TEMPERATURES, RAIN, SNOW, AIR = QUANTITIES


class Task(tools.Draw):
    """The chances of one task: its user, cities, days and words."""

    def __init__(self, task_id, attempt):
        super().__init__(NAME, task_id, attempt)
        pool = [city for i, city in enumerate(cities().values())
                if (i % 6 == 5) == (task_id in TEST)]
        self.today = date(2022, 1, 1) + timedelta(self.rng.randrange(1095))
        self.home, *self.others = self.rng.sample(pool, 5)

    def place(self):
        """(city, its name or "" for the user's own, words for where)"""
        if self.rng.random() < 0.4:
            return self.home, "", self.one("here", "in my city", "where I live", "at my place")
        return self.others[0], self.others[0].name, f"in {self.others[0].name}"

    def day(self, air=False):
        """A day; air: not in the future, as there is no forecast of the air."""
        n, m, ago = self.rng.randint(2, 20), self.rng.randint(3, 12), -self.rng.randint(21, 300)
        that = self.today + timedelta(ago)
        past = self.one(("yesterday", -1), (f"{n} days ago", -n), ("a week ago", -7),
                        ("on this day four weeks ago", -28),
                        (f"on {spelt(that)}, {that.year}", ago))
        future = self.one(("tomorrow", 1), ("the day after tomorrow", 2), (f"in {m} days", m),
                          ("a week from today", 7))
        phrase, n = self.one(past, ("today", 0), past if air else future)
        return Days(phrase, n, n)

    def span(self, air=False):
        """Several days, past or (not of air quality) to come, in one of three wordings."""
        n, ago, long = self.rng.randint(3, 10), -self.rng.randint(15, 300), self.rng.randint(3, 9)
        a, b = self.today + timedelta(ago), self.today + timedelta(ago + long)
        return self.one(
            Days(f"over the last {n} days, not counting today,", -n, -1),
            Days(f"from {spelt(a)}{f', {a.year},' * (a.year < b.year)} to {spelt(b)}, {b.year},",
                 ago, ago + long),
            *[Days(f"over the next {n} days, starting tomorrow,", 1, n)] * (not air))

    def verb(self, days, past, present, future):
        return future if days.first > 0 else present if days.first == 0 else past

    def rows(self, city, days):
        """[{field: value}] of the days, from the table."""
        return [weather_at(city.latitude, city.longitude, day) for day in days.dates(self.today)]


# Steps: generators of calls (thought, tool, arguments) that are sent the results. say: chooses one.

def locate(say, name):
    """-> the coordinates of a place; "" is the user's."""
    if not name:
        name = yield say("The question is about the user's own city. Which one is it?",
                         "I do not know yet where the user is."), "get_user_current_location", {}
    found = yield say(f"Now I need the coordinates of {name}.", f"Where exactly is {name}?"), \
        "get_latitude_longitude", {"name": name}
    return {key: found["results"][0][key] for key in ("latitude", "longitude")}


def orient(say, *names):
    """-> today, and the coordinates of each place."""
    today = date.fromisoformat((yield say(
        "I should first find out which day it is.", "To place that in time I need the date."),
        "get_user_current_date", {}))
    found = []
    for name in names:
        found.append((yield from locate(say, name)))
    return today, found


def look(say, today, at, days, quantity):
    """-> {"time": [..], field: [..]} of a day or several."""
    kind, (first, last) = QUANTITIES[quantity][0], (today + timedelta(n) for n in days[1:])
    tool = f"get_historical_{kind}" if last < today else f"get_{kind}_forecast"
    when = {"start_date": first.isoformat(), "end_date": last.isoformat()}
    if first == last == today:
        tool, when = f"get_current_{kind}", {"current_date": today.isoformat()}
    what = f"{quantity} " + (f"on {first}" if first == last else f"from {first} to {last}")
    reply = yield say(f"Today is {today}, so I ask for the {what}.", f"I look up the {what}.",
                      f"Next comes the {what}."), tool, at | when
    return reply["daily"]


# Families of questions: functions of a Task that word its goal -> (answer, steps).

def top(t, pairs):
    """The name of the largest value among (value, name) pairs, or the smallest; None: a tie."""
    best = max(pairs)[0] if t.most else min(pairs)[0]
    return None if [value for value, _ in pairs].count(best) > 1 else dict(pairs)[best]


def ranked(t, daily):
    """The day of the largest value of a reply, or of the smallest."""
    order = sorted(zip(daily[t.field], daily["time"]))
    return order[-1 if t.most else 0][1][:10]       # without the hour, 12:00, of the air


ONE_PLACE = {   # family: its quantities, ending, sentences, answer, the expert's conclusion
    "reading": ((*QUANTITIES,), "number", (
        "What {was} the {what} {where} {be}{when}?", "I'd like to know the {what} {where} {when}.",
        "Can you tell me what the {what} {where} {was} {be}{when}?",
        "Please look up the {what} {where} {when}."),
        lambda t, rows: rows[0][t.field] or None, lambda t, daily: daily[t.field][0]),
    "which day": ((*TEMPERATURES, RAIN, AIR), "date", (
        "On which day {when} {was} the {what} {where} {be}{most}?",
        "Looking at the {what} {where} {when} on which day {was} it {be}{most}?",
        "Which day {when} {was} {be}the one with the {most} {what} {where}?"),
        lambda t, rows: top(t, [(row[t.field], str(day)) for row, day in zip(rows, t.dates)]),
        ranked),
    "total": ((RAIN, SNOW), "number", (
        "How much {what} {was} there {be}{where} {when} in total, in {unit}?",
        "I'd like the total {what} {where} {when} in {unit}.",
        "Add up the daily {what} {where} {when} in {unit}: how much is it?"),
        lambda t, rows: round(sum(row[t.field] for row in rows), 1) or None,
        lambda t, daily: round(sum(daily[t.field]), 1)),
    "count": ((*TEMPERATURES, RAIN, AIR), "number", (
        "On how many days {when} {was} the {what} {where} {be}above {level} {unit}?",
        "Count the days on which the {what} {where} {was} {be}above {level} {unit} {when}."),
        lambda t, rows: len([1 for row in rows if row[t.field] > t.level]),
        lambda t, daily: sum(value > t.level for value in daily[t.field])),
    "average": (TEMPERATURES, "number", (
        "What {was} the mean of the daily {what} {where} {be}{when} to two decimals?",
        "Take the {what} of each day {when} {where}. What is their mean, to two decimals?"),
        lambda t, rows: round(sum(row[t.field] for row in rows) / len(rows), 2),
        lambda t, daily: round(sum(daily[t.field]) / len(daily["time"]), 2)),
    "air quality": ((AIR,), "Answer with the level, for example 'good' or 'very poor'.", (
        "What {was} the air quality level {where} {when}?",
        "Please tell me how good the air {where} {was} {when}.",
        "How good {was} the air {where} {when}?"),
        lambda t, rows: next((LEVELS[most] for most in LEVELS if rows[0][t.field] <= most),
                             "extremely poor"), lambda t, daily: daily[t.field][0])}


def one_place(kind, t):
    """A question about one place, of a family of ONE_PLACE."""
    quantities, ending, sentences, answer, conclude = ONE_PLACE[kind]
    (city, name, where), what = t.place(), t.keep(*quantities)
    one_day, t.field = kind in ("reading", "air quality"), QUANTITIES[what][1]
    days = (t.day if one_day else t.span)(what == AIR)
    rows, t.dates, t.most = t.rows(city, days), days.dates(t.today), t.one(True, False)
    t.level = 0 if what == RAIN else t.one(-1, 0, 1) + round(
        sum(row[t.field] for row in rows) / len(rows))
    words = dict(what=what, where=where, when=days.phrase, level=t.level,
                 most="highest" if t.most else "lowest",
                 unit="" if what == AIR else FIELDS[QUANTITIES[what][0]][t.field],
                 was=t.verb(days, "was", "is", "will"), be=t.verb(days, "", "", "be "))
    t.ask(ending, *[re.sub("[ ,]+([?.])", r"\1", " ".join(sentence.format(**words).split()))
                    for sentence in sentences])

    def steps(say):
        today, [at] = yield from orient(say, name)
        found = conclude(t, (yield from look(say, today, at, days, what)))
        if kind != "air quality":
            return found
        return (yield say(f"The index is {found}. Which level is that?",
                          f"I turn {found} into a level."),
                "get_air_quality_level", {"air_quality_index": found})
    return answer(t, rows), steps


def change(t):
    """Whether a day is warmer, or wetter, than another."""
    what, (city, name, where) = t.keep(*TEMPERATURES, RAIN, SNOW), t.place()
    days, others, more, field = t.day(), t.day(), t.one(True, False), QUANTITIES[what][1]
    a, b = (t.rows(city, each)[0][field] for each in (days, others))
    was, high = t.verb(days, "was", "is", "will"), "higher" if more else "lower"
    be, then = t.verb(days, "", "", "be "), t.verb(others, "was", "is", "will be")
    t.ask("yes", f"{was.capitalize()} the {what} {where} {be}{high} {days.phrase} than "
                 f"{others.phrase}?", f"Can you check whether the {what} {where} {was} {be}{high} "
                 f"{days.phrase} than it {then} {others.phrase}?")

    def steps(say):
        today, [at] = yield from orient(say, name)
        [x] = (yield from look(say, today, at, days, what))[field]
        [y] = (yield from look(say, today, at, others, what))[field]
        return "Yes" if (x > y if more else x < y) else "No"
    return None if a == b else "Yes" if (a - b > 0) == more else "No", steps


def which_city(t):
    """Which of two or three cities has more of a quantity, or less."""
    what, rivals, t.most = t.keep(*QUANTITIES), t.others[:t.one(2, 2, 3)], t.one(True, False)
    days, field, (*some, last) = t.day(what == AIR), QUANTITIES[what][1], [c.name for c in rivals]
    names, has = f"{', '.join(some)} or {last}", t.verb(days, "had", "has", "will have")
    most = ("highest" if t.most else "lowest") if some[1:] else "higher" if t.most else "lower"
    t.ask("name", f"Which city {has} the {most} {what} {days.phrase}, {names}?",
          f"{names}: which of them {has} the {most} {what} {days.phrase}?",
          f"I'm comparing cities. Which one {has} the {most} {what} {days.phrase}: {names}?")

    def steps(say):
        (today, places), found = (yield from orient(say, *some, last)), []
        for at, name in zip(places, (*some, last)):
            found.append(((yield from look(say, today, at, days, what))[field][0], name))
        return sorted(found)[-1 if t.most else 0][1]
    return top(t, [(t.rows(city, days)[0][field], city.name) for city in rivals]), steps


def place(t):
    """How high a place lies, or how far it is from another."""
    (city, name, _), other, how_high = t.place(), t.others[1], t.one(True, False)
    it = name or t.one("my city", "my current city")
    if how_high:
        t.ask("number", f"How many metres above sea level is {it}?",
              f"How high does {it} lie, in metres above sea level?",
              f"I'd like to know the elevation of {it} in metres.")
    else:
        t.ask("Round it to whole kilometres.", f"How far is it from {it} to {other.name}?",
              f"What is the distance between {it} and {other.name}?",
              f"I'm flying from {it} to {other.name}. How many kilometres is that?")

    def steps(say):
        at = yield from locate(say, name)
        if how_high:
            reply = yield say("How high is that?", "Now the elevation."), "get_elevation", at
            return reply["elevation"][0]
        to = yield from locate(say, other.name)
        return round((yield say("How far are they apart?", "Now the distance."), "get_distance", {
            f"{key}{i}": value[key] for i, value in ((1, at), (2, to)) for key in at}))
    return city.elevation if how_high else round(kilometres(*city[1:3], *other[1:3])), steps


OTHERS = {"change": change, "which city": which_city, "place": place}
FAMILIES = (*ONE_PLACE, *OTHERS)


def family(task_id):
    return FAMILIES[task_id % len(FAMILIES)]


def task(task_id):
    kind = family(task_id)
    return tools.task_of(Task, OTHERS.get(kind) or functools.partial(one_place, kind), task_id)


def fingerprint(task_id):
    t = task(task_id)
    return f"{t.goal} {t.today} {t.home.name}"


# ---- the tools ----------------------------------------------------------------------------------

LONG = "Error: Sorry, at present, we support a maximum time span of 30 days between start_date " \
    "and end_date in a single query. Your input exceeds this range. You can split your current " \
    "query into multiple sub-queries that meet our criteria."


def day_of(text):
    """The date that a text writes. Refused: none, in Python's words, as from the original."""
    try:
        return datetime.strptime(text[:40], "%Y-%m-%d").date()
    except ValueError as problem:
        raise Refused(f"ERROR | ValueError({problem})") from None


class Env(tools.Env):
    tools = tuple("""get_user_current_date get_user_current_location get_historical_temp
        get_historical_rain get_historical_snow get_snow_forecast get_current_snow get_current_temp
        get_latitude_longitude get_elevation get_temp_forecast get_rain_forecast get_current_rain
        get_distance get_historical_air_quality_index get_current_air_quality_index
        get_air_quality_level""".split())

    def get_user_current_date(self):
        return self.task.today.isoformat()

    def get_user_current_location(self):
        return self.task.home.name

    def get_latitude_longitude(self, name: str):
        """The city and two namesakes that are nobody's."""
        city = cities().get(tools.plain(name))
        if city is None:
            raise Refused("ERROR | KeyError('results')")
        found = [city[:4]]
        for i in range(2):
            a, b, *_ = chances("namesake", city.name, i)
            found.append((city.name, round(25 + 20 * a, 5), round(-120 + 45 * b, 5), "US"))
        return {"results": [dict(zip(("name", "latitude", "longitude", "country_code"), place))
                            for place in found]}

    def get_elevation(self, latitude: float, longitude: float):
        self.check_place(latitude, longitude)
        return {"elevation": [elevation_at(latitude, longitude)]}

    def get_distance(self, latitude1: float, longitude1: float, latitude2: float,
                     longitude2: float):
        self.check_place(latitude1, longitude1)
        self.check_place(latitude2, longitude2)
        return round(kilometres(latitude1, longitude1, latitude2, longitude2), 6)

    def get_air_quality_level(self, air_quality_index: float):
        return next((word for most, word in LEVELS.items() if air_quality_index <= most),
                    "extremely poor")

    @staticmethod
    def check_place(latitude, longitude):
        """Refused: a place that there is not, in the words of Open-Meteo."""
        for name, value, most in ("Latitude", latitude, 90), ("Longitude", longitude, 180):
            if abs(value) > most:
                raise Refused(f'{{"error":true,"reason":"{name} must be in range of -{most} to '
                              f'{most}°. Given: {value}."}}')

    def series(self, kind, latitude, longitude, start_date, end_date, side=0):
        """The daily data of a kind; side: -1 before today only, 1 after it only, 0 at any time."""
        days = [day_of(start_date), day_of(end_date)]
        for key, day in zip(("start_date", "end_date"), days):
            if side and (day - self.task.today).days * side <= 0:
                raise Refused(f"Error: {key} should be {'later' if side > 0 else 'earlier'} than "
                              "current_date")
        if (days[1] - days[0]).days > 30:
            raise Refused(LONG)
        self.check_place(latitude, longitude)
        if days[1] < days[0]:
            raise Refused('{"error":true,"reason":"End-date must be larger or equals than '
                          'start-date."}')
        days = [days[0] + timedelta(n) for n in range((days[1] - days[0]).days + 1)]
        rows = [weather_at(latitude, longitude, day) for day in days]
        hour = "T12:00" if kind == "air_quality_index" else ""
        return {"latitude": round(latitude, 1), "longitude": round(longitude, 1),
                "daily_units": {"time": "iso8601", **FIELDS[kind]},
                "daily": {"time": [day.isoformat() + hour for day in days],
                          **{field: [row[field] for row in rows] for field in FIELDS[kind]}}}

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        city = rng.choice([self.task.home, *self.task.others])
        if key == "answer":
            return rng.choice(["Yes", "No", city.name, str(self.task.today), rng.randint(0, 40)])
        if key == "name":
            return city.name
        if "date" in key:
            return (self.task.today + timedelta(rng.randint(-9, 9))).isoformat()
        return city.latitude if "lat" in key else city.longitude if "long" in key else 35


def add_tools(kind):
    """get_historical_<kind>, get_current_<kind> and, but for the air, get_<kind>_forecast."""
    def past(self, latitude: float, longitude: float, start_date: str, end_date: str):
        return self.series(kind, latitude, longitude, start_date, end_date, -1)

    def now(self, latitude: float, longitude: float, current_date: str):
        return self.series(kind, latitude, longitude, current_date, current_date)

    def future(self, latitude: float, longitude: float, start_date: str, end_date: str):
        return self.series(kind, latitude, longitude, start_date, end_date, 1)
    setattr(Env, f"get_historical_{kind}", past)
    setattr(Env, f"get_current_{kind}", now)
    setattr(Env, f"get_{kind}_forecast", future)


for kind in FIELDS:
    add_tools(kind)
