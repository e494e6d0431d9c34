"""`neve doctor --location`: what it says of a location that cannot be used, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from common.errors import ConfigError
from common.parquet import location
from common.parquet.location import (
    error_advice,
    is_transient,
    open_location,
    s3_filesystem,
    try_location,
)
from neve.recovery.stored_files import list_location
from tests.support.s3_server import REGION, VARIABLES, S3Server, s3_server
from tests.support.shell import Shell

Keys = dict[str, tuple[str, str]]
Use = Callable[[tuple[str, str] | None], None]

READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}],
}
EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
}
SETUP_CALLS = 7
"""Calls that the server takes from anybody before it looks at keys: those of `keys`."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server that looks at keys."""
    with s3_server({"INITIAL_NO_AUTH_ACTION_COUNT": str(SETUP_CALLS)}) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: S3Server) -> Keys:
    """Keys of a user who may do everything, and of one who may only read."""
    known = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    where = {"endpoint_url": server.endpoint, "region_name": REGION, **known}
    place = {"LocationConstraint": REGION}
    boto3.client("s3", **where).create_bucket(Bucket="tables", CreateBucketConfiguration=place)
    iam = boto3.client("iam", **where)
    made = {}
    for name, policy in (("all", EVERYTHING), ("reader", READ_ONLY)):
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        made[name] = (key["AccessKeyId"], key["SecretAccessKey"])
    return made


@pytest.fixture
def use(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Use]:
    """Return a function that makes a pair of keys those of this process."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    def choose(pair: tuple[str, str] | None) -> None:
        for name, value in zip(
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), pair or (None, None), strict=True
        ):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        location._client.cache_clear()  # A client keeps the keys that it has found.

    yield choose
    choose(None)


def trial(uri: str) -> str:
    with pytest.raises(ConfigError) as caught:
        try_location(open_location(uri), "_neve/doctor-1", lambda: 0.0)
    return str(caught.value)


def test_a_key_with_all_rights_passes_every_step(use: Use, keys: Keys) -> None:
    use(keys["all"])
    took = try_location(open_location("s3://tables/t"), "_neve/doctor-1", lambda: 0.0)
    assert list(took) == ["write", "list", "read", "delete"]
    assert list_location(open_location("s3://tables/t")) == {}


def test_a_key_that_may_only_read_fails_at_writing(use: Use, keys: Keys) -> None:
    use(keys["reader"])
    said = trial("s3://tables/t")
    assert said.startswith("s3://tables/t: write failed: the credentials in use do not allow it")


def test_an_unknown_access_key_is_named(use: Use, keys: Keys) -> None:
    use(("AKIAUNKNOWN", "x"))
    assert "the access key is unknown there" in trial("s3://tables/t")


def test_a_wrong_secret_key_is_named(use: Use, keys: Keys) -> None:
    use((keys["all"][0], "wrong"))
    assert "the secret key does not fit the access key" in trial("s3://tables/t")


def test_a_missing_bucket_is_named(use: Use, keys: Keys) -> None:
    use(keys["all"])
    assert "there is no such bucket" in trial("s3://no-such-bucket/t")


def test_the_doctor_command_reports_each_location(use: Use, keys: Keys, tmp_path: Path) -> None:
    use(keys["all"])
    shell = Shell(tmp_path)
    place = ("doctor", "--compactors", "0", "--location")
    shell.run(*place, "s3://tables/t", says="s3://tables/t can be")
    shell.run(*place, "s3://no-such-bucket/t", code=1, says="there is no such")


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    client = s3_filesystem("b", environ)
    with pytest.raises(OSError, match="NETWORK_CONNECTION") as caught:
        client.get_file_info("b/x")
    assert "there is no answer" in (error_advice(caught.value) or "")


def test_an_endpoint_that_is_no_url() -> None:
    with pytest.raises(ConfigError, match=r"endpoint 'minio:9000' is not a URL"):
        s3_filesystem("b", {"AWS_ENDPOINT_URL": "minio:9000"})


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation", "set AWS_REGION"),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No body", "or none were found"),
        ("AWS Error EXPIRED_TOKEN during HeadObject operation", "have expired"),
    ],
)
def test_errors_of_s3_have_advice_and_are_not_transient(said: str, wanted: str) -> None:
    assert wanted in (error_advice(OSError(said)) or "")
    assert not is_transient(OSError(said))


def test_slow_down_and_network_errors_of_s3_are_transient() -> None:
    assert is_transient(OSError("AWS Error SLOW_DOWN during PutObject operation"))
    assert is_transient(OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"))
