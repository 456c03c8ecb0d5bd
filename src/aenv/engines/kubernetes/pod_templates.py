"""Pod templates: what an administrator adds to the pods of instances, chosen by ``deployConfig.podTemplate``.

With ``dualContainer`` a second container, called ``second``, runs another image beside the environment. A template is a
manifest of a Pod. It is the place for node selectors, tolerations, affinity, runtime classes, pull
secrets and volumes: they concern the cluster, so the author of an environment can only name a template. A file of the
name ``singleContainer`` replaces the built-in template, and is then used by all environments that name none.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aenv.errors import ConfigError

MAIN = "main"
"""Name of the container that runs the environment."""
DEFAULT = "singleContainer"
SECOND = "second"
"""Name of the container beside it, which runs the image of the instance's datasource."""
DUAL = "dualContainer"
HOST = "packedHost"
"""Name of the template of host pods. An environment cannot choose it."""
SUFFIXES = (".yaml", ".yml", ".json")
_BUILT_IN: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": MAIN}]}}
_DUAL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {"containers": [{"name": MAIN}, {"name": SECOND}]},
}
_TOP_KEYS = {"apiVersion", "kind", "metadata", "spec"}
_METADATA_KEYS = {"labels", "annotations"}


class PodTemplates:
    """Templates by name; the names are case-insensitive."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        """``texts``: file names, such as ``gpu.yaml``, and contents.

        Raises:
            ConfigError: a template is invalid; the message names it.
        """
        self._templates: dict[str, tuple[str, dict[str, Any]]] = {
            DEFAULT.lower(): (DEFAULT, _BUILT_IN),
            DUAL.lower(): (DUAL, _DUAL),
            HOST.lower(): (HOST, _BUILT_IN),
        }
        for file_name, text in sorted((texts or {}).items()):
            path = Path(file_name)
            if path.suffix in SUFFIXES:
                self._templates[path.stem.lower()] = path.stem, parse(file_name, text)

    @classmethod
    def in_folder(cls, folder: Path) -> PodTemplates:
        """Read the templates in a folder.

        Raises:
            ConfigError: the folder cannot be read, or a template is invalid.
        """
        try:
            found = [path for path in folder.iterdir() if path.suffix in SUFFIXES]
            return cls({path.name: path.read_text(encoding="utf-8") for path in found})
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"pod templates: {folder} cannot be read: {error}") from None

    @property
    def names(self) -> list[str]:
        """Names of all templates that an environment can choose, sorted."""
        return sorted(name for name, _ in self._templates.values() if name.lower() != HOST.lower())

    def host(self) -> dict[str, Any]:
        """Return a copy of the template of host pods."""
        return copy.deepcopy(self._templates[HOST.lower()][1])

    def find(self, name: str) -> dict[str, Any]:
        """Return a copy of the template of that name; the default for an empty one.

        Raises:
            ConfigError: there is none; the message lists those that exist.
        """
        found = self._templates.get((name or DEFAULT).lower())
        if found is None or name.lower() == HOST.lower():
            raise ConfigError(f"unknown podTemplate '{name}'; this platform has: {', '.join(self.names)}")
        return copy.deepcopy(found[1])


def parse(file_name: str, text: str) -> dict[str, Any]:
    """Parse and check a template. JSON is YAML, too.

    Raises:
        ConfigError: it is invalid; the message says where and why.
    """
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"pod template {file_name}: invalid YAML: {error}") from None
    problem = _problem(found)
    if problem is None and Path(file_name).stem.lower() == DUAL.lower() and not has_second(found):
        problem = f"one container must be called '{SECOND}': it runs the image of the datasource"
    if problem:
        raise ConfigError(f"pod template {file_name}: {problem}")
    assert isinstance(found, dict)
    return found


def has_second(template: Mapping[str, Any]) -> bool:
    """Return whether a template has a second container."""
    return [each.get("name") for each in template["spec"]["containers"]].count(SECOND) == 1


def _problem(found: Any) -> str | None:
    """Return what is wrong with a template, or None."""
    if not isinstance(found, dict) or found.get("kind") != "Pod" or found.get("apiVersion") != "v1":
        return "it must be a manifest with apiVersion v1 and kind Pod"
    if unknown := set(found) - _TOP_KEYS:
        return f"unknown key '{min(unknown)}'; expected {', '.join(sorted(_TOP_KEYS))}"
    metadata = found.get("metadata") or {}
    if not isinstance(metadata, dict) or (set(metadata) - _METADATA_KEYS):
        return "metadata may only have labels and annotations: the engine sets names and the namespace"
    spec = found.get("spec")
    if not isinstance(spec, dict):
        return "spec is missing"
    if spec.get("restartPolicy", "Never") != "Never":
        return "restartPolicy must be Never: a restarted instance would have lost its state without notice"
    containers = spec.get("containers")
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        return "spec.containers must be a list of containers"
    if [each.get("name") for each in containers].count(MAIN) != 1:
        return f"one container must be called '{MAIN}': it runs the environment"
    return None
