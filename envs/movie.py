"""movie: questions about films and the people who made them, answered with the tools of a database.

    env:    Now new trial starts.
            You should perform actions to accomplish the goal: It's for a school report. What is the
            birthplace of the director of "The Hollow Voyage"? Write it as the database does, for
            example 'Bern, Switzerland'.
            Give me one action.                                                          (task 49)
    agent:  get_search_movie with Action Input: {"movie_name": "The Hollow Voyage"}
    env:    Observation: [{'id': 220842, 'overview': 'A village teacher finds a map that should not
            exist.', 'title': 'The Hollow Voyage'}]
            Give me one action.
    agent:  get_movie_crew with Action Input: {"id": "220842"}
    env:    Observation: ERROR | KeyError('movie_id')
            Give me one action.
    agent:  get_movie_crew with Action Input: {"movie_id": "220842"}
    env:    Observation: {'crew': [{'id': 13034, 'name': 'Kaya Marlowe', 'job': 'Director'}, [...]
    agent:  get_person_details with Action Input: {"person_id": "13034"}
    env:    Observation: {'name': 'Kaya Marlowe', [...] 'place_of_birth': 'Cork, Ireland'}
    agent:  finish with Action Input: {"answer": "Cork, Ireland"}               reward 1, done

After AgentBoard's movie as AgentGym serves it: its tools, and the replies and errors of TMDB behind
them (parts/tools.py has what all such environments share). The 320 films and 400 people are made
here, so no score is comparable to the papers'. Reward 1 for the right answer, which ends the task.

Nine families with 28 kinds of questions, two to three wordings each, and reasons and closing words
drawn: 20,000 further tasks have 19,700 distinct goals. The 220 tasks of TEST start from a fifth of
the films and people, from which the 1,980 of TRAIN never start, though they occur in its replies. A
random player solves 2.9% of TEST, who always says No 7%, `expert` all, in 3.9 turns on average and
5 at most. Each process needs 13 MB.
"""
import functools
import random
from typing import NamedTuple

from envs.parts import movie_prompt, tool_prompt, tools
from envs.parts.movie_words import (
    ADJECTIVES, NOUNS, GENRES, COUNTRIES, KEYWORDS, TOWNS, JOBS, HEROES, PLOTS, LANGUAGES)
from envs.parts.tools import Refused

NAME, HORIZON, SUCCESS = "movie", 12, 1.0
FAMILIES = ("film", "film crew", "film cast", "person", "director of", "actor of", "which film",
            "two films", "in both")
TRAIN, TEST = tuple(i for i in range(2200) if i % 10 != 9), range(9, 2200, 10)
ORIGINAL = range(238)       # the ids that AgentGym's server has, too; its questions are others
TINY = dict(families="film,film crew", horizons=(5,), max_context=768, max_turn_tokens=96)
PROMPT = """You answer a question about films and people with the tools of a film database. Each
turn, call one tool: NAME with Action Input: {arguments as JSON}
get_search_movie: {"movie_name"}; get_search_person: {"person_name"}; they tell an id
With {"movie_id"}: get_movie_details (budget, genres, revenue, rating, release date),
get_movie_production_companies, get_movie_production_countries, get_movie_cast, get_movie_crew,
get_movie_keywords, get_movie_alternative_titles, get_movie_translation
With {"person_id"}: get_person_details (biography, birthday, place of birth), get_person_cast and
get_person_crew (films with the person), get_person_external_ids
check_valid_actions: {}, the names of all tools
finish: {"answer": a text, a number or a list}, which ends the task
An example: get_movie_cast with Action Input: {"movie_id": "934433"}"""
EXAMPLE = 'get_search_movie with Action Input: {"movie_name": "The Electric Carnival"}'
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = tools.WIRE
AGENTGYM = tool_prompt.manner(movie_prompt.RULES)
SET_SIZES = dict(agenttraj=100, agenttraj_l=215)

# ---- the database -------------------------------------------------------------------------------


