"""Write the list of the classes that both JVMs of a Spark application load.

    python -m scripts.class_list

Runs the demo with JVMs that record the classes they load. Repeat it after a change of Java, Spark,
RayDP or Ray; a list that misses classes, or has too many, costs some time at each start.
"""

import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compactor.spark.class_archive import LIST

TARGET = Path(__file__).resolve().parent.parent / "compactor/spark" / LIST
OF_SPARK = "org/apache/spark/SparkConf"
"""A class that only JVMs of Spark load."""


def main() -> None:
    """Run the demo, and merge the lists of its JVMs."""
    with tempfile.TemporaryDirectory(prefix="neve-classes-") as folder:
        option = f"-XX:DumpLoadedClassList={folder}/%p.classes -Xshare:auto"
        environ = {**os.environ, "JDK_JAVA_OPTIONS": option, "NEVE_HOME": f"{folder}/home"}
        demo = [sys.executable, "-c", "from neve.cli import main; main()", "demo"]
        subprocess.run(demo, env=environ, check=True)
        lists = [path.read_text("utf-8") for path in Path(folder).glob("*.classes")]
    lines = merged(lists)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    sys.stdout.write(f"{TARGET}: {len(lines)} lines\n")


def merged(lists: list[str]) -> list[str]:
    """Return the lines of the lists of Spark's JVMs, each once.

    Lines that name a class by its id are left out: those of classes from other loaders. A JVM that
    was killed may have written a part of its last line.
    """
    lines: dict[str, None] = {}
    for text in lists:
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if any(line.split()[0] == OF_SPARK for line in whole if line.strip()):
            lines.update(dict.fromkeys(line for line in whole if " source: " not in line))
    return list(lines)


if __name__ == "__main__":
    main()
