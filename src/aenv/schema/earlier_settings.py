"""Recognise the settings file that the earlier package (0.1.x) wrote with its defaults, and read it as ours.

Its CLI wrote every default on first use, among them the URL of a hub that few users run. Taken literally, every command
would ask that hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_HUB = "https://localhost:8080"


def is_earlier(document: object) -> bool:
    """Return whether the earlier CLI wrote this document: only it writes a null log file."""
    logging = document.get("logging_config") if isinstance(document, Mapping) else None
    return isinstance(logging, Mapping) and "file" in logging and logging["file"] is None


def translated(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the defaults that only the earlier CLI has; what its user set is kept."""
    if not is_earlier(document):
        return document
    logging = {name: value for name, value in document["logging_config"].items() if name not in ("file", "format")}
    kept = {**document, "logging_config": logging}
    hub = document.get("hub_config")
    if isinstance(hub, Mapping) and hub.get("hub_backend") == DEFAULT_HUB:
        kept["hub_config"] = {name: value for name, value in hub.items() if name != "hub_backend"}
    return kept