class Person(NamedTuple):
    id: int
    name: str
    birthday: str
    town: str
    imdb: str


class Film(NamedTuple):
    id: int
    title: str
    overviews: tuple        # English, German, Dutch
    budget: int
    revenue: int
    genres: list            # of ids
    rating: float
    date: str
    companies: list         # names
    countries: list         # codes
    cast: list              # (Person, character)
    crew: list              # (Person, job), the director first
    keywords: list
    titles: dict            # country: title there


@functools.cache
def world():
    """([Film], [Person]), built once a process: 320 films and 400 people, all of whom were grown
    up when the first film came out. Every fifth of each is asked about in TEST only."""
    rng = random.Random("movie world")
    names = [f"{first} {last}" for first in tools.FIRST for last in tools.LAST]
    people = [Person(10_000 + 37 * i, name, f"{rng.randint(1930, 1965)}-{rng.randint(1, 12):02}-"
                     f"{rng.randint(1, 28):02}", rng.choice(TOWNS.split("; ")),
                     f"nm{rng.randint(10**6, 10**7):07}")
              for i, name in enumerate(rng.sample(names, 400))]
    titles = [f"The {a} {b}" for a in ADJECTIVES for b in NOUNS] \
        + [f"{a} of the {b}" for a in NOUNS for b in NOUNS if a != b]
    studios = [f"{last} {what}" for last in tools.LAST for what in ("Pictures", "Studios")]
    films = []
    for i, title in enumerate(rng.sample(titles, 320)):
        hero, plot = rng.choice(HEROES), rng.choice(PLOTS)
        cast = rng.sample(people[80:], rng.randint(4, 8))
        parts = rng.sample(names, len(cast))
        crew = [rng.choice(people[:100]), *rng.sample(people[60:300], len(JOBS) - 1)]
        countries = rng.sample(sorted(COUNTRIES), rng.choice((1, 1, 2)))
        films.append(Film(
            200_000 + 613 * i, title, tuple(f"{a} {b}." for a, b in zip(hero, plot)),
            10**5 * rng.randint(8, 1500), 10**3 * rng.randint(500, 400_000),
            rng.sample(sorted(GENRES), rng.randint(1, 3)), round(rng.uniform(3.5, 8.9), 3),
            f"{rng.randint(1985, 2023)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            rng.sample(studios, rng.randint(1, 3)), countries, list(zip(cast, parts)),
            list(zip(crew, JOBS)), rng.sample(KEYWORDS, rng.randint(3, 5)),
            {code: f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
             for code in rng.sample(sorted(COUNTRIES), 4)}))
    return films, people


@functools.cache
def by_id():
    return {thing.id: thing for things in world() for thing in things}


@functools.cache
def credits():
    """{person: ([(Film, character)], [(Film, job)])}, in the order of release."""
    found = {person: ([], []) for person in world()[1]}
    for film in sorted(world()[0], key=lambda film: film.date):
        for i, members in enumerate((film.cast, film.crew)):
            for person, part in members:
                found[person][i].append((film, part))
    return found


@functools.cache
def by_name(kind):
    """({name in lower case: thing}, {word: names with it}) of all films, 0, or people, 1."""
    found = {tools.plain(thing[1]): thing for thing in world()[kind]}
    return found, {word: [name for name in found if word in name.split()]
                   for name in found for word in name.split() if word not in ("the", "of")}


def search(kind, text):
    """The film, 0, or person, 1, of this name, else one that shares most words with the text; None:
    none does."""
    (things, with_word), name = by_name(kind), tools.plain(text)
    likely = [near for word in name.split()[:20] for near in with_word.get(word, ())]
    return things.get(name) or (things[max(sorted(set(likely)), key=likely.count)] if likely
                                else None)


# ---- questions: a sentence, its answer from the database, the expert's steps with the tools -----

@functools.cache
def pools(held_out):
    return [[x for i, x in enumerate(things) if (i % 5 == 4) == held_out] for things in world()]


