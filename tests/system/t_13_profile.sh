#!/bin/bash
# The I/O-path profiler beside what others count and measure: fio's own latency and counts, bpftrace's time in the device.
# Sums, counts and attribution decide; times of this machine are printed. TIMING=1 makes the profiler's cost decide, too,
# for a quiet machine. Runs alone, as it traces the whole machine.
source "$(dirname "$0")/lib.sh"
need fio jq losetup mkfs.ext4

if (( EUID != 0 )); then
    expect_code 1 "$SWITCHYARD" profile -- true
    expect_text "needs root"
    skip "profiling needs root"
fi
code=0
"$SWITCHYARD" profile --json -- true >"$work/p.json" 2>"$work/p.err" || code=$?
(( code == 0 )) || skip "this kernel does not let us profile: $(tail -1 "$work/p.err")"

# fresh_loop FILE MIB [OPTION…]: a loop device on a new file; its name is in $loop.
fresh_loop() {
    local file=$1
    fallocate -l "$2M" "$file"
    loop=$(losetup --find --show "${@:3}" "$file" 2>"$work/losetup.err") || return 1
    at_end "losetup -d $loop 2>/dev/null"
    loop=${loop#/dev/}
}
fresh_loop "$work/disk.img" 400 --direct-io=on || fresh_loop "$work/disk.img" 400 ||
    skip "no loop device: $(tail -1 "$work/losetup.err")"
disk=$loop
queue=/sys/block/$disk/queue
mkfs.ext4 -q -F "/dev/$disk"
mkdir "$work/mnt"
mount "/dev/$disk" "$work/mnt"
at_end "umount -l '$work/mnt'"

# job ARGUMENT…: fio alone, its result in $work/fio.json.
FIO="$(command -v fio) --name=t --size=48M --randseed=1 --output-format=json --output=$work/fio.json"
# The file, unless another one is named: fio takes two names as two files.
file() { [[ " $* " == *" --filename="* ]] || echo "--filename=$work/mnt/file"; }
job() { $FIO $(file "$@") "$@" >/dev/null 2>&1 || fail "fio $*"; }
# profiled [-PROFILER'S-OPTION…] -- ARGUMENT…: fio under the profiler, whose result is in $work/p.json. Nothing may be lost.
profiled() {
    local options=()
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    "$SWITCHYARD" profile --json "${options[@]}" -- $FIO $(file "$@") "${@:2}" >"$work/p.json" 2>"$work/p.err" ||
        { cat "$work/p.err" >&2; fail "profile: fio ${*:2}"; }
    [[ $(jq .probes.lost "$work/p.json") == 0 ]] || fail "events were lost: ${*:2}"
    [[ $(jq .probes.undecoded "$work/p.json") == 0 ]] || fail "records were not understood: ${*:2}"
}
# operations FILTER EXPRESSION: over all kinds of operations that needed the device, such as `operations '.action=="read"' .count`
operations() { jq "[.operations[] | select(.reached_device and ($1)) | $2] | add // 0" "$work/p.json"; }
devices() { jq "[.devices[] | select($1) | $2] | add // 0" "$work/p.json"; }
fio_count() { jq ".jobs[0].$1.total_ios" "$work/fio.json"; }
found() { jq -r '.operations[] | "\(.interface) \(.action) ≤ \(.bytes_max) device \(.reached_device): \(.count), \(.bios) bios"' "$work/p.json" >&2; }
# same WHAT FOUND EXPECTED
same() { [[ $2 == "$3" ]] || { found; fail "$1: $2 instead of $3"; }; }
at_least() { (( $2 >= $3 )) || { found; fail "$1: $2, less than $3"; }; }
median() { sort -g | awk '{ line[NR] = $1 } END { print line[int((NR + 1) / 2)] }'; }
within() { awk -v a="$2" -v b="$3" -v c="$4" 'BEGIN { exit !(a >= b && a <= c) }' || fail "$1: $2 is not in $3 to $4"; }

job --rw=write --bs=1M --direct=1 --ioengine=psync

echo "· the layers sum to what fio measures, and the time in the device to what bpftrace measures"
tracer=
if command -v bpftrace >/dev/null && bpftrace -e 'BEGIN { exit() }' >/dev/null 2>&1; then
    tracer=bpftrace
else
    echo "  (bpftrace is left out: not installed, or this kernel does not let it trace)"
fi
device_number=$(( $(cut -d: -f1 "/sys/block/$disk/dev") << 20 | $(cut -d: -f2 "/sys/block/$disk/dev") ))
for _ in 1 2 3 4 5; do
    if [[ $tracer ]]; then
        : >"$work/bpf.out"
        bpftrace -f json -e "
            tracepoint:block:block_rq_issue /args->dev == $device_number/ { @at[args->sector] = nsecs; }
            tracepoint:block:block_rq_complete /args->dev == $device_number && @at[args->sector]/ {
                @d2c = stats(nsecs - @at[args->sector]); delete(@at[args->sector]); }
            END { clear(@at); }" >"$work/bpf.out" 2>"$work/bpf.err" &
        bpf=$!
        await_line "$work/bpf.out" "$bpf" || fail "bpftrace: $(cat "$work/bpf.err")"
        sleep 1
    fi
    profiled --device "$disk" -- --rw=randread --bs=4k --direct=1 --ioengine=psync --number_ios=6000
    same "reads" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .count)" "$(fio_count read)"
    measured=$(operations '.action == "read" and .bytes_max == 4096' '([.layers[] | .mean_us + .probes_us] | add)')
    event=$(jq .probes.event_ns "$work/p.json")
    jq --argjson us "$measured" --argjson event "$event" '(($us * 1000) + $event) / .jobs[0].read.lat_ns.mean' \
        "$work/fio.json" >>"$work/sums"
    if [[ $tracer ]]; then
        kill -INT "$bpf"
        wait "$bpf" || true
        bpf=$(jq -s '[.[] | select(.type == "stats") | .data["@d2c"].average][0]' "$work/bpf.out")
        ours=$(jq '[.devices[] | [.count * .d2c.mean_us, .count]] | transpose | map(add) | .[0] / .[1]' "$work/p.json")
        awk -v ours="$ours" -v bpf="$bpf" 'BEGIN { print ours * 1000 / bpf }' >>"$work/d2c"
    fi
