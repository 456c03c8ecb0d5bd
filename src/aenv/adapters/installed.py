"""Check what an adapter needs: the packages of its extra, their versions, and whether the adapter can be imported."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Literal

from packaging.requirements import Requirement

from aenv import plugins
from aenv.errors import UsageError

_DISTRIBUTION = "aenvironment"
_ALIASES = {
    "agent-lightning": "agentlightning", "langgraph": "langchain", "openai-agents": "agents",
    "sb3": "stable-baselines3",
}  # fmt: skip
MODULES = {
    "agentlightning": "trainers.agent_lightning", "agents": "agents.openai_agents", "areal": "trainers.areal",
    "camel": "agents.camel", "claude-agent-sdk": "agents.claude_agent", "google-adk": "agents.google_adk",
    "gymnasium": "trainers.gymnasium", "langchain": "agents.langchain", "nemo-gym": "trainers.nemo_gym",
    "openenv": "trainers.openenv", "pydantic-ai": "agents.pydantic_ai", "ray": "trainers.ray",
    "rllib": "trainers.rllib", "skyrl-gym": "trainers.skyrl_gym",
    "slime": "trainers.slime", "smolagents": "agents.smolagents", "stable-baselines3": "trainers.stable_baselines3",
    "trl": "trainers.trl", "verifiers": "trainers.verifiers", "verl": "trainers.verl",
}  # fmt: skip
"""Module of `aenv.adapters` for each framework, by its extra. slime and AReaL have adapters that import nothing."""
APART = {
    "areal": ("verifiers",), "camel": ("mcp>=2",), "nemo-gym": ("verifiers>=0.4",), "openenv": ("verifiers>=0.4",),
    "verifiers": ("areal", "nemo-gym", "openenv"),
}  # fmt: skip
"""Packages that have no common solution with a framework: install those in another environment."""
ADVICE = {
    "areal": "AReaL is installed as its documentation says; the adapter imports nothing of it.",
    "rllib": "RLlib trains with PyTorch, which it does not install by itself.",
    "slime": "slime is not in a package index; put its source on the path. The adapter imports it on the first call.",
}


@dataclass(frozen=True, slots=True)
class PackageFinding:
    """A package or module, and whether it is as the adapter needs it."""

    what: str
    state: Literal["ok", "missing", "wrong"]
    said: str
    hint: str = ""


def examine(name: str) -> list[PackageFinding]:
    """Return what there is of a framework, and what is missing.

    Raises:
        UsageError: there is no adapter of that name.
    """
    extra = _ALIASES.get(name, name)
    if extra not in MODULES:
        known = ", ".join(sorted({*MODULES, *_ALIASES}))
        raise UsageError(f"no adapter for {name!r}", {"hint": f"There are: {known}"})
    found = [_checked(each, extra) for each in _requirements(extra)]
    found += [_apart(Requirement(each), extra) for each in APART.get(extra, ()) if _is_installed(Requirement(each))]
    missing = any(each.state != "ok" for each in found)
    found.append(_imported(f"aenv.adapters.{MODULES[extra]}", missing))
    if extra in ADVICE:
        found.append(PackageFinding(extra, "ok", ADVICE[extra]))
    return found


def _requirements(extra: str) -> Sequence[Requirement]:
    """Return the requirements of an extra, those too whose markers do not hold here."""
    try:
        listed = [Requirement(text) for text in metadata.requires(_DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        listed = []
    of_extra = [each for each in listed if each.marker is not None and f'extra == "{extra}"' in str(each.marker)]
    if not of_extra and plugins._CHECKOUT.is_file():  # the metadata of an editable install may be older
        extras = tomllib.loads(plugins._CHECKOUT.read_text())["project"]["optional-dependencies"]
        of_extra = [Requirement(text) for text in extras.get(extra, ())]
    return of_extra


def _checked(wanted: Requirement, extra: str) -> PackageFinding:
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        said = f"does not support Python {sys.version_info.major}.{sys.version_info.minor} ({wanted.marker})"
        return PackageFinding(wanted.name, "missing", said, "Use a Python that it supports.")
    needs = f"{wanted.name}{wanted.specifier}"
    install = f"Install it with: pip install 'aenvironment[{extra}]'"
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return PackageFinding(wanted.name, "missing", f"not installed; needed: {needs}", install)
    if not wanted.specifier.contains(version, prereleases=True):
        return PackageFinding(wanted.name, "wrong", f"{version} is installed; needed: {needs}", install)
    return PackageFinding(wanted.name, "ok", version)


def _is_installed(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _apart(other: Requirement, extra: str) -> PackageFinding:
    said = f"{metadata.version(other.name)} is installed, and has no common solution with {extra}"
    return PackageFinding(other.name, "wrong", said, "Install one of them in an environment of its own.")


def _imported(module: str, missing: bool) -> PackageFinding:
    try:
        import_module(module)
    except Exception as error:
        hint = "Install what is missing." if missing else "Its packages are there, and do not work together."
        return PackageFinding(module, "wrong", f"cannot be imported: {error}".splitlines()[0], hint)
    return PackageFinding(module, "ok", "can be imported")