class Task(tools.Draw):
    """The chances of one task: its films, person and words."""

    def __init__(self, task_id, attempt):
        super().__init__(NAME, task_id, attempt)
        films, people = pools(task_id in TEST)
        self.film, self.other = self.rng.sample(films, 2)
        self.person, self.country = self.one(*people), self.one(*self.film.titles)
        self.language, self.job = self.one(1, 2), self.one(*JOBS)
        (self.actor, self.part), self.quote = self.one(*self.film.cast), self.one('"', "'", "")

    def words(self):
        """What sentences may name."""
        country = COUNTRIES[self.country].replace("United", "the United")
        return dict(film=self.quoted(self.film), country=country, part=self.part,
                    language=LANGUAGES[self.language][2], did=DID[self.job], who=self.actor.name)

    def quoted(self, film):
        return f"{self.quote}{film.title}{self.quote}"


def find(say, title):
    """-> the id of a film."""
    [found] = yield say(f"I need the id of {title} first.", f"Let me search for {title}.",
                        f"To look that up I need to find {title}."), \
        "get_search_movie", {"movie_name": title}
    return str(found["id"])


def get(say, tool, number):
    """-> what a tool tells of a film or person."""
    _, kind, what = tool.replace("_", " ").split(" ", 2)
    return (yield say(f"Now I can ask for the {what}.", f"The {what} should tell.",
                      f"With id {number} I look at the {what}."), tool, {f"{kind}_id": number})


def names(things):
    return sorted(thing["name"] for thing in things)


def with_job(reply, job):
    return next(member for member in reply["crew"] if member["job"] == job)


DID = dict(zip(JOBS, ("directed", "produced", "wrote the screenplay of", "edited",
                      "was the director of photography of", "composed the music for")))
DETAILS = "get_movie_details"
FILM = (    # tool, ending, sentences, answer from the Task, conclusion from the reply
    (DETAILS, "date", ("When did {film} come out?", "What is the release date of {film}?",
                       "On which day was {film} released?"),
     lambda t: t.film.date, lambda t, reply: reply["release_date"]),
    (DETAILS, "number", ("What was the budget of {film}, in dollars?",
                         "How many dollars did it cost to make {film}?"),
     lambda t: t.film.budget, lambda t, reply: reply["budget"]),
    (DETAILS, "number", ("How much did {film} earn, in dollars?",
                         "What was the revenue of {film} in dollars?"),
     lambda t: t.film.revenue, lambda t, reply: reply["revenue"]),
    (DETAILS, "number", ("What is the average vote score of {film}?",
                         "How did people rate {film} on average?"),
     lambda t: t.film.rating, lambda t, reply: reply["vote_average"]),
    (DETAILS, "list", ("Which genres does {film} belong to?", "What are the genres of {film}?"),
     lambda t: [GENRES[i] for i in t.film.genres], lambda t, reply: names(reply["genres"])),
    (DETAILS, "yes", ("Did the film {film} make a profit?", "Did {film} earn more than it cost?"),
     lambda t: "Yes" if t.film.revenue > t.film.budget else "No",
     lambda t, reply: "Yes" if reply["revenue"] > reply["budget"] else "No"),
    ("get_movie_production_companies", "list",
     ("Which companies produced {film}?", "What are the production companies of {film}?"),
     lambda t: t.film.companies, lambda t, reply: names(reply["production_companies"])),
    ("get_movie_production_countries", "list",
     ("In which countries was {film} produced?", "Which countries does {film} come from?"),
     lambda t: [COUNTRIES[code] for code in t.film.countries],
     lambda t, reply: names(reply["production_countries"])),
    ("get_movie_keywords", "list", ("What are the keywords of {film}?",
                                    "Which keywords go with {film}?"),
     lambda t: t.film.keywords, lambda t, reply: sorted(reply["keywords"])),
    ("get_movie_alternative_titles", "name", ("Under which title did {film} run in {country}?",
                                              "What is {film} called in {country}?"),
     lambda t: t.film.titles[t.country],
     lambda t, reply: next(title["title"] for title in reply["titles"]
                           if title["iso_3166_1"] == t.country)),
    ("get_movie_translation", "Give me the text as it is.",
     ("What is the {language} overview of {film}?", "I'd like {film}'s overview in {language}."),
     lambda t: t.film.overviews[t.language],
     lambda t, reply: next(text["data"]["overview"] for text in reply["translations"]
                           if text["english_name"] == LANGUAGES[t.language][2])))
