"""What AgentGym's client of movie tells a model, word for word: see agentgym.py."""
from envs.parts.tool_prompt import CHECK, FINISH, rules


def by_id(tool, does, *returns):
    kind = tool.split("_")[1]
    return (f"{tool}({kind}_id)", does,
            f"Parameters:\n- {kind}_id (Type: string): The ID of the {kind}.\nReturns:", *returns)


RULES = rules([
    ("get_search_movie(movie_name)", "Search for a movie by name and return basic details",
     "Parameters:\n- movie_name (Type: string): The name of the movie to search for.", "Returns:",
     "- id : The ID of the found movie.", "- overview : The overview description of the movie.",
     "- title : The title of the movie."),
    by_id("get_movie_details", "Get detailed information about a movie by ID",
          "- budget : The budget of the movie.", "- genres : The genres of the movie.",
          "- revenue : The revenue of the movie.",
          "- vote_average : The average vote score of the movie.",
          "- release_date : The release date of the movie."),
    by_id("get_movie_production_companies", "Get the production companies of a movie by its ID",
          "- production_companies : The production companies of the movie."),
    by_id("get_movie_production_countries", "Get the production countries of a movie by its ID",
          "- production_countries : The production countries of the movie."),
    by_id("get_movie_cast", "Retrieve the list of the top 10 cast members from a movie by its ID.",
          "- cast : List of the top 10 cast members."),
    by_id("get_movie_crew", "Retrieve the list of crew members (limited to 10) from a movie by its "
          "ID. The list primarily includes Director, Producer, and Writer roles.",
          "- crew : List of the top 10 of crew members"),
    by_id("get_movie_keywords", "Get the keywords associated with a movie by ID",
          "- keywords : The keywords associated with the movie."),
    ("get_search_person(person_name)", "Search for a person by name.",
     "Parameters:\n- person_name (Type: string): The name of the person to search for.", "Returns:",
     "- id : The ID of the found person.", "- name : The name of the person."),
    by_id("get_person_details", "Get detailed information about a person by ID",
          "- biography : The biography of the person.", "- birthday : The birthday of the person.",
          "- place_of_birth : The place of birth of the person."),
    by_id("get_person_cast", "Retrieve the top 10 movie cast roles of a person by their ID",
          "- cast : A list of movies where the person has acted, limited to top 10"),
    by_id("get_person_crew", "Retrieve the top 10 movie crew roles of a person by their ID",
          "- crew : A list of movies where the person has participated as crew, limited to top 10"),
    by_id("get_person_external_ids", "Get the external ids for a person by ID",
          "- imdb_id : The IMDB id of the person.",
          "- facebook_id : The Facebook id of the person.",
          "- instagram_id : The Instagram id of the person.",
          "- twitter_id : The Twitter id of the person."),
    by_id("get_movie_alternative_titles", "Get the alternative titles for a movie by ID",
          "- titles : The alternative titles of the movie.", "- id : The ID of the movie."),
    by_id("get_movie_translation", "Get the description translation for a movie by ID",
          "- translations : The description translation of the movie.",
          "- id : The ID of the movie."), CHECK, FINISH], """\
If you want to get the movie_id or person_id, Please call "get_search_person", "get_search_movie"! \
Do not generate it by yourself which maybe wrong. If you are finished, you will call "finish" \
action. \n""", """\
Goal: When did the movie Scream 6 come out?
Thought: I need to know the ID of the movie Scream 6 first.

Action: get_search_movie with Action Input: {"movie_name": "Scream 6"}
Observation: {'id': 934433, 'overview': 'Following the latest Ghostface killings, the four \
survivors leave Woodsboro behind and start a fresh chapter.', 'title': 'Scream VI'}
Thought: I can get the release date from get_movie_details know.

Action: get_movie_details with Action Input: {"movie_id": "934433"}
Observation: {'budget': 35000000, 'genres': [{'id': 27, 'name': 'Horror'}, {'id': 53, 'name': \
'Thriller'}, {'id': 9648, 'name': 'Mystery'}], 'revenue': 168961389, 'vote_average': 7.175, \
'release_date': '2023-03-08'}
Thought: The release date is 2023-03-08.

Action: finish with Action Input: {"answer": "2023-03-08"}
Observation: 2023-03-08
""")
