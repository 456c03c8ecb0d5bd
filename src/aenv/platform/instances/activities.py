"""Activities that create requests wait for, so that their callers can show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from aenv.platform.access.platform_tokens import Caller
from aenv.schema.instances import EnvInstanceCreateRequest
from aenv.tracing.waits import Activity, activity


class Activities:
    """Activities by the caller's name and request id, while the create is in progress."""

    def __init__(self) -> None:
        self._by_request: WeakValueDictionary[tuple[str, str], Activity] = WeakValueDictionary()

    @contextmanager
    def begin(self, caller: Caller, request: EnvInstanceCreateRequest) -> Iterator[None]:
        """Record what the block waits for, and the tasks that it starts."""
        made = Activity()
        if request.request_id:
            self._by_request[caller.name, request.request_id] = made
        before = activity.get()
        activity.set(made)
        try:
            yield
        finally:
            activity.set(before)  # not reset: the server may resume a request in another context than it began in

    def current(self) -> Activity | None:
        """Return the activity of the current task."""
        return activity.get()

    def text(self, caller: Caller, request_id: str) -> str:
        """Return what this request of the caller waits for; empty if nothing is known."""
        found = self._by_request.get((caller.name, request_id))
        return found.text if found is not None else ""
