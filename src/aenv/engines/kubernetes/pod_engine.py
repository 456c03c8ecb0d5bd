"""The Kubernetes engine: one pod for each instance, or many instances in a host pod.

Nothing here asks the API server again and again: a start, a stop and a poll look at the copy of all pods that one watch
keeps (`pod_watch`). The pod's own probe says when the environment answers. Everything that the engine creates belongs
to its Lease (`engine_lease`), so that nothing is left behind when this process is killed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Self

from aenv.engines.base import Capabilities, Engine, EngineOptions, Exit, SandboxRef, SandboxSpec
from aenv.engines.kubernetes import pod_labels, pod_status
from aenv.engines.kubernetes.bundle_server import BundleServer, address_towards
from aenv.engines.kubernetes.cluster_api import ApiError, ClusterApi
from aenv.engines.kubernetes.engine_lease import EngineLease
from aenv.engines.kubernetes.host_manifest import host_policy
from aenv.engines.kubernetes.host_pods import ClusterHostPods
from aenv.engines.kubernetes.kubernetes_settings import CONFIG_MAP, KubernetesSettings, host_level
from aenv.engines.kubernetes.pod_manifest import (
    PORT,
    InstanceObjects,
    ServedBundle,
    check_image,
    instance_objects,
    network_policy,
    storage_claim,
)
from aenv.engines.kubernetes.pod_pool import PodPool
from aenv.engines.kubernetes.pod_status import Pod
from aenv.engines.kubernetes.pod_templates import DEFAULT, MAIN, PodTemplates
from aenv.engines.kubernetes.pod_watch import PodWatch
from aenv.engines.kubernetes.project_archives import ProjectArchives
from aenv.engines.packed.packed_hosts import PackedHosts
from aenv.engines.teardown import finish
from aenv.errors import AEnvError, CapacityExhausted, ConfigError, EnvironmentError, LoadError, Unavailable
from aenv.isolation.files.rootfs import PROJECT
from aenv.tracing.logging import getLogger

log = getLogger("kubernetes")

LOG_BYTES = 256 * 1024
STOP_SECONDS = 30.0
"""How long to wait for the kubelet to end a pod. After that the pod is deleted without the kubelet's word."""
AT_ONCE = {"gracePeriodSeconds": 0}
SOON = {"gracePeriodSeconds": 5}
"""For a host that the platform removes: it has no instances, or they are to end with it."""


