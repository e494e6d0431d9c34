"""Nothing that may be a secret leaves the process in a log or an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import redacted, redacted_tree
from common.telemetry import event_log

SHOWN = [
    ("location s3://AK:SE/C@bucket/t is not one", "location s3://***@bucket/t is not one"),
    ("redis://:secret@127.0.0.1:6379/0 gone", "redis://***@127.0.0.1:6379/0 gone"),
    ("'s3://b/t?access_key=A&secret_key=B', wanted", "'s3://b/t?***', wanted"),
    ("s3://AK:SE?C@bucket/x", "s3://***@bucket/x"),
    ("s3://u:p@x@h/t and s3://v:w@h2?q=1", "s3://***@h/t and s3://***@h2?***"),
    ("nowhere (s3://b/t?x=y): name it", "nowhere (s3://b/t?***): name it"),
    ("http://127.0.0.1:80/a@b", "http://127.0.0.1:80/a@b"),
    ("file:///data/a@b.parquet", "file:///data/a@b.parquet"),
    ("mail a@b.example?", "mail a@b.example?"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_secrets_are_cut_out_and_the_rest_is_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


SECRET = st.text("abc/+=:%?#", min_size=1, max_size=12).map(lambda text: f"qZ{text}Zq")


@given(SECRET, SECRET, st.sampled_from(["", "look: ", "('"]), st.sampled_from(["", " .", "')"]))
def test_no_secret_of_a_uri_is_shown(user: str, word: str, before: str, after: str) -> None:
    for uri in (f"s3://{user}:{word}@bucket/t", f"s3://bucket/t?secret_key={word}&k={user}"):
        shown = redacted(f"{before}{uri}{after}")
        assert word not in shown
        assert user not in shown
        assert "bucket/t" in shown


def test_redaction_takes_linear_time() -> None:
    for unit in ("a://", "a://@", " a://x?", "@:/?"):
        assert "qZ" not in redacted(unit * 100_000 + " s3://qZ:qZ@h")


def test_values_of_a_log_are_redacted_in_their_depth() -> None:
    uri = "s3://k:s@h"
    assert redacted_tree({"a": [uri, {"b": (uri, 1, None, True)}]}) == {
        "a": ["s3://***@h", {"b": ["s3://***@h", 1, None, True]}]
    }
    assert redacted_tree(OSError(f"no {uri}")) == "no s3://***@h"
    deep: object = uri
    for _ in range(50):
        deep = [deep]
    assert "k:s" not in json.dumps(redacted_tree(deep))


def test_the_event_log_shows_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    log = event_log("redaction-test")
    log("opened", uri="s3://AK:SECRET@bucket/t?endpoint_override=x", error=ValueError("r://:pw@h"))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "SECRET" not in said
    assert "endpoint_override" not in said
    assert "pw" not in said
    assert "bucket/t" in said
