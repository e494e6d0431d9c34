"""Plant every fault of `tests/mutants.toml` in a copy of the tree; its suite must turn red.

python -m tests.support.mutants [--at-once 2] [words of names…]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
COPIED = (
    *("common", "coordinator", "compactor", "neve", "tests", "docs"),
    *("benchmarks", "pyproject.toml", "requirements", "scripts"),
)
SUITES = {
    "core": ["tests/unit/coordinator_core"],
    "autoscaler": ["tests/unit/coordinator_core/test_autoscaling.py"],
    "control": [
        *(
            f"tests/unit/coordinator_core/test_{name}.py"
            for name in ("control", "enforcement", "pressure")
        ),
        *(
            "tests/property/queue/test_class_shares.py",
            "tests/unit/coordinator/test_controllers.py",
        ),
    ],
    "watch": ["tests/unit/neve/test_gateway_control.py", "-k", "watching"],
    "contract": ["tests/contract", "-k", "memory"],
    "ray-cluster": [
        "tests/unit/serve",
        *(f"tests/unit/coordinator_shell/test_{name}.py" for name in ("node_lack", "autoscaler")),
    ],
    "metadata": [
        f"tests/unit/metadata/test_{name}.py"
        for name in ("durable", "holds", "mutation", "requests", "tiles")
    ],
    "compactor": ["tests/unit/compactor/test_attempt.py"],
    "drops": [f"tests/unit/compactor/test_{name}.py" for name in ("drop_job", "outputs_of_a_bag")],
    "time-cuts": [
        "tests/unit/compactor/test_outputs_by_time.py",
        *("tests/unit/coordinator/test_planning.py", "-m", "not slow"),
    ],
    "time-chunk": [
        *(f"tests/unit/coordinator/test_{name}.py" for name in ("chunks", "time_chunk_planner")),
        *("tests/property/planners/test_time_chunk.py", "-m", "not slow"),
    ],
    "daemon": ["tests/integration/test_spark_engine.py", "-k", "daemon_that_was_warmed_up"],
    "releases": [f"tests/unit/common/test_{name}.py" for name in ("older_messages", "actor_class")],
    "traces": [
        "tests/unit/common/test_tracing.py",
        "tests/unit/coordinator_shell/test_job_traces.py",
        "tests/unit/compactor/test_service.py",
    ],
    "logs": ["tests/unit/common/test_event_log.py"],
    "simulate": ["tests/unit/simulate"],
    "triggers": [
        *("tests/unit/coordinator_core/test_triggers.py", "tests/contract/test_triggers.py"),
        *("tests/unit/coordinator_shell/test_triggers.py", "-k", "not redis"),
    ],
    "maintenance": [
        *(
            f"tests/unit/coordinator_core/test_{name}.py"
            for name in (
                "maintenance_scores",
                "maintenance_operations",
                "tablet_heat",
                "urgent_slots",
            )
        ),
    ],
    "stalls": [
        f"tests/unit/compactor/test_{name}.py" for name in ("stalls", "service", "application")
    ],
    "refusals": ["tests/unit/common/test_refusal_codes.py"],
    "sentinel": [
        "tests/contract/test_sentinel.py",
        *("tests/integration/test_redis_fail_over.py", "-k", "not dies and not operator"),
    ],
    "cluster": [
        *("tests/contract/test_cluster.py", "tests/integration/test_redis_cluster.py"),
        *("-k", "not frozen and not moves"),
    ],
    "lead": ["tests/unit/coordinator_shell/test_recovery.py"],
    "requests": ["tests/unit/requests/test_next_step.py"],
    "manifests": [
        "tests/unit/coordinator/test_publishing.py",
        "tests/unit/coordinator_shell/test_manifests.py",
    ],
    "imports": ["tests/unit/importing", "tests/unit/neve/test_import.py"],
    "splits": [
        *(f"tests/unit/operations/test_{name}.py" for name in ("core", "split_keys")),
        *(f"tests/unit/operations/test_{name}.py" for name in ("shell", "by_size")),
        "tests/unit/coordinator/test_planning.py",
    ],
    "stack": [
        *("tests/unit/local", "tests/integration/test_local_stack.py"),
        *("-k", "folder or home or fixes or server or redis or reaches or secrets"),
    ],
    "neighbours": ["tests/e2e/service/test_neighbours.py"],
    "packaging": ["tests/tidy/test_packaging.py", "-k", "complete"],
    "rebuild": ["tests/unit/recovery/test_lineage_since.py"],
    "layout": [
        *(f"tests/unit/{name}" for name in ("parquet", "stitch/test_moved_places.py")),
        *(f"tests/unit/compactor/test_{name}.py" for name in ("columns_beside", "verify")),
        "tests/unit/requests/test_selectors.py",
    ],
    "rollback": ["tests/sim/test_rollbacks.py", "-k", "not many_more"],
    "rollback-names": ["tests/sim/test_rollbacks.py", "-k", "deleted_are_not_committed"],
    "fsck": ["tests/integration/test_recovery_fsck.py"],
    "throttle": ["tests/unit/throttle"],
    "scans": ["tests/unit/neve/test_scan_tablet.py"],
    "moving": [
        f"tests/unit/neve/test_gateway_{name}.py" for name in ("moving", "dropped_meanwhile")
    ],
    "budgeted": ["tests/unit/coordinator/test_budgeted_planner.py"],
    "deltas": [
        *(
            "tests/unit/coordinator/test_delta_planner.py",
            "tests/unit/coordinator/test_planning.py",
        ),
        "tests/unit/coordinator_core/test_maintenance_operations.py",
    ],
    "size-tiered": ["tests/unit/coordinator/test_size_tiered_planner.py"],
    "bin-pack": ["tests/unit/coordinator/test_bin_pack_planner.py"],
    "backlogs": ["tests/unit/coordinator_core/test_backlog.py"],
    "garbage": ["tests/unit/common/test_garbage_collection.py"],
    "ranges": [
        f"tests/unit/coordinator_shell/test_{name}.py" for name in ("ray_ranges", "full_scan")
    ],
    "trackers": ["tests/unit/coordinator/test_trackers.py", "tests/property/trackers"],
    "log-segment": ["tests/unit/coordinator/test_log_segment_planner.py"],
    "live-bytes": ["tests/unit/compactor/test_live_rows.py"],
    "analyses": [
        *(
            f"tests/unit/coordinator_shell/test_{name}.py"
            for name in ("live_bytes", "new_settings")
        ),
        *("tests/contract/test_statistics.py", "tests/contract/test_operations.py"),
        *("tests/unit/coordinator_core/test_conversations.py", "-k", "not redis and not cluster"),
    ],
    "summaries": ["tests/unit/requests/test_selector_summaries.py"],
    "moves-and-drops": ["tests/sim/test_jobs_without_rewrite.py"],
    "page-cache": ["tests/unit/compactor/test_page_cache.py"],
    "time-window": ["tests/unit/coordinator/test_time_window_planner.py"],
    "leveled": [
        f"tests/unit/coordinator/test_{name}.py" for name in ("leveled_planner", "key_cuts")
    ],
    "moves": [
        *("tests/contract/test_moves.py", "tests/unit/compactor/test_attempt.py"),
        *("tests/unit/coordinator/test_planning.py", "-k", "not redis and not cluster"),
    ],
    "new-tables": ["tests/unit/neve/test_table_settings.py"],
    "settings": [
        *(f"tests/unit/common/test_{name}.py" for name in ("config", "log_files")),
        *(f"tests/unit/neve/test_{name}.py" for name in ("service_settings", "client_connect")),
        "tests/unit/coordinator/test_registry.py",
        "tests/unit/coordinator_core/test_groups.py",
        "tests/unit/coordinator_shell/test_settings.py",
        "tests/unit/local/test_logs.py",
        "tests/tidy/test_settings.py",
    ],
    "locations": [
        *(f"tests/unit/common/test_{name}.py" for name in ("location_identity", "redaction")),
        "tests/unit/parquet/test_identities.py",
        "tests/unit/neve/test_locations.py",
        "tests/unit/local/test_locations.py",
    ],
    "faults": ["tests/unit/coordinator_shell/test_table_faults.py"],
    "recreated": [
        *(f"tests/integration/test_{name}.py" for name in ("recreated_tables", "backup_copies")),
    ],
    "archives": ["tests/integration/test_hostile_archives.py", "-k", "not whatever"],
    "calls": [
        *(f"tests/unit/neve/test_gateway_{name}.py" for name in ("calls", "stalls", "data")),
    ],
    "rights": [f"tests/unit/access/test_{name}.py" for name in ("callers", "route_rights")],
    "tokens": ["tests/unit/access/test_tokens.py"],
    "audit": ["tests/unit/access/test_audit.py"],
    "quotas": ["tests/unit/access/test_quotas.py"],
    "tls": ["tests/unit/access/test_tls.py"],
    "redis-acl": ["tests/contract/test_acl.py"],
    "redis-tls": ["tests/contract/test_tls.py"],
    "oidc": ["tests/unit/access/test_oidc.py"],
    "collector": ["tests/unit/coordinator_shell/test_collector.py"],
    "generations": ["tests/unit/recovery/test_generation.py"],
    "recovery": [
        "tests/unit/recovery",
        *(
            f"tests/integration/test_{name}.py"
            for name in ("gone_back", "recovery_backup", "recovery_rebuild")
        ),
    ],
    "pins": ["tests/unit/metadata/test_file_pin.py", "tests/unit/neve/test_gateway_pins.py"],
    "limits": [f"tests/unit/neve/test_gateway_{name}.py" for name in ("limits", "unread")],
    "streams": ["tests/unit/rows/test_stream_size.py"],
    "readers": [
        "tests/unit/readers",
        "tests/unit/neve/test_gateway_hostile_files.py",
        "tests/unit/operations/test_by_size.py",
        *(
            "-k",
            "reader or hostile or add_names or import_leaves or like_it or tried or work or file",
        ),
    ],
    "hostile": ["tests/unit/neve/test_gateway_hostile_files.py", "tests/fuzz"],
    "kept-inputs": ["tests/fuzz/test_fuzz.py", "-k", "found_something"],
    "release-audit": ["tests/unit/support/test_release_audit.py"],
    "special": ["tests/unit/parquet/test_special_files.py"],
    "parsers": ["tests/property/test_linear_parsers.py"],
    "nulls": ["tests/unit/neve/test_gateway_nulls.py", "tests/unit/parquet/test_inspect.py"],
    "transforms": ["tests/unit/compactor/test_transform_parts.py"],
    "planning": [
        "tests/unit/coordinator/test_planning.py",
        "tests/unit/offline/test_plan_offline.py",
    ],
    "codec": ["tests/unit/metadata/test_codec.py", "tests/unit/metadata/test_unknown_fields.py"],
    "newer-fields": ["tests/contract/test_newer_fields.py", "-k", "memory"],
    "unreadable": ["tests/unit/neve/test_gateway_unreadable.py"],
    "key-bounds": [
        "tests/unit/keys/test_key_bounds.py",
        "tests/unit/neve/test_gateway_long_keys.py",
    ],
    "plugins": ["tests/unit/common/test_plugins.py"],
    "pruning": [
        "tests/unit/expressions/test_file_pruning.py",
        "tests/property/test_file_pruning.py",
    ],
    "pruning-requests": ["tests/unit/neve/test_gateway_requests.py", "-k", "only_files"],
    "spans": [f"tests/unit/rows/test_{name}.py" for name in ("rules", "spans")],
    "damaged-rows": ["tests/unit/neve/test_cli.py", "-k", "damaged_file or doctor_says"],
    "cli-keys": ["tests/unit/neve/test_render.py", "-k", "by_their_keys"],
    "cli-set": ["tests/unit/neve/test_cli.py", "-k", "has_changed"],
    "orders": [
        *(f"tests/unit/neve/test_gateway_{name}.py" for name in ("service", "drops")),
        "-k",
        "until_when or not_there",
    ],
    "client-rows": ["tests/unit/neve/test_client_rows.py"],
    "request-results": ["tests/unit/neve/test_request_results.py"],
    "request-ends": ["tests/unit/requests/test_request_ends.py"],
    "full": ["tests/contract/test_full.py"],
    "redis-conditions": ["tests/integration/test_redis_conditions.py"],
    "turns": ["tests/contract/test_turns.py", "tests/contract/test_redis.py"],
    "watermark": [
        "tests/property/test_watermark_model.py",
        "tests/contract/test_watermarks.py",
        *(
            f"tests/unit/{name}.py"
            for name in ("metadata/test_recent_adds", "neve/test_gateway_versions")
        ),
    ],
    "sim": ["tests/sim/test_clusters.py", "-k", "not story and not many_more"],
    "lake": ["tests/sim/test_lakes.py"],
    "storage threads": [
        "tests/unit/common/test_storage_threads.py",
        "tests/unit/coordinator_shell/test_silent_storage.py",
        "tests/unit/neve/test_gateway_silent_storage.py",
    ],
    "durable": ["tests/unit/metadata/test_durable.py"],
    "own files": ["tests/unit/compactor/test_rewrite_parts.py", "-k", "OwnFiles"],
    "late listings": ["tests/integration/test_late_listings.py"],
    "silence": ["tests/unit/parquet/test_silence.py"],
}
"""Suite → what pytest runs. That watches are listed somewhere does not count as noticing."""

PROCESSOR_MAX_S = 900
"""Of the processor's time: a suite that takes more runs for ever."""


