#!/usr/bin/env bash
# Makes a cluster of hosts that are reached by SSH, runs a program on the first, and ends the cluster.
# Usage: deploy/ssh.sh PROGRAM.py HEAD_ADDRESS OTHER_ADDRESS...
# Each host has hetero on its PATH, and this user may log in there without a password.
set -euo pipefail

program=$1 head=$2
shift
hosts=("$@")
folder=$(mktemp -d)
trap 'for host in "${hosts[@]}"; do ssh "$host" "hetero cluster stop; rm -rf .hetero-cluster" || true; done; rm -rf "$folder"' EXIT

hetero cluster certificates "$folder/cluster" $(printf -- '--host %s ' "${hosts[@]}")
(umask 077; python -c 'import secrets; print(secrets.token_hex(32))' > "$folder/cluster/token")
for host in "${hosts[@]}"; do
    ssh "$host" 'umask 077; mkdir -p .hetero-cluster'
    scp -q "$folder"/cluster/* "$host:.hetero-cluster/"
done

own="--certificates .hetero-cluster --token-file .hetero-cluster/token"
address=$(ssh "$head" "hetero cluster start --head --host $head $own" | sed -n 's/^head of the cluster \([^,]*\),.*/\1/p')
for host in "${hosts[@]:1}"; do
    ssh "$host" "hetero cluster start --join $address --host $host $own"
done
scp -q "$program" "$head:.hetero-cluster/program.py"
ssh "$head" "HETERO_ENGINE=ray HETERO_SET=address=auto hetero run .hetero-cluster/program.py"
