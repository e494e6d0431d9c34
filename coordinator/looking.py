"""What the scanner and the pieces of a full scan read and write beside a tablet itself."""

from collections.abc import Mapping
from dataclasses import replace

from common.metadata.changes import WriteAnalysis
from common.metadata.ports import TabletStore
from common.model.request import Request, RequestState
from common.model.table import Table
from common.model.tablet import Analysis, Tablet
from common.spi.planner import RequestFacts
from coordinator.core.due import marks_wanted
from coordinator.core.request_facts import facts_of
from coordinator.core.settle import Marks


async def read_facts(store: TabletStore, tablet: Tablet) -> Mapping[str, RequestFacts]:
    """Return what planners may know of the request that holds files here, if it is active.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    if tablet.selection is None:
        return {}
    return _facts(await store.request(tablet.id.table, tablet.selection.request))


async def with_marks(store: TabletStore, tablet: Tablet, table: Table, now_s: float) -> Tablet:
    """Return a tablet with its marks of settled versions as they should be, also in the store.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    marks = marks_wanted(tablet, table, now_s)
    return tablet if marks is None else await _marked(store, tablet, marks)


async def _marked(store: TabletStore, tablet: Tablet, marks: Marks) -> Tablet:
    note = WriteAnalysis(
        tablet=tablet.id,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        settled=marks,
    )
    await store.apply(note)
    return replace(tablet, record=replace(tablet.record, settled=marks))


def _facts(request: Request | None) -> Mapping[str, RequestFacts]:
    if request is None or request.state is not RequestState.ACTIVE:
        return {}
    return {request.id: facts_of(request)}
