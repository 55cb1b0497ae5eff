#!/bin/bash
# What `switchyard run` leaves behind when its program has gone into the background: a keeper, which ends after the last process of the run.
source "$(dirname "$0")/lib.sh"
need python3 setsid ss
need_disk

# `run_keeper.py` asks it what the area has.
export SWITCHYARD
area=$work/area
mkdir "$work/files"
run=("$SWITCHYARD" run --area "$area" --size 32MiB --match 'f*')
keepers() { pgrep -f "^switchyard run-keeper --area $area\$" || true; }
daemons() { pgrep -f "run_keeper.py daemon $work/files" || true; }
at_end 'kill -9 $(keepers) $(daemons) 2>/dev/null'
# until_true WHAT COMMAND…: waits for it, for ten seconds at most.
until_true() {
    local what=$1 i
    shift
    for (( i = 0; i < 200; i++ )); do
        "$@" && return
        sleep 0.05
    done
    fail "$what"
}
gone() { [[ -z $(keepers) ]]; }
daemon=(python3 "$here/run_keeper.py" daemon "$work/files")
# ask WORD…: the daemon does it, and answers.
ask() {
    echo "$*" >"$work/files/ask.new"
    rm -f "$work/files/answer"
    mv "$work/files/ask.new" "$work/files/ask"
    until_true "the daemon does not answer to: $*" test -e "$work/files/answer"
    cat "$work/files/answer"
}

# bug: a caller that waits for the end of standard output waited for the keeper. It has nothing of its caller's.
echo "· run returns as before, and leaves nothing open"
exec 7>"$work/seven"
code=0
said=$(timeout 20 "${run[@]}" -- "${daemon[@]}" 3 2>"$work/said.err") || code=$?
exec 7>&-
(( code == 3 )) || fail "run ended with $code, and its program with 3"
[[ $said == started ]] || fail "said: $said"
keeper=$(keepers)
socket=$(ss -xlpH | grep "pid=$keeper," | awk '{ print $5 }' | grep switchyard-run/) || true
[[ $keeper =~ ^[0-9]+$ ]] || fail "no keeper, or several: $keeper"
grep -q "the keeper, process $keeper," "$work/said.err" || { cat "$work/said.err" >&2; fail "run does not name the keeper"; }
[[ $(readlink "/proc/$keeper/cwd") == / ]] || fail "the keeper keeps $(readlink "/proc/$keeper/cwd") busy"
for fd in /proc/"$keeper"/fd/*; do
    case $(readlink "$fd") in
        /dev/null | /proc | socket:* | /memfd:* | "") ;;
        *) fail "the keeper has $(readlink "$fd") open" ;;
    esac
done
read -r _ _ _ _ _ session _ terminal _ < <(sed 's/(.*)/x/' "/proc/$keeper/stat" | sed 's/^/x /')
[[ $session == "$keeper" ]] || fail "the keeper is of the session $session"

# bug: a program that the daemon started later wrote what the daemon followed, and neither knew of the other.
echo "· a program that starts later is told what is followed"
[[ $(ask followed) == yes ]] || fail "the area has nothing of the daemon's file"
[[ $(ask helper) == 0 ]] || fail "the helper has failed"
[[ $(ask followed) == no ]] || fail "the daemon's file is still followed"

echo "· the next run names the keeper, and the program to end"
code=0
timeout 20 "${run[@]}" -- true 2>"$work/next.err" || code=$?
(( code == 4 )) || fail "the next run ended with $code"
grep -q "in use by process $(daemons) (python3), which a .* has left in the background: end that program. The keeper of the run, process $keeper," \
    "$work/next.err" || { cat "$work/next.err" >&2; fail "it does not say who has the area"; }

echo "· signals of a terminal or a service do not end the keeper"
kill -HUP "$keeper"
kill -TERM "$keeper"
kill -INT "$keeper"
sleep 0.2
[[ $(keepers) == "$keeper" ]] || fail "it has ended"

echo "· the keeper settles the area of a daemon that is killed, and ends"
[[ $(ask another) == 0 ]] || fail "no other file"
kill -9 "$(daemons)"
until_true "the keeper does not end" gone
"$SWITCHYARD" store verify "$area" | grep -q "files: Map, 0 entries" || fail "the area keeps something"
[[ -n $socket && ! -e $socket ]] || fail "the keeper leaves its socket"
timeout 20 "${run[@]}" --quiet -- true || fail "the next run does not start"

echo "· a daemon that has not opened anything yet is waited for"
"${run[@]}" --quiet -- sh -c "sleep 1; exec ${daemon[*]} 0 >/dev/null 2>&1" &
wait $! || fail "it ended with $?"
[[ -n $(keepers) ]] || fail "no keeper"
kill "$(daemons)"
until_true "the keeper does not end" gone
# The shell ends while its child is between two programs.
for _ in {1..20}; do
    "${run[@]}" --quiet -- bash -c "sleep 5 </dev/null >/dev/null 2>&1 &"
    [[ -n $(keepers) ]] || fail "a program that was just starting has no keeper"
    pkill -x -P 1 -f "^sleep 5$" || true
    until_true "the keeper does not end" gone
done

echo "· no keeper without processes in the background"
"${run[@]}" --quiet -- sh -c 'true; true'
[[ -z $(keepers) ]] || fail "there is one"

# bug: then nobody told a new program what the daemon follows. fix: the daemon sees it, and follows nothing more.
echo "· a keeper that is killed: the daemon follows nothing more"
"${run[@]}" --quiet -- "${daemon[@]}" 0 >/dev/null
[[ $(ask followed) == yes ]] || fail "the area has nothing of the daemon's file"
kill -9 $(keepers)
is_given_up() { [[ $(ask followed) == no ]]; }
until_true "the daemon's file is still followed" is_given_up
kill -9 "$(daemons)"

echo "· a keeper and a daemon that are killed: the next run recovers"
"${run[@]}" --quiet -- "${daemon[@]}" 0 >/dev/null
[[ $(ask another) == 0 ]] || fail "no other file"
kill -9 $(keepers) "$(daemons)"
timeout 20 "${run[@]}" --quiet -- true || fail "the next run does not start"
"$SWITCHYARD" store verify "$area" | grep -q "files: Map, 0 entries" || fail "the area keeps something"

# bug: it made a table of its own, followed files by that, and its processes did not know of each other.
echo "· a program that nobody answers follows nothing, and says so"
export RUN_KEEPER="python3 $here/run_keeper.py"
# `run` takes its program with it, and not what that has started.
alone='kill -9 $PPID; while kill -0 $PPID 2>/dev/null; do sleep 0.02; done; exec $RUN_KEEPER late "$0"'
"${run[@]}" --quiet -- sh -c "($alone) & wait" "$work/files" 2>"$work/said.err" || true
until_true "the program does not end" test -e "$work/files/late"
[[ $(cat "$work/files/late") == no ]] || fail "the area has something of its file"
grep -q "neither the run of this program nor a keeper of it answers" "$work/said.err" \
    || { cat "$work/said.err" >&2; fail "it does not say so"; }