done
echo "  layers with the probes in them / fio's mean: $(median <"$work/sums")"
within "sum of the layers" "$(median <"$work/sums")" 0.95 1.05
if [[ $tracer ]]; then
    echo "  driver and device / bpftrace: $(median <"$work/d2c")"
    within "time in the device" "$(median <"$work/d2c")" 0.95 1.05
fi
jq -r '"  probes: \(.probes.event_ns) ns an event; null workload, corrected: \(.probes.null_error * 100) % off"' "$work/p.json"

echo "· throughput beside the unprofiled program: 18,000 reads a second, and as many as one after the other can be"
fresh_loop "$work/cached.img" 64 || fail "a second loop device"
# beside ROUNDS FIO-ARGUMENT…: the median ratio of the profiled rate to the unprofiled one, in turns. What has no rate set is
# judged by what a read takes longer, and which share of 18,000 a second that would leave.
beside() {
    local rounds=$1 alone ratio rate
    shift
    rm -f "$work/rates" "$work/alone"
    for (( i = 0; i < rounds; i++ )); do
        job "$@"
        alone=$(jq '.jobs[0].read.iops' "$work/fio.json")
        profiled --device "$loop" -- "$@"
        jq --argjson alone "$alone" '.jobs[0].read.iops / $alone' "$work/fio.json" >>"$work/rates"
        echo "$alone" >>"$work/alone"
    done
    ratio=$(median <"$work/rates") rate=$(median <"$work/alone")
    echo "  profiled / unprofiled: $ratio of $rate reads a second"
    if [[ " $* " != *" --rate_iops="* ]]; then
        ratio=$(awk -v ratio="$ratio" -v rate="$rate" 'BEGIN {
            longer = 1e6 / (rate * ratio) - 1e6 / rate
            printf "  a read takes %.2f µs longer\n", longer >"/dev/stderr"
            print 1 / (1 + longer * 0.018) }')
        echo "  that is $ratio of 18,000 reads a second, one after the other"
    fi
    [[ ${TIMING:-} != 1 ]] || within "throughput" "$ratio" 0.92 2
}
load=(--rw=randread --bs=4k --direct=1 --ioengine=psync --time_based)
[[ ${TIMING:-} == 1 ]] && rounds=20 || rounds=3
beside 3 "--filename=/dev/$loop" "${load[@]}" --rate_iops=18000 --runtime=1
cached=$loop loop=$(basename "$(findmnt -n -o SOURCE --target "$work")")
if [[ -e /sys/class/block/$loop ]]; then
    beside "$rounds" "--filename=$work/disk.img" "${load[@]}" --runtime=1
