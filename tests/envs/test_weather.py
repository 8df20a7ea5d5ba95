"""pytest tests/envs/test_weather.py: the tools' replies in the shapes that AgentGym's client shows,
the rules of dates and places in the original's words, the climate they tell of, distances, and
that goals ask in words for their answers."""
import re
from datetime import date, datetime, timedelta
from math import pi
from statistics import fmean

import pytest
from players import ask, play

from chat import make_tokenizer
from envs import weather, weather_small
from envs.parts import tools
from envs.weather import Env, cities, kilometres, weather_at

OSLO = {"latitude": 59.91, "longitude": 10.75}


@pytest.fixture
def env():
    env = Env()
    env.reset(weather.TEST[0])
    env.task.today = date(2023, 6, 15)
    return env


# ---- the replies ----

def test_get_latitude_longitude_replies_as_in_the_clients_example(env):
    [first, second, third] = ask(env, "get_latitude_longitude", name="oslo ")["results"]
    assert first == {"name": "Oslo", "latitude": 59.91, "longitude": 10.75, "country_code": "NO"}
    assert [*first] == [*second] == [*third] and second["latitude"] != first["latitude"]
    assert ask(env, "get_latitude_longitude", name="Atlantis") == "ERROR | KeyError('results')"


@pytest.mark.parametrize("kind, fields", [
    ("temp", {f"temperature_2m_{how}": "°C" for how in ("max", "min", "mean")}),
    ("rain", {"rain_sum": "mm"}), ("snow", {"snowfall_sum": "cm"}),
    ("air_quality_index", {"european_aqi_pm2_5": "EAQI"})])
def test_series_reply_as_in_the_clients_example(env, kind, fields):
    hour = "T12:00" if kind == "air_quality_index" else ""
    for tool, first, last in ((f"get_historical_{kind}", -3, -1), (f"get_current_{kind}", 0, 0),
                              (f"get_{kind}_forecast", 2, 2))[:2 if hour else 3]:
        days = [env.task.today + timedelta(n) for n in range(first, last + 1)]
        when = {"current_date": str(days[0])} if "current" in tool else \
            {"start_date": str(days[0]), "end_date": str(days[-1])}
        assert str(ask(env, tool, **OSLO, **when)) == str({        # str: in this order
            "latitude": 59.9, "longitude": 10.8, "daily_units": {"time": "iso8601", **fields},
            "daily": {"time": [f"{day}{hour}" for day in days], **{
                key: [weather_at(59.91, 10.75, day)[key] for day in days] for key in fields}}})


def test_date_location_elevation_and_distance(env):
    assert ask(env, "get_user_current_date") == "2023-06-15"
    assert ask(env, "get_user_current_location") == env.task.home.name
    assert ask(env, "get_elevation", **OSLO) == {"elevation": [26.0]}
    assert ask(env, "get_distance", latitude1=0, longitude1=0, latitude2=0, longitude2=180) == \
        pytest.approx(6371 * pi, rel=1e-4)
    for one, two, distance in (("london", "paris", 344), ("new york", "seattle", 3870),
                               ("tokyo", "sydney", 7820)):          # km, as atlases have it
        (_, lat1, lon1, *_), (_, lat2, lon2, *_) = cities()[one], cities()[two]
        assert ask(env, "get_distance", latitude1=lat1, longitude1=lon1, latitude2=lat2,
                   longitude2=lon2) == pytest.approx(distance, rel=0.01)
    places = {(round(city.latitude, 1), round(city.longitude, 1)) for city in cities().values()}
    assert len(places) == len(cities()) == 54       # no two share their weather


@pytest.mark.parametrize("index, level", [
    (20, "good"), (20.5, "fair"), ("40", "fair"), (60, "moderate"), (80, "poor"),
    (100, "very poor"), (101, "extremely poor")])
def test_get_air_quality_level_has_no_gaps(env, index, level):
    assert ask(env, "get_air_quality_level", air_quality_index=index) == level


# ---- what is refused ----

