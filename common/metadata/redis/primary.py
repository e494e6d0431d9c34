"""The server that holds the truth now: found by its address or by Sentinels, and checked.

Every new link asks anew, so that a fail-over needs no restart. The steps are those that Redis
asks of clients of Sentinels (`redis.io/docs/latest/develop/reference/sentinel-clients`).
"""

from common.errors import MetadataError
from common.metadata.commands import Command, Reply
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis.connection import (
    SENTINEL_FORM,
    Link,
    RedisAddress,
    ReplyError,
    SentinelService,
    open_link,
)

SENTINEL_WAIT_S = 2.0
"""Longest wait for one Sentinel: the next one may know more."""


class Primary:
    """Opens links to the primary, wherever it is."""

    def __init__(self, source: RedisAddress | SentinelService, timeout_s: float) -> None:
        """Look for nothing yet.

        Args:
            source: The server itself, or who knows it.
            timeout_s: Longest wait for one answer.
        """
        self._source = source
        self._timeout_s = timeout_s
        self._last: RedisAddress | None = None
        self._sentinels = source.sentinels if isinstance(source, SentinelService) else ()

    def is_at(self, address: RedisAddress) -> bool:
        """Return whether the primary was there when it was found last."""
        return address == self._last

    async def open(self) -> Link:
        """Connect to the primary.

        Raises:
            LinkLostError: No server or no Sentinel answers, or no Sentinel knows the service.
            StoreBusyError: The primary that Sentinels name does not serve as one.
            MetadataError: The server cannot hold a store.
        """
        source = self._source
        if isinstance(source, SentinelService):
            link = await self._follow(source)
        else:
            link = _checked(await open_link(source, self._timeout_s))
        self._last = link.address
        return link

    async def _follow(self, service: SentinelService) -> Link:
        """Connect to the primary that a Sentinel names; ask the next one if that one fails."""
        silent: list[str] = []
        ignorant: list[str] = []
        fallen: dict[RedisAddress, str] = {}
        for sentinel in self._sentinels:
            try:
                primary = await self._named_by(sentinel, service)
            except LinkLostError as error:
                silent.append(str(error))
                continue
            if isinstance(primary, str):
                ignorant.append(primary)
            elif primary not in fallen:
                link = await self._serving(primary, fallen)
                if link is not None:
                    self._ask_first(sentinel)
                    return link
        raise _nobody(service, silent, ignorant, fallen)

    def _ask_first(self, sentinel: RedisAddress) -> None:
        """Ask the Sentinel that was right first next time: others may be gone for hours."""
        others = (each for each in self._sentinels if each != sentinel)
        self._sentinels = (sentinel, *others)

    async def _named_by(
        self, sentinel: RedisAddress, service: SentinelService
    ) -> RedisAddress | str:
        """Return where a Sentinel says that the primary is, or what it knows instead."""
        wait_s = min(self._timeout_s, SENTINEL_WAIT_S)
        link = await open_link(sentinel, wait_s)
        try:
            if link.server.get(b"mode") != b"sentinel":
                return f"{sentinel} is no Sentinel"
            question: Command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service.name)
            (place,) = await link.exchange([question], wait_s)
            if isinstance(place, ReplyError):
                return f"{sentinel} refuses: {place}"
            if place is not None:
                host, port = place
                return service.primary_at(host.decode(), int(port))
            (masters,) = await link.exchange([("SENTINEL", "MASTERS")], wait_s)
            return f"{sentinel} knows {_names(masters) or 'none'}"
        finally:
            link.close()

    async def _serving(self, primary: RedisAddress, fallen: dict[RedisAddress, str]) -> Link | None:
        """Return a link to a server that serves as primary, or note why it does not."""
        try:
            link = _checked(await open_link(primary, self._timeout_s))
        except LinkLostError as error:
            fallen[primary] = str(error)
            return None
        # The role as `ROLE` tells it. It comes with the greeting, and needs no permission.
        if link.server.get(b"role") == b"master":
            return link
        link.close()
        fallen[primary] = f"{primary} is a replica by now"
        return None


def _checked(link: Link) -> Link:
    """Return a link to a server that can hold a store."""
    mode = link.server.get(b"mode")
    if mode == b"sentinel":
        link.close()
        raise MetadataError(
            f"{link.address} is a Sentinel, which holds no data: write store.url as {SENTINEL_FORM}"
        )
    return link


def _names(masters: Reply) -> str:
    if isinstance(masters, ReplyError):
        return "another one"
    return ", ".join(sorted(each[b"name"].decode(errors="replace") for each in masters))


def _nobody(
    service: SentinelService,
    silent: list[str],
    ignorant: list[str],
    fallen: dict[RedisAddress, str],
) -> LinkLostError:
    """Return the error that says why no Sentinel has led to a primary."""
    if fallen:
        why = "; ".join(fallen.values())
        return StoreBusyError(
            f"the primary {service.name!r} that the Sentinels name does not serve ({why}): a"
            " fail-over may be under way"
        )
    if ignorant:
        return LinkLostError(f"no Sentinel knows a service {service.name!r}: {'; '.join(ignorant)}")
    return LinkLostError(f"no Sentinel answers: {'; '.join(silent)}")