else
    echo "  (as many as can be: left out, $work is on no block device)"
fi
loop=$cached

echo "· two programs on one device, one syncing: each gets its own"
for scheduler in none mq-deadline; do
    echo "$scheduler" >"$queue/scheduler" 2>/dev/null || { echo "  (no $scheduler here)"; continue; }
    # The one that is not followed goes on until the other is done. Both do the same, and change sides.
    reader=(--name=r "--filename=$work/mnt/file" --rw=randread --bs=4k --direct=1 --ioengine=psync --size=48M)
    writer=(--name=w "--filename=$work/mnt/log" --rw=write --bs=8k --ioengine=psync --fdatasync=1 --size=16M)
    forever=(--time_based --runtime=600 --output=/dev/null)
    fio "${writer[@]}" "${forever[@]}" &
    other=$!
    sleep 0.5
    profiled --device "$disk" -- --rw=randread --bs=4k --direct=1 --ioengine=psync --number_ios=3000
    kill "$other"; wait "$other" || true
    same "$scheduler: the reader's reads" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .count)" "$(fio_count read)"
    same "$scheduler: a bio each" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .bios)" "$(fio_count read)"
    same "$scheduler: the reader writes nothing" "$(operations '.interface == "call" and .action != "read"' .count)" 0
    at_least "$scheduler: the writer is background" "$(operations '.interface == "background" and .action == "write"' .count)" 100
    inserted=$(jq "[.devices[] | select(.device == \"$disk\" and .action == \"read\") | .i2d != null] | any" "$work/p.json")
    [[ $scheduler == none ]] && expected=false || expected=true
    same "$scheduler: time in the scheduler" "$inserted" "$expected"

    fio "${reader[@]}" "${forever[@]}" &
    other=$!
    sleep 0.5
    profiled --device "$disk" -- --filename="$work/mnt/log" --rw=write --bs=8k --ioengine=psync --fdatasync=1 --size=4M
    kill "$other"; wait "$other" || true
    same "$scheduler: the writer's syncs" "$(operations '.action == "sync"' .count)" "$(jq '.jobs[0].sync.lat_ns.N' "$work/fio.json")"
    at_least "$scheduler: each writes or flushes" "$(operations '.action == "sync"' .bios)" "$(jq '.jobs[0].sync.lat_ns.N' "$work/fio.json")"
    same "$scheduler: every bio is somebody's" "$(operations true .bios)" "$(devices true .count)"
    same "$scheduler: its writes wait for nothing" "$(jq '[.operations[] | select(.interface == "call" and .action == "write" and .bytes_max == 8192 and (.reached_device | not)) | .count] | add' "$work/p.json")" "$(fio_count write)"
    same "$scheduler: the other's reads" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .count)" 0
    at_least "$scheduler: the reader is background" "$(operations '.interface == "background" and .action == "read"' .count)" 100
done
echo none >"$queue/scheduler"

echo "· io_uring, its workers, its polling thread; libaio"
have_engine() { fio --enghelp | grep -qw "$1"; }
# engine NAME INTERFACE ARGUMENT…: 4 KiB reads and writes, a bio each
engine() {
    local name=$1 interface=$2
    shift 2
    profiled --device "${on:-$disk}" -- --bs=4k --direct=1 --iodepth=8 --number_ios=3000 "$@"
    local action
    for action in read write; do
        same "$name: ${action}s" "$(operations ".interface == \"$interface\" and .action == \"$action\"" .count)" "$(fio_count $action)"
        same "$name: bios of ${action}s" "$(operations ".interface == \"$interface\" and .action == \"$action\"" .bios)" "$(fio_count $action)"
    done
    same "$name: bytes" "$(operations ".interface == \"$interface\"" .bytes)" "$(jq '.jobs[0].read.io_bytes + .jobs[0].write.io_bytes' "$work/fio.json")"
}
# Filesystems' own: a mount's lazy initialisation and journal may be background, but the program has nothing else.
if have_engine io_uring && fio --name=t --filename="$work/mnt/file" --size=4k --ioengine=io_uring --output=/dev/null 2>/dev/null; then
    engine io_uring io_uring --rw=randrw --ioengine=io_uring
    engine "io_uring's workers" io_uring --rw=randrw --ioengine=io_uring --force_async=1
    same "io_uring's workers: in workers" "$(operations '.interface == "io_uring"' .punted)" 3000
    on=$loop engine "io_uring's workers without a file system" io_uring --rw=randread --ioengine=io_uring --force_async=1 --filename="/dev/$loop"
    engine "io_uring's polling thread" io_uring --rw=randread --ioengine=io_uring --sqthread_poll=1
