"""The rights of users of a Redis: enough for every part of the store, and nothing beyond."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from common.errors import ConfigError, MetadataError
from common.metadata.keys import (
    AUDIT,
    COORDINATOR,
    FULL,
    LIMITS,
    RESERVE,
    SCALES,
    SERIES,
    STORE,
    TABLE_KEYS,
    TABLES,
    TableKeys,
    TabletKeys,
    retired_name,
)
from common.metadata.keyspace import (
    PROBE,
    RIGHT_QUESTIONS,
    RIGHTS,
    STORE_KEYS,
    TRANSACTION_QUESTIONS,
    RedisUser,
    acl_rules,
)
from common.metadata.redis import connect
from common.model.tablet import TabletId
from common.settings import StoreSettings
from neve.serve.preflight import require_store
from tests.support.command_line import invoke
from tests.support.redis_server import PASSWORD, USER, RedisServer
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.anyio

OTHERS = (
    *("FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET dir", "CONFIG SET dir /tmp", "SHUTDOWN"),
    *("EVAL 1 0", "FUNCTION LIST", "MODULE LIST", "ACL LIST", "ACL WHOAMI", "CLIENT LIST"),
    *("REPLICAOF 127.0.0.1 1", "SAVE", "BGREWRITEAOF", "MONITOR", "SUBSCRIBE a"),
    *("PUBLISH neve:a b", "RENAME neve:a neve:b", "COPY neve:a neve:b", "MIGRATE h 1 neve:a 0 1"),
    *("SWAPDB 0 1", "DUMP neve:a", "RESTORE neve:a 0 x", "CLUSTER RESET", "SCRIPT FLUSH"),
)
FOREIGN = (
    "GET a",
    "SET a b",
    "DEL nev:a",
    "HGETALL Neve:tables",
    "MGET neve:a a",
    "XREAD STREAMS a 0",
)


def words_of(path: Path) -> Iterator[str]:
    """Yield the commands in a module: tuples of words whose first is in capitals."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
            first = node.elts[0].value
            if isinstance(first, str) and first.isalpha() and first.isupper():
                second = getattr(next(iter(node.elts[1:]), None), "value", None)
                is_container = first in {"CLUSTER", "SENTINEL"}
                yield f"{first}|{second}".lower() if is_container else first.lower()


def test_the_list_has_every_command_of_the_code_and_no_other() -> None:
    folder = ROOT / "common/metadata"
    files = [folder / "keyspace.py", folder / "executor.py", *(folder / "redis").glob("*.py")]
    used = {word for path in files for word in words_of(path)}
    # No commands: answers of Redis, words within a command, and what comes before any right.
    used -= {"loading", "no", "block", "readonly", "hello", "auth"}
    used -= {"config"}  # Asked once; without the right, `store.append_fsync` counts.
    used -= {"dbsize"}  # A name in the list of commands without a key.

    # Sent by redis-py: for another database than 0, for the slot map, and for the primary.
    used |= {"select", "cluster|slots", "sentinel|masters"}
    used |= {"sentinel|get-master-addr-by-name"}  # Sent by processes of earlier releases.
    listed = {*RIGHTS[RedisUser.STORE], *RIGHTS[RedisUser.SENTINEL]} - {"ping"}
    assert {word for word in used if word != "ping"} == listed


def test_every_key_of_the_store_is_allowed() -> None:
    table, tablet = TableKeys("t"), TabletKeys.of(TabletId("t", b"m"))
    of_store = (TABLES, STORE, COORDINATOR, LIMITS, SCALES, SERIES, AUDIT, RESERVE)
    marks = (table.request("r"), table.outcome("a"), table.call("c"), retired_name("l", "p"))
    every = (
        *of_store,
        FULL,
        TABLE_KEYS,
        *table.every,
        *tablet.every,
        *marks,
        table.lock,
        table.dropped,
        PROBE,
    )

    assert [key for key in every if not key.startswith(STORE_KEYS.removesuffix("*"))] == []


