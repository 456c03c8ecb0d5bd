"""TLS served by the platform itself, without a proxy in front."""

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
    """A certificate and its key, from two files that may be replaced while the server runs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load both files.

        Raises:
            ConfigError: they are missing or invalid.
        """
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)

    @classmethod
    def of(cls, settings: ServeSettings) -> Tls | None:
        """Return the TLS that the settings ask for; None: plain HTTP."""
        if not settings.tls_cert and not settings.tls_key:
            return None
        if not settings.tls_cert or not settings.tls_key:
            raise ConfigError("a certificate needs its key, and a key its certificate: set tls_cert and tls_key")
        return cls(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate that clients are shown."""
        text = self._files[0].read_text()
        end = "-----END CERTIFICATE-----"
        return hashlib.sha256(
            ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN C") : text.index(end)] + end)
        ).hexdigest()

    def reload(self) -> bool:
        """Reload both files for new connections; return False and keep the old ones if they are invalid."""
        try:
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except ConfigError as error:
            log.error("the old certificate stays in use: %s", error.message)
            return False
        log.info("reloaded the certificate")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        for file in self._files:
            try:
                file.open("rb").close()
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from None
        try:
            context.load_cert_chain(certificate, key, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{certificate} and {key} are not a PEM certificate and its key: {error}",
                {"hint": "Put the server's own certificate first in the file, then those that signed it."},
            ) from None


class ServerAddress:
    """The URL by which other servers reach this one, and the certificate that they see there."""

    def __init__(self, url: str, ledger: Ledger, tls: Tls | None, behind_proxy: bool) -> None:
        """``behind_proxy``: a proxy answers at that URL, with a certificate of its own."""
        self._url = url
        self._ledger = ledger
        self._tls = tls
        self._behind_proxy = behind_proxy
        self._publishing: asyncio.Task[None] | None = None

    async def publish(self) -> None:
        """Write the address to the ledger, for other servers."""
        own = None if self._behind_proxy else self._tls
        await self._ledger.announce_url(self._url, own.fingerprint if own is not None else "")

    def reload_certificate(self) -> None:
        """Reload the certificate and publish its new fingerprint."""
        if self._tls is not None and self._tls.reload():
            self._publishing = asyncio.ensure_future(self._publish_again())

    async def _publish_again(self) -> None:
        try:
            await self.publish()
        except AEnvError as error:
            log.warning("the new certificate is published with the next heartbeat: %s", error.message)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted with a password; use one without")
