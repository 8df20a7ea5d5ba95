"""The encyclopedia of searchqa.py: things, facts, passages, and questions about them.

    world = encyclopedia()              6970 things: people, cities, films, ... and 10,600 passages
    world.by_kind["city"][0].facts      {"country": <Thing Veldora>, "founded": "1204", ...}
    world.passages[0]                   title, text, and which facts the text states
    ASK["musique"](rng, "test")         a Question: text, correct answers, the facts that lead there

Everything is invented, so that no model knows it already; one seed makes the same world everywhere.
RELATIONS is the grammar, two lines for a relation: the kind of thing, its name, the kind of value
and verbs; then questions, a slash, and noun phrases. A sentence of a passage is a subject and a
verb. A question over several hops puts the noun phrase of one relation into the next: in which
country is [the city where [the director of the film Silent Orchard] was born]?
"""
import functools
import random
import re
import threading
import zlib
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

RELATIONS = """
country capital city: has {y} as its capital | is governed from its capital, {y}
    what is the capital of {x} | which city is the capital of {x} / the capital of {x}
country language word: speaks {y} | has {y} as its official language
    which language is spoken in {x} | what is the official language of {x} / the language of {x}
country currency word: pays in the {y} | uses the {y} as its currency
    what is the currency of {x} | which currency is used in {x} / the currency of {x}
country independence year: became independent in {y} | gained its independence in {y}
    when did {x} become independent | in which year did {x} gain its independence / the year of \
independence of {x}
city country country: lies in {y} | is a city of {y} | belongs to {y}
    in which country is {x} | what country does {x} belong to / the country of {x} | the country \
in which {x} lies
city river river: stands on {y} | lies on the banks of {y} | was built along {y}
    on which river does {x} stand | which river runs through {x} / the river of {x} | the river \
that runs through {x}
city founded year: was founded in {y} | was settled in {y}
    when was {x} founded | in which year was {x} founded / the year of foundation of {x}
city population number: has {y} inhabitants | counts a population of {y}
    how many people live in {x} | what is the population of {x} / the population of {x}
river source mountain: rises on {y} | has its source on the slopes of {y}
    on which mountain does {x} rise | where is the source of {x} / the source of {x} | the \
mountain on which {x} rises
river length km: is {y} long | runs for {y}
    how long is {x} | what is the length of {x} / the length of {x}
mountain country country: is a peak of {y} | rises in the north of {y} | stands in {y}
    in which country is {x} | which country has {x} among its peaks / the country of {x} | the \
country in which {x} stands
mountain height m: is {y} high | reaches a height of {y}
    how high is {x} | what is the height of {x} / the height of {x}
mountain climber person: was first climbed by {y} | saw its first ascent by {y}
    who first climbed {x} | who made the first ascent of {x} / the first person to climb {x} | \
the first climber of {x}
university city city: has its campus in {y} | teaches in {y} | is based in {y}
    in which city is {x} | where is {x} based / the city of {x} | the city in which {x} is based
university founder person: was founded by {y} | goes back to a school of {y} | owes its \
existence to {y}
    who founded {x} | who was the founder of {x} / the founder of {x} | the person who founded {x}
university founded year: was founded in {y} | opened its doors in {y}
    when was {x} founded | in which year was {x} founded / the year of foundation of {x}
company headquarters city: has its headquarters in {y} | is run from {y}
    where does {x} have its headquarters | in which city is {x} based / the home city of {x} | \
the city from which {x} is run
company founder person: was founded by {y} | was started by {y} | grew out of a workshop of {y}
    who founded {x} | who started {x} / the founder of {x} | the person who started {x}
company founded year: was founded in {y} | began to trade in {y}
    when was {x} founded | in what year did {x} begin / the year of foundation of {x}
person birth year: was born in {y} | came into the world in {y}
    when was {x} born | in what year was {x} born / the year of birth of {x}
person birthplace city: was born in {y} | was a native of {y}
    where was {x} born | in which city was {x} born / the birthplace of {x} | the city where {x} \
was born
person university university: studied at {y} | graduated from {y} | was educated at {y}
    where did {x} study | which university did {x} attend / the university of {x} | the \
university where {x} studied
person spouse person: was married to {y} | married {y}
    who was {x} married to | who was the spouse of {x} / the spouse of {x} | the person married \
to {x}
person father person: was a child of {y} | had {y} for a father
    who was the father of {x} | whose child was {x} / the father of {x}
person death year: died in {y} | passed away in {y}
    when did {x} die | in which year did {x} die / the year of death of {x}
novel author person: was written by {y} | is a work of {y} | came from the pen of {y}
    who wrote {x} | who is the author of {x} / the author of {x} | the person who wrote {x}
novel year year: was published in {y} | first appeared in {y}
    when was {x} published | in which year did {x} appear / the year of publication of {x}
novel publisher company: was published by {y} | came out with {y}
    who published {x} | which company published {x} / the publisher of {x} | the company that \
published {x}
novel setting city: is set in {y} | tells of life in {y}
    in which city is {x} set | where does {x} take place / the city where {x} takes place | the \
city in which {x} is set
film director person: was directed by {y} | was the work of {y} | had {y} as director
    who directed {x} | who was the director of {x} / the director of {x} | the person who \
directed {x}
film year year: came out in {y} | was first shown in {y}
    when did {x} come out | in which year was {x} released / the year of release of {x}
film composer person: has music by {y} | owes its score to {y}
    who composed the music for {x} | who wrote the score of {x} / the composer of {x} | the \
person who wrote the music for {x}
film star person: starred {y} | gave the leading part to {y}
    who starred in {x} | who played the leading part in {x} / the star of {x} | the person who \
starred in {x}
album performer band: was recorded by {y} | is a record of {y}
    who recorded {x} | which band recorded {x} / the performer of {x} | the band that recorded {x}
album year year: was released in {y} | appeared in {y}
    when was {x} released | in which year did {x} appear / the year of release of {x}
album label company: was sold by {y} | was released on the label of {y}
    on which label was {x} released | which company sold {x} / the label of {x} | the company \
that sold {x}
band city city: was formed in {y} | comes from {y} | has its roots in {y}
    where was {x} formed | which city does {x} come from / the home town of {x} | the city where \
{x} was formed
band singer person: has {y} as its singer | is led by the voice of {y}
    who is the singer of {x} | who sings in {x} / the singer of {x} | the person who sings in {x}
band formed year: was formed in {y} | has played since it met in {y}
    when was {x} formed | in which year was {x} formed / the year of formation of {x}
building city city: stands in {y} | is a landmark of {y} | was built in {y}
    in which city is {x} | where does {x} stand / the city of {x} | the city in which {x} stands
building architect person: was designed by {y} | was planned by {y}
    who designed {x} | who was the architect of {x} / the architect of {x} | the person who \
designed {x}
building opened year: was opened in {y} | was completed in {y}
    when was {x} opened | in which year was {x} completed / the year of opening of {x}
painting painter person: was painted by {y} | is a work of {y} | came from the brush of {y}
    who painted {x} | who made {x} / the painter of {x} | the person who painted {x}
painting year year: was painted in {y} | was finished in {y}
    when was {x} painted | in which year was {x} finished / the year of completion of {x}
painting museum building: hangs in {y} | is shown at {y} | was given to {y}
    where does {x} hang | in which building can {x} be seen / the present home of {x} | the \
building where {x} hangs
club city city: plays in {y} | is the football club of {y}
    in which city does {x} play | which city is the home of {x} / the home city of {x} | the city \
in which {x} plays
club founded year: was founded in {y} | was set up in {y}
    when was {x} founded | in which year was {x} set up / the year of foundation of {x}
ship builder company: was built by {y} | came from the yard of {y}
    who built {x} | which company built {x} / the builder of {x} | the company that built {x}
ship captain person: sailed under {y} | had {y} as its first captain
    who was the first captain of {x} | who commanded {x} on its first voyage / the first captain \
of {x}
ship launched year: was launched in {y} | first sailed in {y}
    when was {x} launched | in which year was {x} launched / the year of launch of {x}"""
