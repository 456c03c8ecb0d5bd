"""The hub that this user means: a server, or one in their own data folder that needs none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aenv.hub.access import OWNER
from aenv.hub.builtin import seed
from aenv.hub.catalog import Catalog
from aenv.hub.local import LocalHub
from aenv.hub.notices import Notices
from aenv.schema.hub import Hub
from aenv.storage.open import data_folder, open_blobs, open_store


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hub keeps its things."""

    store: str
    blobs: str

    @classmethod
    def of(cls, store: str | None = None, blobs: str | None = None) -> Place:
        """As told, else in the user's data folder. Blobs of a store on disk lie beside it."""
        folder = data_folder() / "hub"
        if store and blobs is None and "://" not in store:
            folder = Path(store.removeprefix("sqlite:")).expanduser().absolute().parent
        return cls(store or f"sqlite:{folder / 'hub.db'}", blobs or str(folder / "blobs"))


def open_catalog(place: Place) -> Catalog:
    """The catalogue that is kept there."""
    store = open_store(place.store)
    return Catalog(store, open_blobs(place.blobs), Notices(store))


async def open_embedded(place: Place | None = None) -> LocalHub:
    """A hub with no server, for its owner, with the environments that come with aenv in it."""
    catalog = open_catalog(place or Place.of())
    await seed(catalog)
    return LocalHub(catalog, OWNER)


async def open_hub(url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> Hub:
    """The hub at that address (``http://…``, ``https://…``, ``unix:/…``), or without one the embedded hub."""
    if not url:
        return await open_embedded()
    from aenv.client.hub import HubClient

    return HubClient(url, token, timeout=timeout)
