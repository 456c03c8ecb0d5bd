"""Split a create request for several instances into one request for each."""

from __future__ import annotations

import secrets

from aenv.schema.instances import EnvInstanceCreateRequest


def split_request(request: EnvInstanceCreateRequest, count: int) -> list[EnvInstanceCreateRequest]:
    """Return a request for each instance, with the fields of its item in place of the common ones."""
    prefix = request.request_id or secrets.token_hex(8)
    shared = request.model_copy(update={"items": None})  # or each record would hold all items
    wanted = []
    for number in range(count):
        own = request.items[number].model_dump(exclude_none=True) | {"item": number} if request.items else {}
        wanted.append(shared.model_copy(update={"request_id": f"{prefix}/{number}", **own}))
    return wanted
