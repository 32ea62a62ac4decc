#!/usr/bin/env bash
# Train with common libraries (Hugging Face's Trainer, accelerate, Lightning, torchtitan, DeepSpeed, Megatron-core,
# Ray), and kill ranks at inconvenient moments: in backward, in evaluation, during a checkpoint's write, between
# accumulated micro-batches. Each job must continue in place, and end like an undisturbed run on the plain library. Each
# program also runs undisturbed: the self-check's verdict must be the one that the scene names ("proven", except for
# two Megatron scenes). The first run installs the libraries (2 GB) into .venv-trainers. Exit status 0 if all jobs did.
#
#   bash scripts/trainers.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
TASKD_VENV=.venv-trainers TASKD_EXTRAS=test,examples,stacks,hf,accelerate,lightning,titan,deepspeed,megatron,ray,trainers \
    bash scripts/setup.sh
# DeepSpeed compiles at its first use, for a minute or more. That happens here, because the time of each scene is
# limited, and in a folder of its own. A killed build leaves a lock that blocks all others, so old locks are removed.
export TORCH_EXTENSIONS_DIR=$root/.venv-trainers/torch_extensions
rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
if [ ! -e "$TORCH_EXTENSIONS_DIR/deepspeed_shm_comm/deepspeed_shm_comm.so" ]; then
    .venv-trainers/bin/python -c "
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder('ShareMemCommBuilder').load()" >/dev/null 2>&1 || echo "trainers: DeepSpeed compiles later" >&2
fi
exec .venv-trainers/bin/python -m tests.trainers "$@"