COUNTS = dict(country=40, mountain=150, river=150, city=420, university=150, company=350, band=260,
              novel=650, film=800, album=620, building=380, painting=520, club=220, ship=260)
PEOPLE = 2000
ROLES = "director actor singer composer novelist painter architect engineer scholar mountaineer " \
    "captain".split()
SINCE = dict(director=1875, actor=1875, singer=1930)    # the first years of birth of such people
REMARKS = {     # verbs that state no fact of RELATIONS
    "person": """kept a diary for many years|gave few interviews|was fond of chess and long walks
        |spoke four languages|avoided the capital for most of a long life|taught younger colleagues
        without pay|left a large correspondence|was often ill|travelled by train whenever possible
        |is remembered by a small plaque|refused several honours|collected maps""",
    "place": """is visited by many travellers in summer|is praised in a well-known poem|appears on
        old maps under another name|is the subject of a folk song|is known for its fogs|gave its
        name to a street in the capital|attracts painters and botanists|is hard to reach in winter
        |has been studied by geologists""",
    "work": """met with mixed reviews|was forgotten for decades|has been copied many times|won a
        prize of the critics|was made in less than a year|is shown in schools today|was restored
        not long ago|had a difficult beginning|is said to be a favourite of students|was thought
        lost for a while|divides its admirers""",
    "built": """cost more than was planned|was damaged by a fire|is shown on a postage stamp|was
        repaired several times|is smaller than it looks|was praised for its plain lines|draws
        visitors from abroad|was painted grey for many years|owes its colour to local timber""",
    "body": """has had its ups and downs|has friends in many countries|moved twice in its
        history|nearly came to an end in a hard winter|publishes a small magazine|is proud of its
        past|takes part in the yearly fair|changed its emblem twice|keeps its old archive"""}
