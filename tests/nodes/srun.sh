#!/usr/bin/env bash
# Ranks that srun starts, by a Slurm of this test's own with two network namespaces as its nodes; skipped where there
# is no Slurm, no root or no namespaces. usage: srun.sh WEFT TEST_NODES_RUN
set -u
weft=$1 run=$2
work=$(mktemp -d)
mark=ws$$
failed=0
names=()

tidy() {
    for name in "${names[@]}"; do # slurmd, slurmctld and what they started
        ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "$name" 2>/dev/null
    done
    [ ! -s "$work/munged.pid" ] || kill "$(cat "$work/munged.pid")" 2>/dev/null
    ip link del "${mark}b" 2>/dev/null
    rm -rf "$work"
}
trap tidy EXIT

fail() {
    echo "srun.sh: $*" >&2
    failed=1
}

skip() {
    echo "test_nodes_srun: skipped: $*"
    exit 77
}

export PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || skip "it needs root"
for tool in munged slurmctld slurmd srun ip unshare; do
    command -v $tool >/dev/null || skip "there is no $tool"
done
ip link add "${mark}b" type bridge 2>/dev/null || skip "the system has no network namespaces"
ip link set "${mark}b" up
net=10.$((64 + $$ % 128)).$(($$ / 128 % 250))
for i in 1 2; do
    ip netns add "${mark}n$i" && names+=("${mark}n$i")
    ip link add "${mark}v$i" type veth peer name eth0 netns "${mark}n$i"
    ip link set "${mark}v$i" master "${mark}b" up
    ip -n "${mark}n$i" addr add "$net.$i/24" dev eth0
    ip -n "${mark}n$i" link set eth0 up
    ip -n "${mark}n$i" link set lo up
done

# usage: on NAME COMMAND...: on that host, which has a name of its own
on() {
    local name=$1
    shift
    ip netns exec "$name" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$name" "$@"
}

head -c 128 /dev/urandom >"$work/munge.key"
chmod 600 "$work/munge.key"
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munge.seed" 2>/dev/null || skip "munged does not run here"
mkdir "$work/state" "$work/spool."{"${names[0]}","${names[1]}"}
echo CgroupPlugin=cgroup/v1 >"$work/cgroup.conf"
cat >"$work/slurm.conf" <<END_OF_CONF
ClusterName=$mark
SlurmctldHost=${names[0]}($net.1)
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName=${names[0]} NodeAddr=$net.1 NodeHostname=${names[0]} CPUs=$(nproc)
NodeName=${names[1]} NodeAddr=$net.2 NodeHostname=${names[1]} CPUs=$(nproc)
PartitionName=all Nodes=ALL Default=YES State=UP
END_OF_CONF
export SLURM_CONF=$work/slurm.conf
on "${names[0]}" slurmctld -D -f "$work/slurm.conf" >/dev/null 2>&1 &
for name in "${names[@]}"; do
    on "$name" slurmd -D -N "$name" -f "$work/slurm.conf" >/dev/null 2>&1 &
done

# usage: by_srun FLAGS... COMMAND...: from the first host
by_srun() {
    on "${names[0]}" timeout 60 srun --overcommit "$@"
}

for _ in $(seq 1 60); do
    by_srun --immediate=2 -N2 -n2 true 2>/dev/null && ready=1 && break
    sleep 0.25
done
[ -n "${ready:-}" ] || skip "Slurm does not run here: $(tail -1 "$work/slurmctld.log" 2>/dev/null)"

by_srun -N1 -n3 "$run" skew 10 || fail "three tasks of one node, with nothing set"
got=$(by_srun -N2 -n2 "$weft" bench barrier 2>&1) && fail "two nodes that cannot find each other"
[[ $got == *"SLURM"*" announces 2 ranks on several nodes; set MASTER_ADDR and MASTER_PORT"*"missing:"*" WEFT_SECRET"* ]] ||
    fail "what to set is not said: $got"
export MASTER_ADDR=$net.1 MASTER_PORT=29700 WEFT_SECRET=$mark
by_srun -N2 -n4 "$run" skew 20 || fail "four tasks of two nodes"
got=$(by_srun -N2 -n2 "$weft" bench all_reduce --bytes 4K --iterations 5) || fail "bench as a job of two nodes"
[[ $got == *"4096"*yes* ]] || fail "bench says: $got"
exit $failed
