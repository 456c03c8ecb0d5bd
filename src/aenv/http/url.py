"""Server addresses: HTTP or HTTPS with any port and path prefix, or a unix socket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from aenv.errors import ConfigError
from aenv.schema import paths

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A parsed base URL."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    """Path prefix of every request, without a trailing slash."""
    uds: str | None = None
    """Path of a unix socket. ``host`` and ``port`` are placeholders then."""

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> ServerUrl:
        """Parse ``http://h:1/p``, ``https://h``, ``h``, ``h:1``, ``[::1]:1`` or ``unix:/path``.

        ``default_port`` applies to http addresses without a port.

        Raises:
            ConfigError: the text is not an address of one of these forms.
        """
        text = text.strip()
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path.startswith("/"):
                raise ConfigError(f"invalid address '{text}': write a unix socket as unix:/absolute/path")
            return cls("localhost", 80, uds=path)
        if text.count(":") > 1 and "://" not in text and not text.startswith("["):
            text = f"[{text}]"  # a bare IPv6 address
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
        except ValueError as error:
            raise ConfigError(f"invalid address '{text}': {error}") from None
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"invalid port in '{text}': {error}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ConfigError(f"invalid address '{text}'; expected something like http://host:8080 or unix:/run/a.sock")
        tls = parts.scheme == "https"
        if port is None:
            port = default_port if default_port and not tls else _DEFAULT_PORTS[parts.scheme]
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"))

    def with_port(self, port: int) -> ServerUrl:
        """Return this URL with another port."""
        return replace(self, port=port)

    @property
    def authority(self) -> str:
        """``host:port``, for the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.uds:
            return f"unix:{self.uds}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Planes:
    """Addresses of a platform's control plane (create, delete) and of its data plane (calls to instances)."""

    control: ServerUrl
    data: ServerUrl

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str) -> Planes:
        """Derive both addresses from one text.

        A plain host serves the two planes on their own well-known ports. A URL with a port, a path or TLS of its own
        stands behind a proxy and serves both planes at that one address.
        """
        control = ServerUrl.parse(text, default_port=paths.CONTROL_PORT)
        plain = not (control.tls or control.prefix or control.uds)
        if plain and control.port == paths.CONTROL_PORT:
            return cls(control, control.with_port(paths.DATA_PORT))
        return cls(control, control)
