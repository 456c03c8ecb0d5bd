"""Identity of the instance behind an `Environment`: the resolved version, digest and address of its instance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from aenv.schema.ref import EnvRef
from aenv.sdk.qualified_names import split_env_name_version

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance

_told: set[str] = set()
"""Notices that this process has given. A batch of a deprecated version is one warning."""


class VersionWarning(UserWarning):
    """A notice about an environment that was created: deprecated, yanked, or with unknown keys in its config.json."""


def resolved_version(env_name: str, instance: EnvInstance | None) -> str | None:
    """Return the version that runs; without an instance, the version that was asked for, if that is an exact one."""
    if instance is not None and instance.env is not None and instance.env.version:
        return instance.env.version
    try:
        ref = EnvRef.parse(env_name)
    except ValueError:
        return None
    return ref.want if ref.want and ref.range is None and not ref.want.startswith("sha256:") else None


def qualified_name(env_name: str, instance: EnvInstance | None) -> str:
    """Return ``name@version`` with the version that runs; as it was given, where that is not known."""
    version = resolved_version(env_name, instance)
    return f"{split_env_name_version(env_name)[0]}@{version}" if version else env_name


def warn(instance: EnvInstance) -> None:
    """Warn of what users of this environment should know, once per process: see `VersionWarning`."""
    for notice in instance.notices or ():
        if notice not in _told:
            _told.add(notice)
            warnings.warn(notice, VersionWarning, stacklevel=2)
