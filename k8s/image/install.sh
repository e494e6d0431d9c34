#!/usr/bin/env bash
# Install Névé with its pinned requirements into a new virtual environment: install.sh SOURCES TARGET
#
# The image build uses this script, and a test runs it in a clean directory. PYTHON names the Python, 3.11 or 3.12.
# Java 17 comes from JAVA_HOME, PATH or the distribution. Afterwards it is below TARGET/java.
set -euo pipefail

sources=$(cd "$1" && pwd)
target=$2
python=${PYTHON:-python3}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

[ ! -e "$target" ] || fail "$target is there already, expected a folder that this script makes"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    fail "$python is not Python 3.11 or 3.12; PYTHON names another one"

# KubeRay starts Ray as the last command of `bash -c`. Ray gets SIGTERM, and drains its node, only if bash
# makes way for that command, as bash 5.1 and later do.
# shellcheck disable=SC2016  # the inner shells expand these
same=$(bash -c -- 'echo $$ >&3; ulimit -c 0; sh -c "echo \$\$"' 3>&1 | sort -u | wc -l)
[ "$same" -eq 1 ] || fail "bash $BASH_VERSION does not replace itself by the last command, wanted 5.1 or later"

"$python" -m venv "$target"
pip=("$target/bin/python" -m pip install --disable-pip-version-check --quiet)
"${pip[@]}" --require-hashes --no-deps -r "$sources/requirements/server.txt"
# A build writes into its sources, so it uses a copy of them.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for part in pyproject.toml README.md LICENSE common coordinator compactor neve; do
    cp -R "$sources/$part" "$copy/"
done
"${pip[@]}" --no-build-isolation --no-deps "$copy"

jars=$("$target/bin/python" -c 'import pyspark; print(pyspark.__path__[0])')/jars
sed -e '/^#/d' -e '/^$/d' "$sources/k8s/image/unused-jars.txt" | while read -r jar; do
    rm "$jars/$jar"
done

# Run outside the sources, so that the installed package is tested.
cd "$target"
java=$(bin/python -c 'import os; from neve.local.machine import find_java; print(find_java(os.environ).home)') ||
    fail "no Java 17: install the distribution's (apt install openjdk-17-jre-headless), or set JAVA_HOME"
ln -s "$java" java
java/bin/java -version 2>&1 | grep -q '"17[."]' || fail "$java is not Java 17"
# The JVMs of each pod start with an archive of their classes.
JAVA_HOME=$target/java bin/python -m compactor.spark.class_archive
[ -n "$(find share/neve -name 'classes-*.jsa' -size +0)" ] || fail "$java makes no archive of classes"
bin/python -c 'import compactor.actor, coordinator.actor, neve.gateway.actor, raydp, pyspark' ||
    fail "a part of Névé cannot be imported"
bin/neve --help >/dev/null || fail "the command line does not run"
echo "Installed $(bin/neve --version) with $(bin/python --version), Java of $java"