@pytest.mark.parametrize("tool, start, end, refusal", [
    ("get_historical_temp", "2023-06-15", "2023-06-15",
     "Error: start_date should be earlier than current_date"),
    ("get_historical_rain", "2023-06-14", "2023-06-15",
     "Error: end_date should be earlier than current_date"),
    ("get_temp_forecast", "2023-06-15", "2023-06-16",
     "Error: start_date should be later than current_date"),
    ("get_historical_temp", "2023-05-01", "2023-06-01", weather.LONG),
    ("get_historical_temp", "2023-06-03", "2023-06-01", '{"error":true,"reason":"End-date must be '
     'larger or equals than start-date."}'),
    ("get_historical_temp", "June 1", "2023-06-01", "ERROR | ValueError(time data 'June 1' does "
     "not match format '%Y-%m-%d')"),
])
def test_dates_are_refused_in_the_originals_words(env, tool, start, end, refusal):
    assert ask(env, tool, **OSLO, start_date=start, end_date=end) == refusal


def test_thirty_days_are_the_longest_span_and_the_calendar_has_ends(env):
    reply = ask(env, "get_historical_temp", **OSLO, start_date="2023-05-01", end_date="2023-05-31")
    assert type(reply) is dict and len(reply["daily"]["time"]) == 31
    for first, last in (("0001-01-01", "0001-01-02"), ("9999-12-30", "9999-12-31")):
        for tool in ("get_historical_temp", "get_temp_forecast"):
            ask(env, tool, **OSLO, start_date=first, end_date=last)


@pytest.mark.parametrize("tool, where", [
    ("get_elevation", dict(latitude=90.1, longitude=0)),
    ("get_current_temp", dict(latitude=-91, longitude=0, current_date="2023-06-15")),
    ("get_distance", dict(latitude1=0, longitude1=-181, latitude2=0, longitude2=0)),
    ("get_distance", dict(latitude1=0, longitude1=0, latitude2=0, longitude2=180.5))])
def test_places_off_the_globe_are_refused(env, tool, where):
    assert re.fullmatch(r'{"error":true,"reason":"L(at|ong)itude must be in range of .*"}',
                        ask(env, tool, **where))


# ---- the climate ----

def test_weather_at_is_a_climate():
    """Snow where it is cold and rain where it is not; seasons opposite in the south; colder on
    mountains."""
    def mean(name, month):
        city, found = cities()[name], []
        for day in range(1, 29):
            row = weather_at(city.latitude, city.longitude, date(2023, month, day))
            found.append(row["temperature_2m_mean"])
            assert row["temperature_2m_min"] < found[-1] < row["temperature_2m_max"]
            kind = "rain_sum" if found[-1] <= 1 else "snowfall_sum"
            assert row[kind] == 0 <= row["european_aqi_pm2_5"] < 150
        return fmean(found)
    assert mean("oslo", 7) > mean("oslo", 1) + 15
    assert mean("sydney", 1) > mean("sydney", 7) + 8
    assert mean("lima", 7) > mean("la paz", 7) + 10


# ---- the questions ----

FIELDS = {"average temperature": "temperature_2m_mean", "maximum temperature": "temperature_2m_max",
          "minimum temperature": "temperature_2m_min", "rainfall": "rain_sum",
          "snowfall": "snowfall_sum", "air": "european_aqi_pm2_5"}
NEAR = {"yesterday": -1, "today": 0, "tomorrow": 1, "the day after tomorrow": 2, "a week ago": -7,
        "a week from today": 7, "on this day four weeks ago": -28}


def days_meant(goal, today):
    """The days that a goal names, in its order, worked out from its words."""
    def date_of(text):
        return datetime.strptime(text, "%B %d, %Y").date()
    if span := re.search(r"over the (last|next) (\d+) days, (not counting|starting to)", goal):
        n = int(span[2])
        return [today + timedelta(k) for k in (range(-n, 0) if span[1] == "last" else
                                               range(1, n + 1))]
    if span := re.search(r"from (\w+ \d+)(?:, (\d+),)? to (\w+ \d+), (\d+)", goal):
        first, last = date_of(f"{span[1]}, {span[2] or span[4]}"), date_of(f"{span[3]}, {span[4]}")
        return [first + timedelta(k) for k in range((last - first).days + 1)]
    found = re.finditer(r"\bin (?P<hence>\d+) days|(?P<ago>\d+) days ago|\bon (?P<date>[A-Z]\w+ "
                        rf"\d+, \d{{4}})|{'|'.join(NEAR)}", goal)
    return [date_of(each["date"]) if each["date"] else today + timedelta(
        int(each["hence"] or 0) - int(each["ago"] or 0) + NEAR.get(each[0], 0)) for each in found]


