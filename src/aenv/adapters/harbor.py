"""Harbor environment without Docker: ``harbor run -e aenv.adapters.harbor:BoxEnvironment``.

Harbor starts an environment for each trial, runs the commands of the agent and the verifier in it, and copies files in
and out. uv, which most verifiers would download, is already installed.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode

from aenv.errors import UsageError
from aenv.images import box_files, layered_images, verifier_tools
from aenv.images.box import PATH, Box
from aenv.images.box_network import BoxNetwork
from aenv.images.dockerfile_build import build
from aenv.images.layered_images import BoxImage
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.isolation.limits.cgroups import Cgroups, Limits
from aenv.isolation.network.egress_process import EgressProcess
from aenv.isolation.network.policy import Network
from aenv.tracing.logging import getLogger

log = getLogger("harbor")

PROCESSES = 4096
MEMORY = 4 << 30


class BoxEnvironment(BaseEnvironment):  # type: ignore[misc]
    """Container of one trial. ``--ek network=HOSTS`` sets the hosts of the "public" network; default: all hosts."""

    def __init__(self, *args: Any, network: str = "*", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._public = network
        self._open = AsyncExitStack()
        self._box: Box | None = None
        self._image: BoxImage | None = None
        self._variables: dict[str, str] = {}

    @staticmethod
    def type() -> str:
        return "aenv"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True, network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True, network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
        )  # fmt: skip

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"{self.environment_dir / 'Dockerfile'}: a box is built from a Dockerfile")
        if any(self.environment_dir.glob("docker-compose.y*ml")):
            raise ValueError(f"{self.environment_dir}: only `aenv bench terminal` supports several containers")

    async def start(self, force_build: bool) -> None:
        """Build the image, unless it is cached, and start the container."""
        context = Path(self.environment_dir)
        self._image = await build(context / "Dockerfile", context)
        shown, self._variables = await verifier_tools.tools_for(_script(context.parent / "tests"))
        self._variables["PATH"] = f"{self._image.variables.get('PATH', PATH)}:{verifier_tools.TOOLS}/bin"
        place = Path(tempfile.mkdtemp(prefix="harbor-", dir=layered_images.layer_folder("unfinished")))
        self._open.push_async_callback(layered_images.remove, place)
        cgroups = Cgroups(f"aenv-harbor-{os.getpid()}-{place.name[-8:]}")
        self._open.callback(cgroups.remove)
        egress = EgressProcess(lambda name, text: log.info("%s: %s", name, text.strip()))
        self._open.push_async_callback(egress.end)
        way_out = BoxNetwork(self._network(), egress, self.environment_name)
        self._box = await self._open.enter_async_context(
            way_out.box(
                self._image, layered_images.new_state(place / "state"), shown=shown, group=cgroups.make(self._limits())
            )
        )
        folders = " ".join(f"/logs/{name}" for name in ("agent", "verifier", "artifacts"))
        await self._box.exec(f"mkdir -p {folders} && chmod 777 /logs {folders}")

    async def stop(self, delete: bool) -> None:
        """Stop the container and remove its state, regardless of ``delete``."""
        self._box = None
        await self._open.aclose()

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        folder, _, name = str(target_path).rpartition("/")
        await self._started_box().unpack(lambda target: box_files.pack(target, Path(source_path), name), folder or "/")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._started_box().unpack(lambda target: box_files.pack(target, Path(source_dir), "."), str(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        with scratch_folder("harbor") as place:
            await self._fetch(source_path, Path(place), name="file")
            Path(target_path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(place, "file"), target_path, follow_symlinks=False)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._fetch(source_dir, Path(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        assert self._image is not None
        resolved = self._resolve_user(user)
        done = await self._started_box().exec(
            ["bash", "-c", command],
            cwd=cwd or self.task_env_config.workdir or self._image.cwd,
            env={**self._variables, **(self._merge_env(env) or {})},
            user=self._image.user if resolved is None else str(resolved),
            timeout=timeout_sec,
        )
        if done.timed_out:
            raise RuntimeError(f"the command took longer than {timeout_sec} s")
        return ExecResult(stdout=done.output, stderr=done.errors, return_code=done.code)

    async def _fetch(self, path: str, target: Path, *, name: str = "") -> None:
        """Copy a file or folder out of the box. Its archive is untrusted: it may not name paths of this machine."""
        target.mkdir(parents=True, exist_ok=True)
        with scratch_folder("harbor") as place:
            packed = Path(place, "packed.tar")
            await self._started_box().pack(str(path), packed)
            with tarfile.open(packed) as archive:
                for member in archive:
                    if name:
                        member.name = name
                    archive.extract(member, target, filter=transfer_tar_filter)
                    if name:
                        break

    def _started_box(self) -> Box:
        if self._box is None:
            raise UsageError("the environment has not been started")
        return self._box

    def _network(self) -> Network:
        policy = self.network_policy
        if policy.network_mode == NetworkMode.NO_NETWORK:
            return Network("loopback")
        hosts = policy.allowed_hosts if policy.network_mode == NetworkMode.ALLOWLIST else self._public.split(",")
        return Network.parse("host" if hosts == ["host"] else list(hosts))

    def _limits(self) -> Limits:
        wanted = self.task_env_config
        cpus = min(float(wanted.cpus or 1), float(os.cpu_count() or 1))
        memory = int(wanted.memory_mb) << 20 if wanted.memory_mb else MEMORY
        return Limits(memory=memory, cpus=cpus, processes=PROCESSES)


def _script(tests: Path) -> str:
    """Return the verifier's script if it is next to the environment; it names the Python version to install."""
    try:
        return (tests / "test.sh").read_text(errors="replace")
    except OSError:
        return "uv"
