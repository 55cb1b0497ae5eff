#!/bin/bash
# The key-value store with Redis' own clients and beside Redis itself: the same replies to random commands, kills with acknowledged
# writes, another number of shards, garbage, a limit of memory, and user-level TCP.
source "$(dirname "$0")/lib.sh"
need python3 jq redis-server redis-cli redis-benchmark

port=$port_base
other=$(( port_base + 1 ))
kv_pid=
cli() { timeout 20 redis-cli -p "$port" "$@"; }
client() { timeout 60 python3 "$here/kv_client.py" "$@"; }

# start [FLAG…]: starts a server at $port; its line is in $work/kv.json.
start() {
    : >"$work/kv.json"
    "$SWITCHYARD" kv --json serve --listen "127.0.0.1:$port" --no-pin "$@" >"$work/kv.json" 2>>"$work/kv.err" &
    kv_pid=$!
    await_line "$work/kv.json" "$kv_pid" || fail "the server did not become ready with $*"
}
stop() { kill "$kv_pid"; wait "$kv_pid" || fail "the server ends with an error"; kv_pid=; }
at_end '[[ -z $kv_pid ]] || kill -9 "$kv_pid" 2>/dev/null'
info() { "$SWITCHYARD" kv --json status --connect "127.0.0.1:$port" | jq -r ".$1"; }

# Wrong usage, and exit codes.
code=0; "$SWITCHYARD" kv status --connect "127.0.0.1:$port" 2>"$work/none.err" || code=$?
(( code == 3 )) || fail "without a server status ends with $code"
for wrong in "--durability always" "--dir $work/x --durability none" "--shards 0" "--memory-max 1KiB" "--tcp 10.0.0.1"; do
    code=0; "$SWITCHYARD" kv serve --listen "127.0.0.1:$port" $wrong 2>"$work/wrong.err" || code=$?
    (( code == 2 )) || fail "$wrong ends with $code"
done

# In memory, two shards, beside Redis.
redis-server --port "$other" --bind 127.0.0.1 --save '' --daemonize no --dir "$work" >"$work/redis.out" 2>&1 &
redis_pid=$!
at_end 'kill "$redis_pid" 2>/dev/null'
start --shards 2
for (( i = 0; i < 100; i++ )); do redis-cli -p "$other" ping >"$work/pong" 2>&1 && break; sleep 0.05; done
for seed in 1 2 3 4; do
    client compare "$port" "$other" "$seed" 4000 2>"$work/compare.err" || fail "seed $seed: $(cat "$work/compare.err")"
done
kill "$redis_pid"
[[ $(cli set key value) == OK && $(cli get key) == value && $(cli -3 get key) == value ]] || fail "redis-cli"
[[ $(cli --scan --pattern 'ke*') == key ]] || fail "redis-cli --scan"
redis-benchmark -p "$port" -t ping,set,get,incr,mset -n 5000 -q >"$work/bench.out" 2>&1 || fail "redis-benchmark"
redis-benchmark -p "$port" -t set,get -P 16 -c 5 -n 20000 -q -r 1000 >"$work/bench.out" 2>&1 || fail "redis-benchmark -P"
grep -qi error "$work/bench.out" && fail "redis-benchmark: $(cat "$work/bench.out")"
client garbage "$port" 1 200 || fail "garbage"
[[ $(cli ping) == PONG ]] || fail "the server has not survived garbage"
code=0; "$SWITCHYARD" kv serve --listen "127.0.0.1:$port" 2>"$work/second.err" || code=$?
(( code == 4 )) || fail "a second server at the address ends with $code"
stop

# A limit of memory.
start --memory-max 8MiB --shards 2
client fill "$port" 40000 1000 || fail "a full store refuses writes"
(( $(info used_memory) <= 8 << 20 && $(info evicted_keys) > 30000 )) || fail "the limit does not hold: $(info used_memory)"
stop

