"""Open a hub: a server by its URL, or the local one in the user's data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aenv import config
from aenv.client.first_contact import RESTART_SECONDS
from aenv.http.url import Planes
from aenv.hub.access.storage_quota import DEFAULT
from aenv.hub.builtin import seed
from aenv.hub.catalog import Catalog
from aenv.hub.local_hub import LocalHub
from aenv.hub.references import index_blobs
from aenv.hub.web.webhooks import Webhooks
from aenv.schema.envhub import Hub
from aenv.schema.instances import HubAccess
from aenv.storage.open_url import data_folder, open_blobs, open_store


@dataclass(frozen=True, slots=True)
class HubLocation:
    """URLs of a hub's record store and blob store."""

    store: str
    blobs: str

    @classmethod
    def of(cls, store: str | None = None, blobs: str | None = None, data: Path | None = None) -> HubLocation:
        """Fill in defaults: the user's data folder, or for blobs the folder of a store that is a file."""
        folder = (data or data_folder()) / "hub"
        if store and "://" not in store:
            folder = Path(store.removeprefix("sqlite:")).expanduser().absolute().parent
        return cls(store or f"sqlite:{folder / 'hub.db'}", blobs or str(folder / "blobs"))


def open_catalog(location: HubLocation, quota: int = DEFAULT) -> Catalog:
    """Open the catalog at a location; built-in environments are added on first use.

    ``quota``: bytes that a user may occupy; 0: no limit.
    """
    store = open_store(location.store)
    return Catalog(store, open_blobs(location.blobs), Webhooks(store), prepare=_prepare, quota=quota)


async def _prepare(catalog: Catalog) -> None:
    await index_blobs(catalog.store, catalog.blobs)
    await seed(catalog)


def hub_url(settings: config.Settings) -> str:
    """Return the URL of the hub that commands use; empty: the local hub.

    Without a hub of its own, that is the hub of the platform that the user has a token for.
    """
    hub = settings.hub_config
    if hub.hub_backend or not (settings.system_url and hub.api_key):
        return hub.hub_backend
    return str(Planes.parse(settings.system_url).control)


def place(settings: config.Settings) -> str:
    """Return where the hub that commands use is, in words."""
    return hub_url(settings) or f"this machine, {HubLocation.of().store.removeprefix('sqlite:')}"


def open_hub(access: HubAccess | None = None) -> Hub:
    """Open the hub given by ``access``, or by the user's settings without it.

    A URL (``http://…``, ``https://…``, ``unix:/…``) means a server; no URL means the local hub in the data folder.
    With ``access``, queries wait for a hub that is down for two seconds at most: platforms pass it, and can use what
    they have cached.
    """
    restart = None if access is None else RESTART_SECONDS
    if access is None:
        settings = config.load()
        hub = settings.hub_config
        access = HubAccess(url=hub_url(settings), token=hub.api_key, timeout=hub.timeout)
    if access.url:
        from aenv.client.hub_client import HubClient

        token, certificates = access.token or None, access.certificates
        return HubClient(access.url, token, timeout=access.timeout, certificates=certificates, restart=restart)
    return LocalHub(open_catalog(HubLocation.of(data=Path(access.data) if access.data else None)))
