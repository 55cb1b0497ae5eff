"""Judges what clients saw of a volume: each block of 512 bytes is a linearizable register that keeps what was made durable.

Input are the clients' requests with the times at which they were sent and answered, and the *losses*: spans of time in which
every replica of a set lost its memory. Between two losses the requests on a block are a *segment*. Within a segment a value is the
group of the write that wrote it and the reads that returned it. `f` is the earliest end in a group, `s` the latest start. Two groups
contradict each other if each would have to precede the other: f(u) < s(v) and f(v) < s(u) (Gibbons and Korach, 1997).

- A write that failed, was never answered, or was answered after a loss that came after its start, may happen at any time or never.
- A segment begins with a value that the loss left. The loss may leave every value that no durable write must follow. The first
  read decides which value it is, and all others must agree.
- Durable is a write that was acknowledged before an acknowledged flush began, and an acknowledged write with FUA or on a `media`
  volume. A flush counts for the segment in which it began.
- Zeros are not unique. A read of zeros must fit one of the groups that are zeros.
- After a loss that a read has proved, the next flush of each connection that was there before must fail, once. This holds
  while the gateway that acknowledged the lost write serves, as docs/rack.md says.

What is right is never reported. Where this file does not know, it permits.
"""
import bisect
import collections

NEVER = 1 << 62
ZERO = 0  # The value of a block that was never written, trimmed or zeroed.

# A request: kind is "write", "zero", "read" or "flush". `id` is the value that a write wrote; `blocks` are (first, count, id) of what a read
# returned. `end` is NEVER without an answer; `ok` says that the answer was a success. `connection` names one connection.
Request = collections.namedtuple("Request", "client connection kind first count id start end ok durable blocks gateway session")
# A set's memory was lost between `begin` and `end`.
Loss = collections.namedtuple("Loss", "first count begin end why")
Violation = collections.namedtuple("Violation", "kind block text begin end")


class Group:
    """A value with the operations on it in one segment."""

    __slots__ = ("id", "s", "f", "acked", "durable", "write")

    def __init__(self, id, s, f, acked=NEVER, durable=False, write=None):
        self.id, self.s, self.f, self.acked, self.durable, self.write = id, s, f, acked, durable, write

    def value(self):
        return ZERO if self.write and self.write.kind == "zero" else self.id


