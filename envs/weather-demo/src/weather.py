"""The weather, in three forms: a tool for agents, a function for programs, a reward for trainers.

The weather is always the same, so a client can be tested against it.
"""

from typing import Any

from aenv import register_function, register_reward, register_tool


@register_tool
def get_weather(city: str) -> dict[str, Any]:
    """Tell the weather in a city.

    Args:
        city: The city's name.
    """
    return weather(city)


@register_function
def get_weather_func(city: str) -> dict[str, Any]:
    """Tell a program the weather in a city.

    Args:
        city: The city's name.
    """
    return weather(city)


@register_reward
def is_good_weather(city: str) -> bool:
    """Whether it is neither cold nor hot there.

    Args:
        city: The city's name.
    """
    return 15 < int(weather(city)["temperature"]) < 30


def weather(city: str) -> dict[str, Any]:
    """A fine day, everywhere."""
    return {"city": city, "temperature": "20", "description": "sunny", "humidity": "40"}
