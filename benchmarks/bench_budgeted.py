"""How long the planner `budgeted` takes for as many files as Kudu's largest known tablet has.

python -m benchmarks.bench_budgeted

The files are drawn: about 40 lie over each other, as in the tablet of 6,815 row sets that Kudu's
design document measures.
"""

from __future__ import annotations

import random
import time

from coordinator.plugins.planners.budgeted import (
    MIB,
    BudgetedOptions,
    average_height,
    best_choice,
    row_sets,
)

FILES = 6815
KEYS = 10**9
HEIGHT = 40


def drawn() -> list[tuple[str, bytes, bytes, int]]:
    """Return files: names, first and last keys, bytes."""
    chance = random.Random(1)
    files = []
    for number in range(FILES):
        width = int(KEYS * chance.uniform(0, 2 * HEIGHT / FILES))
        low = chance.randrange(max(1, KEYS - width))
        size = int(chance.triangular(1, 64, 32) * MIB)
        files.append((f"f{number}", low.to_bytes(8, "big"), (low + width).to_bytes(8, "big"), size))
    return files


def main() -> None:
    """Print seconds of the processor by budget."""
    files = drawn()
    began_s = time.process_time()
    sets = row_sets(files)
    print(f"{FILES} files, average height {average_height(sets):.1f}")
    print(f"key line       {time.process_time() - began_s:6.2f} s")
    for budget_mib in (128, 256, 512, 1024):
        options = BudgetedOptions(budget_bytes=budget_mib * MIB, max_files=100)
        began_s = time.process_time()
        found = best_choice(row_sets(files), options)
        took_s = time.process_time() - began_s
        print(
            f"budget {budget_mib:5} MiB {took_s:6.2f} s  quality {found.quality:.4f} "
            f"({len(found.names)} files, {found.stage})"
        )


if __name__ == "__main__":
    main()
