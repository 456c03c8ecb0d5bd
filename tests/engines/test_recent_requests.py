"""A preloaded parent is of use for as long as any request of its family is recent."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.engines.base import SandboxSpec
from aenv.engines.native.recent_requests import RecentRequests


def test_a_familys_parent_is_of_use_until_its_last_key_is_forgotten() -> None:
    recent = RecentRequests()
    spec = SandboxSpec("mine@1.0.0", Path("/p"), Path("/p"))
    for number in range(3):
        recent.add("family", f"key {number}", spec)
    recent.add("other family", "other key", spec)
    assert recent.forget("key 0") == ["key 0"]
    assert recent.forget("key 2") == ["key 2"]
    assert recent.spec("key 1") is spec
    assert recent.forget("key 1") == ["key 1", "family"]
    with pytest.raises(KeyError):
        recent.spec("key 1")
    assert recent.forget("other key") == ["other key", "other family"]


def test_a_familys_own_key_does_not_end_the_parent_of_others() -> None:
    recent = RecentRequests()
    spec = SandboxSpec("mine@1.0.0", Path("/p"), Path("/p"))
    recent.add("family", "family", spec)  # for pooled sandboxes without variables
    recent.add("family", "key", spec)
    assert recent.forget("family") == []
    assert recent.forget("key") == ["key", "family"]
