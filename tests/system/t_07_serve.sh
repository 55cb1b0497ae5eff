#!/bin/bash
# A target of one machine: NBD clients on memory, on a file and on vSSDs, NVMe/TCP, what was flushed survives a kill, and
# every mistake gets a sentence with its own exit code.
source "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy qemu-img fio mkfs.ext4 e2fsck jq

nvme_port=$(( port_base + 3 ))

# start_target FLAG…: starts a target and waits until it is ready; the JSON line is in $work/rack.json.
start_target() {
    : >"$work/rack.json"
    "$SWITCHYARD" serve --json --nbd "127.0.0.1:$nbd_port" --nvme "127.0.0.1:$nvme_port" "$@" \
        >"$work/rack.json" 2>>"$work/rack.err" &
    rack_pid=$!
    await_line "$work/rack.json" "$rack_pid" || fail "the target did not become ready"
}

# bench_clean URI: reads and writes of every size end without an error.
bench_clean() {
    local mode
    for mode in randread randwrite flush; do
        "$SWITCHYARD" bench "$1" --rw "$mode" --qd 8 --seconds 0.3 --runs 1 --json >"$work/out" 2>&1 ||
            { cat "$work/out" >&2; fail "bench $1 $mode"; }
    done
    "$SWITCHYARD" bench "$1" --rw write --bs 1MiB --qd 4 --seconds 0.3 --runs 1 --json >"$work/out" 2>&1 ||
        { cat "$work/out" >&2; fail "bench $1 of large writes"; }
}

for media in mem:64MiB "$work/disk.img:64MiB" vssd:mem,size=64MiB "vssd:$work/vssd.img,size=64MiB"; do
    echo "· $media: NBD clients"
    start_target --media "$media" --name disk
    client_suite "nbd://127.0.0.1:$nbd_port/disk" 64
    echo "· $media: NVMe/TCP"
    bench_clean "nvme://127.0.0.1:$nvme_port/disk"
    stop_rack
done

echo "· two volumes, every policy"
for policy in linux spdk spdk-priority blk-switch switchyard; do
    start_target --media mem:16MiB --name a --media mem:32MiB --name b --policy "$policy" --class a=latency
    [[ $(jq -r '.volumes[1].nqn' "$work/rack.json") == nqn.2026-11.io.switchyard:b ]] || fail "the NQN of b"
    [[ $(nbdinfo --size "nbd://127.0.0.1:$nbd_port/b") == $(( 32 << 20 )) ]] || fail "the size of b"
    bench_clean "nbd://127.0.0.1:$nbd_port/a"
    bench_clean "nvme://127.0.0.1:$nvme_port/b"
    stop_rack
done

echo "· what was flushed survives a kill"
head -c 32M /dev/urandom >"$work/data"
for (( round = 0; round < 5; round++ )); do
    start_target --media "$work/killed.img:32MiB" --name disk
    nbdcopy --flush "$work/data" "nbd://127.0.0.1:$nbd_port/disk"
    kill_rack
    cmp "$work/data" "$work/killed.img" || fail "flushed data is gone"
done

echo "· what was flushed to a vSSD survives a kill at any instant"
for (( round = 0; round < 5; round++ )); do
    start_target --media "vssd:$work/killed.vssd,size=32MiB" --name disk
    nbdcopy --flush "$work/data" "nbd://127.0.0.1:$nbd_port/disk"
    # The other half of the disk is overwritten, and flushed now and then, while it is killed.
    (cd "$work" && fio --name=w --ioengine=nbd --uri="nbd://127.0.0.1:$nbd_port/disk" --rw=randwrite --bs=4k \
        --iodepth=16 --offset=16m --size=16m --time_based --runtime=60 --fsync=64 >"$work/fio.log" 2>&1) &
    writer=$!
    sleep "0.$(( RANDOM % 9 + 1 ))"
    kill_rack
    wait "$writer" 2>/dev/null || true
    "$SWITCHYARD" verify "$work/killed.vssd" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the vSSD is damaged"; }
    start_target --media "vssd:$work/killed.vssd" --name disk
    nbdcopy "nbd://127.0.0.1:$nbd_port/disk" "$work/after"
    cmp -n $(( 16 << 20 )) "$work/data" "$work/after" || fail "flushed data is gone"
    stop_rack
