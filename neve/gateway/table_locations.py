"""Locations of tables: canonical URIs, allowed locations, and owners.

    a location as written by a user, an archive or a file
        → canonical URI → links resolved → neither in a system folder nor in a private folder of
          the service → below a folder or bucket that the operator allows

`common.parquet.location` confines paths below a location, and `common.parquet.service_files` reads
and writes its owner mark. Credentials come from the environment's credential chains, never from a
URI. `neve up` checks the locations of its settings with this module, which loads no Arrow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from common.errors import RefusedError, RequestError, SettingError, redacted
from common.model.location_identity import (
    SYSTEM_FOLDERS,
    LocationIdentity,
    canonical_scheme,
    normal_path,
)
from common.model.table import Table
from common.parquet.resolved_location import SCHEMES, ResolvedLocation, resolve_location
from common.settings import GatewaySettings

if TYPE_CHECKING:
    from common.parquet.service_files import LocationOwner

CHECK_INTERVAL_S = 60.0
LOCATION_CHARS_MAX = 4096
TABLES_MAX = 100_000
OPTIONS = frozenset({"endpoint_override", "region", "scheme"})
"""Storage options allowed in a URI, if the operator has allowed exactly the same options."""


def normal_location(uri: str, *, options: bool = False) -> str:
    """Return the canonical URI of a location: absolute, without trailing slash or `..`.

    Args:
        uri: A URI, or an absolute path on the service's machine.
        options: Whether the URI may have storage options after a `?`.

    Raises:
        RequestError: The text is not a location, or contains credentials or another query.
    """
    text = uri.strip()
    if len(text) > LOCATION_CHARS_MAX:
        raise RequestError(
            f"location of {len(text)} characters is too long, at most {LOCATION_CHARS_MAX}"
        )
    if text.startswith("/"):
        text = "file://" + quote(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    kind = canonical_scheme(parts.scheme)
    scheme = parts.scheme if parts.scheme in SCHEMES else kind
    query = _options(parts.query) if options else ""
    more = (parts.query and not query) or parts.fragment or "@" in parts.netloc
    if scheme not in SCHEMES or more:
        raise RequestError(
            f"location {redacted(uri)!r} is not a location: expected a URI such as "
            f"file:///data/t or s3://bucket/t ({', '.join(SCHEMES)}), or an absolute path; "
            "no credentials, no query"
        )
    path = unquote(parts.path)
    if "\x00" in path or ".." in path.split("/"):
        raise RequestError(f"location {redacted(uri)!r} must not contain '..' or a zero byte")
    path = normal_path(path)
    host = "" if scheme == "file" else parts.netloc
    if scheme == "file" and (parts.netloc not in ("", "localhost") or not path):
        raise RequestError(f"location {uri!r} must name a folder: file:///folder/table")
    if scheme != "file" and not host:
        raise RequestError(f"location {uri!r} names no bucket: {scheme}://bucket/table")
    return f"{scheme}://{host}{quote(path)}{query}"


def _options(query: str) -> str:
    """Return storage options in canonical form, with question mark; empty if not accepted."""
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    is_allowed = pairs and {name for name, _ in pairs} <= OPTIONS
    return f"?{urlencode(pairs)}" if is_allowed else ""


@dataclass(frozen=True, slots=True)
class _AllowedRoot:
    """A folder, bucket or prefix from the operator's settings."""

    written: str
    uri: str

    @classmethod
    def of(cls, uri: str) -> "_AllowedRoot":
        """Parse a root.

        Raises:
            SettingError: The text is not a valid root.
        """
        text = uri.strip()
        if text in ("/", "file:///"):
            return cls(text, "file:///")
        if text.endswith("://") and canonical_scheme(text[:-3]) in SCHEMES:
            return cls(text, f"{canonical_scheme(text[:-3])}://")
        try:
            return cls(text, normal_location(text, options=True))
        except RequestError as error:
            raise SettingError(f"setting gateway.locations: {error}") from error

    @property
    def options(self) -> str:
        return urlsplit(self.uri).query

    @property
    def identity(self) -> LocationIdentity:
        """Current identity: folders may be created, mounted and linked after the start."""
        return resolve_location(self.uri).identity


