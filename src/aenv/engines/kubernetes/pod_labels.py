"""Names and labels of Kubernetes objects.

A label value has at most 63 characters of a small set; owners and experiments are often called something else. A value
that has to be changed gets a digest of the original appended, so that two values never become one, and the originals
are kept in annotations.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping

PREFIX = "aenv/"
USER_PREFIX = "aenv-user/"
"""Prefix of labels that the caller chose, so that none can take the place of one of ours."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "aenv"}
ENGINE = f"{PREFIX}engine"
"""Label with the name of the engine's Lease."""
NETWORK = f"{PREFIX}network"
HOST = f"{PREFIX}host"
"""Label of pods that hold instances, and are none."""
STORAGE = f"{PREFIX}storage"
TENANT = f"{PREFIX}tenant"
EXPERIMENT = "experiment"
"""Key of the caller's label that becomes a label of ours."""
_LONGEST = 63
_DIGEST = 8
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def label_value(text: str) -> str:
    """Return the text as a label's value (or as the name of a label's key): unchanged if it is valid."""
    if _LABEL.fullmatch(text):
        return text
    clean = re.sub(r"[^-A-Za-z0-9_.]+", "-", text)[: _LONGEST - _DIGEST - 1].strip("-_.")
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{clean}-{digest}" if clean else digest


def pod_name(environment: str) -> str:
    """Return a new name for the pod of an environment, which is given like ``name@version``."""
    clean = re.sub(r"[^a-z0-9]+", "-", environment.partition("@")[0].lower())[:40].strip("-")
    return f"{clean or 'env'}-{secrets.token_hex(5)}"


def labels_of(
    environment: str, *, engine: str, owner: str = "", ttl: str = "", network: str = "", user: Mapping[str, str]
) -> dict[str, str]:
    """Return the labels of an instance's objects."""
    name, _, version = environment.partition("@")
    own = {
        "name": name,
        "version": version,
        "owner": owner,
        "experiment": user.get(EXPERIMENT, ""),
        "ttl": ttl,
        "network": network,
        "engine": engine,
    }
    return {
        **MANAGED_BY,
        **{f"{PREFIX}{key}": label_value(value) for key, value in own.items() if value},
        **{f"{USER_PREFIX}{label_value(key)}": label_value(value) for key, value in user.items() if key},
    }


def annotations_of(environment: str, *, owner: str = "", user: Mapping[str, str]) -> dict[str, str]:
    """Return annotations with the original texts of the labels."""
    return {
        f"{PREFIX}environment": environment,
        **({f"{PREFIX}owner": owner} if owner else {}),
        **({f"{PREFIX}labels": json.dumps(dict(user), sort_keys=True)} if user else {}),
    }


def selector(labels: Mapping[str, str]) -> str:
    """Return a label selector that matches objects with all of these labels."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
