"""Plain unit tests: no server, no container."""

import weather


def test_the_tool_and_the_function_say_the_same():
    fine = {"city": "Beijing", "temperature": "20", "description": "sunny", "humidity": "40"}
    assert weather.get_weather("Beijing") == weather.get_weather_func("Beijing") == fine


def test_the_weather_is_good():
    assert weather.is_good_weather("Beijing") is True
