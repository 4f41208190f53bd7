#!/usr/bin/env bash
# weft run --hosts: by an agent that behaves like ssh, and with network namespaces as hosts where that is possible.
# usage: hosts.sh WEFT TEST_NODES_RUN TEST_NODES_MOE; WEFT_SOAK=1 for the long form
set -u
weft=$1 run=$2 moe=$3
work=$(mktemp -d)
mark=hosts-$$
failed=0
spaces=()

tidy() {
    for i in "${!spaces[@]}"; do ip netns del "${spaces[$i]}" 2>/dev/null; done
    [ -z "${bridge:-}" ] || ip link del "$bridge" 2>/dev/null
    rm -rf "$work"
}
trap tidy EXIT

fail() {
    echo "hosts.sh: $*" >&2
    failed=1
}

# Waits until nothing is left that has the mark in its command line; each must be gone by itself.
nothing_left() {
    for _ in $(seq 1 600); do
        pgrep -f "$mark" >/dev/null || return 0
        sleep 0.05
    done
    fail "$1: left behind: $(pgrep -af "$mark" | tr '\n' ';')"
    pgrep -f "$mark" | xargs -r kill -9
}

# ---- an agent like ssh: another directory, no environment, words joined for a shell -----------------------
cat >"$work/agent" <<'END'
#!/bin/sh
[ "$1" != nowhere ] || { echo "no route to $1" >&2; exit 255; }
[ "$1" != mute ] || exec sleep "$MUTE"
shift
cd / && exec env -i PATH="$PATH" sh -c "$*"
END
chmod +x "$work/agent"
here=(--agent "$work/agent" --master 127.0.0.1)
cd "$work" || exit 1
export WEFT_LINK_TIMEOUT=60

got=$(WEFT_HEAP=32M "$weft" run --hosts a:2,b "${here[@]}" -- sh -c 'echo "$WEFT_RANK $WEFT_NODE $WEFT_HEAP $(pwd) $0"' "two  words" | sort)
want=$(printf '%s\n' "0 a 32M $work two  words" "1 a 32M $work two  words" "2 b 32M $work two  words")
[ "$got" = "$want" ] || fail "ranks saw: $got"
got=$(echo words | "$weft" run --hosts a:2,b "${here[@]}" -- sh -c 'wc -c' | tr -d ' \n')
[ "$got" = 000 ] || fail "standard input is not empty: $got"
got=$("$weft" run --hosts '[fd00::1]:2,b' "${here[@]}" -- sh -c 'echo "$WEFT_RANK $WEFT_NODE"' | sort | tr '\n' ' ')
[ "$got" = "0 fd00::1 1 fd00::1 2 b " ] || fail "an address as host: $got"
for wrong in fd00::1 fd00::1:2 '[fd00::1' '[a]b:1' a:0 a:2x 'a b'; do
    got=$("$weft" run --hosts "$wrong" "${here[@]}" -- true 2>&1)
    [ $? = 2 ] && [[ $got == *"as in a:4,b:4"*"not \"$wrong\""* ]] || fail "--hosts $wrong: $got"
done
"$weft" run --hosts a:2,b:2 "${here[@]}" -- "$run" skew 20 "$mark" || fail "skewed operations"
"$weft" bench moe -n 2 --nodes 2 --experts 8 --topk 4 --hidden 4096 --tokens 48 --dtype f32 --iterations 2 --warmup 1 >"$work/rounds" ||
    fail "rows that leave where they lie: $(cat "$work/rounds")"
"$weft" bench moe -n 5 --nodes 2 --experts 16 --topk 4 --hidden 8192 --tokens 48 --dtype f32 --mode reduced --iterations 2 --warmup 1 >"$work/rounds" ||
    fail "sums inside nodes, in several messages: $(cat "$work/rounds")"
got=$("$weft" run --hosts a:2,b:2 "${here[@]}" -- sh -c '[ "$WEFT_RANK" != 3 ] || exit 5; sleep 30' "$mark" 2>&1)
[ $? = 5 ] || fail "the status of a rank is not that of the job"
[[ $got == *"rank 3 on b "*"ended with status 5"* ]] || fail "the rank that failed is not named: $got"
nothing_left "a rank that failed"
got=$("$weft" run --hosts a:1,b:1 --agent "$work/agent" --master 'no such' -- true 2>&1)
[ $? = 0 ] || fail "a program that is no rank, with a master that is not known"
[[ $got == *'host b does not know "no such"'*--master* && $got != *"host a"* ]] || fail "a master that is not known: $got"
got=$("$weft" run --hosts a:1,nowhere:2 "${here[@]}" -- sleep 30 2>&1)
[ $? = 255 ] || fail "an agent that fails"
[[ $got == *"no route"*"host nowhere (ranks 1 to 2)"*"status 255"* ]] || fail "the host is not named: $got"
# An agent that hangs, also where the words for it are more than a pipe holds.
long=$(printf '%0100000d' 0)
got=$(MUTE=30.1$$ WEFT_ENTER_TIMEOUT=4 "$weft" run --hosts a:1,mute:2 "${here[@]}" -- sh -c "sleep 30.1$$" "$long" "$long" 2>&1)
[ $? = 1 ] || fail "an agent that hangs"
[[ $got == *"waiting for host mute (ranks 1 to 2)"*"WEFT_ENTER_TIMEOUT"*"host mute (ranks 1 to 2)"*"nothing there for 4 s"* ]] ||
    fail "the host that hangs is not named: $got"