else
    echo "  (io_uring is left out)"
fi
have_engine libaio && engine libaio libaio --rw=randrw --ioengine=libaio

echo "· page cache, mmap, syncs"
cold="--invalidate=1"
profiled --device "$disk" -- --rw=read --bs=64k --ioengine=psync $cold
at_least "buffered reads: from the device" "$(devices '.action == "read"' .bytes)" $(( 48 << 20 ))
same "buffered reads" "$(jq '[.operations[] | select(.interface == "call" and .action == "read" and .bytes_max == 65536) | .count] | add' "$work/p.json")" "$(fio_count read)"
same "buffered reads: all of the device's time is theirs" "$(operations '.interface == "background" and .action == "read"' .count)" 0
profiled --device "$disk" -- --rw=read --bs=64k --ioengine=mmap $cold
same "mmap: no call reads" "$(operations '.interface == "call" and .action == "read"' .count)" 0
at_least "mmap: bytes" "$(operations '.interface == "other" and .action == "read"' .bytes)" $(( 48 << 20 ))
profiled --device "$disk" -- --rw=write --bs=64k --ioengine=psync --end_fsync=1
same "buffered writes wait for nothing" "$(operations '.interface == "call" and .action == "write"' .count)" 0
same "buffered writes: one sync" "$(operations '.interface == "call" and .action == "sync"' .count)" 1
at_least "buffered writes: to the device" "$(devices '.action == "write"' .bytes)" $(( 48 << 20 ))
profiled --device "$disk" -- --rw=write --bs=64k --ioengine=mmap --fsync=16 --size=8M
at_least "msync" "$(operations '.interface == "call" and .action == "sync"' .count)" 7
profiled --device "$disk" -- --rw=randwrite --bs=4k --ioengine=psync --direct=1 --sync=1 --number_ios=200
same "O_SYNC writes" "$(operations '.interface == "call" and .action == "write" and .bytes_max == 4096' .count)" "$(fio_count write)"
at_least "O_SYNC writes: data and flush" "$(operations '.interface == "call" and .action == "write"' .bios)" 400

echo "· splits and merges"
limit=$(cat "$queue/max_sectors_kb")
echo 64 >"$queue/max_sectors_kb"
profiled --device "$disk" -- --rw=read --bs=1M --direct=1 --ioengine=psync
echo "$limit" >"$queue/max_sectors_kb"
same "split reads" "$(operations '.interface == "call" and .action == "read"' .count)" "$(fio_count read)"
same "split reads: parts of 64 KiB" "$(operations '.interface == "call" and .action == "read"' .bios)" $(( 16 * $(fio_count read) ))
same "split reads: bytes" "$(devices '.action == "read"' .bytes)" $(( 48 << 20 ))
if have_engine libaio; then
    profiled --device "$disk" -- --rw=read --bs=4k --direct=1 --ioengine=libaio --iodepth=32 --iodepth_batch=32 --number_ios=3200
    same "merged reads" "$(operations '.interface == "libaio" and .action == "read"' .count)" "$(fio_count read)"
    at_least "merged reads: merges" "$(operations '.interface == "libaio"' .merged)" 1
fi

echo "· a loop device over a file on a loop device: the inner I/O is told from the outer"
fallocate -l 32M "$work/mnt/inner.img"
if fresh_loop "$work/mnt/inner.img" 32 --direct-io=on; then
    dd if=/dev/zero of="/dev/$loop" bs=1M count=32 oflag=direct status=none
    profiled -- --filename="/dev/$loop" --size=32M --rw=randread --bs=4k --direct=1 --ioengine=psync --number_ios=2000
    same "outer reads" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .count)" "$(fio_count read)"
    same "outer reads: a bio each" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 4096' .bios)" "$(fio_count read)"
    same "on the outer device" "$(devices ".device == \"$loop\" and .action == \"read\"" .count)" "$(fio_count read)"
    at_least "on the inner device" "$(devices ".device == \"$disk\" and .action == \"read\"" .count)" "$(fio_count read)"
    at_least "below" "$(operations '.interface == "below" and .action == "read"' .count)" "$(fio_count read)"
    losetup -d "/dev/$loop"
