#!/bin/bash
# `switchyard run --tcp`: unmodified programs on a hub: calls of all kinds as on the kernel's TCP, real programs, forks, the kernel behind a TAP device, a peer
# that is killed, and a hub that ends.
source "$(dirname "$0")/lib.sh"
need gcc redis-server redis-cli redis-benchmark curl python3 jq ip ss
(( EUID == 0 )) || skip "a TAP device needs root"
[[ -e /dev/net/tun ]] || skip "this kernel has no TAP"
if [[ -z ${OWN_NETWORK-} ]]; then
    OWN_NETWORK=yes exec unshare -n bash "$0" "$@"
fi
ip link set lo up

socket="$work/hub.sock"
python=$(python3 -c 'import sys; print(sys.executable)')
# on N COMMAND…: runs it at 10.9.0.N.
on() { "$SWITCHYARD" run --tcp "$socket" --address "10.9.0.$1/24" -- "${@:2}"; }
# as N COMMAND…: the shell becomes it. Behind `&` the process is the program, and no shell that waits for the program.
as() { exec "$SWITCHYARD" run --tcp "$socket" --address "10.9.0.$1/24" -- "${@:2}"; }
# await_text FILE TEXT: waits until the file has it.
await_text() {
    local i
    for (( i = 0; i < 200; i++ )); do
        grep -q -- "$2" "$1" 2>/dev/null && return
        sleep 0.05
    done
    fail "$1 does not say $2: $(tail -5 "$1")"
}
# at_end_kill PID: it does not outlive the test.
at_end_kill() { at_end "kill -9 $1 2>/dev/null; wait $1 2>/dev/null"; }

echo "· without a hub, and with a wrong address, the program is not started"
code=0; on 2 touch "$work/started" 2>"$work/none.err" || code=$?
(( code == 3 )) || fail "without a hub run ends with $code"
grep -q "switchyard tcp serve" "$work/none.err" || fail "nothing says how to start a hub: $(<"$work/none.err")"
[[ ! -e $work/started ]] || fail "the program was started"
code=0; "$SWITCHYARD" run --tcp "$socket" --address 127.0.0.1/8 -- true 2>/dev/null || code=$?
(( code == 2 )) || fail "a wrong address ends with $code"
code=0; "$SWITCHYARD" run --tcp -- true 2>/dev/null || code=$?
(( code == 2 )) || fail "no address ends with $code"

"$SWITCHYARD" tcp serve --socket "$socket" --json --tap sw0 >"$work/hub.json" 2>"$work/hub.err" &
rack_pid=$!
await_line "$work/hub.json" "$rack_pid" || fail "the hub did not become ready"
ip addr add 10.9.0.1/24 dev sw0

echo "· calls of all kinds come to what they come to with the kernel's TCP"
calls() { "$python" "$here/run_tcp_calls.py" "$@"; }
# serve_calls NAME IP PORT COMMAND…
serve_calls() {
    "${@:4}" "$python" "$here/run_tcp_calls.py" serve "$2" "$3" >"$work/$1.served" 2>"$work/$1.served.err" &
    at_end_kill $!
    await_text "$work/$1.served" ready
}
serve_calls kernel 127.0.0.1 7000
serve_calls ours 10.9.0.10 7000 on 10
serve_calls uplink 10.9.0.12 7000 on 12
serve_calls reverse 10.9.0.1 7000
gcc -O1 -Wall -o "$work/few" "$here/run_tcp_calls.c" || fail "the program of calls does not build"
timeout 20 "$work/few" 127.0.0.1 7000 >"$work/few.kernel" 2>&1 || fail "the program of calls fails: $(<"$work/few.kernel")"
on 11 timeout 20 "$work/few" 10.9.0.10 7000 >"$work/few.ours" 2>&1 || fail "the program of calls fails: $(<"$work/few.ours")"
diff "$work/few.kernel" "$work/few.ours" >"$work/difference" || fail "sockets that the kernel has: $(<"$work/difference")"
calls ask 127.0.0.1 7000 >"$work/kernel" 2>"$work/kernel.err" & asked=($!)
on 11 "$python" "$here/run_tcp_calls.py" ask 10.9.0.10 7000 >"$work/ours" 2>"$work/ours.err" & asked+=($!)
calls ask 10.9.0.12 7000 >"$work/uplink" 2>"$work/uplink.err" & asked+=($!)
on 13 "$python" "$here/run_tcp_calls.py" ask 10.9.0.1 7000 >"$work/reverse" 2>"$work/reverse.err" & asked+=($!)
for pid in "${asked[@]}"; do at_end_kill "$pid"; done
for pid in "${asked[@]}"; do wait "$pid" || fail "a program of calls fails"; done
for side in ours uplink reverse; do
    diff "$work/kernel" "$work/$side" >"$work/difference" || fail "$side: $(<"$work/difference")"
    [[ ! -s $work/$side.err && ! -s $work/$side.served.err ]] || fail "$side is told something: $(cat "$work/$side"*.err)"
