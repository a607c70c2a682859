#!/usr/bin/env bash
# Install Samara on a Jetson with JetPack 6 or 7, in a virtual environment of its own.
# Not yet run on a board; docs/guides/clients.md says what has been tried and what has not.
#
#   ./install.sh [--home DIR] [--from SAMARA] [--torch-index URL] [--bitsandbytes VERSION | --no-bitsandbytes]
#
# Needs: curl, git, cmake, a compiler and the CUDA toolkit of the JetPack (nvcc).
set -euo pipefail

home="$HOME/.samara"
source_of_samara="samara-fl"
torch_index=""
bitsandbytes="0.50.2"

die() {
    echo "install.sh: $*" >&2
    exit 1
}

while (($#)); do
    case "$1" in
        --home) home="${2:?}"; shift 2 ;;
        --from) source_of_samara="${2:?}"; shift 2 ;;
        --torch-index) torch_index="${2:?}"; shift 2 ;;
        --bitsandbytes) bitsandbytes="${2:?}"; shift 2 ;;
        --no-bitsandbytes) bitsandbytes=""; shift ;;
        *) die "unknown option $1" ;;
    esac
done

[[ "$(uname -m)" == aarch64 ]] || die "this is no Jetson: $(uname -m)"
[[ -r /etc/nv_tegra_release ]] || die "/etc/nv_tegra_release is missing; is this a Jetson with JetPack?"

# "# R36 (release), REVISION: 4.3, ..." is L4T 36, JetPack 6; L4T 38 is JetPack 7.
l4t="$(sed -nE 's/^# R([0-9]+) .*/\1/p' /etc/nv_tegra_release)"
case "$l4t" in
    36) jetpack=6 python=3.12 index="https://pypi.jetson-ai-lab.io/jp6/cu126" ;;
    38 | 39) jetpack=7 python=3.12 index="https://download.pytorch.org/whl/cu130" ;;
    *) die "L4T R${l4t:-?} is neither JetPack 6 (R36) nor JetPack 7 (R38, R39)" ;;
esac
torch_index="${torch_index:-$index}"

for program in curl git cmake; do
    command -v "$program" >/dev/null || die "$program is missing; sudo apt-get install $program"
done
export PATH="$PATH:/usr/local/cuda/bin:$HOME/.local/bin"
if [[ -n "$bitsandbytes" ]]; then
    command -v nvcc >/dev/null || die "nvcc is missing; sudo apt-get install nvidia-jetpack, or --no-bitsandbytes"
fi

# JetPack 6 brings Python 3.10, which is too old for Flower 1.41; uv brings its own.
if ! command -v uv >/dev/null; then
    curl --proto '=https' --tlsv1.2 -LsSf https://astral.sh/uv/install.sh | sh
fi
mkdir -p "$home"
uv venv --python "$python" --allow-existing "$home/venv"
pip() { uv pip "$1" --python "$home/venv/bin/python" "${@:2}"; }

# The wheels of the ordinary index are for server ARM and find no GPU on JetPack 6.
pip install --index-url "$torch_index" --extra-index-url https://pypi.org/simple \
    --index-strategy first-index 'torch>=2.6' \
    || die "no torch for Python $python at $torch_index; give --torch-index, or use the Containerfile"
"$home/venv/bin/python" - <<'PYTHON' || die "this torch finds no CUDA; give another --torch-index, or use the Containerfile"
import sys
import torch
sys.exit(not torch.cuda.is_available())
PYTHON
pip install "$source_of_samara"

# Orin is 8.7 and Thor 11.0. Wheels that lack a board's code import and fail at the first kernel.
if [[ -n "$bitsandbytes" ]]; then
    capability="$("$home/venv/bin/python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')"
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    git clone --depth 1 --branch "$bitsandbytes" \
        https://github.com/bitsandbytes-foundation/bitsandbytes "$work/bitsandbytes"
    cmake -S "$work/bitsandbytes" -B "$work/bitsandbytes/build" \
        -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY="$capability"
    cmake --build "$work/bitsandbytes/build" --parallel 2
    pip install "$work/bitsandbytes"
fi

# Of the system's jetson-stats service only; without it temperatures come from the kernel.
if command -v jtop >/dev/null; then
    pip install jetson-stats || echo "install.sh: going on without jetson-stats" >&2
fi

echo "Installed for JetPack $jetpack. Next: $home/venv/bin/samara client up --dry-run …"
