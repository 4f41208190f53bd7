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
# What was made goes when this script is gone, however it ended: a process of its own session waits for that.
# What still runs there would wait for ever.
tidy() {
    ip netns list | awk -v mark="$1n" 'index($1, mark) == 1 {print $1}' | while read -r name; do
        ip netns pids "$name" | xargs -r kill -9
        ip link del "$1v${name#"$1n"}" # a namespace lives on while a connection of it lingers
        ip netns del "$name"
    done
    ip link del "$1b"
    rm -rf "$2"
}
exec {alive}> >(exec setsid bash -c "$(declare -f tidy)"'; trap "" HUP INT TERM; cat; tidy "$@"' - "$mark" "$work" >/dev/null 2>&1)
tidier=$!
trap 'exec {alive}>&-; wait $tidier' EXIT
trap 'exit 143' HUP INT TERM
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
"$work/agent" "${mark}n0" mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm_rsh_agent "$work/agent" \
    --mca oob_tcp_if_include eth0 $mca -x MASTER_ADDR=10.203.7.1 -x MASTER_PORT=29500 -x WEFT_SECRET="$mark" \
    --host "$hosts" -n "$total" "$build/weft-bench-mpi" "$@" {alive}>&- &
wait $! # a signal is heard while it runs
sent=$(ip -n "${mark}n0" -s link show eth0 | awk '/TX:/ {getline; print $1}')
echo "bytes that left the first host: $sent"
