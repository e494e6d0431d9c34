"""The fork server: imports what readers need, and forks a reader for each order.

    python -m common.readers.fork_server FD [MODULE…]

`FD` is its end of the link to the service. The modules contain the work of readers; they are
imported once here instead of in each reader. An order is one byte:

* `f`, with a descriptor: fork a reader that serves this link; the answer is its process id.
* `e`, then eight bytes: end the reader with this id if it still runs, and return its status from
  `waitpid`. Ended readers stay zombies until then, so that their ids are not reused.

Before it reads the first byte, a reader gives up what it does not need: memory and descriptors
beyond its limits, writing files, core files, new programs and rights, its environment and, unless
its files are in an object store, the network.

When the link closes, this process ends. Its readers end likewise, because their links close.
"""

import contextlib
import ctypes
import importlib
import os
import resource
import select
import signal
import socket
import struct
import sys

import pyarrow as pa

from common.errors import CompactionError
from common.readers import messages
from common.readers.messages import (
    END,
    ENDED_BY_US,
    FORK,
    ID,
    LIMITS,
    LinkError,
    ReaderLimits,
    receive,
    send,
)
from common.runtime import data_bytes, limit_memory

ORDER_BYTES_MAX = 256 * 1024**2
END_POLLS, END_POLL_S = 20, 0.01
"""How long a reader may take to end after its link is closed."""
DESCRIPTORS_MAX = 256
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_RESTRICT = 444, 446
_EXECUTE_AND_WRITE = 0x1FF3
"""Rights of Landlock's first version to run, write, create and remove files, but not to read."""


def main() -> None:
    """Serve the link to the service until it closes."""
    service_link = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # Signals from the service's terminal are for the service, not for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    readers: set[int] = set()
    while order := service_link.recv(1):
        if order == FORK:
            message, descriptors, _, _ = socket.recv_fds(service_link, LIMITS.size, 1)
            memory_bytes, wait_s, network = LIMITS.unpack(message)
            reader = os.fork()
            if reader == 0:
                service_link.close()
                limits = ReaderLimits(memory_bytes=memory_bytes, wait_s=wait_s)
                _read(descriptors[0], limits, network=network)
            for descriptor in descriptors:
                os.close(descriptor)
            readers.add(reader)
            service_link.sendall(ID.pack(reader))
        elif order == END:
            (reader,) = ID.unpack(service_link.recv(ID.size, socket.MSG_WAITALL))
            service_link.sendall(ID.pack(_ended(reader, readers)))


def _ended(reader: int, readers: set[int]) -> int:
    """End a reader; return its status from `waitpid`, or -1 for an unknown process."""
    if reader not in readers:
        return -1
    readers.discard(reader)
    for _ in range(END_POLLS):
        ended, status = os.waitpid(reader, os.WNOHANG)
        if ended:
            return status
        select.select([], [], [], END_POLL_S)
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    return ENDED_BY_US


def _read(descriptor: int, limits: ReaderLimits, *, network: bool) -> None:
    """Serve as a reader until the link closes; never return."""
    status = 1
    # Output of Arrow or an allocator before a crash is not needed: the exit status is enough.
    with contextlib.suppress(BaseException):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _die_with_parent()
        _limit(limits.memory_bytes)
        _give_up_rights(network=network)
        serve(socket.socket(fileno=descriptor), limits.wait_s)
        status = 0
    os._exit(status)


def serve(link: socket.socket, wait_s: float) -> None:
    """Execute orders, one after the other, until the link closes."""
    while True:
        try:
            order = receive(link, ORDER_BYTES_MAX)
        except LinkError:
            return
        send(link, _answer(order, wait_s))


def _answer(message: bytes, wait_s: float) -> bytes:
    # The default action of this signal ends the process, whatever it is doing.
    signal.setitimer(signal.ITIMER_REAL, wait_s)
    try:
        return messages.pack_message(_result(messages.unpack_order(message)))
    except (MemoryError, pa.ArrowMemoryError):
        return messages.pack_message(messages.ReaderOutOfMemory())
    except Exception as error:
        return messages.pack_message(messages.ReaderFailure(f"{type(error).__name__}: {error}"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _result(order: messages.ReaderOrder) -> messages.Result:
    try:
        return messages.ReaderResult(order.work(*order.arguments, **order.named))
    except CompactionError as error:
        return messages.ReaderRefusal(error)
    except (MemoryError, pa.ArrowMemoryError):
        return messages.ReaderOutOfMemory()
    except Exception as error:
        return messages.ReaderFailure(f"{type(error).__name__}: {error}")


def _die_with_parent() -> None:
    """End when the fork server ends, even while busy; outside Linux the timer does this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    limit_memory(data_bytes() + memory_bytes)


def _give_up_rights(*, network: bool) -> None:
    """Give up the network, the environment, and the rights to write files and to run programs.

    Restrictions that the kernel does not offer or allow are skipped; the limits above always apply.
    """
    if not network:
        os.environ.clear()
    if sys.platform != "linux":
        return
    system = ctypes.CDLL(None, use_errno=True)
    # A process that may not leave the network alone may leave it with a user namespace.
    if not network and system.unshare(_CLONE_NEWNET):
        system.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    system.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rules = ctypes.create_string_buffer(struct.pack("=Q", _EXECUTE_AND_WRITE), 8)
    ruleset = system.syscall(_SYS_LANDLOCK_CREATE, rules, ctypes.c_size_t(8), 0)
    if ruleset >= 0:
        system.syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)


if __name__ == "__main__":
    main()
