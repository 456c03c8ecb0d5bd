"""SWE-ReX: its server in no sandbox, through its own client, or, without an address, in this very process."""

import itertools

from commands import Open, Run, main
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime
from swerex.runtime.remote import RemoteRuntime

_names = itertools.count()


async def session(url: str) -> Open:
    if url == "-":
        runtime = LocalRuntime()
    else:
        host, _, port = url.rpartition(":")
        runtime = RemoteRuntime(host=host, port=int(port), auth_token="bench", timeout=60)

    async def open_session() -> Run:
        name = f"session{next(_names)}"
        await runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=10))

        async def run(command: str) -> tuple[str, int]:
            action = BashAction(command=command, session=name, timeout=60, check="silent")
            seen = await runtime.run_in_session(action)
            return seen.output, seen.exit_code

        return run

    return open_session


main(session)
