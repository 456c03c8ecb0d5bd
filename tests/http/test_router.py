from __future__ import annotations

from aenv.http.router import Router


def router() -> Router[str]:
    made: Router[str] = Router()
    made.add("GET", "/things/list", "list")
    made.add("GET", "/things/{name}", "get")
    made.add("DELETE", "/things/{name}", "delete")
    made.add("GET", "/things/{name}/parts/{part}", "part")
    made.add("POST", "/older/", "older", optional_slash=True)
    return made


def test_a_route_is_found_with_the_parts_of_its_path() -> None:
    assert router().find("GET", "/things/a.b") == ("get", {"name": "a.b"})
    assert router().find("GET", "/things/a/parts/b") == ("part", {"name": "a", "part": "b"})


def test_of_several_routes_the_first_one_wins() -> None:
    assert router().find("GET", "/things/list") == ("list", {})


def test_a_template_matches_whole_paths_and_no_pattern() -> None:
    assert router().find("GET", "/things/a/b") is None
    assert router().find("GET", "/things/") is None
    assert router().find("GET", "/thingsXlist") is None
    dotted: Router[str] = Router()
    dotted.add("GET", "/a.b", "dotted")
    assert dotted.find("GET", "/aXb") is None


def test_the_methods_of_a_path_are_known() -> None:
    assert router().methods("/things/a") == ["GET", "DELETE"]
    assert router().methods("/nothing") == []
