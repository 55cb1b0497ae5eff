#!/bin/bash
# Images as they are: served to their last block, shared by readers, unchanged by a start, known by their UUIDs, and by no path
# told to clients. More clients than files may be open are refused, and the others served. Holes are told to
# clients, which skip them.
source "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy qemu-img qemu-io python3 jq curl

uri=nbd://127.0.0.1:$nbd_port/disk

# start_target FLAG…: starts a target and waits until it is ready.
start_target() {
    : >"$work/rack.json"
    : >"$work/rack.err"
    "$SWITCHYARD" serve --json --nbd "127.0.0.1:$nbd_port" --name disk "$@" >"$work/rack.json" 2>"$work/rack.err" &
    rack_pid=$!
    await_line "$work/rack.json" "$rack_pid" || fail "the target did not become ready"
}

echo "· every whole block of an image is served, and what is left is told"
head -c $(( (1 << 20) + 3 * 512 + 100 )) /dev/urandom >"$work/odd.img"
cp "$work/odd.img" "$work/was.img"
start_target --media "$work/odd.img"
[[ $(nbdinfo --size "$uri") == $(( (1 << 20) + 3 * 512 )) ]] || fail "the tail of the image is not served"
grep -q "the last 100 bytes" "$work/rack.err" || fail "nothing tells of the rest"
[[ $(nbdinfo --json "$uri" | jq -r '.exports[0].description') != *"$work"* ]] || fail "clients see the path"
nbdcopy "$uri" "$work/read.img"
cmp -n $(( (1 << 20) + 3 * 512 )) "$work/read.img" "$work/was.img" || fail "the image reads otherwise"
head -c $(( (1 << 20) + 3 * 512 )) /dev/urandom >"$work/new.img"
nbdcopy --flush "$work/new.img" "$uri"
kill_rack
cat "$work/new.img" <(tail -c 100 "$work/was.img") | cmp - "$work/odd.img" || fail "the image holds something else"

echo "· a partition table at the end of an image arrives"
truncate -s $(( (4 << 20) + 512 )) "$work/gpt.img"
printf 'EFI PART' | dd of="$work/gpt.img" bs=1 seek=$(( 4 << 20 )) conv=notrunc status=none
start_target --media "$work/gpt.img"
nbdcopy "$uri" - | tail -c 512 | grep -q 'EFI PART' || fail "the backup of the partition table is gone"
stop_rack

echo "· a device with blocks of 4096 bytes takes changes of sectors"
head -c 1M /dev/urandom >"$work/large.img"
if (( EUID == 0 )) && device=$(losetup -f --show -b 4096 "$work/large.img" 2>/dev/null); then
    at_end "losetup -d $device"
    start_target --media "$device"
    qemu-io -f raw -d unmap -c "discard 512 9k" -c "write -z 20992 512" -c "write -P 5 512 512" -c "read -P 5 512 512" \
        -c "read -P 0 1024 8k" -c "read -P 0 20992 512" -c flush "$uri" >"$work/changes.log" || fail "$(<"$work/changes.log")"
    stop_rack
else
    echo "  (left out: it needs root and loop devices)"
fi

echo "· readers share an image that may not be written"
chmod a-w "$work/odd.img"
at_end "chattr -i '$work/odd.img' 2>/dev/null || true"
chattr +i "$work/odd.img" 2>/dev/null || echo "  (not immutable: the file system does not know how)"
start_target --media "$work/odd.img" --read-only
[[ $(nbdinfo --json "$uri" | jq '.exports[0].is_read_only') == true ]] || fail "clients are not told"
expect_code 4 "$SWITCHYARD" serve --media "$work/odd.img" --read-only --nbd "127.0.0.1:$nbd_port"
expect_text "stop its user"
"$SWITCHYARD" serve --json --media "$work/odd.img" --read-only --nbd 127.0.0.1:0 >"$work/second.json" 2>"$work/second.err" &
second=$!
await_line "$work/second.json" "$second" || fail "a second reader was refused"
nbdcopy "$(jq -r '.volumes[0].nbd[0]' "$work/second.json")" "$work/read.img"
kill -TERM "$second"
wait "$second" || fail "the second reader did not end well"
cat "$work/read.img" <(tail -c 100 "$work/was.img") | cmp - "$work/odd.img" || fail "a reader read something else"
stop_rack
chattr -i "$work/odd.img" 2>/dev/null || true