pgrep -f "^sleep 30.1$$" >/dev/null && fail "what hangs is left"
# A signal while one agent hangs: it is killed without having been cut off, the host that answers ends by itself and in its
# own time: its rank takes as long as the agent is there, which is less than it has.
MUTE=30.2$$ "$weft" run --hosts a:1,mute:1 "${here[@]}" -- \
    sh -c 'trap "while pgrep -f \"^sleep 30.2$1\" >/dev/null; do sleep 0.1; done; echo ended; exit 9" TERM; echo up; sleep 30 & wait' "$mark" $$ >"$work/out" &
pid=$!
for _ in $(seq 1 1200); do grep -q up "$work/out" && break; sleep 0.05; done
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "a signal while an agent hangs"
[ "$(tr '\n' ' ' <"$work/out")" = "up ended " ] || fail "a signal while an agent hangs: $(cat "$work/out")"
nothing_left "a signal while an agent hangs"
# Another signal while ranks take their time to end takes none of it from them.
"$weft" run --hosts a:1,b:1 "${here[@]}" -- \
    sh -c 'trap : USR1; trap "until [ -e signalled ]; do sleep 0.05; done; echo cleaned; exit 9" TERM; echo up; sleep 30 & wait' "$mark" >"$work/out" &
pid=$!
for _ in $(seq 1 1200); do [ "$(grep -c up "$work/out")" = 2 ] && break; sleep 0.05; done
kill -TERM $pid
sleep 1.2
kill -USR1 $pid
sleep 0.3
touch signalled
wait $pid
[ $? = 143 ] || fail "two signals"
[ "$(grep -c cleaned "$work/out")" = 2 ] || fail "two signals: $(cat "$work/out")"
nothing_left "two signals"
# An agent that waits for whoever reads its output does not read that it is to end, and its ranks have their time nevertheless.
mkfifo "$work/slow"
{ until [ -e "$work/go" ]; do sleep 0.05; done; cat; } <"$work/slow" >"$work/out" &
"$weft" run --hosts a:1 "${here[@]}" --output prefix -- \
    sh -c 'trap "sleep 1; echo cleaned >cleaned; exit 9" TERM; yes | head -c 1000000 & echo up >up; wait; sleep 30 & wait' "$mark" >"$work/slow" &
pid=$!
for _ in $(seq 1 1200); do [ -e up ] && break; sleep 0.05; done
sleep 0.5
kill -TERM $pid
sleep 1.5
touch "$work/go"
wait $pid
[ $? = 143 ] || fail "output that nobody reads"
[ -e cleaned ] || fail "output that nobody reads: ranks had no time to end"
nothing_left "output that nobody reads"
"$weft" run --hosts a:1,b:1 "${here[@]}" -- sh -c 'trap "exit 9" TERM; echo up; sleep 30 & wait' "$mark" >"$work/out" &
pid=$!
for _ in $(seq 1 1200); do [ "$(grep -c up "$work/out")" = 2 ] && break; sleep 0.05; done
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "a signal"
nothing_left "a signal"
"$weft" run --hosts a:2,b:2 "${here[@]}" -- sleep 30.0$$ &
pid=$!
for _ in $(seq 1 1200); do [ "$(pgrep -fc "^sleep 30.0$$")" = 4 ] && break; sleep 0.05; done
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq 1 600); do pgrep -f "^sleep 30.0$$" >/dev/null || break; sleep 0.05; done
pgrep -f "^sleep 30.0$$" >/dev/null && fail "ranks outlive a launcher that was killed"

# ---- network namespaces -----------------------------------------------------------------------------------
# Skipped without root, ip or a kernel that has them, which ctest then says; where all are there, they must work.
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! unshare --net true 2>/dev/null; then
    echo "test_nodes_hosts: network namespaces skipped: they need root, ip and a kernel that has them"
    [ $failed = 0 ] && exit 77
    exit 1
fi
bridge=wt$$b
ip link add "$bridge" type bridge || { bridge=; fail "no bridge for network namespaces"; exit 1; }
net=10.$((64 + $$ % 128)).$(($$ / 128 % 250))
ip link set "$bridge" up
for i in 1 2 3; do
    ip netns add "wt$$n$i" && spaces+=("wt$$n$i")
    ip link add "wt$$v$i" type veth peer name eth0 netns "wt$$n$i"
    ip link set "wt$$v$i" master "$bridge" up
    ip -n "wt$$n$i" addr add "$net.$i/24" dev eth0
    ip -n "wt$$n$i" link set eth0 up
    ip -n "wt$$n$i" link set lo up