done

echo "· redis: ours, through the uplink, and at the kernel's own addresses"
mkdir "$work/redis"
as 2 redis-server --port 6400 --protected-mode no --save "" --dir "$work/redis" --bind 0.0.0.0 >"$work/redis.log" 2>"$work/redis.err" &
redis=$!
at_end_kill "$redis"
await_text "$work/redis.log" "Ready to accept"
for n in {1..200}; do echo "SET key:$n value-$n"; echo "LPUSH list $n"; echo "GET key:$n"; done >"$work/commands"
{ cat "$work/commands"; echo "LRANGE list 0 -1"; } | on 3 redis-cli -h 10.9.0.2 -p 6400 >"$work/redis.ours"
redis-cli -p 6400 flushall >/dev/null
{ cat "$work/commands"; echo "LRANGE list 0 -1"; } | redis-cli -h 10.9.0.2 -p 6400 >"$work/redis.uplink"
redis-cli -p 6400 flushall >/dev/null
{ cat "$work/commands"; echo "LRANGE list 0 -1"; } | redis-cli -p 6400 >"$work/redis.kernel"
[[ $(wc -l <"$work/redis.kernel") -ge 800 ]] || fail "redis answers little"
cmp "$work/redis.ours" "$work/redis.kernel" || fail "redis answers otherwise"
cmp "$work/redis.uplink" "$work/redis.kernel" || fail "redis answers otherwise through the uplink"
on 3 redis-benchmark -h 10.9.0.2 -p 6400 -t set,get,lrange_100,mset -n 2000 -c 20 -P 4 -q >"$work/benchmark" 2>"$work/benchmark.err" || fail "redis-benchmark fails"
[[ $(tr '\r' '\n' <"$work/benchmark" | grep -c "requests per second") -ge 4 ]] || fail "redis-benchmark: $(<"$work/benchmark")"
echo "  · a fork of the server (BGSAVE) keeps its connections"
(echo "BGSAVE"; for n in {1..50}; do echo "GET key:$n"; sleep 0.01; done) | on 3 redis-cli -h 10.9.0.2 -p 6400 >"$work/bgsave"
grep -q "Background saving started" "$work/bgsave" || fail "no background saving: $(<"$work/bgsave")"
[[ $(grep -c "^value-" "$work/bgsave") == 50 ]] || fail "answers are lost by the fork"
await_text "$work/redis.log" "DB saved on disk"

echo "· http.server and curl"
mkdir "$work/files"
head -c 5000000 /dev/urandom >"$work/files/large"
head -c 17 /dev/urandom >"$work/files/small"
(cd "$work/files" && on 4 "$python" -m http.server 8000 >"$work/http.log" 2>&1) &
at_end_kill $!
for (( i = 0; i < 200; i++ )); do curl -s -o /dev/null http://127.0.0.1:8000/small && break; sleep 0.05; done
for side in "on 5" ""; do
    $side curl -sS --max-time 20 -o "$work/got.large" http://10.9.0.4:8000/large -o "$work/got.small" http://10.9.0.4:8000/small || fail "curl fails ($side)"
    cmp "$work/got.large" "$work/files/large" && cmp "$work/got.small" "$work/files/small" || fail "curl gets other bytes ($side)"
done
code=0; on 5 curl -sS --max-time 20 http://10.9.0.4:8001/ 2>"$work/refused.err" || code=$?
(( code == 7 )) || fail "a port that nobody listens at: curl ends with $code"

