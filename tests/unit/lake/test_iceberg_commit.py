"""Commits to Iceberg tables: what is required of PyIceberg, and which delete files go."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import ConfigError
from common.lake.iceberg import catalogs, commit
from common.lake.iceberg.commit import HeadFiles, dangling
from common.lake.iceberg.manifests import DeleteFile
from common.lake.source import Commit, LakeFile, LakeOutput, Snapshot


def test_names_that_pyiceberg_may_rename_are_checked() -> None:
    commit.require_names((*catalogs.PRIVATE_NAMES, *commit.PRIVATE_NAMES))

    with pytest.raises(ConfigError, match=r"has no pyiceberg\.manifest\.Gone; install the one"):
        commit.require_names(("pyiceberg.manifest.Gone",))
    with pytest.raises(ConfigError, match=r"has no pyiceberg\.manifest\.DataFile\.gone"):
        commit.require_names(("pyiceberg.manifest.DataFile.gone",))


def delete_file(name: str, sequence: int, **fields: Any) -> DeleteFile:
    plain: dict[str, Any] = {"equality_ids": (), "partition": (), "is_global": True}
    sizes = {"rows": 1, "size_bytes": 1}
    return DeleteFile(path=name, manifest="m", sequence=sequence, **{**plain, **sizes, **fields})


def of_file(name: str, data: str) -> DeleteFile:
    return delete_file(name, 3, path_min=data, path_max=data)


A = LakeFile("a", 1, 10, deletes="d", sequence=1, equality=((3, "e3"), (6, "e6")))
B = LakeFile("b", 1, 10, sequence=3, equality=((6, "e6"),))
OUTPUT = LakeOutput("o", 1, 9, (), ("a",))
EQUAL = [delete_file("e3", 3, equality_ids=(1,)), delete_file("e6", 6, equality_ids=(1,))]
AT_A, AT_B = of_file("pa", "a"), of_file("pb", "b")
BOTH = delete_file("ab", 3, path_min="a", path_max="b")
UNKNOWN = delete_file("u", 3)
COUNTS = {"ab": {"a": 1, "b": 2}}


def gone(
    *removed: LakeFile, outputs: tuple[LakeOutput, ...] = (OUTPUT,), is_whole: bool = True
) -> set[str]:
    base = Snapshot(7, "t", files={"a": A, "b": B})
    made = Commit(base, "attempt", outputs, removed, sequence=5)
    deletes = (*EQUAL, AT_A, AT_B, BOTH, UNKNOWN)
    return set(dangling(made, HeadFiles(str, deletes, COUNTS, is_whole)))


def test_delete_files_go_that_apply_to_no_file_any_more() -> None:
    # The output has the number 5: the deletes of 3 were applied to it, those of 6 still apply.
    assert gone(A) == {"e3", "pa"}
    assert gone(A, B) == {"e3", "pa", "pb", "ab"}


def test_deletes_of_emptied_files_go_unless_another_file_needs_them() -> None:
    assert gone(A, outputs=()) == {"e3", "pa"}
    assert gone(A, B, outputs=()) == {"e3", "e6", "pa", "pb", "ab"}


def test_delete_files_stay_where_a_file_may_be_unknown() -> None:
    assert gone(A, B, is_whole=False) == set()


def test_files_without_deletes_take_none_with_them() -> None:
    plain = LakeFile("a", 1, 10, sequence=7)
    assert gone(plain) == set()
