"""An NBD client: one connection, many requests at a time. Written after the NBD project's proto.md, and shares no code with Switchyard."""
import select
import socket
import struct

OPTION_MAGIC, OPTION_REPLY, REQUEST, SIMPLE = 0x49484156454F5054, 0x3E889045565A9, 0x25609513, 0x67446698
GO, ACK, INFO = 7, 1, 3
COMMANDS = {"read": 0, "write": 1, "flush": 3, "trim": 4, "zero": 6}
FUA = 1


class Gone(Exception):
    """The connection is of no more use."""


class Stream:
    """A socket that is read without waiting, and written with a limit."""

    def __init__(self, address, limit):
        try:
            self.socket = socket.create_connection(address, timeout=limit)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise Gone(f"connect: {error}") from error
        self.buffer = bytearray()

    def put(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Gone(f"send: {error}") from error

    def more(self, wait):
        """Reads what is there, after at most `wait` seconds. False if nothing came."""
        try:
            if not select.select([self.socket], [], [], wait)[0]:
                return False
            data = self.socket.recv(1 << 20)
        except OSError as error:
            raise Gone(f"receive: {error}") from error
        if not data:
            raise Gone("closed by the server")
        self.buffer += data
        return True

    def take(self, count, limit):
        while len(self.buffer) < count:
            if not self.more(limit):
                raise Gone("no answer while connecting")
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def close(self):
        self.socket.close()


class Nbd:
    def __init__(self, address, volume, limit=5.0):
        self.stream, self.lengths = Stream(address, limit), {}
        try:
            self.connect(volume, limit)
        except Gone:
            self.close()
            raise

    def connect(self, volume, limit):
        magic, option, _ = struct.unpack(">QQH", self.stream.take(18, limit))
        if (magic, option) != (0x4E42444D41474943, OPTION_MAGIC):
            raise Gone("not an NBD server")
        name = volume.encode()
        body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.stream.put(struct.pack(">I", 3) + struct.pack(">QII", OPTION_MAGIC, GO, len(body)) + body)
        while True:
            magic, _, kind, length = struct.unpack(">QIII", self.stream.take(20, limit))
            data = self.stream.take(length, limit)
            if magic != OPTION_REPLY or kind not in (ACK, INFO):
                raise Gone(f"refused: {kind:#x} {data[:80]!r}")
            if kind == ACK:
                return
            if data[:2] == b"\0\0":
                self.size = struct.unpack(">Q", data[2:10])[0]

    def submit(self, kind, cookie, offset=0, length=0, data=b"", fua=False):
        if kind == "read":
            self.lengths[cookie] = length
        self.stream.put(struct.pack(">IHHQQI", REQUEST, FUA if fua else 0, COMMANDS[kind], cookie, offset, length) + data)

    def poll(self, wait):
        """Answers that are there: (cookie, error or 0, data). Errors are numbers of the protocol."""
        self.stream.more(wait)
        buffer, answers = self.stream.buffer, []
        while len(buffer) >= 16:
            magic, error, cookie = struct.unpack_from(">IIQ", buffer)
            if magic != SIMPLE:
                raise Gone("out of step")
            length = 0 if error else self.lengths.get(cookie, 0)
            if len(buffer) < 16 + length:
                break
            answers.append((cookie, error, bytes(buffer[16:16 + length])))
            del buffer[:16 + length]
            self.lengths.pop(cookie, None)
        return answers

    def close(self):
        self.stream.close()