def work_out(kind, goal, today, home):
    """The answer that the words of a goal ask for, from the table of the weather."""
    places = sorted((city for city in cities().values() if city.name in goal),
                    key=lambda city: goal.find(city.name)) or [home]
    if kind == "place" and "sea" not in goal and "elevation" not in goal:
        a, b = (places if len(places) > 1 else [home, *places])
        return round(kilometres(*a[1:3], *b[1:3]))
    if kind == "place":
        return places[0].elevation
    days, field = days_meant(goal, today), next(FIELDS[what] for what in FIELDS if what in goal)
    values = [weather_at(city.latitude, city.longitude, day)[field]
              for city in places for day in days]
    sign = -1 if re.search("low(er|est)", goal) else 1
    best = max(range(len(values)), key=lambda i: sign * values[i])
    if kind == "air quality":
        return next((word for most, word in weather.LEVELS.items() if values[0] <= most), "?")
    return {"reading": values[0], "total": sum(values), "average": sum(values) / len(values),
            "count": sum(x > float((re.findall(r"above (-?\d+)", goal) or "0")[0]) for x in values),
            "change": "Yes" if sign * (values[0] - values[-1]) > 0 else "No",
            "which day": str(days[best % len(days)]), "which city": places[best % len(places)].name
            }[kind]


def test_goals_ask_in_words_for_what_is_answered():
    """In the tense of their days, too, and often about the user's own city."""
    own, tenses = 0, {-1: ("was", "had"), 0: ("is", "has"), 1: ("will",)}
    for task_id in [*weather.TRAIN, *weather.TEST][::7]:
        t, kind = weather.task(task_id), weather.family(task_id)
        assert tools.same(work_out(kind, t.goal, t.today, t.home), t.answer), t.goal
        assert t.answer != 0 or kind == "count", t.goal         # a guess that is too easy
        own += not any(name in t.goal.lower() for name in cities())
        if " mm" in t.goal or " cm" in t.goal:
            assert (" cm" in t.goal) == ("snowfall" in t.goal)
        verb = re.search(r"\b(was|had|is|has|will)\b",
                         re.sub("What is their|how much is it", "", t.goal))
        if verb and kind != "place":
            days = (days_meant(t.goal, t.today)[0] - t.today).days
            assert verb[1] in tenses[(days > 0) - (days < 0)], t.goal
    assert 0.2 < own / len(range(0, 2200, 7)) < 0.4


# ---- weather_small ------------------------------------------------------------------------------

def test_small_replies_lead_to_the_height_of_the_city_meant():
    env = weather_small.Env()
    for task_id in [*weather_small.TRAIN[:100], *weather_small.TEST]:
        goal = env.reset(task_id).split("goal: ")[1].split("\n")[0]
        name = env.get_user_current_location() if weather_small.family(task_id) == "here" else \
            re.fullmatch(r"How high does (\w+) lie\?", goal)[1]
        place, = ask(env, "get_latitude_longitude", name=name)["results"]
        assert place.pop("name") == name and [*place] == ["latitude", "longitude"]
        height, = ask(env, "get_elevation", **place)["elevation"]
        assert all(10 <= number < 100 for number in (*place.values(), height))
        assert ask(env, "get_elevation", latitude=0, longitude=0) == {"elevation": [0]}
        actions = [action for action, *_ in play(env, task_id)]
        assert actions[-1] == f'finish with Action Input: {{"answer": {height}}}'
        assert len(actions) == 3 + (weather_small.family(task_id) == "here")


def test_small_names_and_numbers_are_one_token_wherever_they_are_copied():
    env = weather_small.Env()
    texts = [text for task_id in range(400) for action, observation, *_ in play(env, task_id)
             for text in (action, observation)]
    tokenizer = make_tokenizer(texts, 600, weather_small.ONE_WORD)
    for task_id in weather_small.TEST:
        seen = tokenizer.tokenize(env.reset(task_id))
        for action, observation, *_ in play(env, task_id):
            copied = re.findall(r"\d+|[A-Z][a-z]+", action.partition("Input:")[2])
            assert {*copied} <= {*seen} & {*tokenizer.tokenize(action)}
            seen += tokenizer.tokenize(observation)
