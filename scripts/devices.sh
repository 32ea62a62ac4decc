#!/usr/bin/env bash
# Train over NCCL on this machine's accelerators (plain loops, Hugging Face's Trainer, accelerate, Lightning), and kill
# ranks at inconvenient moments. Each job must continue in place, and end bit for bit like an undisturbed run of the
# plain program. One GPU is enough: ranks share it. The first run installs the libraries into .venv-trainers;
# TASKD_TORCH chooses a torch for your driver. After that it takes 5 minutes. Exit status 0 if all jobs did.
#
#   bash scripts/devices.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
TASKD_VENV=.venv-trainers TASKD_EXTRAS=test,examples,stacks,hf,accelerate,lightning,titan,deepspeed,megatron,ray,trainers \
    bash scripts/setup.sh
exec .venv-trainers/bin/python -m tests.devices "$@"
