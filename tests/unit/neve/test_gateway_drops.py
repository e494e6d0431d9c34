"""What a dropped table still waits for, and who is told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from neve.client.errors import RefusedError
from tests.support.gateway import serving

ROWS = pa.table({"n": [1, 2]})


def test_a_name_that_waits_for_files_says_until_when(tmp_path: Path) -> None:
    with serving() as gateway, gateway.client() as client:
        client.create_table("events", str(tmp_path / "events"), schema=ROWS.schema)
        assert client.append("events", ROWS).rows == 2
        left = client.drop("events", delete_files=True)
        assert left.files_left >= 1
        assert left.name_free_at_s is not None
        says = "'events' is being dropped: its name is free when .* has deleted .* at about 20"
        with pytest.raises(RefusedError, match=says) as caught:
            client.drop("events")
        assert caught.value.code == "going"
        with pytest.raises(RefusedError, match=says):
            client.create_table("events", str(tmp_path / "other"), schema=ROWS.schema)
        client.create_table("empty", str(tmp_path / "empty"), schema=ROWS.schema)
        assert client.drop("empty").name_free_at_s is None
