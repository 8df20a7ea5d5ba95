"""pytest tests/envs/test_movie.py: the tools' replies in the shapes that AgentGym's client shows,
what an id or a name that nobody has is answered, and that goals ask in words for their answers."""
import re

import pytest
from players import ask, first_of

from envs import movie
from envs.movie import COUNTRIES, GENRES, Env, credits, search, world
from envs.parts import tools

ABSENT = '{"success":false,"status_code":34,"status_message":"The resource you requested could ' \
    'not be found."}'
FILMS = [tool for tool in Env.tools if tool.startswith("get_movie")]
PEOPLE = [tool for tool in Env.tools if tool.startswith("get_person")]


@pytest.fixture
def env():
    env = Env()
    env.reset(movie.TEST[0])
    return env


def test_a_film_is_told_in_the_originals_shapes(env):
    """Keys, their order and types as in the client's example and the server's code."""
    film = world()[0][7]
    number = str(film.id)
    [found] = ask(env, "get_search_movie", movie_name=film.title.upper())
    assert found == {"id": film.id, "overview": film.overviews[0], "title": film.title}
    details = ask(env, "get_movie_details", movie_id=number)
    assert [*details] == ["title", "budget", "genres", "revenue", "vote_average", "release_date"]
    assert details == ask(env, "get_movie_details", movie_id=film.id)       # a number does as well
    assert details["genres"] == [{"id": i, "name": GENRES[i]} for i in film.genres]
    assert [type(details[key]) for key in ("budget", "revenue", "vote_average")] \
        == [int, int, float]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", details["release_date"])
    shapes = {
        "get_movie_production_companies":
            ("production_companies", ["logo_path", "name", "origin_country"]),
        "get_movie_production_countries": ("production_countries", ["iso_3166_1", "name"]),
        "get_movie_cast": ("cast", ["id", "name", "character"]),
        "get_movie_crew": ("crew", ["id", "name", "job"]),
        "get_movie_alternative_titles": ("titles", ["iso_3166_1", "title", "type"]),
        "get_movie_translation":
            ("translations", ["iso_3166_1", "iso_639_1", "name", "english_name", "data"])}
    for tool, (key, keys) in shapes.items():
        reply = ask(env, tool, movie_id=number)
        assert {*reply} - {"id"} == {key} and all([*entry] == keys for entry in reply[key])
        assert 1 <= len(reply[key]) <= 10
    assert ask(env, "get_movie_keywords", movie_id=number)["keywords"] == film.keywords
    texts = ask(env, "get_movie_translation", movie_id=number)["translations"]
    assert len({text["data"]["overview"] for text in texts}) == 3


def test_a_person_is_told_in_the_originals_shapes(env):
    person = max(credits(), key=lambda person: len(credits()[person][0]))
    number = str(person.id)
    assert ask(env, "get_search_person", person_name=person.name) == [
        {"id": person.id, "name": person.name}]
    assert [*ask(env, "get_person_details", person_id=number)] == [
        "name", "biography", "birthday", "place_of_birth"]
    assert [*ask(env, "get_person_external_ids", person_id=number)] == [
        "imdb_id", "facebook_id", "instagram_id", "twitter_id"]
    cast = ask(env, "get_person_cast", person_id=number)["cast"]
    assert len(credits()[person][0]) > 10 == len(cast)      # the ten first
    assert all([*entry] == ["id", "title", "character"] for entry in cast)
    person = max(credits(), key=lambda person: len(credits()[person][1]))
    crew = ask(env, "get_person_crew", person_id=str(person.id))["crew"]
    assert len(credits()[person][1]) > 10 == len(crew)
    assert all([*entry] == ["id", "title", "job"] for entry in crew)


def test_an_id_that_nothing_has_is_answered_as_by_tmdb(env):
    film, person = (str(things[0].id) for things in world())
    for number in ("-1", "999999", "x", "", "2e5", "²", "9" * 5000):
        assert all(ask(env, tool, movie_id=number) == ABSENT for tool in FILMS)
        assert all(ask(env, tool, person_id=number) == ABSENT for tool in PEOPLE)
    assert all(ask(env, tool, movie_id=person) == ABSENT for tool in FILMS)     # the other kind's
    assert all(ask(env, tool, person_id=film) == ABSENT for tool in PEOPLE)