GROUPS = dict(person="person", country="place", city="place", river="place", mountain="place",
              university="body", company="body", band="body", club="body", building="built",
              ship="built")         # others: work
BESIDE = ("is sometimes confused with {y}", "is often named in one breath with {y}",
          "has little in common with {y}", "was compared with {y} by a newspaper")
WORKS = "novel film album painting ship band".split()       # named with their sort
POOL_OF = {     # "kind relation": who or what comes into question, if not people of that name
    "novel author": "novelist", "mountain climber": "mountaineer", "film star": "actor",
    "company founder": "engineer", "university founder": "scholar", "painting museum": "museum"}
WOMEN = "Ada Agnes Alma Bela Clara Dora Edith Elsa Freya Greta Hanna Ida Irene Judit Karin Lena " \
    "Lydia Magda Marta Nora Olga Petra Rosa Runa Sofia Tilda Ursula Vera Wanda Zita".split()
MEN = "Adrian Albin Anton Boris Casper Conrad Davor Edgar Emil Felix Gustav Henrik Hugo Igor " \
    "Jakob Jonas Karl Leo Lukas Magnus Milan Nils Oskar Pavel Rudolf Stefan Tomas Viktor".split()
STEMS = "Al Bar Bel Bren Cal Cor Dal Dor El Fal Fen Gar Gol Hal Hel Ist Jar Kel Kor Lan Lor Mar " \
    "Mel Nar Nor Ost Pel Per Quel Ran Ros Sal Sel Tal Tor Ul Var Vel Wes Yar Zan Zel".split()
MIDDLES = "a e i o u an en in or ul der ven".split()
ENDS = {kind: ends.split() for kind, ends in dict(
    city="burg dale ford haven holm mere mouth stead ton vik wick gard minster port",
    country="onia avia istan oria eth mark land uria", mountain="horn spitz berg tor fell",
    river="a ea ava ine ent uska", person="son ski ov elli ard well man ley ez ini eau mann",
).items()}
LOOKS = "Amber Ancient Blue Bitter Broken Burning Cold Crooked Crystal Distant Empty Endless " \
    "Fallen Final Frozen Gentle Gilded Golden Hidden Hollow Iron Last Lonely Lost Narrow " \
    "Northern Pale Patient Quiet Red Restless Sacred Salted Secret Silent Silver Sleeping " \
    "Southern Stolen Strange Velvet Wandering Western White Wild Winter Wooden Yellow".split()