class KubernetesEngine(Engine):
    """Runs instances as pods in one namespace of a cluster, and those of environments without an image packed."""

    capabilities = Capabilities(
        networks=frozenset(("loopback", "host")),
        images=True,
        second_container=True,
        pools=True,
        storages=True,
        resources=frozenset(("cpu", "memory", "storage", "gpu")),
        storage_media=frozenset(("disk",)),
    )

    def __init__(self, folder: Path, settings: KubernetesSettings | None = None, *, isolation: str = "") -> None:
        """``isolation``: level of instances in host pods. Empty: there are no host pods."""
        self._folder = folder
        self._settings = settings or KubernetesSettings()
        self._level = isolation
        self._hosts: PackedHosts | None = None
        self._opening = asyncio.Lock()
        self._cluster: _Cluster | None = None
        self._closed = False
        self._refs: dict[str, SandboxRef] = {}
        self._logs: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._pool = PodPool(self._start, self.stop, lambda ref: self._exit_of(ref.id) is None)

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        settings = KubernetesSettings.from_environment()
        return cls(folder, settings, isolation=host_level(settings, options))

    @classmethod
    def check_host(cls) -> str:
        settings = KubernetesSettings.from_environment()

        async def check() -> str:
            api = await ClusterApi.connect(namespace=settings.namespace, context=settings.context)
            try:
                await api.request("GET", "pods", query={"limit": "1"})
                host, port = api.server_address
                return f"instances are pods in the namespace '{api.namespace}' of the cluster at {host}:{port}"
            except ApiError as error:
                raise Unavailable(error.message) from error
            finally:
                await api.close()

        return asyncio.run(check())

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        return self._pool.claim(spec)

    async def hold(self, spec: SandboxSpec, size: int) -> None:
        await self._pool.hold(spec, size)

    def held(self, spec: SandboxSpec) -> int:
        return self._pool.held(spec)

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        return await self._start(spec, pod_labels.pod_name(spec.name))

    async def _start(self, spec: SandboxSpec, name: str) -> SandboxRef:
        cluster = await self._connected()
        if self._hosts is not None and self._is_packed(spec):
            check_image(self._settings.image, "AENV_KUBERNETES_IMAGE")
            digest = await cluster.archives.digest_of(spec)
            ref = await self._hosts.start(name, spec, digest, cluster.archives.file(digest))
            self._refs[name] = ref
            return ref
        template = cluster.templates.find(spec.template)
        token = secrets.token_urlsafe(24)
        bundle = None if spec.image else await self._serve_bundle(cluster, spec)
        try:
            objects = instance_objects(name, spec, token, template=template, owner=cluster.lease.owner, bundle=bundle,
                                       fix_ownership=self._settings.fix_ownership)  # fmt: skip
            creating = asyncio.ensure_future(cluster.create(objects))
            try:
                await asyncio.shield(creating)
                pod = await self._until_ready(cluster, name, spec.project)
            except BaseException:
                await finish(_undo(cluster, name, creating))
                raise
        finally:
            if bundle is not None:
                cluster.bundles.revoke(bundle.token)
        address = pod["status"]["podIP"]
        shown = f"[{address}]" if ":" in address else address
        ref = self._refs[name] = SandboxRef(name, f"http://{shown}:{PORT}", token)
        return ref

    async def poll(self, ref: SandboxRef) -> Exit | None:
        if self._cluster is None or ref.id not in self._refs:
            return Exit(-1, "it was stopped")
        return self._exit_of(ref.id)

    def _exit_of(self, name: str) -> Exit | None:
        if self._hosts is not None and self._hosts.has(name):
            return self._hosts.exit_of(name)
        return pod_status.exit_of(self._cluster.pods.get(name)) if self._cluster is not None else Exit(-1, "stopped")

    async def stop(self, ref: SandboxRef) -> None:
        if self._cluster is None:
            return
        if self._hosts is not None and self._hosts.has(ref.id):
            await self._hosts.stop(ref.id)
        else:
            await self._cluster.remove(ref.id)
        self._refs.pop(ref.id, None)
        self._logs.pop(ref.id, None)

    async def running(self) -> AsyncIterator[SandboxRef]:
        if self._cluster is None or self._closed:
            return
        for pod in self._cluster.pods.all():
            name = pod_status.name_of(pod)
            if pod_status.is_gone(pod) or name in self._pool.names or pod_labels.HOST in pod["metadata"]["labels"]:
                continue
            yield self._refs.get(name) or SandboxRef(name, "", "")
        for name in self._hosts.names if self._hosts is not None else ():
            if name not in self._pool.names and self._exit_of(name) is None:
                yield self._refs.get(name) or SandboxRef(name, "", "")

    async def close(self) -> None:
        await self._pool.close()
        async with self._opening:
            cluster, self._cluster, self._closed = self._cluster, None, True
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            await hosts.close()
        self._refs.clear()
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        if cluster is not None:
            await cluster.close()

    async def make_storage(self, name: str, size: int) -> str:
        cluster = await self._connected()
        body = storage_claim(pod_labels.pod_name(name), name, size, self._settings.storage_class)
        try:
            await cluster.api.request("POST", "persistentvolumeclaims", body=body)
        except ApiError as error:
            raise Unavailable(f"the storage {name} cannot be made: {error.message}") from error
        return str(body["metadata"]["name"])

    async def remove_storage(self, storage: str) -> None:
        cluster = await self._connected()
        await cluster.delete("persistentvolumeclaims", storage)

    def logs(self, ref: SandboxRef) -> str:
        """Return the logs of the last fetch, and start fetching newer ones."""
        if ref.id not in self._fetching and ref.id in self._refs:
            self._fetching[ref.id] = asyncio.get_running_loop().create_task(self._fetch_log(ref.id))
        return self._logs.get(ref.id, "")

    # --- starting

    async def _connected(self) -> _Cluster:
        """Return the connection; make it on first use, since an engine is constructed before there is an event loop."""
        async with self._opening:
            if self._closed:
                raise Unavailable("the Kubernetes engine is closed")
            if self._cluster is None:
                try:
                    self._cluster = await _Cluster.open(self._folder, self._settings)
                    if self._level:
                        self._hosts = PackedHosts(self._host_pods(self._cluster), self._settings.hosts)
                except ApiError as error:
                    raise Unavailable(error.message) from error
            return self._cluster

    def _host_pods(self, cluster: _Cluster) -> ClusterHostPods:
        async def start(name: str, objects: InstanceObjects) -> Pod:
            creating = asyncio.ensure_future(cluster.create(objects))
            try:
                await asyncio.shield(creating)
                return await self._until_ready(cluster, name)
            except BaseException:
                await finish(_undo(cluster, name, creating))
                raise

        return ClusterHostPods(
            self._settings, self._level, cluster.pods, cluster.templates, lambda: cluster.lease.owner, start,
            lambda name: cluster.remove(name, SOON),
        )  # fmt: skip

    def _is_packed(self, spec: SandboxSpec) -> bool:
        """Return whether a host can give an instance all that the request asks for."""
        if spec.template.lower() not in ("", DEFAULT.lower()):
            return False
        too_weak = spec.isolation == "namespaces" and self._level != "namespaces"
        return not (spec.image or spec.second_image or spec.gpus or spec.volume or too_weak or spec.exact - {"memory"})

    async def _serve_bundle(self, cluster: _Cluster, spec: SandboxSpec) -> ServedBundle:
        check_image(self._settings.image, "AENV_KUBERNETES_IMAGE")
        served = await cluster.bundles.serve(spec)
        return ServedBundle(served.url, served.digest, served.token, self._settings.image, served.has_private)

    async def _until_ready(self, cluster: _Cluster, name: str, project: Path | None = None) -> Pod:
        """Return the pod once the environment, or the host's server, answers.

        Raises:
            EnvironmentError: it will not; the class says why.
        """
        await cluster.pods.until(name, lambda pod: _is_placed(pod) or _is_unschedulable(pod))
        try:
            async with asyncio.timeout(self._settings.unschedulable_seconds):
                await cluster.pods.until(name, _is_placed)
        except TimeoutError:
            reason = pod_status.unschedulable(cluster.pods.get(name))
            raise CapacityExhausted(f"no node of the cluster has room for the instance: {reason}") from None
        outcome: Pod | EnvironmentError = await cluster.pods.until(name, _outcome)
        if isinstance(outcome, EnvironmentError):
            raise await self._explain(cluster, name, project, outcome)
        return outcome

    async def _explain(
        self, cluster: _Cluster, name: str, project: Path | None, error: EnvironmentError
    ) -> EnvironmentError:
        """Return the error with what the ended container wrote, if one has ended."""
        ended = pod_status.ended_container(cluster.pods.get(name) or {"metadata": {}})
        if ended is None or ended[2] == "OOMKilled" or not isinstance(error, LoadError | Unavailable):
            return error
        try:
            output = await cluster.api.log(name, ended[0], tail_bytes=LOG_BYTES)
        except (ApiError, AEnvError):
            return error
        text = f"\n{output}".rpartition("\nError: ")[2].strip()
        if not text:
            return error
        if project is None:
            return Unavailable(f"a host pod cannot run instances: {text[-1000:]}")
        return type(error)(text.replace(f"{PROJECT}/", f"{project}/"))

    async def _fetch_log(self, name: str) -> None:
        try:
            host = self._hosts.host_of(name) if self._hosts is not None else None
            if host is not None:
                text, _, _ = await host.about(name, 0)
            elif self._cluster is not None:
                text = await self._cluster.api.log(name, MAIN, tail_bytes=LOG_BYTES)
            else:
                return
            if name in self._refs:
                self._logs[name] = text
        except (ApiError, AEnvError) as error:
            log.debug("the log of %s could not be read: %s", name, error.message)
        finally:
            self._fetching.pop(name, None)


