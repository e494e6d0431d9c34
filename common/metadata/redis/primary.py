"""The server that holds the truth now: found by its address or by Sentinels; links to it.

Every new link asks anew, so that a fail-over needs no restart. The steps are those that Redis
asks of clients of Sentinels (`redis.io/docs/latest/develop/reference/sentinel-clients`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from common.errors import MetadataError
from common.metadata.commands import Command, Reply
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis.connection import (
    CLUSTER_FORM,
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
        others = (address for address in self._sentinels if address != sentinel)
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


# ------------------------------------------------------------------------------------- Links kept


class LinkSource(Protocol):
    """Where links lead: to a primary that may be elsewhere by now."""

    def is_at(self, address: RedisAddress) -> bool:
        """Return whether links to a server may be used."""
        ...

    async def open(self) -> Link:
        """Connect."""
        ...


class LinkPool:
    """Links to the primary that nobody uses at the moment. Every one of them is whole."""

    def __init__(self, primary: LinkSource, connections_max: int) -> None:
        """Keep none yet.

        Args:
            primary: Opens links.
            connections_max: Most links that are lent at the same time; streams have their own.
        """
        self._primary = primary
        self._places = asyncio.Semaphore(connections_max)
        self._idle: list[Link] = []
        self._idle_for_streams: list[Link] = []

    def lend(self) -> AbstractAsyncContextManager[Link]:
        """Lend a link; it comes back only if it is whole."""
        return self._lend(self._idle, self._places)

    def lend_beside(self) -> AbstractAsyncContextManager[Link]:
        """Lend a link to somebody who has one already, and would wait for a place for ever."""
        return self._lend(self._idle, nullcontext())

    def lend_for_stream(self) -> AbstractAsyncContextManager[Link]:
        """Lend a link that may wait long for one answer."""
        return self._lend(self._idle_for_streams, nullcontext())

    async def open(self) -> Link:
        """Open a link that the pool does not keep. Links to an earlier primary end."""
        link = await self._primary.open()
        for kept in (*self._idle, *self._idle_for_streams):
            if not self._primary.is_at(kept.address):
                kept.close()
        return link

    def close_idle(self) -> None:
        """Close all links that are not lent."""
        for link in (*self._idle, *self._idle_for_streams):
            link.close()
        self._idle.clear()
        self._idle_for_streams.clear()

    @asynccontextmanager
    async def _lend(
        self, idle: list[Link], place: AbstractAsyncContextManager[None]
    ) -> AsyncIterator[Link]:
        async with place:
            link = idle.pop() if idle else None
            if link is None or not link.alive:
                link = await self.open()
            try:
                yield link
            except BaseException as error:
                link.close()  # It may watch keys, or have answers half-way.
                if isinstance(error, LinkLostError) and not isinstance(error, StoreBusyError):
                    # A server that is silent to one is silent to all: no other caller waits.
                    self.close_idle()
                raise
            if link.alive and self._primary.is_at(link.address):
                idle.append(link)
            else:
                link.close()


# ---------------------------------------------------------------------------------------- Checks


def _checked(link: Link) -> Link:
    """Return a link to a server that can hold a store."""
    mode = link.server.get(b"mode")
    if mode == b"sentinel":
        link.close()
        raise MetadataError(
            f"{link.address} is a Sentinel, which holds no data: write store.url as {SENTINEL_FORM}"
        )
    if mode == b"cluster":
        link.close()
        raise MetadataError(
            f"{link.address} is a node of a Redis Cluster: write store.url as {CLUSTER_FORM}"
        )
    return link


def _names(masters: Reply) -> str:
    if isinstance(masters, ReplyError):
        return "another one"
    return ", ".join(sorted(master[b"name"].decode(errors="replace") for master in masters))


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