else
    echo "  (left out: no third loop device with direct I/O)"
fi

if number=$(cat /sys/class/zram-control/hot_add 2>/dev/null); then
    echo "· a driver that takes bios without requests"
    at_end "echo $number >/sys/class/zram-control/hot_remove"
    echo 32M >"/sys/block/zram$number/disksize"
    dd if=/dev/urandom of="/dev/zram$number" bs=1M count=8 oflag=direct status=none
    profiled --device "zram$number" -- --filename="/dev/zram$number" --size=8M --rw=randread --bs=128k --direct=1 --ioengine=psync
    same "reads" "$(operations '.interface == "call" and .action == "read" and .bytes_max == 131072' .count)" "$(fio_count read)"
    same "seen to end" "$(devices '.action == "read"' .count)" "$(jq '[.operations[] | select(.action == "read") | .bios] | add' "$work/p.json")"
    same "bios not seen whole" "$(jq .probes.unclear_bios "$work/p.json")" 0
fi

if command -v mkfs.xfs >/dev/null && fresh_loop "$work/xfs.img" 320; then
    mkfs.xfs -q -f "/dev/$loop"
    mkdir "$work/xfs"
    if mount "/dev/$loop" "$work/xfs" 2>/dev/null; then
        at_end "umount -l '$work/xfs'"
        echo "· syncs on xfs, whose log any worker of the kernel writes"
        profiled --device "$loop" -- --filename="$work/xfs/log" --rw=write --bs=4k --ioengine=psync --fsync=1 --size=800k
        same "syncs" "$(operations '.action == "sync"' .count)" "$(jq '.jobs[0].sync.lat_ns.N' "$work/fio.json")"
        at_least "syncs: data and log" "$(operations '.action == "sync"' .bios)" $(( 2 * $(jq ".jobs[0].sync.lat_ns.N" "$work/fio.json") ))
    fi
fi

echo "· the page, the matrix, a rack's own layers"
"$SWITCHYARD" profile --html "$work/page.html" --save "$work/p.json" -- $FIO $(file) --rw=randread --bs=4k --direct=1 --ioengine=psync --number_ios=2000 >"$work/out" 2>&1 || fail "profile --html"
grep -q "<svg" "$work/page.html" || fail "the page has no picture"
if [[ $(jq '.stacks.samples // 0' "$work/p.json") -gt 0 ]]; then
    grep -q "Flame graph" "$work/page.html" || fail "the page has no flame graph"
else
    fail "no stack was sampled"
fi
"$SWITCHYARD" profile matrix --out "$work/matrix" --systems raw,switchyard --sizes 4KiB --seconds 0.3 --json >"$work/matrix.out" || fail "profile matrix"
# Where a copy to or from memory is all that happens the probes may cost more than it: such a cell is refused, and says so.
[[ $(jq '[.outcomes[], (.refused[] | select(.[0].engine == "buffered"))] | length' "$work/matrix.out") == 8 ]] || { cat "$work/matrix.out" >&2; fail "the matrix lacks cells"; }
[[ $(jq '[.outcomes[] | select(.software_share <= 0 or .software_share > 1)] | length' "$work/matrix.out") == 0 ]] || fail "a share that cannot be"
[[ ! -e $work/matrix/matrix.img && ! -e $work/matrix/mount ]] || fail "the matrix left its device behind"
jq -e '.outcomes[] | select(.cell.system == "switchyard") | .layers | map(.[0]) | contains(["client and socket", "block switch", "device", "reply"])' \
    "$work/matrix.out" >/dev/null || fail "the target's cells lack its own layers"
losetup -a | grep -q "$work/matrix" && fail "the matrix left a loop device behind"

