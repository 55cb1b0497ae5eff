"""LevelDB by its C interface: a compared script, crashes under four threads."""
import subprocess

import level

NEEDS = ["cc", "/usr/include/leveldb/c.h"]


def version():
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libleveldb-dev"], capture_output=True, text=True).stdout or "?"


def build(rig):
    return level.build(rig, ["-lleveldb"])


CASES = {
    "compared": level.compared(build, None),
    "compared, all files": level.compared(build, ["*"]),
    "crash": level.crashed(build, None),
    "crash, all files": level.crashed(build, ["*"]),
}
SHORT = ()
