"""Rules for an instance that is created from inside another one, its parent.

It is created for the user who created the parent, with that user's allowance, and ends with the parent. The parent's
code may be steered by an agent, so its request may choose little: an environment that the parent's config.json
declares, its variables, arguments, labels and time to live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aenv.errors import Forbidden, InvalidArguments, UsageError
from aenv.schema.instances import EnvInstanceCreateRequest
from aenv.schema.ref import EnvRef, is_digest, order

if TYPE_CHECKING:
    from aenv.platform.instances.instance_record import InstanceRecord

MAX_DEPTH = 3
"""Environments that can be opened inside of each other, below the outermost one."""
MAX_OPEN = 64
"""Instances that one instance may have open at the same time, whatever its user's allowance."""
MAX_REQUEST_ID = 200
_NOT_ALLOWED = (
    "source", "hub", "fetching", "network", "mount_points", "keep_alive", "cpu", "memory", "storage", "gpu",
)  # fmt: skip


class Opening:
    """A request of an instance to create another one."""

    def __init__(self, parent: InstanceRecord, request: EnvInstanceCreateRequest) -> None:
        """Check the request and complete it with what comes from the parent.

        Raises:
            Forbidden: the environment is not declared, or environments are nested too deeply.
            UsageError: the request chooses something that only a caller outside of an instance may choose.
        """
        self.parent = parent
        self._declared = _declared(parent, request.envName)
        if parent.depth >= MAX_DEPTH:
            raise Forbidden(
                f"{parent.env_name} cannot open {request.envName}: environments are nested at most {MAX_DEPTH} deep"
            )
        _refuse_choices(request)
        if request.request_id and len(request.request_id) > MAX_REQUEST_ID:
            raise InvalidArguments(f"request_id: over {MAX_REQUEST_ID} characters")
        experiment = {"experiment": parent.labels["experiment"]} if "experiment" in parent.labels else {}
        self.request = request.model_copy(
            update={
                "envName": self._reference(request.envName),
                "owner": parent.request.owner,
                "labels": {**(request.labels or {}), **experiment} or None,
                # Scoped to the parent: the id of a request must not find an instance that it did not create.
                "request_id": f"{parent.id}/{request.request_id}" if request.request_id else None,
                "hub": parent.request.hub,
                "fetching": parent.request.fetching,
                "lease": None, "count": None, "items": None, "item": None,
            }
        )  # fmt: skip

    def _reference(self, wanted: str) -> str:
        """Return the environment to create: of a name without a version, the declared one."""
        return wanted if EnvRef.parse(wanted).want else str(self._declared[0])

    def bind(self, record: InstanceRecord, open_now: int) -> None:
        """Make a record the one of a nested instance. ``open_now``: instances that the parent has open.

        Raises:
            Forbidden: it is of another version than declared, or one too many, or it would open the network further.
        """
        name, _, version = record.env_name.partition("@")
        if not any(_matches(ref, version, record.digest) for ref in self._declared):
            declared = ", ".join(map(str, self._declared))
            raise Forbidden(f"{self.parent.env_name} may open {declared}, but this is {name}@{version}")
        if open_now >= MAX_OPEN:
            raise Forbidden(f"{self.parent.id} has {open_now} environments open, which is the limit; release one")
        self._refuse_opening_the_network(record)
        record.parent, record.depth = self.parent.id, self.parent.depth + 1

    def _refuse_opening_the_network(self, record: InstanceRecord) -> None:
        """Refuse variables that open the network, unless the parent's caller has given the parent the same ones."""
        loaded = record.project.loaded if record.project is not None else None
        allow = loaded.manifest.network().allow if loaded is not None else ()
        given = record.request.environment_variables or {}
        project = self.parent.project
        own = {
            **(project.variables if project is not None else {}),
            **(self.parent.request.environment_variables or {}),
        }
        for entry in allow:
            name = entry.removeprefix("$")
            if entry.startswith("$") and name in given and given[name] != own.get(name):
                raise Forbidden(
                    f"{name} opens the network of {record.env_name}: inside {self.parent.env_name} it can only have "
                    "the value that this instance was created with"
                )


def _declared(parent: InstanceRecord, wanted: str) -> list[EnvRef]:
    """Return the declared references with the name of the wanted one; raise Forbidden if there is none."""
    try:
        name = EnvRef.parse(wanted).name
    except ValueError as error:
        raise InvalidArguments(str(error)) from None
    found = [ref for ref in map(EnvRef.parse, parent.opens) if ref.name == name]
    if not found:
        raise Forbidden(
            f"{parent.env_name} may not open '{name}': its config.json declares {', '.join(parent.opens) or 'none'}",
            details={"hint": f'Add it: "deployConfig": {{"environments": ["{name}"]}}'},
        )
    return found


def _matches(ref: EnvRef, version: str, digest: str) -> bool:
    if not ref.want:
        return True
    if is_digest(ref.want):
        return ref.want == digest
    within = ref.range
    return version == ref.want if within is None else bool(version) and within.low <= order(version) < within.high


def _refuse_choices(request: EnvInstanceCreateRequest) -> None:
    for field in _NOT_ALLOWED:
        if getattr(request, field):
            raise UsageError(f"{field}: code in an instance cannot choose it for an environment that it opens")
    if request.datasource.startswith("/"):
        raise UsageError("datasource: code in an instance cannot mount folders of the platform's machine")
