"""HTTPS of the gateway: a certificate that is reloaded when it changes, and when it is required."""

import ipaddress
import os
import ssl
from pathlib import Path

from common.errors import ConfigError, SettingError
from common.settings import GatewaySettings
from common.telemetry import Log
from neve.api.files import open_regular


def require_safe_listener(gateway: GatewaySettings) -> None:
    """Check that the gateway listens beyond this machine only with TLS, or if set explicitly.

    Raises:
        SettingError: The gateway would send tokens and rows unencrypted beyond this machine.
    """
    if gateway.tls_certificate or gateway.insecure or is_loopback(gateway.host):
        return
    raise SettingError(
        f"setting gateway.host is {gateway.host!r}, which others reach, and the gateway has no TLS:"
        " set gateway.tls_certificate and gateway.tls_key, or gateway.insecure = true if something"
        " in front of it speaks TLS"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class ServerCertificate:
    """The certificate of the server, in a TLS context that new connections use."""

    def __init__(self, gateway: GatewaySettings, log: Log) -> None:
        """Read the files.

        Args:
            gateway: Settings with the file names.
            log: Receives an event when the certificate is reloaded, or cannot be.

        Raises:
            ConfigError: A file cannot be read, or certificate and key do not match.
        """
        self._certificate = gateway.tls_certificate
        self._key = gateway.tls_key or gateway.tls_certificate
        self._log = log
        self.context = server_context(self._certificate, self._key, gateway.tls_client_authorities)
        self._seen = self._signature()

    def look(self) -> None:
        """Reload the files if they have changed; an invalid pair leaves the old one in use."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            # Try the pair in another context first: half a pair would make this one unusable.
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
        state = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return state.st_ino, state.st_size, state.st_mtime_ns


def server_context(certificate: str, key: str, client_authorities: str) -> ssl.SSLContext:
    """Return the context of a server that speaks TLS 1.2 or 1.3.

    Args:
        certificate: File of the certificate and its chain.
        key: File of the private key.
        client_authorities: File of the authorities that must have signed the certificates of
            clients; empty: clients need no certificate.

    Raises:
        ConfigError: A file cannot be read or used; the message contains the setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for setting, path in (("tls_certificate", certificate), ("tls_key", key)):
        if not Path(path).is_file():
            raise ConfigError(f"setting gateway.{setting} names {path}, where there is no file")
    try:
        # An empty password prevents a prompt on the terminal.
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
