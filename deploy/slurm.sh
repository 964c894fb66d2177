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
trap 'srun hetero node stop; rm -rf "$folder"' EXIT
export HETERO_HOME=/tmp/hetero-$SLURM_JOB_ID

mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
hosts=()
for name in "${names[@]}"; do
    hosts+=("$(getent ahostsv4 "$name" | awk 'NR == 1 { print $1 }')")
done
hetero node certs "$folder" $(printf -- '--host %s ' "${hosts[@]}")
(umask 077; python -c 'import secrets; print(secrets.token_hex(32))' > "$folder/token")

start() {
    srun --nodes=1 --ntasks=1 --nodelist="$1" hetero node start "${@:2}" --certificates "$folder" --token-file "$folder/token"
}
address=$(start "${names[0]}" --head --host "${hosts[0]}" | sed -n 's/^head of the cluster \([^,]*\),.*/\1/p')
for index in "${!names[@]}"; do
    if ((index > 0)); then
        start "${names[index]}" --join "$address" --host "${hosts[index]}"
    fi
done
HETERO_ENGINE=ray HETERO_SET=address=auto hetero run "$program"
