"""What goes wrong, drawn from a seed, and how it is done to a rig.

A plan is a list of faults with their times, places and lengths. Whether a fault that damages a disk is done is decided when its time has
come: only while every volume has all its copies, so that no promise is broken by losing all of them.
"""
import os
import random
import shutil
import signal
import time

# Name of a fault: its weight.
WEIGHTS = {
    "kill": 10, "stop": 8, "term": 2, "power": 4, "kill-all": 1.5, "kill-two": 3, "power-all": 1.5,
    "cut": 8, "isolate": 4, "noise": 8, "rate": 2,
    "tor-kill": 2, "tor-stop": 2,
    "gateway-kill": 4, "gateway-stop": 4, "gateway-term": 2, "gateway-cut": 2, "clients-cut": 2,
    "registry-full": 1, "registry-freeze": 1, "etcd-kill": 4, "etcd-stop": 4, "etcd-cut": 3,
    "full": 1.5, "freeze": 1.5, "empty": 3, "foreign": 1.5, "old": 3, "rot": 2,
}
ETCD = {"etcd-kill", "etcd-stop", "etcd-cut"}
DIRECTORY = {"registry-full", "registry-freeze"}
DAMAGE = {"empty", "foreign", "old", "rot"}
# Between a damaged disk's start and the next damage: the healing has seen it, though the volumes may look well before.
SEEN_S = 6
# Within the bound of the healing, copies are made after this.
REBUILD_MAX_S = 60


def length(rng, low, high):
    """Log-uniform: short times are as likely as long ones."""
    return low * (high / low) ** rng.random()


def draw(seed, seconds):
    """The rack of a seed."""
    rng = random.Random(f"rack {seed}")
    nodes = rng.choice((3, 4, 5))
    volumes = []
    for at in range(rng.choice((2, 3, 3))):
        replicas = rng.choices((1, 2, 3), (1, 6, 3))[0]
        volumes.append({"name": f"v{at}", "bytes": rng.randrange(4, 15) * 512 * 1024, "replicas": replicas, "durability": rng.choice(("memory", "memory", "media"))})
    if all(it["replicas"] == 1 for it in volumes):
        volumes[0]["replicas"] = 2
    return {
        "nodes": nodes, "volumes": volumes, "etcd": rng.random() < 0.3, "medium_mebi": 96, "mtu": rng.choice((1500, 9000, 9000)),
        "media_timeout_s": rng.choice((3, 5, 10)), "request_timeout_s": rng.choice((10, 30, 30)), "rebuild_after_s": rng.choice((5, 15, 60)),
        "reads": rng.choice(("fastest", "fastest", "first")), "absent_max": rng.choice((1, 1, 2, nodes)), "gap_s": rng.choice((1.5, 3, 5)),
        "clients": rng.choice((4, 6, 8)), "seconds": seconds,
    }


def plan(seed, rack, only=None):
    """[{at, kind, …}] for `rack["seconds"]` seconds."""
    rng = random.Random(f"faults {seed}")
    weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in (DIRECTORY if rack["etcd"] else ETCD)}
    # A few kinds of fault each time, so that their effects meet.
    chosen = [it for it in weights if rng.random() < 0.6] or list(weights)
    weights = {kind: weight for kind, weight in weights.items() if (kind in only if only else kind in chosen)}
    if not weights:
        return []
    at, faults = 1.0 + rng.random(), []
    while at < rack["seconds"]:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        nodes = [f"node{id}" for id in range(1, rack["nodes"] + 1)]
        parts = nodes + ["tor", "gateway1", "gateway2"]
        fault = {"at": round(at, 3), "kind": kind, "for": round(length(rng, 0.05, 20 if kind.endswith("stop") else 15), 3), "random": rng.randrange(1 << 30)}
        fault["target"] = rng.choice(nodes)
        if kind.startswith("etcd"):
            fault["target"] = f"etcd{rng.choice((1, 2, 3))}"
        elif kind.startswith("gateway"):
            fault["target"] = rng.choice(("lead", "lead", "gateway1", "gateway2"))
        elif kind in ("cut", "noise", "rate"):
            fault["pair"] = rng.sample(parts, 2) if kind != "noise" or rng.random() < 0.5 else ["*", rng.choice(parts + ["*"])]
            fault["ways"] = rng.choice((1, 2, 2))
        faults.append(fault)
        at += rng.expovariate(1 / rack["gap_s"])
    return faults


