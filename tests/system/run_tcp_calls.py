"""Calls on TCP sockets of many kinds. It prints what they come to, which has to be the same with any TCP.

    run_tcp_calls.py serve IP PORT         serves until it is told to end
    run_tcp_calls.py ask IP PORT           makes the calls
"""
import array, ctypes, errno, fcntl, hashlib, os, random, select, signal, socket, struct, sys, tempfile, termios, threading, time

role, ip, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def whole(conn, count):
    data = bytearray()
    while len(data) < count:
        more = conn.recv(min(count - len(data), 1 << 16))
        if not more:
            break
        data += more
    return bytes(data)


def pattern(count, seed):
    return random.Random(seed).randbytes(count)


def failing(call, *args):
    try:
        return repr(call(*args))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def serve_one(conn, listener):
    """The first line says what is wanted."""
    line = b""
    while not line.endswith(b"\n"):
        byte = conn.recv(1)
        if not byte:
            return True
        line += byte
    word, *rest = line.decode().split()
    if word == "echo":
        while data := conn.recv(1 << 16):
            conn.sendall(data)
    elif word == "sum":
        data = whole(conn, int(rest[0]))
        conn.sendall(hashlib.sha256(data).hexdigest().encode())
    elif word == "give":
        conn.sendall(pattern(int(rest[0]), 7))
    elif word == "slow":
        for part in pattern(int(rest[0]), 9), b"end":
            time.sleep(0.2)
            conn.sendall(part)
    elif word == "silent":
        time.sleep(float(rest[0]))
    elif word == "reset":
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif word == "names":
        conn.sendall(f"{conn.getpeername()[1]}".encode())
    elif word == "end":
        return False
    conn.close()
    return True


