"""HTTPS of the gateway: its certificate, read again when it changes, and when it must have one."""

import ipaddress
import os
import ssl
from pathlib import Path

from common.errors import ConfigError
from common.setting_rules import SettingError
from common.settings import GatewaySettings
from common.telemetry import Log
from neve.api.files import open_regular


def require_safe_listener(gateway: GatewaySettings) -> None:
    """Refuse to listen where others hear, unless over TLS or on purpose.

    Raises:
        SettingError: The gateway would send tokens and rows in the clear beyond this machine.
    """
    if gateway.tls_certificate or gateway.insecure or is_loopback(gateway.host):
        return
    raise SettingError(
        f"setting gateway.host is {gateway.host!r}, which others reach, and the gateway has no TLS:"
        " set gateway.tls_certificate and gateway.tls_key, or gateway.insecure = true if something"
        " in front of it speaks TLS"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class ServerCertificate:
    """The certificate of the server, in a context that new connections take it from."""

    def __init__(self, gateway: GatewaySettings, log: Log) -> None:
        """Read the files.

        Args:
            gateway: Names them.
            log: Hears when the certificate was read again, or could not be.

        Raises:
            ConfigError: One cannot be read, or certificate and key do not belong together.
        """
        self._certificate = gateway.tls_certificate
        self._key = gateway.tls_key or gateway.tls_certificate
        self._log = log
        self.context = server_context(self._certificate, self._key, gateway.tls_client_authorities)
        self._seen = self._signature()

    def look(self) -> None:
        """Read the files again if they have changed. Those that do not fit change nothing."""
        seen = self._signature()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            # A context that has read half of a pair would serve nobody: another one tries first.
            server_context(self._certificate, self._key, "")
            self.context.load_cert_chain(self._certificate, self._key)
        except (ConfigError, OSError) as error:
            self._log("certificate not read", cause=str(error))
        else:
            self._log("certificate read", file=self._certificate)

    def _signature(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(map(_signature, (self._certificate, self._key)))


def _signature(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns


def server_context(certificate: str, key: str, client_authorities: str) -> ssl.SSLContext:
    """Return the context of a server that speaks TLS 1.2 or 1.3.

    Args:
        certificate: File of it, and of its chain.
        key: File of its private key.
        client_authorities: File of those whose certificates clients must have; empty: none.

    Raises:
        ConfigError: A file cannot be read or used; the message says which setting names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for setting, path in (("tls_certificate", certificate), ("tls_key", key)):
        if not Path(path).is_file():
            raise ConfigError(f"setting gateway.{setting} names {path}, where there is no file")
    try:
        # Without a password nobody is asked for one on a terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"settings gateway.tls_certificate {certificate} and gateway.tls_key {key} cannot be"
            f" used together: {error}; expected PEM, a certificate and the key that it was made for"
        ) from error
    if client_authorities:
        try:
            open_regular(client_authorities).close()
            context.load_verify_locations(client_authorities)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"setting gateway.tls_client_authorities names {client_authorities}, which cannot"
                f" be read: {error}; expected certificates in PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
