"""HTTPS of the gateway: who is let in, how certificates change, and where plain HTTP ends."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from common.errors import ConfigError
from common.settings import GatewaySettings
from neve.client import Client
from neve.client.connect import connect
from neve.client.errors import CallerError, UnavailableError
from neve.gateway.server import LEAST
from neve.gateway.tls import ServerCertificate, is_loopback, require_safe_listener
from tests.support.certificates import Authority
from tests.support.gateway import TOKEN, serving
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("Névé tests")


def server_name_of(url: str, authorities: str) -> str:
    """Return the name in the certificate that a server shows."""
    place = urlsplit(url)
    context = ssl.create_default_context(cafile=authorities)
    with (
        socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        shown = link.getpeercert()
        assert shown is not None
        return dict(pair for part in shown["subject"] for pair in part)["commonName"]  # type: ignore[misc]  # pairs


def test_a_client_with_the_authority_is_served(tmp_path: Path, authority: Authority) -> None:
    authorities = authority.write(tmp_path / "ca.pem")
    with serving(tls_certificate=authority.issue(tmp_path / "tls.pem")) as gateway:
        url = gateway.url.replace("http://", "https://")
        with Client(url, token=TOKEN, authorities=authorities) as client:
            assert client.tables() == []
        answer = httpx.get(f"{url}/healthz", verify=ssl.create_default_context(cafile=authorities))
        assert answer.headers["Strict-Transport-Security"]
        with Client(url, token=TOKEN) as stranger, pytest.raises(UnavailableError):
            stranger.tables()
        with gateway.client() as plain, pytest.raises(UnavailableError):
            plain.tables()


def test_the_environment_names_the_authority(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("NEVE_HOME", str(tmp_path))
    monkeypatch.setenv("NEVE_CA_FILE", authority.write(tmp_path / "ca.pem"))
    monkeypatch.setenv("NEVE_TOKEN_FILE", str(secret))
    with (
        serving(tls_certificate=authority.issue(tmp_path / "tls.pem")) as gateway,
        connect(gateway.url.replace("http://", "https://")) as client,
    ):
        assert client.tables() == []


def test_old_versions_of_tls_are_refused(tmp_path: Path, authority: Authority) -> None:
    authorities = authority.write(tmp_path / "ca.pem")
    with serving(tls_certificate=authority.issue(tmp_path / "tls.pem")) as gateway:
        place = urlsplit(gateway.url)
        context = ssl.create_default_context(cafile=authorities)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection((place.hostname, place.port)) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_certificate_of_a_client_may_be_asked_for(tmp_path: Path, authority: Authority) -> None:
    authorities = authority.write(tmp_path / "ca.pem")
    own = authority.issue(tmp_path / "client.pem", "etl")
    foreign = Authority("somebody else").issue(tmp_path / "foreign.pem", "etl")
    with serving(
        tls_certificate=authority.issue(tmp_path / "tls.pem"), tls_client_authorities=authorities
    ) as gateway:
        url = gateway.url.replace("http://", "https://")
        with Client(url, token=TOKEN, authorities=authorities, certificate=own) as client:
            assert client.tables() == []
            schema = pa.schema([("id", pa.int64())])
            client.create_table("bag", str(tmp_path / "bag"), schema=schema)
            for number in range(2):
                assert client.buffer_rows("bag", [{"id": number}]).rows == 1
        # The certificate lets nobody in who has no token.
        with (
            Client(url, token="x", authorities=authorities, certificate=own) as client,
            pytest.raises(CallerError),
        ):
            client.tables()
        for certificate in (None, foreign):
            with (
                Client(
                    url, token=TOKEN, authorities=authorities, certificate=certificate
                ) as client,
                pytest.raises(UnavailableError),
            ):
                client.tables()
            with (
                Client(
                    url, token=TOKEN, authorities=authorities, certificate=certificate, retry_s=0
                ) as client,
                pytest.raises(UnavailableError),
            ):
                client.buffer_rows("bag", pa.table({"id": [1]}))


def test_a_certificate_that_changes_is_used_without_a_restart(
    tmp_path: Path, authority: Authority
) -> None:
    path, authorities = tmp_path / "tls.pem", authority.write(tmp_path / "ca.pem")
    with serving(tls_certificate=authority.issue(path, "first")) as gateway:
        assert server_name_of(gateway.url, authorities) == "first"

        path.write_text("half a file")
        pause = threading.Event()
        while "certificate not read" not in [event for event, _ in gateway.log]:
            pause.wait(0.05)
        assert server_name_of(gateway.url, authorities) == "first"

        authority.issue(path, "second")
        while server_name_of(gateway.url, authorities) != "second":
            pause.wait(0.05)
        assert gateway.log[-1][0] == "certificate read"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_certificate": "/nowhere/tls.pem"}, "where there is no file"),
        ({"tls_certificate": __file__}, "cannot be used together"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ServerCertificate(GatewaySettings(**settings), lambda *_, **__: None)  # type: ignore[arg-type]  # by name


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    one, other = (authority.issue(tmp_path / name) for name in ("one.pem", "other.pem"))
    with pytest.raises(ConfigError, match="the key that it was made for"):
        ServerCertificate(
            GatewaySettings(tls_certificate=one, tls_key=other), lambda *_, **__: None
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8", "[::1]"])
def test_this_machine_alone_may_be_served_in_the_clear(host: str) -> None:
    assert is_loopback(host)
    require_safe_listener(GatewaySettings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "neve.example", ""])
def test_beyond_this_machine_it_takes_tls_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.insecure = true"):
        require_safe_listener(GatewaySettings(host=host))
    require_safe_listener(GatewaySettings(host=host, insecure=True))
    require_safe_listener(GatewaySettings(host=host, tls_certificate="tls.pem"))


def test_a_gateway_refuses_to_start_in_the_clear() -> None:
    with (
        pytest.raises(ConfigError, match=r"gateway\.host is '0\.0\.0\.0'"),
        serving(host="0.0.0.0"),
    ):
        pass


def test_a_file_of_the_client_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="NEVE_CA_FILE"):
        Client("https://localhost:1", authorities=str(tmp_path / "none.pem"))


def test_half_open_handshakes_count_as_connections(tmp_path: Path, authority: Authority) -> None:
    authorities = authority.write(tmp_path / "ca.pem")
    certificate = authority.issue(tmp_path / "tls.pem")
    with (
        serving(tls_certificate=certificate, connections_max=LEAST) as gateway,
        ExitStack() as all_,
    ):
        place = urlsplit(gateway.url)
        half = [
            all_.enter_context(socket.create_connection((place.hostname, place.port), PATIENCE_S))
            for _ in range(3 * LEAST)
        ]
        url = gateway.url.replace("http://", "https://")
        with httpx.Client(verify=ssl.create_default_context(cafile=authorities)) as caller:
            for _ in range(3):
                assert caller.get(f"{url}/healthz").status_code == 200
        assert is_over(half[0])
        assert ("too many connections", {"most": LEAST}) in gateway.log


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_that_does_not_come_is_not_waited_for(
    tmp_path: Path, authority: Authority, sent: bytes
) -> None:
    certificate = authority.issue(tmp_path / "tls.pem")
    with serving(tls_certificate=certificate, head_wait_s=0.3) as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port), PATIENCE_S) as link:
            link.sendall(sent)
            assert is_over(link)


def is_over(link: socket.socket) -> bool:
    """Return whether a connection was closed; a server may say why in an alert."""
    try:
        while link.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
