"""Where a server is. Any scheme, port and path prefix, or a unix socket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from aenv.errors import ConfigError
from aenv.schema import paths

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A base URL, taken apart."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    """A path before every path, without a slash at its end."""
    uds: str | None = None
    """A unix socket; host and port are then only for show."""

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> ServerUrl:
        """``http://h:1/p``, ``https://h``, ``h``, ``h:1``, ``[::1]:1``, ``unix:/path``.

        ``default_port`` is for http without a port. Raises ConfigError for anything else.
        """
        text = text.strip()
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path.startswith("/"):
                raise ConfigError(f"'{text}': a unix socket is written unix:/absolute/path")
            return cls("localhost", 80, uds=path)
        if text.count(":") > 1 and "://" not in text and not text.startswith("["):
            text = f"[{text}]"  # a bare IPv6 address
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
        except ValueError as error:
            raise ConfigError(f"'{text}' is not an address: {error}") from None
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"'{text}' has no usable port: {error}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ConfigError(f"'{text}' is not an address; write it like http://host:8080 or unix:/run/a.sock")
        tls = parts.scheme == "https"
        if port is None:
            port = default_port if default_port and not tls else _DEFAULT_PORTS[parts.scheme]
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"))

    def with_port(self, port: int) -> ServerUrl:
        """The same host, another port."""
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
    """Where the platform is asked for instances, and where calls to them go."""

    control: ServerUrl
    data: ServerUrl

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str) -> Planes:
        """A plain host has both planes on their own well-known ports; a URL with a port, a path or TLS of its
        own stands behind a proxy and has both in one place.
        """
        control = ServerUrl.parse(text, default_port=paths.CONTROL_PORT)
        plain = not (control.tls or control.prefix or control.uds)
        if plain and control.port == paths.CONTROL_PORT:
            return cls(control, control.with_port(paths.DATA_PORT))
        return cls(control, control)
