"""Handover records: what the next server needs to adopt a running instance.

They go to the engine's file descriptor holder and never to the store: a record holds the secret that gives access to
the instance.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from pydantic import BaseModel, ValidationError

from aenv.engines.base import SandboxRef
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Network
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.instance_record import InstanceRecord, Replica
from aenv.platform.instances.requests.reserved_labels import REVISION_LABEL
from aenv.schema import duration
from aenv.schema.instances import EnvInstanceCreateRequest, EnvStatus, InstanceEvent
from aenv.tracing.logging import getLogger

log = getLogger("instances")


class _HandoverRecord(BaseModel):
    """An instance, serialised. Field names are part of the format: the next server may be another version."""

    id: str
    secret: str
    wish: EnvInstanceCreateRequest
    """The create request."""
    env_name: str
    account: str
    token_id: str
    ttl: str
    network: Network
    limits: Limits
    created: datetime
    updated: datetime
    started_at: datetime | None
    expires_at: datetime | None
    deadline: float
    """Monotonic deadline. Valid in the next server too: both run in the same boot of the machine."""
    events: list[InstanceEvent]
    service: str | None = None
    """Service that it is a replica of, or empty. None: written by a version that did not record it."""
    revision: int = 0
    isolation: str = ""
    digest: str = ""
    notices: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    parent: str = ""
    depth: int = 0
    forked_from: str = ""
    checkpoint: str | None = None


def dump(record: InstanceRecord) -> str:
    """Serialise a running instance for `load`, without the parts of its request that only the sandbox needs."""
    public = record.request.model_copy(update={"environment_variables": None, "arguments": None, "hub": None})
    names = (
        "id", "secret", "env_name", "account", "token_id", "network", "limits", "created", "updated", "started_at",
        "expires_at", "deadline", "digest", "notices", "opens", "parent", "depth", "isolation",
        "forked_from", "checkpoint",
    )  # fmt: skip
    facts = {name: getattr(record, name) for name in names}
    replica = record.replica or Replica()
    return _HandoverRecord(
        wish=public, ttl=str(record.ttl), events=record.events, service=replica.service,
        revision=replica.revision, **facts,
    ).model_dump_json()  # fmt: skip


def load(text: str, ref: SandboxRef) -> InstanceRecord | None:
    """Return the instance in a sandbox; None if another version wrote its record in a format unknown here."""
    try:
        saved = _HandoverRecord.model_validate_json(text)
    except ValidationError as error:
        log.warning("ending %s, whose handover record is of another version: %s", ref.id, error)
        return None
    if saved.service is None and REVISION_LABEL in (saved.wish.labels or {}):
        log.warning("ending %s: it may be a replica of a service, but its handover record does not say so", ref.id)
        return None
    caller = Caller(saved.account, "user", saved.token_id)
    record = InstanceRecord(
        saved.wish, saved.env_name, caller, ttl=duration.parse(saved.ttl), network=saved.network, limits=saved.limits,
        direct=False, replica=Replica(service=saved.service, revision=saved.revision) if saved.service else None,
    )  # fmt: skip
    names = ("id", "secret", "created", "updated", "started_at", "expires_at", "deadline", "digest", "notices")
    for name in (*names, "opens", "parent", "depth", "isolation", "forked_from", "checkpoint"):
        setattr(record, name, getattr(saved, name))
    record.restore_events(saved.events)
    record.status, record.ref, record.claimed = EnvStatus.RUNNING, ref, True
    record.started = asyncio.get_running_loop().create_future()
    record.started.set_result(None)
    return record