class Locations:
    """The allowed locations of tables. Calls block, because they resolve links each time."""

    def __init__(
        self, allowed: Sequence[str], private: Sequence[str] = (), shared: Sequence[str] = ()
    ) -> None:
        """Parse the operator's settings.

        Args:
            allowed: Folders, buckets and prefixes; `/` is every folder, `s3://` every bucket.
            private: Folders of the service itself. An allowed folder inside a private folder is
                a deliberate exception.
            shared: Folders with other contents than tables; none of them may be a table itself.

        Raises:
            SettingError: An entry is invalid, or is a system folder.
        """
        self._allowed = tuple(map(_AllowedRoot.of, allowed))
        self._private = tuple(map(_AllowedRoot.of, private))
        self._shared = tuple(map(_AllowedRoot.of, shared))
        for root in self._allowed:
            if root.uri != "file:///" and (folder := _system_folder(root.uri, root.identity)):
                raise SettingError(
                    f"setting gateway.locations: {root.written!r} is in or around {folder}, which "
                    "is the system's: no table can be there"
                )

    def admitted(self, written: str) -> ResolvedLocation:
        """Resolve a location, and check that a table is allowed there.

        Raises:
            RequestError: The text is not a location, or has unknown storage options.
            RefusedError: No table is allowed there; the message contains the setting to change.
        """
        uri = normal_location(written, options="?" in written)
        options = urlsplit(uri).query
        site = resolve_location(uri)
        if folder := _system_folder(uri, site.identity):
            raise RefusedError(
                f"location {_quoted(uri, site)} is in or around {folder}: no table can be there"
            )
        same = [root for root in self._allowed if not options or root.options == options]
        # Check roots with a matching text first: the storage of another root may hang.
        same.sort(key=lambda root: not uri.startswith(root.uri.partition("?")[0]))
        if options and not any(site.identity.lies_in(root.identity) for root in same):
            names = ", ".join(name for name, _ in parse_qsl(options, keep_blank_values=True))
            raise RefusedError(
                f"location {redacted(uri)} says how its storage is reached ({names}): that is "
                "taken only if the setting gateway.locations names a prefix with the same options"
            )
        self._refuse_private(uri, site)
        self._refuse_shared(uri, site)
        if not any(_is_below(site.identity, root.identity) for root in same):
            raise RefusedError(
                f"location {_quoted(uri, site)} is not where tables are allowed ({self._named()}): "
                "name it or a folder above it with `neve up --allow` or the setting "
                "gateway.locations"
            )
        return site

    def _refuse_private(self, uri: str, site: ResolvedLocation) -> None:
        for private in self._private:
            own = private.identity
            if not site.identity.overlaps(own):
                continue
            exceptions = [root.identity for root in self._allowed if root.identity.lies_in(own)]
            if not any(map(site.identity.lies_in, exceptions)):
                raise RefusedError(
                    f"location {_quoted(uri, site)} is in or around {private.written}, where the "
                    "service keeps its own files"
                )

    def _refuse_shared(self, uri: str, site: ResolvedLocation) -> None:
        for shared in self._shared:
            if shared.identity.lies_in(site.identity):
                raise RefusedError(
                    f"location {_quoted(uri, site)} is or holds {shared.written}, which holds "
                    "other things than tables: give the table a folder of its own below it"
                )

    def _named(self) -> str:
        named = ", ".join(redacted(root.written) for root in self._allowed)
        return named or "nowhere: no place is named"


def _system_folder(uri: str, identity: LocationIdentity) -> str | None:
    """Return the system folder that a location overlaps, or None."""
    for folder in SYSTEM_FOLDERS:
        # Compare the text as well: some system folders contain links that cannot be resolved.
        own = resolve_location(f"file://{folder}").identity
        if uri.startswith(f"file://{folder}/") or identity.overlaps(own):
            return folder
    return None


def _is_below(identity: LocationIdentity, root: LocationIdentity) -> bool:
    """Return whether a location is below another, without a hidden folder in between."""
    path = identity.path_below(root)
    return path is not None and not any(part.startswith(".") for part in path.split("/"))


def _quoted(uri: str, site: ResolvedLocation) -> str:
    return redacted(uri) if uri == site.uri else f"{redacted(uri)}, which is {redacted(site.uri)},"


@lru_cache(maxsize=16)
def locations_of(settings: GatewaySettings) -> Locations:
    """Return the allowed locations of a service.

    Raises:
        SettingError: A setting contains an invalid location.
    """
    return Locations(settings.locations, settings.private_folders, settings.shared_folders)


OwnerOf = Callable[[Table], "LocationOwner | None"]
"""Returns store and table of a location's owner mark, or None without a mark."""


class Owners:
    """Caches for a minute that locations belong to this store and are allowed."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}
        self._admitted_s: dict[str, float] = {}

    def has_checked(self, table: Table, now_s: float) -> bool:
        """Return whether both checks of a table's location have passed in the last minute."""
        seen = (self._seen_s, self._admitted_s)
        return all(_seen_recently(seen_s, table.id, now_s) for seen_s in seen)

    def check(self, table: Table, store: str, now_s: float, owner_of: OwnerOf) -> None:
        """Reject a table whose location belongs to another store or table.

        Raises:
            RefusedError: The location has another owner.
            UnavailableError: The storage does not answer.
        """
        # Imported here: `neve up` checks locations without Arrow.
        from common.parquet.service_files import refuse_other_owner

        if not _seen_recently(self._seen_s, table.id, now_s):
            refuse_other_owner(table.location, owner_of(table), store, table.id)
            self._seen_s[table.id] = now_s

    def admit(self, table: Table, locations: Locations, now_s: float) -> None:
        """Reject a table whose location is not, or no longer, allowed.

        Raises:
            RequestError: The location is invalid.
            RefusedError: No table is allowed there.
        """
        if not _seen_recently(self._admitted_s, table.id, now_s):
            locations.admitted(table.location)
            self._admitted_s[table.id] = now_s


def _seen_recently(seen_s: dict[str, float], table: str, now_s: float) -> bool:
    if len(seen_s) > TABLES_MAX:
        seen_s.clear()
    return table in seen_s and 0 <= now_s - seen_s[table] < CHECK_INTERVAL_S
