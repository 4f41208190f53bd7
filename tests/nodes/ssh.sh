#!/usr/bin/env bash
# weft run --hosts by ssh itself, to an sshd of this test's own on the loopback network; skipped where there is none.
# usage: ssh.sh WEFT TEST_NODES_RUN
set -u
weft=$1 run=$2
work=$(mktemp -d)
mark=over-ssh-$$
failed=0
daemon=

tidy() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
    rm -rf "$work"
}
trap tidy EXIT

fail() {
    echo "ssh.sh: $*" >&2
    failed=1
}

skip() {
    echo "test_nodes_ssh: skipped: $*"
    exit 77
}

nothing_left() {
    for _ in $(seq 1 600); do
        pgrep -f "$mark" >/dev/null || return 0
        sleep 0.05
    done
    fail "$1: left behind: $(pgrep -af "$mark" | tr '\n' ';')"
    pgrep -f "$mark" | xargs -r kill -9
}

sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) && command -v ssh ssh-keygen >/dev/null || skip "there is no sshd and ssh"
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd || skip "sshd has no place for its own"
port=$((20000 + $$ % 12000))
ssh-keygen -q -t ed25519 -N '' -f "$work/host" && ssh-keygen -q -t ed25519 -N '' -f "$work/key" || skip "no keys can be made"
cat >"$work/sshd_config" <<END
ListenAddress 127.0.0.1
Port $port
HostKey $work/host
AuthorizedKeysFile $work/key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
END
cat >"$work/config" <<END
Host *
    Port $port
    HostName 127.0.0.1
    IdentityFile $work/key
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile $work/known
    LogLevel ERROR
END
"$sshd" -D -f "$work/sshd_config" -E "$work/log" &
daemon=$!
agent="ssh -F $work/config -o BatchMode=yes"
for _ in $(seq 1 100); do
    $agent first true 2>/dev/null && break
    kill -0 $daemon 2>/dev/null || skip "sshd does not run here: $(tail -1 "$work/log")"
    sleep 0.05
done
$agent first true 2>/dev/null || skip "sshd lets nobody in: $(tail -1 "$work/log")"
here=(--agent "$agent" --master 127.0.0.1)

got=$(cd "$work" && "$weft" run --hosts first:2,second "${here[@]}" -- sh -c 'echo "$WEFT_RANK $WEFT_NODE $(pwd)"' | sort)
[ "$got" = "$(printf '%s\n' "0 first $work" "1 first $work" "2 second $work")" ] || fail "ranks saw: $got"
"$weft" run --hosts first:2,second:1 "${here[@]}" -- "$run" skew 10 "$mark" || fail "operations over ssh"
got=$("$weft" run --hosts first:1,second:1 "${here[@]}" -- sh -c '[ "$WEFT_RANK" != 1 ] || exit 5; sleep 30' "$mark" 2>&1)
[ $? = 5 ] || fail "the status of a rank is not that of the job"
[[ $got == *"rank 1 on second "*"ended with status 5"* ]] || fail "the rank that failed is not named: $got"
nothing_left "a rank that failed"
for signal in TERM KILL; do
    "$weft" run --hosts first:1,second:1 "${here[@]}" -- sh -c 'echo up; sleep 30' "$mark" >"$work/out" 2>/dev/null &
    pid=$!
    for _ in $(seq 1 1200); do [ "$(grep -c up "$work/out")" = 2 ] && break; sleep 0.05; done
    kill -$signal $pid
    wait $pid 2>/dev/null
    nothing_left "SIG$signal"
done
exit $failed