class Segment:
    """Of a block: from one loss to the next. The value that it began with is one of `left`."""

    def __init__(self, begin, end, left, flushed):
        self.begin, self.end, self.left, self.flushed = begin, end, left, flushed
        self.initial = Group(None, begin, begin, acked=begin)
        self.groups = {}
        self.zeros = []
        self.unclear = []  # Reads of zeros that several groups may have answered.

    def add_write(self, request):
        late = request.start < self.begin or request.end >= self.end or not request.ok
        group = Group(request.id, request.start, NEVER if late else request.end, NEVER if late else request.end, request.durable, request)
        if request.kind == "zero":
            self.zeros.append(group)
        else:
            self.groups[request.id] = group

    def read(self, id, start, end):
        """Takes a read into a group. Says what is wrong, or None."""
        group = self.groups.get(id)
        if id == ZERO:
            may = list(self.zeros)
            if ZERO in self.left and self.initial.id in (None, ZERO):
                may.append(self.initial)
            may = [it for it in may if (it is self.initial or it.write.start < end)]
            if len(may) > 1:
                self.unclear.append((may, start, end))
                return None
            group = may[0] if may else None
        elif group is None and id in self.left and self.initial.id in (None, id):
            group = self.initial
        if group is None:
            if id in self.left:
                return "a read returned one more of the values that a loss may have left, after another read had returned another one"
            return "a read returned a value that was not there any more"
        if group is self.initial:
            group.id = id
        elif group.write.start > end:
            return "a read returned a value before its write was sent"
        group.s, group.f = max(group.s, start), min(group.f, end)
        return None

    def every(self):
        yield self.initial
        yield from self.groups.values()
        yield from self.zeros

    def contradiction(self):
        """Two groups that must precede each other, or None."""
        ahead = sorted((it for it in self.every() if it.f < it.s), key=lambda it: it.f)
        for one, other in zip(ahead, ahead[1:]):
            # Sorted by f; the widest so far is looked at, as zones do not overlap until then.
            if other.f < one.s:
                return one, other
        begins = [it.f for it in ahead]
        for group in self.every():
            if group.f < group.s:
                continue
            at = bisect.bisect_left(begins, group.s) - 1
            if at >= 0 and group.f < ahead[at].s:
                return ahead[at], group
        for may, start, end in self.unclear:
            if not any(self.fits(group, start, end) for group in may):
                return may[0], may[-1]
        return None

    def fits(self, group, start, end):
        s, f = max(group.s, start), min(group.f, end)
        return not any(other.f < s and f < other.s for other in self.every() if other is not group)

    def is_durable(self, group):
        return group.acked < self.flushed or group.durable and group.acked < NEVER

    def survivors(self):
        """The values that a loss at the end of this segment may leave."""
        first = second = -1
        holder = None
        for group in self.every():
            if self.is_durable(group):
                if group.s > first:
                    first, second, holder = group.s, first, group
                else:
                    second = max(second, group.s)
        left = set()
        for group in self.every():
            # An unclear read of zeros may belong to any of its groups, so it buries none of them.
            if group.f < (second if group is holder else first):
                continue
            if group is self.initial and group.id is None:
                left |= self.left
            else:
                left.add(group.value())
        if not self.is_durable(self.initial) and self.begin >= first:
            left |= self.left
        return left

    def comes_at(self, found):
        """The earliest end of what left `found`, or None if several groups may have."""
        if found in self.groups:
            return self.groups[found].f
        return self.begin if (found != ZERO or not self.zeros) and found in self.left and self.initial.id in (None, found) else None

    def lost(self, found):
        """An acknowledged write of this segment that `found` must precede, which the next one begins with: it is lost."""
        f = self.comes_at(found)
        for group in self.every() if f is not None else ():
            if group.write and group.acked < NEVER and f < group.s and group.value() != found:
                return [group.write]
        return []

    def lost_meanwhile(self, before, found):
        """A write that was sent before the loss, acknowledged after it, and is not there afterwards: it is lost, too."""
        f = before.comes_at(found)
        for group in self.groups.values() if f is not None else ():
            write = group.write
            if write.ok and write.start < self.begin and write.end < self.end and f < write.start and write.end < self.initial.s:
                return [write]
        return []


