"""Access: calls that may have changed something."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A call that may have changed something, refused ones too."""

    id: str
    at_s: float
    """When it came. Seconds since the epoch."""
    caller: str
    """Name of the token, `oidc:<subject>`, `gateway.token`, or `-` if nobody was recognised."""
    action: str
    """Method and route."""
    table: str = ""
    outcome: str = ""
    """`done`, `refused`, `failed`, or `begun`: the gateway ended before the call did."""
    status: int | None = None
    """HTTP status of the answer."""
    error: str = ""
    call: str = ""
    """Call id."""
    address: str = ""
    """Where the connection came from."""
    details: str = ""
    """What else the path and the query said."""