echo "· a volume keeps its UUID, and shares it with no other"
# uuid_of FLAG…: the UUID of the volume that these serve goes to $work/uuid.
uuid_of() {
    start_target --nvme "127.0.0.1:$(( nbd_port + 3 ))" "$@"
    jq -r '.volumes[0].uuid' "$work/rack.json" >"$work/uuid"
    kill_rack
}
# differs FLAG…: this target's volume has another UUID than that of the file.
differs() {
    uuid_of "$@"
    [[ $(<"$work/uuid") != "$first" ]] || fail "two volumes have the UUID $first: $*"
}
truncate -s 16M "$work/a.img"
uuid_of --media "$work/a.img"
first=$(<"$work/uuid")
# stays PATH: the volume there still has the UUID of the file.
stays() {
    uuid_of --media "$1"
    [[ $(<"$work/uuid") == "$first" ]] || fail "the volume in $1 became another"
}
stays "$work/a.img"
mv "$work/a.img" "$work/b.img"
stays "$work/b.img"
cp -a "$work/b.img" "$work/a.img"
differs --media "$work/a.img"
differs --media mem:16MiB
differs --media "vssd:$work/v.img,size=16MiB"
vssd=$(<"$work/uuid")
uuid_of --media "vssd:$work/v.img"
[[ $(<"$work/uuid") == "$vssd" ]] || fail "the vSSD became another volume"
uuid_of --media mem:16MiB
second=$(<"$work/uuid")
uuid_of --media mem:16MiB
[[ $(<"$work/uuid") != "$second" ]] || fail "two volumes in memory have one UUID"
given=9f0c1d52-4b0e-4d6c-8f7e-2a91c35be604
uuid_of --media mem:16MiB --uuid "disk=$given"
[[ $(<"$work/uuid") == "$given" ]] || fail "the UUID is not as given"
expect_code 2 "$SWITCHYARD" serve --media mem:16MiB --uuid "other=$given"
expect_text "no volume has this name"
expect_code 2 "$SWITCHYARD" serve --media mem:16MiB --media mem:16MiB --uuid "disk=$given" --uuid "disk2=$given" \
    --nvme "127.0.0.1:$(( nbd_port + 3 ))"
expect_text "would take them for one disk"

# bytes_out: payload and headers that the target has sent to NBD clients.
bytes_out() { curl -sf "$CONTROL/v1/status" | jq '[.cores[].nbd_bytes_out] | add'; }

# expect_map EXTENT…: holes and data of the disk, each as OFFSET,LENGTH,TYPE; of both clients that ask.
expect_map() {
    local expected
    expected=$(printf '%s\n' "$@")
    [[ $(nbdinfo --map --json "$uri" | jq -r '.[] | "\(.offset),\(.length),\(.type)"') == "$expected" ]] ||
        { nbdinfo --map "$uri" >&2; fail "nbdinfo: another map"; }
    [[ $(qemu-img map -f raw --output=json "$uri" |
        jq -r '.[] | "\(.start),\(.length),\(if .zero then 3 else 0 end)"') == "$expected" ]] ||
        { qemu-img map -f raw --output=json "$uri" >&2; fail "qemu-img: another map"; }
}

mib=$(( 1 << 20 ))
truncate -s 256M "$work/sparse.img"
for media in mem:256MiB "$work/sparse.img" vssd:mem,size=256MiB "vssd:$work/sparse.vssd,size=256MiB"; do
    echo "· $media: clients skip holes"
    start_target --media "$media" --control "127.0.0.1:$control_port"
    expect_map "0,$(( 256 * mib )),3"
    qemu-io -f raw -c "write -P 7 64M 8M" -c "write -P 9 $(( 200 * mib + 512 )) 512" "$uri" >/dev/null
    data=("$(( 64 * mib )),$(( 8 * mib )),0" "$(( 72 * mib )),$(( 128 * mib )),3" "$(( 200 * mib )),4096,0"
        "$(( 200 * mib + 4096 )),$(( 56 * mib - 4096 )),3")
    expect_map "0,$(( 64 * mib )),3" "${data[@]}"
    before=$(bytes_out)
    rm -f "$work/copy.img"
    nbdcopy "$uri" "$work/copy.img"
    sent=$(( $(bytes_out) - before ))
    (( sent > 8 * mib && sent < 9 * mib )) || fail "$sent bytes were sent for $(( 8 * mib + 4096 )) of data"
    (( $(stat -c '%b * %B' "$work/copy.img") < 9 * mib )) || fail "the copy has no holes"
    qemu-img compare -f raw -F raw "$uri" "$work/copy.img" >/dev/null || fail "the copy is another image"
    before=$(bytes_out)
    qemu-img convert -f raw -O qcow2 "$uri" "$work/copy.qcow2"
    sent=$(( $(bytes_out) - before ))
    (( sent > 8 * mib && sent < 9 * mib )) || fail "$sent bytes were sent to qemu-img"
    qemu-img compare -f raw -F qcow2 "$uri" "$work/copy.qcow2" >/dev/null || fail "the qcow2 is another image"
    qemu-io -f raw -d unmap -c "discard 64M 4M" -c "discard 71M $(( mib + 4096 ))" "$uri" >/dev/null
    expect_map "0,$(( 68 * mib )),3" "$(( 68 * mib )),$(( 3 * mib )),0" "$(( 71 * mib )),$(( 129 * mib )),3" "${data[@]:2}"
    stop_rack
done

echo "· more clients than files may be open"
(
    ulimit -n 300
    start_target --media mem:16MiB
    grep -q -- "--connections is [0-9]*, not 1024" "$work/rack.err" || fail "nothing tells of fewer connections"
    python3 - "$nbd_port" <<'PY'
import resource, socket, sys, time
port = int(sys.argv[1])
idle = []
for _ in range(290):
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(0.01)
    idle.append(s)
time.sleep(0.5)
served = 0
for s in idle:
    s.settimeout(5)
    try:
        served += s.recv(8) == b"NBDMAGIC"
    except ConnectionError:
        pass
assert 100 < served < 290, served
for s in idle:
    s.close()
PY
    for (( i = 0; i < 50; i++ )); do nbdinfo --size "$uri" >/dev/null 2>&1 && break; sleep 0.1; done
    nbdinfo --size "$uri" >/dev/null || fail "the target did not recover"
    stop_rack
)
echo "done"
