"""Who holds files of a tablet, or waits to: as sentences for `explain`. Pure."""

from common.model.tablet import Selection, Tablet
from coordinator.core.automatic import PREFIX


def holds_of(tablet: Tablet) -> tuple[str, ...]:
    """Return a sentence for the selection of a tablet, and one for each request that waits."""
    waits = sorted(tablet.waiting, key=lambda request: (tablet.waiting[request], request))
    sentences = [waiting_sentence(request) for request in waits]
    if tablet.selection is not None:
        sentences.insert(0, _selection_sentence(tablet.selection))
    return tuple(sentences)


def waiting_sentence(request: str) -> str:
    """Return what a request's marker means for the tablet."""
    return f"request {request} waits to select files; no system job starts meanwhile"


def _selection_sentence(selection: Selection) -> str:
    own = " (made by the table's selector)" if selection.request.startswith(PREFIX) else ""
    results = len(selection.results)
    return (
        f"request {selection.request}{own} holds {_counted(len(selection.files), 'file')}, "
        f"{results} of them made by its {_counted(selection.completed_jobs, 'completed job')}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
