#!/bin/bash
# Stage two on several nodes by torchrun: start this on every node, with the same FIRST_NODE. Start it everywhere again to resume.
#
#   NODES=2 FIRST_NODE=node-0:29500 PIPELINE_HOME=/shared/artifacts manifests/launch/train-torchrun.sh --norm post --curriculum grow
#
# PIPELINE_HOME: a folder that all nodes share. PROCESSES: of each node, one a GPU unless given. Arguments go to `pipeline train`.
set -euo pipefail

exec torchrun --nnodes "${NODES:-1}" --nproc-per-node "${PROCESSES:-gpu}" --max-restarts 0 \
    --rdzv-backend c10d --rdzv-id pipeline-train --rdzv-endpoint "${FIRST_NODE:-127.0.0.1:29500}" \
    -m pipeline train "$@"
