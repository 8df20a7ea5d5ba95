"""weather_small: tools of weather.py in a world of twelve cities, for tiny models.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: How high does the city I am in lie?
            Give me one action.                                                      (task 4001)
    agent:  get_user_current_location with Action Input: {}
    env:    Observation: Madrid
            Give me one action.
    agent:  get_latitude_longitude with Action Input: {"name": "Madrid"}
    env:    Observation: {'results': [{'name': 'Madrid', 'latitude': 42, 'longitude': 13}]}
            Give me one action.
    agent:  get_elevation with Action Input: {"latitude": 42, "longitude": 13}
    env:    Observation: {'elevation': [40]}
            Give me one action.
    agent:  finish with Action Input: {"answer": 40}                           (reward 1, done)

Three of weather's tools, without dates. Coordinates and heights are whole numbers from 10 to 99,
one token each to a tiny policy, and drawn anew for each task, so that nothing can be learned by
heart but how to use the tools: TRAIN and TEST share the cities' names, not the worlds.

In 6 turns a random player solves 7% of TEST, `expert` all, in 3 or 4.
"""
import random
from functools import partial
from types import SimpleNamespace

from envs import weather
from envs.parts.tools import Refused, plain

NAME, HORIZON, SUCCESS = "weather_small", 6, 1.0
TRAIN, TEST = range(0, 4000), range(4000, 4300)
FAMILIES = ("named", "here")
ONE_WORD = (r"Now new trial.*\n.*goal:|\nGive me one action\.|Observation: (\{'\w+': [\[{]*)?|"
            r"\w+ with Action Input: \{(\"\w+\": )?|'?, ['\"]\w+['\"]: |'\w+': | (?=[A-Z0-9])|"
            r"[A-Z]\p{L}+|\d+")
TINY = dict(horizons=(5,), max_context=320, steps=40, kl_coef=0.01,
            clone=dict(goal="other", skill=0.9, steps=2400, lr=6e-3, heads=2))
PROMPT = """You answer a question about places with tools. Each turn, call one tool:
NAME with Action Input: {arguments as JSON}
get_user_current_location: {}, the user's city; get_latitude_longitude: {"name": city}
get_elevation: {"latitude", "longitude"}, in metres; check_valid_actions: {}
finish: {"answer": a number}, which ends the task
An example: get_elevation with Action Input: {"latitude": 52, "longitude": 13}"""
EXAMPLE = 'get_elevation with Action Input: {"latitude": 52, "longitude": 13}'


def task(task_id):
    """What tools.Env asks of a task, and cities: {name in lower case: City}."""
    rng, number = random.Random(f"{NAME} {task_id}"), range(10, 100)
    names = rng.sample([name for name in weather.cities() if name.isalpha()], 12)
    cities = {name: weather.City(weather.cities()[name].name, *place, "", height)
              for name, place, height in zip(names, zip(
                  rng.sample(number, 12), rng.sample(number, 12)), rng.sample(number, 12))}
    home, city = rng.sample([*cities.values()], 2)
    name = "" if family(task_id) == "here" else city.name
    return SimpleNamespace(
        goal=f"How high does {name or 'the city I am in'} lie?", home=home, name=name,
        cities=cities, answer=(city if name else home).elevation,
        steps=partial(find_out, name=name, wanted="elevation"))


def find_out(say, name, wanted):
    """The way to a city's latitude, longitude or elevation; name "": of the user's city."""
    at = yield from weather.locate(say, name)
    if wanted in at:
        return at[wanted]
    reply = yield say("How high is that?", "Now the elevation."), "get_elevation", at
    return reply[wanted][0]


def family(task_id):
    return FAMILIES[task_id % 2]


def fingerprint(task_id):
    t = task(task_id)
    return f"{t.goal} {t.home} {t.cities}"


class Env(weather.Env):
    tools = "get_user_current_location", "get_latitude_longitude", "get_elevation"

    def start(self, task_id):
        self.other = None           # of `other_goal`: the way to what it wants to know
        return super().start(task_id)

    def get_latitude_longitude(self, name: str):
        city = self.task.cities.get(plain(name))
        if city is None:
            raise Refused("ERROR | KeyError('results')")
        return {"results": [dict(zip(("name", "latitude", "longitude"), city))]}

    def get_elevation(self, latitude: int, longitude: int):
        """Of a city; 0 between them."""
        return {"elevation": [next((city.elevation for city in self.task.cities.values()
                                    if city[1:3] == (latitude, longitude)), 0)]}

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        city = rng.choice([*self.task.cities.values()])
        return city.elevation if key == "answer" else getattr(city, key)

    def other_goal(self, rng):
        """Finds out where the city of the question or the user's own lies, or how high."""
        self.other = self.other or partial(
            find_out, name=rng.choice(("", self.task.name)),
            wanted=rng.choice(("latitude", "longitude", "elevation")))
        self.task.steps = self.other
        return self.expert()
