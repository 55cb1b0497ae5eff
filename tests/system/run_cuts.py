"""Programs of t_31_run_cuts.sh. Each makes `READY` when all that it has written is synced, and waits to be killed.

    run_cuts.py NAME DIRECTORY READY
"""

import os
import subprocess
import sys
import time

APPEND = os.O_CREAT | os.O_WRONLY | os.O_APPEND


def ready(path, beat=None):
    """`beat`: a file that grows on, as the area lets go of all files if nothing is logged for a second."""
    with open(path, "w") as file:
        print("ready", file=file)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.1)
        if beat is not None:
            put(beat, b".")


def put(fd, *parts):
    for part in parts:
        os.write(fd, part)
        os.fsync(fd)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def touch(path):
    with open(path, "w"):
        pass


def log(directory, note):
    """A log that goes on, and ends with something that is not synced."""
    fd = os.open(directory + "/f.log", APPEND, 0o644)
    put(fd, *(b"record %d\n" % nth for nth in range(50)))
    # The file is written by then, and the area says of when it is.
    wait_for(note + ".settled")
    put(fd, *(b"record %d\n" % nth for nth in range(50, 60)))
    os.write(fd, b"not synced\n")
    ready(note, os.open(directory + "/f.beat", APPEND, 0o644))


def older(directory, note):
    """The same file once more, as the log of last night's backup."""
    fd = os.open(directory + "/f.log", APPEND, 0o644)
    put(fd, b"of the backup\n")
    ready(note)


def moved(directory, note):
    """Somebody moves the log while it grows."""
    fd = os.open(directory + "/d/f.log", APPEND, 0o644)
    put(fd, *(b"record %d\n" % nth for nth in range(20)))
    touch(directory + "/grows")
    wait_for(directory + "/moved")
    put(fd, *(b"record %d\n" % nth for nth in range(20, 40)))
    ready(note)


def with_another_name(directory, note, *, how):
    """A log that the area has let go of gets another name, and a new one begins."""
    path = directory + "/d/f.log"
    os.mkdir(directory + "/d")
    fd = os.open(path, APPEND, 0o644)
    put(fd, *(b"record %d\n" % nth for nth in range(40)))
    os.close(fd)
    wait_for(note + ".settled")
    if how == "child":
        subprocess.run(["mv", path, directory + "/d/old.log"], check=True)
    elif how == "directory":
        os.rename(directory + "/d", directory + "/old")
        os.mkdir(directory + "/d")
    elif how == "link":
        os.link(path, directory + "/d/old.log")
        os.unlink(path)
    else:
        os.rename(path, directory + "/d/old.log")
    fd = os.open(path, APPEND, 0o644)
    put(fd, b"new\n")
    ready(note)


def rename(directory, note):
    with_another_name(directory, note, how="rename")


def rename_by_a_child(directory, note):
    with_another_name(directory, note, how="child")


def rename_of_the_directory(directory, note):
    with_another_name(directory, note, how="directory")


def link_and_unlink(directory, note):
    with_another_name(directory, note, how="link")


def other_name(directory, note):
    """A worker has the file open by a name that is not chosen, before its parent opens it."""
    if os.fork() == 0:
        fd = os.open(directory + "/current", APPEND | os.O_DSYNC, 0o644)
        touch(directory + "/opened")
        wait_for(directory + "/written")
        os.write(fd, b"child\n")
        touch(directory + "/child")
        time.sleep(60)
    wait_for(directory + "/opened")
    fd = os.open(directory + "/f.log", os.O_WRONLY | os.O_APPEND)
    put(fd, b"parent\n")
    touch(directory + "/written")
    wait_for(directory + "/child")
    ready(note)


def two_mounts(directory, note):
    """One file, by the paths of two mounts."""
    fd = os.open(directory + "/a/f.log", os.O_CREAT | os.O_WRONLY, 0o644)
    put(fd, b"AAAA")
    os.close(fd)
    fd = os.open(directory + "/b/f.log", os.O_WRONLY)
    os.pwrite(fd, b"BBBB", 0)
    os.fsync(fd)
    ready(note)


def shared_cursor(directory, _):
    """Parent and children write one descriptor with O_DSYNC."""
    fd = os.open(directory + "/f.shared", os.O_CREAT | os.O_WRONLY | os.O_DSYNC, 0o644)
    is_child = False
    for nth in range(4):
        is_child = nth < 3 and os.fork() == 0
        if is_child or nth == 3:
            for record in range(100):
                os.write(fd, b"%02d %036d\n" % (nth, record))
        if is_child:
            os._exit(0)
    for _ in range(3):
        os.wait()
    with open(directory + "/f.shared", "rb") as file:
        found = {line for line in file.read().split(b"\n") if len(line) == 39}
    if len(found) != 400:
        sys.exit(f"{len(found)} of 400 records")


def many_files(directory, _):
    """A child writes more files than the table of a run has places."""
    own = os.open(directory + "/f.own", os.O_CREAT | os.O_WRONLY, 0o644)
    put(own, b"x")
    child = os.fork()
    if child == 0:
        for nth in range(1500):
            fd = os.open(f"{directory}/f{nth}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(fd, b"y")
            os.close(fd)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    put(own, b"y")
    sys.exit(os.waitstatus_to_exitcode(status))


def background(directory, note):
    """A daemon, and a helper that it starts when it is told to: by the words of HELPER, as `unshare -n`. With LEFT the daemon is left behind."""
    if os.fork():
        wait_for(note + ".pid")
        while not os.environ.get("LEFT"):
            time.sleep(1)
        return
    os.setsid()
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    fd = os.open(directory + "/f.log", APPEND, 0o666)
    put(fd, b"daemon\n")
    with open(note + ".new", "w") as file:
        print(os.getpid(), file=file)
    os.rename(note + ".new", note + ".pid")
    words = os.environ.get("HELPER", "").split() + [sys.executable, __file__, "overwrite", directory, note]
    helper = None
    # The log has the first record, too, as long as there is always something to log.
    while True:
        put(fd, b"record\n")
        if not helper and os.path.exists(note + ".go"):
            helper = subprocess.Popen(words)
        time.sleep(0.05)


def overwrite(directory, note):
    """Another program, which writes the first record anew. With CLOSES it closes all that it has not opened itself."""
    if os.environ.get("CLOSES"):
        os.closerange(3, 1 << 16)
    fd = os.open(directory + "/f.log", os.O_WRONLY)
    os.pwrite(fd, b"helper\n", 0)
    os.fsync(fd)
    ready(note)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], sys.argv[3])
