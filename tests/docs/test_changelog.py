"""The changelog has the version of the package, dates in order, and groups that readers expect."""

from __future__ import annotations

import re
from datetime import date

import aenv
from tests.docs.pages import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASES = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", TEXT, re.MULTILINE)


def test_the_newest_release_is_the_version_of_the_package() -> None:
    assert RELEASES[0][0] == aenv.__version__


def test_every_heading_is_unreleased_or_a_version_with_a_date() -> None:
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert headings == ["Unreleased", *(f"{version} - {day}" for version, day in RELEASES)]
    versions = [tuple(int(part) for part in version.split(".")) for version, _ in RELEASES]
    days = [date.fromisoformat(day) for _, day in RELEASES]
    assert versions == sorted(versions, reverse=True)
    assert days == sorted(days, reverse=True)


def test_entries_are_grouped_and_whole_sentences() -> None:
    for version in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        groups = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert groups == [name for name in ("Added", "Changed", "Fixed", "Security") if name in groups]
        for entry in re.findall(r"^- (.+(?:\n  .+)*)", version, re.MULTILINE):
            assert entry.endswith("."), entry


def test_an_entry_occurs_once_in_a_version() -> None:
    for version in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        entries = re.findall(r"^- (.+(?:\n  .+)*)", version, re.MULTILINE)
        assert [entry for entry in set(entries) if entries.count(entry) > 1] == []
