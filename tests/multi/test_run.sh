#!/usr/bin/env bash
# weft run, as a user sees it: output, placement, exit status, signals, and that nothing stays behind.
# usage: test_run.sh path/to/weft path/to/rank_program
. "$(dirname "$0")/../support/command.sh"
weft=$1
program=$2
mark="weft-test-$$"

# expect NAME STATUS command…: output in $scratch/out, errors in $scratch/err
expect()
{
    ends "$@" >"$scratch/out"
}

# The processes with the mark in their command line. (pgrep is not on every machine.)
marked()
{
    grep -lsaF -f "$scratch/mark" /proc/[0-9]*/cmdline | cut -d/ -f3
}

# Nothing marked may be alive after a short while.
gone()
{
    local tries
    for tries in $(seq 100); do
        [ -z "$(marked)" ] && return 0
        sleep 0.05
    done
    fail "$1: left behind: $(marked)"
    kill -9 $(marked)
}
echo "$mark" >"$scratch/mark"

expect "all well" 0 "$weft" run -n 3 -- sh -c 'echo rank $WEFT_RANK of $WEFT_SIZE'
[ "$(sort "$scratch/out" | tr '\n' ,)" = "rank 0 of 3,rank 1 of 3,rank 2 of 3," ] || fail "merged: $(cat "$scratch/out")"

expect "prefixes" 0 "$weft" run -n 2 --output prefix -- sh -c 'echo one; echo two >&2; printf three'
says out "[0] one"
says out "[1] three"
says err "[1] two"
[ "$(wc -l <"$scratch/out")" = 4 ] || fail "prefix: expected 4 lines: $(cat "$scratch/out")"

expect "more ranks than cores" 0 "$weft" run -n 9 -- "$program" barriers 200
expect "ranks share memory" 0 "$weft" run -n=4 -- "$program" barriers 200
expect "one rank" 0 "$weft" run -n 1 -- "$program" barriers 200

expect "a status" 7 "$weft" run -n 3 -- sh -c '[ $WEFT_RANK = 1 ] && exit 7; exec sleep 100'
says err "rank 1 (process "
says err "ended with status 7"
expect "a signal" 139 "$weft" run -n 3 -- sh -c '[ $WEFT_RANK = 2 ] && kill -SEGV $$; exec sleep 100'
says err "rank 2 (process "
says err "was ended by signal 11"
expect "no such program" 127 "$weft" run -n 2 -- /no/such/program
says err "cannot start /no/such/program"

# A rank that ends without weft_init is not waited for until the deadline.
expect "a rank that never enters" 1 "$weft" run -n 2 -- sh -c "[ \$WEFT_RANK = 1 ] || exec '$program' barriers 10"
says err "rank 1 ended before every rank had come to weft_init"

for flag in --foo -x; do
    expect "unknown flag" 2 "$weft" run -n 2 "$flag" -- true
    [ "$(wc -l <"$scratch/err")" = 1 ] || fail "an unknown flag should be one line: $(cat "$scratch/err")"
done
expect "no ranks" 2 "$weft" run -- true
expect "zero ranks" 2 "$weft" run -n 0 -- true
expect "no program" 2 "$weft" run -n 2
expect "unknown placement" 2 "$weft" run -n 2 --bind moon -- true
expect "too few cores" 2 "$weft" run -n 1000 --bind core -- true
expect "anywhere" 0 "$weft" run -n 2 --bind none -- true
expect "by node" 0 "$weft" run -n 2 --bind numa -- true
if [ "$(nproc)" -ge 2 ]; then
    expect "disjoint cores" 0 "$weft" run -n 2 -- sh -c 'grep Cpus_allowed_list: /proc/self/status'
    [ "$(sort -u "$scratch/out" | wc -l)" = 2 ] || fail "both ranks have the same cores: $(cat "$scratch/out")"
fi

# Signals reach the ranks; a rank that ignores them is killed; what ranks started ends too.
for signal in INT TERM HUP; do
    "$weft" run -n 2 -- sh -c "sleep 1000; true $mark" 2>/dev/null &
    front=$!
    sleep 0.2
    kill -$signal $front
    wait $front
    got=$?
    [ $got = $((128 + $(kill -l $signal))) ] || fail "SIG$signal: status $got"
    gone "SIG$signal"
done

"$weft" run -n 2 -- sh -c "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.05; done; true $mark" >"$scratch/out" &
front=$!
for _ in $(seq 600); do
    [ "$(grep -c ready "$scratch/out")" = 2 ] && break
    sleep 0.05
