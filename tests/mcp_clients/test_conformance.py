"""MCP's own conformance suite, every scenario of it that a server of tools has to pass."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_clients.conftest import HERE, serving

pytestmark = pytest.mark.npm

HANDSHAKE = ("2025-06-18", "2025-11-25")
STATELESS = ("2026-07-28",)
NEW = ("2025-11-25", "2026-07-28")
ALL = HANDSHAKE + STATELESS
VERSIONS = ("2025-03-26", *ALL)

RUN: dict[str, tuple[str, ...]] = {
    "dns-rebinding-protection": NEW,
    "http-custom-header-server-validation": STATELESS,
    "http-header-validation": STATELESS,
    "input-required-result-unsupported-methods": STATELESS,
    "caching": STATELESS,
    "json-schema-2020-12": NEW,
    "ping": HANDSHAKE,
    "server-initialize": HANDSHAKE,
    "server-session-lifecycle": ("2025-03-26", *HANDSHAKE),
    "server-sse-multiple-streams": NEW,
    "server-stateless": STATELESS,
    "tools-call-audio": ALL,
    "tools-call-embedded-resource": ALL,
    "tools-call-error": ALL,
    "tools-call-image": ALL,
    "tools-call-mixed-content": ALL,
    "tools-call-simple-text": ALL,
    "tools-call-with-progress": ALL,
    "tools-list": ALL,
}
"""The scenarios that apply to a server of tools, and the revisions of the protocol that have them."""

NO_COMPLETION = "there are no prompts or resource templates whose arguments could be completed"
NO_ELICITATION = "tools do not ask the user: an agent in training has none"
NO_LOGGING = "logs go to the sandbox's own log, not to the client"
NO_PROMPTS = "an environment offers tools; prompts are not offered"
NO_RESOURCES = "an environment offers tools; resources are not offered"
NO_SAMPLING = "tools do not ask the client's model"
NO_INPUT = "a tool's result is final: there is no input_required for the client to answer"
NO_TASKS = "an extension that is not offered"

LEFT_OUT: dict[str, str] = {
    "completion-complete": NO_COMPLETION,
    "elicitation-*": NO_ELICITATION,
    "tools-call-elicitation": NO_ELICITATION,
    "logging-set-level": NO_LOGGING,
    "tools-call-with-logging": NO_LOGGING,
    "prompts-*": NO_PROMPTS,
    "resources-*": NO_RESOURCES,
    "sep-2164-resource-not-found": NO_RESOURCES,
    "tools-call-sampling": NO_SAMPLING,
    "input-required-result-*": NO_INPUT,
    "server-sse-polling": "events are not stored, so a stream that broke cannot be taken up again; a SHOULD",
    "tasks-*": NO_TASKS,
    "sep-2640-skills-*": NO_TASKS,
}
"""The scenarios that do not apply, and why. RUN comes first where a pattern has both."""

EXCUSED: dict[tuple[str, str], str] = {
    ("caching", "sep-2549-prompts-list-caching-hints"): NO_PROMPTS,
    ("caching", "sep-2549-resources-list-caching-hints"): NO_RESOURCES,
    ("caching", "sep-2549-resources-templates-list-caching-hints"): NO_RESOURCES,
    ("json-schema-2020-12", "json-schema-2020-12-$schema"): (
        "schemas are made from signatures, and without $schema MCP's default dialect is meant, which is this one"
    ),
    ("json-schema-2020-12", "sep-2106-composition-keywords-preserved"): (
        "no signature says allOf at the top, so there is nothing to preserve"
    ),
    ("json-schema-2020-12", "sep-2106-conditional-keywords-preserved"): (
        "no signature says if and then, so there is nothing to preserve"
    ),
    ("server-stateless", "sep-2575-server-rejects-undeclared-capability"): NO_SAMPLING,
    ("server-stateless", "sep-2575-missing-capability-http-400"): NO_SAMPLING,
}
"""Single checks of scenarios that we run which do not apply."""


@dataclass(frozen=True)
class Suite:
    """The suite, and one server for all of its runs."""

    command: list[str]
    variables: dict[str, str]
    url: str
    folder: Path
    said: dict[str, str] = field(default_factory=dict)

    def say(self, *arguments: str) -> str:
        """What it prints. It prints a lot, and on trouble its own source."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode in (0, 1), done.stdout[-2000:]  # 1: some scenario failed, which we look at one by one
        return done.stdout

    def scenarios(self, *options: str) -> set[str]:
        """The names of the server's scenarios."""
        return set(re.findall(r"^  - (\S+)", self.say("list", "--server", *options), re.MULTILINE))

    def checks(self, version: str) -> dict[str, list[dict[str, Any]]]:
        """The checks of all scenarios of one revision. Node takes longer to start than they do to run."""
        out = self.folder / version
        if not out.exists():
            self.said[version] = self.say(
                "server", "--url", self.url, "--suite", "all", "--spec-version", version, "-o", str(out)
            )
        reports = {path.parent.name: json.loads(path.read_text()) for path in out.rglob("checks.json")}
        return {re.sub(r"^server-(.*)-\d{4}-\d\d-\d\dT.*", r"\1", name): checks for name, checks in reports.items()}


@pytest.fixture(scope="module")
def suite(node: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    command, variables = node.tool("conformance"), node.variables()
    with serving(HERE / "conformance_env.py") as url:
        yield Suite(command, variables, f"{url}/mcp", tmp_path_factory.mktemp("conformance"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "version"), [(scenario, version) for scenario, versions in RUN.items() for version in versions]
)
def test_a_scenario_passes(suite: Suite, scenario: str, version: str) -> None:
    ran = suite.checks(version)
    assert scenario in ran, suite.said[version][-2000:]
    checks = ran[scenario]
    bad = [
        f"{check['id']}: {check['status']}: {check.get('errorMessage')}"
        for check in checks
        if check["status"] in ("FAILURE", "WARNING") and (scenario, check["id"]) not in EXCUSED
    ]
    assert not bad, "\n".join(bad)
    assert any(check["status"] == "SUCCESS" for check in checks), checks


@pytest.mark.parametrize("version", VERSIONS)
def test_every_scenario_is_run_or_left_out_for_a_reason(suite: Suite, version: str) -> None:
    there = suite.scenarios("--spec-version", version)
    ours = {scenario for scenario, versions in RUN.items() if version in versions}
    assert ours <= there
    unknown = {scenario for scenario in there - ours if not _left_out(scenario)}
    assert not unknown, f"add to RUN or to LEFT_OUT: {unknown}"


def test_every_reason_is_still_needed(suite: Suite) -> None:
    there = suite.scenarios()
    assert not {scenario for scenario in there if scenario not in RUN and not _left_out(scenario)}
    assert not {pattern for pattern in LEFT_OUT if not any(_matches(pattern, scenario) for scenario in there)}
    failing = {
        (scenario, check["id"])
        for version in VERSIONS
        for scenario, checks in suite.checks(version).items()
        for check in checks
        if check["status"] == "FAILURE"
    }
    assert set(EXCUSED) <= failing


def _left_out(scenario: str) -> bool:
    return any(_matches(pattern, scenario) for pattern in LEFT_OUT)


def _matches(pattern: str, scenario: str) -> bool:
    return scenario.startswith(pattern[:-1]) if pattern.endswith("*") else scenario == pattern
