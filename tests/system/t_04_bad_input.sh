#!/bin/bash
# Wrong input, full disks, damaged media: each is told in a sentence with its own exit code, and healthy copies serve.
source "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy python3 jq

up() { "$SWITCHYARD" up --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port" --rack-port "$rack_port" "$@"; }

echo "· wrong configuration"
expect_code 2 up --dir "$work/x" --size 1MiB
expect_text "size = 1 MiB"
expect_code 2 up --dir "$work/x" --nodes 2 --replicas 3
expect_text "replicas = 3"
expect_code 2 up --dir "$work/x" --timing nope
expect_text "p-ssd"
echo 'colour = "blue"' >"$work/bad.toml"
expect_code 2 up --config "$work/bad.toml"
expect_text "colour"
expect_code 2 up --config "$work/none.toml"
expect_code 2 "$SWITCHYARD" node --id 1 --listen 0.0.0.0:1 --tor 127.0.0.1:2
expect_text "must reach this address"
[[ ! -e $work/x ]] || fail "a refused start left a directory behind"

echo "· no rack"
expect_code 3 "$SWITCHYARD" status --control "$CONTROL"
expect_text "switchyard up"
expect_code 2 "$SWITCHYARD" verify "$work"
expect_code 2 "$SWITCHYARD" verify "$work/none"
expect_code 2 "$SWITCHYARD" sim run nope

echo "· a disk that is too small"
if (( EUID == 0 )) && mkdir "$work/small" && mount -t tmpfs -o size=64m tmpfs "$work/small" 2>/dev/null; then
    at_end "umount -l '$work/small'"
    expect_code 1 up --dir "$work/small/rack" --size 128MiB
    expect_text "bytes too little"
    expect_text "--size"
else
    echo "  (left out: it needs root)"
fi

echo "· a running rack refuses what makes no sense"
start_rack "$work/rack" --size 128MiB --demo 64MiB
expect_code 4 up --dir "$work/rack"
expect_text "pid $rack_pid"
expect_code 4 up --dir "$work/other" --size 64MiB
expect_text "in use"
expect_code 2 "$SWITCHYARD" verify "$work/rack"
expect_text "in use"
volume() { "$SWITCHYARD" volume --control "$CONTROL" "$@"; }
expect_code 2 volume create odd --size 1000
expect_text "512"
expect_code 1 volume create demo --size 1MiB
expect_text "exists already"
expect_code 1 volume create huge --size 1TiB
expect_text "bytes short"
expect_code 2 volume create 'a b' --size 1MiB
expect_code 2 volume show 'a/b'
expect_code 1 volume show none
expect_text "volume list"
if nbdinfo "nbd://127.0.0.1:$nbd_port/none" >/dev/null 2>&1; then
    fail "an unknown export was served"
fi
(( $(volume list --json | jq length) == 1 )) || fail "a refused volume was left behind"

echo "· junk on every port"
python3 - "$nbd_port" "$control_port" "$rack_port" <<'PY'
import random, socket, sys
nbd, control, rack = map(int, sys.argv[1:])
rng = random.Random(1)
for port in (nbd, control):
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port)) as s:
            try:
                s.sendall(rng.randbytes(rng.randrange(1, 5000)))
            except OSError:
                pass
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(3000):
    udp.sendto(rng.randbytes(rng.randrange(0, 5000)), ("127.0.0.1", rack + rng.randrange(6)))
PY
nbdinfo "$URI" >/dev/null || fail "junk stopped the rack"

echo "· a damaged medium: the other copy serves, verify tells"
python3 - "$work/data" <<'PY'
import sys
with open(sys.argv[1], "wb") as file:
    for block in range(1024):
        file.write((b"damage me %08d " % block * 300)[:4096])
    file.write(bytes((64 << 20) - file.tell()))
PY
nbdcopy --flush "$work/data" "$URI"
# Entries written later say that the earlier ones were durable: damage to those is corruption, not an unfinished write.
PYTHONPATH=$here python3 - "127.0.0.1:$nbd_port/demo" <<'PY'
import sys
from nbd_log import Nbd
nbd = Nbd(sys.argv[1])
for number in range(64):
    nbd.send(1, number, (8 << 20) + number * 4096, 4096, b"later " * 682 + b"stop")
    assert nbd.reply() == (0, number)
nbd.send(3, 99)
assert nbd.reply() == (0, 99)
PY
nbdcopy "$URI" "$work/data"
stop_rack
python3 - "$work/rack/node-1.img" <<'PY'
import mmap, sys
for path in sys.argv[1:]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        at = damaged = 0
        while damaged < 8 and (at := image.find(b"damage me ", at)) >= 0:
            if at % 4096 == 0:
                image[at + 100] ^= 0x10
                damaged += 1
            at = (at // 4096 + 1) * 4096
        assert damaged, "no data on the medium"
PY
expect_code 1 "$SWITCHYARD" verify "$work/rack"
expect_text "node-1.img: 8 problems"
"$SWITCHYARD" verify "$work/rack/node-1.img" --json >"$work/verify.json" && fail "verify called a damaged medium clean"
[[ $(jq '.files[0].problems | length' "$work/verify.json") == 8 ]] || fail "verify missed some damage"
start_rack "$work/rack"
nbdcopy "$URI" "$work/back"
cmp "$work/data" "$work/back" || fail "damage reached a client"
stop_rack

echo "· a medium that is gone: its volume fails with a remedy, others are served"
start_rack "$work/rack"
expect_code 0 volume create solo --size 1MiB --replicas 1
gone=$(volume show solo --json | jq '.sets[0].replicas[0].node')
stop_rack
mv "$work/rack/node-$gone.img" "$work/kept.img"
start_rack "$work/rack"
volume show solo --json >"$work/solo.json"
[[ $(jq -r .state "$work/solo.json") == failed ]] || fail "a volume without its data is not failed"
jq -r .problem "$work/solo.json" | grep -q "node $gone" || fail "the problem does not name the node"
stop_rack
mv "$work/kept.img" "$work/rack/node-$gone.img"
start_rack "$work/rack"
[[ $(volume show solo --json | jq -r .state) == ready ]] || fail "the medium's return did not heal the volume"
nbdcopy "$URI" "$work/back"
cmp "$work/data" "$work/back" || fail "the absence changed data"
stop_rack

echo "· a registry that is gone: a new one adopts no vSSD with data"
mv "$work/rack/registry.json" "$work/registry.json"
expect_code 1 timeout 60 "$SWITCHYARD" up --dir "$work/rack" --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port" \
    --rack-port "$rack_port" --demo 1MiB
expect_text "belong to another rack"
mv "$work/registry.json" "$work/rack/registry.json"
start_rack "$work/rack"
nbdcopy "$URI" "$work/back"
cmp "$work/data" "$work/back" || fail "the registry's absence changed data"
stop_rack
