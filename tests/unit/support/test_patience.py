"""A wait that fails says what it was for, and whether the machine is too slow."""

from __future__ import annotations

import os

import pytest

from tests.support.patience import LOAD_MAX, vain_wait, wait_until

pytestmark = pytest.mark.unit

MOST = LOAD_MAX * (os.cpu_count() or 1)


def test_a_wait_on_an_idle_machine_blames_no_machine() -> None:
    text = vain_wait("the head", 400.0, (0.5, 0.4, MOST + 1))
    assert text.startswith("waited 400 s for the head; load 0.5, 0.4 and ")
    assert "too slow" not in text


@pytest.mark.parametrize("loads", [(MOST + 1, 0.1, 0.1), (0.1, MOST + 1, 0.1)])
def test_a_wait_on_a_loaded_machine_says_so(loads: tuple[float, float, float]) -> None:
    text = vain_wait("a pod of large", 400.0, loads)
    assert "waited 400 s for a pod of large; load " in text
    assert "the machine is too slow for this test" in text
    assert f"at a load below {MOST:.0f}" in text


def test_what_never_holds_is_described() -> None:
    with pytest.raises(TimeoutError, match=r"^waited 0 s for it; load [\s\S]*\nno pod$"):
        wait_until(lambda: False, "it", wait_max_s=0.0, pause_s=0.0, describe=lambda: "no pod")
    assert wait_until(lambda: True, "it", wait_max_s=0.0) < 60
