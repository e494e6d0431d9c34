"""The jars of Spark and RayDP, which no list of Python packages names: for the SBOM and the audit.

Name and version are those of the file, the group is what Maven wrote into the jar.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

PACKAGES = ("pyspark", "raydp")
FILE = re.compile(r"(?P<name>.+)-(?P<version>\d+\.[\w.]+(?:-[\w-]+)?)\.jar")
VENDORS = {
    "org.apache": "apache",
    "com.fasterxml": "fasterxml",
    "org.codehaus.jackson": "fasterxml",
    "com.google": "google",
    "org.eclipse": "eclipse",
    "org.glassfish": "eclipse",
    "io.netty": "netty",
    "org.scala-lang": "scala-lang",
    "com.squareup": "squareup",
}
PRODUCTS = {
    **dict.fromkeys(("spark-", "hadoop-", "hive-", "parquet-", "orc-", "arrow-", "avro"), ""),
    "libthrift": "thrift",
    "log4j-": "log4j",
    "netty-": "netty",
    "curator-": "curator",
    "kubernetes-": "kubernetes-client",
    "jersey-": "jersey",
    "derby": "derby",
}
"""How the names of some products begin, and how lists of vulnerabilities call them."""
GROUPS = {
    "scala-": "org.scala-lang",
    **dict.fromkeys(("scala-collection-", "scala-parser-", "scala-xml"), "org.scala-lang.modules"),
    **dict.fromkeys(("jackson-core-asl", "jackson-mapper-asl"), "org.codehaus.jackson"),
    "jackson-module-scala": "com.fasterxml.jackson.module",
    **dict.fromkeys(("RoaringBitmap", "shims"), "org.roaringbitmap"),
    **dict.fromkeys(("algebra_", "cats-", "spire"), "org.typelevel"),
    "json4s-": "org.json4s",
    "chill": "com.twitter",
    "breeze": "org.scalanlp",
    "snappy-java": "org.xerial.snappy",
    "zstd-jni": "com.github.luben",
    "lz4-java": "org.lz4",
    "xz": "org.tukaani",
    "rocksdbjni": "org.rocksdb",
    "objenesis": "org.objenesis",
    "gson": "com.google.code.gson",
    "tink": "com.google.crypto.tink",
    "jsr305": "com.google.code.findbugs",
    "annotations": "org.jetbrains",
    "hadoop-": "org.apache.hadoop",
    "hive-": "org.apache.hive",
    "ivy": "org.apache.ivy",
    **dict.fromkeys(("libthrift", "libfb303"), "org.apache.thrift"),
    "derby": "org.apache.derby",
    "activation": "javax.activation",
    "oro": "oro",
    **dict.fromkeys(("jta", "transaction-api"), "javax.transaction"),
    "jdo-api": "javax.jdo",
    "jodd-": "org.jodd",
    "stax-api": "javax.xml.stream",
    "arpack_combined_all": "net.sourceforge.f2j",
}
"""Groups of the jars that do not name theirs, by how their names begin; the longest holds."""
WAIT_MAX_S = 60


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar that is installed."""

    file: str
    name: str
    version: str
    group: str
    """Of Maven; empty if the jar does not say."""
    sha256: str

    @property
    def cpe(self) -> str:
        """The name under which lists of vulnerabilities have it."""
        plain = re.sub(r"_2\.\d+$", "", self.name)
        starts = (each for each in PRODUCTS if plain.startswith(each))
        product = next((PRODUCTS[start] or start.rstrip("-") for start in starts), plain)
        vendors = (vendor for group, vendor in VENDORS.items() if self.group.startswith(group))
        own = self.group.split(".")[1:2] or [plain]
        parts = (next(vendors, own[0]), product, self.version)
        escaped = (re.sub(r"([^\w.-])", r"\\\1", part.lower()) for part in parts)
        return f"cpe:2.3:a:{':'.join(escaped)}:*:*:*:*:*:*:*"

    @property
    def purl(self) -> str:
        """Its address in Maven; empty without a group."""
        return f"pkg:maven/{self.group}/{self.name}@{self.version}" if self.group else ""

    def component(self) -> dict[str, Any]:
        """Return it as a component of CycloneDX."""
        return {
            "type": "library",
            "bom-ref": f"jar:{self.file}",
            "name": self.name,
            "version": self.version,
            "cpe": self.cpe,
            "hashes": [{"alg": "SHA-256", "content": self.sha256}],
            **({"group": self.group, "purl": self.purl} if self.group else {}),
        }


def installed_jars() -> list[Jar]:
    """Return the jars of the packages in this environment, by file."""
    folders = [Path(str(find_spec(name).origin)).parent / "jars" for name in PACKAGES]
    return [read_jar(path) for folder in folders for path in sorted(folder.glob("*.jar"))]


def read_jar(path: Path) -> Jar:
    """Return what a jar is."""
    named = FILE.fullmatch(path.name)
    assert named is not None, f"{path} does not name its version"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Jar(path.name, named["name"], named["version"], _group(path, named["name"]), digest)


def _group(path: Path, artifact: str) -> str:
    """Return the group of a jar's own artifact; it may have those of others in it."""
    inside = re.compile(rf"META-INF/maven/([^/]+)/{re.escape(artifact)}/pom\.properties")
    with ZipFile(path) as archive:
        found = (inside.fullmatch(name) for name in archive.namelist())
        named = next((each[1] for each in found if each), "")
    starts = (start for start in GROUPS if artifact.startswith(start))
    return named or GROUPS.get(max(starts, key=len, default=""), "")


def missing_jars(sbom: Mapping[str, Any], jars: Sequence[Jar]) -> list[str]:
    """Return the files of jars that an SBOM lacks, or has without hash or CPE."""
    named = {
        (part["name"], part.get("version"), part.get("cpe"), each["content"])
        for part in sbom.get("components", [])
        for each in part.get("hashes", [])
    }
    return [jar.file for jar in jars if (jar.name, jar.version, jar.cpe, jar.sha256) not in named]


def known_faults(jars: Sequence[Jar], url: str) -> tuple[list[str], list[str]]:
    """Return what is known against jars, a line each, and the files that could not be looked up.

    Args:
        jars: Those without a group cannot be looked up.
        url: Of the service of vulnerabilities: OSV's `querybatch`.

    Raises:
        OSError: It does not answer.
    """
    asked = [jar for jar in jars if jar.purl]
    body = {"queries": [{"package": {"purl": jar.purl}} for jar in asked]}
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_MAX_S) as answer:
        results = json.load(answer)["results"]
    return list(_faults(asked, results)), [jar.file for jar in jars if not jar.purl]


def _faults(jars: Sequence[Jar], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for jar, result in zip(jars, results, strict=True):
        for fault in result.get("vulns", ()):
            yield f"{jar.file}: {fault['id']}"
