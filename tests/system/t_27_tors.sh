#!/bin/bash
# A rack with two ToRs, verified I/O without a pause: the first ToR is killed, started again, stood still and let go on, and
# then it is gone for ever. One node prefers the second ToR. No client sees an error, and no copy is lost.
source "$(dirname "$0")/lib.sh"
need curl fio jq

first=$(udp 0) second=$(udp 8)
tor() { part "$1" tor --listen "$2" --control "127.0.0.1:$3"; }
rack() { "$SWITCHYARD" "$@" --control "$CONTROL"; }
# tors: what the gateway sees of the ToRs, the first one first: used, stands-by or silent.
tors() {
    rack status --json | jq -r --arg first "$first" '[.tors | sort_by(.addr != $first)[] |
        if .used then "used" elif .answers then "stands-by" else "silent" end] | join(" ")'
}
await_tors() {
    local i
    for (( i = 0; i < 300; i++ )); do
        [[ $(tors) == "$1" ]] && return 0
        sleep 0.05
    done
    rack events >&2
    fail "the ToRs are not \`$1\` but \`$(tors)\`"
}
events() { rack events --json | jq -r .name | grep -c "$1" || true; }

expect_code 2 "$SWITCHYARD" tor --listen 0.0.0.0:8888
expect_code 2 "$SWITCHYARD" node --id 1 --listen "$(udp 1)" --tor "$first" --tor "$first"
expect_text "named twice"

tor first "$first" "$(( control_port + 40 ))"
tor second "$second" "$(( control_port + 41 ))"
for id in 1 2 3; do
    tors_of="--tor $first --tor $second"
    (( id == 3 )) && tors_of="--tor $second --tor $first"
    part "node$id" node --id "$id" --listen "$(udp "$id")" $tors_of --dir "$work/node$id" --size 256MiB
done
part gateway gateway --dir "$work/gateway" --listen "$(udp 9)" --tor "$first" --tor "$second" --node "1=$(udp 1)" \
    --node "2=$(udp 2)" --node "3=$(udp 3)" --demo 64MiB --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port"

fio --name=verified --ioengine=nbd --uri="$URI" --rw=randrw --bs=4k --iodepth=8 --size=48M --io_size=100G \
    --rate_iops=1000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --verify_state_save=0 \
    --output-format=json --output="$work/fio" 2>"$work/fio.err" &
load=$!
at_end "kill -9 $load 2>/dev/null"
await_tors "used stands-by"
sleep 2.5

echo "· the first ToR is killed, and started again"
kill -9 "${pids[first]}"
await_tors "silent used"
expect_code 0 rack status
expect_text "does not answer"
tor first "$first" "$(( control_port + 40 ))"
await_tors "used stands-by"
echo "· it stands still, and goes on"
kill -STOP "${pids[first]}"
await_tors "silent used"
[[ $(curl -sf "$CONTROL/metrics" | grep -c "^switchyard_tor_up{tor=\"$first\"} 0") == 1 ]] || fail "no metric tells it"
kill -CONT "${pids[first]}"
await_tors "used stands-by"
echo "· it is gone for ever"
kill -9 "${pids[first]}"
await_tors "silent used"
sleep 2

kill -0 "$load" 2>/dev/null || { cat "$work/fio" "$work/fio.err" >&2; fail "the load ended"; }
kill -INT "$load"
wait "$load" || true
# fio says before its JSON that it was interrupted.
sed -n '/^{/,$p' "$work/fio" >"$work/fio.json"
[[ $(jq '[.jobs[].error] | add' "$work/fio.json") == 0 ]] || { cat "$work/fio" >&2; fail "a client saw an error"; }
longest() { jq "[.jobs[].$1.lat_ns.max] | max / 1e6 | floor" "$work/fio.json"; }
(( $(events tor-silent) >= 3 && $(events tor-back) >= 2 )) || { rack events >&2; fail "the events do not tell of the ToRs"; }
(( $(events 'member-expelled\|request-failed\|writes-lost') == 0 )) || { rack events >&2; fail "a copy was lost"; }
echo "· longest read $(longest read) ms, write $(longest write) ms"