OBJECTS = "Anchor Apple Arrow Ballad Bell Bridge Candle Carnival Cathedral Clock Corridor Crown " \
    "Dancer Door Dream Feather Field Fire Forest Fountain Garden Gate Ghost Harbour Harvest " \
    "Heart Horizon Horse Hunter Island Kingdom Ladder Lantern Letter Mirror Moon Mountain Night " \
    "Ocean Orchard Owl Palace Passage Promise Queen Rain River Road Rose Sailor Shadow Shore " \
    "Song Station Storm Stranger Summer Swallow Thunder Tide Tower Traveller Valley Violin " \
    "Voyage Wagon Whale Willow Window".split()


class Relation(NamedTuple):
    kind: str
    name: str
    target: str         # a kind of thing; or year, number, km, m, word
    verbs: list
    questions: list
    phrases: list


@functools.cache
def relations():
    """{kind of thing: {name: Relation}}, as RELATIONS has them."""
    table = {}
    for entry in re.split(r"\n(?=\w)", RELATIONS.strip()):
        head, verbs, questions, phrases = re.fullmatch(
            r"([\w ]+): (.*)\n +(.*) / (.*)", entry).groups()
        relation = Relation(*head.split(), *(part.split(" | ")
                                             for part in (verbs, questions, phrases)))
        table.setdefault(relation.kind, {})[relation.name] = relation
    return table


@dataclass(eq=False)
class Thing:
    kind: str
    noun: str                   # film; of a person the occupation, of a building its sort
    name: str
    also: tuple = ()            # other correct answers: a person's name in full
    facts: dict = field(default_factory=dict)       # {name of a relation: Thing or text}
    shared: bool = False        # whether another thing has the same name
    parts: tuple = ()           # the names of the facts in each of its passages, one or two

    @property
    def title(self):
        """Of its passages: Wild River (film) where another thing has this name, too."""
        return f"{self.name} ({self.noun})" if self.shared else self.name

    @property
    def mention(self):
        """As texts and questions name it: the film Silent Orchard, but Anton Velder."""
        return f"the {self.noun} {self.name}" if self.shared or self.kind in WORKS else self.name

    @property
    def that(self):
        """What begins a clause about it: the painter who ..., the film that ..."""
        return "who" if self.kind == "person" else "that"

    @property
    def split(self):
        """The split whose questions may name it. A fifth of all things belongs to "test"."""
        return "test" if zlib.crc32(self.title.encode()) % 5 == 0 else "train"


def said(value):
    """A fact's value as texts say it."""
    return value.mention if isinstance(value, Thing) else value


def golds_of(value):
    """The correct answers when a fact's value is asked for: 612 km, 612; Mount Alhorn, Alhorn."""
    if isinstance(value, Thing):
        bare = re.sub("^(Mount|River) ", "", value.name)
        return tuple(dict.fromkeys((value.name, *value.also, bare)))
    return tuple(dict.fromkeys((value, value.split()[0])))


# ---- the world ----------------------------------------------------------------------------------

class Names:
    """Draws names with rng; `given` holds those of the things so far, {name: {noun}}."""

    def __init__(self, rng):
        self.rng, self.given = rng, {}

    def take(self, noun, name):
        """Give this name to a `noun`; False: it is taken. Two works of two kinds may share a name,
        and so may two people of two occupations."""
        nouns = self.given.setdefault(name, set())
        free = not nouns or noun not in nouns and (noun in WORKS or noun in ROLES)
        if free:
            nouns.add(noun)
        return free

    def stem(self, kind):
        """A new word that sounds like a city, a country, a mountain, a river or a family."""
        return f"{self.rng.choice(STEMS)}{self.rng.choice(MIDDLES)}{self.rng.choice(ENDS[kind])}"

    def work(self):
        pick = self.rng.choice
        return pick((f"{pick(LOOKS)} {pick(OBJECTS)}", " and ".join(self.rng.sample(OBJECTS, 2)),
                     f"The {pick(OBJECTS)} of {self.stem('city')}"))

    def person(self, birth, father, people):
        """(noun, name) of somebody born in this year."""
        roles = [role for role in ROLES if SINCE.get(role, 0) <= birth]
        family = father.name.split()[1] if father else self.stem("person")
        name = f"{self.rng.choice(WOMEN + MEN)} {family}"
        if people and not father and self.rng.random() < 0.1:
            name = self.rng.choice(people).name
        return self.rng.choice(roles), name

    def thing(self, kind):
        """(noun, name) of a thing that is no person."""
        pick, place, family = self.rng.choice, self.stem("city"), self.stem("person")
        if kind in ("country", "city", "mountain", "river"):
            name = self.stem(kind)
            return kind, dict(river=f"River {name}", mountain=f"Mount {name}").get(kind, name)
        if kind == "building":
            noun = pick("bridge museum museum theatre library tower".split())
            return noun, f"{family} {noun.title()}"
        return kind, dict(
            university=f"{place} {pick(('University', 'Polytechnic', 'Academy'))}",
            company=pick((f"{family} and Sons", f"{family} Brothers", f"{place} Works")),
            club=f"{place} {pick(('Rovers', 'United', 'Athletic', 'Wanderers'))}",
            band=f"{pick(LOOKS)} {pick(OBJECTS)}s").get(kind) or self.work()