class _Cluster:
    """The connection of an engine to its cluster, with all that lives as long as it."""

    def __init__(
        self, api: ClusterApi, lease: EngineLease, pods: PodWatch, archives: ProjectArchives, templates: PodTemplates
    ) -> None:
        self.api, self.lease, self.pods, self.archives, self.templates = api, lease, pods, archives, templates
        self.bundles = BundleServer(archives)

    @classmethod
    async def open(cls, folder: Path, settings: KubernetesSettings) -> _Cluster:
        api = await ClusterApi.connect(namespace=settings.namespace, context=settings.context)
        lease = EngineLease(api, config_map=settings.owner)
        made: _Cluster | None = None
        try:
            templates = await _templates(api, settings.templates)
            await lease.open()
            labels = {**pod_labels.MANAGED_BY, pod_labels.ENGINE: lease.owner.name}
            made = cls(
                api, lease, PodWatch(api, pod_labels.selector(labels)), ProjectArchives(folder / "bundles"), templates
            )
            await made.pods.open()
            await made._open_bundles(settings)
        except BaseException:
            watching = [made.bundles.close(), made.pods.close()] if made is not None else []
            await finish(_close_all(*watching, lease.close(), api.close()))
            raise
        return made

    async def _open_bundles(self, settings: KubernetesSettings) -> None:
        host, port = settings.bundle_host_and_port()
        try:
            address = host or await asyncio.to_thread(address_towards, *self.api.server_address)
        except OSError as error:
            raise ConfigError(
                f"the address at which pods reach this machine is unknown: {error}; set AENV_KUBERNETES_BUNDLE_ADDRESS"
            ) from error
        bound = await self.bundles.open(address, port, everywhere=bool(host))
        policy = network_policy(self.lease.owner, address if _is_address(address) else None, bound)
        await self.api.request("POST", "networkpolicies", body=policy)
        await self.api.request("POST", "networkpolicies", body=host_policy(self.lease.owner))
        log.info(
            "instances are pods in the namespace %s; their network is closed where the cluster enforces network "
            "policies", self.api.namespace,
        )  # fmt: skip

    async def create(self, objects: InstanceObjects) -> None:
        """Create the objects of an instance.

        Raises:
            CapacityExhausted: a quota of the namespace is used up.
            ConfigError: the cluster refuses the pod as it is.
        """
        try:
            await self.api.request("POST", "secrets", body=objects.secret)
            self.pods.add(await self.api.request("POST", "pods", body=objects.pod, query={"fieldValidation": "Strict"}))
        except ApiError as error:
            if error.answer in (400, 422):
                raise ConfigError(error.message) from error
            raise Unavailable(error.message) from error

    async def remove(self, name: str, grace: dict[str, Any] | None = None) -> None:
        """Delete the objects of a pod; return when it is gone. Idempotent. ``grace``: in place of the pod's own."""
        # The kubelet takes its time with a pod that runs nothing, such as one whose image cannot be pulled.
        options = AT_ONCE if pod_status.is_idle(self.pods.get(name)) else grace
        await asyncio.gather(self.delete("pods", name, options), self.delete("secrets", name))
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.pods.until(name, _gone)
        except TimeoutError:
            log.warning("the kubelet has not ended the pod %s in %g s; it is deleted without it", name, STOP_SECONDS)
            await self.delete("pods", name, AT_ONCE)
            await self.pods.until(name, _gone)

    async def delete(self, kind: str, name: str, options: dict[str, Any] | None = None) -> None:
        """Delete an object. Idempotent."""
        try:
            await self.api.request("DELETE", kind, name, options)
        except ApiError as error:
            if error.answer != 404:
                raise Unavailable(error.message) from error

    async def close(self) -> None:
        """Stop all instances, and remove every trace of the engine."""
        names = [pod_status.name_of(pod) for pod in self.pods.all()]
        try:
            await asyncio.gather(*(self.remove(name, SOON) for name in names))
            for kind in ("loopback", "hosts"):
                await self.delete("networkpolicies", f"{self.lease.owner.name}-{kind}")
        finally:
            self.archives.close()
            await _close_all(self.bundles.close(), self.pods.close(), self.lease.close(), self.api.close())


