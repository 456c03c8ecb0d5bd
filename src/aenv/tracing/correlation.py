"""Correlation ids of log lines: the request, its trace, and the instance concerned."""

from __future__ import annotations

from contextvars import ContextVar


class Correlation:
    """Ids of one request. It is mutable: ids that become known later are also seen by tasks the request started."""

    __slots__ = ("instance", "request", "trace")

    def __init__(self, request: str, trace: str = "", instance: str = "") -> None:
        self.request = request
        self.trace = trace
        self.instance = instance

    def fields(self) -> dict[str, str]:
        """Return the ids that are known."""
        known = {"request_id": self.request, "trace_id": self.trace, "instance_id": self.instance}
        return {name: value for name, value in known.items() if value}


current: ContextVar[Correlation | None] = ContextVar("aenv_correlation", default=None)


def set_instance(instance: str) -> None:
    """Set the instance id of the current request."""
    known = current.get()
    if known is not None:
        known.instance = instance
