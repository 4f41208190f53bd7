#!/usr/bin/env bash
# Ranks on two network namespaces that mpirun and torchrun start, or, where there is no torchrun, ranks that have what
# it sets; skipped where there is no root, no namespaces or no mpirun. usage: launchers.sh WEFT TEST_NODES_RUN
set -u
weft=$1 run=$2
work=$(mktemp -d)
mark=wl$$
failed=0
names=()

tidy() {
    for name in "${names[@]}"; do
        ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "$name" 2>/dev/null
    done
    rm -rf "$work"
}
trap tidy EXIT

fail() {
    echo "launchers.sh: $*" >&2
    failed=1
}

skip() {
    echo "test_nodes_launchers: skipped: $*"
    exit 77
}

[ "$(id -u)" = 0 ] || skip "it needs root"
for tool in mpirun ip unshare; do
    command -v $tool >/dev/null || skip "there is no $tool"
done
mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip "mpirun is not Open MPI's"
ip netns add "${mark}n1" 2>/dev/null || skip "the system has no network namespaces"
names+=("${mark}n1")
ip netns add "${mark}n2" && names+=("${mark}n2")
net=10.$((64 + $$ % 128)).$(($$ / 128 % 250))
ip link add eth0 netns "${names[0]}" type veth peer name eth0 netns "${names[1]}"
for i in 1 2; do
    ip -n "${mark}n$i" addr add "$net.$i/24" dev eth0
    ip -n "${mark}n$i" link set eth0 up
    ip -n "${mark}n$i" link set lo up
done

# usage: agent NAME COMMAND...: on that host, which has a name of its own; words are joined for a shell, as by ssh
cat >"$work/agent" <<'END_OF_AGENT'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
END_OF_AGENT
chmod +x "$work/agent"

# usage: by_mpirun A:N,B:M COMMAND...: from the first host
by_mpirun() {
    local hosts=$1 count=0 one flags=()
    shift
    for one in ${hosts//,/ }; do count=$((count + ${one#*:})); done
    for one in MASTER_ADDR MASTER_PORT WEFT_SECRET WEFT_LINK_TIMEOUT; do [ -z "${!one:-}" ] || flags+=(-x "$one"); done
    timeout 120 "$work/agent" "${names[0]}" mpirun --allow-run-as-root --oversubscribe --bind-to none \
        --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include eth0 "${flags[@]}" --host "$hosts" -n "$count" "$@"
}

both=${names[0]}:2,${names[1]}:1
by_mpirun "${names[0]}:2" "$run" skew 10 || fail "mpirun: two ranks of one host, with nothing set"
got=$(by_mpirun "$both" "$weft" bench barrier 2>&1) && fail "mpirun: two hosts that cannot find each other"
[[ $got == *"Open MPI announces 3 ranks on several nodes; set MASTER_ADDR and MASTER_PORT"*"missing:"*" WEFT_SECRET"* ]] ||
    fail "mpirun: what to set is not said: $got"
export MASTER_ADDR=$net.1 MASTER_PORT=29700 WEFT_SECRET=$mark WEFT_LINK_TIMEOUT=60
by_mpirun "$both" "$run" skew 20 || fail "mpirun: three ranks of two hosts"
got=$(by_mpirun "$both" "$weft" bench all_reduce --bytes 4K --iterations 5) || fail "mpirun: bench as a job of two hosts"
[[ $got == *"4096"*yes* ]] || fail "mpirun: bench says: $got"

# usage: by_torchrun PROGRAM ARGUMENT...: two ranks on the first host, two on the second. torchrun's own store listens at
# MASTER_PORT, which what stands for it does too.
by_torchrun() {
    local host rank local_rank pids=() status=0 store=
    if command -v torchrun >/dev/null; then
        for host in 0 1; do
            timeout 120 "$work/agent" "${names[$host]}" torchrun --nnodes 2 --nproc-per-node 2 --node-rank $host \
                --master-addr "$net.1" --master-port "$MASTER_PORT" --no-python "$@" &
            pids+=($!)
        done
    else
        if command -v python3 >/dev/null; then
            "$work/agent" "${names[0]}" exec python3 -c \
                "'import socket, time; s = socket.create_server((\"\", $MASTER_PORT)); time.sleep(300)'" &
            store=$!
            for _ in $(seq 1 200); do
                ip netns exec "${names[0]}" grep -q "$(printf ':%04X 00000000:0000 0A' "$MASTER_PORT")" /proc/net/tcp && break
                sleep 0.05
            done
        fi
        for rank in 0 1 2 3; do
            host=$((rank / 2)) local_rank=$((rank % 2))
            RANK=$rank LOCAL_RANK=$local_rank GROUP_RANK=$host WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none \
                timeout 120 "$work/agent" "${names[$host]}" exec "$@" &
            pids+=($!)
        done
    fi
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    [ -z "$store" ] || kill "$store"
    return $status
}

export MASTER_PORT=29800
by_torchrun "$run" skew 20 || fail "torchrun: four ranks of two hosts"
exit $failed
