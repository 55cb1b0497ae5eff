"""Python: what its programs do with files they want to keep: replace, append, maps, children, logs, its own databases."""
import platform

from work import WORK

NEEDS = ["python3"]
ALL = ["*"]


def version():
    return platform.python_version()


def script(match):
    def case(rig):
        rig.patterns = match
        said = rig.call("python3", WORK + "/python_work.py", "script", "out")
        # gdbm and dbm differ by what is built in: their contents are read back by the script itself.
        return {"said": said, **rig.content("out", skip=("kept",))}

    return case


def crashed(kind, torn=()):
    def case(rig):
        rig.patterns = ALL

        def load(first):
            return rig.start(["python3", WORK + "/python_work.py", kind, rig.files, rig.notes + "/note", first])

        def check(lines, call):
            with open(rig.notes + "/lines", "w") as file:
                file.write("\n".join(lines))
            call("python3", WORK + "/python_work.py", "check_" + kind, rig.files, rig.notes + "/lines")

        return rig.crashes(4, load, check, torn=torn)

    return case


CASES = {
    "script": script(ALL),
    "script, some files": script(["*.log", "*.json", "journal*"]),
    "crash replace": crashed("replace"),
    "crash append": crashed("append", ["journal"]),
    "crash multiprocessing": crashed("workers", ["own*", "shared"]),
    "crash subprocess": crashed("children", ["*.log"]),
}
SHORT = ("script", "crash append", "crash subprocess")
