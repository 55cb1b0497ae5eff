#!/bin/bash
# Linux' own NVMe/TCP host as the judge: a guest with Debian's stock kernel finds, connects, formats, fills, trims and
# checks volumes of `switchyard serve`, lives through a kill of the target, and reserves a volume as two hosts. What it does is in guest/init; how it is
# made, in guest/image.sh. It runs emulated where there is no KVM that can start it.
source "$(dirname "$0")/lib.sh"
need qemu-system-x86_64 jq
source "$here/guest/lib.sh"

nvme_port=$(( port_base + 8 )) second_port=$(( port_base + 9 )) kept_port=$(( port_base + 10 ))
stranger_port=$(( port_base + 11 ))
# serve WHO FLAG…: a target of its own; its pid is in ${pids[WHO]}.
declare -A pids
serve() {
    local who=$1
    shift
    : >"$work/$who.json"
    "$SWITCHYARD" serve --json "$@" >"$work/$who.json" 2>>"$work/rack.err" &
    pids[$who]=$!
    at_end "kill -9 $! 2>/dev/null"
    await_line "$work/$who.json" "${pids[$who]}" || fail "the target $who did not become ready"
}
kill_target() {
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
}
serve_stranger() { serve stranger --name disk --media mem:640MiB --nvme "127.0.0.1:$stranger_port"; }
serve_kept() { serve kept --name kept --media "$work/kept.medium:256MiB" --nvme "127.0.0.1:$kept_port"; }

serve disk --name disk --media mem:640MiB --nvme "127.0.0.1:$nvme_port" --nvme "127.0.0.1:$second_port" --referral "127.0.0.1:$kept_port"
serve_kept
serve_stranger
start_guest "PORT=$nvme_port SECOND=$second_port KEPT=$kept_port STRANGER=$stranger_port"

await_guest "DO rebirth"
echo "· the target of a mounted volume in memory is killed, and another one is started"
kill_target stranger
sleep 2
serve_stranger

await_guest "DO kill"
echo "· the target of a mounted volume is killed, and started again"
kill_target kept
await_guest "DO start"
# The host tries every second: at least once in vain.
sleep 2
serve_kept
end_guest 40

echo "· what it was told"
judge discover '[.records[] | select(.subnqn == $nqn + ":disk") | .trsvcid] | length == 2'
judge discover 'any(.records[]; .subtype | test("referral"))'
judge discover 'all(.records[]; .trtype == "tcp" and .adrfam == "ipv4" and .treq != "unrecognized" and .sectype == "none")'
judge id-ctrl '.subnqn == $nqn + ":disk" and (.mn | startswith("Switchyard")) and .cntrltype == 1 and .nn == 1'
judge id-ctrl '.sqes == 102 and .cqes == 68 and .kas > 0 and .ver >= 131072 and .maxcmd >= 128 and .mdts == 8'
judge id-ns '.nsze == 1310720 and .ncap == .nsze and .lbafs[.flbas].ds == 9 and .anagrpid == 1 and .nguid != "0" * 32'
judge id-ns '.nsfeat % 2 == 1 and .nuse == 0'
judge id-ns-used '.nuse > 0 and .nuse < .nsze'
judge list '[.Devices[] | select(.PhysicalSize == 671088640 and .SectorSize == 512)] | length == 1'
judge list-subsys '[.. | .Subsystems? // empty | .[] | select(.NQN == $nqn + ":disk") | .Paths[] | select(.State == "live")] | length == 1'
judge ana-log '.ngrps == 1 and ([.. | .state? // empty] == ["optimized"])'
judge effects-log '.[0].io_cmd_set | length == 10'
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

# Without multipath, so that two hosts in one kernel have a device each.
start_guest "RESERVE=1 nvme_core.multipath=N PORT=$nvme_port SECOND=$second_port"
end_guest 8
echo "· two hosts and a reservation"
judge id-ns-reservable '.rescap == 254 and .nmic == 1'
judge resv-report '.rtype == 1 and .regctl == 2 and .ptpls == 0 and ([.regctlext[].rkey] | sort) == [10, 11]'
judge resv-preempted '.rtype == 2 and .regctl == 1 and [.regctlext[] | [.rkey, .rcsts]] == [[11, 1]]'
judge resv-notif-log '.count == 1 and .rn_log_type == 1 and .nsid == 1'
