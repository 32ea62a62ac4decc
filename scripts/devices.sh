#!/usr/bin/env bash
# Trains over NCCL on this machine's accelerators (loops of its own, Hugging Face's Trainer, accelerate, Lightning) and kills ranks at
# inconvenient moments. Each must go on in place and end as an undisturbed run of the plain program does, bit for bit. One GPU is
# enough: ranks share it. The libraries go into .venv-trainers, the first time; TASKD_TORCH chooses a torch for your driver.
# Then 5 minutes. Exit status 0 if all did.
#
#   bash scripts/devices.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
TASKD_VENV=.venv-trainers TASKD_EXTRAS=test,examples,stacks,hf,accelerate,lightning,titan,deepspeed,megatron,ray,trainers \
    bash scripts/setup.sh
exec .venv-trainers/bin/python -m tests.devices "$@"