done

# usage: over "2 1" COMMAND...: so many ranks on each
over() {
    local list='' i=0 ranks
    for ranks in $1; do
        list+=${list:+,}${spaces[$i]}:$ranks
        i=$((i + 1))
    done
    shift
    "$weft" run --hosts "$list" --agent 'ip netns exec' --master "$net.1" -- "$@"
}

silence=2
[ "${WEFT_SOAK:-}" != 1 ] || silence=4

# usage: mishap PROGRAM "2 1" WHAT MS: does it in the middle of its operations; all others must print an error that names
# a rank, within so many ms in the long form
mishap() {
    local program=$1 ranks=$2 what=$3 most=$4 pid began lines victim=
    : >"$work/out" # what the last job said is not to be taken for this one's
    WEFT_LINK_TIMEOUT=$silence over "$ranks" "$program" loop "$mark" >"$work/out" 2>"$work/err" &
    pid=$!
    for _ in $(seq 1 1200); do grep -q running "$work/out" && break; sleep 0.05; done
    case $what in
    rank) victim=$(pgrep -f "^$program loop $mark" | tail -1) ;;
    member) victim=$(pgrep -P "$(pgrep -P $pid)" | tail -1) ;;
    esac
    began=$(date +%s%3N)
    # A job that nothing happens to runs for ever.
    if ! case $what in
        link) ip link set "wt$$v2" down ;;
        *) [ -n "$victim" ] && kill -KILL "$victim" ;;
        esac; then
        fail "$what: nothing to end in $ranks: $(cat "$work/out" "$work/err")"
        pkill -KILL -P $pid
        wait $pid
        nothing_left "$what"
        return
    fi
    wait $pid && fail "$what: the job ends with 0"
    [ "$what" != link ] || ip link set "wt$$v2" up
    lines=$(grep -c 'rank .*: .*rank [0-9]' "$work/out")
    [ "$lines" -ge 1 ] || fail "$what: no error that names a rank: $(cat "$work/out" "$work/err")"
    [ "${WEFT_SOAK:-}" != 1 ] || while read -r when _ rest; do
        [ $((when - began)) -le "$most" ] || fail "$what: $((when - began)) ms until rank $rest"
    done < <(grep ' rank ' "$work/out")
    nothing_left "$what"
}

# A link that is cut while two ranks wait for a third, which does not come: either says whom it has lost, within 5 s in
# the long form, and not when the deadline is over.
cut_early() {
    local pid began when
    : >"$work/out"
    WEFT_LINK_TIMEOUT=$silence over "1 1 1" sh -c '[ "$WEFT_RANK" != 2 ] || exec sleep 300; exec "$0" loop "$1"' "$run" "$mark" >"$work/out" 2>"$work/err" &
    pid=$!
    for _ in $(seq 1 1200); do # until rank 0 has what rank 1 says, and nothing more is on its way
        ip netns exec "${spaces[1]}" awk '$4 == "01" && $5 == "00000000:00000000" {n++} END {exit n != 1}' /proc/net/tcp && break
        sleep 0.05
    done
    sleep 0.3
    began=$(date +%s%3N)
    ip link set "wt$$v2" down
    wait $pid && fail "a link cut early: the job ends with 0"
    ip link set "wt$$v2" up
    grep -q 'rank [01] was lost while the ranks met: nothing has come' "$work/out" || fail "a link cut early: $(cat "$work/out" "$work/err")"
    [ "${WEFT_SOAK:-}" != 1 ] || while read -r when _; do
        [ $((when - began)) -le 5000 ] || fail "a link cut early: told after $((when - began)) ms"
    done < <(grep ' rank ' "$work/out")
    nothing_left "a link cut early"
}

over "2 1" "$moe" well "$mark" || fail "experts over two namespaces"
over "1 2 1" "$run" skew 60 "$mark" || fail "operations over three namespaces"
mishap "$run" "2 2" rank 1000
mishap "$run" "2 1" member 1000
mishap "$run" "1 1" link 5000
mishap "$moe" "1 2" link 5000
cut_early
if [ "${WEFT_SOAK:-}" = 1 ]; then
    for ranks in "1 1" "2 1" "2 2" "1 3 1" "2 2 2" "3 4" "2 3 3"; do
        over "$ranks" "$run" well "$mark" || fail "$ranks: collectives and products"
        over "$ranks" "$moe" well "$mark" || fail "$ranks: experts"
    done
    over "2 2 1" "$run" skew 10000 "$mark" || fail "10 000 operations under skew"
    for i in $(seq 1 17); do
        mishap "$run" "2 2" rank 1000
        mishap "$run" "1 2 1" member 1000
        mishap "$run" "2 1 1" link 5000
        mishap "$moe" "2 2" rank 1000
        mishap "$moe" "1 2 1" link 5000
        cut_early
    done
fi
nothing_left "the end"
exit $failed