"$SWITCHYARD" serve --json --media mem:64MiB --name disk --nbd 127.0.0.1:0 --control 127.0.0.1:0 >"$work/serve.json" 2>"$work/serve.err" &
target=$!
at_end "kill $target 2>/dev/null"
await_line "$work/serve.json" "$target" || fail "the target: $(cat "$work/serve.err")"
fio --name=r --ioengine=nbd "--uri=$(jq -r '.volumes[0].nbd[0]' "$work/serve.json")" --rw=randrw --bs=4k --size=8M --time_based --runtime=20 --output=/dev/null &
client=$!
sleep 1
"$SWITCHYARD" profile --target "$(jq -r .control "$work/serve.json")" --seconds 1 --save "$work/served.json" >"$work/out" || fail "profile --target of a target"
kill "$client"; wait "$client" || true
kill -TERM "$target"; wait "$target" || fail "the target's stop"
for action in read write; do
    jq -e ".operations[] | select(.action == \"$action\" and .bytes_max == 4096) | (.count > 0) and (.software_share > 0) and
        (([.layers[].mean_us] | add) / .mean_us | . > 0.999 and . < 1.001)" "$work/served.json" >/dev/null ||
        { cat "$work/out" >&2; fail "the target's layers do not sum to a $action"; }
done

start_rack "$work/rack" --media memory --size 128MiB --demo 64MiB
fio --name=r --ioengine=nbd "--uri=$URI" --rw=randrw --bs=4k --size=8M --time_based --runtime=20 --output=/dev/null &
client=$!
sleep 1
"$SWITCHYARD" profile --target "$CONTROL" --seconds 2 --save "$work/own.json" >"$work/out" || fail "profile --target"
kill "$client"; wait "$client" || true
stop_rack
jq -e '.operations[] | select(.action == "read") | (.count > 0) and (([.layers[].mean_us] | add) >= .mean_us * 0.99)' "$work/own.json" >/dev/null ||
    { cat "$work/out" >&2; fail "the rack's layers do not sum to a read"; }
"$SWITCHYARD" profile diff "$work/p.json" "$work/own.json" >"$work/out" || fail "profile diff"
expect_text "FTL and media"

echo "· what a profiler or a matrix that was killed has left is gone after the next; a program that does not want to end"
"$SWITCHYARD" profile --seconds 60 >/dev/null 2>&1 &
killed=$!
instance=/sys/kernel/tracing/instances/switchyard-$killed-events
for (( i = 0; i < 400; i++ )); do [[ -d $instance ]] && break; sleep 0.05; done
kill -9 "$killed"; wait "$killed" || true
[[ -d $instance ]] || fail "there was nothing to leave"
"$SWITCHYARD" profile --json --seconds 0.2 -- sh -c 'trap "" TERM; sleep 1; sleep 1; sleep 1' >"$work/p.json" || fail "a program that was ended"
[[ ! -d $instance ]] || fail "the killed profiler's buffers are still there"
other=/sys/kernel/tracing/instances/other-$$
if mkdir "$other" && echo function >"$other/current_tracer" 2>/dev/null; then
    "$SWITCHYARD" profile -- true >"$work/out" 2>&1 && fail "beside a tracer of functions"
    expect_text "the tracer \`function\` is on"
    echo nop >"$other/current_tracer"
fi
rmdir "$other"
"$SWITCHYARD" profile matrix --out "$work/matrix" --again --systems ext4 --sizes 4KiB --seconds 60 >/dev/null 2>&1 &
killed=$!
# The matrix first fills a gibibyte, which takes minutes on a busy disk.
for (( i = 0; i < 6000; i++ )); do [[ -e $work/matrix/mount/file ]] && break; sleep 0.05; done
[[ -e $work/matrix/mount/file ]] || fail "the matrix does not begin"
(( $(stat -c %b "$work/matrix/matrix.img") * 512 >= 1 << 30 )) || fail "the file system has discarded what is to be read of the device later"
"$SWITCHYARD" profile matrix --out "$work/matrix" --systems raw >"$work/out" 2>&1 && fail "two at one place"
expect_text "in use by another matrix"
kill -9 "$killed"; wait "$killed" || true
# Its load ends with its file; until then the mount is in use, and the matrix says so.
for (( i = 0; i < 60; i++ )); do
    "$SWITCHYARD" profile matrix --out "$work/matrix" --again --systems raw --sizes 64KiB --seconds 0.2 >"$work/out" 2>&1 && break
    expect_text "busy"
    sleep 1
done
expect_text "cells in"
losetup -a | grep -q "$work/matrix" && fail "the killed matrix's loop device is still there"

