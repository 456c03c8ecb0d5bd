"""The platform installed on a real cluster from our manifests, used by the SDK from outside, and removed again.

It needs kubectl and helm, and in the image a ``valkey-server`` for the chart's Redis.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from aenv.client.hub_client import HubClient
from aenv.client.platform_client import ApiClient
from aenv.sdk.environment import Environment
from tests.cluster.conftest import IMAGE
from tests.hub.parts import bundle_of, request_of
from tests.waiting import wait_while

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = {
    "kubectl": shutil.which("kubectl"),
    "helm": shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm"),
}
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not all(PROGRAMS.values()), reason="needs kubectl (apt install kubernetes-client) and helm"),
]
KINDS = (
    "pods,services,deployments,replicasets,statefulsets,persistentvolumeclaims,secrets,configmaps,leases,"
    "networkpolicies,serviceaccounts,roles,rolebindings,ingresses,poddisruptionbudgets"
)
SOURCE = """
from aenv import register_tool

count = 0

@register_tool
def increment() -> int:
    global count
    count += 1
    return count
"""
OWNERSHIP = {  # volumes of the test cluster are root's, and ignore fsGroup
    "name": "ownership",
    "image": IMAGE,
    "command": ["chown", "10001:10001", "/data"],
    "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
DEPLOY_CONFIG = {"cpu": "0.05", "memory": "256Mi", "ephemeralStorage": "64Mi"}


def program(name: str, *arguments: str) -> str:
    found = PROGRAMS[name]
    assert found is not None
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def kubectl(*arguments: str) -> str:
    return program("kubectl", *arguments)


@pytest.fixture
def namespaces() -> Iterator[Callable[..., tuple[str, ...]]]:
    """Return a function that makes namespaces; they go with the test."""
    made: list[str] = []

    def make(*names: str) -> tuple[str, ...]:
        for name in names:
            made.append(name)
            kubectl("create", "namespace", name)
            wait_while(partial(_lacks_account, name), "the namespace is not ready")
        return names

    yield make
    kubectl("delete", "namespace", "--ignore-not-found", *made)


def _lacks_account(namespace: str) -> bool:
    return "default" not in names_of("serviceaccounts", namespace)


def names_of(kinds: str, namespace: str) -> str:
    return kubectl("get", kinds, "--namespace", namespace, "--output", "name")


def everything_in(*namespaces: str) -> list[str]:
    """Return all objects in some namespaces, but for those that each namespace has, as `kind/name`."""
    found = [line for name in namespaces for line in names_of(KINDS, name).splitlines()]
    built_in = ("secret/default-token-", "configmap/kube-root-ca.crt", "serviceaccount/default")
    return sorted(each for each in found if not each.startswith(built_in))


def address(namespace: str, service: str) -> str:
    query = "{.spec.clusterIP}"
    return f"http://{kubectl('get', 'service', service, '--namespace', namespace, f'--output=jsonpath={query}')}:8080"


def secret(namespace: str, name: str, key: str) -> str:
    found = json.loads(kubectl("get", "secret", name, "--namespace", namespace, "--output=json"))
    return base64.b64decode(found["data"][key]).decode()


async def publish(url: str, token: str) -> None:
    """Publish an environment in the platform's hub."""
    bundle, blobs = bundle_of("counter", "1.0.0", {"src/env.py": SOURCE.encode()}, deployConfig=DEPLOY_CONFIG)
    hub = HubClient(url, token)
    try:
        for digest, data in blobs.items():
            await hub.put_blob(digest, data)
        await hub.push(request_of(bundle), False)
    finally:
        await hub.close()


async def use(url: str, token: str) -> None:
    """Create, call and delete an instance."""
    async with Environment("counter", aenv_url=url, api_key=token) as env:
        assert (await env.call_tool("increment")).data == 1
        assert (await env.call_tool("increment")).data == 2
    async with ApiClient(url, api_key=token) as api:
        assert await api.list_env_instances() == []


async def start(url: str, token: str) -> str:
    """Create and call an instance; leave it running, and return its id."""
    async with Environment("counter", aenv_url=url, api_key=token, keep_alive=True) as env:
        assert (await env.call_tool("increment")).data == 1
        return str((await env.get_env_info())["instance_id"])


