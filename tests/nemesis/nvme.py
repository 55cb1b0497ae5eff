"""An NVMe/TCP host: one controller with one I/O queue, many commands at a time.

Written after NVMe Base 2.0, NVM Command Set 1.0 and NVMe/TCP Transport 1.0, and shares no code with Switchyard.
"""
import struct
import uuid

from nbd import Gone, Stream

IC_REQ, IC_RESP, CAPSULE, RESPONSE, H2C, C2H, R2T = 0, 1, 4, 5, 6, 7, 9
LAST, SUCCESS = 4, 8
FABRICS, FLUSH, WRITE, READ, ZEROES, DATASET = 0x7F, 0, 1, 2, 8, 9
ENTRIES = 64
IN_CAPSULE = 8192
SECTOR = 512
NQN = "nqn.2026-11.io.switchyard:"


class Queue:
    """One connection: commands out, completions and data in."""

    def __init__(self, address, limit):
        self.stream = Stream(address, limit)
        # Transport 1.0 §3.6.2.2: no digests, one R2T at a time.
        self.stream.put(struct.pack("<BBBBIHBBI112x", IC_REQ, 0, 128, 0, 128, 0, 0, 0, 0))
        head = self.stream.take(128, limit)
        if head[0] != IC_RESP:
            raise Gone("no ICResp")
        self.data_max = struct.unpack_from("<I", head, 12)[0]
        self.out, self.data, self.entries = {}, {}, {}

    def command(self, id, opcode, namespace=0, dwords=(), data=b"", length=0, fabrics=None):
        """Sends a command whose data goes out in its capsule or after an R2T; `length` is what comes back."""
        inline = len(data) <= IN_CAPSULE
        if data and inline:
            sgl = struct.pack("<QIBBBB", 0, len(data), 0, 0, 0, 0x01)
        elif data or length:
            sgl = struct.pack("<QIBBBB", 0, len(data) or length, 0, 0, 0, 0x5A)
        else:
            sgl = bytes(16)
        entry = bytearray(64)
        struct.pack_into("<BBHI", entry, 0, opcode, 0x40, id, namespace)
        entry[24:40] = sgl
        if fabrics is not None:
            entry[4] = fabrics[0]
            entry[40:40 + len(fabrics[1])] = fabrics[1]
        for at, value in dwords:
            struct.pack_into("<I", entry, at * 4, value)
        inside = data if inline else b""
        offset = 72 if inside else 0
        self.stream.put(struct.pack("<BBBBI", CAPSULE, 0, 72, offset, 72 + len(inside)) + bytes(entry) + inside)
        if data and not inline:
            self.out[id] = data
        if length:
            self.data[id] = bytearray(length)

    def poll(self, wait):
        """Completions that are there: (id, status without the phase bit, data, result)."""
        self.stream.more(wait)
        buffer, done = self.stream.buffer, []
        while len(buffer) >= 8:
            kind, flags, _, offset, length = struct.unpack_from("<BBBBI", buffer)
            if length < 8:
                raise Gone("out of step")
            if len(buffer) < length:
                break
            pdu = bytes(buffer[:length])
            del buffer[:length]
            if kind == RESPONSE:
                result, _, _, id, status = struct.unpack_from("<QHHHH", pdu, 8)
                self.out.pop(id, None)
                done.append((id, status >> 1, bytes(self.data.pop(id, b"")), result))
            elif kind == C2H:
                id, _, at, count = struct.unpack_from("<HHII", pdu, 8)
                if id not in self.data or at + count > len(self.data[id]) or offset + count > length:
                    raise Gone("data of nothing")
                self.data[id][at:at + count] = pdu[offset:offset + count]
                if flags & SUCCESS:
                    done.append((id, 0, bytes(self.data.pop(id)), 0))
            elif kind == R2T:
                id, tag, at, count = struct.unpack_from("<HHII", pdu, 8)
                self.send_data(id, tag, at, count)
            else:
                raise Gone(f"PDU of type {kind}")
        return done

    def send_data(self, id, tag, at, count):
        data, end = self.out[id], at + count
        while at < end:
            part = min(end - at, self.data_max or count)
            last = LAST if at + part == end else 0
            self.stream.put(struct.pack("<BBBBIHHII4x", H2C, last, 24, 24, 24 + part, id, tag, at, part) + data[at:at + part])
            at += part

    def one(self, limit):
        done = []
        while not done:
            if not self.stream.buffer and False:
                break
            done = self.poll(limit)
            if not done and not self.stream.buffer:
                raise Gone("no answer while connecting")
        return done[0]

    def connect(self, id, entries, controller, volume, host, limit):
        """Fabrics §3.3: the Connect command. Returns the controller's id."""
        data = bytearray(1024)
        data[0:16] = uuid.uuid5(uuid.NAMESPACE_OID, host).bytes
        struct.pack_into("<H", data, 16, controller)
        for at, text in ((256, NQN + volume), (512, "nqn.2014-08.org.nvmexpress:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_OID, host)))):
            data[at:at + len(text)] = text.encode()
        self.command(0, FABRICS, data=bytes(data), fabrics=(1, struct.pack("<HHHBBI", 0, id, entries - 1, 0, 0, 0)))
        _, status, _, result = self.one(limit)
        if status:
            raise Gone(f"connect: status {status:#x}")
        return result & 0xFFFF


class Nvme:
    def __init__(self, address, volume, host, limit=5.0):
        self.admin = self.queue = None
        try:
            self.admin = Queue(address, limit)
            controller = self.admin.connect(0, 32, 0xFFFF, volume, host, limit)
            # Base §3.1.3.5: 64 and 16 byte entries, enabled.
            self.admin.command(1, FABRICS, fabrics=(0, struct.pack("<B3xIQ", 0, 0x14, 0x00460001)))
            if self.admin.one(limit)[1]:
                raise Gone("the controller cannot be enabled")
            # Identify the namespace: its size, and whether it is there.
            self.admin.command(2, 6, namespace=1, dwords=((10, 0),), length=4096)
            _, status, data, _ = self.admin.one(limit)
            if status:
                raise Gone(f"identify: status {status:#x}")
            self.size = struct.unpack_from("<Q", data)[0] * SECTOR
            self.queue = Queue(address, limit)
            self.queue.connect(1, ENTRIES, controller, volume, host, limit)
        except Gone:
            self.close()
            raise

    def submit(self, kind, cookie, offset=0, length=0, data=b"", fua=False):
        first, count = offset // SECTOR, max(length // SECTOR, 1) - 1
        place = ((10, first & 0xFFFFFFFF), (11, first >> 32), (12, count | (1 << 30 if fua else 0)))
        if kind == "flush":
            self.queue.command(cookie, FLUSH, namespace=1)
        elif kind == "read":
            self.queue.command(cookie, READ, namespace=1, dwords=place, length=length)
        elif kind == "write":
            self.queue.command(cookie, WRITE, namespace=1, dwords=place, data=data)
        elif kind == "zero":
            self.queue.command(cookie, ZEROES, namespace=1, dwords=place)
        else:
            ranges = struct.pack("<IIQ", 0, length // SECTOR, first)
            self.queue.command(cookie, DATASET, namespace=1, dwords=((10, 0), (11, 4)), data=ranges)

    def poll(self, wait):
        return [(id, status, data) for id, status, data, _ in self.queue.poll(wait)]

    def close(self):
        for queue in (self.queue, self.admin):
            if queue is not None:
                queue.stream.close()
