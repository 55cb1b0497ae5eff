"""A program of t_32_run_keeper.sh that goes into the background, and does there what it is asked for.

    run_keeper.py daemon DIRECTORY CODE       ends with CODE when its daemon is ready
    run_keeper.py helper DIRECTORY            writes the file of the daemon
    run_keeper.py late DIRECTORY              says in a file whether what it has just synced is followed
"""

import os
import subprocess
import sys
import tempfile
import threading
import time


def put(fd, data):
    os.write(fd, data)
    os.fsync(fd)


def is_followed(path):
    """True if the area has something of the file."""
    area = os.environ["SWITCHYARD_AREA"]
    outside = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with tempfile.TemporaryDirectory(dir=os.path.dirname(area)) as copies:
        subprocess.run([os.environ["SWITCHYARD"], "export", area, copies], env=outside, check=True, stdout=subprocess.DEVNULL)
        return os.path.exists(copies + path)


def answer(directory, word):
    if word == "helper":
        # Its output is the daemon's: none.
        return subprocess.run([sys.executable, __file__, "helper", directory]).returncode
    if word == "another":
        put(os.open(directory + "/f.another", os.O_CREAT | os.O_WRONLY), b"another\n")
        return 0
    return "yes" if is_followed(directory + "/f.log") else "no"


def log(fd):
    """The area has something of the file as long as there is always something to log."""
    while True:
        put(fd, b"record\n")
        time.sleep(0.02)


def serve(directory, fd):
    threading.Thread(target=log, args=[fd], daemon=True).start()
    while True:
        time.sleep(0.02)
        try:
            with open(directory + "/ask") as file:
                word = file.read().strip()
        except FileNotFoundError:
            continue
        os.unlink(directory + "/ask")
        with open(directory + "/answer.new", "w") as file:
            print(answer(directory, word), file=file)
        os.rename(directory + "/answer.new", directory + "/answer")


def daemon(directory, code):
    ready, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os.read(ready, 1)
        print("started")
        sys.exit(int(code))
    os.setsid()
    fd = os.open(directory + "/f.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o644)
    put(fd, b"daemon\n")
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.closerange(3, fd)
    os.closerange(fd + 1, 64)
    serve(directory, fd)


def helper(directory):
    put(os.open(directory + "/f.log", os.O_WRONLY), b"helper\n")


def late(directory):
    put(os.open(directory + "/f.late", os.O_CREAT | os.O_WRONLY), b"late\n")
    with open(directory + "/late.new", "w") as file:
        file.write("yes" if is_followed(directory + "/f.late") else "no")
    os.rename(directory + "/late.new", directory + "/late")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
