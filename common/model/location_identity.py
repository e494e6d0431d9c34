"""The identity of a location. Two locations that share files have overlapping identities.

An identity has *names*, each consisting of a kind of storage and a path in it:

    file:/data/t              the path with links resolved
    mount 8:1:/data/t         the path within its file system, the same under every mount
    inode 8:1:42:/t           inode number of the nearest existing folder, and the rest
    s3 minio.example:/lake/t  an object store, its bucket and a prefix

`common.parquet.location` asks the machine for local names; this module derives names
from URIs alone. Pure.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

ENDPOINT_OPTION = "endpoint_override"
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Alternative schemes of the same storage."""
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
REGION_WITH_ENDPOINT = "us-east-1"
"""Region for signatures of stores with their own endpoint, unless another one is set."""
SYSTEM_FOLDERS = ("/boot", "/dev", "/etc", "/proc", "/sys")
"""No table may be in or around these folders, whatever the settings allow."""
_DEFAULT_PORTS = (":443", ":80")
_AMAZON = re.compile(r"(?:^|\.)amazonaws\.com$")
_AZURE = re.compile(r"([^.]+)\.(?:blob|dfs)\.")


def s3_access(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the endpoint and the region of S3 that an environment names; empty: none."""
    endpoint = next(filter(None, map(environ.get, ENDPOINT_VARIABLES)), "")
    return endpoint, next(filter(None, map(environ.get, REGION_VARIABLES)), "")


@dataclass(frozen=True, slots=True)
class LocationIdentity:
    """The names of a location. A name has no trailing slash."""

    names: tuple[str, ...]
    """All names of the location itself."""
    above: tuple[str, ...] = ()
    """Names derived from parent folders: they show what contains the location."""

    def path_below(self, other: "LocationIdentity") -> str | None:
        """Return the path from another location to this one; None: it is not below the other."""
        own_names = (*self.names, *self.above)
        pairs = ((name, root) for name in own_names for root in other.names)
        inside = (name[len(root) :] for name, root in pairs if f"{name}/".startswith(f"{root}/"))
        return next(inside, None)

    def lies_in(self, other: "LocationIdentity") -> bool:
        """Return whether this location is the other one, or is below it."""
        return self.path_below(other) is not None

    def overlaps(self, other: "LocationIdentity") -> bool:
        """Return whether the two locations may share files."""
        return overlap_test(self)(other)


def overlap_test(own: LocationIdentity) -> Callable[[LocationIdentity], bool]:
    """Return a predicate that checks other locations for overlap with this one."""
    mine_above = {
        "/".join(parts[:count])
        for parts in (name.split("/") for name in (*own.names, *own.above))
        for count in range(1, len(parts) + 1)
    }
    below = tuple(f"{name}/" for name in own.names)

    def overlaps(other: LocationIdentity) -> bool:
        if not mine_above.isdisjoint(other.names):
            return True
        return any(f"{name}/".startswith(below) for name in (*other.names, *other.above))

    return overlaps


def overlapping_pair(identities: Mapping[str, LocationIdentity]) -> tuple[str, str] | None:
    """Return the keys of two identities that overlap; None: no two overlap.

    The time grows with the total length of all names, not with the number of pairs.
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
    """Return the identity that a URI alone gives; for a local location, its path.

    Args:
        uri: URI of a location; a text that is not a URI is used as it is.
        endpoints: Canonical scheme → endpoint (for `abfs`: account) for URIs that name none.
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
    """Return whether a path, unresolved, leads into a folder of the system."""
    return any(f"{path}/".startswith(f"{folder}/") for folder in SYSTEM_FOLDERS)


def canonical_scheme(scheme: str) -> str:
    """Return the canonical scheme of a storage that has several."""
    lower = scheme.lower()
    return ALIASES.get(lower, lower)


def normal_path(path: str) -> str:
    """Return an absolute path without `.`, `..`, empty parts and a trailing slash."""
    return posixpath.normpath("/" + path.lstrip("/")).rstrip("/")


def canonical_endpoint(written: str) -> str:
    """Return host and port of an endpoint in canonical form; empty: the storage's default.

    Args:
        written: A URL or a host, optionally with a port.
    """
    host = written.rpartition("://")[2].partition("/")[0].rpartition("@")[2].lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return "" if _AMAZON.search(host) else host


def _azure(parts: SplitResult, path: str, account: str) -> LocationIdentity:
    """Return the identity of `container@account.dfs…/path` and the other forms of such URIs."""
    before, _, host = parts.netloc.lower().rpartition("@")
    container = before.partition(":")[0]
    match = _AZURE.match(host)
    if match is not None:
        account = match[1]
    elif "." not in host:  # `abfs://container/path`, optionally with the account before it.
        account, container = container or account, host
    inside = f"/{container}{path}" if container else path
    return LocationIdentity((f"abfs {account.lower()}:{inside}",))


# ------------------------------------------------------------------------------------ Service paths
# Paths in a table's location that only the service writes: the folder `_neve`. Names only.
#
# The names of an append's files carry the call, the try, and the number of files:
#
#     <call>-<try>-<number>of<count>.parquet
#
# A repeated call writes its rows anew, and only the files of one try are added. A rebuild without
# metadata recognises complete tries by these names (`neve.recovery.rebuild.live_files`).


SERVICE_FOLDER = "_neve"
APPEND_FOLDER = f"{SERVICE_FOLDER}/append"
DESCRIPTION_PATH = f"{SERVICE_FOLDER}/table.json"
GENERATION_PATH = f"{SERVICE_FOLDER}/generation"
MANIFEST_FOLDER = f"{SERVICE_FOLDER}/manifest"
COPIED_FOLDER = f"{SERVICE_FOLDER}/copied"
"""Lists of users' files that an import has copied; a folder for each table's id."""
GUARDS_FOLDER = f"{SERVICE_FOLDER}/guards"
GUARD_NAME = "000-READ-WITH-neve.read-OR-THE-MANIFEST.parquet"
"""A file with this name makes plain readers of a directory fail (`common.parquet.row_batches`)."""
PUBLISHED_PATH = f"{SERVICE_FOLDER}/published"
"""Lists the marks of other table formats that the service itself has written."""

DELETED_WITH_TABLE = (MANIFEST_FOLDER, DESCRIPTION_PATH, GENERATION_PATH)
"""Files that `drop` deletes if it deletes files; the owner mark stays."""


def is_guard(path: str) -> bool:
    """Return whether a path is that of a guard file, which holds no data."""
    return path.rpartition("/")[2] == GUARD_NAME


def is_service_path(path: str) -> bool:
    """Return whether only the service writes a path, given relative to the location."""
    return path.startswith(f"{SERVICE_FOLDER}/")


# ------------------------------------------------------------------------------- Files of an append


_UUID = "-".join(f"[0-9a-f]{{{length}}}" for length in (8, 4, 4, 4, 12))
_NAME = re.compile(
    rf"(?P<call>{_UUID})-(?P<try>.+)-(?P<number>[0-9]+)of(?P<count>[0-9]+)\.parquet", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class AppendTry:
    """One try of an append."""

    call: str
    id: str
    count: int
    """Number of its files."""


def append_file_names(call: str, attempt: str, count: int) -> Sequence[str]:
    """Return the names of all files of a try.

    Args:
        call: The caller's id of the call, a UUID.
        attempt: Unique id of the try.
        count: Number of files.
    """
    return [f"{call}-{attempt}-{number}of{count}.parquet" for number in range(1, count + 1)]


def append_try_of(path: str) -> AppendTry | None:
    """Return the try of a file, from its path; None: it is not a file of an append."""
    if not path.startswith(f"{APPEND_FOLDER}/"):
        return None
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    return AppendTry(match["call"].lower(), match["try"], int(match["count"]))


# ------------------------------------------------------------------------- Marks of other formats


FORMATS = {
    "_delta_log": "Delta Lake",
    ".hoodie": "Apache Hudi",
    "_spark_metadata": "Spark's streaming file sink",
    "_versions": "Lance",
}
"""Name of a folder in a table → its format."""
LOG_TABLE, LOG_TIME, LOG_FILES, LOG_ROWS = "neveTable", "neveAsOf", "neveFiles", "neveRows"
LOG_LAG = "neveLag"
"""Fields of `commitInfo` in a version of a Delta log that the service wrote, and properties in its
Iceberg metadata: id of the table, time of the store in seconds before the files were read, number
of files, number of their rows, and why the table has newer rows that the version lacks."""
ICEBERG_FOLDER, ICEBERG = "metadata", "Apache Iceberg"
ICEBERG_FILE = re.compile(r"[^/]+\.metadata\.json(?:\.gz)?")
OWN_ICEBERG_METADATA = re.compile(
    r"(\d{5,19})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.metadata\.json"
)
OWN_ICEBERG_MANIFEST = re.compile(r"neve-\d+-(?:m\d+|list)\.avro")
"""Names of metadata files (number and id of the metadata) and manifests that the service writes."""
ICEBERG_HINT = "version-hint.text"
"""Name of the file that names the newest metadata file."""


def mark_in_path(path: str) -> tuple[str, str] | None:
    """Return the mark of a format that a path is or is in, and the format; None: there is none."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if part in FORMATS:
            return "/".join(parts[: number + 1]), FORMATS[part]
    if parts[-2:-1] == [ICEBERG_FOLDER] and ICEBERG_FILE.fullmatch(parts[-1]):
        return path, ICEBERG
    return None
