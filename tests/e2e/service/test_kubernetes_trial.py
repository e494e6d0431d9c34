"""The trial on kind: what it types to Névé works on a service, and its page shows what comes.

The gateway's pod is the stack of these tests. docker, kind and helm only write down their words.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.test_tutorial import agrees
from tests.support.installed import installation
from tests.support.kubernetes.trial import Trial
from tests.support.manifests import ROOT
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

GUIDE = (ROOT / "k8s" / "README.md").read_text("utf-8")


def test_the_trial_compacts_its_table_as_the_page_shows(service: Service, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(service.stack.token)
    trial = Trial(tmp_path, answers=[f"kubectl exec: {in_pod(service, tmp_path)}"])
    ran = trial.run(timeout_s=SERVICE_S)
    (shown,) = re.findall(r"^```text\n(.*?)^```", GUIDE, re.S | re.M)
    if "users" in [table.name for table in service.client.tables()]:
        service.client.drop("users", delete_files=True)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert agrees(shown, ran.stdout.lstrip()), ran.stdout


def in_pod(service: Service, folder: Path) -> str:
    """Return lines of a shell that run a command here as `kubectl exec` does in the pod."""
    there_and_here = {
        "http://127.0.0.1:8642": service.stack.gateway_url,
        "/etc/neve/secrets/gateway/token": f"{folder}/token",
        "/data/": f"{folder}/data/",
        "/tmp/day": f"{folder}/day",
    }
    edits = [f"-e 's|{there}|{here}|g'" for there, here in there_and_here.items()]
    inherited = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH")
    environ = installation().environ()
    variables = [shlex.quote(f"{name}={environ[name]}") for name in inherited]
    return f"""
while [ "$1" != -- ]; do shift; done
shift
for word; do
    shift
    set -- "$@" "$(printf '%s' "$word" | sed {" ".join(edits)})"
done
exec env {" ".join(variables)} "$@"
"""
