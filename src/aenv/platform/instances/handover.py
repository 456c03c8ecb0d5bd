"""What is written down of a running instance for the server that comes after this one.

It goes to the engine's keeper and never to the store: it opens the instance to who knows it.
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
from aenv.platform.instances.reserved_labels import REVISION_LABEL
from aenv.schema import duration
from aenv.schema.instances import EnvInstanceCreateRequest, EnvStatus, InstanceEvent
from aenv.tracing.logging import getLogger

log = getLogger("instances")


class _Kept(BaseModel):
    id: str
    secret: str
    wish: EnvInstanceCreateRequest
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
    """By a clock that counts from the machine's start, as all that is kept ends with that."""
    events: list[InstanceEvent]
    service: str | None = None
    """The service that it is a replica of, or empty. None: written by a version that did not record it."""
    revision: int = 0


def written(record: InstanceRecord) -> str:
    """As `read` reads it. What was asked for is in it, but for what the sandbox alone needs to know."""
    bare = record.wish.model_copy(update={"environment_variables": None, "arguments": None, "hub": None})
    names = (
        "id", "secret", "env_name", "account", "token_id", "network", "limits", "created", "updated", "started_at",
        "expires_at", "deadline",
    )  # fmt: skip
    facts = {name: getattr(record, name) for name in names}
    replica = record.replica or Replica()
    return _Kept(
        wish=bare, ttl=str(record.ttl), events=list(record.events), service=replica.service,
        revision=replica.revision, **facts,
    ).model_dump_json()  # fmt: skip


def read(text: str, ref: SandboxRef) -> InstanceRecord | None:
    """The instance in this sandbox; None when it was written by a version that we do not understand."""
    try:
        note = _Kept.model_validate_json(text)
    except ValidationError as error:
        log.warning("%s is of another version, and is ended: %s", ref.id, error)
        return None
    if note.service is None and REVISION_LABEL in (note.wish.labels or {}):
        log.warning("%s may be a replica of a service, but no record proves it: it is ended", ref.id)
        return None
    caller = Caller(note.account, "user", note.token_id)
    record = InstanceRecord(
        note.wish, note.env_name, caller, ttl=duration.parse(note.ttl), network=note.network, limits=note.limits,
        direct=False, replica=Replica(service=note.service, revision=note.revision) if note.service else None,
    )  # fmt: skip
    for name in ("id", "secret", "created", "updated", "started_at", "expires_at", "deadline"):
        setattr(record, name, getattr(note, name))
    record.events.extend(note.events)
    record.status, record.ref, record.claimed = EnvStatus.RUNNING, ref, True
    record.started = asyncio.get_running_loop().create_future()
    record.started.set_result(None)
    return record