def make_people(rng, names):
    """PEOPLE persons by year of birth, some with father and year of death."""
    people, births = [], sorted(rng.randrange(1780, 1976) for _ in range(PEOPLE))
    for birth in births:
        elders = people[bisect_left(births, birth - 45):bisect_left(births, birth - 24)]
        fathers = [p for p in rng.sample(elders, min(5, len(elders))) if is_man(p)]
        father = fathers[0] if fathers and rng.random() < 0.35 else None
        while not names.take(*(named := names.person(birth, father, people))):
            pass
        noun, name = named
        given, family = name.split()
        person = Thing("person", noun, name, (f"{given} {names.stem('person')} {family}",),
                       {"birth": str(birth)} | ({"father": father} if father else {}))
        if (death := birth + rng.randrange(48, 93)) < 2020:
            person.facts["death"] = str(death)
        people.append(person)
    return people


def marry(rng, people):
    """Give some of the people, who are in the order of their birth, a spouse of about their age."""
    for n, person in enumerate(people):
        other = rng.choice(people[n + 1:n + 60] or people)
        free = "spouse" not in person.facts and "spouse" not in other.facts
        if free and is_man(person) != is_man(other) and rng.random() < 0.6 and \
                not {person, other} & {person.facts.get("father"), other.facts.get("father")}:
            person.facts["spouse"], other.facts["spouse"] = other, person


def is_man(person):
    return person.name.split()[0] in MEN


def settle(rng, things):
    """Give a country its capital, and cities and mountains their country."""
    countries = [t for t in things if t.kind == "country"]
    capitals = rng.sample([t for t in things if t.kind == "city"], len(countries))
    for country, capital in zip(countries, capitals):
        country.facts["capital"], capital.facts["country"] = capital, country
    for thing in things:
        if thing.kind in ("city", "mountain"):
            thing.facts.setdefault("country", rng.choice(countries))


def began(thing):
    """The first year of a person, a band, a firm or a school; 0: unknown."""
    return next((int(thing.facts[name]) for name in ("birth", "formed", "founded")
                 if name in thing.facts), 0)


def fits(value, thing, maker):
    """Whether they can have met: people of about one age, a school not younger than its pupil."""
    since = maker or thing
    if value.kind == "person":
        return since.kind != "person" or abs(began(value) - began(since)) < 25
    grown = began(since) + 22 * (since.kind == "person")
    return value.kind not in ("university", "company") or not grown or began(value) <= grown


def year_of(rng, thing, maker):
    """A year in which the maker can have made it, or any that suits its kind."""
    if maker is None:
        return str(rng.randrange(*dict(country=(1300, 1960), city=(900, 1780),
                                       club=(1870, 1980))[thing.kind]))
    if maker.kind == "band":
        return str(began(maker) + rng.randrange(1, 20))
    last = min(began(maker) + 70, int(maker.facts.get("death", 2020)))
    return str(rng.randrange(began(maker) + 24, last))


