#!/bin/bash
# Starts a Slurm of two nodes on this machine, runs a command in it, and stops it again. As root; needs no systemd:
#
#     apt-get install slurm-wlm
#     tools/launch/slurm_one_machine.sh FOLDER COMMAND...
#
# FOLDER must not exist; it keeps the logs. Debian builds Slurm with --enable-multiple-slurmd, which two nodes of one
# machine need. The first has the machine's own name, because JAX looks for process 0 there.
set -euo pipefail
folder=$(realpath -m "$1") host=$(hostname -s)
shift
mkdir -p "$folder"/{state,"spool-$host","spool-$host-2"}
export SLURM_CONF=$folder/slurm.conf
cat > "$SLURM_CONF" <<END
ClusterName=one_machine
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=17817
SlurmUser=root
AuthInfo=socket=$folder/munge.socket,cred_expire=10
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_interval=5
NodeName=$host NodeHostname=$host NodeAddr=127.0.0.1 Port=17818
NodeName=$host-2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17819
PartitionName=all Nodes=ALL Default=YES
END
# A requeued job waits until its credential expires, two minutes if nothing is said.
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
  --pid-file="$folder/munge.pid" --seed-file="$folder/munge.seed" 2> "$folder/munge.log" &
until munge -S "$folder/munge.socket" -n > /dev/null 2>&1; do sleep 0.2; done
slurmctld -D -i 2> "$folder/slurmctld.log" &
for node in "$host" "$host-2"; do slurmd -D -N "$node" 2> "$folder/slurmd-$node.log" & done
until [ "$(sinfo --noheader --Node --states=idle 2> /dev/null | wc -l)" = 2 ]; do sleep 0.5; done
"$@"