fresh_loop "$work/named.img" 400 || fail "a loop device"
expect_code 2 "$SWITCHYARD" profile matrix --out "$work/named" --device "/dev/$loop" --systems raw --sizes 4KiB <<<"/dev/$loop"
expect_text "--yes"
expect_code 2 "$SWITCHYARD" profile matrix --out "$work/named" --device "$work/named.img" --yes --systems raw --sizes 4KiB
expect_text "not a block device"
named=("$SWITCHYARD" profile matrix --out "$work/named" --device "/dev/$loop" --yes --again --sizes 4KiB)
setsid "${named[@]}" --systems ext4 --seconds 60 >/dev/null 2>&1 &
killed=$!
for (( i = 0; i < 1200; i++ )); do [[ -e $work/named/mount/file ]] && break; sleep 0.05; done
kill -9 -- "-$killed"; wait "$killed" || true
for (( i = 0; i < 60; i++ )); do
    "${named[@]}" --systems raw --seconds 0.2 >"$work/out" 2>&1 && break
    expect_text "busy"
    sleep 1
done
expect_text "cells in"
"${named[@]}" --systems switchyard --seconds 60 >/dev/null 2>&1 &
killed=$!
for (( i = 0; i < 1200; i++ )); do target=$(pgrep -P "$killed" -f "serve --media") && break; sleep 0.05; done
kill -9 "$killed"; wait "$killed" || true
for (( i = 0; i < 200; i++ )); do kill -0 "$target" 2>/dev/null || break; sleep 0.05; done
kill -0 "$target" 2>/dev/null && fail "the killed matrix's target is still there"

echo "· a PID namespace, a process that nobody waits for, more threads than files, stopped before it began, a full disk"
if unshare -p -f -m --mount-proc true 2>/dev/null; then
    expect_code 1 unshare -p -f -m --mount-proc "$SWITCHYARD" profile -- true
    expect_text "PID namespace"
    expect_code 0 unshare -p -f -m --mount-proc "$SWITCHYARD" profile --seconds 0.1
fi
mkfifo "$work/go"
sh -c '(read -r line <"$1") & echo $! >"$0"; exec sleep 600' "$work/zombie" "$work/go" &
parent=$!
at_end "kill $parent 2>/dev/null"
await_line "$work/zombie" "$parent" || fail "no process"
"$SWITCHYARD" profile --pid "$(cat "$work/zombie")" >"$work/out" 2>&1 &
profiler=$!
instance=/sys/kernel/tracing/instances/switchyard-$profiler-events
for (( i = 0; i < 400; i++ )); do [[ -d $instance ]] && break; sleep 0.05; done
echo >"$work/go"
for (( i = 0; i < 1200; i++ )); do kill -0 "$profiler" 2>/dev/null || break; sleep 0.05; done
kill -9 "$profiler" 2>/dev/null && fail "a process that has ended is waited for"
wait "$profiler" || fail "profile of a process that ends"
kill "$parent"

fio --name=t $(file) --size=48M --thread --numjobs=300 --rw=randread --bs=4k --direct=1 --ioengine=psync --rate_iops=10 \
    --time_based --runtime=60 --output=/dev/null &
other=$!
for (( i = 0; i < 400; i++ )); do (( $(ls "/proc/$other/task" | wc -l) > 300 )) && break; sleep 0.05; done
(ulimit -n 128 && "$SWITCHYARD" profile --stacks --json --device "$disk" --pid "$other" --seconds 1 >"$work/p.json") || fail "a process with many threads"
kill "$other"; wait "$other" || true
at_least "many threads: reads" "$(operations '.interface == "call" and .action == "read"' .count)" 300
at_least "many threads: stacks" "$(jq .stacks.samples "$work/p.json")" 1

"$SWITCHYARD" profile -- touch "$work/ran" >"$work/out" 2>&1 &
asked=$!
while kill -0 "$asked" 2>/dev/null && [[ ! -d /sys/kernel/tracing/instances/switchyard-$asked-calibrate ]]; do :; done
kill -TERM "$asked"; wait "$asked" && fail "a profile that was stopped before it began"
expect_text "before the program was started"
[[ ! -e $work/ran ]] || fail "the program ran all the same"

expect_code 1 "$SWITCHYARD" profile --save /dev/full -- true
expect_text "No space left"
expect_text "ns an event"
true