def serve():
    listener = socket.create_server((ip, port), backlog=64, reuse_port=False)
    print("ready", flush=True)
    goes_on = True
    threads = []

    def one(conn):
        nonlocal goes_on
        if not serve_one(conn, listener):
            goes_on = False
        conn.close()

    while goes_on:
        ready, _, _ = select.select([listener], [], [], 0.2)
        if ready:
            conn, _ = listener.accept()
            threads.append(threading.Thread(target=one, args=(conn,)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def connect(words):
    conn = socket.create_connection((ip, port))
    conn.sendall(words.encode() + b"\n")
    return conn


def part(name):
    print(f"· {name}", flush=True)


def asks_echo():
    part("echo of many sizes")
    conn = connect("echo")
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    for count in 1, 2, 100, 1447, 1448, 1449, 9000, 65535, 200000:
        data = pattern(count, count)
        sender = threading.Thread(target=conn.sendall, args=(data,))
        sender.start()
        print(count, whole(conn, count) == data)
        sender.join()
    conn.shutdown(socket.SHUT_WR)
    print(conn.recv(10))
    print(failing(conn.send, b"x"))
    conn.close()


def asks_bulk():
    part("bulk, and its sum")
    data = pattern(8 << 20, 3)
    conn = connect(f"sum {len(data)}")
    conn.sendall(data)
    print(whole(conn, 64).decode() == hashlib.sha256(data).hexdigest(), conn.recv(1))
    conn.close()
    conn = connect(f"give {4 << 20}")
    print(whole(conn, 4 << 20) == pattern(4 << 20, 7), conn.recv(1))
    conn.close()
    with tempfile.TemporaryFile() as file:
        file.write(data[:1000001])
        file.flush()
        conn = connect("sum 1000001")
        print(os.sendfile(conn.fileno(), file.fileno(), 0, 500000))
        file.seek(500000)
        left = 500001
        while left:
            left -= os.sendfile(conn.fileno(), file.fileno(), None, left)
        print(whole(conn, 64).decode() == hashlib.sha256(data[:1000001]).hexdigest(), file.tell())
        conn.close()


def asks_flags():
    part("flags of recv and send, vectors")
    conn = connect("slow 5000")
    print(failing(conn.recv, 10, socket.MSG_DONTWAIT))
    print(len(conn.recv(5003, socket.MSG_WAITALL)), conn.recv(1))
    conn.close()
    conn = connect("give 3000")
    conn.recv(1, socket.MSG_PEEK)
    time.sleep(0.3)
    first = conn.recv(100, socket.MSG_PEEK)
    count = array.array("i", [0])
    fcntl.ioctl(conn.fileno(), termios.FIONREAD, count)
    print(first == pattern(3000, 7)[:100], count[0])
    one, other = bytearray(50), bytearray(60)
    got = conn.recvmsg_into([one, other])
    print(got, bytes(one + other) == pattern(3000, 7)[:110])
    print(whole(conn, 4000) == pattern(3000, 7)[110:])
    conn.close()
    conn = connect("sum 9")
    print(conn.sendmsg([b"abc", b"", b"def"]), conn.send(b"ghi", socket.MSG_MORE | socket.MSG_NOSIGNAL))
    print(whole(conn, 64).decode() == hashlib.sha256(b"abcdefghi").hexdigest())
    print(os.read(conn.fileno(), 5), failing(conn.recv, 10))
    conn.close()
    conn = connect("sum 6")
    print(os.writev(conn.fileno(), [b"ab", b"cdef"]))
    place = bytearray(64)
    print(os.readv(conn.fileno(), [place]) > 0)
    conn.close()


def asks_nonblocking():
    part("connecting without waiting, refused, and errors")
    conn = socket.socket()
    conn.setblocking(False)
    print(errno.errorcode[conn.connect_ex((ip, port))])
    poller = select.poll()
    poller.register(conn, select.POLLOUT)
    print(poller.poll(5000)[0][1], conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    print([errno.errorcode.get(conn.connect_ex((ip, port)), 0) for _ in range(3)])
    print(failing(conn.recv, 10), conn.send(b"echo\nabc"))
    print(select.select([conn], [], [], 5)[0] == [conn], conn.recv(10))
    conn.close()
    print(failing(socket.socket().connect, (ip, port + 1)))
    conn = socket.socket()
    conn.setblocking(False)
    conn.connect_ex((ip, port + 1))
    poller = select.poll()
    poller.register(conn, select.POLLOUT)
    events = poller.poll(5000)[0][1]
    print(events & (select.POLLERR | select.POLLHUP | select.POLLOUT))
    print(errno.errorcode[conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
    conn.close()
    conn = socket.socket()
    print(failing(conn.recv, 1), failing(conn.getpeername), failing(conn.shutdown, socket.SHUT_RD))
    conn.close()
    conn = socket.create_connection((ip, port))
    print(conn.getpeername() == (ip, port), conn.getsockname()[1] > 0)
    conn.send(b"names\n")
    print(int(whole(conn, 10)) == conn.getsockname()[1])
    print(conn.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), conn.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    conn.close()


def asks_resets():
    part("resets, and writes that nobody reads")
    conn = connect("reset")
    print(failing(conn.recv, 10), failing(conn.recv, 10), failing(conn.send, b"x"))
    conn.close()
    conn = connect("names")
    whole(conn, 10)
    time.sleep(0.1)
    failing(conn.send, b"x")
    time.sleep(0.2)
    print(failing(conn.send, b"x") in ("EPIPE", "ECONNRESET"), failing(conn.send, b"x"))
    conn.close()
    count = []
    signal.signal(signal.SIGPIPE, lambda *_: count.append(1))
    conn = connect("names")
    whole(conn, 10)
    conn.shutdown(socket.SHUT_WR)
    print(failing(os.write, conn.fileno(), b"x"), failing(conn.send, b"x", socket.MSG_NOSIGNAL), count)
    conn.close()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def asks_epoll():
    part("epoll: level, edge, one shot, beside a pipe")
    reader, writer = os.pipe()
    conn = connect("echo")
    conn.setblocking(False)
    kinds = {conn.fileno(): "socket", reader: "pipe"}

    def told(epoll, wait):
        return sorted((kinds[fd], events) for fd, events in epoll.poll(wait))

    epoll = select.epoll()
    epoll.register(conn, select.EPOLLIN)
    epoll.register(reader, select.EPOLLIN)
    print(failing(epoll.register, conn, select.EPOLLIN), failing(epoll.unregister, 900))
    print(told(epoll, 0.05))
    conn.send(b"abc")
    print(told(epoll, 5), told(epoll, 5))
    os.write(writer, b"x")
    time.sleep(0.05)
    both = told(epoll, 5)
    if len(both) < 2:
        both = sorted(set(both + told(epoll, 5)))
    print(both)
    print(conn.recv(10), told(epoll, 5), os.read(reader, 5), told(epoll, 0.05))
    epoll.modify(conn, select.EPOLLIN | select.EPOLLOUT)
    print(told(epoll, 5))
    epoll.modify(conn, select.EPOLLIN | select.EPOLLET)
    conn.send(b"abc")
    print(told(epoll, 5), told(epoll, 0.05))
    conn.send(b"def")
    print(told(epoll, 5), whole_now(conn, 6))
    epoll.modify(conn, select.EPOLLIN | select.EPOLLONESHOT)
    conn.send(b"abc")
    print(told(epoll, 5), told(epoll, 0.05))
    epoll.modify(conn, select.EPOLLIN | select.EPOLLONESHOT)
    print(told(epoll, 5))
    epoll.unregister(conn)
    print(told(epoll, 0.05))
    epoll.register(conn, select.EPOLLIN | select.EPOLLRDHUP)
    whole_now(conn, 3)
    conn.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    print(told(epoll, 5))
    conn.close()
    print(told(epoll, 0.05))
    epoll.close()
    os.close(reader)
    os.close(writer)


def whole_now(conn, count):
    conn.setblocking(True)
    data = whole(conn, count)
    conn.setblocking(False)
    return data


def asks_poll():
    part("poll and select, beside a pipe, with limits of time")
    reader, writer = os.pipe()
    conn = connect("echo")
    begun = time.monotonic()
    print(select.select([conn, reader], [], [], 0.2), 0.15 < time.monotonic() - begun < 5)
    poller = select.poll()
    poller.register(conn, select.POLLIN)
    poller.register(reader, select.POLLIN)
    print(poller.poll(50))
    os.write(writer, b"x")
    print([fd == reader for fd, _ in poller.poll(5000)])
    os.read(reader, 1)
    threading.Timer(0.1, conn.send, (b"late",)).start()
    print([(fd == conn.fileno(), events) for fd, events in poller.poll(5000)])
    print(len(select.select([conn], [conn], [], 5)[1]), conn.recv(10))
    conn.settimeout(0.1)
    try:
        conn.recv(1)
    except TimeoutError:
        print("timeout")
    conn.settimeout(None)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100000))
    print(failing(conn.recv, 1))
    conn.close()
    conn = connect("silent 3")
    conn.settimeout(0.3)
    sent = 0
    try:
        while True:
            sent += conn.send(b"x" * 65536)
    except TimeoutError:
        print("full", sent > 65536)
    conn.close()


def asks_descriptors():
    part("duplicates, flags, and numbers")
    conn = connect("echo")
    number = conn.fileno()
    other = os.dup(number)
    third = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 50)
    print(other > number, third >= 50)
    conn.close()
    os.write(other, b"abc")
    print(os.read(third, 10))
    fresh = os.open("/dev/null", os.O_RDONLY)
    print(fresh == number)
    os.dup2(other, fresh)
    os.close(other)
    flags = fcntl.fcntl(fresh, fcntl.F_GETFL)
    fcntl.fcntl(fresh, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    print(flags & os.O_NONBLOCK, fcntl.fcntl(third, fcntl.F_GETFL) & os.O_NONBLOCK == os.O_NONBLOCK)
    print(failing(os.read, third, 1))
    fcntl.ioctl(third, termios.FIONBIO, array.array("i", [0]))
    os.write(fresh, b"def")
    print(os.read(third, 10))
    os.dup2(os.open("/dev/null", os.O_RDONLY), third)
    print(os.read(third, 10), failing(os.lseek, fresh, 0, 0))
    os.close(third)
    os.close(fresh)
    print(failing(os.read, fresh, 1))


def asks_signals():
    part("signals that end calls, and signals that do not")
    conn = connect("silent 2")
    libc = ctypes.CDLL(None, use_errno=True)
    count = []
    signal.signal(signal.SIGALRM, lambda *_: count.append(1))
    place = ctypes.create_string_buffer(10)

    def raw_recv():
        result = libc.recv(conn.fileno(), place, 10, 0)
        return result, errno.errorcode.get(ctypes.get_errno(), "") if result < 0 else ""

    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    print(raw_recv(), len(count))
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    print(raw_recv(), len(count))
    conn.close()
    conn = connect("silent 1")

    class Pollfd(ctypes.Structure):
        _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

    signal.setitimer(signal.ITIMER_REAL, 0.1)
    result = libc.poll(ctypes.byref(Pollfd(conn.fileno(), 1, 0)), 1, 5000)
    print(result, errno.errorcode[ctypes.get_errno()], len(count))
    conn.close()


def asks_threads():
    part("many threads")
    faults = []

    def one(number):
        conn = connect("echo")
        for turn in range(100):
            data = pattern(1 + (number * 37 + turn * 101) % 3000, turn)
            conn.sendall(data)
            if whole(conn, len(data)) != data:
                faults.append((number, turn))
        conn.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(faults)
    conn = connect("echo")
    got = []
    reader = threading.Thread(target=lambda: got.append(whole(conn, 300000)))
    reader.start()
    conn.sendall(pattern(300000, 5))
    reader.join()
    print(got == [pattern(300000, 5)])
    conn.close()


def asks_others():
    part("sockets of other kinds")
    one, other = socket.socketpair()
    one.send(b"abc")
    print(other.recv(5))
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    first.bind(("127.0.0.1", 0))
    second.sendto(b"def", first.getsockname())
    print(first.recv(5))
    listener = socket.create_server(("127.0.0.1", 0))
    conn = socket.create_connection(listener.getsockname())
    peer, address = listener.accept()
    print(address == conn.getsockname())
    conn.send(b"ghi")
    print(peer.recv(5))
    print(failing(socket.create_server, listener.getsockname()))


def main():
    for ask in (asks_echo, asks_bulk, asks_flags, asks_nonblocking, asks_resets, asks_epoll, asks_poll, asks_descriptors,
                asks_signals, asks_threads, asks_others):
        ask()
    connect("end").close()


serve() if role == "serve" else main()
