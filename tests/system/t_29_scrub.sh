#!/bin/bash
# Bytes flip on the medium of an idle node. The node finds the damage by itself, its peer repairs it, and the data are whole when
# the peer is gone.
source "$(dirname "$0")/lib.sh"
need nbdcopy jq python3

node() {
    part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/node$1" --size 128MiB \
        --scrub-mib-per-s 512 --scrub-every-s 1
}
# of_node1 KEY: from its status.
of_node1() { "$SWITCHYARD" status --json --control "$CONTROL" | jq -r ".nodes[] | select(.id == 1) | .status.$1"; }

part tor tor --listen "$(udp 0)"
node 1
node 2
part gateway gateway --dir "$work/gateway" --listen "$(udp 9)" --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" \
    --demo 16MiB --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port"
python3 - "$work/in.img" <<'PY'
import sys
with open(sys.argv[1], "wb") as image:
    for page in range(4096):
        image.write(b"page %07d" % page * 341 + b"\n" * 4)
PY
nbdcopy --flush "$work/in.img" "$URI"

echo "· bytes flip on the medium of node 1"
python3 - "$work/node1" <<'PY'
import pathlib, sys
medium = max(pathlib.Path(sys.argv[1]).rglob("*"), key=lambda path: path.stat().st_size)
content = medium.read_bytes()
with medium.open("r+b") as file:
    for page in range(5, 4096, 200):
        at = content.find(b"page %07d" % page)
        assert at >= 0, f"page {page} is not on the medium"
        file.seek(at + 1000)
        file.write(b"###")
PY
for (( i = 0; i < 300; i++ )); do
    repaired=$(of_node1 repaired_pages)
    (( repaired == 21 )) && break
    sleep 0.1
done
(( repaired == 21 && $(of_node1 damaged_pages) == 21 )) ||
    fail "of 21 damaged pages node 1 found $(of_node1 damaged_pages), and $repaired are repaired"
grep -q "page-repaired" "$work/node1.err" || fail "the log has no line of a repair"
"$SWITCHYARD" status --control "$CONTROL" | grep -q "21 repaired  scrubbed" || fail "status does not tell of it"

echo "· the other copy is gone, and the data are whole"
kill -9 "${pids[node2]}"
nbdcopy "$URI" "$work/out.img"
cmp "$work/in.img" "$work/out.img" || fail "other bytes came back"
kill -TERM "${pids[node1]}"
wait "${pids[node1]}" || fail "node 1 did not stop cleanly"
"$SWITCHYARD" verify "$work/node1" >/dev/null || fail "the medium of node 1 is damaged"