def fill_facts(rng, names, things):
    """Draw what RELATIONS asks for and is not there yet. The first person, or the band, among a
    thing's facts is its maker, and its year one of the maker's."""
    pools = {}          # kind or noun: things
    for thing in things:
        for key in sorted({thing.kind, thing.noun}):
            pools.setdefault(key, []).append(thing)
    for thing in things:
        maker = None
        for name, relation in relations()[thing.kind].items():
            target = relation.target
            if name in thing.facts or name in ("spouse", "father", "death"):
                continue
            if target in pools:
                role = POOL_OF.get(f"{thing.kind} {name}", name if target == "person" else target)
                drawn = (rng.choice(pools[role]) for _ in range(60))
                value = next((x for x in drawn if fits(x, thing, maker)), None)
                if value is None:
                    continue
                maker = maker or (value if value.kind in ("person", "band") else None)
            else:
                value = year_of(rng, thing, maker) if target == "year" else dict(
                    number=f"{rng.randrange(4, 900)},{rng.randrange(1000):03}",
                    km=f"{rng.randrange(60, 2400)} km", m=f"{rng.randrange(900, 7900)} m",
                    word=names.stem("person").title())[target]
            thing.facts[name] = value


# ---- its passages -------------------------------------------------------------------------------

class Passage(NamedTuple):
    title: str
    text: str
    facts: tuple = ()           # the (Thing, name of a relation) pairs that the text states


def sentences(rng, thing, names):
    """Sentences that state these facts of a thing, one or two facts in each."""
    verbs = [rng.choice(relations()[thing.kind][name].verbs).format(y=said(thing.facts[name]))
             for name in names]
    while verbs:
        joined = f" and {verbs.pop()}" if len(verbs) > 1 and rng.random() < 0.4 else ""
        family = thing.name.split()[-1] if thing.kind == "person" else f"this {thing.noun}"
        subject = rng.choice((f"the {thing.noun}", family, thing.mention))
        yield f"{subject} {verbs.pop()}{joined}."


