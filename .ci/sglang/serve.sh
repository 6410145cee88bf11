#!/usr/bin/env bash
# usage: FAFO_SGLANG_VENV=VENV serve.sh PORT MODEL_DIR [flags of sglang.launch_server ...]
# Runs the SGLang server on the CPU, in the foreground, on 127.0.0.1:PORT. VENV is what install.sh made.
# The shell is replaced by the server, so a signal to this process reaches it.
set -euo pipefail

port=${1:?usage: serve.sh PORT MODEL_DIR [flags]}
model=${2:?usage: serve.sh PORT MODEL_DIR [flags]}
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${FAFO_SGLANG_VENV:?the virtual environment that install.sh made}/bin/python

export PYTHONPATH="$here/standins"
export SGLANG_USE_CPU_ENGINE=1  # without it `--device cpu` still takes CUDA branches
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # on few, shared cores two threads wait for each other: up to 10x slower
export TORCHDYNAMO_DISABLE=1  # a request with a repetition penalty has code compiled otherwise, and ends the server
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1  # the model is a folder; nothing is fetched

flags=(
    --model-path "$model" --served-model-name "$(basename "$model")"
    --host 127.0.0.1 --port "$port"
    --device cpu --attention-backend torch_native
    # What needs a GPU.
    --disable-overlap-schedule --cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled
    # Ready as soon as it listens; no core is spent on waiting; a cache of 65,536 tokens instead of all memory.
    --skip-server-warmup --sleep-on-idle --max-total-tokens 65536 --max-running-requests 64
)
exec "$python" -W ignore "$here/launch.py" "${flags[@]}" "$@"