def _is_placed(pod: Pod | None) -> bool | None:
    return True if pod is None or pod_status.is_placed(pod) else None


def _is_unschedulable(pod: Pod | None) -> bool | None:
    return True if pod_status.unschedulable(pod) else None


def _outcome(pod: Pod | None) -> Pod | EnvironmentError | None:
    """Return the pod if it is ready, an error if it will not be, None while it starts."""
    problem = pod_status.start_problem(pod)
    if problem is not None or pod is None:
        return problem
    return pod if pod_status.is_ready(pod) else None


def _gone(pod: Pod | None) -> bool | None:
    return True if pod_status.is_gone(pod) else None


async def _undo(cluster: _Cluster, name: str, creating: asyncio.Future[None]) -> None:
    """Remove what a failed start has made. A request that is under way may still make it, so its end is waited for."""
    await asyncio.wait([creating])
    try:
        await cluster.remove(name)
    except AEnvError as error:
        log.warning("pod %s could not be removed: %s", name, error.message)


async def _templates(api: ClusterApi, source: str) -> PodTemplates:
    if not source.startswith(CONFIG_MAP):
        return PodTemplates.in_folder(Path(source)) if source else PodTemplates()
    name = source.removeprefix(CONFIG_MAP)
    try:
        found = await api.request("GET", "configmaps", name)
    except ApiError as error:
        raise ConfigError(f"pod templates: the ConfigMap '{name}' cannot be read: {error.message}") from error
    return PodTemplates(found.get("data") or {})


async def _close_all(*closing: Coroutine[Any, Any, None]) -> None:
    """Close in this order. A failure is logged and keeps nothing from being closed."""
    for each in closing:
        try:
            await each
        except (ApiError, AEnvError) as error:
            log.warning("not closed: %s", error.message)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
