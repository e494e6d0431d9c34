"""The jars of Spark are in the SBOM with version, hash and CPE, and the audit asks for each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pyspark
import pytest

from scripts.spark_jars import Jar, installed_jars, known_faults, missing_jars

CPE = re.compile(r"cpe:2\.3:a:[\w.-]+:(?:[\w.-]|\\.)+:[\w.-]+(?::\*){7}")
NETTY = Jar("netty-codec-4.1.96.Final.jar", "netty-codec", "4.1.96.Final", "io.netty", "0" * 64)
BARE = Jar("bare-1.0.jar", "bare", "1.0", "", "0" * 64)


@cache
def jars() -> Sequence[Jar]:
    return installed_jars()


def test_every_jar_of_spark_is_named_with_all_that_tools_ask_for() -> None:
    of_spark = {path.name for path in (Path(pyspark.__path__[0]) / "jars").glob("*.jar")}

    assert len(of_spark) == 252
    assert of_spark < {jar.file for jar in jars()}
    assert not [jar.file for jar in jars() if jar.file != f"{jar.name}-{jar.version}.jar"]
    assert not [jar.cpe for jar in jars() if not CPE.fullmatch(jar.cpe)]
    assert not [jar.file for jar in jars() if not jar.purl], "without a group nothing finds it"


@pytest.mark.parametrize(
    ("file", "cpe", "purl"),
    [
        (
            "log4j-1.2-api-2.20.0.jar",
            "cpe:2.3:a:apache:log4j:2.20.0",
            "pkg:maven/org.apache.logging.log4j/log4j-1.2-api@2.20.0",
        ),
        (
            "spark-core_2.12-3.5.7.jar",
            "cpe:2.3:a:apache:spark:3.5.7",
            "pkg:maven/org.apache.spark/spark-core_2.12@3.5.7",
        ),
        (
            "jackson-databind-2.15.2.jar",
            "cpe:2.3:a:fasterxml:jackson-databind:2.15.2",
            "pkg:maven/com.fasterxml.jackson.core/jackson-databind@2.15.2",
        ),
        (
            "zstd-jni-1.5.5-4.jar",
            "cpe:2.3:a:github:zstd-jni:1.5.5-4",
            "pkg:maven/com.github.luben/zstd-jni@1.5.5-4",
        ),
    ],
)
def test_a_jar_is_known_by_the_names_of_others(file: str, cpe: str, purl: str) -> None:
    (jar,) = [each for each in jars() if each.file == file]

    assert jar.cpe.startswith(f"{cpe}:")
    assert jar.purl == purl


def test_a_jar_that_an_sbom_lacks_or_has_otherwise_is_missed() -> None:
    whole = NETTY.component()

    assert missing_jars({"components": [whole]}, [NETTY]) == []
    for broken in ({**whole, "hashes": []}, {**whole, "cpe": ""}, {**whole, "version": "4.1.97"}):
        assert missing_jars({"components": [broken]}, [NETTY]) == [NETTY.file]


@contextmanager
def service_that_knows(purl: str, fault: str) -> Iterator[str]:
    """Answer as OSV does, with one fault of one package."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked = [query["package"]["purl"] for query in queries]
            results = [{"vulns": [{"id": fault}]} if each == purl else {} for each in asked]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_known_fault_is_told_and_a_jar_that_cannot_be_asked_for_is_named() -> None:
    with service_that_knows(NETTY.purl, "GHSA-1") as url:
        found, left_out = known_faults([BARE, NETTY], url)

    assert found == [f"{NETTY.file}: GHSA-1"]
    assert left_out == [BARE.file]


def test_a_service_that_does_not_answer_is_no_clean_bill() -> None:
    with service_that_knows("", "") as url:
        pass
    with pytest.raises(OSError, match="refused"):
        known_faults([NETTY], url)
