# Shared by the tests that have a guest: its image, starting it, and what it says on its console. Sourced after ../lib.sh.

nqn=nqn.2026-11.io.switchyard
image=${CARGO_TARGET_DIR:-$root/target}/guest
console=$work/console

echo "· the guest's image"
code=0
# One makes it, and one guest at a time runs: an emulator needs two cores.
mkdir -p "$image"
exec {guest_lock}>"$image/lock"
flock "$guest_lock"
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

# await_guest WORDS: until the guest has said this; fails if it says that it failed, ends, or is silent for too long.
await_guest() {
    local i
    for (( i = 0; i < 6000; i++ )); do
        ! grep -aq "^$1" "$console" || return 0
        if grep -aq '^GUEST ENDS' "$console" || ! kill -0 "$guest_pid" 2>/dev/null; then
            # It may have said it after the first look, as its last words.
            ! grep -aq "^$1" "$console" || return 0
            break
        fi
        sleep 0.1
    done
    tr -d '\r' <"$console" | grep -a -A 200 '^RESULT [^ ]* FAILED' >&2 || tail -n 60 "$console" >&2
    tr -d '\r' <"$console" | sed -n '/^--- paths/,/^---/p' >"$work/failed"
    grep -a '^RESULT [^ ]* FAILED' "$console" >>"$work/failed" || true
    fail "the guest did not say: $1"
}

# shown NAME: what the guest showed.
shown() { tr -d '\r' <"$console" | sed -n "/^BEGIN $1\$/,/^END $1\$/p" | sed '1d;$d'; }
# judge NAME FILTER: what it showed fulfils a condition of jq.
judge() {
    shown "$1" | jq -e --arg nqn "$nqn" "$2" >/dev/null || { shown "$1" >&2; fail "$1: not so: $2"; }
}

# start_guest ARGUMENT…: the arguments are for `init`; its pid is in $guest_pid.
start_guest() {
    local with
    with=$(accelerator)
    : >"$console"
    echo "· a guest, $with"
    guest "$with" "$*" &
    guest_pid=$!
    at_end "kill -9 $guest_pid 2>/dev/null"
}
# end_guest STEPS: it has taken more than so many steps, all of them well.
end_guest() {
    await_guest "GUEST IS DONE"
    wait "$guest_pid" || fail "the emulator ended with $?"
    ! grep -a '^RESULT [^ ]* FAILED' "$console" || fail "the guest failed"
    (( $(grep -ac '^RESULT [^ ]* ok' "$console") > $1 )) || fail "the guest left steps out"
}
