# We ask the tutor, and the tutor asks the librarian. When the librarian is gone, that is nobody's mistake: infra.
# Run it: python examples/06_agent_as_environment/main.py

import asyncio
import os
import tempfile
from pathlib import Path

from aenv import Environment
from aenv.testing import Server, running

HERE = Path(__file__).parent


async def main(librarian: Server, tutor: Server) -> None:
    async with (
        Environment("tutor@1.0.0", aenv_url=tutor.url) as agent,
        Environment("librarian@1.0.0", aenv_url=librarian.url) as source,
    ):
        plan = await agent.call_tool("plan_reading", {"topics": ["whales", "cheese"], "pupil": "Ada"})
        for topic, book in plan.data["books"].items():
            print(f"{topic}: {book}")
        print(plan.data["librarian"])
        print(f"the librarian heard: {await source.call_function('history', {'session': 'Ada'})}")

        librarian.stop()
        failed = await agent.call_tool("plan_reading", {"topics": ["logic"], "pupil": "Ada"})
        print(f"without the librarian: is_error={failed.is_error} fault={failed.fault}")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        running(HERE / "librarian.py", log=Path(folder, "librarian")) as librarian,
    ):
        known = {"LIBRARIAN": librarian.url, "AENV_INSTANCE_URL": librarian.url}  # no platform: servers of our own
        os.environ.update(known)
        with running(HERE / "tutor.py", log=Path(folder, "tutor"), variables=known) as tutor:
            asyncio.run(main(librarian, tutor))
