"""A rack of real processes, each in a network namespace of its own, joined by switch.py.

Everything is below one directory in memory: the nodes' directories are ext4 file systems of their own on loop devices, so that
the power can be cut, the file system fill up and writes stand still. The caller has network and mount namespaces of its own.
"""
import base64
import calendar
import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from losses import Death, Snapshot

HERE = os.path.dirname(os.path.abspath(__file__))
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, (2).to_bytes(4, sys.byteorder)
FREEZE, THAW = 0xC0045877, 0xC0045878
NETWORK, ADMIN = "10.99.0.", 254
READY_S = 30
LIBC = ctypes.CDLL(None, use_errno=True)


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


class Disk:
    """A file system of its own, on a loop device."""

    def __init__(self, rig, name, mebi):
        self.image, self.path, self.mounted, self.frozen = f"{rig.work}/{name}.disk", f"{rig.work}/{name}", False, False
        os.mkdir(self.path)
        run("truncate", "-s", f"{mebi}M", self.image)
        run("mkfs.ext4", "-q", "-F", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", self.image)
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", self.image, self.path)
        self.mounted = True

    def unmount(self):
        for _ in range(300):
            if subprocess.run(["umount", self.path], stderr=subprocess.DEVNULL).returncode == 0:
                self.mounted = False
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self.path} stays busy")

    def control(self, request, argument=0):
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, request, argument)
        finally:
            os.close(handle)

    def cut(self):
        """What was not synced is lost."""
        self.control(SHUTDOWN, NO_LOG_FLUSH)
        self.unmount()
        self.mount()

    def freeze(self):
        self.control(FREEZE)
        self.frozen = True

    def thaw(self):
        if self.frozen:
            self.control(THAW)
            self.frozen = False

    def fill(self):
        with open(self.path + "/filler", "ab", buffering=0) as file:
            for size in (1 << 20, 4096, 512):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def empty(self):
        if os.path.exists(self.path + "/filler"):
            os.unlink(self.path + "/filler")


class Part:
    """A process of the rack that is to run, or not."""

    def __init__(self, rig, name, command):
        self.rig, self.name, self.command = rig, name, command
        self.process, self.wanted, self.stopped, self.retry_at = None, False, False, 0
        self.out, self.err = f"{rig.logs}/{name}.out", f"{rig.logs}/{name}.err"
        self.lives = []  # [from, to] of each process, in ns
        self.note = rig.note

    def start(self):
        self.wanted = True
        if self.process is not None:
            return
        with open(self.out, "wb") as out, open(self.err, "ab") as err:
            environment = dict(os.environ, RUST_BACKTRACE="1")
            self.process = subprocess.Popen(["nsenter", f"--net=/run/netns/{self.name}"] + self.command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=environment, preexec_fn=die_with_parent, cwd=self.rig.work)
        self.lives.append([time.monotonic_ns(), None])

    def is_ready(self):
        return self.process is not None and self.process.poll() is None and os.path.getsize(self.out) > 0

    def is_up(self):
        return self.process is not None and self.process.poll() is None and not self.stopped

    def ended(self):
        self.lives[-1][1] = time.monotonic_ns()
        self.process, self.stopped = None, False

    def kill(self, why="killed", sign=signal.SIGKILL, limit=20, begin=None):
        """Ends the process, and keeps it down. Returns its exit code, None if there was none. `begin` is when it was killed already."""
        self.wanted = False
        if self.process is None:
            return None
        # A process that waits for a frozen file system cannot be killed.
        disk = self.rig.disks.get("registry" if self.name.startswith("gateway") else self.name)
        if disk:
            disk.thaw()
        begin = begin or time.monotonic_ns()
        if self.stopped and sign != signal.SIGKILL:
            self.signal(signal.SIGCONT)
        self.process.send_signal(sign)
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.rig.violation(f"{self.name} does not stop within {limit} s of SIGTERM")
            self.process.kill()
            code = self.process.wait(20)
        self.ended()
        self.rig.died(self.name, begin, time.monotonic_ns(), why)
        return code

    def signal(self, sign):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(sign)
            self.stopped = sign == signal.SIGSTOP or self.stopped and sign != signal.SIGCONT


