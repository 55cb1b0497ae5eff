#!/bin/bash
# A rolling upgrade. All parts of a rack begin in the version before, and are replaced one after the other while clients write
# stamped data to two volumes: nodes, ToRs, gateways. No client sees an error but a closed connection, no promise of an
# acknowledged write is broken, and every set has all its copies again before the next part goes. Then the rack's level rises by
# itself, and old parts are refused with a clear word. SWITCHYARD_BEFORE names the older program; else old parts are held to
# level 1.
source "$(dirname "$0")/lib.sh"
need jq python3

before=${SWITCHYARD_BEFORE:-}
registry=$work/registry
control() { echo "http://127.0.0.1:$(( port_base + 50 + $1 ))"; }
nbd() { echo "127.0.0.1:$(( port_base + 40 + $1 ))/$2"; }
rack() { local at=$1; shift; "$SWITCHYARD" "$@" --control "$(control "$at")"; }

# command NAME: what starts a part, in the array `command`.
command() {
    local id=${1: -1}
    case $1 in
    tor*) command=(tor --listen "$(udp $(( 6 + id )))") ;;
    node*) command=(node --id "$id" --listen "$(udp "$id")" --tor "$(udp 7)" --tor "$(udp 8)" --dir "$work/node$id" --size 192MiB) ;;
    gateway*)
        command=(gateway --dir "$work/gateway$id" --registry "$registry" --listen "$(udp $(( 10 + id )))" --tor "$(udp 7)"
            --tor "$(udp 8)" --node "1=$(udp 1)" --node "2=$(udp 2)" --node "3=$(udp 3)"
            --nbd "127.0.0.1:$(( port_base + 40 + id ))" --control "$(control "$id" | cut -c8-)" --rebuild-after-s 60)
        ;;
    esac
}
# old NAME, new NAME: starts a part in the version before, or in this one.
old() {
    command "$1"
    if [[ -n $before ]]; then
        SWITCHYARD=$before part "$1" "${command[@]}"
    else
        part "$1" "${command[@]}" --level-max 1
    fi
}
new() { command "$1"; part "$1" "${command[@]}"; }
stop() {
    kill -TERM "${pids[$1]}"
    wait "${pids[$1]}" || fail "$1 stopped with $?"
}
# told AT: what a gateway tells of everything, once it answers.
told() { rack "$1" status --json 2>/dev/null || true; }
# await SECONDS TEXT COMMAND…: waits until the command prints the text.
await() {
    local until=$(( SECONDS + $1 )) wanted=$2
    shift 2
    until [[ $("$@" 2>/dev/null) == "$wanted" ]]; do
        (( SECONDS < until )) || { rack 1 status >&2; fail "$* does not tell \`$wanted\` but \`$("$@" 2>&1)\`"; }
        sleep 0.1
    done
}
# wholes: the volumes of which a gateway that is there says that they have all their copies.
wholes() {
    local at
    for at in 1 2; do told "$at"; done | jq -r '.volumes[] | select(.state == "ready") | .name' | sort -u | xargs
}
# serves NODE TIME: if a start of the node since then serves all its vSSDs.
serves() {
    told 1 | jq -r --argjson since "$2" ".nodes[] | select(.id == $1) |
        .answers and .status.boot >= \$since and .status.vssds > 0 and .status.serving == .status.vssds"
}
whole() { await 15 "a b" wholes; }
leads() { told "$1" | jq -r '[.volumes[] | select(.state == "ready")] | length'; }
spread() { whole; await 15 1 leads 1; await 15 1 leads 2; }
level() { told "$1" | jq -r .rack.level; }
waits_for() { curl -sf "$(control 1)/metrics" | sed -n 's/^switchyard_rack_level_waits_for{} \([0-9]*\).*/\1/p'; }
refusal() { rack "$1" node list --json | jq -r '[.[] | select(.refused) | .id] | join(" ")'; }
logged() { grep -c -- "$2" "$work/$1.err" || true; }

for name in tor1 tor2 node1 node2 node3 gateway1; do old "$name"; done
rack 1 volume create a --size 16MiB >/dev/null
rack 1 volume create b --size 16MiB --replicas 3 >/dev/null
old gateway2
spread
declare -A loads
for name in a b; do
    python3 "$here/nbd_log.py" follow "$(nbd 1 "$name"),$(nbd 2 "$name")" "$work/state.$name" 120 >"$work/load.$name" 2>"$work/load.$name.err" &
    loads[$name]=$!
    at_end "kill -9 $! 2>/dev/null"
done

[[ -n $before ]] || await 10 7 waits_for
for name in tor1 node1 node2 node3 tor2 gateway1 gateway2; do
    [[ $(level 2) != 2 ]] || fail "the level has risen before $name was replaced"
    stop "$name"
    since=$(date +%s)
    new "$name"
    case $name in
    gateway*) spread ;;
    node*)
        await 15 true serves "${name: -1}" "$since"
        whole
        ;;
    *) whole ;;
    esac
    echo "· $name is of this version"
done
await 15 2 level 1
await 15 2 level 2
rack 1 events --json | grep -q level-raised || fail "nothing tells that the level has risen"
echo "· $(rack 1 status | grep '^rack at')"
[[ $(told 1 | jq -r '[.rack.parts[].levels.max] | unique | join(" ")') == 2 ]] || { told 1 | jq .rack >&2; fail "parts tell other levels"; }
for name in a b; do
    kill -0 "${loads[$name]}" || { cat "$work/load.$name"* >&2; fail "a client of $name ended"; }
done

echo "· a gateway of the version before does not start"
stop gateway2
command gateway2
if [[ -n $before ]]; then
    expect_code 1 "$before" "${command[@]}"
    expect_text "use a newer program"
else
    expect_code 2 "$SWITCHYARD" "${command[@]}" --level-max 1
    expect_text "the rack is at level 2, and this is version"
    expect_text "without --level-max"
fi
new gateway2
echo "· a ToR of the version before is told of"
stop tor2
old tor2
await 10 1 logged gateway1 tor-refused
[[ -n $before ]] || await 5 1 logged tor2 tor-refused
rack 1 status | grep "^ToR.*does not serve: the rack is at level 2" >/dev/null || { rack 1 status >&2; fail "the status does not say why"; }
stop tor2
new tor2
echo "· a node of the version before is refused, and the rack goes on without it"
stop node3
old node3
await 10 3 refusal 1
[[ -n $before ]] || (( $(logged node3 node-refused) == 1 )) || fail "the node does not say why it keeps silent"
(( $(logged gateway1 node-refused) == 1 )) || fail "the gateway does not tell of the node"
expect_code 0 rack 1 node list
expect_text "does not serve: the rack is at level 2"
stop node3
new node3
await 10 "" refusal 1
whole

for name in a b; do
    kill -TERM "${loads[$name]}"
    wait "${loads[$name]}" || { cat "$work/load.$name"* >&2; fail "a client of $name saw an error"; }
    python3 "$here/nbd_log.py" check "$(nbd 1 "$name")" "$work/state.$name" 2>/dev/null >"$work/check" ||
        python3 "$here/nbd_log.py" check "$(nbd 2 "$name")" "$work/state.$name" || fail "$name: promises broken"
    echo "· $name: $(cat "$work/load.$name")"
done
(( $(rack 1 events --json | grep -cE 'writes-lost|request-failed') == 0 )) || fail "writes were lost, or a request failed"
