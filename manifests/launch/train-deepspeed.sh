#!/bin/bash
# Stage two on several nodes by deepspeed: start this on one node, which reaches the others of HOSTFILE by pdsh. Start it again to resume.
#
#   HOSTFILE=hosts PIPELINE_HOME=/shared/artifacts manifests/launch/train-deepspeed.sh --norm post --curriculum grow
#
# HOSTFILE: a line a node, as `node-0 slots=8`. PIPELINE_HOME: a folder that all nodes share. Arguments go to `pipeline train`.
# Where nodes cannot reach each other so, start this on every node, with NODE (0, 1, ...) and FIRST_NODE (address:port) as well.
set -euo pipefail

where=()
if [ -n "${NODE:-}" ]; then
    where=(--no_ssh --node_rank "$NODE" --master_addr "${FIRST_NODE%:*}" --master_port "${FIRST_NODE##*:}")
fi
exec deepspeed --hostfile "$HOSTFILE" "${where[@]}" --module pipeline train --root "${PIPELINE_HOME:-artifacts}" "$@"
