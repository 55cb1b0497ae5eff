"""Redis' own Tcl suite, its persistence parts: the installed server passes the same tests without and with `run`.

The tests come from REDIS_TESTS, a directory with `tests/test_helper.tcl` below. Without it, apt-get fetches the source package of
the installed server into a temporary directory. The Tcl files alone are used, and nothing is built.
"""
import glob
import os
import re
import shutil
import socket
import subprocess

from rig import Skip, need

NEEDS = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "tclsh"]
UNITS = ["integration/aof", "integration/aof-multi-part", "integration/rdb", "unit/aofrw", "unit/other", "integration/shutdown",
         "integration/convert-zipmap-hash-on-load", "integration/convert-ziplist-hash-on-load",
         "integration/convert-ziplist-zset-on-load", "integration/dismiss-mem"]
# Ports of a case: the suite's own, and those of the servers that it starts.
FIRST_PORT, PORTS, SERVERS, PORT_SLOTS = 23000, 64, 30, 140
PATTERNS = ["*.aof", "*.rdb", "*.manifest"]
# `run` is the parent of the server, and the suite wants the server's own number: its child is the one that saves.
OWN_NUMBER = """
    for {set it 0} {$::env(MATRIX_RUN) ne "" && $it < 2000} {incr it} {
        if {![catch {exec cat $config_file.pid} found]} { set pid [string trim $found]; file delete $config_file.pid; break }
        if {[catch {exec kill -0 $pid}]} break
        after 10
    }
    if {$::wait_server} {"""
SERVER = """#!/bin/bash
# What the suite takes for the server that it built.
[[ -n $MATRIX_RUN && -f $1 ]] || exec "$(command -v redis-server)" "$@"
exec $MATRIX_RUN --area "$1.area" --size 32MiB $MATRIX_MATCH -- \\
    sh -c 'echo $$ >"$1.pid.next"; mv "$1.pid.next" "$1.pid"; exec "$(command -v redis-server)" "$@"' sh "$@"
"""


def version():
    return subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split("v=")[1].split()[0]


def fetched(directory):
    """Gets Debian's source package of the installed server, by a list of sources of its own: the machine's lists stay as they are."""
    if not shutil.which("apt-get"):
        raise Skip("REDIS_TESTS is not set, and there is no apt-get")
    sources, lists = directory + "/deb-src.sources", directory + "/lists"
    os.makedirs(lists + "/partial")
    with open(sources, "w") as file:
        for name in glob.glob("/etc/apt/sources.list.d/debian.sources") + glob.glob("/etc/apt/sources.list.d/ubuntu.sources"):
            file.write(re.sub(r"(?m)^Types:.*$", "Types: deb-src", open(name).read()) + "\n")
    apt = ["apt-get", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::lists={lists}", "-q"]
    for words in (["update"], ["source", "--download-only", "redis"]):
        done = subprocess.run(apt + words, cwd=directory, capture_output=True, text=True)
        if done.returncode:
            raise Skip("REDIS_TESTS is not set, and apt-get has no source package of redis: " + done.stderr[-200:])
    packed = glob.glob(directory + "/redis_*.orig.tar.*")
    need(len(packed) == 1, "apt-get left no archive")
    if not packed[0].split("redis_")[1].startswith(version() + ".orig"):
        raise Skip(f"the source package is of another version than the server: {os.path.basename(packed[0])}")
    subprocess.run(["tar", "-C", directory, "--wildcards", "-xf", packed[0], "*/tests", "*/redis.conf"], check=True)
    return glob.glob(directory + "/redis-*/tests")[0]


def once(directory):
    """The tests, for all cases of a matrix."""
    if not os.environ.get("REDIS_TESTS"):
        os.environ["REDIS_TESTS"] = fetched(directory)


def prepared(rig):
    top = rig.files + "/suite"
    os.makedirs(top + "/src")
    given = os.environ["REDIS_TESTS"]
    tests = given if os.path.exists(given + "/test_helper.tcl") else given + "/tests"
    need(os.path.exists(tests + "/test_helper.tcl"), f"REDIS_TESTS={given} has no tests/test_helper.tcl")
    shutil.copytree(tests, top + "/tests")
    shutil.copy(os.path.dirname(tests) + "/redis.conf", top)
    server = top + "/tests/support/server.tcl"
    with open(server) as file:
        text = file.read()
    need(text.count("\n    if {$::wait_server} {") == 1, "the suite starts servers in another way than this case knows")
    with open(server, "w") as file:
        file.write(text.replace("\n    if {$::wait_server} {", OWN_NUMBER, 1))
    with open(top + "/src/redis-server", "w") as file:
        file.write(SERVER)
    os.chmod(top + "/src/redis-server", 0o755)
    for name in ("redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"):
        os.symlink(shutil.which(name), f"{top}/src/{name}")
    return top


def base_port():
    """The suite has a port for itself 32 below its first server's. Another case may run at the same time."""
    def is_free(port):
        with socket.socket() as it:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                it.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

    for slot in range(PORT_SLOTS):
        first = FIRST_PORT + (os.getpid() + slot) % PORT_SLOTS * PORTS
        if all(is_free(port) for port in range(first, first + PORTS)):
            return first + PORTS - SERVERS
    raise Skip("no free ports")


def suite(units, match):
    def case(rig):
        top = prepared(rig)
        env = {"MATRIX_RUN": f"{rig.switchyard} run" if rig.with_run else "", "MATRIX_MATCH": " ".join(f"--match {it}" for it in match)}
        port = str(base_port())
        found = {}
        for unit in units:
            if not os.path.exists(f"{top}/tests/{unit}.tcl"):
                continue
            command = ["tclsh", "tests/test_helper.tcl", "--clients", "1", "--single", unit, "--baseport", port, "--portcount", str(SERVERS),
                       "--durable", "--tags", "-slow -large-memory -needs:debug-sanitizer"]
            program = rig.start_plain(command, cwd=top, env=env)
            program.wait(400)
            said = re.sub(r"\x1b\[[\d;]*m", "", program.all())
            # Times and numbers of processes in names of tests differ.
            results = re.findall(r"(?m)^\[(?:ok|err|exception|ignore)\]:? .*$", said)
            results = [re.sub(r"\(\d+ ms\)|pid \d+", "", it).strip() for it in results]
            need(any(it.startswith("[ok]") for it in results), f"{unit}: no test ran: {said[-600:]}")
            found[unit] = results
        rig.sound()
        return found

    return case


# Units whose tests write most come again with all files of the server followed.
CASES = {it.split("/")[1]: suite([it], []) for it in UNITS} | {
    it.split("/")[1] + ", all files": suite([it], PATTERNS) for it in UNITS[:4]}
SHORT = ()
