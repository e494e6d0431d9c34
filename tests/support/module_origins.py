"""Where the actors of a cluster have the modules of Névé from.

`python -m tests.support.module_origins ADDRESS` joins the cluster, asks every named actor which
files its modules were loaded from, and prints one line of JSON: name of the actor → folders.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.wire import NAMESPACE
from tests.support.installed import PACKAGES
from tests.support.patience import SERVICE_S


def folders_of_actors(address: str, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the folders from which each actor has loaded the packages.

    Args:
        address: Of the cluster.
        environ: With which a driver can join it.
    """
    asked = subprocess.run(
        [sys.executable, "-m", "tests.support.module_origins", address],
        env=dict(environ),
        cwd=Path.home(),
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    found: dict[str, list[str]] = json.loads(asked.stdout.splitlines()[-1])
    return found


def origins(_actor: Any, packages: tuple[str, ...]) -> list[str]:
    """Return the folders of the loaded modules of these packages; runs in the actor."""
    loaded = [(name, module) for name, module in sys.modules.items() if module is not None]
    return sorted(
        {
            str(Path(file).parents[name.count(".") + (Path(file).name == "__init__.py")])
            for name, module in loaded
            if name.partition(".")[0] in packages and (file := getattr(module, "__file__", None))
        }
    )


def main() -> None:
    """Ask and print."""
    import ray  # reads its environment once per process

    ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    found = {}
    for actor in ray.util.list_named_actors():
        handle: Any = ray.get_actor(actor)
        found[actor] = ray.get(handle.__ray_call__.remote(origins, PACKAGES))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
