"""Refusal codes: each end of an attempt has one, and those of a newer release are understood."""

import pickle

from common.model.outcome import AttemptEnd, Refusal, RefusalCode


def test_every_end_of_an_attempt_is_a_refusal_code() -> None:
    assert {end.value for end in AttemptEnd} <= {code.value for code in RefusalCode}


def test_the_code_of_a_newer_release_keeps_its_text() -> None:
    newer = RefusalCode("moon-phase")
    assert newer == "moon-phase"
    assert newer not in list(RefusalCode)
    assert newer not in {RefusalCode.GONE, RefusalCode.SELECTED}
    assert f"refused ({newer})" == "refused (moon-phase)"


def test_a_refusal_with_a_newer_code_crosses_processes() -> None:
    sent = Refusal(RefusalCode("moon-phase"), "the moon is full")
    received = pickle.loads(pickle.dumps(sent))
    assert received == sent
    assert received.code.value == "moon-phase"


def test_known_codes_stay_the_same_objects() -> None:
    assert pickle.loads(pickle.dumps(RefusalCode.GONE)) is RefusalCode.GONE
