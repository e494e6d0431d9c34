"""Where a Redis is: its URL in parts, as redis-py reads it."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio.connection import SSLConnection, parse_url

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach one Redis and what to say first."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    """Unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        """Return the place without its secrets."""
        return self.path or f"{self.host}:{self.port}"


def parse(url: str) -> Address:
    """Return the address in `redis://`, `rediss://` or `unix://`.

    Raises:
        ConfigError: It is none of these.
    """
    try:
        parts: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise ConfigError(f"store.url is no URL of a Redis: {error}") from error
    return Address(
        host=parts.get("host", "127.0.0.1"),
        port=parts.get("port", 6379),
        path=parts.get("path"),
        username=parts.get("username"),
        password=parts.get("password"),
        database=int(parts.get("db", 0)),
        tls=_tls(parts) if parts.get("connection_class") is SSLConnection else None,
    )


def _tls(parts: dict[str, Any]) -> ssl.SSLContext:
    """Return how to check the server; only `ssl_cert_reqs=none` switches it off."""
    authorities = parts.get("ssl_ca_certs")
    if authorities is not None and not Path(authorities).is_file():
        raise ConfigError(f"store.url: ssl_ca_certs {authorities} is no file")
    context = ssl.create_default_context(cafile=authorities)
    if parts.get("ssl_certfile"):
        context.load_cert_chain(parts["ssl_certfile"], parts.get("ssl_keyfile"))
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
