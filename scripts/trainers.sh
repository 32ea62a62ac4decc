#!/usr/bin/env bash
# Trains with the libraries that people use (Hugging Face's Trainer, accelerate, Lightning, torchtitan, DeepSpeed, Megatron-core,
# Ray), and kills ranks at inconvenient moments: backward, evaluation, a checkpoint's write, between accumulated parts. Each
# must go on in place and end as an undisturbed run on the plain library does. The libraries (2 GB) go into .venv-trainers,
# the first time. Exit status 0 if all did. --self-check sets TASKD_SELF_CHECK=auto, and plays each program undisturbed too: the
# verdict must be "proven".
#
#   bash scripts/trainers.sh [--json] [--only TEXT] [--self-check]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
TASKD_VENV=.venv-trainers TASKD_EXTRAS=test,examples,stacks,hf,accelerate,lightning,titan,deepspeed,megatron,ray,trainers \
    bash scripts/setup.sh
# DeepSpeed compiles at its first use. In a folder that others build in, too, a build that was killed blocks all.
TORCH_EXTENSIONS_DIR=$root/.venv-trainers/torch_extensions exec .venv-trainers/bin/python -m tests.trainers "$@"
