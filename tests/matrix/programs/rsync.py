"""rsync: --fsync, --inplace, --delete, --append; killed in the middle and begun anew."""
import subprocess
import time

from rig import need
from work import WORK

NEEDS = ["rsync", "python3"]
ALL = ["*"]


def version():
    return subprocess.run(["rsync", "--version"], capture_output=True, text=True).stdout.split()[2]


def source(rig, change=0):
    rig.call_plain("python3", WORK + "/tree_work.py", "change" if change else "make", rig.disk + "/source", change)


def same(rig, target="target"):
    said = rig.call_plain("diff", "-r", "--no-dereference", rig.disk + "/source", target, codes=(0, 1))
    need(not said, said[:600])


def script(match):
    def case(rig):
        rig.patterns = match
        source(rig)
        told = []
        for number, options in enumerate((["--fsync"], ["--inplace", "--fsync", "--delete"], ["--delete", "--sparse"],
                                          ["--append-verify", "--delete"], ["--inplace", "--delete"],
                                          ["--delay-updates", "--fsync", "--delete-after"],
                                          ["--delete", "--backup", "--backup-dir=../backup"])):
            if number:
                source(rig, number)
            # By checksums, as sizes and seconds stay the same; parts of a file are sent, as over a network.
            said = rig.call("rsync", "-aHi", "--checksum", "--no-whole-file", *options, rig.disk + "/source/", "target")
            told.append(sorted(line.split(" ", 1)[1] for line in said.splitlines() if line.startswith((">f", "*del"))))
            if "--append-verify" not in options and "--fsync" != options[-1]:
                same(rig)
        return {**rig.content("target"), "backup": rig.content("backup"), "told": told}

    return case


def crash(rig):
    """Killed in the middle, then begun anew until it ends; once it ended with --fsync, all is durable."""
    rig.patterns = ALL
    source(rig)
    for number, kind in enumerate(rig.kinds(4)):
        source(rig, number + 1)
        options = ["--fsync", *([], ["--inplace"], ["--partial"], ["--delay-updates"])[number % 4], "--delete", "--bwlimit=20000"]
        program = rig.start(["rsync", "-a", *options, rig.disk + "/source/", "target"])
        time.sleep(0.05 + rig.rng.random() * 0.2)
        rig.crash(program, "all" if kind == "cut" else kind)
        if number % 2:
            rig.recover()
        rig.call("rsync", "-a", "--delete", "--checksum", "--fsync", rig.disk + "/source/", "target")
        same(rig)
        if kind == "cut":
            # Names are durable by the file system's own sync; the contents were synced.
            rig.call_plain("sync", "-f", rig.disk)
            rig.cut([])
            rig.unmount()
            need(rig.mount(), "mount")
            rig.recover()
            same(rig)
    return rig.content("target")


CASES = {"script": script(ALL), "script, some files": script(["*.log", "*.dat"]), "crash": crash}
SHORT = ()