def test_the_plain_manifests_make_a_platform_and_leave_nothing(
    namespaces: Callable[..., tuple[str, ...]], tmp_path: Path
) -> None:
    copy = tmp_path / "kubernetes"
    shutil.copytree(DEPLOY / "kubernetes", copy)
    settings = yaml.safe_load((copy / "settings.yaml").read_text())
    pod = settings["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": IMAGE, "resources": {"requests": {"cpu": "100m"}}}
    pod["containers"][0]["env"][0]["value"] = IMAGE
    pod["initContainers"] = [OWNERSHIP]
    (copy / "settings.yaml").write_text(yaml.safe_dump(settings))
    names = namespaces("aenv", "aenv-instances")
    token = f"aenv_{secrets.token_hex(6)}_{secrets.token_hex(32)}"
    kubectl("create", "secret", "generic", "aenv-admin", "--namespace=aenv", f"--from-literal=token={token}")

    kubectl("apply", "--kustomize", str(copy))
    kubectl("rollout", "status", "deployment/aenv", "--namespace=aenv", "--timeout=100s")
    asyncio.run(publish(address("aenv", "aenv"), token))
    asyncio.run(use(address("aenv", "aenv"), token))

    asyncio.run(start(address("aenv", "aenv"), token))

    # A pod that is deleted is replaced; what the volume has is still there, and the first one's instances are gone.
    kubectl("delete", "pod", "--namespace=aenv", "--selector=app.kubernetes.io/component=platform")
    kubectl("rollout", "status", "deployment/aenv", "--namespace=aenv", "--timeout=100s")
    assert pods_of_instances("aenv-instances") == []
    asyncio.run(start(address("aenv", "aenv"), token))

    # Not the namespaces, which would take everything with them.
    kubectl("delete", "--filename", str(copy / "aenv.yaml"), "--wait=false")
    kubectl("delete", "secret", "aenv-admin", "--namespace=aenv")
    wait_while(lambda: everything_in(*names), "left behind", 90)


def test_the_chart_makes_two_servers_on_a_redis_and_leaves_nothing(
    namespaces: Callable[..., tuple[str, ...]],
) -> None:
    (name,) = namespaces("aenv-chart")
    repository, _, tag = IMAGE.rpartition(":")
    small = "resources.requests.cpu=50m,resources.requests.memory=128Mi"
    values = (
        f"image.repository={repository},image.tag={tag},redis.image.repository={repository},redis.image.tag={tag},"
        f"replicas=2,redis.enabled=true,redis.persistence.enabled=false,{small},"
        "persistence.accessMode=ReadWriteMany,persistence.fixOwnership=true"
    )
    chart = str(DEPLOY / "helm" / "aenv")
    program("helm", "install", "aenv", chart, f"--namespace={name}", f"--set={values}", "--wait", "--timeout=110s")
    token = secret(name, "aenv-admin", "token")
    asyncio.run(publish(address(name, "aenv"), token))
    left = asyncio.run(start(address(name, "aenv"), token))

    async def through_every_server() -> None:
        for server in servers(name):
            options: dict[str, Any] = {"aenv_url": server, "api_key": token, "instance_id": left}
            async with Environment("counter", **options, keep_alive=True) as env:
                await env.call_tool("increment")

    assert len(servers(name)) == 2
    asyncio.run(through_every_server())
    assert "poddisruptionbudget.policy/aenv" in everything_in(name)

    program("helm", "uninstall", "aenv", f"--namespace={name}")
    wait_while(lambda: everything_in(name), "left behind", 90)


def pods_of_instances(namespace: str) -> list[str]:
    return [each for each in everything_in(namespace) if each.startswith("pod/")]


def servers(namespace: str) -> list[str]:
    """Return the URLs of the platform's servers, which only the cluster's own machine can use."""
    selector = "--selector=app.kubernetes.io/component=platform"
    found = json.loads(kubectl("get", "pods", f"--namespace={namespace}", selector, "--output=json"))
    return [f"http://{pod['status']['podIP']}:8080" for pod in found["items"]]
