"""Ray's head keeps what actors are started with, and no secret is among it."""

from __future__ import annotations

from tests.support.process_memory import held_in_memory
from tests.support.stack import Service


def test_the_head_of_ray_gets_to_know_no_secret(service: Service) -> None:
    stack = service.stack
    state = stack.folder.load()
    assert state is not None
    texts = {
        "token": stack.token,
        "password of Redis": stack.redis_url.partition("unix://:")[2].partition("@")[0],
        "an argument of the actors": str(stack.folder.logs),
    }
    assert all(len(text) > 20 for text in texts.values())
    for process in state.processes:
        if process.role == "gcs_server":
            assert held_in_memory(process.pid, texts) == {"an argument of the actors"}