def mutants() -> list[dict[str, str]]:
    """Return the planted faults."""
    with (ROOT / "tests" / "mutants.toml").open("rb") as file:
        return list(tomllib.load(file)["mutant"])


def survives(tree: Path, mutant: dict[str, str]) -> bool:
    """Plant one fault, run its suite, take the fault out; return whether nothing was noticed."""
    path = tree / mutant["file"]
    text = path.read_text("utf-8")
    assert text.count(mutant["old"]) == 1, f"{mutant['name']}: its text is not there, or twice"
    path.write_text(text.replace(mutant["old"], mutant["new"]), "utf-8")
    try:
        return passes(tree, mutant["suite"])
    finally:
        path.write_text(text, "utf-8")


def passes(tree: Path, suite: str) -> bool:
    """Return whether a suite is green in a tree; one that runs for ever is not.

    Time of the processor counts: on a busy machine a sound suite may last long.
    """
    pytest = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *SUITES[suite]]
    command = ["sh", "-c", f'ulimit -t {PROCESSOR_MAX_S} && exec "$@"', "sh", *pytest]
    return subprocess.run(command, cwd=tree, capture_output=True, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Return 1 if a fault survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose names hold all of these")
    parser.add_argument("--at-once", type=int, default=1, help="how many suites run at a time")
    given = parser.parse_args(arguments)
    chosen = [each for each in mutants() if all(word in each["name"] for word in given.words)]
    with ExitStack() as stack:
        trees: Queue[Path] = Queue()
        for _ in range(given.at_once):
            trees.put(copied(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        workers = stack.enter_context(ThreadPoolExecutor(given.at_once))

        def in_a_tree(work: Callable[[Path], bool]) -> bool:
            tree = trees.get()
            try:
                return work(tree)
            finally:
                trees.put(tree)

        suites = sorted({each["suite"] for each in chosen})
        greens = workers.map(lambda name: in_a_tree(lambda tree: passes(tree, name)), suites)
        for suite, green in zip(suites, greens, strict=True):
            assert green, f"suite {suite} is red without any fault"
        told = workers.map(lambda each: in_a_tree(lambda tree: survives(tree, each)), chosen)
        alive = 0
        for mutant, survived in zip(chosen, told, strict=True):
            print("SURVIVES" if survived else "killed  ", mutant["name"], flush=True)
            alive += survived
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return 1 if alive else 0


def copied(tree: Path) -> Path:
    """Copy all that suites need into a folder, and return it."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    return tree


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
