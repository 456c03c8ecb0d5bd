"""Server API of version 0.1; the code is in ``aenv.runtime``."""

from __future__ import annotations

from pathlib import Path

from aenv.authoring.declarations import get_registry
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.loader import load
from aenv.runtime.serve import ServeOptions, check_address, serve_catalog


class AEnvMCPServer:
    """Load the files of an environment, then serve its tools, functions and rewards."""

    def __init__(self, name: str = "aenv-server", version: str = "0.1.0") -> None:
        self.name = name
        self.version = version

    def load_tools_from_directory(self, directory: str | Path) -> int:
        """Import a project or folder, and return the number of tools that are now registered."""
        return len(load(Path(directory)).tools)

    def load_tools_from_module(self, module_path: str | Path) -> int:
        """Import one file, and return the number of tools that are now registered."""
        return len(load(Path(module_path)).tools)

    def run(self, host: str = "127.0.0.1", port: int = 8081, *, no_auth: bool = False) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        options = ServeOptions(Path(), host=host, port=port, name=self.name, no_auth=no_auth)
        check_address(options)
        serve_catalog(options, EndpointCatalog(get_registry()))


def create_server(name: str = "aenv-server", version: str = "0.1.0") -> AEnvMCPServer:
    """Return a server without any tools."""
    return AEnvMCPServer(name, version)
