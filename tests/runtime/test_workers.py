"""The threads that an environment's functions run in."""

from __future__ import annotations

import threading

from aenv.authoring.call import Call
from aenv.runtime.calls.workers import Workers
from tests.conftest import run


def test_closed_workers_end_their_threads_and_can_be_used_again() -> None:
    async def main() -> tuple[str, str]:
        workers = Workers()
        names = []
        for _ in range(2):
            names.append(await workers.run(lambda: threading.current_thread().name, Call()))
            [thread] = [thread for thread in threading.enumerate() if thread.name == names[-1]]
            workers.close()
            thread.join(10)
            assert not thread.is_alive()
        return names[0], names[1]

    assert run(main()) == ("aenv-tool-1", "aenv-tool-1")
