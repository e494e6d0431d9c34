"""What another user of the machine can reach: folders as `nobody`, ports without credentials.

A port is known by what answers there. Each kind of server is asked for something that only
its own clients may have; whatever is not a refusal in that server's own words is a finding,
and so is a port of no known kind.
"""

from __future__ import annotations

import os
import pickle
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import psutil

from tests.support.patience import PATIENCE_S

T = TypeVar("T")

NOBODY = 65534
ANSWER_S = 1.0
"""How long a server that says nothing is listened to."""
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/GetTraceback",
)
"""One of each of Ray's servers."""
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
FRAME_HEAD_BYTES, SETTINGS_FRAME = 9, 4
"""A server of HTTP/2 begins with a frame of settings, on no stream."""
PY4J = b"c\nt\ngetAppMasterBridge\ne\n"
PY4J_LOGIN, PY4J_REFUSAL = b"A\nwrong\n", b"bad auth token"
SPARK_REQUEST, SPARK_FAILURE = 3, 5
UNPROVEN = b"Expected SaslMessage"
"""Spark's words to a peer that asks before it has proved that it knows the secret."""


# ------------------------------------------------------------------- files


def as_nobody(look: Callable[[], T]) -> T:
    """Return what a function finds in a process of another user, if this one is root's.

    Args:
        look: Uses only what is loaded already: nobody may read our libraries.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(theirs, pickle.dumps(look()))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    found: T = pickle.loads(told)
    return found


def reachable(folders: Iterable[Path]) -> list[str]:
    """Return what another user may list, read, write, replace or connect to below some folders."""
    tops = list(folders)
    if os.geteuid() != 0:
        return [f"{top} is open" for top in tops if top.stat().st_mode & 0o077]
    found = [entry for top in tops for entry in _modes(top)]
    assert len(found) > len(tops), found
    return as_nobody(lambda: [deed for path, mode in found for deed in _deeds(path, mode)])


def _modes(top: Path) -> Iterator[tuple[Path, int]]:
    """Yield what lies below a folder, and the folder; what vanishes meanwhile is left out."""
    for parent, folders, files in os.walk(top):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *files))):
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_mode


def _deeds(path: Path, mode: int) -> Iterator[str]:
    """Yield what can be done to a path."""
    attempts: dict[str, Callable[[], object]] = {"renamed": lambda: path.rename(f"{path}-taken")}
    if stat.S_ISDIR(mode):
        attempts |= {"listed": lambda: os.listdir(path), "filled": (path / "planted").touch}
    elif stat.S_ISSOCK(mode):
        attempts |= {"connected to": lambda: socket.socket(socket.AF_UNIX).connect(str(path))}
    elif stat.S_ISREG(mode):
        for what, flags in (("read", os.O_RDONLY), ("written", os.O_WRONLY)):
            attempts[what] = lambda flags=flags: os.open(path, flags)
    for what, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        yield f"{path} can be {what}"


# ------------------------------------------------------------------- ports


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a process listens on."""

    process: str
    host: str
    port: int


def listeners(processes: Iterable[psutil.Process]) -> list[Listener]:
    """Return the ports that processes listen on."""
    every, found = list(processes), set()
    _wake_agents(every)
    for process in every:
        try:
            words = " ".join(process.cmdline())
            links = process.net_connections(kind="inet")
        except psutil.Error:
            continue
        shown = f"{process.name()} {words[:60]} … {words[-60:]}"
        found |= {
            Listener(shown, link.laddr.ip.removeprefix("::ffff:"), link.laddr.port)
            for link in links
            if link.status == psutil.CONN_LISTEN
        }
    return sorted(found, key=lambda listener: listener.port)


AGENT_WAIT_S = 60.0


def _wake_agents(processes: Iterable[psutil.Process]) -> None:
    """Connect to what stands in for Ray's agent of environments, until the agent itself answers."""
    for process in processes:
        try:
            program = process.cmdline()[:4]
            waits = "-S" in program and "runtime_env_agent_port_" in program[-1]
            links = process.net_connections(kind="inet") if waits else []
        except psutil.Error:
            continue
        for port in [link.laddr.port for link in links if link.status == psutil.CONN_LISTEN]:
            with socket.create_connection(("127.0.0.1", port), timeout=AGENT_WAIT_S) as link:
                link.sendall(b"GET / HTTP/1.1\r\nHost: neighbour\r\n\r\n")
                assert link.recv(1), f"port {port}: the agent does not answer"


def kind_that_refuses(port: int) -> str:
    """Return what kind of server listens on a port and refuses who has no credentials.

    Raises:
        AssertionError: It does not refuse, or is of no known kind.
    """
    answer = said(port, HTTP2)
    if _is_settings_frame(answer):
        return _refuses_grpc(port)
    if said(port, b"GET / HTTP/1.1\r\nHost: neighbour\r\n\r\n").startswith(b"HTTP/1."):
        return _refuses_http(port)
    assert not said(port, PY4J).startswith(b"!y"), f"port {port} obeys Py4J's orders of anybody"
    if PY4J_REFUSAL in said(port, PY4J_LOGIN):
        return "Py4J"
    if UNPROVEN in said(port, spark_request(b"anything")):
        return "Spark"
    return _refuses_secret(port)


def _is_settings_frame(answer: bytes) -> bool:
    """Return whether a server speaks HTTP/2; a task's number may begin with the same bytes."""
    head = answer[:FRAME_HEAD_BYTES]
    return len(head) == FRAME_HEAD_BYTES and head[3] == SETTINGS_FRAME and not any(head[5:])


def _refuses_grpc(port: int) -> str:
    codes = {method: grpc_code(port, method) for method in METHODS}
    known = {m: c for m, c in codes.items() if c is not grpc.StatusCode.UNIMPLEMENTED}
    assert known, f"port {port}: a gRPC server of an unknown kind"
    assert set(known.values()) == {grpc.StatusCode.UNAUTHENTICATED}, f"port {port}: {known}"
    return "Ray"


def grpc_code(port: int, method: str, *, token: str = "") -> grpc.StatusCode:
    """Return the code with which a method answers an empty request.

    Args:
        port: On this machine.
        method: Its path.
        token: Of Ray, that is shown.
    """
    shown = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=PATIENCE_S, metadata=shown)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[no-any-return]  # grpc's errors are calls, too
    return grpc.StatusCode.OK


def _refuses_http(port: int) -> str:
    for path in ("/", "/metrics", "/api/version"):
        answer = said(port, f"GET {path} HTTP/1.1\r\nHost: neighbour\r\n\r\n".encode())
        assert answer.split(b" ")[1] == b"401", f"port {port}: {path} answers {answer[:80]!r}"
    return "HTTP"


def _refuses_secret(port: int) -> str:
    """Return the kind of a server of PySpark's that is shown a wrong secret."""
    secret = b"x" * 64
    answer = said(port, struct.pack("!i", len(secret)) + secret)
    if answer.endswith(b"err"):
        return "Python worker"
    assert not answer, f"port {port}: what listens there? It says {answer[:80]!r}"
    return "mute"


def spark_request(body: bytes) -> bytes:
    """Return a request of Spark's transport."""
    message = struct.pack("!bqi", SPARK_REQUEST, 1, len(body)) + body
    return struct.pack("!q", 8 + len(message)) + message


def said(port: int, words: bytes) -> bytes:
    """Return what a server says to some words, until it hangs up or falls silent."""
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
            link.sendall(words)
            link.settimeout(ANSWER_S)
            while part := link.recv(65536):
                heard += part
    except (TimeoutError, ConnectionError):
        pass
    return heard
