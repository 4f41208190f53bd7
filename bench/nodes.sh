#!/usr/bin/env bash
# weft beside Open MPI over network namespaces as hosts, in the same processes: shared memory inside a host, TCP
# between, for both. Needs root. usage: bench/nodes.sh BUILD RANKS_A+RANKS_B tcp|ucx OP [flags of weft bench]
#   bench/nodes.sh build 2+2 tcp all_reduce --bytes 4K:16M
set -eu
build=$(realpath "$1") split=$2 transport=$3
shift 3
ranks=(${split//+/ })
work=$(mktemp -d)
mark=wb$$
names=()

tidy() {
    for name in "${names[@]}"; do # what still runs there would wait for ever
        ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$name" 2>/dev/null || true
    done
    ip link del "${mark}b" 2>/dev/null || true
    rm -rf "$work"
}
trap tidy EXIT
trap 'exit 143' TERM INT
# A host has a name of its own, by which MPI tells hosts apart.
cat >"$work/agent" <<'END'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
END
chmod +x "$work/agent"
ip link add "${mark}b" type bridge
ip link set "${mark}b" up
hosts='' total=0
for i in "${!ranks[@]}"; do
    name=${mark}n$i
    ip netns add "$name"
    names+=("$name")
    ip link add "${mark}v$i" type veth peer name eth0 netns "$name"
    ip link set "${mark}v$i" master "${mark}b" up
    ip -n "$name" addr add "10.203.7.$((i + 1))/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    hosts+=${hosts:+,}$name:${ranks[$i]}
    total=$((total + ranks[$i]))
done
if [ "$transport" = ucx ]; then
    mca="--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,sm,self"
else
    mca="--mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include eth0"
fi
# Where ranks outnumber cores, MPI gives its core up while it waits.
[ "$total" -le "$(nproc)" ] || mca+=" --mca mpi_yield_when_idle 1"
# shellcheck disable=SC2086
"$work/agent" "${names[0]}" mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm_rsh_agent "$work/agent" \
    --mca oob_tcp_if_include eth0 $mca -x MASTER_ADDR=10.203.7.1 -x MASTER_PORT=29500 -x WEFT_SECRET="$mark" \
    --host "$hosts" -n "$total" "$build/weft-bench-mpi" "$@"
sent=$(ip -n "${names[0]}" -s link show eth0 | awk '/TX:/ {getline; print $1}')
echo "bytes that left the first host: $sent"
