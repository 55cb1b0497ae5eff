"""Java: channels, random access files, maps and locks; crashes under four threads."""
import subprocess

from rig import Broken
from work import WORK

NEEDS = ["java", "javac"]
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"]


def version():
    return subprocess.run(["java", "--version"], capture_output=True, text=True).stdout.split()[1]


def java(rig, *words):
    classes = rig.notes + "/classes"
    done = subprocess.run(["javac", "-d", classes, WORK + "/JavaWork.java"], capture_output=True, text=True)
    if done.returncode:
        raise Broken("javac: " + done.stderr[-600:])
    return ["java", *QUICK, "-cp", classes, "JavaWork", *words]


def script(match):
    def case(rig):
        said = rig.call(*java(rig, "script", "."), match=match)
        return {"said": said, **rig.content()}

    return case


def crash(rig):
    rig.patterns = ["*.journal", "*.dat", "*.json"]

    def check(lines, call):
        with open(rig.notes + "/lines", "w") as file:
            file.write("\n".join(lines))
        call(*java(rig, "check", ".", rig.notes + "/lines"))

    def load(first):
        return rig.start(java(rig, "load", ".", rig.notes + "/note", first))

    return rig.crashes(4, load, check, torn=["?.journal", "1.dat"])


CASES = {"script": script(["*.journal", "*.dat", "*.json"]), "script, all files": script(["*"]), "crash": crash}
SHORT = ()
