"""Node: callbacks, promises, streams, worker threads, children; crashes under two threads."""
import subprocess

from work import WORK

NEEDS = ["node"]


def version():
    return subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()


def script(match, ring):
    def case(rig):
        # libuv may use an io_uring for files: then the file system has the files, and the results must be the same.
        rig.may_follow_nothing = ring == "1"
        said = rig.call("node", WORK + "/node_work.js", "script", "out", match=match, env={"UV_USE_IO_URING": ring})
        return {"said": said, **rig.content("out")}

    return case


def crashed(ring):
    def case(rig):
        rig.patterns = ["*"]
        env = {"UV_USE_IO_URING": ring}

        def load(first):
            return rig.start(["node", WORK + "/node_work.js", "load", rig.files, rig.notes + "/note", first], env=env)

        def check(lines, call):
            with open(rig.notes + "/lines", "w") as file:
                file.write("\n".join(lines))
            call("node", WORK + "/node_work.js", "check", rig.files, rig.notes + "/lines")

        return rig.crashes(4, load, check, torn=["journal*.log"])

    return case


CASES = {
    "script": script(["*.log", "*.json"], "0"),
    "script, all files": script(["*"], "0"),
    "script, io_uring": script(["*"], "1"),
    "crash": crashed("0"),
    "crash, io_uring": crashed("1"),
}
SHORT = ()