echo "· a server that forks for each connection, and children that get a socket as standard output"
cat >"$work/forking.py" <<'PY'
import os, socketserver, subprocess, sys
class One(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().split()
        if line[0] == b"program":
            subprocess.run(["sh", "-c", "echo from a program; head -c 300000 /dev/zero"], stdout=self.request.fileno(), check=True)
            return
        data = self.rfile.read(int(line[1]))
        self.wfile.write(b"%s:%d " % (self.client_address[0].encode(), len(data)) + data[::-1])
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
server = Server((sys.argv[1], 7100), One)
print("ready", flush=True)
server.serve_forever()
PY
cat >"$work/asking.py" <<'PY'
import socket, sys, threading
faults = []
def one(number):
    data = bytes([number]) * (number * 9001)
    conn = socket.create_connection((sys.argv[1], 7100))
    conn.sendall(b"reverse %d\n" % len(data) + data)
    got = b""
    while more := conn.recv(65536):
        got += more
    host = conn.getsockname()[0].encode()
    if got != b"%s:%d " % (host, len(data)) + data:
        faults.append((number, len(got), got[:40]))
def safely(number):
    try:
        one(number)
    except OSError as error:
        faults.append((number, error))
threads = [threading.Thread(target=safely, args=(n,)) for n in range(1, 17)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
conn = socket.create_connection((sys.argv[1], 7100))
conn.sendall(b"program\n")
got = b""
while more := conn.recv(65536):
    got += more
if got != b"from a program\n" + bytes(300000):
    faults.append(("program", len(got)))
print(faults)
PY
on 6 "$python" "$work/forking.py" 0.0.0.0 >"$work/forking" 2>"$work/forking.err" &
at_end_kill $!
await_text "$work/forking" ready
[[ $(on 7 timeout 30 "$python" "$work/asking.py" 10.9.0.6) == "[]" ]] || fail "the forking server answers otherwise"
[[ $(timeout 30 "$python" "$work/asking.py" 10.9.0.6) == "[]" ]] || fail "the forking server answers otherwise through the uplink"

echo "· workers that accept at a listener of their parent"
cat >"$work/workers.py" <<'PY'
import os, signal, socket, sys
listener = socket.create_server(("0.0.0.0", 7200))
for _ in range(2):
    if os.fork() == 0:
        while True:
            conn, address = listener.accept()
            conn.sendall(b"%s %d" % (address[0].encode(), conn.getsockname()[1]) + conn.recv(100))
            conn.close()
print("ready", flush=True)
signal.pause()
PY
on 8 "$python" "$work/workers.py" >"$work/workers" 2>"$work/workers.err" &
workers=$!
at_end_kill "$workers"; at_end "pkill -9 -P $workers"
await_text "$work/workers" ready
cat >"$work/visit.py" <<'PY'
import socket, sys
for turn in range(20):
    conn = socket.create_connection((sys.argv[1], 7200), timeout=10)
    conn.sendall(b" hello %d" % turn)
    got = b""
    while more := conn.recv(100):
        got += more
    assert got == b"%s 7200 hello %d" % (conn.getsockname()[0].encode(), turn), got
print("done")
PY
[[ $(on 9 "$python" "$work/visit.py" 10.9.0.8) == "done" ]] || fail "workers answer otherwise"
[[ $("$python" "$work/visit.py" 10.9.0.8) == "done" ]] || fail "workers answer otherwise through the uplink"

echo "· a program that computes still acknowledges, and one that is idle takes no processor"
cat >"$work/computing.py" <<'PY'
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 7300))
print("ready", flush=True)
conn, _ = listener.accept()
print("accepted", flush=True)
end = time.monotonic() + 3
while time.monotonic() < end:
    pass
count = 0
while more := conn.recv(65536):
    count += len(more)
print(count, flush=True)
PY
on 14 "$python" "$work/computing.py" >"$work/computing" 2>"$work/computing.err" &
computing=$!
at_end_kill "$computing"
await_text "$work/computing" ready
exec 8<>/dev/tcp/10.9.0.14/7300
await_text "$work/computing" accepted
head -c 100000 /dev/zero >&8
for (( i = 0; i < 40; i++ )); do
    unsent=$(ss -Htn dst 10.9.0.14 | awk '{print $3}')
    [[ $unsent == 0 ]] && break
    sleep 0.05
