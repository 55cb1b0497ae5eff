"""tar: archives, extraction, incremental backups and appending, with sync(1); killed in the middle and begun anew."""
import subprocess
import time

from rig import need
from work import WORK

NEEDS = ["tar", "gzip", "python3"]
ALL = ["*"]


def version():
    return subprocess.run(["tar", "--version"], capture_output=True, text=True).stdout.split()[3]


def source(rig, change=0):
    rig.call_plain("python3", WORK + "/tree_work.py", "change" if change else "make", rig.disk + "/source", change)


def same(rig, target):
    said = rig.call_plain("diff", "-r", "--no-dereference", rig.disk + "/source", target, codes=(0, 1))
    need(not said, said[:600])


def script(match):
    def case(rig):
        rig.patterns = match
        source(rig)
        rig.call("tar", "-C", rig.disk, "--sort=name", "-cf", "one.tar", "source")
        rig.call("tar", "-C", rig.disk, "--sort=name", "-czf", "packed.tar.gz", "source")
        rig.call("mkdir", "out", "sparse")
        rig.call("tar", "-C", "out", "-xpf", "one.tar")
        same(rig, "out/source")
        rig.call("tar", "-C", "sparse", "-xzf", "packed.tar.gz", "--sparse", "--overwrite")
        same(rig, "sparse/source")
        rig.call("tar", "-df", "one.tar", "-C", rig.disk)
        rig.call("tar", "-C", rig.disk, "-cf", "0.tar", "--listed-incremental=state.snar", "source")
        for level in (1, 2):
            source(rig, level)
            rig.call("tar", "-C", rig.disk, "-cf", f"{level}.tar", "--listed-incremental=state.snar", "source")
        rig.call("mkdir", "restored")
        for level in (0, 1, 2):
            rig.call("tar", "-C", "restored", "-xf", f"{level}.tar", "--listed-incremental=/dev/null")
        same(rig, "restored/source")
        # What extracts and syncs is two programs; what appends rewrites the end of the archive.
        rig.call("sh", "-c", "tar -C out -xf one.tar --recursive-unlink && sync out/source/* && sync")
        for name in ("a.dat", "b.log"):
            rig.call("tar", "-C", rig.disk + "/source", "-rf", "one.tar", name)
        rig.call("tar", "--delete", "-f", "one.tar", "source/a.dat")
        listing = rig.call_plain("tar", "--numeric-owner", "-tf", "one.tar")
        found = rig.content(skip=("0.tar", "1.tar", "2.tar", "state.snar"))
        # Archives have times; their members are compared by extraction.
        return {"list": listing, **{name: it for name, it in found.items() if ".tar" not in name}}

    return case


def crash(rig):
    rig.patterns = ALL
    source(rig)
    rig.call_plain("tar", "-C", rig.disk, "-cf", rig.disk + "/big.tar", "source")
    rig.call_plain("sync")
    for number, kind in enumerate(rig.kinds(4)):
        program = rig.start(["sh", "-c", f"while :; do tar -xf {rig.disk}/big.tar --recursive-unlink && sync -d source/*.dat; done"])
        time.sleep(0.05 + rig.rng.random() * 0.3)
        rig.crash(program, kind)
        if number % 2:
            rig.recover()
        rig.call("sh", "-c", f"tar -xf {rig.disk}/big.tar --recursive-unlink && sync")
        same(rig, "source")
        # After sync(1) a power cut takes nothing.
        if rig.can_cut:
            rig.cut([])
            rig.unmount()
            need(rig.mount(), "mount")
            rig.recover()
            same(rig, "source")
    return rig.content("source")


CASES = {"script": script(ALL), "script, some files": script(["*.log", "*.dat", "*.tar"]), "crash": crash}
SHORT = ("script", "crash")
