"""The runtime of an instance that is a new program and not a fork: it has imported nothing before.

``python -m aenv.runtime.unforked LISTENER STATUS PARAMETERS FOLDERS``: three descriptors, and a JSON list of folders to
import from. The sandbox has given up its rights already.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from aenv.isolation.files import private_folder
from aenv.runtime import sandboxed


def main() -> int:
    """Serve one instance; return the exit code."""
    listener, status, parameters = map(int, sys.argv[1:4])
    sys.path[:0] = json.loads(sys.argv[4])
    private_folder.receive_from_exec()
    for fd in (listener, status):
        os.set_inheritable(fd, False)
    with open(parameters, "rb") as file:
        parameters_json = file.read()

    def report(message: dict[str, Any] | bytes) -> None:
        os.write(status, message if isinstance(message, bytes) else json.dumps(message).encode())
        os.close(status)

    return sandboxed.serve(socket.socket(fileno=listener), parameters_json, report)


if __name__ == "__main__":
    sys.exit(main())