@contextmanager
def user(server: RedisServer, granted: str, name: str = "tried") -> Iterator[str]:
    """Give a server a user; return its URL."""
    server.say("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *granted.split())
    yield f"redis://{name}:{PASSWORD}@127.0.0.1:{server.port}/0"
    server.say("ACL", "DELUSER", name)


def answer(url: str, words: str) -> Any:
    with redis.Redis.from_url(url) as link:
        return link.execute_command(*words.split())


@pytest.mark.parametrize("words", [*OTHERS, *FOREIGN])
def test_the_user_of_the_store_may_do_nothing_else(redis_server: RedisServer, words: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        answer(redis_server.user_url, words)


def test_who_has_no_password_or_a_wrong_one_is_refused(redis_server: RedisServer) -> None:
    url = redis_server.user_url.replace(PASSWORD, "wrong")
    with pytest.raises(ConfigError, match="refuses: WRONGPASS"):
        require_store(StoreSettings(url=url, timeout_s=5.0))
    assert require_store(StoreSettings(url=redis_server.user_url, timeout_s=5.0)) == ()


def lacks(url: str, **more: Any) -> str:
    """Return what a service says that is to start on a store."""
    with pytest.raises(ConfigError) as raised:
        require_store(StoreSettings(url=url, timeout_s=5.0, **more))
    return str(raised.value)


SPARED = {"ping", "select", "info", "wait", "cluster|slots"}


@pytest.mark.parametrize("right", [each for each in RIGHTS[RedisUser.STORE] if each not in SPARED])
def test_a_right_that_is_missing_is_named(redis_server: RedisServer, right: str) -> None:
    keys = redis_server.say("DBSIZE")
    with user(redis_server, f"{acl_rules(RedisUser.STORE)} -{right}") as url:
        said = lacks(url)
    assert f"lacks the rights {right}: grant them with ACL SETUSER; `neve redis-acl`" in said
    assert redis_server.say("DBSIZE") == keys


def test_what_a_store_has_no_use_for_it_does_not_ask_for(redis_server: RedisServer) -> None:
    with user(redis_server, f"{acl_rules(RedisUser.STORE)} -wait -cluster|slots -select") as url:
        assert require_store(StoreSettings(url=url, timeout_s=5.0)) == ()
        assert "lacks the rights wait:" in lacks(url, wait_replicas=1)


def test_all_that_is_missing_is_named_at_once(redis_server: RedisServer) -> None:
    with user(redis_server, f"{acl_rules(RedisUser.STORE)} -watch -xadd -time") as url:
        assert "lacks the rights watch, xadd, time:" in lacks(url)
    with user(
        redis_server, acl_rules(RedisUser.STORE).replace(f"~{STORE_KEYS}", "~other:*")
    ) as url:
        assert f"lacks the rights ~{STORE_KEYS}:" in lacks(url)


def test_figures_may_be_kept_back(redis_server: RedisServer) -> None:
    with user(redis_server, f"{acl_rules(RedisUser.STORE)} -info") as url:
        (said,) = require_store(StoreSettings(url=url, timeout_s=5.0))
    assert "lacks the rights info" in said


async def test_a_right_that_is_taken_away_is_told_by_whoever_misses_it(
    redis_server: RedisServer,
) -> None:
    with user(redis_server, acl_rules(RedisUser.STORE)) as url:
        store = connect(StoreSettings(url=url, timeout_s=5.0))
        assert await store.names() is not None
        redis_server.say("ACL", "SETUSER", "tried", "-hgetall")
        with pytest.raises(MetadataError, match=r"NOPERM .*'hgetall'.*; `neve redis-acl` prints"):
            await store.names()
        await store.close()


def test_who_watches_sees_figures_and_no_key(redis_server: RedisServer) -> None:
    with user(redis_server, acl_rules(RedisUser.MONITOR)) as url:
        assert answer(url, "INFO memory")["used_memory"] > 0
        assert answer(url, "SLOWLOG GET 1") is not None
        for words in ("GET neve:tables", "SCAN 0", "CONFIG GET dir", "SET neve:a b"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                answer(url, words)


# --------------------------------------------------------------------------------- The verb


def told(*words: str) -> str:
    found = invoke(["redis-acl", *words], {})
    assert found.exit_code == 0, found.output
    return found.stdout.strip()


def test_the_printed_command_makes_a_user_of_a_store(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    line = told("--user", "printed", "--password-file", str(secret), "--form", "command")
    assert PASSWORD not in line
    redis_server.say(*line.split())
    url = f"redis://printed:{PASSWORD}@127.0.0.1:{redis_server.port}/0"
    assert require_store(StoreSettings(url=url, timeout_s=5.0)) == ()
    redis_server.say("ACL", "DELUSER", "printed")


def test_a_line_of_a_file_and_rules_have_the_same_rights(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    line = told("--password-file", str(secret))
    head, digest, found = line.split(" ", 4)[:3], line.split(" ")[3], line.split(" ", 4)[4]
    assert (head, digest[0], len(digest)) == (["user", USER, "on"], "#", 65)
    assert found == acl_rules(RedisUser.STORE)
    for role in RedisUser:
        assert told(role.value, "--form", "rules") == f"on {acl_rules(role)}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["other"], "role 'other' does not exist, expected one of store, sentinel, monitor"),
        ([], "--password-file is missing: `openssl rand -hex 32 > FILE` creates a password"),
        (["--password-file", "/nowhere/password"], "cannot be read"),
        (["--password-file", __file__], "expected one line of at least 32 characters"),
        (["--user", "a b", "--password-file", "/dev/null"], "--user 'a b': expected 1 to 64"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], said: str) -> None:
    found = invoke(["redis-acl", *words], {})
    assert found.exit_code != 0, found.output
    assert said in " ".join(found.output.replace("│", "").split())


def test_a_password_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD[:31])
    found = invoke(["redis-acl", "--password-file", str(secret)], {})
    assert found.exit_code != 0
    assert "at least 32 characters" in " ".join(found.output.split())


def test_the_questions_ask_for_each_right_once() -> None:
    asked = [*TRANSACTION_QUESTIONS, *RIGHT_QUESTIONS]
    assert len(asked) == len({*asked})
    for right, command in (TRANSACTION_QUESTIONS | RIGHT_QUESTIONS).items():
        assert right == "|".join(str(word).lower() for word in command[: 1 + right.count("|")])
