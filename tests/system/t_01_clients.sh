#!/bin/bash
# Ordinary clients over a whole rack: every byte they wrote comes back, before and after a clean restart.
source "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy qemu-img fio jq mkfs.ext4 e2fsck debugfs curl python3

start_rack "$work/rack" --size 512MiB --demo 256MiB
[[ $(jq -r '.volumes[0].uri' "$work/rack.json") == "$URI" ]] || fail "the JSON line names another URI"
client_suite "$URI" 256

echo "· volumes"
volume() { "$SWITCHYARD" volume --control "$CONTROL" "$@"; }
volume create db --size 64MiB --replicas 3 --json >"$work/db.json"
[[ $(jq -r .state "$work/db.json") == ready ]] || fail "a created volume is not ready"
head -c 1M /dev/urandom >"$work/data"
qemu-img convert -n -f raw -O raw "$work/data" "nbd://127.0.0.1:$nbd_port/db"
volume resize db --size 128MiB --json >"$work/db.json"
[[ $(nbdinfo --size "nbd://127.0.0.1:$nbd_port/db") == $(( 128 << 20 )) ]] || fail "the volume did not grow"
nbdcopy "nbd://127.0.0.1:$nbd_port/db" "$work/grown"
cmp -n "$(( 1 << 20 ))" "$work/grown" "$work/data" || fail "growing changed the data"
expect_code 2 "$SWITCHYARD" volume --control "$CONTROL" resize db --size 1MiB
expect_text "cannot shrink"
expect_code 2 "$SWITCHYARD" volume --control "$CONTROL" delete db
expect_text "--yes"

echo "· status, metrics, top"
"$SWITCHYARD" status --control "$CONTROL" --json >"$work/status.json"
[[ $(jq '[.nodes[] | select(.answers)] | length' "$work/status.json") == 4 ]] || fail "not all nodes answer"
curl -sf "$CONTROL/metrics" >"$work/metrics"
for name in request_latency_seconds_bucket read_stage_latency_seconds_bucket vssd_write_amplification \
    gateway_requests_total core_packets_in_total; do
    grep -q "^switchyard_$name{" "$work/metrics" || fail "/metrics lacks $name"
done
for stage in net queue gc_wait device return; do
    grep -q "stage=\"$stage\"" "$work/metrics" || fail "/metrics lacks the stage $stage"
done
"$SWITCHYARD" top --control "$CONTROL" --count 1 --interval 0.2 --json | jq -e '.seconds > 0' >/dev/null

echo "· hundreds of clients at once, and no more than it takes"
# greeted: how many of 1,100 clients that stay are greeted.
greeted() {
    python3 -c 'import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) for _ in range(1100)]
def greets(client):
    try:
        return client.recv(8) == b"NBDMAGIC"
    except ConnectionResetError:
        return False
print(sum(greets(client) for client in clients))' "$nbd_port"
}
# An address leaves the last eighth of 1,024 to others.
[[ $(greeted) == 896 ]] || fail "not 896 of 1,100 clients are taken"

echo "· a rack without a terminal outlives SIGHUP"
kill -HUP "$rack_pid"
sleep 0.3
"$SWITCHYARD" status --control "$CONTROL" --json | jq -e '[.nodes[] | select(.answers)] | length == 4' >/dev/null ||
    fail "SIGHUP stopped the rack"

echo "· a clean restart keeps everything"
nbdcopy "$URI" "$work/before.img"
stop_rack
"$SWITCHYARD" verify "$work/rack" >/dev/null || fail "verify found problems after a clean stop"
start_rack "$work/rack"
nbdcopy "$URI" "$work/after.img"
cmp "$work/before.img" "$work/after.img" || fail "the restart changed data"
[[ $(nbdinfo --size "nbd://127.0.0.1:$nbd_port/db") == $(( 128 << 20 )) ]] || fail "the restart lost a volume"
volume delete db --yes >/dev/null
expect_code 1 "$SWITCHYARD" volume --control "$CONTROL" show db
stop_rack
