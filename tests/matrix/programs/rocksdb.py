"""RocksDB: its C interface (a compared script, crashes under four threads), and its own benchmark with its own checks."""
import re
import subprocess

import level
from rig import need

NEEDS = ["cc", "/usr/include/rocksdb/c.h", "db_bench", "ldb"]


def version():
    said = subprocess.run(["ldb", "--version"], capture_output=True, text=True)
    return re.search(r"[\d.]+", said.stdout + said.stderr)[0]


def build(rig):
    return level.build(rig, ["-DROCKS", "-lrocksdb"])


def bench(rig):
    """db_bench syncs each write of four threads, and reads back; then its tools check every block."""
    for match in (None, ["*"]):
        directory = "bench" + str(len(match or []))
        rig.call("db_bench", "--benchmarks=fillsync,overwrite,readrandom,compact", "--threads=4", f"--db={directory}", "--num=400",
                 "--value_size=1000", "--write_buffer_size=300000", "--compression_type=none", match=match)
        need("OK" in rig.call_plain("ldb", f"--db={directory}", "checkconsistency"), "not consistent")
        rig.call_plain("db_bench", "--benchmarks=verifychecksum", f"--db={directory}", "--use_existing_db=1")
    return {}


CASES = {
    "compared": level.compared(build, None),
    "compared, all files": level.compared(build, ["*"]),
    "db_bench": bench,
    "crash": level.crashed(build, None),
    "crash, all files": level.crashed(build, ["*"]),
}
SHORT = ("compared, all files", "crash")
