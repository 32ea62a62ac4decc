#!/usr/bin/env bash
# Trains with the libraries that people use (Hugging Face's Trainer, accelerate, Lightning, torchtitan, DeepSpeed, Megatron-core,
# Ray), and kills ranks at inconvenient moments: backward, evaluation, a checkpoint's write, between accumulated parts. Each
# must go on in place and end as an undisturbed run on the plain library does. The libraries (2 GB) go into .venv-trainers,
# the first time. Each program is played undisturbed too: the self-check's verdict must be the one that the scene names ("proven", but
# for two of Megatron's). Exit status 0 if all did.
#
#   bash scripts/trainers.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
TASKD_VENV=.venv-trainers TASKD_EXTRAS=test,examples,stacks,hf,accelerate,lightning,titan,deepspeed,megatron,ray,trainers \
    bash scripts/setup.sh
# DeepSpeed compiles at its first use, for a minute or more: here, since the time of each scene is limited, and in a folder of its own. A
# build that was killed leaves a lock that blocks all.
export TORCH_EXTENSIONS_DIR=$root/.venv-trainers/torch_extensions
rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
if [ ! -e "$TORCH_EXTENSIONS_DIR/deepspeed_shm_comm/deepspeed_shm_comm.so" ]; then
    .venv-trainers/bin/python -c "
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder('ShareMemCommBuilder').load()" >/dev/null 2>&1 || echo "trainers: DeepSpeed compiles later" >&2
fi
exec .venv-trainers/bin/python -m tests.trainers "$@"
