#!/bin/sh
# A Slurm of two nodes on this machine, in the folder $1: munged, slurmctld, two slurmd, on loopback.
# Needs root, and Debian's slurm-wlm and munge. Slurm signals whole process groups, as root: start it
# in a process namespace of its own, out of which no signal gets, and whose end is the end of it all:
#   unshare --pid --fork --mount-proc --kill-child sh slurm.sh FOLDER
set -eu
[ $$ = 1 ] || { echo "not in a process namespace of its own: see the first lines" >&2; exit 2; }
folder=$1 port=${2:-27817}
mkdir -p "$folder/state" "$folder/spool-n1" "$folder/spool-n2"
chmod 755 "$folder"
head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 600 "$folder/munge.key"
cat > "$folder/slurm.conf" <<CONF
ClusterName=rehearsal
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ReturnToService=2
SlurmdTimeout=10
KillWait=20
JobRequeue=1
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=1
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
export SLURM_CONF="$folder/slurm.conf"
munged --force --foreground --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munged.seed" \
  > "$folder/munged.out" 2>&1 &
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -S "$folder/munge.socket" ] && break; sleep 0.5; done
slurmctld -D > "$folder/slurmctld.out" 2>&1 &
for node in n1 n2; do
  slurmd -D -N "$node" > "$folder/slurmd-$node.out" 2>&1 &
done
wait
