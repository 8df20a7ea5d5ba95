"""What AgentGym's client of weather tells a model, word for word: see agentgym.py."""
from envs.parts.tool_prompt import CHECK, FINISH, rules

PLACE = """\
Parameters:
- latitude (Type: number): The latitude of the location.
- longitude (Type: number): The longitude of the location."""


def series(tool, does, span):
    """A tool that tells of several days."""
    returns = does[0].upper() + does[1:].replace("index data", "index (PM2.5) data")
    return (f"{tool}(latitude, longitude, start_date, end_date)",
            f"Get {does} for a specified location and date range.", PLACE,
            f"- start_date (Type: string): The start date of the {span} (YYYY-MM-DD).",
            f"- end_date (Type: string): The end date of the {span} (YYYY-MM-DD).",
            f"Returns:\n{returns}.")


def historical(tool, what):
    return series(tool, f"historical {what} data", "historical data")


def forecast(tool, what):
    return series(tool, f"{what} forecast data", "forecast")


def current(tool, what):
    returns = f"Current {what} data".replace("index data", "index (PM2.5) data")
    return (f"{tool}(latitude, longitude, current_date)",
            f"Get current {what} data for a specified location and date.", PLACE, "- current_date "
            f"(Type: string): The current date to retrieve {what} data (YYYY-MM-DD).",
            f"Returns:\n{returns}.")


RULES = rules([
    ("get_user_current_date()", "Get the user's current date.",
     "Returns:\nThe current date in 'YYYY-MM-DD' format."),
    ("get_user_current_location()", "Get the user's current city.",
     "Returns:\nThe user's current city."),
    historical("get_historical_temp", "temperature"),
    historical("get_historical_rain", "rainfall"),
    historical("get_historical_snow", "snowfall"),
    forecast("get_snow_forecast", "snowfall"),
    current("get_current_snow", "snowfall"), current("get_current_temp", "temperature"),
    ("get_latitude_longitude(name)",
     "Get latitude and longitude information for a specified location name.",
     "Parameters:\n- name (Type: string): The name of the location. (e.g., city name)",
     "Returns:\nlatitude and longitude information for the specified location."),
    ("get_elevation(latitude, longitude)", "Get elevation data for a specified location.", PLACE,
     "Returns:\nElevation data for the specified location."),
    forecast("get_temp_forecast", "temperature"),
    forecast("get_rain_forecast", "rainfall"),
    current("get_current_rain", "rainfall"),
    ("get_distance(latitude1, longitude1, latitude2, longitude2)",
     "Calculate the distance between two sets of latitude and longitude coordinates.",
     "Parameters:", *[f"- {key}{i} (Type: number): The {key} of the {place} location."
                      for i, place in ((1, "first"), (2, "second"))
                      for key in ("latitude", "longitude")],
     "Returns:\nThe distance between the two sets of coordinates in kilometers."),
    historical("get_historical_air_quality_index", "air quality index"),
    current("get_current_air_quality_index", "air quality index"),
    ("get_air_quality_level(air_quality_index)",
     "Determine the air quality level based on the air quality index (AQI).",
     "Parameters:\n- air_quality_index (Type: number): The air quality index (AQI) value.",
     "Returns:\nThe air quality level, which can be 'good', 'fair', 'moderate', 'poor', "
     "'very poor', or 'extremely poor'."), CHECK, FINISH], """\
If you want to get the latitude and longitude information of a city, you must call \
"get_latitude_longitude"! Do not generate it by yourself which maybe wrong. If you are finished, \
you will call "finish" action.
""", """\
Goal: What is the lowest temperature yesterday?
Thought: This question is about the lowest temperature yesterday, I should first get the location \
information of the user.

Action: get_user_current_location with Action Input: {}
Observation: Shanghai
Thought: The user is currently in Shanghai. I should first get the latitude and longitude \
information of Shanghai.

Action: get_latitude_longitude with Action Input: {"name": "Shanghai"}
Observation: {'results': [{'name': 'Shanghai', 'latitude': 31.22222, 'longitude': 121.45806, \
'country_code': 'CN'}, {'name': 'Shanghai', 'latitude': 34.85009, 'longitude': -87.08501, \
'country_code': 'US'}, {'name': 'Cornelia', 'latitude': 38.64363, 'longitude': -93.73938, \
'country_code': 'US'}]}
Thought: I have got the latitude and longitude information of Shanghai, I should get the current \
date to get the date of yesterday.

Action: get_user_current_date with Action Input: {}
Observation: 2015-01-02
Thought: Current date in 2015-01-02, so yesterday is 2015-01-01. Now, I can get the temperature \
data of Shanghai in 2015-01-01.

Action: get_historical_temp with Action Input: {"latitude": 31.22222, "longitude": 121.45806, \
"start_date": "2015-01-01", "end_date": "2015-01-01"}
Observation: {'latitude': 31.200005, 'longitude': 121.5, 'daily_units': {'time': 'iso8601', \
'temperature_2m_max': '°C', 'temperature_2m_min': '°C', 'temperature_2m_mean': '°C'}, 'daily': \
{'time': ['2015-01-01'], 'temperature_2m_max': [4.3], 'temperature_2m_min': [-3.6], \
'temperature_2m_mean': [-0.1]}}
Thought: The average temperature is -0.1, I will call finish to end the task.

Action: finish with Action Input: {"answer": -0.1}
Observation: -0.1
""")
