"""Hundreds of thousands of tablets in a Redis within seconds: written inside it, by a script.

Every value is what the store's own codecs make of one tablet, with its number put where
that tablet's was. So what is read back is a table like any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from common.metadata.changes import Applied, CreateTable
from common.metadata.codec.layout import pack
from common.metadata.codec.tablet import BOUNDS, FILE
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.runtime import RandomIds

FILES = 10
KEY_BYTES = 8
TABLETS_PER_CALL = 2_000
_SCRIPT = """
local function filled(template, mark, key)
  return (string.gsub(template, mark, function() return key end))
end
local index, prefix, suffixes = KEYS[1], ARGV[1], cjson.decode(ARGV[2])
local first, count, bounds, analysis = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local function key_of(n) return struct.pack('>I8', n) end
for n = first, first + count - 1 do
  local own, before = key_of(n), key_of(n - 1)
  local tablet = prefix .. string.format('%016x', n)
  local files = {}
  local sized = 0
  for f = 7, #ARGV, 2 do
    files[#files + 1] = string.format('in/%08x-', n) .. ARGV[f]
    files[#files + 1] = filled(ARGV[f + 1], 'KKKKKKKK', own)
    sized = sized + 1
  end
  local own_bounds = filled(filled(bounds, 'SSSSSSSS', before), 'KKKKKKKK', own)
  redis.call('SET', tablet .. suffixes[1], own_bounds)
  redis.call('HSET', tablet .. suffixes[2], unpack(files))
  local record = tablet .. suffixes[3]
  redis.call('HSET', record, 'v', 1, 'f', sized, 'b', sized * 1000000, 'a', analysis)
  redis.call('ZADD', index, 0, own)
end
"""


def key_of(number: int) -> bytes:
    """Return the end of a tablet, which is also the only key in its files."""
    return number.to_bytes(KEY_BYTES, "big")


@dataclass(frozen=True, slots=True)
class Many:
    """A table of many tablets of ten files each, numbered from 1."""

    table: Table
    tablets: int

    def ids(self) -> list[TabletId]:
        """Return the ids of all tablets but the last, which is empty and ends at infinity."""
        return [TabletId(self.table.id, key_of(number + 1)) for number in range(self.tablets)]


async def many_tablets(
    store: TabletStore, keyspace: RedisKeyspace, tablets: int, *, analysis: str = "unknown"
) -> Many:
    """Make a table in which no job is wanted.

    Args:
        store: Over the keyspace.
        keyspace: Of a Redis that nobody else uses: its scripts run long.
        tablets: How many, beside the last, which is empty.
        analysis: What their records say of them as they are.
    """
    name = RandomIds().next("tbl")
    table = Table(
        id=name,
        name=name,
        location=f"file:///tmp/{name}",
        schema=(Column("k", "int64"), Column("v", "int64")),
        key=("k",),
        version_column="v",
    )
    outcome = await store.apply(CreateTable(table=table))
    assert isinstance(outcome, Applied), outcome
    own, before = b"K" * KEY_BYTES, b"S" * KEY_BYTES
    keys = TabletKeys.of(TabletId(table.id, own))
    prefix = keys.prefix.partition(own.hex())[0]
    suffixes = [key.removeprefix(keys.prefix) for key in (keys.bounds, keys.files, keys.record)]
    given: list[str | bytes | int] = [prefix, json.dumps([f":{suffix}" for suffix in suffixes])]
    files: list[str | bytes] = []
    for number in range(FILES):
        files += [f"{number:04x}.parquet", FILE.pack(_file(number, own))]
    for first in range(0, tablets, TABLETS_PER_CALL):
        count = min(TABLETS_PER_CALL, tablets - first)
        words = [*given, first + 1, count, BOUNDS.pack(Bounds(before, own))]
        words += [pack([analysis, 1, 1]), *files]
        await keyspace.fetch([[("EVAL", _SCRIPT, 1, TableKeys(table.id).index, *words)]])
    await keyspace.fetch([[_last_bounds(table, tablets)]])
    return Many(table, tablets)


def _file(number: int, key: bytes) -> DataFile:
    """Return a file; each is twice as large as all before it, so that no job is wanted."""
    version = (1_700_000_000_000_000 + number).to_bytes(8, "big")
    return DataFile(
        path="in/any",
        size_bytes=1_000_000 * 3**number,
        rows=10_000,
        key_min=key,
        key_max=key,
        version_min=version,
        version_max=version,
        clean=True,
    )


def _last_bounds(table: Table, tablets: int) -> tuple[str | bytes, ...]:
    last = TabletId(table.id, PLUS_INFINITY)
    return ("SET", TabletKeys.of(last).bounds, BOUNDS.pack(Bounds(key_of(tablets), last.end)))
