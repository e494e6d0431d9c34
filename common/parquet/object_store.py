"""Object stores that speak S3: how they are reached, and what their errors mean.

Credentials come from the default chain alone: environment, profile, web identity (IRSA),
instance. Endpoint and region have the names that other tools know, too:

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL    of a store that is not Amazon's, such as MinIO
    AWS_REGION, AWS_DEFAULT_REGION           unset: the bucket is asked where it is

Bytes go through Arrow's client, never through Hadoop's.
"""

import errno
import os
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from pyarrow import fs as arrow_fs

from common.errors import ConfigError

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
REGION_WITH_ENDPOINT = "us-east-1"
"""What stores with an endpoint of their own take for signatures, if nothing else is said."""
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 60.0
TRIES_MAX = 5
CLIENTS_MAX = 64

_CAUSES = (
    ("NO_SUCH_BUCKET", "there is no such bucket: create it, or correct the name"),
    ("INVALID_ACCESS_KEY_ID", "the access key is not known there"),
    ("INVALID_CLIENT_TOKEN_ID", "the access key is not known there"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key does not fit the access key"),
    ("EXPIRED_TOKEN", "the credentials have expired"),
    ("MISSING_AUTHENTICATION_TOKEN", "no credentials were found"),
    ("PermanentRedirect", "the bucket is in another region: set AWS_REGION to it"),
    ("AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_REGION to it"),
    ("HTTP status 301", "the bucket is in another region: set AWS_REGION to it"),
    ("HTTP status 400", "the bucket may be in another region (AWS_REGION), or no token was sent"),
    (
        "ACCESS_DENIED",
        "the credentials in use do not allow it, or none were found "
        "(environment, profile, web identity and instance were looked through)",
    ),
    ("NETWORK_CONNECTION", "nothing answers: look at AWS_ENDPOINT_URL and at the network"),
)

_SILENT = (
    "AWS Error NETWORK",
    "AWS Error SERVICE_UNAVAILABLE",
    "AWS Error SLOW_DOWN",
    "AWS Error THROTTLING",
    "AWS Error INTERNAL_FAILURE",
    "AWS Error REQUEST_TIMEOUT",
    "HTTP status 500",
    "HTTP status 502",
    "HTTP status 503",
    "HTTP status 504",
)
"""What an error of an object store says that did not get to the object."""
_SILENCES = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
    }
)
"""What systems say of file servers that do not answer, and of themselves."""


def s3_filesystem(bucket: str, environ: Mapping[str, str]) -> arrow_fs.FileSystem:
    """Return the client for a bucket; the same one for the same bucket and environment.

    Args:
        bucket: Its name.
        environ: Where endpoint and region are looked up.

    Raises:
        ConfigError: The endpoint is no URL, or nobody says where the bucket is.
    """
    endpoint = next(filter(None, map(environ.get, ENDPOINT_VARIABLES)), "")
    region = next(filter(None, map(environ.get, REGION_VARIABLES)), "")
    # A client has threads; a forked child must have its own.
    return _client(os.getpid(), bucket, endpoint, region)


def cause_of(error: OSError) -> str | None:
    """Return what an operator can do about an error of an object store; None: not known."""
    text = str(error)
    return next((cause for sign, cause in _CAUSES if sign in text), None)


def may_pass(error: OSError) -> bool:
    """Return whether an error may go away by itself; a wrong name or key does not."""
    return cause_of(error) is None or "NETWORK_CONNECTION" in str(error)


def is_silence(error: OSError) -> bool:
    """Return whether an error says that a storage did not do its work, and nothing of the file.

    What Parquet does not understand is an `OSError`, too, and one without a number.
    """
    if isinstance(error, TimeoutError | ConnectionError) or error.errno in _SILENCES:
        return True
    text = str(error)
    return any(sign in text for sign in _SILENT)


@lru_cache(CLIENTS_MAX)
def _client(_process: int, bucket: str, endpoint: str, region: str) -> arrow_fs.FileSystem:
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.netloc):
        message = f"endpoint {endpoint!r} is not a URL such as https://minio.example:9000"
        raise ConfigError(message)
    where = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if endpoint else {}
    return arrow_fs.S3FileSystem(
        region=region or (REGION_WITH_ENDPOINT if endpoint else _region_of(bucket)),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=TRIES_MAX),
        **where,
    )


def _region_of(bucket: str) -> str:
    try:
        return str(arrow_fs.resolve_s3_region(bucket))
    except OSError as error:
        message = f"bucket {bucket}: its region is not known, set AWS_REGION: {error}"
        raise ConfigError(message) from error
