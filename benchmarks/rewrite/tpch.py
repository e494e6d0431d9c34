"""Tables of TPC-H, made by the generator `tpchgen-cli` (extra `bench`)."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def tpch_table(name: str, scale: float) -> pa.Table:
    """Return a table of TPC-H with plain Arrow types.

    Args:
        name: `lineitem` or `orders`.
        scale: TPC-H's scale factor; 1 makes 6,000,000 line items.

    Raises:
        RuntimeError: The generator is not installed, or failed.
    """
    program = Path(sys.executable).with_name("tpchgen-cli")
    if not program.exists():
        raise RuntimeError("tpchgen-cli is not installed: pip install -r requirements/bench.txt")
    with tempfile.TemporaryDirectory() as folder:
        what = ["parquet", "-s", f"{scale:g}", f"--tables={name}", f"--output-dir={folder}"]
        done = subprocess.run([str(program), *what], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tpchgen-cli failed: {done.stderr.strip()}")
        return _plain(pq.read_table(Path(folder) / f"{name}.parquet"))


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with strings in place of string views, which few readers take."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            values = pc.cast(table.column(at), pa.string())
            table = table.set_column(at, field.name, values)
    return table.replace_schema_metadata(None)
