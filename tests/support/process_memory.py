"""What the memory of a process holds."""

from __future__ import annotations

from pathlib import Path


def held_in_memory(pid: int, texts: dict[str, str]) -> set[str]:
    """Return the names of the texts that stand in the memory of a process.

    Args:
        pid: Of the process, which must be one of ours.
        texts: By name.
    """
    found: set[str] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            bounds, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(part, 16) for part in bounds.split("-"))
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except OSError:
                continue  # A page that was given back.
            found |= {name for name, text in texts.items() if text.encode() in held}
    return found
