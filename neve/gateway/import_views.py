"""What users read of an import."""

from itertools import islice

from common.model.table import Table
from neve import api
from neve import api_import as wire
from neve.importing.directory import Directory

LISTED_MAX = 10_000


def import_view(directory: Directory, table: Table) -> wire.ImportReport:
    """Return what an import came to.

    Args:
        directory: After its last step.
        table: As it is now, or would be.
    """
    body, found = directory.body, directory.survey
    there = not body.dry_run or directory.table is not None
    parts = islice(sorted(found.partitions.items()), LISTED_MAX)
    misfits = islice(sorted(found.misfits.items()), LISTED_MAX)
    return wire.ImportReport(
        table=table.name,
        location=table.location,
        state=table.state.value if there else "",
        files=found.total.files + directory.already,
        rows=found.total.rows,
        size_bytes=found.total.size_bytes,
        added=directory.added,
        already=directory.already,
        ignored=directory.listing.ignored,
        misfits=len(found.misfits),
        schema=tuple(
            api.Column(name=each.name, type=each.type, nullable=each.nullable)
            for each in table.schema
        ),
        key=table.key,
        partition_by=table.partition_by,
        partitions=len(found.partitions),
        per_partition=tuple(
            wire.PartitionTotals(
                partition=text, files=each.files, rows=each.rows, size_bytes=each.size_bytes
            )
            for text, each in parts
        ),
        misfit_files=tuple(wire.Misfit(path=path, why=why) for path, why in misfits),
        notes=tuple(_notes(directory, table)),
        dry_run=body.dry_run,
    )


def _notes(directory: Directory, table: Table) -> list[str]:
    body, found = directory.body, directory.survey
    notes = []
    if not body.readers_use_manifest:
        notes.append(
            "the table stays paused: a compaction replaces files of this directory, so first let "
            "every reader use the manifest (docs/import.md), then "
            f"`neve resume {table.name}` or repeat with --readers-use-manifest"
        )
    if table.settings.manifest_interval_s is None:
        notes.append("no manifest is published: the setting manifest_interval_s is off")
    lose = "rows without a version lose against every other row of their key"
    if found.unversioned_rows:
        notes.append(f"{body.version_column} is null in {found.unversioned_rows} rows; {lose}")
    if found.untold:
        notes.append(
            f"{found.untold} files do not tell whether {body.version_column} is null; {lose}"
        )
    if found.misfits:
        left = "would be left out" if body.dry_run else "were left out: readers of the manifest"
        notes.append(
            f"{len(found.misfits)} files do not fit and {left}"
            + ("" if body.dry_run else " do not see them")
        )
    return notes