done
"$SWITCHYARD" verify "$work/killed.vssd" >"$work/out" || fail "the vSSD is damaged after a clean stop"

echo "· device time"
start_target --media vssd:mem,size=32MiB,timing=p-ssd,channels=4 --name slow --media mem:32MiB --name fast
bench_clean "nbd://127.0.0.1:$nbd_port/slow"
bench_clean "nvme://127.0.0.1:$nvme_port/slow"
stop_rack

echo "· refusals"
start_target --media "$work/killed.img" --name disk --read-only
if nbdcopy "$work/data" "nbd://127.0.0.1:$nbd_port/disk" 2>/dev/null; then
    fail "a read-only volume was written"
fi
cmp "$work/data" "$work/killed.img" || fail "a read-only volume was changed"
serve() { "$SWITCHYARD" serve "$@"; }
expect_code 4 serve --media mem:1MiB --nbd "127.0.0.1:$nbd_port"
expect_text "in use"
expect_code 4 serve --media "$work/killed.img" --nbd 127.0.0.1:0
expect_text "in use"
stop_rack
expect_code 1 serve --media "$work/none.img" --nbd 127.0.0.1:0
expect_text "name a size to create it"
expect_code 2 serve --media "$work/killed.img:1TiB" --nbd 127.0.0.1:0
expect_text "truncate -s"
expect_code 2 serve --media "$work/killed.img:16MiB" --nbd 127.0.0.1:0
expect_text "omit the size"
[[ $(stat -c %s "$work/killed.img") == $(( 32 << 20 )) ]] || fail "a refused size changed the file"
expect_code 2 serve --media "$work/odd.img:1000" --nbd 127.0.0.1:0
expect_text "multiple of 4 KiB"
for bytes in 0 511; do
    truncate -s "$bytes" "$work/tiny.img"
    expect_code 2 serve --media "$work/tiny.img" --nbd 127.0.0.1:0
    expect_text "at least one block of 512"
done
for flags in "--connections 0" "--connections 1000000" "--requests 0" \
    "--connections 65535 --requests 65535" "--allow bogus" "--pool 1TiB" "--media mem:100TiB"; do
    # shellcheck disable=SC2086
    expect_code 2 serve --media mem:1MiB --nbd 127.0.0.1:0 $flags
    expect_text "${flags%% *}"
done
expect_code 2 serve --media mem:0 --nbd 127.0.0.1:0
expect_code 2 serve --media mem:lots
expect_code 2 serve --media mem:1MiB --name 'a b'
expect_text "letters"
expect_code 2 serve --media mem:1MiB --name a --media mem:1MiB --name a
expect_code 2 serve --media mem:1MiB --policy fast
expect_text "blk-switch"
expect_code 2 serve --media vssd:mem,size=16MiB --cores 0,1
expect_text "one core"
expect_code 1 serve --media "vssd:$work/none.vssd" --nbd 127.0.0.1:0
expect_text "name a size to create it"
expect_code 2 serve --media "vssd:$work/killed.vssd,size=64MiB" --nbd 127.0.0.1:0
expect_text "was made with 32 MiB"
expect_code 2 serve --media vssd:mem,size=16MiB,timing=fast
expect_text "p-ssd"
expect_code 2 serve --media mem:1MiB --class x=latency
expect_code 2 serve --media mem:1MiB --class host:disk=latency
expect_text "begins with"
expect_code 2 serve --media mem:1MiB --cores 1,1
expect_code 1 serve --media mem:1MiB --cores 4000
expect_text "4000"
expect_code 2 serve
echo "done"