def test_search_takes_the_nearest_name(env):
    film, person = world()[0][3], world()[1][3]
    first, last = person.name.split()
    assert search(0, f"  {film.title.lower()} ") is film
    assert search(1, f"{last} {first}") is person           # both words, in another order
    assert last in search(1, last).name
    assert ask(env, "get_search_movie", movie_name="Xyzzy") == \
        "ERROR | IndexError(list index out of range)"
    assert ask(env, "get_search_person", person_name="") == []
    assert search(0, "harbour " * 9000) is not None         # and soon


# ---- the goals, read again: what a person would work out from their words and the database ----

JOB = {"directed": "Director", "produced": "Producer", "wrote": "Writer", "edited": "Editor",
       "photography": "Director of Photography", "music": "Original Music Composer"}


def about_film(film, asked):
    """asked: the goal without the film's title."""
    return first_of({
        "come out|release": film.date, "budget|cost to make": film.budget,
        "profit|more than it cost": "Yes" if film.revenue > film.budget else "No",
        "revenue|much did": film.revenue, "vote|rate": film.rating, "compan": film.companies,
        "genres": [GENRES[i] for i in film.genres], "keywords": film.keywords,
        "countries": [COUNTRIES[code] for code in film.countries],
        "called in|run in": next((title for code, title in film.titles.items()
                                  if COUNTRIES[code] in asked), None),
        "German": film.overviews[1], "Dutch": film.overviews[2]}, asked)


def about_person(person, asked):
    return first_of({
        "birthday|When was": person.birthday, "Where was|birthplace|place of birth": person.town,
        "IMDB": person.imdb,
        "direct[?]|directed": [film.title for film in world()[0] if film.crew[0][0] is person],
        "act[?]|acted": [film.title for film in world()[0]
                         if person in [who for who, _ in film.cast]]}, asked)


def about_two(one, two, asked):
    both = [who.name for who, _ in one.cast if who in [other for other, _ in two.cast]]
    if "hich actors" in asked or "Who acts" in asked:
        return both
    key = first_of({"higher rating|rated higher": "rating", "earned more|higher revenue": "revenue",
                    "cost more|bigger budget": "budget", "newer|later": "date"}, asked)
    if key:
        return (one if getattr(one, key) > getattr(two, key) else two).title
    return "Yes" if first_of({
        "director": one.crew[0] == two.crew[0], "genre": {*one.genres} & {*two.genres},
        "countr": {*one.countries} & {*two.countries}, "actor": both}, asked) else "No"


def work_out(kind, goal):
    """The answer that the words of a goal ask for, from the database."""
    films = sorted((film for film in world()[0] if film.title in goal),
                   key=lambda film: goal.find(film.title))
    asked = re.sub("|".join(film.title for film in films) or "-", "", goal)
    if kind in ("which film", "two films", "in both"):
        return about_two(*films, asked)
    if kind == "person":
        return about_person(next(who for who in world()[1] if who.name in goal), asked)
    [film] = films
    if kind == "film":
        return about_film(film, asked)
    if kind == "film crew":
        return next(who.name for who, job in film.crew if job == first_of(JOB, asked))
    if kind == "director of":
        return about_person(next(who for who, job in film.crew if job == "Director"), asked)
    if re.search("Which character|the role", asked):
        return next(part for who, part in film.cast if who.name in asked)
    actor = next(who for who, part in film.cast if part in asked)
    return actor.name if kind == "film cast" else about_person(actor, asked)


def test_goals_ask_in_words_for_what_is_answered():
    for task_id in [*movie.TRAIN, *movie.TEST][::2]:
        task = movie.task(task_id)
        assert tools.same(work_out(movie.family(task_id), task.goal), task.answer), task.goal
