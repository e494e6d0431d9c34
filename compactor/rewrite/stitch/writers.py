"""Writers whose files only mean what they say to readers that know who wrote them.

Readers look into `created_by` for releases with known faults, and then leave statistics
aside or count bytes anew. A stitched file is signed by us, so nobody would.
"""

import re

from common.errors import NotStitchableError

CREATED_BY = "neve version {version}"
"""The form that readers expect: application, the word version, number."""
_SIGNED = re.compile(r"(?P<name>[\w.-]+) version v?(?P<version>\d+(?:\.\d+)*)", re.ASCII)
_TOO_OLD = {
    # PARQUET-251 and its like: statistics of bytes in the wrong order; PARQUET-816: sizes
    # without the page of the dictionary; PARQUET-246: values that need the page before.
    "parquet-mr": (1, 10, 0),
    # PARQUET-686: statistics in signed order.
    "parquet-cpp": (1 << 31,),
    # ARROW-10353: pages of the second version that do not say whether they are compressed.
    "parquet-cpp-arrow": (2, 0, 0),
}


def refuse_old_writer(created_by: bytes | None) -> None:
    """Refuse files of writers with known faults, and of writers that do not say who they are.

    Raises:
        NotStitchableError: It is one.
    """
    if not created_by:
        raise NotStitchableError("it does not say who wrote it")
    text = created_by[:200].decode("utf-8", errors="replace")
    signed = _SIGNED.match(text)
    if signed is None:
        # Their faults are not known by number; parquet-mr's and Arrow's all have one.
        if text.startswith(tuple(_TOO_OLD)):
            raise NotStitchableError(f"its writer {text!r} does not say its version")
        return
    version = tuple(int(part[:9]) for part in signed["version"].split("."))
    if version < _TOO_OLD.get(signed["name"], (0,)):
        raise NotStitchableError(f"its writer {text!r} is known to describe files wrongly")