CREW = (
    ("get_movie_crew", "name", ("Who {did} {film}?", "Which person {did} {film}?",
                                "Can you tell me who {did} {film}?"),
     lambda t: dict((job, person.name) for person, job in t.film.crew)[t.job],
     lambda t, reply: with_job(reply, t.job)["name"]),)
CAST = (
    ("get_movie_cast", "name", ("Which character did {who} play in {film}?",
                                "What is the name of the role of {who} in {film}?"),
     lambda t: t.part,
     lambda t, reply: next(x["character"] for x in reply["cast"] if x["name"] == t.actor.name)),
    ("get_movie_cast", "name", ("Who played {part} in {film}?",
                                "Which actor was {part} in {film}?"),
     lambda t: t.actor.name,
     lambda t, reply: next(x["name"] for x in reply["cast"] if x["character"] == t.part)))
PERSON = (
    ("get_person_details", "date", ("When was {who} born?", "What is the birthday of {who}?"),
     lambda person: person.birthday, lambda reply: reply["birthday"]),
    ("get_person_details", "Write it as the database does, for example 'Bern, Switzerland'.",
     ("Where was {who} born?", "What is the birthplace of {who}?",
      "Can you tell me the place of birth of {who}?"),
     lambda person: person.town, lambda reply: reply["place_of_birth"]),
    ("get_person_external_ids", "Give me only the id.",
     ("What is the IMDB id of {who}?", "Under which id does IMDB list {who}?"),
     lambda person: person.imdb, lambda reply: reply["imdb_id"]),
    ("get_person_cast", "list", ("In which films did {who} act?",
                                 "Which films has {who} acted in?"),
     lambda person: [film.title for film, _ in credits()[person][0]] or None,
     lambda reply: sorted(film["title"] for film in reply["cast"])),
    ("get_person_crew", "list", ("Which films did {who} direct?",
                                 "Name all films directed by {who}."),
     lambda person: [film.title for film, job in credits()[person][1]
                     if job == "Director" and len(credits()[person][1]) <= 10] or None,
     lambda reply: sorted(film["title"] for film in reply["crew"]
                          if film["job"] == "Director")))


def about_film(rows, t):
    """One of the rows (tool, ending, sentences, answer, conclusion) as a question."""
    tool, ending, sentences, answer, conclude = t.one(*rows)
    words = t.words()
    t.ask(ending, *[sentence.format(**words) for sentence in sentences])

    def steps(say):
        number = yield from find(say, t.film.title)
        return conclude(t, (yield from get(say, tool, number)))
    return answer(t), steps


def about_person(role, t):
    """A fact about a person who is named, or told by what they did in a film."""
    tool, ending, sentences, answer, conclude = t.keep(*PERSON)
    film = t.quoted(t.film)
    who, person = {"person": (t.person.name, t.person),
                   "director of": (f"the director of {film}", t.film.crew[0][0]),
                   "actor of": (f"the actor who played {t.part} in {film}", t.actor)}[role]
    t.ask(ending, *[sentence.format(who=who) for sentence in sentences])

    def steps(say):
        if role == "person":
            found = (yield say(f"First I search for {who}.", f"I need the id of {who}."),
                     "get_search_person", {"person_name": who})[0]
        else:
            number = yield from find(say, t.film.title)
            if role == "director of":
                found = with_job((yield from get(say, "get_movie_crew", number)), "Director")
            else:
                reply = yield from get(say, "get_movie_cast", number)
                found = next(x for x in reply["cast"] if x["character"] == t.part)
        return conclude((yield from get(say, tool, str(found["id"]))))
    answer = answer(person)
    return None if type(answer) is list and len(answer) > 8 else answer, steps