class Volume:
    """The requests of one volume, and what is wrong with them."""

    def __init__(self, name, requests, losses, media=False):
        self.name, self.media = name, media
        self.requests = sorted(requests, key=lambda it: it.start)
        self.losses = sorted(losses, key=lambda it: it.begin)
        self.flushes = sorted(it.start for it in requests if it.kind == "flush" and it.ok)
        self.violations, self.judged, self.excused = [], 0, 0
        self.proofs = {}

    def check(self):
        blocks = collections.defaultdict(lambda: ([], []))
        known = {it.id: it for it in self.requests if it.kind == "write"}
        for request in self.requests:
            if request.kind in ("write", "zero"):
                if self.media and not request.durable:
                    request = request._replace(durable=True)
                for block in range(request.first, request.first + request.count):
                    blocks[block][0].append(request)
            elif request.kind == "read" and request.ok:
                for first, count, id in request.blocks:
                    if id != ZERO and (id not in known or known[id].start > request.end or not self.covers(known[id], first, count)):
                        self.report("invented", first, f"a read returned what was not written there: {id}", request.start, request.end)
                        continue
                    for block in range(first, first + count):
                        blocks[block][1].append((id, request.start, request.end))
        for block in sorted(blocks):
            self.check_block(block, *blocks[block])
        self.check_told()
        return self.violations

    @staticmethod
    def covers(write, first, count):
        return write.first <= first and first + count <= write.first + write.count

    def report(self, kind, block, text, begin, end):
        self.violations.append(Violation(kind, block, text, begin, end))

    def segments(self, block):
        """(begin, end, index of the loss before) of a block's segments."""
        begin, cause = -1, None
        for at, loss in enumerate(self.losses):
            if loss.first <= block < loss.first + loss.count:
                yield begin, loss.begin, cause
                begin, cause = max(begin, loss.end), at
        yield begin, NEVER, cause

    def flushed(self, begin, end):
        """Start of the last acknowledged flush that began within a segment, or -1."""
        at = bisect.bisect_left(self.flushes, end) - 1
        return self.flushes[at] if at >= 0 and self.flushes[at] > begin else -1

    def check_block(self, block, writes, reads):
        left, before, at_write, at_read, pending = {ZERO}, None, 0, 0, []
        for begin, end, cause in self.segments(block):
            segment = Segment(begin, end, left, self.flushed(begin, end))
            for request in pending:
                segment.add_write(request)
            while at_write < len(writes) and writes[at_write].start < end:
                segment.add_write(writes[at_write])
                if not writes[at_write].ok or writes[at_write].end >= end or writes[at_write].start < begin:
                    pending.append(writes[at_write])
                at_write += 1
            wrong = None
            while at_read < len(reads) and reads[at_read][1] < end:
                id, start, finish = reads[at_read]
                at_read += 1
                if start < begin or finish >= end:
                    self.excused += 1
                    continue
                self.judged += 1
                wrong = segment.read(id, start, finish)
                if wrong:
                    self.report("stale", block, f"{wrong} ({id})", start, finish)
                    break
            if wrong:
                return
            pair = segment.contradiction()
            if pair:
                self.report("order", block, f"values {pair[0].id} and {pair[1].id} must each come before the other",
                            min(it.f for it in pair), max(it.s for it in pair))
                return
            if before and cause is not None and segment.initial.id is not None:
                found, proofs = segment.initial.id, self.proofs.setdefault(cause, {})
                for lost in before.lost(found) + segment.lost_meanwhile(before, found):
                    proofs.setdefault(lost.id, (block, lost, found))
            pending = [it for it in pending if it.end >= end]
            left, before = segment.survivors(), segment

    def check_told(self):
        """A loss that was proved must have been told by the next flush of each connection that was there."""
        flushes, first = collections.defaultdict(list), {}
        for request in self.requests:
            first.setdefault(request.connection, request.start)
            if request.kind == "flush" and request.end < NEVER:
                flushes[request.connection].append(request)
        for cause, proofs in self.proofs.items():
            loss = self.losses[cause]
            for connection, begun in first.items():
                if begun >= loss.begin:
                    continue
                # In the order of their answers: requests that are under way together have no other one.
                heard = sorted((it for it in flushes[connection] if it.end > loss.begin), key=lambda it: it.end)
                failed = next((it.end for it in heard if not it.ok), NEVER)
                # A flush that succeeded, of a client that had not been told.
                heard = [it for it in heard if it.end < failed and it.start > loss.end]
                if heard:
                    self.check_connection(loss, proofs, heard)

    def check_connection(self, loss, proofs, heard):
        for block, write, found in proofs.values():
            after = loss.end if write.end == NEVER else max(loss.end, write.end)
            flush = next((it for it in heard if it.start > after), None)
            if flush and (write.gateway, write.session) == (flush.gateway, flush.session):
                self.report("untold", block, f"a flush of {flush.client} succeeded though write {write.id} of {write.client} was lost ({loss.why}); "
                            f"the block holds {found}", write.start, flush.end)
                return


def story(requests, block):
    """The requests on a block in order, for people."""
    lines = []
    for it in sorted(requests, key=lambda it: it.start):
        if it.kind == "flush":
            what = "flush"
        elif not it.first <= block < it.first + it.count:
            continue
        elif it.kind == "read":
            ids = [id for first, count, id in it.blocks or () if first <= block < first + count]
            what = f"read -> {ids[0] if ids else '?'}"
        else:
            what = f"{it.kind} {it.id}" + (" FUA" if it.durable else "")
        how = "no answer" if it.end == NEVER else ("ok" if it.ok else "failed")
        lines.append((it.start, f"{it.start / 1e9:.6f} to {it.end / 1e9 if it.end < NEVER else float('inf'):.6f}  {it.client:<12} {what} {how} at {it.gateway}"))
    return lines
