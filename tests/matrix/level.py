"""What LevelDB and RocksDB share: the same C program, built for each."""
import subprocess

from rig import Broken
from work import WORK


def build(rig, flags):
    program = rig.notes + "/level"
    done = subprocess.run(["cc", "-O1", "-pthread", "-o", program, WORK + "/level_work.c", *flags], capture_output=True, text=True)
    if done.returncode:
        raise Broken("cc: " + done.stderr[-600:])
    return program


def compared(build, match):
    def case(rig):
        program = build(rig)
        rig.call(program, "script", "base", match=match)
        first = rig.call_plain(program, "sum", "base")
        # Opening reads the last log, and writes a new one.
        second = rig.call(program, "sum", "base", match=match)
        return {"first": first, "second": second, "third": rig.call_plain(program, "sum", "base")}

    return case


def crashed(build, match):
    def case(rig):
        program = build(rig)
        rig.patterns = match or []

        def check(lines, call):
            with open(rig.notes + "/lines", "w") as file:
                file.write("\n".join(lines))
            call(program, "check", "base", rig.notes + "/lines")
            call(program, "sum", "base")

        return rig.crashes(4, lambda first: rig.start([program, "load", "base", rig.notes + "/note", first]), check, enough=400)

    return case
