#!/usr/bin/env python3
"""A virtual NIC as docs/format/vnic.md tells it, with nothing of Switchyard's code.

usage: vnic.py SOCKET arp OWN OTHER    asks for OTHER's card, and prints the answer's address
       vnic.py SOCKET forge            sends frames with another's address as their source
       vnic.py SOCKET break            says that it has read what was never written, and prints how the hub ends it
"""
import mmap, os, select, socket, struct, sys

LENGTH, SEGMENT = 17, 16
DESCRIPTORS_AT = 4096


class Vnic:
    def __init__(self, path):
        hub = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hub.connect(path)
        hub.send(struct.pack("<4sHBB24x32s", b"SWVN", 1, 1, 1, b"foreign"))
        answer, fds, _, _ = socket.recv_fds(hub, 64, 2)
        magic, version, granted, queues, self.mac, self.mtu, self.count, self.bytes = struct.unpack(
            "<4sHBB6sHII40x", answer
        )
        assert (magic, version, granted, queues) == (b"SWVN", 1, 0, 1), answer
        self.data_at = DESCRIPTORS_AT + (self.count * 8 + 4095) // 4096 * 4096
        self.lane = self.data_at + self.bytes
        self.memory = mmap.mmap(fds[0], 2 * self.lane)
        self.bell = socket.socket(fileno=fds[1])
        # Lane 0 comes from the hub, lane 1 leads to it.
        self.read, self.read_at, self.written, self.write_at = 0, 0, 0, 0

    def word(self, at, value=None):
        if value is None:
            return struct.unpack_from("<Q", self.memory, at)[0]
        struct.pack_into("<Q", self.memory, at, value)

    def send(self, frame):
        while self.written - self.word(self.lane) >= self.count // 2:
            pass
        for index, byte in enumerate(frame):
            self.memory[self.lane + self.data_at + (self.write_at + index) % self.bytes] = byte
        self.write_at += (len(frame) + 63) // 64 * 64
        mark = (self.written + 1) % (1 << 31)
        place = self.lane + DESCRIPTORS_AT + self.written % self.count * 8
        self.word(place, len(frame) | mark << (LENGTH + SEGMENT))
        self.written += 1
        self.bell.send(b"!")

    def receive(self):
        """The next frame, within ten seconds."""
        while True:
            self.word(64, 1)
            word = self.word(DESCRIPTORS_AT + self.read % self.count * 8)
            if word >> (LENGTH + SEGMENT) == (self.read + 1) % (1 << 31):
                break
            assert select.select([self.bell], [], [], 10)[0], "no frame comes"
            assert self.bell.recv(16), "the hub has gone"
        length = word % (1 << LENGTH)
        place = [self.data_at + (self.read_at + index) % self.bytes for index in range(length)]
        frame = bytes(self.memory[at] for at in place)
        self.read_at += (length + 63) // 64 * 64
        self.read += 1
        self.word(0, self.read)
        return frame


def main():
    nic, what = Vnic(sys.argv[1]), sys.argv[2]
    if what == "arp":
        own, other = (socket.inet_aton(text) for text in sys.argv[3:5])
        question = struct.pack(">HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, nic.mac, own, bytes(6), other)
        nic.send(b"\xff" * 6 + nic.mac + b"\x08\x06" + question)
        while True:
            frame = nic.receive()
            if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2" and frame[28:32] == other:
                assert frame[:6] == nic.mac
                print(":".join(f"{byte:02x}" for byte in frame[22:28]))
                return
    if what == "forge":
        for _ in range(3000):
            nic.send(b"\xff" * 6 + b"\2\0\0\0\0\1" + b"\x08\x06" + bytes(46))
        print("sent")
        sys.stdin.readline()
        return
    nic.word(nic.lane + DESCRIPTORS_AT, 1 << LENGTH + SEGMENT | 3)
    nic.bell.send(b"!")
    while nic.bell.recv(16):
        pass
    print("ended")


main()
