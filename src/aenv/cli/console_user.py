"""The user of a rollout whom a person plays in the console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aenv.cli.output import note
from aenv.cli.platform_address import chosen

if TYPE_CHECKING:
    from aenv.console.web_user import WebUser


@asynccontextmanager
async def console_user() -> AsyncIterator[WebUser]:
    """Serve the console for the length of the block, and say where the person is asked."""
    from aenv.console.local_api import LocalApi
    from aenv.console.private_console import PrivateConsole
    from aenv.console.remote_api import RemoteApi
    from aenv.console.web_user import WebUser

    url, key = chosen(None, None)
    api = LocalApi() if url is None else RemoteApi(url, key)
    user = WebUser()
    console = PrivateConsole(api.answer, user=user)
    try:
        await console.listen()
        note(f"Be the user at {console.new_link()}")
        note("The link logs one browser in, within ten minutes.")
        yield user
    finally:
        await console.close()
        await api.close()
