"""Small questions about a request in a tablet, and what others may know of it. Pure."""

from common.metadata.request_predicates import meets
from common.model.file import DataFile
from common.model.request import Request
from common.model.tablet import Bounds, Tablet
from common.spi.planner import RequestFacts


def concerns(request: Request, bounds: Bounds) -> bool:
    """Return whether a tablet may hold rows of a request's range."""
    return meets(request.range, bounds)


def closed_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that are no longer written, by path."""
    return tuple(file for _, file in sorted(tablet.files.items()) if not file.open)


def shown_files(request: Request, tablet: Tablet) -> tuple[DataFile, ...]:
    """Return what a request's selector is shown: files with keys in its range, by path."""
    closed = closed_files(tablet)
    if tablet.bounds.partition is not None:
        return closed  # The range is one of partitions.
    return tuple(file for file in closed if _in_range(request, file))


def facts_of(request: Request) -> RequestFacts:
    """Return what dispatchers and planners may know of a request."""
    output = request.output
    chosen = {
        "codec": output.codec,
        "codec_level": output.codec_level,
        "row_group_bytes": output.row_group_bytes,
    }
    return RequestFacts(
        request=request.id,
        hints=request.hints,
        boost=request.boost,
        output={name: value for name, value in chosen.items() if value is not None},
    )


def left(request: Request, tablet: Tablet) -> bool:
    """Return whether a tablet has a marker, selection or running entry of a request."""
    waits = request.id in tablet.waiting
    return waits or holds(request, tablet) or bool(running(request, tablet))


def running(request: Request, tablet: Tablet) -> tuple[str, ...]:
    """Return a request's attempts under way in a tablet."""
    return tuple(
        attempt for attempt, entry in sorted(tablet.running.items()) if entry.request == request.id
    )


def is_done(request: Request, tablet: Tablet) -> bool:
    """Return whether a request has its done marker in a tablet."""
    return request.id in tablet.done


def holds(request: Request, tablet: Tablet) -> bool:
    """Return whether the selection of a tablet is a request's."""
    return tablet.selection is not None and tablet.selection.request == request.id


def _in_range(request: Request, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return True
    start, until = request.range.start, request.range.until
    return (start is None or file.key_max >= start) and (until is None or file.key_min < until)
