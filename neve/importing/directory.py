"""One directory on its way to be a table: what is known of it so far."""

from dataclasses import dataclass, field

from common.model.table import Table
from common.parquet.location import Location
from neve.api_import import NewImport
from neve.importing.listing import Listing
from neve.importing.values import Survey


@dataclass(slots=True, kw_only=True)
class Directory:
    """One directory on its way to be a table."""

    body: NewImport
    place: Location
    table: Table | None
    """The one that is there already."""
    listing: Listing = field(default_factory=Listing)
    survey: Survey = field(default_factory=Survey)
    known: set[str] = field(default_factory=set)
    """Paths that the table holds, or that a compaction has replaced."""
    already: int = 0
    added: int = 0
