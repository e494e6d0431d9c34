"""How far a user request has come: per tablet, and over all of its range."""

from dataclasses import dataclass

from common.model.request import Request, TabletProgress
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressHere:
    """How far a request has come in one tablet."""

    tablet: TabletId
    state: TabletProgress
    reason: str
    """Why it is not further, or what came of it: a sentence that a person understands."""
    files: int = 0
    """Files of its selection; 0 unless SELECTED."""
    results: int = 0
    """Those among them that its jobs made."""
    bytes_left: int = 0
    """Bytes that no job of it has rewritten yet; before it selects: of all files in its range."""
    completed_jobs: int = 0
    running: tuple[str, ...] = ()
    """Its attempts under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProgress:
    """How far a request has come over its range."""

    request: Request
    tablets: tuple[ProgressHere, ...]
    bytes_left: int = 0
    """Over all tablets, less what running attempts have already read."""
    bytes_per_s: float = 0.0
    """What its running attempts do together; 0: none has told."""
    eta_s: float | None = None
    """Seconds left at that rate; None: not known."""

    def count(self, state: TabletProgress) -> int:
        """Return in how many tablets the request is in a state."""
        return sum(1 for here in self.tablets if here.state is state)
