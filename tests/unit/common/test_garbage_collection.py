"""What a process has loaded is left out of later collections, once."""

import subprocess
import sys

PROGRAM = """
import gc
from common.garbage_collection import ignore_what_is_loaded

ignore_what_is_loaded()
loaded = gc.get_freeze_count()
later = [[] for _ in range(1_000)]
ignore_what_is_loaded()
print(loaded > 1_000, gc.get_freeze_count() == loaded, len(gc.get_objects()) >= len(later))
"""
"""In a process of its own: pytest has frozen objects itself."""


def test_what_is_loaded_at_the_first_call_is_ignored_and_nothing_that_comes_later() -> None:
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)

    assert said.split() == ["True", "True", "True"]
