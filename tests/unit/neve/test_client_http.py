"""One call of the client: what is repeated, what is not, and how errors are told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from common.primitives import call_time_s
from neve.api import CALL_HEADER, PROBLEM
from neve.client.errors import (
    CallerError,
    NeveError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    UnauthorizedError,
    UnavailableError,
    UnknownOutcomeError,
)
from neve.client.http import (
    RETRY_S,
    TRIES_MIN,
    Connection,
    new_call,
)
from tests.support.patience import PATIENCE_S

Answer = Callable[[httpx.Request], httpx.Response]


def connection(
    *answers: Answer, retry_s: float | None = None
) -> tuple[Connection, list[httpx.Request], list[float]]:
    """Return a connection whose tries get these answers, the last one for ever."""
    seen: list[httpx.Request] = []
    pauses: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answers[min(len(seen), len(answers)) - 1](request)

    made = Connection(
        "http://service/",
        "t0ken",
        sleep=pauses.append,
        clock=lambda: sum(pauses),
        transport=httpx.MockTransport(answer),
        retry_s=retry_s,
    )
    return made, seen, pauses


def ok(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"done": True})


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("the peer closed the connection", request=request)


def nobody(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def slow(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("too slow", request=request)


def problem(status: int, **fields: str) -> Answer:
    body = json.dumps(fields)
    return lambda _: httpx.Response(status, content=body, headers={"content-type": PROBLEM})


def test_a_call_shows_the_token_and_its_id() -> None:
    made, seen, _ = connection(ok)

    assert made.call("POST", "/v1/x", body={"a": 1}, call="c-1") == {"done": True}
    assert seen[0].headers["authorization"] == "Bearer t0ken"
    assert seen[0].headers[CALL_HEADER] == "c-1"
    assert str(seen[0].url) == "http://service/v1/x"


@pytest.mark.parametrize("failure", [broken, nobody, slow, problem(503, error="UnavailableError")])
def test_a_call_with_an_id_is_sent_again_under_the_same_id(failure: Answer) -> None:
    made, seen, pauses = connection(failure, failure, ok)

    assert made.call("POST", "/v1/x", call="c-1") == {"done": True}
    assert [request.headers[CALL_HEADER] for request in seen] == ["c-1"] * 3
    assert len(pauses) == 2
    assert 0.1 <= pauses[0] <= 0.2 <= pauses[1] <= 0.4


def test_a_write_without_an_id_is_sent_once() -> None:
    made, seen, _ = connection(broken, ok)

    with pytest.raises(UnknownOutcomeError, match=r"it may have been done"):
        made.call("POST", "/v1/x")
    assert len(seen) == 1


def test_a_call_is_tried_a_bounded_number_of_times() -> None:
    made, seen, _ = connection(nobody)

    with pytest.raises(UnavailableError, match=r"no service answers at http://service") as caught:
        made.call("GET", "/v1/x")
    assert len(seen) == TRIES_MIN
    assert not isinstance(caught.value, UnknownOutcomeError)


@pytest.mark.parametrize("failure", [nobody, broken, lambda _: httpx.Response(502)])
def test_a_service_that_has_answered_is_waited_for(failure: Answer) -> None:
    made, seen, pauses = connection(ok, *[failure] * 15, ok)

    assert made.call("GET", "/v1/x") == {"done": True}
    assert made.call("POST", "/v1/x", call="c-1") == {"done": True}
    assert len(seen) == 17
    assert sum(pauses) > 15.0


def test_a_service_that_says_it_cannot_is_asked_a_few_times() -> None:
    made, seen, _ = connection(ok, problem(503, error="UnavailableError", detail="no coordinator"))

    made.call("GET", "/v1/x")
    with pytest.raises(UnavailableError, match=r"no coordinator"):
        made.call("GET", "/v1/x")
    assert len(seen) == 1 + TRIES_MIN


def test_the_client_waits_a_bounded_time_for_the_gateway() -> None:
    made, seen, pauses = connection(ok, nobody)

    made.call("GET", "/v1/x")
    with pytest.raises(UnavailableError):
        made.call("GET", "/v1/x")
    assert RETRY_S - 4.0 <= sum(pauses) <= RETRY_S
    assert len(seen) < 60


@pytest.mark.parametrize(("retry_s", "tries"), [(0.0, 1), (600.0, 100)])
def test_the_user_says_how_long_to_wait(retry_s: float, tries: int) -> None:
    made, seen, pauses = connection(nobody, retry_s=retry_s)

    with pytest.raises(UnavailableError):
        made.call("GET", "/v1/x")
    assert len(seen) >= tries
    assert sum(pauses) <= retry_s


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        (400, CallerError, 2),
        (401, UnauthorizedError, 2),
        (404, NotFoundError, 2),
        (409, RefusedError, 3),
        (413, CallerError, 2),
        (422, CallerError, 2),
        (500, NeveError, 1),
        (503, UnavailableError, 4),
    ],
)
def test_each_status_is_one_branch(status: int, kind: type[NeveError], exit_code: int) -> None:
    made, _, _ = connection(
        problem(status, error="SomeError", code="word", detail="what was wrong")
    )

    with pytest.raises(NeveError, match=r"^what was wrong$") as caught:
        made.call("GET", "/v1/x")
    assert type(caught.value) is kind
    assert caught.value.exit_code == exit_code
    assert (caught.value.error, caught.value.code, caught.value.status) == (
        "SomeError",
        "word",
        status,
    )


def test_an_unknown_outcome_keeps_its_name() -> None:
    made, _, _ = connection(problem(503, error="UnknownOutcomeError", detail="gone silent"))

    with pytest.raises(UnknownOutcomeError, match=r"gone silent"):
        made.call("POST", "/v1/x", call="c-1")


def test_an_answer_of_something_else_is_understood_as_such() -> None:
    made, _, _ = connection(lambda _: httpx.Response(200, html="<html>"))

    with pytest.raises(ProtocolError, match=r"text/html.* is this a Névé service"):
        made.call("GET", "/v1/x")


def test_an_error_of_something_else_is_told_by_its_status() -> None:
    made, _, _ = connection(lambda _: httpx.Response(418, text="teapot"))

    with pytest.raises(CallerError, match=r"HTTP status 418"):
        made.call("GET", "/v1/x")


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(CallerError, match=r"'service:80' .* must begin with http"):
        Connection("service:80", None)


def test_call_ids_are_uuids_of_their_time() -> None:
    calls = {new_call() for _ in range(1000)}

    assert len(calls) == 1000
    times = [call_time_s(call) for call in calls]
    assert None not in times
    assert all(call[14] == "7" and call[19] in "89ab" for call in calls)


# -------------------------------------------------------------------------------------- Plain calls


@dataclass
class PlainServer:
    """A server that answers calls as it is asked to, and counts connections."""

    answers: list[str] = field(default_factory=list)
    """What happens to the next calls: a status, `lost`, `refused` unread, `close` afterwards."""
    posts: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Path, call id and body of each call."""
    kinds: list[tuple[str, str | None]] = field(default_factory=list)
    """Method and content type of each call."""
    connections: int = 0
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Counts the connections that the server has closed."""

    @contextmanager
    def served(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                answer = outer.answers.pop(0) if outer.answers else "200"
                is_read = answer != "refused"
                body = self.rfile.read(int(self.headers["Content-Length"] or 0) * is_read)
                outer.posts.append((self.path, self.headers[CALL_HEADER], body))
                outer.kinds.append((self.command, self.headers["Content-Type"]))
                self.close_connection = answer in {"lost", "close", "refused"}
                if answer == "lost":
                    return
                content = b'{"done": true}'
                status = "413" if answer == "refused" else answer
                self.send_response(int(status) if status.isdigit() else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815  the names of the base class

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                outer.ended.release()

        with Server(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/prefix/"
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def posting(*answers: str) -> Iterator[tuple[PlainServer, Connection, list[float]]]:
    server, pauses = PlainServer(list(answers)), list[float]()
    with server.served() as url:
        made = Connection(url, "t0ken", sleep=pauses.append, clock=lambda: sum(pauses))
        try:
            yield server, made, pauses
        finally:
            made.close()


def test_posts_use_one_connection_and_the_path_of_the_url() -> None:
    with posting() as (server, made, _):
        for number in range(3):
            assert made.post("/rows", b"x" * number, "text/plain", "c1") == {"done": True}
        assert server.posts == [("/prefix/rows", "c1", b"x" * number) for number in range(3)]
        assert server.connections == 1


def test_a_connection_that_the_server_has_closed_is_replaced_before_it_is_used() -> None:
    with posting("close") as (server, made, pauses):
        made.post("/rows", b"", "text/plain", "c1")
        assert server.ended.acquire(timeout=PATIENCE_S)
        made.post("/rows", b"", "text/plain", "c2")
        assert [call for _, call, _ in server.posts] == ["c1", "c2"]
        assert (server.connections, pauses) == (2, [])


def test_a_post_is_sent_again_under_its_id() -> None:
    with posting("lost", "503") as (server, made, pauses):
        assert made.post("/rows", b"", "text/plain", "c1") == {"done": True}
        assert [call for _, call, _ in server.posts] == ["c1"] * 3
        assert len(pauses) == 2


def test_a_post_without_an_answer_names_its_call() -> None:
    with posting(*["lost"] * TRIES_MIN) as (_, made, _):
        with pytest.raises(UnknownOutcomeError) as caught:
            made.post("/rows", b"", "text/plain", "c1")
        assert caught.value.call == "c1"


def test_a_post_to_no_service_was_not_made() -> None:
    with posting() as (_, made, _):
        pass
    with pytest.raises(UnavailableError) as caught:
        made.post("/rows", b"", "text/plain", "c1")
    assert not isinstance(caught.value, UnknownOutcomeError)


def test_a_post_with_an_id_that_no_header_can_have_is_refused() -> None:
    with posting() as (server, made, _):
        with pytest.raises(CallerError, match="cannot be sent"):
            made.post("/rows", b"", "text/plain", "c1\r\nX: 1")
        assert server.posts == []


def test_calls_send_parameters_and_bodies_as_json() -> None:
    with posting() as (server, made, _):
        given = {"b": True, "n": 7, "names": ["x y", "é&"], "nothing": None}
        assert made.call("GET", "/v1/x", parameters=given) == {"done": True}
        made.call("PUT", "/v1/y", body={"a": [1, "é"]}, call="c1")
        made.call("DELETE", "/v1/z", parameters={"nothing": None, "none": []})

        assert server.posts == [
            ("/prefix/v1/x?b=true&n=7&names=x+y&names=%C3%A9%26", None, b""),
            ("/prefix/v1/y", "c1", b'{"a":[1,"\\u00e9"]}'),
            ("/prefix/v1/z", None, b""),
        ]
        assert server.kinds == [("GET", None), ("PUT", "application/json"), ("DELETE", None)]
        assert server.connections == 1


def test_a_lost_answer_to_a_read_is_sent_again_and_its_outcome_is_not_unknown() -> None:
    with posting("lost") as (server, made, pauses):
        assert made.call("GET", "/v1/x") == {"done": True}
        assert (len(server.posts), len(pauses)) == (2, 1)
        server.answers += ["lost"] * 1000
        with pytest.raises(UnavailableError) as caught:
            made.call("GET", "/v1/x")
        assert not isinstance(caught.value, UnknownOutcomeError)


def test_a_plain_write_without_an_id_is_sent_once() -> None:
    with posting("lost") as (server, made, _):
        with pytest.raises(UnknownOutcomeError):
            made.call("POST", "/v1/x", body={})
        assert len(server.posts) == 1


def test_a_large_body_that_the_server_refuses_unread_is_answered() -> None:
    with posting("refused") as (_, made, _pauses), pytest.raises(CallerError) as caught:
        made.call("POST", "/v1/x", body={"text": "x" * 64_000_000})
    assert caught.value.status == 413


def test_threads_share_the_connections_of_a_client() -> None:
    with posting() as (server, made, _):
        numbers = range(200)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: made.call("GET", f"/{number}"), numbers))
        assert answers == [{"done": True}] * 200
        assert sorted(path for path, _, _ in server.posts) == sorted(
            f"/prefix/{number}" for number in numbers
        )
        assert server.connections <= 8
