"""Routes of local platforms for all instances of a batch at once.

Half of the server's time for an instance of a large batch was spent on HTTP requests about single instances. A platform
of several servers does not have these routes: the instances of one request could be on any of them.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field

from aenv.errors import AEnvError, InstanceEnded, NotFound
from aenv.http.messages import Answer
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.instance_record import STARTING
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.request_context import MAX_WAIT, RequestContext, RouteEntry, body, ok
from aenv.schema import paths

MAX_IDS = 10_000
GATHERED = 16
"""Instances of which several become ready within `GATHER_SECONDS`."""
GATHER_SECONDS = 0.004
"""Seconds to wait for more after the first one is ready, so that they share a response."""


class InstanceIds(BaseModel):
    """Ids of instances."""

    ids: list[str] = Field(max_length=MAX_IDS)


class InstancesWait(InstanceIds):
    """A request to wait until one of some instances is not starting any more."""

    seconds: float = Field(default=MAX_WAIT, ge=0)


def batch_routes(instances: Instances) -> list[RouteEntry]:
    """Return the routes."""

    async def delete(context: RequestContext) -> Answer:
        """Delete instances; return the errors, by id. Those that are gone already are no error."""
        ids = body(InstanceIds, context.request).ids
        outcomes = await asyncio.gather(*(_delete(instances, name, context.caller) for name in ids))
        return ok({name: error for name, error in zip(ids, outcomes, strict=True) if error is not None})

    async def wait(context: RequestContext) -> Answer:
        """Wait until the create of one of the instances has ended; return all such, and ids that do not exist."""
        asked = body(InstancesWait, context.request)
        records, missing = [], []
        for name in asked.ids:
            record = instances.peek(name)
            if record is None or not context.caller.may_see(record.account):
                missing.append(name)
            else:
                record.claimed = True
                records.append(record)
        starting = {record.started for record in records if record.status in STARTING}
        if not missing and starting and len(starting) == len(records):
            await asyncio.wait(starting, timeout=min(asked.seconds, MAX_WAIT), return_when=asyncio.FIRST_COMPLETED)
            if len(starting) >= GATHERED:
                await asyncio.sleep(GATHER_SECONDS)
        started = [record.to_api(context.caller) for record in records if record.status not in STARTING]
        return ok({"started": started, "missing": missing})

    return [
        ("POST", paths.INSTANCES_WAIT, "wait-many", wait),
        ("POST", paths.INSTANCES_DELETE, "delete-many", delete),
    ]


async def _delete(instances: Instances, name: str, caller: Caller) -> str | None:
    try:
        await instances.delete(name, caller)
    except (NotFound, InstanceEnded):
        return None
    except AEnvError as error:
        return error.message
    return None
