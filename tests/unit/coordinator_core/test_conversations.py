"""These events, exactly these actions: golden conversations with the coordinator's core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.core_conversation import Conversation
from tests.support.datadriven import Answer

FOLDER = Path(__file__).parent / "conversations"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_the_core_answers_as_recorded(name: str, golden: Callable[[Path, Answer], None]) -> None:
    conversation = Conversation()

    golden(FOLDER / f"{name}.txt", conversation.answer)
