"""The ratio planner's pseudo-code written down word for word: slow, and hard to get wrong."""

from __future__ import annotations

from dataclasses import dataclass

INFINITY = float("inf")


@dataclass(frozen=True)
class F:
    """A file; `projected` ones sort behind real ones of their size."""

    size: int
    path: str
    projected: int = 0


def by_size(files: set[F]) -> list[F]:
    return sorted(files, key=lambda file: (file.size, file.projected, file.path))


def limit(files: set[F], cap: float) -> list[F]:
    kept: list[F] = []
    total = 0
    for file in by_size(files):
        total += file.size
        if total > cap:
            break
        kept.append(file)
    return kept


def window(s: list[F], ratio: float) -> list[F]:
    best, best_sum, good, total = -1, -INFINITY, -1, s[0].size
    for c in range(1, len(s)):
        total += s[c].size
        if s[c].size * ratio < total:
            good = c
        elif c - 1 == good:
            if best == -1 or best_sum > s[good].size:
                best = good
                best_sum = total - s[c].size
            else:
                break
    if good == len(s) - 1 and (best == -1 or best_sum > s[good].size):
        best = good
    return s[: best + 1]


def find(files: set[F], ratio: float, max_files: int, cap: float) -> list[F]:
    if len(files) <= 1:
        return []
    s = limit(files, cap)
    if len(s) <= 1:
        return []
    a, b = 0, min(len(s), max_files)
    while b <= len(s):
        if chosen := window(s[a:b], ratio):
            return chosen
        a, b = a + 1, b + 1
    return []


def forced(files: set[F], m: int) -> list[list[F]]:
    count = len(files)
    s = by_size(files)
    if count <= m:
        return [s]
    full = count // m - 1
    if full > 0:
        return [s[number * m : (number + 1) * m] for number in range(full)]
    n = m
    if m < count < 2 * m:
        n = count - m + 1
    return [s[:n]]


def lowered(files: set[F], max_files: int, cap: float, lowest_ratio: float) -> list[list[F]]:
    s = limit(files, cap)
    best, found = 5e-324, None
    width = min(len(s), max_files)
    for a in range(len(s) - width + 1):
        w = s[a : a + width]
        for i in range(1, len(w)):
            total = sum(file.size for file in w[: i + 1])
            if w[i].size > 0 and total / w[i].size >= best:
                best, found = total / w[i].size, w[: i + 1]
    return [] if found is None or best <= lowest_ratio else [found]


@dataclass(frozen=True)
class Asked:
    user: bool
    ratio: float
    max_files: int
    lowest_ratio: float
    file_limit: int
    cap: float
    everything: int
    candidates: frozenset[F]
    running: tuple[tuple[bool, int], ...]
    """Of each: whether it is a user's, and its bytes."""


def plan(asked: Asked) -> list[list[F]]:
    if not asked.candidates:
        return []
    cap = INFINITY if asked.user else asked.cap
    sizes = [size for user, size in asked.running if user == asked.user]
    projected = {F(size, "", number + 1) for number, size in enumerate(sizes)}
    pool = set(asked.candidates) | projected
    jobs: list[list[F]] = []
    while selected := find(pool, asked.ratio, asked.max_files, cap):
        if not set(selected) & projected:
            jobs.append(selected)
        pool -= set(selected)
        new = F(sum(file.size for file in selected), "", len(projected) + 1)
        projected.add(new)
        pool.add(new)
        if len(selected) < asked.max_files and jobs:
            break
    return after_search(asked, jobs, cap)


def after_search(asked: Asked, jobs: list[list[F]], cap: float) -> list[list[F]]:
    candidates = set(asked.candidates)
    if len(jobs) == 1 and asked.user and len(jobs[0]) < len(candidates):
        rest = (candidates - set(jobs[0])) | {F(sum(file.size for file in jobs[0]), "", 1)}
        if not find(rest, asked.ratio, asked.max_files, cap):
            # Ours: all at once where a job may have so many, else as what is forced.
            jobs = forced(candidates, asked.max_files)
    if jobs:
        return jobs
    if asked.user and not any(user for user, _ in asked.running):
        return forced(candidates, asked.max_files)
    at_rest = not asked.user and not asked.running and asked.everything == len(candidates)
    if at_rest and 0 < asked.file_limit < asked.everything:
        return lowered(candidates, asked.max_files, cap, asked.lowest_ratio)
    return []
