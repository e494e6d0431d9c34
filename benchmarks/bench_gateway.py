"""How long do `append`, `add` and `scan` take over HTTP, on one service or on two in turns?

    python -m benchmarks.bench_gateway URL TOKEN_FILE [URL TOKEN_FILE] [--rounds N]

Each service gets two tables of its own below --folder, which both must be able to write. Of two,
the first is the one before: the last column tells how much faster the second is.
Compactions are paused meanwhile, so that they are not measured with it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from neve.client import Client

ROWS = pa.table({"id": range(1000), "v": [float(number) for number in range(1000)]})
WARM = 10
VERBS = ("append", "add", "scan")


class Subject:
    """A service with a table that grows and one of ten files that is read."""

    def __init__(self, url: str, token: Path, folder: Path) -> None:
        self.client = Client(url, token=token.read_text("utf-8").strip())
        self.folder = folder
        self.grows, self.read = f"bench-{folder.name}-a", f"bench-{folder.name}-b"
        self.taken_s: dict[str, list[float]] = {verb: [] for verb in VERBS}
        for name in (self.grows, self.read):
            (folder / name).mkdir(parents=True)
            self.client.create_table(name, str(folder / name), schema=ROWS.schema)
        for _ in range(10):
            self.client.append(self.read, ROWS)

    def turn(self, number: int) -> None:
        path = self.folder / self.grows / f"{number}.parquet"
        pq.write_table(ROWS, path)
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.client.append(self.grows, ROWS),
            lambda: self.client.add_files(self.grows, [str(path)]),
            lambda: self.client.scan(self.read),
        )
        for verb, call in zip(VERBS, calls, strict=True):
            begun_s = time.perf_counter()
            call()
            self.taken_s[verb].append(time.perf_counter() - begun_s)

    def end(self) -> None:
        for name in (self.grows, self.read):
            self.client.drop(name)
        self.client.resume_group("default")


def line(verb: str, kind: str, of: Callable[[list[float]], float], subjects: list[Subject]) -> str:
    times_ms = [1000 * of(subject.taken_s[verb][WARM:]) for subject in subjects]
    ratio = f"   {times_ms[0] / times_ms[1]:.2f} times as fast" if len(times_ms) == 2 else ""
    return f"{verb:8}{kind:6}" + "".join(f"{time_ms:9.1f} ms" for time_ms in times_ms) + ratio


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="measure calls of the gateway")
    parser.add_argument("services", nargs="+", metavar="URL TOKEN_FILE")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args(arguments)
    pairs = list(zip(given.services[::2], given.services[1::2], strict=False))
    if len(given.services) % 2 or len(pairs) > 2:
        parser.error("expected one or two pairs of URL and TOKEN_FILE")
    with tempfile.TemporaryDirectory(dir=given.folder) as below:
        subjects = [
            Subject(url, Path(token), Path(below) / f"{Path(below).name}-{number}".lower())
            for number, (url, token) in enumerate(pairs)
        ]
        try:
            for subject in subjects:
                subject.client.pause_group("default")
            for number in range(WARM + given.rounds):
                for subject in subjects if number % 2 else reversed(subjects):
                    subject.turn(number)
        finally:
            for subject in subjects:
                subject.end()
    for verb in VERBS:
        for kind, of in (("p50", statistics.median), ("mean", statistics.fmean), ("p95", p95)):
            print(line(verb, kind, of, subjects))


if __name__ == "__main__":
    main()
