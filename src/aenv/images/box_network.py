"""Network of a box: none, the host's own, or a list of hosts through the egress proxy."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aenv.images import layered_images
from aenv.images.box import Box
from aenv.images.layered_images import BoxImage
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.egress_process import EgressProcess
from aenv.isolation.network.policy import Network


@dataclass(frozen=True, slots=True)
class BoxNetwork:
    """Makes boxes that have a network."""

    network: Network
    egress: EgressProcess
    name: str
    """For the log: what was refused to whom."""
    neighbours: tuple[str, ...] = ()
    """Names of boxes beside: they share the network, so they are where localhost is."""

    @asynccontextmanager
    async def box(
        self,
        image: BoxImage,
        state: Path,
        *,
        variables: Mapping[str, str] | None = None,
        shown: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        group: Cgroup | None = None,
        above: tuple[str, ...] = (),
        beside: Box | None = None,
    ) -> AsyncIterator[Box]:
        """As `images.box`. ``beside``: a box that has the way out already."""
        own = {**self.network.variables, **self._direct(), **(variables or {})}
        files = {**self._hosts(), **(files or {})}
        if self.network.mode != "egress" or beside is not None:
            async with layered_images.box(
                image, state, network=self.network.mode, variables=own, shown=shown, files=files, group=group,
                above=above, beside=beside,
            ) as box:  # fmt: skip
                yield box
            return
        door = self.egress.door(f"{self.name}-{secrets.token_hex(4)}", self.network.allow)
        opening: asyncio.Task[None] | None = None
        try:
            async with layered_images.box(
                image, state, network="egress", channel=door.channel, variables=own, shown=shown, files=files,
                group=group, above=above,
            ) as box:  # fmt: skip
                opening = asyncio.create_task(door.open())
                await opening
                yield box
        finally:
            door.close()
            if opening is not None:
                await asyncio.gather(opening, return_exceptions=True)

    def _hosts(self) -> dict[str, str]:
        if not self.neighbours:
            return {}
        known = layered_images.rootfs_files(self.network.mode).get("/etc/hosts", "127.0.0.1 localhost")
        return {"/etc/hosts": f"{known.rstrip()}\n127.0.0.1 {' '.join(self.neighbours)}\n"}

    def _direct(self) -> dict[str, str]:
        """No proxy is asked for them."""
        known = {name: value for name, value in self.network.variables.items() if name.lower() == "no_proxy"}
        return {name: ",".join([value, *self.neighbours]) for name, value in known.items()}
