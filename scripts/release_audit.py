"""What a release is audited by: a list of its packages (SBOM), and what is known against them.

    python -m scripts.release_audit sbom requirements/lock.txt build/sbom.json
    python -m scripts.release_audit audit requirements/lock.txt

Both cover the jars of Spark and RayDP as well, as they are installed in this environment. Both run
tools of `requirements/audit.txt` and do not believe them blindly: an SBOM that lacks a package, a
version or a hash is refused, and so is an audit that has left packages out. Exit code
1: something is known against a package; 2: it could not be found out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts import spark_jars

_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<rest>.*(?:\n +--hash=.*)*)", re.M)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
Pins = Mapping[tuple[str, str], frozenset[str]]


def pins_of(lock: str) -> Pins:
    """Return the packages of a list of requirements: name and version → SHA-256 of its files."""
    found = _PIN.finditer(lock)
    return {(each["name"], each["version"]): frozenset(_HASH.findall(each[0])) for each in found}


def missing_in(sbom: Mapping[str, Any], lock: str) -> list[str]:
    """Return what an SBOM (CycloneDX, as JSON) does not say of the packages of a list.

    Args:
        sbom: The document.
        lock: Text of the list of requirements.
    """
    told = {
        (part["name"], part.get("version", "")): _hashes_of(part)
        for part in sbom.get("components", [])
    }
    missing = []
    for (name, version), hashes in pins_of(lock).items():
        if (name, version) not in told:
            missing.append(f"{name} {version}")
        elif not hashes or not hashes <= told[name, version]:
            missing.append(f"hashes of {name} {version}")
    return missing


def _hashes_of(part: Mapping[str, Any]) -> frozenset[str]:
    """Return the SHA-256 of the files of a component, which stand where the files come from."""
    places = [part, *part.get("externalReferences", [])]
    hashes = (each for place in places for each in place.get("hashes", []))
    return frozenset(hash_["content"] for hash_ in hashes if hash_["alg"] == "SHA-256")


def findings_of(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what `pip-audit` has found, a line each, and the packages it could not look up."""
    found, left_out = [], []
    for each in report["dependencies"]:
        if "skip_reason" in each:
            left_out.append(each["name"])
        for fault in each.get("vulns", []):
            fixed = ", ".join(fault["fix_versions"]) or "no version"
            found.append(f"{each['name']} {each['version']}: {fault['id']}, mended by {fixed}")
    return found, left_out


def write_sbom(lock: Path, output: Path) -> int:
    """Write the SBOM of a list; return the exit code."""
    output.parent.mkdir(parents=True, exist_ok=True)
    how = ("--output-reproducible", "--output-format", "JSON", "--output-file", str(output))
    done = _run("cyclonedx-py", "requirements", str(lock), "--pyproject", "pyproject.toml", *how)
    if done.returncode:
        return _fail(f"cyclonedx-py failed: {done.stderr.strip()[-2000:]}")
    text, jars = lock.read_text("utf-8"), spark_jars.installed_jars()
    sbom = json.loads(output.read_text("utf-8"))
    sbom["components"] += [jar.component() for jar in jars]
    output.write_text(json.dumps(sbom, indent=2), "utf-8")
    if missing := missing_in(sbom, text) + spark_jars.missing_jars(sbom, jars):
        return _fail(f"{output} lacks {len(missing)} of {lock}: {', '.join(missing[:10])}")
    packages = f"{len(pins_of(text))} packages with their versions and hashes"
    _say(f"wrote {output}: {packages}, {len(jars)} jars with their CPEs as well")
    return 0


def audit(lock: Path) -> int:
    """Look every package of a list up, and every jar; return the exit code."""
    codes = (audit_packages(lock), audit_jars())
    return 1 if 1 in codes else max(codes)


def audit_jars() -> int:
    """Look every jar of Spark and RayDP up; return the exit code."""
    from pip_audit._service.osv import OsvService  # a tool of `requirements/audit.txt`

    jars = spark_jars.installed_jars()
    try:
        found, left_out = spark_jars.known_faults(jars, f"{OsvService.OSV_URL}batch")
    except (OSError, ValueError) as error:
        return _fail(f"jars are not audited, the service does not answer: {error}\n{AWAY}")
    count = len(jars) - len(left_out)
    _say("\n".join([*found, f"{count} jars looked up, {len(found)} known vulnerabilities"]))
    if left_out:
        _fail(f"not audited: {len(left_out)} jars name no group of Maven: {', '.join(left_out)}")
    return 1 if found else NOT_KNOWN if left_out else 0


def audit_packages(lock: Path) -> int:
    """Look every package of a list up; return the exit code."""
    how = ("--require-hashes", "--progress-spinner", "off", "--format", "json")
    done = _run("pip-audit", "--disable-pip", *how, "--requirement", str(lock))
    try:
        report = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return _fail(f"not audited, the service of vulnerabilities does not answer: {said}\n{AWAY}")
    found, left_out = findings_of(report)
    count = len(report["dependencies"]) - len(left_out)
    _say("\n".join([*found, f"{count} packages looked up, {len(found)} known vulnerabilities"]))
    if left_out:
        some = ", ".join(left_out[:5])
        _fail(f"not audited: {len(left_out)} packages are unknown there: {some}, …\n{AWAY}")
    return 1 if found else NOT_KNOWN if left_out else 0


AWAY = "try again where PyPI and its list of vulnerabilities can be reached"
NOT_KNOWN = 2
"""Exit code: it could not be found out."""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return NOT_KNOWN


def _run(tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(tool)
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def main(words: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    match words:
        case ["sbom", lock, output]:
            return write_sbom(Path(lock), Path(output))
        case ["audit", lock]:
            return audit(Path(lock))
        case _:
            return _fail(str(__doc__))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