class Rig:
    def __init__(self, options, work, draw):
        self.options, self.work, self.draw = options, work, draw
        self.logs = work + "/logs"
        os.makedirs(self.logs)
        self.started = time.monotonic_ns()
        self.wall = time.time_ns() - time.monotonic_ns()
        self.notes, self.violations, self.deaths, self.snapshots = [], [], [], []
        self.looked_at, self.text = time.monotonic_ns(), None
        self.node_ids = list(range(1, draw["nodes"] + 1))
        self.etcd = draw["etcd"]
        names = ["tor", "gateway1", "gateway2"] + [f"node{id}" for id in self.node_ids] + [f"etcd{at}" for at in (1, 2, 3) if self.etcd]
        self.clients = ["clients1", "clients2"]
        self.machines = names + self.clients + ["admin"]
        self.parts, self.disks, self.status, self.rules = {}, {}, None, []
        self.status_at, self.ending, self.supervised_at = 0, False, time.monotonic_ns()

    def ip(self, name):
        return NETWORK + str(ADMIN if name == "admin" else self.machines.index(name) + 1)

    def note(self, text):
        now = time.monotonic_ns()
        self.notes.append((now, text))
        if self.options.verbose:
            print(f"  {(now - self.started) / 1e9:8.3f}  {text}", flush=True)

    def violation(self, text):
        self.note("VIOLATION: " + text)
        self.violations.append(text)

    def died(self, name, begin, end, why):
        if name.startswith("node"):
            self.deaths.append(Death(int(name[4:]), begin, end, why))

    # Setting up.

    def wire(self):
        """Namespaces, TAP devices and addresses."""
        os.makedirs("/run/netns", exist_ok=True)
        self.switch = subprocess.Popen([sys.executable, HERE + "/switch.py"] + self.machines, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True, preexec_fn=die_with_parent)
        if self.switch.stdout.readline() != "ready\n":
            raise RuntimeError("no TAP devices here")
        mac = lambda name: f"02:00:00:00:00:{self.machines.index(name) + 1:02x}"
        for name in self.machines:
            inside = []
            if name != "admin":
                run("ip", "netns", "add", name)
                run("ip", "link", "set", f"tap-{name}", "netns", name)
                inside = ["-n", name]
            lines = [f"link set tap-{name} address {mac(name)}", f"link set tap-{name} mtu {self.draw['mtu']}", f"addr add {self.ip(name)}/24 dev tap-{name}",
                     f"link set tap-{name} up", "link set lo up"]
            lines += [f"neigh replace {self.ip(it)} lladdr {mac(it)} dev tap-{name} nud permanent" for it in self.machines if it != name]
            run("ip", *inside, "-batch", "-", input="\n".join(lines) + "\n")

    def build(self):
        size = self.draw["medium_mebi"]
        self.disks["registry"] = Disk(self, "registry", 16)
        binary, tor = self.options.switchyard, f"{self.ip('tor')}:8888"
        self.parts["tor"] = Part(self, "tor", [binary, "tor", "--listen", tor, "--control", f"{self.ip('tor')}:9180", "--json"])
        for id in self.node_ids:
            name = f"node{id}"
            self.disks[name] = Disk(self, name, size + size // 8 + 16)
            self.parts[name] = Part(self, name, [
                binary, "node", "--id", str(id), "--listen", f"{self.ip(name)}:8888", "--tor", tor, "--dir", f"{self.work}/{name}/rack", "--size",
                f"{size}MiB", "--pool", "64MiB", "--control", f"{self.ip(name)}:9180", "--media-timeout-s", str(self.draw["media_timeout_s"]), "--json"])
        registry = f"{self.work}/registry/shared"
        if self.etcd:
            registry = "etcd://" + ",".join(f"{self.ip(f'etcd{at}')}:2379" for at in (1, 2, 3)) + "/rack"
            self.build_etcd()
        self.registry = registry
        for at in (1, 2):
            name = f"gateway{at}"
            nodes = [it for id in self.node_ids for it in ("--node", f"{id}={self.ip(f'node{id}')}:8888")]
            self.parts[name] = Part(self, name, [
                binary, "gateway", "--listen", f"{self.ip(name)}:8888", "--tor", tor, *nodes, "--dir", f"{self.work}/registry/{name}", "--registry", registry,
                "--nbd", f"{self.ip(name)}:10809", "--nvme", f"{self.ip(name)}:4420", "--control", f"{self.ip(name)}:9180", "--request-timeout-s",
                str(self.draw["request_timeout_s"]), "--rebuild-after-s", str(self.draw["rebuild_after_s"]), "--reads", self.draw["reads"], "--json"])

    def build_etcd(self):
        cluster = ",".join(f"m{at}=http://{self.ip(f'etcd{at}')}:2380" for at in (1, 2, 3))
        for at in (1, 2, 3):
            ip = self.ip(f"etcd{at}")
            self.parts[f"etcd{at}"] = Part(self, f"etcd{at}", [
                "etcd", "--name", f"m{at}", "--data-dir", f"{self.work}/etcd{at}", "--logger", "zap", "--log-level", "error", "--listen-client-urls",
                f"http://{ip}:2379", "--advertise-client-urls", f"http://{ip}:2379", "--listen-peer-urls", f"http://{ip}:2380",
                "--initial-advertise-peer-urls", f"http://{ip}:2380", "--initial-cluster", cluster])

    def start(self):
        self.wire()
        self.build()
        for name in [it for it in self.parts if it.startswith("etcd")]:
            self.parts[name].start()
        for name in ["tor"] + [f"node{id}" for id in self.node_ids]:
            self.parts[name].start()
        self.await_ready(["tor"] + [f"node{id}" for id in self.node_ids])
        for name in ("gateway1", "gateway2"):
            self.parts[name].start()
            self.await_ready([name])
        for volume in self.draw["volumes"]:
            self.cli("volume", "create", volume["name"], "--size", str(volume["bytes"]), "--replicas", str(volume["replicas"]), "--durability",
                     volume["durability"], gateway=1)
        self.look()
        threading.Thread(target=self.watch, daemon=True).start()

    def await_ready(self, names):
        until = time.monotonic() + READY_S
        while not all(self.parts[it].is_ready() for it in names):
            self.supervise()
            if time.monotonic() > until:
                raise RuntimeError(f"not ready: {[it for it in names if not self.parts[it].is_ready()]}")
            time.sleep(0.02)

    def cli(self, *command, gateway):
        return run(self.options.switchyard, *command, "--control", f"http://{self.ip(f'gateway{gateway}')}:9180", timeout=60)

    # Looking on.

    def look(self):
        """Reads the registry if it has changed."""
        before = self.looked_at
        now = time.monotonic_ns()
        try:
            text = self.registry_text()
        except (OSError, ValueError, KeyError):
            return
        self.looked_at = now
        if text == self.text or not text:
            return
        try:
            records = json.loads(text.split("\n", 1)[1])
        except (ValueError, IndexError):
            return
        self.text = text
        self.snapshots.append(Snapshot(before, time.monotonic_ns(), records))

    def registry_text(self):
        if not self.etcd:
            with open(self.registry + "/registry.json") as file:
                return file.read()
        for at in (1, 2, 3):
            # The member's own copy: a member that is cut off must not hold us up. Stale ones are older, so known.
            body = json.dumps({"key": base64.b64encode(b"/rack/registry").decode()}).encode()
            request = urllib.request.Request(f"http://{self.ip(f'etcd{at}')}:2379/v3/kv/range", body)
            try:
                if not self.parts[f"etcd{at}"].is_up():
                    continue
                with urllib.request.urlopen(request, timeout=0.3) as answer:
                    return base64.b64decode(json.load(answer)["kvs"][0]["value"]).decode()
            except (OSError, KeyError):
                continue
        return None

    def watch(self):
        """A thread that keeps the last answer of the gateways: of each volume, that of the one that serves it."""
        while not self.ending:
            told = {}
            for at in (1, 2):
                try:
                    with urllib.request.urlopen(f"http://{self.ip(f'gateway{at}')}:9180/v1/status", timeout=1.5) as answer:
                        told[at] = json.load(answer)
                except (OSError, ValueError):
                    continue
            served = {it["id"]: (at, it) for at, status in told.items() for it in status["volumes"] if it["state"] != "elsewhere"}
            if served:
                self.status_of = min(at for at, _ in served.values())
                status = told[self.status_of]
                status["volumes"] = [served.get(it["id"], (0, it))[1] for it in status["volumes"]]
                self.status, self.status_at = status, time.monotonic()
            time.sleep(0.4)

    def is_whole(self):
        """Every volume has all its copies, and every node answers, by fresh answers of the gateways and by the registry."""
        if self.status is None or time.monotonic() - self.status_at > 2.5 or not self.snapshots:
            return False
        sets = [part for volume in self.snapshots[-1].records["volumes"] for part in volume["sets"]]
        if any(it.get(key) for it in sets for key in ("joining", "expelling", "leaving")) or any(it.get("copies", 0) > len(it["replicas"]) for it in sets):
            return False
        return all(it["state"] == "ready" for it in self.status["volumes"]) and all(it["answers"] for it in self.status["nodes"])

    def supervise(self):
        """Starts what ended by itself, and says so."""
        begun = time.monotonic_ns()
        for part in self.parts.values():
            if part.process is not None and part.process.poll() is not None:
                code = part.process.poll()
                part.ended()
                self.died(part.name, self.supervised_at, time.monotonic_ns(), f"ended by itself with {code}")
                words = self.last_words(part)
                self.note(f"{part.name} ended with {code}: {words}")
                if code < 0 or code == 101 or "panicked" in words:
                    self.violation(f"{part.name} crashed with {code}: {words}")
                part.retry_at = time.monotonic() + 1
            if part.wanted and part.process is None and time.monotonic() >= part.retry_at:
                part.start()
        self.supervised_at = begun

    @staticmethod
    def last_words(part, count=3):
        with open(part.err, "rb") as file:
            file.seek(max(0, os.path.getsize(part.err) - 4000))
            lines = [it for it in file.read().decode(errors="replace").splitlines() if it.strip()]
        panics = [at for at, it in enumerate(lines) if "panicked" in it]
        return " | ".join(lines[panics[-1]:panics[-1] + 3] if panics else lines[-count:])

    def serving(self):
        """(vSSD, ns) of each `replica-serving` that nodes logged."""
        found = []
        for id in self.node_ids:
            with open(f"{self.logs}/node{id}.err", errors="replace") as file:
                for line in file:
                    match = re.match(r"(\S+Z) +INFO +\S+ +replica-serving: vSSD (\d+) ", line)
                    if match:
                        found.append((int(match.group(2)), self.time_of(match.group(1))))
        return found

    def time_of(self, text):
        seconds, part = text.rstrip("Z").split(".")
        return calendar.timegm(time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")) * 10**9 + int(part.ljust(9, "0")) - self.wall

    def set_rules(self):
        self.switch.stdin.write(json.dumps([it for rules in self.rules for it in rules]) + "\n")
        self.switch.stdin.flush()

    # Ending.

    def keep_state(self, when):
        """What each part of the rack says of itself: events, metrics and status."""
        for name, part in self.parts.items():
            if not part.is_up() or name.startswith("etcd"):
                continue
            for path, kind in (("v1/events?since=0", "events"), ("metrics", "metrics"), ("v1/status", "status")):
                try:
                    with urllib.request.urlopen(f"http://{self.ip(name)}:9180/{path}", timeout=2) as answer:
                        text = answer.read()
                except OSError:
                    continue
                with open(f"{self.logs}/{name}.{kind}-{when}.txt", "wb") as file:
                    file.write(text)

    def close(self):
        self.ending = True
        for disk in self.disks.values():
            disk.thaw()
        for part in self.parts.values():
            if part.process is not None:
                part.process.kill()
                part.process.wait(20)
        if hasattr(self, "switch"):
            self.switch.kill()
            self.switch.wait()
        for disk in self.disks.values():
            if disk.mounted:
                subprocess.run(["umount", disk.path])
        for name in self.machines[:-1]:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)
