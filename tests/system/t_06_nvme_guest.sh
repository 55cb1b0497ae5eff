#!/bin/bash
# Linux' own NVMe/TCP host as the judge: a guest with Debian's stock kernel finds, connects, formats, fills, trims and
# checks volumes of `switchyard serve`, and lives through a kill of the target. What it does is in guest/init; how it is
# made, in guest/image.sh. It runs emulated where there is no KVM that can start it.
source "$(dirname "$0")/lib.sh"
need qemu-system-x86_64 jq

nvme_port=$(( port_base + 8 )) second_port=$(( port_base + 9 )) kept_port=$(( port_base + 10 ))
nqn=nqn.2026-11.io.switchyard
image=${CARGO_TARGET_DIR:-$root/target}/guest
console=$work/console

echo "· the guest's image"
code=0
bash "$here/guest/image.sh" "$image" >"$work/image.log" 2>&1 || code=$?
(( code != 77 )) || skip "$(tail -n 1 "$work/image.log" | sed 's/^skipped: //')"
(( code == 0 )) || { cat "$work/image.log" >&2; fail "the image could not be made"; }

# guest ACCELERATOR ARGUMENT…: becomes the emulator; the arguments are for `init`. `max`: with CRC32 instructions, for the
# digests.
guest() {
    local accelerator=$1
    shift
    exec qemu-system-x86_64 -accel "$accelerator" -machine pc -cpu max -smp 2 -m 512 -nodefaults -nographic -no-reboot \
        -serial "file:$console" -kernel "$image/vmlinuz" -initrd "$image/initramfs" \
        -netdev user,id=net -device virtio-net-pci,netdev=net,romfile= \
        -append "console=ttyS0 quiet loglevel=1 panic=-1 log_buf_len=1M $*" >"$work/qemu.log" 2>&1 </dev/null
}

# accelerator: KVM if it starts the guest. Where virtual machines are nested it may be there and stand still, so that is
# tried once per start of this machine.
accelerator() {
    local verdict found=tcg boot
    boot=$(cat /proc/sys/kernel/random/boot_id)
    verdict=$(cat "$image/accelerator" 2>/dev/null || true)
    if [[ $verdict == *" $boot" ]]; then
        echo "${verdict% *}"
        return 0
    fi
    if [[ -r /dev/kvm && -w /dev/kvm ]]; then
        # Started in two seconds where it works.
        (export -f guest; export image console work; timeout 10 bash -c 'guest kvm PROBE=1') || true
        ! grep -aq '^GUEST ENDS' "$console" || found=kvm
    fi
    echo "$found $boot" >"$image/accelerator"
    echo "$found"
}

# serve NAME FLAG…: a target of its own; its pid is in ${pids[NAME]}.
declare -A pids
serve() {
    local name=$1
    shift
    : >"$work/$name.json"
    "$SWITCHYARD" serve --name "$name" --json "$@" >"$work/$name.json" 2>>"$work/rack.err" &
    pids[$name]=$!
    at_end "kill -9 $! 2>/dev/null"
    await_line "$work/$name.json" "${pids[$name]}" || fail "the target of $name did not become ready"
}
serve_kept() { serve kept --media "$work/kept.medium:256MiB" --nvme "127.0.0.1:$kept_port"; }

# await_guest WORDS: until the guest has said this; fails if it says that it failed, ends, or is silent for too long.
await_guest() {
    local i
    for (( i = 0; i < 6000; i++ )); do
        ! grep -aq "^$1" "$console" || return 0
        if grep -aq '^GUEST ENDS' "$console" || ! kill -0 "$guest_pid" 2>/dev/null; then
            break
        fi
        sleep 0.1
    done
    tr -d '\r' <"$console" | grep -a -A 200 '^RESULT [^ ]* FAILED' >&2 || tail -n 60 "$console" >&2
    fail "the guest did not say: $1"
}

