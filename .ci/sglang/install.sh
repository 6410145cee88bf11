#!/usr/bin/env bash
# usage: install.sh VENV
# Installs the SGLang server for a machine without a GPU into the virtual environment VENV (about 1.6 GB).
# Does nothing when VENV is already what these files describe; starts afresh when it isn't.
set -euo pipefail

venv=${1:?usage: install.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3.11}

# Written last, so a folder without it is half done. It covers all that decides what is installed.
stamp=$(cd "$here" && sha256sum install.sh requirements.txt constraints.txt | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$venv/.fafo-sglang" 2>/dev/null)" = "$stamp" ]; then
    echo "install.sh: $venv is complete" >&2
    exit 0
fi

"$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$here/constraints.txt")
"${pip[@]}" --requirement "$here/requirements.txt"
# Without --no-deps the first three would bring in CUDA packages by the gigabyte, and the router its own web server.
"${pip[@]}" --no-deps sglang compressed-tensors xgrammar sglang-router
echo "$stamp" > "$venv/.fafo-sglang"
