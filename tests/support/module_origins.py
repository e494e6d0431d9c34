"""Where the processes of a stack have their modules from: `python -m tests.support.module_origins`.

It joins the cluster, asks every actor of Névé which files its modules were loaded from, and prints
one line of JSON: name of the actor → folders that hold the packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray

from common.wire import NAMESPACE
from tests.support.installed import PACKAGES


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
    ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    found = {}
    for actor in ray.util.list_named_actors():
        handle: Any = ray.get_actor(actor)
        found[actor] = ray.get(handle.__ray_call__.remote(origins, PACKAGES))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
