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
    """Factory of boxes with a network."""

    network: Network
    egress: EgressProcess
    name: str
    """Name in log lines about refused connections."""
    peer_names: tuple[str, ...] = ()
    """Host names of boxes that share the network namespace; they resolve to localhost."""

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
        extra_layers: tuple[str, ...] = (),
        network_of: Box | None = None,
    ) -> AsyncIterator[Box]:
        """Run a box like `layered_images.box`. ``network_of``: a box whose network and egress endpoint to share."""
        own = {**self.network.variables, **self._no_proxy(), **(variables or {})}
        files = {**self._hosts(), **(files or {})}
        if self.network.mode != "egress" or network_of is not None:
            async with layered_images.box(
                image, state, network=self.network.mode, variables=own, shown=shown, files=files, group=group,
                extra_layers=extra_layers, network_of=network_of,
            ) as box:  # fmt: skip
                yield box
            return
        endpoint = self.egress.endpoint(f"{self.name}-{secrets.token_hex(4)}", self.network.allow)
        opening: asyncio.Task[None] | None = None
        try:
            async with layered_images.box(
                image, state, network="egress", channel=endpoint.channel, variables=own, shown=shown, files=files,
                group=group, extra_layers=extra_layers,
            ) as box:  # fmt: skip
                opening = asyncio.create_task(endpoint.open())
                await opening
                yield box
        finally:
            endpoint.close()
            if opening is not None:
                await asyncio.gather(opening, return_exceptions=True)

    def _hosts(self) -> dict[str, str]:
        if not self.peer_names:
            return {}
        hosts = layered_images.name_lookup_files(self.network.mode).get("/etc/hosts", "127.0.0.1 localhost")
        return {"/etc/hosts": f"{hosts.rstrip()}\n127.0.0.1 {' '.join(self.peer_names)}\n"}

    def _no_proxy(self) -> dict[str, str]:
        """Return the no_proxy variables extended by the peers, which are reached directly."""
        variables = {name: value for name, value in self.network.variables.items() if name.lower() == "no_proxy"}
        return {name: ",".join([value, *self.peer_names]) for name, value in variables.items()}
