"""The watermarks of tablets in words, and the operator's verb that lowers one."""

from collections.abc import Mapping, Sequence

from common.errors import BrokenValueError, RequestError
from common.metadata import recent_adds
from common.metadata.changes import LowerWatermark
from common.model.keys import format_key, parse_key
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.rows.rules import RowRules
from neve import api_work
from neve.gateway.problems import applied
from neve.gateway.services import Services, check_writable


async def watermarks(
    services: Services, table: Table, tablets: Sequence[TabletId]
) -> Mapping[str, Sequence[str]]:
    """Return what is to be said of the watermarks of tablets, by the text of their ends."""
    now_s, said = await services.store.now_s(), dict[str, Sequence[str]]()
    if table.version_column is None:
        return dict.fromkeys((tablet.text for tablet in tablets), ())
    for tablet in tablets:
        try:
            known = await services.store.tablet(tablet)
        except BrokenValueError:
            known = None  # Who plans it says so.
        said[tablet.text] = [] if known is None else _sentences(table, known, now_s)
    return said


def _sentences(table: Table, tablet: Tablet, now_s: float) -> list[str]:
    said: list[str] = []
    if tablet.purge is not None:
        takes = "are taken all the same" if table.settings.allow_late_data else "are refused"
        said.append(
            f"its watermark is {_text(table, tablet.purge)}: tombstones up to there were dropped,"
            f" and rows of such versions {takes}"
        )
    lowest = recent_adds.bound(tablet.record.recent_adds, now_s)
    highest = max((file.version_max or b"" for file in tablet.files.values()), default=b"")
    if lowest is not None and highest > lowest:
        said.append(
            f"it will not rise above {_text(table, lowest)} for now, which is all that some recent"
            f" add has reached, though a row has version {_text(table, highest)}"
        )
    return said


async def lowered(
    services: Services, table: Table, tablet: TabletId, to: str | None
) -> api_work.LoweredWatermark:
    """Lower a tablet's watermark and return which rows may come back.

    Raises:
        RequestError: The table knows no versions, or `to` is none.
        RefusedError: The watermark is not above that.
    """
    if table.version_column is None:
        raise RequestError(f"table {table.name!r} has no versions, so its tablets no watermark")
    version = None if to is None else parse_key([to], (RowRules.of(table).version_type,))
    (known,) = await services.store.tablets([tablet])
    before = known.purge if known is not None else None
    change = LowerWatermark(
        tablet=tablet, to=version, generation=await check_writable(services, table)
    )
    applied(await services.store.apply(change))
    was = None if before is None else _text(table, before)
    above = "" if version is None else f" above {_text(table, version)} and"
    rise = (
        "nothing has changed"
        if before == version
        else f"a row that was deleted, and whose tombstone{above} up to {was} was dropped, can be"
        " seen again if a file or an append brings an older version of it"
    )
    return api_work.LoweredWatermark(
        tablet=tablet.text,
        before=was,
        after=None if version is None else _text(table, version),
        may_rise=rise,
    )


def _text(table: Table, version: bytes) -> str:
    return format_key(version, (RowRules.of(table).version_type,))
