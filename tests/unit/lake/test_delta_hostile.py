"""Logs that no honest writer leaves, and tables that Névé must not compact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from common.errors import ConfigError, RefusedError, RequestError
from common.lake import storage
from common.lake.delta import actions, log
from common.lake.delta.actions import encoded_path, relative_path
from common.lake.open import open_source
from common.lake.source import Snapshot

PROTOCOL: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
FIELD = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
ADD = {
    "path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1,
    "dataChange": True, "stats": '{"numRecords": 1}',
}  # fmt: skip

VECTOR = {"storageType": "u", "pathOrInlineDv": "", "sizeInBytes": 1, "cardinality": 1}


def metadata(fields: Any = (FIELD,), **changes: Any) -> dict[str, Any]:
    schema = {"type": "struct", "fields": list(fields)}
    form = {"provider": "parquet", "options": {}}
    values = {"id": "t", "format": form, "schemaString": json.dumps(schema)}
    return {**values, "partitionColumns": [], "configuration": {}, **changes}


def load(root: Path, *lines: Mapping[str, Any] | str, first: Any = None) -> Snapshot:
    """Load a table of one version: protocol, schema, and these lines."""
    (root / "_delta_log").mkdir(exist_ok=True)
    beginning = first or [{"protocol": PROTOCOL}, {"metaData": metadata()}]
    texts = [text if isinstance(text, str) else json.dumps(text) for text in (*beginning, *lines)]
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(texts))
    return open_source("delta", str(root), {}).load()


def with_features(*names: str, **configuration: str) -> list[dict[str, Any]]:
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": list(names[:1]), "writerFeatures": list(names),
    }  # fmt: skip
    named = {name.replace("_", "."): value for name, value in configuration.items()}
    return [{"protocol": protocol}, {"metaData": metadata(configuration=named)}]


# ---------------------------------------------------------------------------------------- Features


@pytest.mark.parametrize(
    "names",
    [
        ("deletionVectors", "appendOnly", "invariants", "checkConstraints", "generatedColumns"),
        ("timestampNtz", "identityColumns", "changeDataFeed", "inCommitTimestamp"),
        ("v2Checkpoint", "variantType", "domainMetadata", "columnMapping"),
        ("typeWidening", "typeWidening-preview"),
    ],
)
def test_features_that_a_compaction_keeps_are_no_reason(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    assert load(tmp_path, {"add": ADD}, first=with_features(*names)).refusal == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rowTracking", "drop the feature, or use the engine's own OPTIMIZE, which keeps row ids"),
        ("catalogManaged", "commits go through the catalog: compact it there"),
        ("clustering", "use the engine's own OPTIMIZE, which keeps the clustering"),
        ("levitation", "use the engine's own OPTIMIZE, or drop the feature"),
    ],
)
def test_other_features_refuse_the_table(tmp_path: Path, name: str, reason: str) -> None:
    head = load(tmp_path, {"add": ADD}, first=with_features("deletionVectors", name))

    expected = f"the table has the feature {name}, which Névé does not support; {reason}"
    assert head.refusal == expected
    assert head.files.keys() == {"a.parquet"}


def test_column_mapping_and_newer_protocols_refuse_the_table(tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    head = load(
        tmp_path, first=[{"protocol": PROTOCOL}, {"metaData": metadata(configuration=mapped)}]
    )
    assert "delta.columnMapping.mode = name" in head.refusal

    newer = {"minReaderVersion": 4, "minWriterVersion": 8}
    head = load(tmp_path, first=[{"protocol": newer}, {"metaData": metadata()}])
    assert head.refusal.startswith("the table needs reader version 4 and writer version 8")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "int64"), ("integer", "int32"), ("short", "int16"), ("byte", "int8"),
        ("timestamp", "timestamp[us, UTC]"), ("timestamp_ntz", "timestamp[us]"),
        ("decimal(12,2)", "decimal(12, 2)"), ("date", "date"),
        ({"type": "array", "elementType": "string"}, "list<string>"),
        ({"type": "array", "elementType": "date", "containsNull": False}, "list<date not null>"),
        ({"type": "map", "keyType": "string", "valueType": "double"}, "map<string, double>"),
        ({"type": "struct", "fields": [FIELD]}, "struct<a: int64>"),
    ],
)  # fmt: skip
def test_types_have_their_text_form(tmp_path: Path, kind: Any, text: str) -> None:
    fields = [{**FIELD, "type": kind}]
    head = load(tmp_path, first=[{"protocol": PROTOCOL}, {"metaData": metadata(fields)}])

    assert (head.refusal, [column.type for column in head.columns]) == ("", [text])


def nested(depth: int) -> Any:
    kind: Any = "long"
    for _ in range(depth):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    return kind


@pytest.mark.parametrize("kind", ["variant", "void", "interval", "decimal(39,2)", nested(30)])
def test_other_types_refuse_the_table(tmp_path: Path, kind: Any) -> None:
    fields = [{**FIELD, "type": kind}]
    head = load(tmp_path, first=[{"protocol": PROTOCOL}, {"metaData": metadata(fields)}])

    assert head.refusal.startswith("column a ")
    assert head.columns == ()


# ------------------------------------------------------------------------------------------- Values


@pytest.mark.parametrize(
    "path",
    [
        "../other/a.parquet", "p/../../a.parquet", "%2e%2e/a.parquet", "p/%2E%2E/a.parquet",
        "./a.parquet", "p//a.parquet", "", "a%00.parquet", "a%0Ab.parquet", "_delta_log/a.parquet",
        "%5Fdelta_log/a.parquet", "a%ff.parquet", "\ud800.parquet", "p/", "a" * 5000,
    ],
)  # fmt: skip
def test_paths_that_are_no_plain_ones_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedError, match="malformed: path"):
        load(tmp_path, {"add": {**ADD, "path": path}})


@pytest.mark.parametrize("path", ["/etc/a.parquet", "file:///etc/a", "s3://other/a", "x:a.parquet"])
def test_absolute_paths_are_refused_with_a_way_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedError, match="make a deep clone"):
        load(tmp_path, {"add": {**ADD, "path": path}})


@pytest.mark.parametrize(
    "path", ["a b%c/ü#?.parquet", "p=x%20y/a+b:c.parquet", "p=2024-01-01 00:00"]
)
def test_paths_are_encoded_as_they_are_decoded(path: str) -> None:
    assert relative_path(encoded_path(path)) == path


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -1}, {"size": 2**63}, {"size": "1"}, {"size": True}, {"size": 1.5}, {"size": None},
        {"path": None}, {"path": 7}, {"partitionValues": {"p": "1"}}, {"partitionValues": [1]},
        {"modificationTime": -5}, {"stats": "{"}, {"stats": "[" * 100_000},
        {"deletionVector": {"storageType": "u"}},
        {"deletionVector": {**VECTOR, "storageType": "x"}},
        {"deletionVector": {**VECTOR, "sizeInBytes": 2**40}},
        {"deletionVector": {**VECTOR, "cardinality": 2**40}},
        {"deletionVector": {**VECTOR, "cardinality": 2}},
    ],
)  # fmt: skip
def test_entries_with_other_values_are_refused(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    with pytest.raises(RefusedError):
        load(tmp_path, {"add": {**ADD, **changes}})


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "1", '{"add": 1}', '{"add": []}', "[" * 100_000, '{"add":' * 100_000, "\xff",
     '{"commitInfo": {"a": NaN}}', '{"commitInfo": {"a": ' + "9" * 5000 + "}}"],
)  # fmt: skip
def test_lines_that_are_no_entries_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(RefusedError, match="line 3"):
        load(tmp_path, line)


def test_statistics_that_are_long_or_have_no_count_are_left_out(tmp_path: Path) -> None:
    long = json.dumps({"numRecords": 5, "minValues": {"a": "x" * 70_000}})
    huge = json.dumps({"numRecords": 5, "minValues": {"a": "x" * 1_100_000}})
    stats = [long, huge, '{"numRecords": -1}', '{"numRecords": "5"}', "[5]", ""]
    lines = [
        {"add": {**ADD, "path": f"{number}.parquet", "stats": text}}
        for number, text in enumerate(stats)
    ]
    files = load(tmp_path, *lines).files

    assert [files[f"{number}.parquet"].rows for number in range(6)] == [5, -1, -1, -1, -1, -1]
    assert files["0.parquet"].bounds == files["1.parquet"].bounds == ""


@pytest.mark.parametrize(
    "first",
    [
        [{"metaData": metadata()}],
        [{"protocol": PROTOCOL}],
        [{"protocol": PROTOCOL}, {"metaData": {**metadata(), "schemaString": "["}}],
        [{"protocol": PROTOCOL}, {"metaData": {**metadata(), "schemaString": "[]"}}],
        [{"protocol": PROTOCOL}, {"metaData": {**metadata(), "partitionColumns": "p"}}],
        [{"protocol": PROTOCOL}, {"metaData": {**metadata(), "configuration": [1]}}],
        [{"protocol": PROTOCOL}, {"metaData": {**metadata(), "id": None}}],
        [{"protocol": {**PROTOCOL, "minReaderVersion": "1"}}, {"metaData": metadata()}],
        [{"protocol": {**PROTOCOL, "writerFeatures": "x"}}, {"metaData": metadata()}],
        [{"protocol": PROTOCOL}, {"metaData": metadata([{**FIELD, "type": 7}])}],
        [{"protocol": PROTOCOL}, {"metaData": metadata([{**FIELD, "name": None}])}],
    ],
)
def test_schemas_with_other_values_are_refused(tmp_path: Path, first: Any) -> None:
    with pytest.raises(RefusedError, match="log of the table is malformed"):
        load(tmp_path, first=first)


# ------------------------------------------------------------------------------------------- Bounds


def test_files_above_a_bound_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path, {"add": ADD})
    monkeypatch.setattr(log, "VERSION_BYTES_MAX", 100)
    with pytest.raises(RefusedError, match=r"json has \d+ bytes, more than 100"):
        load(tmp_path, {"add": ADD})
    monkeypatch.undo()
    monkeypatch.setattr(actions, "LINE_BYTES_MAX", 150)
    with pytest.raises(RefusedError, match=r"line 2 has \d+ bytes"):
        load(tmp_path, {"add": ADD})
    monkeypatch.undo()
    monkeypatch.setattr(log, "FILES_MAX", 1)
    with pytest.raises(RefusedError, match="more than 1 files"):
        load(tmp_path, {"add": ADD}, {"add": {**ADD, "path": "b.parquet"}})
    monkeypatch.undo()
    monkeypatch.setattr(storage, "LISTED_MAX", 0)
    with pytest.raises(RefusedError, match="more than 0 files"):
        load(tmp_path)


def test_a_huge_version_number_is_not_counted_up_to(tmp_path: Path) -> None:
    load(tmp_path, {"add": ADD})
    (tmp_path / "_delta_log" / f"{10**19}.json").write_text("{}")

    with pytest.raises(RefusedError, match="versions are to be read one by one"):
        open_source("delta", str(tmp_path), {}).load()


@pytest.mark.parametrize(
    "hint", ["", "{", "[]", '{"version": -1}', '{"version": 99}', "x" * 2_000_000]
)
def test_the_hint_of_a_checkpoint_may_be_anything(tmp_path: Path, hint: str) -> None:
    load(tmp_path, {"add": ADD})
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text(hint)

    assert load(tmp_path, {"add": ADD}).version == 0


def sidecar_checkpoint(root: Path, name: str) -> None:
    lines = [{"protocol": PROTOCOL}, {"metaData": metadata()}, {"sidecar": {"path": name}}]
    path = root / "_delta_log" / f"{0:020}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json"
    path.write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("name", ["../../secret.parquet", "/etc/secret.parquet", "secret.parquet"])
def test_sidecars_lie_in_their_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "t"
    root.mkdir()
    load(root, {"add": ADD})
    sidecar_checkpoint(root, name)
    for folder in (tmp_path, root, root / "_delta_log"):
        table = pa.table({"add": [{**ADD, "path": "secret", "partitionValues": None}]})
        parquet.write_table(table, folder / "secret.parquet")

    with pytest.raises(Exception, match=r"_sidecars/secret.parquet is missing"):
        open_source("delta", str(root), {}).load()


@pytest.mark.parametrize("name", ["..", "a.json", "a b.parquet", "", None])
def test_sidecars_have_plain_names(tmp_path: Path, name: str | None) -> None:
    load(tmp_path, {"add": ADD})
    sidecar_checkpoint(tmp_path, name)  # type: ignore[arg-type]

    with pytest.raises(RefusedError, match="log of the table is malformed"):
        open_source("delta", str(tmp_path), {}).load()


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"add": [1]}),
        pa.table({"add": [{"path": "a.parquet"}]}),
        pa.table({"add": [{**ADD, "partitionValues": "p"}]}),
        pa.table({"add": [{**ADD, "partitionValues": None, "size": -5}]}),
        pa.table({"other": [1]}),
    ],
    ids=["number", "path only", "text", "negative", "other"],
)
def test_checkpoints_with_other_values_are_refused(tmp_path: Path, table: pa.Table) -> None:
    load(tmp_path)
    parquet.write_table(table, tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet")

    with pytest.raises(RefusedError, match="log of the table is malformed"):
        open_source("delta", str(tmp_path), {}).load()


def test_a_checkpoint_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path)
    table = pa.table({"add": [{"path": "a" * 1_000_000}] * 50})
    parquet.write_table(
        table, tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet", compression="zstd",
        use_dictionary=False,
    )  # fmt: skip
    monkeypatch.setattr(log, "CHECKPOINT_BYTES_MAX", 10_000_000)

    with pytest.raises(RefusedError, match=r"has 50 rows in \d+ bytes"):
        open_source("delta", str(tmp_path), {}).load()


# ------------------------------------------------------------------------------------------ Storage


def test_other_formats_and_locations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lake format 'hudi' is not supported"):
        open_source("hudi", str(tmp_path), {})
    for uri in ("http://host/t", "gs://bucket/t", "s3://", "s3://bucket/t?x=1"):
        with pytest.raises(RequestError, match="folders and s3:// only"):
            open_source("delta", uri, {})
    with pytest.raises(RequestError, match="options of the storage"):
        open_source("delta", "s3://bucket/t", {"aws_no_such_option": "secret"})
    with pytest.raises(RefusedError, match="conditional"):
        open_source("delta", "s3://bucket/t", {"aws_conditional_put": "disabled"})
    with pytest.raises(RefusedError, match="is no folder"):
        open_source("delta", str(tmp_path / "none"), {}).load()
    with pytest.raises(RefusedError, match="has no Delta log"):
        open_source("delta", str(tmp_path), {}).load()


def test_errors_do_not_show_secrets() -> None:
    options = {
        "aws_secret_access_key": "geheim", "aws_access_key_id": "wer",
        "aws_endpoint": "http://127.0.0.1:9", "aws_region": "eu-central-1",
    }  # fmt: skip
    source = open_source("delta", "s3://bucket/t", options)
    with pytest.raises(Exception, match="bucket/t") as caught:
        source.load()

    assert "geheim" not in repr(caught.value)
    assert caught.value.__cause__ is None