def which_film(t):
    """The film that is rated higher, earned more, cost more or came out earlier."""
    field, key, phrases = t.one(
        ("vote_average", lambda film: film.rating, ("has the higher rating", "is rated higher")),
        ("revenue", lambda film: film.revenue, ("earned more", "had the higher revenue")),
        ("budget", lambda film: film.budget, ("cost more to make", "had the bigger budget")),
        ("release_date", lambda film: film.date, ("is newer", "came out later")))
    a, b, phrase = t.quoted(t.film), t.quoted(t.other), t.one(*phrases)
    t.ask("Please answer with the title of the film.", f"Which film {phrase}, {a} or {b}?",
          f"{a} versus {b}: which of them {phrase}?", f"Between {a} and {b}, which one {phrase}?")

    def steps(say):
        found = []
        for title in (t.film.title, t.other.title):
            number = yield from find(say, title)
            found.append(((yield from get(say, DETAILS, number))[field], title))
        return sorted(found)[-1][1]
    best = max(t.film, t.other, key=key)
    return None if key(t.film) == key(t.other) else best.title, steps


SHARED = (  # tool, sentences, what a film has, what a reply tells
    ("get_movie_crew", ("Do {a} and {b} have the same director?",
                        "Is the director of {a} also the director of {b}?"),
     lambda film: {film.crew[0][0].name}, lambda reply: {with_job(reply, "Director")["name"]}),
    (DETAILS, ("Do {a} and {b} share a genre?",
               "Is there a genre that {a} and {b} both belong to?"),
     lambda film: {*film.genres}, lambda reply: {genre["id"] for genre in reply["genres"]}),
    ("get_movie_production_countries", ("Do {a} and {b} come from a common country?",
                                        "Is there a country where both {a} and {b} were produced?"),
     lambda film: {*film.countries},
     lambda reply: {land["iso_3166_1"] for land in reply["production_countries"]}),
    ("get_movie_cast", ("Is there an actor who is in both {a} and {b}?",
                        "Do {a} and {b} have an actor in common?"),
     lambda film: {person.name for person, _ in film.cast},
     lambda reply: {member["name"] for member in reply["cast"]}))


def two_films(both, t):
    """Whether two films have something in common; both: which actors they have in common."""
    tool, sentences, has, tells = SHARED[-1] if both else t.keep(*SHARED)
    a, b, wanted = t.quoted(t.film), t.quoted(t.other), both or t.keep(True, False)
    if both:
        sentences = ("Which actors are in both {a} and {b}?", "Who acts in {a} and also in {b}?")
    t.ask("list" if both else "yes", *[each.format(a=a, b=b) for each in sentences])

    def steps(say):
        found = []
        for title in (t.film.title, t.other.title):
            number = yield from find(say, title)
            found.append(tells((yield from get(say, tool, number))))
        one, two = found
        return [x for x in sorted(one) if x in two] if both else \
            "Yes" if any(x in two for x in one) else "No"
    common = sorted(has(t.film) & has(t.other))     # as many tasks with Yes as with No
    return None if wanted != bool(common) else common if both else ("No", "Yes")[wanted], steps


KINDS = dict(zip(FAMILIES, (
    *(functools.partial(about_film, rows) for rows in (FILM, CREW, CAST)),
    *(functools.partial(about_person, role) for role in FAMILIES[3:6]),
    which_film, functools.partial(two_films, False), functools.partial(two_films, True))))


def family(task_id):
    return FAMILIES[task_id % len(FAMILIES)]


def task(task_id):
    return tools.task_of(Task, KINDS[family(task_id)], task_id)


# ---- the tools ----------------------------------------------------------------------------------

ABSENT = '{"success":false,"status_code":34,"status_message":"The resource you requested could ' \
    'not be found."}'