# Every acknowledged write survives kill -9.
start --shards 2 --dir "$work/keys"
code=0; "$SWITCHYARD" kv serve --listen "127.0.0.1:$other" --dir "$work/keys" 2>"$work/second.err" || code=$?
(( code == 4 )) || fail "a second server of the directory ends with $code"
cli set last long ex 10000 >/dev/null
cli set short 1 px 1 >/dev/null
for round in 1 2 3 4 5; do
    client write "$port" "$work/written.$round.a" >"$work/count.a" & a=$!
    client write "$port" "$work/written.$round.b" >"$work/count.b" & b=$!
    # A busy machine starts the clients late.
    for side in a b; do
        for (( i = 0; i < 400; i++ )); do
            [[ $(grep -c ^done "$work/written.$round.$side" 2>/dev/null) -gt 20 ]] && break
            sleep 0.05
        done
    done
    sleep "0.$round"
    kill -9 "$kv_pid"; wait "$kv_pid" 2>/dev/null || true
    wait "$a" || fail "a client failed"
    wait "$b" || fail "a client failed"
    (( $(cat "$work/count.a") > 20 )) || fail "hardly anything was written before the kill"
    start --shards 2 --dir "$work/keys"
    for written in "$work"/written.*; do
        client check "$port" "$written" >"$work/checked" 2>"$work/check.err" || fail "round $round: $(cat "$work/check.err")"
    done
done
keys=$(cli dbsize)
stop
# The kills above were of processes that wrote; a clean stop loses nothing either, nor do other numbers of shards.
for shards in 1 3; do
    start --shards "$shards" --dir "$work/keys"
    [[ $(cli dbsize) == "$keys" ]] || fail "$shards shards have $(cli dbsize) keys, not $keys"
    for written in "$work"/written.*; do
        client check "$port" "$written" >"$work/checked" 2>"$work/check.err" || fail "$shards shards: $(cat "$work/check.err")"
    done
    (( $(cli ttl last) > 9000 )) || fail "the end of a key is lost"
    [[ -z $(cli get short) ]] || fail "a key outlives its time"
    stop
done
(( $(ls "$work/keys"/*.area | wc -l) == 3 )) || fail "areas of other numbers of shards stay"
start --shards 2 --dir "$work/keys" --durability everysec
cli set soon 1 >/dev/null
cli flushall >/dev/null
cli set later 1 >/dev/null
stop
start --shards 2 --dir "$work/keys" --durability everysec
[[ $(cli keys '*') == later ]] || fail "after a stop there are $(cli keys '*')"
stop

# User-level TCP: each shard has its address; the client is the kernel's, behind a TAP device.
if (( EUID == 0 )) && [[ -e /dev/net/tun ]] && command -v ip >/dev/null; then
    cat >"$work/tcp.sh" <<'IN'
set -e
await() { local i; for (( i = 0; i < 200; i++ )); do [[ -s $1 ]] && return; sleep 0.05; done; echo "$1 is empty" >&2; exit 1; }
"$SWITCHYARD" tcp serve --json --tap sw0 >"$work/hub.json" & hub_pid=$!
trap 'kill $hub_pid $server_pid 2>/dev/null || true' EXIT
await "$work/hub.json"
ip addr add 10.9.0.1/24 dev sw0
"$SWITCHYARD" kv --json serve --tcp 10.9.0.2/24 --shards 2 >"$work/tcp.json" & server_pid=$!
await "$work/tcp.json"
[[ $(timeout 10 redis-cli -h 10.9.0.2 set a 1) == OK ]]
[[ $(timeout 10 redis-cli -h 10.9.0.3 get a) == 1 ]]
timeout 20 redis-benchmark -h 10.9.0.3 -t set,get -n 3000 -c 10 -P 4 -q >"$work/tcp.out"
kill "$server_pid"; wait "$server_pid"
kill "$hub_pid"; wait "$hub_pid"
IN
    export SWITCHYARD_TCP="$work/hub.sock"
    export work SWITCHYARD
    timeout 60 unshare -n bash "$work/tcp.sh" 2>"$work/tcp.err" || fail "user-level TCP: $(cat "$work/tcp.err")"
fi
