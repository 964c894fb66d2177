#!/usr/bin/env bash
#SBATCH --job-name=hetero
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
# Makes a cluster of the hosts of one Slurm job, and runs a program on the first of them.
# Usage: sbatch deploy/slurm.sh PROGRAM.py
# The folder of submission is on a file system that all hosts see, and hetero is on the PATH of each.
set -euo pipefail

program=$1
folder=$PWD/.hetero-$SLURM_JOB_ID
trap 'kill $(jobs -p) || true; wait; rm -rf "$folder"' EXIT
export HETERO_HOME=/tmp/hetero-$SLURM_JOB_ID

mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
hosts=()
for name in "${names[@]}"; do
    hosts+=("$(getent ahostsv4 "$name" | awk 'NR == 1 { print $1 }')")
done
hetero cluster certificates "$folder" $(printf -- '--host %s ' "${hosts[@]}")
(umask 077; python -c 'import secrets; print(secrets.token_hex(32))' > "$folder/token")

start() {
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" \
        hetero cluster start --block --certificates "$folder" --token-file "$folder/token" "${@:2}"
}
# Slurm ends what outlives its step: each node stays in the foreground of one.
start "${names[0]}" --head --host "${hosts[0]}" > "$folder/head" &
until grep -q '^in programs' "$folder/head"; do sleep 1; done
address=$(sed -n 's/^head of the cluster \([^,]*\),.*/\1/p' "$folder/head")
for index in "${!names[@]}"; do
    if ((index > 0)); then
        start "${names[index]}" --join "$address" --host "${hosts[index]}" > "$folder/member-$index" &
    fi
done
for ((index = 1; index < ${#names[@]}; index++)); do
    until grep -q '^in programs' "$folder/member-$index"; do sleep 1; done
done
HETERO_ENGINE=ray HETERO_SET=address=auto hetero run "$program"