class Env(tools.Env):
    tools = tuple("""get_search_movie get_movie_details get_movie_production_companies
        get_movie_production_countries get_movie_cast get_movie_crew get_movie_keywords
        get_search_person get_person_details get_person_cast get_person_crew
        get_person_external_ids get_movie_alternative_titles get_movie_translation""".split())

    @staticmethod
    def known(kind, number):
        """The Film or Person of this id. Refused: there is none."""
        thing = by_id().get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if type(thing) is not kind:
            raise Refused(ABSENT)
        return thing

    def get_search_movie(self, movie_name: str):
        film = search(0, movie_name)
        if film is None:
            raise Refused("ERROR | IndexError(list index out of range)")
        return [{"id": film.id, "overview": film.overviews[0], "title": film.title}]

    def get_movie_details(self, movie_id: str):
        film = self.known(Film, movie_id)
        return {"title": film.title, "budget": film.budget,
                "genres": [{"id": i, "name": GENRES[i]} for i in film.genres],
                "revenue": film.revenue, "vote_average": film.rating, "release_date": film.date}

    def get_movie_production_companies(self, movie_id: str):
        return {"production_companies": [
            {"logo_path": None, "name": name,
             "origin_country": [*COUNTRIES][len(name) % len(COUNTRIES)]}    # in each of its films
            for name in self.known(Film, movie_id).companies]}

    def get_movie_production_countries(self, movie_id: str):
        return {"production_countries": [{"iso_3166_1": code, "name": COUNTRIES[code]}
                                         for code in self.known(Film, movie_id).countries]}

    def get_movie_cast(self, movie_id: str):
        return {"cast": [{"id": person.id, "name": person.name, "character": part}
                         for person, part in self.known(Film, movie_id).cast]}

    def get_movie_crew(self, movie_id: str):
        return {"crew": [{"id": person.id, "name": person.name, "job": job}
                         for person, job in self.known(Film, movie_id).crew]}

    def get_movie_keywords(self, movie_id: str):
        return {"keywords": self.known(Film, movie_id).keywords}

    def get_search_person(self, person_name: str):
        person = search(1, person_name)
        return [{"id": person.id, "name": person.name}] if person else []

    def get_person_details(self, person_id: str):
        person = self.known(Person, person_id)
        return {"name": person.name, "biography": f"{person.name} grew up in {person.town} and has "
                "worked in films ever since leaving school.", "birthday": person.birthday,
                "place_of_birth": person.town}

    def get_person_cast(self, person_id: str):
        return {"cast": [{"id": film.id, "title": film.title, "character": part}
                         for film, part in credits()[self.known(Person, person_id)][0][:10]]}

    def get_person_crew(self, person_id: str):
        return {"crew": [{"id": film.id, "title": film.title, "job": job}
                         for film, job in credits()[self.known(Person, person_id)][1][:10]]}

    def get_person_external_ids(self, person_id: str):
        person = self.known(Person, person_id)
        short = person.name.lower().replace(" ", "")
        return {"imdb_id": person.imdb, "facebook_id": short, "instagram_id": f"{short}_official",
                "twitter_id": None}

    def get_movie_alternative_titles(self, movie_id: str):
        film = self.known(Film, movie_id)
        return {"id": film.id, "titles": [{"iso_3166_1": code, "title": title, "type": ""}
                                          for code, title in film.titles.items()]}

    def get_movie_translation(self, movie_id: str):
        film = self.known(Film, movie_id)
        return {"id": film.id, "translations": [
            {"iso_3166_1": country, "iso_639_1": code, "name": name, "english_name": name,
             "data": {"homepage": "", "overview": text, "runtime": 0, "tagline": ""}}
            for (country, code, name), text in zip(LANGUAGES, film.overviews)]}

    def draw(self, key, rng):
        """Some value of an argument, for the random player."""
        film = rng.choice([self.task.film, self.task.other])
        person = rng.choice([person for person, _ in film.cast + film.crew])
        return {"movie_name": film.title, "movie_id": str(film.id), "person_name": person.name,
                "person_id": str(person.id),
                "answer": rng.choice(["Yes", "No", film.title, person.name])}[key]
