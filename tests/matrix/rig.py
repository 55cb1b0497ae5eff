"""A file system and processes of one case of the matrix, on one side: without `switchyard run`, or with it.

Assumes that the process is the subreaper of all that it starts (`become_reaper`), so every descendant is found and ended. As
root the files are on an ext4 of the rig's own, whose power can be cut. Otherwise there are kills alone.
"""
import ctypes
import fcntl
import glob
import hashlib
import os
import pwd
import random
import shutil
import signal
import stat
import struct
import subprocess
import time

SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# No call of a program takes this long on a machine that builds at the same time. What takes longer is stuck.
PATIENCE_S = float(os.environ.get("MATRIX_PATIENCE", "90"))
IMAGE_BYTES = 3 << 30


class Broken(Exception):
    """The case fails."""


class Stuck(Broken):
    """Something does not end. The stacks are kept."""


class Skip(Exception):
    """The case cannot be run here."""


def need(condition, why):
    if not condition:
        raise Broken(why)


def become_reaper():
    """All descendants come back to this process, which cleans up if its own parent is interrupted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def tree(pid):
    """The process and its descendants, those that ended aside."""
    found = [pid]
    for one in found:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    found += [int(it) for it in file.read().split()]
        except OSError:
            pass
    return [it for it in found if state(it) not in "ZX"]


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def await_true(what, condition, seconds=PATIENCE_S, pause_s=0.005):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Stuck(what)
        time.sleep(pause_s)


class Program:
    """A program that was started; `run` is its parent on the side with `run`."""

    def __init__(self, rig, process, log, is_run):
        self.rig, self.process, self.log, self.is_run = rig, process, log, is_run

    def running(self):
        return self.process.poll() is None

    def all(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def words(self):
        return self.all()[-1500:]

    def main(self):
        """The process of the program itself."""
        inner = [it for it in tree(self.process.pid) if it != self.process.pid]
        return inner[0] if self.is_run and inner else self.process.pid

    def wait(self, seconds=PATIENCE_S):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Stuck(f"{self.process.args[:8]} does not end") from None
        if self.is_run and code == 0:
            self.rig.followed.append("switchyard: nothing was followed" not in self.all())
        return code

    def stop(self, number=signal.SIGTERM, codes=(0,)):
        send([self.process.pid], number)
        code = self.wait()
        need(code in codes, f"it stopped with {code}: {self.words()}")


class Rig:
    def __init__(self, base, side, seed, switchyard):
        self.base, self.with_run, self.seed, self.switchyard = base, side == "with", seed, switchyard
        self.rng = random.Random(f"{seed} {side}")
        self.disk, self.notes = base + "/disk", base + "/notes"
        for directory in (self.disk, self.notes):
            os.mkdir(directory)
            os.chmod(directory, 0o777)
        os.chmod(base, 0o755)
        # Servers that give their rights away make temporary files, too.
        os.environ["TMPDIR"] = self.notes
        self.can_cut, self.counter, self.patterns, self.user = False, 0, [], None
        self.lose_area, self.last_kind, self.cuts = False, None, 0
        # So long do processes live on that lost their parent.
        self.linger_s = 2
        # Of each run that ended well: whether it followed a file. In a case that `may_follow_nothing` none has to.
        self.followed, self.may_follow_nothing = [], False
        self.with_image()
        self.files, self.area = self.disk + "/files", self.disk + "/area"
        os.mkdir(self.files)

    # The file system.

    def with_image(self):
        if os.geteuid():
            return
        self.image = self.base + "/image"
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m0", "-E", options, self.image], capture_output=True)
        self.can_cut = made.returncode == 0 and self.mount()
        os.chmod(self.disk, 0o777)

    def mount(self):
        return subprocess.run(["mount", "-o", "loop", self.image, self.disk], capture_output=True).returncode == 0

    def unmount(self):
        def is_unmounted():
            return subprocess.run(["umount", self.disk], stderr=subprocess.DEVNULL).returncode == 0

        await_true("the file system stays busy", is_unmounted, 20)

    def own(self, user):
        """All that follows belongs to this user, and is run by this user."""
        self.user = user
        for path in (self.disk, self.files, self.notes):
            shutil.chown(path, user, pwd.getpwnam(user).pw_gid)

    def close(self):
        send([it for it in tree(os.getpid()) if it != os.getpid()], signal.SIGKILL)
        if self.can_cut:
            subprocess.run(["umount", "-l", self.disk], stderr=subprocess.DEVNULL)

    # Processes.

    def words(self, command, match, user):
        command = [str(it) for it in command]
        if self.with_run:
            chosen = [it for pattern in (self.patterns if match is None else match) for it in ("--match", pattern)]
            command = [self.switchyard, "run", "--area", self.area, "--size", "128MiB", *chosen, "--", *command]
        return as_user(command, user or self.user)

    def start(self, command, match=None, user=None, cwd=None, env=None, stdin=subprocess.DEVNULL):
        """Starts a program, under `run` on the side with `run`."""
        return self.spawn(self.words(command, match, user), self.with_run, cwd, env, stdin)

    def start_plain(self, command, user=None, cwd=None, env=None, stdin=subprocess.DEVNULL):
        """Starts a program that is not under `run` on either side: a client."""
        return self.spawn(as_user([str(it) for it in command], user or self.user), False, cwd, env, stdin)

    def spawn(self, command, is_run, cwd, env, stdin):
        self.counter += 1
        log = f"{self.notes}/log.{self.counter}"
        with open(log, "wb") as file:
            process = subprocess.Popen(command, cwd=cwd or self.files, env={**os.environ, **(env or {})}, stdin=stdin,
                                       stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        return Program(self, process, log, is_run)

    def ended(self, program, codes):
        code = program.wait()
        told = program.all()
        need(code in codes, f"{' '.join(program.process.args)[-300:]} ended with {code}: {told[-1500:]}")
        # `run` says what it follows, and what it gives up. The rest is the program's own.
        return "".join(it for it in told.splitlines(True) if not it.startswith(("switchyard: ", "switchyard run: ")))

    def call(self, *command, codes=(0,), **options):
        """Runs a program to its end, under `run` on the side with `run`, and returns what it said."""
        return self.ended(self.start(command, **options), codes)

    def call_plain(self, *command, codes=(0,), **options):
        return self.ended(self.start_plain(command, **options), codes)

    # Crashes.

    def kinds(self, count, cuts=True):
        """Crashes for as many rounds; each kind comes before one comes again."""
        kinds = ["all", "main", "run"] + ["cut"] * (self.can_cut and cuts)
        kinds = [it for _ in range(count) for it in random.Random(self.seed).sample(kinds, len(kinds))]
        return kinds[:count]

    def crash(self, program, kind, *clients):
        """SIGKILL to everything, to the program alone, to `run` alone; or a power cut."""
        # Nobody knows what a run that is killed has followed, and those that end well may only read.
        self.may_follow_nothing = True
        everything = [it for it in tree(os.getpid()) if it != os.getpid()]
        noted = None
        if kind == "cut":
            noted = self.cut(everything)
        elif kind == "all":
            send(everything, signal.SIGKILL)
        elif kind == "main":
            send([program.main()], signal.SIGKILL)
        else:
            send([program.process.pid], signal.SIGKILL)
        program.wait()
        for client in clients:
            client.wait()
        self.await_end()
        self.end_notes(noted)
        if kind == "cut":
            self.unmount()
            need(self.mount(), "the file system cannot be mounted after the power cut")
            if self.lose_area and os.path.exists(self.area):
                os.unlink(self.area)

    def cut(self, everything):
        """Cuts the power. Returns how long each note was before: later lines do not count (`end_notes`).

        A machine without power answers nobody. Here programs go on until they see that they are to stop, and an fsync that is under
        way may return 0 though ext4 has lost its data. So nothing counts as acknowledged from `cuts` on.
        """
        # Nobody waits until all have stopped: what is under way would end before the cut.
        send(everything, signal.SIGSTOP)
        self.cuts += 1
        noted = {it: os.path.getsize(it) for it in self.note_files()}
        handle = os.open(self.disk, os.O_RDONLY)
        fcntl.ioctl(handle, SHUTDOWN, NO_LOG_FLUSH)
        os.close(handle)
        # A child that is born meanwhile is found by the second look.
        while living := [it for it in tree(os.getpid()) if it != os.getpid()]:
            send(living, signal.SIGKILL)
            time.sleep(0.001)
        return noted

    def note_files(self):
        return [f"{self.notes}/{it}" for it in os.listdir(self.notes) if it.startswith("note")]

    def end_notes(self, noted=None):
        """Each note ends with a whole line, and with `noted` where it ended then: the next line would go on with a half one."""
        for path in self.note_files():
            with open(path, "r+b") as file:
                file.truncate(noted.get(path, 0) if noted is not None else os.path.getsize(path))
                file.truncate(file.read().rfind(b"\n") + 1)

    def tear(self, names):
        """A crash may leave half a record at the end of a file, and does so seldom. Here it always does."""
        for path in (it for name in names for it in glob.glob(f"{self.files}/{name}")):
            with open(path, "ab") as file:
                file.write(b"0:half")

    def await_end(self):
        """Whatever the program leaves behind ends by itself, or is ended as a user would."""
        until = time.monotonic() + self.linger_s
        while left := [it for it in tree(os.getpid()) if it != os.getpid()]:
            if time.monotonic() > until:
                send(left, signal.SIGKILL)
                until += self.linger_s
            time.sleep(0.01)
        # A process whose parent is gone is this one's child. Until it is waited for it counts as running, for a server's pid file.
        for pid in os.listdir("/proc"):
            if pid.isdigit() and state(pid) == "Z" and f"PPid:\t{os.getpid()}\n" in read(pid, "status"):
                try:
                    os.waitpid(int(pid), os.WNOHANG)
                except ChildProcessError:
                    pass

    def recover(self):
        """What a user does after a crash of the machine, who wants the files and not the program."""
        if self.with_run and os.path.exists(self.area):
            done = subprocess.run(as_user([self.switchyard, "export", self.area], self.user), capture_output=True, text=True,
                                  timeout=PATIENCE_S)
            need(done.returncode == 0, "export: " + (done.stderr + done.stdout)[-600:])

    def sound(self):
        """The area verifies, and holds nothing of programs that ended. A case whose patterns are wrong compares nothing."""
        need(self.may_follow_nothing or not self.followed or any(self.followed), "no run of this case has followed a file")
        if not self.with_run or not os.path.exists(self.area):
            return
        done = subprocess.run([self.switchyard, "store", "verify", self.area], capture_output=True, text=True, timeout=PATIENCE_S)
        need(done.returncode == 0, "store verify: " + (done.stderr + done.stdout)[-600:])
        need("files: Map, " not in done.stdout or "files: Map, 0 entries" in done.stdout,
             "a program that ended left something in its area: " + done.stdout[-600:])

    def crashes(self, rounds, load, check, note="note", enough=150, cuts=True, torn=()):
        """Kills what `load(first)` starts while it acknowledges lines in the note; `check(lines)` follows each time.

        The files `torn`, which the load appends to, end with half a record each time. Half of the checks are by `run` itself, which
        recovers first. The others come after `export`, without `run`.
        """
        for number, kind in enumerate(self.kinds(rounds, cuts)):
            before = len(self.acknowledged(note))
            self.tear(torn)
            program = load(before)
            await_true(f"nothing is acknowledged: {program.words()}",
                       lambda: len(self.acknowledged(note)) >= before + enough or not program.running())
            time.sleep(self.rng.random() * 0.1)
            need(program.running(), f"it ended by itself: {program.words()}")
            self.crash(program, kind)
            self.last_kind = kind
            plainly = number % 2 == 0
            if plainly:
                self.recover()
            try:
                check(self.acknowledged(note), self.call_plain if plainly else self.call)
            except Broken as error:
                raise type(error)(f"round {number}, {kind}, {'export' if plainly else 'run'}: {error}") from None
        self.sound()
        return {"crashes": rounds}

    def acknowledged(self, note="note"):
        try:
            with open(f"{self.notes}/{note}") as file:
                return [line[:-1] for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    # Results.

    def content(self, below="", skip=()):
        """Every file with its mode, size and checksum; what is compared between the sides."""
        top, found = os.path.join(self.files, below), {}
        for directory, names, files in os.walk(top):
            for name in names + files:
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, top)
                if any(part in skip for part in relative.split("/")):
                    continue
                found[relative] = described(path)
        return found


def described(path):
    about = os.lstat(path)
    kind = oct(about.st_mode)
    if stat.S_ISLNK(about.st_mode):
        return f"{kind} {os.readlink(path)}"
    if not stat.S_ISREG(about.st_mode):
        return kind
    with open(path, "rb") as file:
        return f"{kind} {about.st_size} {hashlib.file_digest(file, 'sha1').hexdigest()[:16]}" if hasattr(hashlib, "file_digest") \
            else f"{kind} {about.st_size} {hashlib.sha1(file.read()).hexdigest()[:16]}"


def as_user(command, user):
    if user is None or os.geteuid():
        return command
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--", *command]


def stacks(path):
    """Writes the stacks of every process of this rig to a file."""
    with open(path, "w") as file:
        for pid in tree(os.getpid()):
            if pid != os.getpid():
                file.write(f"== {pid} {state(pid)} {read(pid, 'cmdline').replace(chr(0), ' ')}\n")
                try:
                    file.writelines(stack_lines(pid))
                except (OSError, subprocess.TimeoutExpired) as error:
                    file.write(f"{error}\n")


def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}") as file:
            return file.read()
    except OSError:
        return ""


def stack_lines(pid):
    for task in sorted(os.listdir(f"/proc/{pid}/task")):
        for name in ("comm", "wchan", "syscall", "stack"):
            yield f"{task} {name}: {read(pid, f'task/{task}/{name}').strip()}\n"
    if shutil.which("gdb"):
        asked = ["gdb", "-p", str(pid), "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt"]
        yield subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout + "\n"