class Nemesis:
    def __init__(self, rig, faults, foreign):
        self.rig, self.faults, self.foreign = rig, list(faults), foreign
        self.began, self.due, self.spans = time.monotonic(), [], []
        self.busy, self.damaged, self.rotten, self.done, self.left_out = set(), {}, None, {}, 0

    def turn(self):
        now = time.monotonic() - self.began
        while self.faults and self.faults[0]["at"] <= now:
            self.begin(self.faults.pop(0))
        for when, what in sorted((it for it in self.due if it[0] <= now), key=lambda it: it[0]):
            self.due.remove((when, what))
            what()
        self.settle()

    def settle(self):
        """A disk that was damaged counts as whole again when the volumes have been whole for some time after."""
        for name, since in list(self.damaged.items()):
            if since is not None and self.rig.is_whole() and time.monotonic() - since > SEEN_S:
                del self.damaged[name]
                self.rig.note(f"{name} is whole again")

    def begin(self, fault):
        kind = fault["kind"]
        target = self.lead() if fault["target"] == "lead" else fault["target"]
        done = getattr(self, "do_" + kind.replace("-", "_"))(fault, target)
        if done is False:
            self.left_out += 1
        else:
            self.done[kind] = self.done.get(kind, 0) + 1
            now = time.monotonic_ns()
            self.spans.append((now, now + int(fault["for"] * 1e9), kind, target))

    def lead(self):
        records = self.rig.snapshots[-1].records
        # Of several gateways the one that serves the first volume.
        leads = [it["lead"] for it in records["volumes"] if it.get("lead", {}).get("gateway")]
        gateway = (leads or [records["lead"]])[0]["gateway"]
        return next((it for it in ("gateway1", "gateway2") if gateway.startswith(self.rig.ip(it) + ":")), "gateway1")

    def after(self, seconds, what):
        self.due.append((time.monotonic() - self.began + seconds, what))

    def claim(self, *names):
        """A part takes one fault of its process at a time, and not too many nodes are away at once. False if that is so."""
        away = {it for it in self.busy if it.startswith("node")} | {it for it in names if it.startswith("node")}
        if self.busy & set(names) or len(away) > max(self.rig.draw["absent_max"], sum(it.startswith("node") for it in names) if len(names) > 1 else 0):
            return False
        if self.rotten and any(it.startswith("node") for it in names):
            return False  # The rotten disk's pages may be the only ones then.
        self.busy |= set(names)
        return True

    def release(self, *names):
        self.busy -= set(names)

    # Processes.

    def restart_after(self, names, seconds):
        def again():
            for name in names:
                self.rig.parts[name].start()
            self.rig.note(f"start {' '.join(names)}")
            self.release(*names)
        self.after(seconds, again)

    def down(self, fault, names, why, sign=signal.SIGKILL, power=False):
        if not self.claim(*names):
            return False
        self.rig.note(f"{why} {' '.join(names)} for {fault['for']} s")
        if sign == signal.SIGTERM:
            for name in names:
                self.rig.parts[name].kill(why, sign, 40)
        else:
            # All at once: nobody is to notice another one's death.
            begin = time.monotonic_ns()
            for name in names:
                self.rig.parts[name].signal(signal.SIGKILL)
            for name in names:
                self.rig.parts[name].kill(why, begin=begin)
        if power:
            for name in names:
                self.rig.disks[name].cut()
        self.restart_after(names, fault["for"])
        return True

    def stand_still(self, fault, name):
        if not self.claim(name):
            return False
        self.rig.note(f"stop {name} for {fault['for']} s")
        self.rig.parts[name].signal(signal.SIGSTOP)

        def go_on():
            self.rig.parts[name].signal(signal.SIGCONT)
            self.rig.note(f"continue {name}")
            self.release(name)
        self.after(fault["for"], go_on)
        return True

    def nodes(self, fault, count):
        names = [f"node{id}" for id in self.rig.node_ids]
        return random.Random(fault["random"]).sample(names, min(count, len(names)))

    def do_kill(self, fault, target):
        return self.down(fault, [target], "kill")

    def do_term(self, fault, target):
        return self.down(fault, [target], "terminate", signal.SIGTERM)

    def do_power(self, fault, target):
        return self.down(fault, [target], "cut the power of", power=True)

    def do_kill_two(self, fault, target):
        return self.down(fault, self.nodes(fault, 2), "kill")

    def do_kill_all(self, fault, target):
        return self.down(fault, self.nodes(fault, 99), "kill")

    def do_power_all(self, fault, target):
        return self.down(fault, self.nodes(fault, 99), "cut the power of", power=True)

    def do_stop(self, fault, target):
        return self.stand_still(fault, target)

    def do_tor_kill(self, fault, target):
        return self.down(fault, ["tor"], "kill")

    def do_tor_stop(self, fault, target):
        return self.stand_still(fault, "tor")

    def do_gateway_kill(self, fault, target):
        return self.down(fault, [target], "kill")

    def do_gateway_term(self, fault, target):
        return self.down(fault, [target], "terminate", signal.SIGTERM)

    def do_gateway_stop(self, fault, target):
        return self.stand_still(fault, target)

    def do_etcd_kill(self, fault, target):
        return self.down(fault, [target], "kill")

    def do_etcd_stop(self, fault, target):
        return self.stand_still(fault, target)

    # The network.

    def rules(self, fault, text, rules):
        self.rig.note(f"{text} for {fault['for']} s")
        self.rig.rules.append(rules)
        self.rig.set_rules()

        def heal():
            self.rig.rules.remove(rules)
            self.rig.set_rules()
            self.rig.note(f"end of: {text}")
        self.after(fault["for"], heal)

    def pairs(self, one, other, ways=2):
        names = [it for it in self.rig.machines if it != "admin"]
        ones, others = (names if one == "*" else [one]), (names if other == "*" else [other])
        pairs = {(a, b) for a in ones for b in others if a != b}
        return pairs | ({(b, a) for a, b in pairs} if ways == 2 else set())

    def do_cut(self, fault, target):
        one, other = fault["pair"]
        if self.rotten:
            return False
        self.rules(fault, f"cut {one} {'<->' if fault['ways'] == 2 else '->'} {other}", [{"from": a, "to": b, "cut": True} for a, b in self.pairs(one, other, fault["ways"])])

    def cut_off(self, fault, name):
        rng = random.Random(fault["random"])
        way = rng.choice(("<->", "->", "<-"))
        if self.rotten:
            return False
        pairs = {(a, b) for a, b in self.pairs(name, "*") if way == "<->" or (a == name) == (way == "->")}
        self.rules(fault, f"cut {name} {way} everything", [{"from": a, "to": b, "cut": True} for a, b in pairs])

    def do_isolate(self, fault, target):
        return self.cut_off(fault, target)

    def do_gateway_cut(self, fault, target):
        return self.cut_off(fault, target)

    def do_etcd_cut(self, fault, target):
        return self.cut_off(fault, target)

    def do_clients_cut(self, fault, target):
        rng = random.Random(fault["random"])
        pairs = self.pairs(rng.choice(self.rig.clients), rng.choice(("gateway1", "gateway2")))
        self.rules(fault, f"cut {sorted(pairs)[0]}", [{"from": a, "to": b, "cut": True} for a, b in pairs])

    def do_noise(self, fault, target):
        rng = random.Random(fault["random"])
        rule = {}
        while not rule:
            for key, most in (("loss", 0.3), ("duplicate", 0.3), ("corrupt", 0.1), ("reorder", 0.3), ("delay_s", 0.05), ("jitter_s", 0.05)):
                if rng.random() < 0.4:
                    rule[key] = round(length(rng, most / 100, most), 5)
        one, other = fault["pair"]
        self.rules(fault, f"noise {one} <-> {other} {rule}", [dict(rule, **{"from": a, "to": b}) for a, b in self.pairs(one, other, fault["ways"])])

    def do_rate(self, fault, target):
        rate = int(length(random.Random(fault["random"]), 30_000, 2_000_000))
        one, other = fault["pair"]
        self.rules(fault, f"rate {rate} B/s {one} {other}", [{"from": a, "to": b, "rate": rate} for a, b in self.pairs(one, other, fault["ways"])])

    # The registry.

    def do_registry_full(self, fault, target):
        if not self.claim("registry"):
            return False
        self.rig.note(f"the registry's file system is full for {fault['for']} s")
        self.rig.disks["registry"].fill()

        def again():
            self.rig.disks["registry"].empty()
            self.rig.note("the registry's file system has room")
            self.release("registry")
        self.after(fault["for"], again)
        return True

    def freeze(self, fault, name):
        if not self.claim(name):
            return False
        self.rig.note(f"{name}'s file system stands still for {fault['for']} s")
        self.rig.disks[name].freeze()

        def again():
            self.rig.disks[name].thaw()
            self.rig.note(f"{name}'s file system goes on")
            self.release(name)
        self.after(fault["for"], again)
        return True

    def do_registry_freeze(self, fault, target):
        return self.freeze(fault, "registry")

    # Disks.

    def do_freeze(self, fault, target):
        return self.freeze(fault, target)

    def do_full(self, fault, target):
        if not self.claim(target):
            return False
        self.rig.note(f"{target}'s file system is full for {fault['for']} s")
        self.rig.disks[target].fill()

        def again():
            self.rig.disks[target].empty()
            self.rig.note(f"{target}'s file system has room")
            self.release(target)
        self.after(fault["for"], again)
        return True

    def may_damage(self, name):
        """True if every set has all its copies, and none of one copy is on the node."""
        if self.damaged or self.rotten or any(it.startswith("node") for it in self.busy) or not self.rig.is_whole() or name in self.busy:
            return False
        node = int(name[4:])
        sets = [part for volume in self.rig.snapshots[-1].records["volumes"] for part in volume["sets"]]
        return all(len(it["replicas"]) > 1 for it in sets if any(one["node"] == node for one in it["replicas"]))

    def swap_disk(self, name, why, change, seconds):
        """Kills a node, changes what is on its disk, and starts it again."""
        self.busy.add(name)
        self.damaged[name] = None
        self.rig.note(why)
        self.rig.parts[name].kill(why)
        change(f"{self.rig.work}/{name}/rack/node-{name[4:]}.img")

        def again():
            self.rig.parts[name].start()
            self.rig.note(f"start {name}")
            self.damaged[name] = time.monotonic()
            self.release(name)
        self.after(seconds, again)

    def do_empty(self, fault, target):
        if not self.may_damage(target):
            return False
        self.swap_disk(target, f"{target} gets an empty disk", os.unlink, min(fault["for"], 3))
        return True

    def do_foreign(self, fault, target):
        if not self.may_damage(target) or not self.foreign:
            return False
        self.swap_disk(target, f"{target} gets a disk of another rack", lambda path: shutil.copy(self.foreign, path), min(fault["for"], 3))

        def take_out():
            # A stranger's disk is left alone: an operator has to take it out.
            self.swap_disk(target, f"{target} gets an empty disk", os.unlink, 0)
        self.after(min(fault["for"], 3) + 4 + fault["for"] / 2, take_out)
        return True

    def do_old(self, fault, target):
        """The first time a copy of the disk is taken while its node is down; the next time it is put back."""
        if not self.may_damage(target):
            return False
        name, path = target, f"{self.rig.work}/{target}/rack/node-{target[4:]}.img"
        kept = f"{self.rig.work}/{name}.old"
        if not self.claim(name):
            return False
        self.rig.note(f"kill {name}, and keep a copy of its disk")
        self.rig.parts[name].kill("killed for a copy")
        shutil.copy(path, kept)
        self.restart_after([name], 0.1)

        def back():
            if not self.may_damage(name):
                self.left_out += 1
                return
            self.swap_disk(name, f"{name} gets its disk of the past", lambda path: shutil.copy(kept, path), 0.2)
        self.after(4 + fault["for"], back)
        return True

    def do_rot(self, fault, target):
        if not self.may_damage(target) or any(it.get("cut") for rules in self.rig.rules for it in rules):
            return False
        rng = random.Random(fault["random"])
        path = f"{self.rig.work}/{target}/rack/node-{target[4:]}.img"
        self.rotten = target
        down = rng.random() < 0.5
        if down:
            self.busy.add(target)
            self.rig.parts[target].kill("killed for bit rot")
        size = os.path.getsize(path)
        count = 0
        with open(path, "r+b", buffering=0) as file:
            for _ in range(4000):
                # The second half is data for the greater part; metadata rot as well.
                at = rng.randrange(size)
                file.seek(at)
                byte = file.read(1)
                if byte != b"\0":
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
                    count += 1
        self.rig.note(f"{count} bits of {target}'s disk rot, with the node {'down' if down else 'up'}")
        if down:
            self.restart_after([target], 0.2)
        return True

    # The end.

    def heal(self):
        """Ends every fault at once."""
        self.faults = []
        self.end_all()
        for disk in self.rig.disks.values():
            disk.thaw()
            disk.empty()
        self.rig.rules = []
        self.rig.set_rules()
        if self.rotten:
            self.swap_disk(self.rotten, f"{self.rotten} gets an empty disk instead of the rotten one", os.unlink, 0)
            self.end_all()
        if self.rig.draw["rebuild_after_s"] > REBUILD_MAX_S:
            # Now copies may be made.
            self.spans.append((time.monotonic_ns(), time.monotonic_ns() + 10**10, "gateway-kill", "both"))
            for part in (self.rig.parts["gateway1"], self.rig.parts["gateway2"]):
                part.kill("killed for another setting")
                part.command[part.command.index("--rebuild-after-s") + 1] = "5"
                part.start()
        for name in self.latched():
            self.rig.note(f"{name} is started again, as its medium has latched")
            self.rig.parts[name].kill("killed")
            self.rig.parts[name].start()

    def end_all(self):
        """What ends a fault may begin another step of it."""
        while self.due:
            self.due.sort(key=lambda it: it[0])
            self.due.pop(0)[1]()

    def latched(self):
        """Nodes whose medium has failed since their last start: an operator has to start these again."""
        found = []
        for id in self.rig.node_ids:
            name = f"node{id}"
            part = self.rig.parts[name]
            with open(part.err, errors="replace") as file:
                lines = file.read().splitlines()
            times = [self.rig.time_of(it.split()[0]) for it in lines if "medium-latched" in it or "medium-silent" in it]
            if times and part.lives and times[-1] > part.lives[-1][0]:
                found.append(name)
        return found
