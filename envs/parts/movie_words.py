"""What movie's films and people are made of."""

ADJECTIVES = """Silent Crimson Broken Distant Hidden Golden Frozen Restless Burning Paper Hollow
Midnight Second Last Borrowed Velvet Wandering Forgotten Electric Patient""".split()
NOUNS = """Harbour Orchard Lighthouse Mirror Empire Garden Letter Station Winter Anthem Compass
Bridge Carnival Meridian Shadow Voyage Promise Kingdom Archive Monsoon Tide Witness""".split()
GENRES = {28: "Action", 12: "Adventure", 35: "Comedy", 80: "Crime", 18: "Drama", 14: "Fantasy",
          36: "History", 27: "Horror", 9648: "Mystery", 10749: "Romance", 878: "Science Fiction",
          53: "Thriller", 10752: "War"}
COUNTRIES = {"US": "United States of America", "GB": "United Kingdom", "FR": "France",
             "DE": "Germany", "IT": "Italy", "ES": "Spain", "JP": "Japan", "KR": "South Korea",
             "IN": "India", "BR": "Brazil", "SE": "Sweden", "MX": "Mexico"}
KEYWORDS = """heist amnesia road-trip island robot orphan chess wedding desert spy twins jazz
revenge time-loop boarding-school detective mountain ghost election circus submarine
treasure""".split()
TOWNS = ("Tucson, Arizona, USA; Leeds, England, UK; Lyon, France; Bremen, Germany; Parma, Italy; "
         "Seville, Spain; Kobe, Japan; Busan, South Korea; Pune, India; Recife, Brazil; Malmö, "
         "Sweden; Puebla, Mexico; Cork, Ireland; Ghent, Belgium; Accra, Ghana; Split, Croatia")
JOBS = ("Director", "Producer", "Writer", "Editor", "Director of Photography",
        "Original Music Composer")
HEROES = (("A retired pilot", "Ein Pilot im Ruhestand", "Een gepensioneerde piloot"),
          ("A young chemist", "Eine junge Chemikerin", "Een jonge scheikundige"),
          ("A village teacher", "Ein Dorflehrer", "Een dorpsonderwijzer"),
          ("A failed magician", "Ein gescheiterter Zauberer", "Een mislukte goochelaar"),
          ("A night nurse", "Eine Nachtschwester", "Een nachtzuster"),
          ("A tired detective", "Ein müder Detektiv", "Een vermoeide rechercheur"))
PLOTS = (("finds a map that should not exist", "findet eine Karte, die es nicht geben dürfte",
          "vindt een kaart die niet zou mogen bestaan"),
         ("has one week to save a theatre", "hat eine Woche, um ein Theater zu retten",
          "heeft één week om een theater te redden"),
         ("crosses a continent to keep a promise", "durchquert für ein Versprechen einen Kontinent",
          "doorkruist een continent om een belofte na te komen"),
         ("must share a house with an old rival", "muss das Haus mit einer alten Rivalin teilen",
          "moet een huis delen met een oude rivaal"),
         ("hears a voice on a dead line", "hört eine Stimme in einer toten Leitung",
          "hoort een stem op een dode lijn"),
         ("is accused of a theft on an island", "wird auf einer Insel des Diebstahls beschuldigt",
          "wordt op een eiland van diefstal beschuldigd"))
LANGUAGES = (("US", "en", "English"), ("DE", "de", "German"), ("NL", "nl", "Dutch"))
