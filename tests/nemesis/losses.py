"""When a set of copies lost its memory, by what was seen from outside: deaths of processes, the registry, and the nodes' logs.

A *holder* is a member that has all that was acknowledged: its process has lived since it told `replica-serving`, and it has been in the
registry's replicas since. A loss is permitted when a member dies, or is expelled, and no other holder is left. Where that is not known for
certain, the loss is permitted.
"""
import collections

from checker import Loss

PAGE_SECTORS = 8
# The log's time and ours are read one after the other; what is as close as this may have been the other way round.
FUZZ_NS = 50_000_000

Death = collections.namedtuple("Death", "node begin end why")
# The registry's records, which were stored after `before` and were there at `seen`.
Snapshot = collections.namedtuple("Snapshot", "before seen records")


class Memory:
    def __init__(self, deaths, serving, snapshots):
        self.deaths, self.snapshots = sorted(deaths, key=lambda it: it.begin), snapshots
        self.serving = collections.defaultdict(list)
        for vssd, at in serving:
            self.serving[vssd].append(at)
        self.expelled = collections.defaultdict(list)
        for old, new in zip(snapshots, snapshots[1:]):
            before, after = self.members(old.records), self.members(new.records)
            for key, members in before.items():
                for vssd in members.keys() - after.get(key, {}).keys():
                    self.expelled[vssd].append(new.seen)

    @staticmethod
    def members(records):
        """By (volume, index of the set): the node of each member's vSSD."""
        return {(volume["name"], at): {it["vssd"]: it["node"] for it in part["replicas"]}
                for volume in records["volumes"] for at, part in enumerate(volume["sets"])}

    def is_holder(self, vssd, node, begin, end):
        told = [it for it in self.serving[vssd] if it + FUZZ_NS < begin]
        if not told or any(told[-1] <= it + FUZZ_NS and it <= end for it in self.expelled[vssd]):
            return False
        return not any(it.node == node and it.end + FUZZ_NS >= told[-1] and it.begin <= end for it in self.deaths)

    def current(self, begin, end):
        """The snapshots that may have been the registry at some moment of this time."""
        for at, it in enumerate(self.snapshots):
            gone = self.snapshots[at + 1].seen if at + 1 < len(self.snapshots) else end
            if it.before <= end and gone >= begin:
                yield it

    def losses(self):
        """By volume."""
        found = collections.defaultdict(list)
        for death in self.deaths:
            keys = set()
            for snapshot in self.current(death.begin, death.end):
                for key, members in self.members(snapshot.records).items():
                    if death.node not in members.values() and not self.joins(snapshot.records, key, death.node):
                        continue
                    others = [(vssd, node) for vssd, node in members.items() if node != death.node]
                    if not any(self.is_holder(vssd, node, death.begin, death.end) for vssd, node in others):
                        keys.add((key, self.range(snapshot.records, key)))
            for key, (first, count) in keys:
                found[key[0]].append(Loss(first, count, death.begin, death.end, f"node {death.node}: {death.why}"))
        for old, new in zip(self.snapshots, self.snapshots[1:]):
            before, after = self.members(old.records), self.members(new.records)
            for key, members in after.items():
                gone = before.get(key, {}).keys() - members.keys()
                if gone and not any(self.is_holder(vssd, node, new.before, new.seen) for vssd, node in members.items()):
                    first, count = self.range(new.records, key)
                    found[key[0]].append(Loss(first, count, new.before, new.seen, f"vSSD {sorted(gone)} expelled"))
        return found

    @staticmethod
    def joins(records, key, node):
        volume = next(it for it in records["volumes"] if it["name"] == key[0])
        joining = volume["sets"][key[1]].get("joining")
        return joining is not None and joining["node"] == node

    @staticmethod
    def range(records, key):
        volume = next(it for it in records["volumes"] if it["name"] == key[0])
        first = sum(it["pages"] for it in volume["sets"][:key[1]]) * PAGE_SECTORS
        return first, volume["sets"][key[1]]["pages"] * PAGE_SECTORS