done
kill -USR1 $front
wait $front
[ "$(grep -c heard "$scratch/out")" = 2 ] || fail "USR1 was not passed on to both ranks"
gone "USR1"

# The front is killed outright: nothing survives, not even what ranks left in the background.
"$weft" run -n 3 -- sh -c "sh -c 'trap \"\" HUP TERM INT; sleep 1000; true $mark' & sleep 1000; true $mark" &
front=$!
sleep 0.3
kill -9 $front
wait $front 2>/dev/null
gone "killed front"

# The same for the process that looks after the ranks.
"$weft" run -n 3 -- sh -c "sleep 1000; true $mark" 2>/dev/null &
front=$!
while warden=$(awk -v front=$front '$4 == front {print $1}' /proc/[0-9]*/stat 2>/dev/null); [ -z "$warden" ]; do
    sleep 0.1
done
sleep 0.3
kill -9 "$warden"
wait $front
[ $? = 137 ] || fail "killed warden: status $?"
gone "killed warden"

# A caller that ignores SIGCHLD, as a parent may leave it.
deaf()
{
    timeout 60 env --ignore-signal=CHLD "$@" # shells and timeout reset it for themselves and their children
}
expect "children ignored" 0 deaf "$weft" run -n 2 -- true
expect "children ignored, a status" 7 deaf "$weft" run -n 2 -- sh -c "[ \$WEFT_RANK = 1 ] && exit 7; sleep 1000; true $mark"
gone "children ignored"

# What nohup started outlives its terminal; SIGTERM still ends it.
(trap '' HUP && exec "$weft" run -n 2 -- sh -c "sleep 1000; true $mark") 2>/dev/null &
front=$!
sleep 0.3
kill -HUP $front
sleep 0.3
[ "$(marked | wc -l)" -ge 2 ] || fail "nohup: SIGHUP ended the ranks"
kill -TERM $front
wait $front
[ $? = 143 ] || fail "nohup: SIGTERM did not end it"
gone "nohup"

# Descriptors run out: an error, not a wait. A soft limit is no limit.
few()
{
    (ulimit "$1" 64 && shift && exec timeout 60 "$@")
}
expect "no descriptors" 1 few -n "$weft" run -n 64 --output prefix -- sh -c "sleep 1000; true $mark"
says err "Too many open files"
gone "no descriptors"
expect "few descriptors" 0 few -Sn "$weft" run -n 64 --output prefix -- sh -c 'ulimit -n'
[ "$(sed 's/.* //' "$scratch/out" | sort -u)" = 64 ] || fail "ranks do not have the limit they inherit: $(sort -u "$scratch/out")"

# Lines that cannot be written are not lost without a word; a reader that is gone ends the job, as it ends a program.
if [ -c /dev/full ]; then
    ends "no room" 1 sh -c "exec '$weft' run -n 2 --output prefix -- echo line >/dev/full"
    says err "cannot write the output of the ranks"
fi
"$weft" run -n 2 --output prefix -- yes 2>"$scratch/err" | head -n 1 >/dev/null
[ "${PIPESTATUS[0]}" = 141 ] || fail "no reader: status ${PIPESTATUS[0]}"
[ -s "$scratch/err" ] && fail "no reader: $(cat "$scratch/err")"

# Without /proc the ranks themselves are still found. (Where the test may hide it; AddressSanitizer needs it.)
hidden()
{
    unshare -m sh -c 'mount -t tmpfs none /proc && exec timeout 60 "$@"' hidden "$@"
}
if hidden true 2>/dev/null && ! grep -qa __asan_init "$weft"; then
    expect "no /proc" 0 hidden "$weft" run -n 2 -- true
    expect "no /proc, a status" 7 hidden "$weft" run -n 2 -- sh -c "[ \$WEFT_RANK = 1 ] && exit 7; exec sleep 1000"
    expect "no /proc, a daemon" 0 hidden "$weft" run -n 2 -- sh -c "(sleep 3; true) & true"
    says err "cannot be found without /proc"
    ends "no /proc, a bench" 0 hidden "$weft" bench barrier --peer none --iters 5 --json >/dev/null
fi

# Ranks that end leave nothing of theirs behind.
expect "daemons" 0 "$weft" run -n 2 -- sh -c "(sleep 1000; true $mark) & true"
gone "daemons"

[ $failures = 0 ]
