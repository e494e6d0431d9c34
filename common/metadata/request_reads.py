"""The reads of requests; see `common.metadata.ports.TabletStore`."""

from collections.abc import Sequence

from common.metadata.codec_request import request_at, unpack_request
from common.metadata.commands import hgetall, last_members, members_after
from common.metadata.keys import REQUESTS_OPEN_MAX, TableKeys
from common.metadata.plain_reads import PlainReads
from common.model.request import Request


class RequestReads(PlainReads):
    """Reads of requests, besides the plain ones."""

    async def request(self, table: str, request: str) -> Request | None:
        """Return a request."""
        key = TableKeys(table).request(request)
        return unpack_request(key, table, request, await self._read(hgetall(key)))

    async def requests(self, table: str, count: int = 100) -> Sequence[Request]:
        """Return the newest requests, newest first."""
        members = await self._read(last_members(TableKeys(table).requests, count))
        return await self._requests_at(table, members)

    async def open_requests(self, table: str) -> Sequence[Request]:
        """Return the requests that something is left to do for, oldest first."""
        key = TableKeys(table).open_requests
        # Two that are submitted at once may both find the last free place: read some more.
        members = await self._read(members_after(key, None, 2 * REQUESTS_OPEN_MAX))
        return await self._requests_at(table, members)

    async def _requests_at(self, table: str, members: Sequence[bytes]) -> Sequence[Request]:
        names = [request_at(member) for member in members]
        keys = [TableKeys(table).request(name) for name in names]
        replies = await self._fetch([[hgetall(key)] for key in keys])
        found = (
            unpack_request(key, table, name, stored)
            for key, name, (stored,) in zip(keys, names, replies, strict=True)
        )
        return [request for request in found if request is not None]
