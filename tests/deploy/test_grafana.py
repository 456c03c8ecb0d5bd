"""The Grafana dashboard asks for metrics that the platform has, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "aenv.json"
REFERENCE = ROOT / "docs" / "reference" / "platform-http.md"
GIVEN = {"le", "job", "instance"}  # labels of every histogram, and those that Prometheus adds


def documented() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in REFERENCE.read_text().split("## Metrics")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4:
            continue
        names = re.findall(r"`([\w…]+)`", cells[1])
        for name in names:
            whole = name.replace("…", names[0].rsplit("_", name.count("_"))[0])
            found[whole] = set(re.findall(r"`(\w+)`", cells[2]))
    return found


def test_every_query_is_about_a_metric_and_labels_that_exist() -> None:
    metrics = documented()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len(panels) >= 12
    for panel in panels:
        for target in panel["targets"]:
            names = [re.sub(r"_bucket$", "", name) for name in re.findall(r"aenv_api_\w+", target["expr"])]
            assert names, panel["title"]
            grouped = [
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            ]
            for name in names:
                assert name in metrics or name.startswith(("aenv_api_server_", "aenv_api_auto_cleanup_")), name
                assert set(grouped) <= metrics.get(name, set()) | GIVEN, panel["title"]


def test_places_of_panels_do_not_overlap() -> None:
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(set(places)) == len(places)