# shown NAME: what the guest showed.
shown() { tr -d '\r' <"$console" | sed -n "/^BEGIN $1\$/,/^END $1\$/p" | sed '1d;$d'; }
# judge NAME FILTER: what it showed fulfils a condition of jq.
judge() {
    shown "$1" | jq -e --arg nqn "$nqn" "$2" >/dev/null || { shown "$1" >&2; fail "$1: not so: $2"; }
}

with=$(accelerator)
serve disk --media mem:640MiB --nvme "127.0.0.1:$nvme_port" --nvme "127.0.0.1:$second_port" --referral "127.0.0.1:$kept_port"
serve_kept
: >"$console"
echo "· a guest, $with"
guest "$with" "PORT=$nvme_port SECOND=$second_port KEPT=$kept_port" &
guest_pid=$!
at_end "kill -9 $guest_pid 2>/dev/null"

await_guest "DO kill"
echo "· the target of a mounted volume is killed, and started again"
kill -9 "${pids[kept]}"
wait "${pids[kept]}" 2>/dev/null || true
await_guest "DO start"
# The host tries every second: at least once in vain.
sleep 2
serve_kept
await_guest "GUEST IS DONE"
wait "$guest_pid" || fail "the emulator ended with $?"
! grep -a '^RESULT [^ ]* FAILED' "$console" || fail "the guest failed"
(( $(grep -ac '^RESULT [^ ]* ok' "$console") > 35 )) || fail "the guest left steps out"

echo "· what it was told"
judge discover '[.records[] | select(.subnqn == $nqn + ":disk") | .trsvcid] | length == 2'
judge discover 'any(.records[]; .subtype | test("referral"))'
judge discover 'all(.records[]; .trtype == "tcp" and .adrfam == "ipv4" and .treq != "unrecognized" and .sectype == "none")'
judge id-ctrl '.subnqn == $nqn + ":disk" and (.mn | startswith("Switchyard")) and .cntrltype == 1 and .nn == 1'
judge id-ctrl '.sqes == 102 and .cqes == 68 and .kas > 0 and .ver >= 131072 and .maxcmd >= 128 and .mdts == 8'
judge id-ns '.nsze == 1310720 and .ncap == .nsze and .lbafs[.flbas].ds == 9 and .anagrpid == 1 and .nguid != "0" * 32'
judge list '[.Devices[] | select(.PhysicalSize == 671088640 and .SectorSize == 512)] | length == 1'
judge list-subsys '[.. | .Subsystems? // empty | .[] | select(.NQN == $nqn + ":disk") | .Paths[] | select(.State == "live")] | length == 1'
judge ana-log '.ngrps == 1 and ([.. | .state? // empty] == ["optimized"])'
judge effects-log '.[0].io_cmd_set | length == 6'
judge ns-descs '[.["ns-descs"][].type] == ["nguid", "uuid", "csi"]'
judge list-ns '[.nsid_list[].nsid] == [1]'
judge fw-log '.[] | has("Firmware Rev Slot 1")'
judge smart-log '.critical_warning == 0 and .media_errors == "0" and (.host_write_commands | tonumber) > 0'
judge smart-log '.temperature == 300 and (.num_err_log_entries | tonumber) == 3'
# What the guest provoked, the newest first: an unknown command, a read past the end, a comparison that was false.
judge error-log '[.errors[] | select(.error_count > 0) | [.error_count, .lba, .status_field % 16384, .trtype]] ==
    [[3, 0, 1, 3], [2, 1310720, 128, 3], [1, 100, 645, 3]]'
for limit in logical_block_size:512 max_hw_sectors_kb:1024 "write_cache:write back" fua:1 write_zeroes_max_bytes:33554432; do
    shown limits | grep -q "/$limit\$" || { shown limits >&2; fail "the kernel took other limits than $limit"; }
done
[[ $(shown limits | sed -n 's/.*discard_max_bytes://p') -gt 0 ]] || fail "the kernel would not discard"
echo "· $(grep -ac '^RESULT [^ ]* ok' "$console") steps, $(tr -d '\r' <"$console" | sed -n 's/^RESULT .* ok \(.*\)/\1/p' | tail -n 1) s in the guest"
