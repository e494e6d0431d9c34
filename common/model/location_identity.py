"""What a location is, whatever it is called: two that share files have identities that overlap.

An identity has *names*, each a kind of storage and a path in it:

    file:/data/t              the path without links
    mount 8:1:/data/t         the path within its file system, the same under every mount
    inode 8:1:42:/t           the nearest folder that exists, by its number, and the rest
    s3 minio.example:/lake/t  an object store, its bucket and a prefix

Local names are found out by `common.parquet.resolved_locations`, which asks the machine; what a URI
alone tells is worked out here. Pure.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

ENDPOINT_OPTION = "endpoint_override"
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Schemes of one and the same storage."""
SYSTEM_FOLDERS = ("/boot", "/dev", "/etc", "/proc", "/sys")
"""No table is in or around these, whatever an operator names."""
_DEFAULT_PORTS = (":443", ":80")
_AMAZON = re.compile(r"(?:^|\.)amazonaws\.com$")
_AZURE = re.compile(r"([^.]+)\.(?:blob|dfs)\.")


@dataclass(frozen=True, slots=True)
class LocationIdentity:
    """What a location really is. A name ends without a slash."""

    names: tuple[str, ...]
    """All names of the location itself."""
    above: tuple[str, ...] = ()
    """Further names of it, by way of the folders above: they tell in what it lies."""

    def path_below(self, other: "LocationIdentity") -> str | None:
        """Return the path from another location to this one; None: it does not lie in it."""
        mine = (*self.names, *self.above)
        pairs = ((name, root) for name in mine for root in other.names)
        inside = (name[len(root) :] for name, root in pairs if f"{name}/".startswith(f"{root}/"))
        return next(inside, None)

    def lies_in(self, other: "LocationIdentity") -> bool:
        """Return whether this location is the other one, or below it."""
        return self.path_below(other) is not None

    def overlaps(self, other: "LocationIdentity") -> bool:
        """Return whether files of one location may be files of the other."""
        return overlap_test(self)(other)


def overlap_test(mine: LocationIdentity) -> Callable[[LocationIdentity], bool]:
    """Return a test whether another location overlaps this one, for many others."""
    mine_above = {
        "/".join(parts[:count])
        for parts in (name.split("/") for name in (*mine.names, *mine.above))
        for count in range(1, len(parts) + 1)
    }
    below = tuple(f"{name}/" for name in mine.names)

    def overlaps(other: LocationIdentity) -> bool:
        if not mine_above.isdisjoint(other.names):
            return True
        return any(f"{name}/".startswith(below) for name in (*other.names, *other.above))

    return overlaps


def overlapping_pair(identities: Mapping[str, LocationIdentity]) -> tuple[str, str] | None:
    """Return the keys of two identities that overlap; None: all are apart.

    Takes time by the length of all names together, not by the number of pairs.
    """
    owners: dict[str, str] = {}
    for key, identity in identities.items():
        for name in identity.names:
            if owners.setdefault(name, key) != key:
                return owners[name], key
    for key, identity in identities.items():
        for name in (*identity.names, *identity.above):
            parts = name.split("/")
            for count in range(1, len(parts) + 1):
                owner = owners.get("/".join(parts[:count]), key)
                if owner != key:
                    return owner, key
    return None


def identity_of_uri(uri: str, endpoints: Mapping[str, str] | None = None) -> LocationIdentity:
    """Return what a URI alone tells; of a local location that is its text.

    Args:
        uri: Of a location; a text that is none stands for itself.
        endpoints: Canonical scheme → endpoint (of `abfs`: account) where a URI names none.
    """
    parts = _split(uri)
    scheme = canonical_scheme(parts.scheme)
    path = normal_path(unquote(parts.path))
    if scheme in ("", "file"):
        return LocationIdentity((f"file:{path}",))
    options = dict(parse_qsl(parts.query))
    endpoint = options.get(ENDPOINT_OPTION) or (endpoints or {}).get(scheme, "")
    if scheme == "abfs":
        return _azure(parts, path, endpoint)
    bucket = parts.netloc.rpartition("@")[2].lower()
    host = canonical_endpoint(endpoint)
    inside = f"/{bucket}{path}" if bucket else ""
    return LocationIdentity((f"{scheme} {host}:{inside}",))


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError:
        return SplitResult("", "", uri, "", "")


def is_system_path(path: str) -> bool:
    """Return whether a path, as it is written, leads into a folder of the system."""
    return any(f"{path}/".startswith(f"{folder}/") for folder in SYSTEM_FOLDERS)


def canonical_scheme(scheme: str) -> str:
    """Return the one scheme of a kind of storage that has several."""
    lower = scheme.lower()
    return ALIASES.get(lower, lower)


def normal_path(path: str) -> str:
    """Return an absolute path without `.`, `..`, empty parts and a slash at its end."""
    return posixpath.normpath("/" + path.lstrip("/")).rstrip("/")


def canonical_endpoint(written: str) -> str:
    """Return host and port of an endpoint in one form; empty: the storage's own.

    Args:
        written: A URL or a host, perhaps with a port.
    """
    host = written.rpartition("://")[2].partition("/")[0].rpartition("@")[2].lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return "" if _AMAZON.search(host) else host


def _azure(parts: SplitResult, path: str, account: str) -> LocationIdentity:
    """Return what `container@account.dfs…/path`, `account.dfs…/container/path`, … is."""
    before, _, host = parts.netloc.lower().rpartition("@")
    container = before.partition(":")[0]
    known = _AZURE.match(host)
    if known is not None:
        account = known[1]
    elif "." not in host:  # `abfs://container/path`; before it, perhaps, the account.
        account, container = container or account, host
    inside = f"/{container}{path}" if container else path
    return LocationIdentity((f"abfs {account.lower()}:{inside}",))
