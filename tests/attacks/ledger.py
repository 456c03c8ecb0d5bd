"""A pytest plugin that counts attacks of each kind: how many were tried, and how many failed ("held").

A test that is one attack says so with a marker, and holds it by passing::

    @pytest.mark.attack("grading")
    def test_a_fake_cat_earns_nothing() -> None: ...

A test that tries several in one go asks for the fixture `attacks` and records each::

    def test_no_program_sees_the_host(attacks: Attacks) -> None:
        for name, attempt in ATTEMPTS.items():
            attacks.record("isolation", name, held=not attempt())
        attacks.all_held()

The last lines of a run say what came of them, one line for each kind: ``attacks grading: 61 tried, 61 held``. Skipped
tests are not counted. The counts travel in the reports, so they are right under pytest-xdist, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

_PROPERTY = "attack"
_TALLY = pytest.StashKey[dict[str, list[tuple[str, bool]]]]()


@dataclass(slots=True)
class Attacks:
    """Attacks of one test."""

    node: pytest.Item
    tried: list[tuple[str, str, bool]] = field(default_factory=list)

    def record(self, kind: str, name: str, *, held: bool) -> None:
        """Count one attack. The test decides itself when to fail: see `all_held`."""
        self.tried.append((kind, name, held))
        self.node.user_properties.append((_PROPERTY, [kind, name, held]))

    def all_held(self) -> None:
        """Fail with the names of all attacks of this test that were not held."""
        assert not [f"{kind}: {name}" for kind, name, held in self.tried if not held]


@pytest.fixture
def attacks(request: pytest.FixtureRequest) -> Attacks:
    """Records the attacks of a test that tries several."""
    return Attacks(request.node)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(kind): the test is an attack of this kind, held when the test passes")
    config.stash[_TALLY] = {}
    config.pluginmanager.register(_Summary(config), "aenv-attack-summary")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (marker := item.get_closest_marker("attack")) is not None:
            item.user_properties.append((_PROPERTY, [marker.args[0], item.name, None]))


class _Summary:
    """Collects the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._tally = config.stash[_TALLY]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or not (report.when == "call" or report.failed):
            return
        if report.when == "teardown":
            return  # counted by its call
        for name, value in report.user_properties:
            if name == _PROPERTY and isinstance(value, list):
                kind, what, held = value
                self._tally.setdefault(kind, []).append((what, report.passed if held is None else held))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for kind, tried in sorted(self._tally.items()):
            held = sum(ok for _, ok in tried)
            terminalreporter.write_line(f"attacks {kind}: {len(tried)} tried, {held} held")
            for what, ok in tried:
                if not ok:
                    terminalreporter.write_line(f"  not held: {what}")