done
grep -q 100000 "$work/computing" && fail "the program does not compute for long enough"
[[ $unsent == 0 ]] || fail "$unsent bytes are not acknowledged"
exec 8>&-
wait "$computing" || fail "the computing program fails"
grep -q "^100000$" "$work/computing" || fail "bytes are lost: $(<"$work/computing")"
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
before=$(ticks "$redis"); sleep 1; after=$(ticks "$redis")
(( after - before <= 2 )) || fail "an idle server takes $((after - before)) ticks of a second"

echo "· two programs with one address: the kernel has the second one's sockets, and the user is told"
on 2 redis-cli -h 10.9.0.2 -p 6400 ping >"$work/twice" 2>"$work/twice.err" || true
grep -q PONG "$work/twice" || fail "the second program does not reach the first one by the kernel: $(<"$work/twice")"
on 2 curl -s --max-time 2 -o /dev/null http://10.9.0.4:8000/small 2>"$work/second.err" || fail "the kernel does not serve the second program"
[[ $(grep -c "another process has the address" "$work/second.err") == 1 ]] || fail "nothing is told: $(<"$work/second.err")"

echo "· a peer that is killed"
cat >"$work/waiting.py" <<'PY'
import errno, socket, sys
conn = socket.create_connection((sys.argv[1], 7400))
assert conn.recv(10) == b"hello"
print("connected", flush=True)
try:
    print(conn.recv(10))
except OSError as error:
    print(errno.errorcode[error.errno])
PY
as 16 "$python" -c 'import os,socket,time
s=socket.create_server(("0.0.0.0", 7400)); print("ready", flush=True); c=[]
for _ in range(2):
    c.append(s.accept()[0]); c[-1].send(b"hello")
os.fork() and print("forked", flush=True)
time.sleep(100)' >"$work/killed" 2>"$work/killed.err" &
killed=$!
at_end_kill "$killed"
await_text "$work/killed" ready
on 17 "$python" "$work/waiting.py" 10.9.0.16 >"$work/waiting" 2>"$work/waiting.err" &
waiting=$!
at_end_kill "$waiting"
await_text "$work/waiting" connected
"$python" "$work/waiting.py" 10.9.0.16 >"$work/waiting.uplink" 2>"$work/waiting.err" &
uplink=$!
at_end_kill "$uplink"
await_text "$work/waiting.uplink" connected
await_text "$work/killed" forked
child=$(pgrep -P "$killed") || fail "the server has no child"
at_end "kill -9 $child 2>/dev/null"
# Nobody sends anything, a child of the server's lives on, and the least keep-alive takes 30 s.
kill -9 "$killed"
await_text "$work/waiting" "^ECONNRESET$"
await_text "$work/waiting.uplink" "^ECONNRESET$"
wait "$waiting" && wait "$uplink" || fail "who waits for a killed peer fails"
kill -9 "$child"

echo "· a hub that ends"
on 18 "$python" -c 'import socket,errno
c=socket.create_connection(("10.9.0.2", 6400)); print("connected", flush=True)
try: print(c.recv(10))
except OSError as e: print(errno.errorcode[e.errno])
try: socket.create_connection(("10.9.0.2", 6400))
except OSError as e: print(errno.errorcode[e.errno])' >"$work/lost" 2>"$work/lost.err" &
lost=$!
at_end_kill "$lost"
await_text "$work/lost" connected
kill "$rack_pid"; wait "$rack_pid" || fail "the hub ends with an error"
rack_pid=
wait "$lost" || fail "the program fails with its hub: $(<"$work/lost.err")"
[[ $(tr '\n' ' ' <"$work/lost") == "connected ENETDOWN ENETDOWN " ]] || fail "the end of the hub is told as $(<"$work/lost")"
[[ $(grep -c "the hub has ended" "$work/lost.err") == 1 ]] || fail "the end of the hub is not told once: $(<"$work/lost.err")"
[[ $(redis-cli -p 6400 get key:7) == value-7 ]] || fail "redis has ended with the hub"
