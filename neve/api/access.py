"""Access: entries of the audit, links to the console."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Audit entry of a call that may have changed something; refused calls are included."""

    id: str
    at_s: float
    """When the call arrived. Seconds since the epoch."""
    caller: str
    """Name of the token, `oidc:<subject>`, `gateway.token`, or `-` without a known caller."""
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
    """IP address of the connection."""
    details: str = ""
    """Further parameters of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLink:
    """A link that signs a browser in to the console, once."""

    link: str
    """Address. Without `gateway.public_url` it begins with a slash: the caller knows the host."""
    ends_s: float
    """Time until which the link may be used. Seconds since the epoch."""