def make_passages(rng, thing, near):
    """One passage, or two that share the facts. near: things of its kind, to be named beside."""
    names, remarks = list(thing.facts), REMARKS[GROUPS.get(thing.kind, "work")].split("|")
    rng.shuffle(names)
    rng.shuffle(remarks)
    brief = len(names) < 3 or rng.random() < 0.45
    half = len(names) if brief else -(-len(names) // 2)
    thing.parts = tuple(filter(None, (names[:half], names[half:])))
    full, was = rng.choice((thing.name, *thing.also)), "was" if thing.kind == "person" else "is"
    openings = iter((
        rng.choice((f"{full} {was} a {thing.noun}.",
                    f"this page is about the {thing.noun} {full}.")),
        rng.choice((f"there is more to tell about {thing.mention}.",
                    f"much has been written about {thing.mention}."))))
    for part in thing.parts:
        rest = [*sentences(rng, thing, part)]
        rest += [f"the {thing.noun} {' '.join(remarks.pop().split())}."
                 for _ in range(rng.randrange(0 if brief else 1, 4))]
        other = rng.choice(near)
        if rng.random() < 0.4 and other is not thing:
            rest.append(f"the {thing.noun} {rng.choice(BESIDE).format(y=other.mention)}.")
        rng.shuffle(rest)
        text = " ".join(x[0].upper() + x[1:] for x in (next(openings), *rest))
        text = re.sub(r"\ba(?= [aeio])", "an", text)
        yield Passage(thing.title, text, tuple((thing, name) for name in part))


class World(NamedTuple):
    things: list
    passages: list
    by_kind: dict               # {kind: [Thing]}
    by_split: dict              # {split: [Thing]}


BUILDING = threading.Lock()


def encyclopedia():
    """The one World of this process: facts refer to its very Things, so there must be no second."""
    with BUILDING:
        return make_world()


@functools.cache
def make_world():
    """The World, the same in every process."""
    rng = random.Random("encyclopedia")
    names = Names(rng)
    things = []
    for kind in [kind for kind, count in COUNTS.items() for _ in range(count)]:
        while not names.take(*(named := names.thing(kind))):
            pass
        things.append(Thing(kind, *named))
    settle(rng, things)
    people = make_people(rng, names)
    marry(rng, people)
    things += people
    for thing in things:
        thing.shared = len(names.given[thing.name]) > 1
    fill_facts(rng, names, things)
    by_kind, by_split = {}, {"train": [], "test": []}
    for thing in things:
        by_kind.setdefault(thing.kind, []).append(thing)
        by_split[thing.split].append(thing)
    passages = [p for thing in things for p in make_passages(rng, thing, by_kind[thing.kind])]
    rng.shuffle(passages)
    return World(things, passages, by_kind, by_split)


# ---- questions ----------------------------------------------------------------------------------

class Question(NamedTuple):
    text: str
    golds: tuple                # the correct answers
    chains: tuple = ()          # ((Thing, names of the relations to follow from it), ...)
    hidden: bool = False        # the Thing is the answer, and the text tells what is known of it
    family: str = ""            # of a user's own question

    @property
    def paths(self):
        """The facts that lead to the answer: for each chain [(Thing, name of a relation), ...]."""
        return [[*zip((thing, *walk(thing, names)), names)] for thing, names in self.chains]


def sentence(text):
    """The text as a question: "In which country is Calburg?" """
    return f"{text[0].upper()}{text[1:]}?"


def walk(thing, names):
    """The values along a chain: one after each relation."""
    values = [thing]
    for name in names:
        values.append(values[-1].facts[name])
    return values[1:]


def relation_at(thing, names):
    """The last Relation of a chain."""
    return relations()[([thing] + walk(thing, names))[-2].kind][names[-1]]


def phrase(rng, thing, names):
    """A chain as a noun phrase: the birthplace of the director of the film Silent Orchard."""
    text = thing.mention
    for hops in range(1, len(names) + 1):
        text = rng.choice(relation_at(thing, names[:hops]).phrases).format(x=text)
    return text


def what_is(rng, thing, names):
    """A chain as a plain question."""
    who = "who was" if relation_at(thing, names).target == "person" else "what is"
    return f"{who} {phrase(rng, thing, names)}"


def draw_thing(rng, split, wanted):
    """A Thing of the split of which `wanted` holds."""
    things = encyclopedia().by_split[split]
    while not wanted(thing := rng.choice(things)):
        pass
    return thing


def draw_chain(rng, split, hops):
    """(Thing, names): `hops` relations that lead to ever new things."""
    while True:
        thing = draw_thing(rng, split, lambda thing: True)
        names, seen = [], [thing]
        while len(names) < hops and isinstance(seen[-1], Thing):
            name = rng.choice([*seen[-1].facts])
            names.append(name)
            seen.append(seen[-1].facts[name])
        if len(names) == hops and len(set(seen)) == len(seen):
            return thing, tuple(names)


def ask_chain(rng, split, hops, plain=False):
    """The question for the end of a chain, in the relation's own words or plainly: what is ..."""
    thing, names = draw_chain(rng, split, hops)
    text = what_is(rng, thing, names) if plain else rng.choice(
        relation_at(thing, names).questions).format(x=phrase(rng, thing, names[:-1]))
    return Question(sentence(text), golds_of(walk(thing, names)[-1]), ((thing, names),))


def ask_nq(rng, split):
    """One fact, as somebody types it into a search box."""
    question = ask_chain(rng, split, 1, plain=rng.random() < 0.3)
    return question._replace(text=question.text.lower())


def ask_popqa(rng, split):
    """One fact of a thing that is hardly known: a single passage has it."""
    thing = draw_thing(rng, split, lambda thing: len(thing.parts) == 1)
    names = rng.choice([*thing.facts]),
    return Question(sentence(what_is(rng, thing, names)), golds_of(walk(thing, names)[0]),
                    ((thing, names),))


def ask_triviaqa(rng, split):
    """Two facts are told; what or who is it? Only one thing has both. No passage does, so that the
    first one found for the question often is about another."""
    while True:
        thing = draw_thing(rng, split, lambda thing: len(thing.parts) == 2)
        names = [rng.choice(part) for part in thing.parts]
        if sum(all(other.facts.get(name) == thing.facts[name] for name in names)
               for other in encyclopedia().by_kind[thing.kind] if other.noun == thing.noun) == 1:
            first, second = (rng.choice(relations()[thing.kind][name].verbs).format(
                y=said(thing.facts[name])) for name in names)
            text = rng.choice((f"which {thing.noun} {first} and {second}",
                               f"which {thing.noun} {first} and also {second}",
                               f"can you name the {thing.noun} {thing.that} {first} and {second}"))
            return Question(sentence(text), golds_of(thing),
                            tuple((thing, (name,)) for name in names), True)


def verb_of(relation):
    """What a relation of a year says, without the year: was founded."""
    return relation.verbs[0].removesuffix(" in {y}")


def ask_comparison(rng, split, hops=1):
    """Two things of one sort: which came first, is higher, has the director who was born first?"""
    while True:
        one, names = draw_chain(rng, split, hops)
        *bridge, last = (relation_at(one, names[:n + 1]) for n in range(hops))
        if last.target not in ("year", "number", "km", "m"):
            continue
        two = rng.choice([x for x in encyclopedia().by_split[split] if x.noun == one.noun])
        try:
            values = [int(re.sub("[^0-9]", "", walk(x, names)[-1])) for x in (one, two)]
        except KeyError:        # the other has no such fact
            continue
        if values[0] == values[1] or bridge and bridge[0].target != "person":
            continue
        late = last.target != "year" or rng.random() < 0.4
        told = MORE.get(last.name) or f"{verb_of(last)} {('first', 'last')[late]}"
        asked = f"which {one.noun}" + (f" has the {bridge[0].name} who" if bridge else "")
        winner = (one, two)[(values[0] < values[1]) == late]
        return Question(sentence(f"{asked} {told}, {one.name} or {two.name}"),
                        golds_of(winner), ((one, names), (two, names)))


def ask_kin(rng, split):
    """A relative over two hops."""
    names, kin = rng.choice([*KIN.items()])
    thing = draw_thing(rng, split, lambda thing: names[0] in thing.facts
                       and names[1] in thing.facts[names[0]].facts)
    return Question(sentence(f"who was the {kin} of {thing.mention}"),
                    golds_of(walk(thing, names)[-1]), ((thing, names),))


def ask_years(rng, split):
    """A difference of two years, one of them a hop away: the age of the author, say."""
    while True:
        thing, way = draw_chain(rng, split, 2)
        names = [name for name in thing.facts if relation_at(thing, (name,)).target == "year"]
        if not names or relation_at(thing, way).target != "year":
            continue
        near = rng.choice(names)
        difference = int(thing.facts[near]) - int(walk(thing, way)[1])
        golds = [str(abs(difference)), f"{abs(difference)} year{'s' * (abs(difference) > 1)}"]
        this = thing.mention if thing.kind == "person" else f"the {thing.noun}"
        text = f"how many years lie between {phrase(rng, thing, way)} and " + rng.choice(
            relation_at(thing, (near,)).phrases).format(x=this)
        if way[1] == "birth" and thing.kind != "person" and difference > 0:
            text = f"how old was {phrase(rng, thing, way[:1])} when the {thing.noun} " \
                + verb_of(relation_at(thing, (near,)))
            golds.append(f"{difference} years old")
        if difference:
            return Question(sentence(text), tuple(golds), ((thing, way), (thing, (near,))))


def ask_hotpotqa(rng, split):
    """Two hops over a bridge, or a comparison."""
    return ask_chain(rng, split, 2) if rng.random() < 0.6 else ask_comparison(rng, split)


def ask_2wiki(rng, split):
    """Two hops in plain words, comparisons with and without a bridge, relatives."""
    draw = rng.random()
    if draw < 0.4:
        return ask_chain(rng, split, 2, plain=True)
    return ask_kin(rng, split) if draw < 0.5 else ask_comparison(rng, split, 1 + (draw > 0.7))


def ask_musique(rng, split):
    """Two to four hops."""
    return ask_chain(rng, split, rng.choices((2, 3, 4), (5, 3, 2))[0])


ASK = dict(nq=ask_nq, triviaqa=ask_triviaqa, popqa=ask_popqa, hotpotqa=ask_hotpotqa,
           musique=ask_musique, bamboogle=ask_years) | {"2wikimultihopqa": ask_2wiki}
MORE = dict(population="has more inhabitants", height="is higher", length="is longer")
KIN = {("father", "father"): "paternal grandfather", ("spouse", "father"): "father-in-law"}
