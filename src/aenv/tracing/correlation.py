"""What a line of the log belongs to: a request, its trace, the instance that it is about."""

from __future__ import annotations

from contextvars import ContextVar


class Correlation:
    """Of one request. What is found out later is added, and tasks that the request began see it as well."""

    __slots__ = ("instance", "request", "trace")

    def __init__(self, request: str, trace: str = "", instance: str = "") -> None:
        self.request = request
        self.trace = trace
        self.instance = instance

    def fields(self) -> dict[str, str]:
        """Those that are known."""
        known = {"request_id": self.request, "trace_id": self.trace, "instance_id": self.instance}
        return {name: value for name, value in known.items() if value}


about: ContextVar[Correlation | None] = ContextVar("aenv_correlation", default=None)


def is_about(instance: str) -> None:
    """What happens here is about that instance."""
    known = about.get()
    if known is not None:
        known.instance = instance
