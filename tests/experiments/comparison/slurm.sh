#!/bin/sh
# A Slurm of two nodes on this machine, in the folder $1: munged, slurmctld, two slurmd, on loopback.
# Prints the process ids that end it. Needs root, and Debian's slurm-wlm and munge.
set -eu
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
echo "munged $!"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -S "$folder/munge.socket" ] && break; sleep 0.5; done
slurmctld -D > "$folder/slurmctld.out" 2>&1 &
echo "slurmctld $!"
for node in n1 n2; do
  slurmd -D -N "$node" > "$folder/slurmd-$node.out" 2>&1 &
  echo "slurmd-$node $!"
done
