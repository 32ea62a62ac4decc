#!/usr/bin/env bash
# Start one node of a job: bash train_start.sh CODE_DIR OUTPUT_DIR SCRIPT [ARGUMENTS OF THE SCRIPT…]
#
# The cluster sets, per pod: RANK (number of the node), WORLD_SIZE (number of nodes), MASTER_ADDR, MASTER_PORT, POD_IP,
# and TASKD_SECRET or TASKD_SECRET_FILE on every node if there is more than one. A single machine needs none of them.
# GPUS_PER_NODE is the number of training processes on a node; keep it equal to proc_per_node in manager.py.
if (($# < 3)); then
    echo "usage: $0 CODE_DIR OUTPUT_DIR SCRIPT [ARGUMENTS…]" >&2
    exit 2
fi
code_dir=$1
output_dir=$(realpath -m "$2")
shift 2
mkdir -p "$output_dir"
cd "$code_dir" || exit 1

export RANK=${RANK:-0}
export POD_IP=${POD_IP:-127.0.0.1}
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
export MASTER_PORT=${MASTER_PORT:-29500}
NODE_RANK=$RANK
NNODES=${WORLD_SIZE:-1}
GPUS_PER_NODE=${GPUS_PER_NODE:-4}

TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
export TASKD_PROCESS_ENABLE="on"
# PyTorch
if [[ "${RANK}" == 0 ]]; then
    export MASTER_ADDR=${POD_IP}
    python manager.py & # Determined by the current path.
fi
manager=$! # empty if none was started

# A cluster that ends the pod sends its signal to this shell alone, perhaps before torchrun has been started.
launcher='' early='' cut=''
trap 'cut=yes; if [[ -n $launcher ]]; then kill -TERM "$launcher"; else early=yes; fi' TERM INT

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts 32767"
# shellcheck disable=SC2086 # DISTRIBUTED_ARGS is a list of words
torchrun $DISTRIBUTED_ARGS "$@" > >(tee -a "$output_dir/node_$NODE_RANK.log") 2>&1 &
launcher=$!
[[ -z $early ]] || kill -TERM "$launcher"
status=127
until # no trap has cut the wait short
    cut=''
    wait "$launcher"
    found=$?
    ((found == 127)) || status=$found # 127: the previous wait has already collected the status
    [[ -z $cut ]]
do :; done

# The manager ends with the job. If no job has contacted it, it is ended here.
if [[ -n $manager ]]; then
    timeout 30 tail --pid="$manager" -f /dev/null || kill "$manager"
fi
exit $status
