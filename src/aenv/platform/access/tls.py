"""TLS without a proxy in front."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path

from aenv.errors import AEnvError, ConfigError
from aenv.platform.instances.ledger import Ledger
from aenv.platform.operations.settings import ServeSettings
from aenv.tracing.logging import getLogger

log = getLogger("serve")


class Tls:
    """A certificate, and its key, from two files that may be replaced while the server runs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises ConfigError when they cannot be used."""
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)

    @classmethod
    def of(cls, settings: ServeSettings) -> Tls | None:
        """What the settings say; None: no TLS."""
        if not settings.tls_cert and not settings.tls_key:
            return None
        if not settings.tls_cert or not settings.tls_key:
            raise ConfigError("a certificate needs its key, and a key its certificate: set tls_cert and tls_key")
        return cls(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of what clients are shown."""
        text = self._files[0].read_text()
        end = "-----END CERTIFICATE-----"
        return hashlib.sha256(
            ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN C") : text.index(end)] + end)
        ).hexdigest()

    def reload(self) -> bool:
        """Read the files again, for connections from now on. When they cannot be used, nothing changes."""
        try:
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except ConfigError as error:
            log.error("the certificate stays as it was: %s", error.message)
            return False
        log.info("the certificate was read again")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        for file in self._files:
            try:
                file.open("rb").close()
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from None
        try:
            context.load_cert_chain(certificate, key, password=_none)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{certificate} and {key} are not a certificate and its key, in PEM: {error}",
                {"hint": "The file of the certificate begins with the server's own, then come those that signed it."},
            ) from None


class Where:
    """Where other servers reach this one, and what it shows them there."""

    def __init__(self, url: str, ledger: Ledger, tls: Tls | None, behind_proxy: bool) -> None:
        """``behind_proxy``: somebody else answers at that address, with a certificate of its own."""
        self._url = url
        self._ledger = ledger
        self._tls = tls
        self._behind_proxy = behind_proxy
        self._telling: asyncio.Task[None] | None = None

    async def tell(self) -> None:
        """Write it down for them."""
        own = None if self._behind_proxy else self._tls
        await self._ledger.listens_at(self._url, own.fingerprint if own is not None else "")

    def changed(self) -> None:
        """There may be a new certificate."""
        if self._tls is not None and self._tls.reload():
            self._telling = asyncio.ensure_future(self._tell_again())

    async def _tell_again(self) -> None:
        try:
            await self.tell()
        except AEnvError as error:
            log.warning("the new certificate is written down with the next heartbeat: %s", error.message)


def _none() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")
