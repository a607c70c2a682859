#!/usr/bin/env bash
# Install Samara on a Jetson with JetPack 6 or 7. Not yet run on a board: docs/guides/jetson.md lists
# the tests so far, and the sources for the statements about JetPacks and wheels below.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: install.sh [options]
  --prefix DIR          folder of everything that is installed: default /opt/samara for root, else
                        ~/.local/share/samara
  --from SAMARA         a checkout, a wheel, or samara-fl: default the checkout of this script, if any
  --torch-index URL     the one index that torch is asked for; default by JetPack
  --torch-wheel URL     a wheel of torch, with --sha256 HEX, in place of an index
  --wheelhouse DIR      install from a folder of `samara device wheelhouse`, without a network;
                        default the folder of this script, if it is one
  --python VERSION      default 3.12
  --bitsandbytes TAG    also build bitsandbytes for this board, for quantized models: for example
                        0.50.2; needs git, cmake, a compiler and the JetPack's nvcc
  --service NAME        also a systemd service that runs client NAME at boot; needs root
  --dry-run             print the commands, change nothing
  --uninstall           remove what an earlier run has installed; keys and clients' folders stay
The same command goes on after an interruption, and changes nothing if nothing is left to do.
USAGE
}

if ((EUID)); then prefix="$HOME/.local/share/samara"; else prefix=/opt/samara; fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"
source_of_samara=samara-fl wheelhouse=""
if [[ -e "$here/wheelhouse.toml" ]]; then wheelhouse="$here"; fi
if grep -qs '^name = "samara-fl"' "$checkout/pyproject.toml"; then source_of_samara="$checkout"; fi
torch_index="" torch_wheel="" sha256="" python="" bitsandbytes="" service="" dry="" uninstall=""

die() {
    echo "install.sh: $*" >&2
    exit 1
}
say() { echo "install.sh: $*"; }
# Run a command that changes the system. All such commands go through this function.
run() {
    echo "+ $*"
    [[ -n "$dry" ]] || "$@"
}
write() { # FILE: standard input becomes the file
    echo "+ write $1"
    if [[ -n "$dry" ]]; then cat >/dev/null; else cat >"$1.new" && mv "$1.new" "$1"; fi
}

while (($#)); do
    case "$1" in
        --prefix) prefix="$(realpath -m "${2:?}")"; shift 2 ;;
        --from) source_of_samara="${2:?}"; shift 2 ;;
        --torch-index) torch_index="${2:?}"; shift 2 ;;
        --torch-wheel) torch_wheel="${2:?}"; shift 2 ;;
        --sha256) sha256="${2:?}"; shift 2 ;;
        --wheelhouse) wheelhouse="$(realpath -m "${2:?}")"; shift 2 ;;
        --python) python="${2:?}"; shift 2 ;;
        --bitsandbytes) bitsandbytes="${2:?}"; shift 2 ;;
        --service) service="${2:?}"; shift 2 ;;
        --dry-run) dry=yes; shift ;;
        --uninstall) uninstall=yes; shift ;;
        -h | --help) usage; exit ;;
        *) usage >&2; die "unknown option $1" ;;
    esac
done

marker="$prefix/.made-by-install.sh"
units=/etc/systemd/system
unit="$units/samara-client@.service"

if [[ -n "$uninstall" ]]; then
    [[ -e "$marker" ]] || die "$prefix was not made by this script; give the --prefix of the installation"
    if [[ -e "$unit" ]] && grep -qF "$prefix/venv/" "$unit"; then
        run systemctl disable --now 'samara-client@*.service'
        run rm -f "$unit"
        run systemctl daemon-reload
    fi
    run rm -rf "$prefix"
    say "removed; /etc/samara (keys, options) and /var/lib/samara (the clients' models) stay"
    exit
fi

[[ "$source_of_samara" != samara && "$source_of_samara" != samara[=\<\>\[]* ]] \
    || die "samara on the package index is another project; ours is samara-fl"
[[ "$(uname -m)" == aarch64 ]] || die "this machine is not a Jetson: $(uname -m)"
release="${TEGRA_RELEASE_FILE:-/etc/nv_tegra_release}"
[[ -r "$release" ]] || die "$release is missing; is this a Jetson with JetPack?"
[[ -z "$torch_wheel" || "$sha256" =~ ^[0-9a-f]{64}$ ]] || die "--torch-wheel needs --sha256, 64 hex digits"
if [[ -n "$service" ]]; then
    ((EUID == 0)) || die "--service needs root: sudo $0 …"
    [[ "$service" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || die "--service $service: use only letters, digits, . _ -"
fi

fact() { # NAME: what a wheelhouse says of itself
    sed -nE "s/^$1 = \"?([^\"]*)\"?\$/\1/p" "$wheelhouse/wheelhouse.toml"
}
if [[ -n "$wheelhouse" ]]; then
    [[ -z "$torch_index$torch_wheel$bitsandbytes" ]] \
        || die "--torch-index, --torch-wheel and --bitsandbytes need a network; leave these options or --wheelhouse out"
    [[ -r "$wheelhouse/SHA256SUMS" && -r "$wheelhouse/wheelhouse.toml" ]] \
        || die "$wheelhouse is an incomplete wheelhouse; run the command that began to make it again"
    (cd "$wheelhouse" && sha256sum --check --quiet SHA256SUMS) \
        || die "$wheelhouse is damaged, see above; copy the wheelhouse again, or make it again"
    [[ -z "$python" || "$python" == "$(fact python)" ]] \
        || die "$wheelhouse is for Python $(fact python); leave --python out, or make another wheelhouse"
    python="$(fact python)" source_of_samara="$(echo "$wheelhouse"/wheels/samara_fl-*.whl)"
    command -v python3 >/dev/null || die "python3, which JetPack has, is missing; run sudo apt-get install python3"
fi
python="${python:-3.12}"

# "# R36 (release), REVISION: 4.3, ..." is L4T 36, JetPack 6; L4T 38 and 39 are JetPack 7.
l4t="$(sed -nE 's/^# R([0-9]+) .*/\1/p' "$release")"
case "$l4t" in
    36) jetpack=6 index=https://pypi.jetson-ai-lab.io/jp6/cu126 ;;
    38 | 39) jetpack=7 index=https://download.pytorch.org/whl/cu130 ;;
    *) die "L4T R${l4t:-?} is neither JetPack 6 (R36) nor JetPack 7 (R38, R39)" ;;
esac
[[ -z "$wheelhouse" || "$(fact jetpack)" == "$jetpack" ]] \
    || die "$wheelhouse is for JetPack $(fact jetpack), and this board has JetPack $jetpack"
torch_index="${torch_index:-$index}"
instead="on JetPack $jetpack the container works: devices/jetson/Containerfile; or give a wheel of torch \
for Python $python and this board: --torch-wheel URL --sha256 HEX, or --torch-index URL"
if [[ -n "$bitsandbytes" ]]; then
    PATH="$PATH:/usr/local/cuda/bin"
    for program in git cmake c++ nvcc; do
        command -v "$program" >/dev/null || die "$program is missing, which --bitsandbytes needs: \
sudo apt-get install git cmake build-essential nvidia-jetpack"
    done
fi

run mkdir -p "$prefix"
[[ -n "$dry" ]] || touch "$marker"
# uv installs a Python if the JetPack's is too old, and keeps its downloads until everything is done.
export UV_PYTHON_INSTALL_DIR="$prefix/python" UV_CACHE_DIR="$prefix/cache" UV_NO_CONFIG=1
# Package indexes for torch, and for everything else.
from_torch_index=(--default-index "$torch_index") from_package_index=()
if [[ -n "$wheelhouse" ]]; then
    PATH="$prefix/bin:$PATH"
    run python3 -m zipfile -e "$wheelhouse"/wheels/uv-*.whl "$prefix/uv"
    run mkdir -p "$prefix/bin"
    run install -m 0755 "$prefix"/uv/uv-*.data/scripts/uv "$prefix/bin/uv"
    run rm -rf "$prefix/uv"
    from_package_index=(--offline --no-index --find-links "$wheelhouse/wheels")
    from_torch_index=("${from_package_index[@]}")
    torch_index="$wheelhouse, which has torch $(fact torch)"
    # uv verifies a Python's archive by its built-in checksum.
    export UV_PYTHON_INSTALL_MIRROR="file://$wheelhouse/python"
else
    PATH="$PATH:$prefix/bin"
fi
export PATH
if [[ -z "$wheelhouse" ]] && ! command -v uv >/dev/null; then
    command -v curl >/dev/null || die "curl is missing; run sudo apt-get install curl"
    export UV_INSTALL_DIR="$prefix/bin" UV_NO_MODIFY_PATH=1
    run curl --proto '=https' --tlsv1.2 -LsSf -o "$prefix/install-uv.sh" https://astral.sh/uv/install.sh
    run sh "$prefix/install-uv.sh"
fi
interpreter="$prefix/venv/bin/python"
[[ -x "$interpreter" ]] || run uv venv --python "$python" "$prefix/venv"
pip_install() { run uv pip install --python "$interpreter" "$@"; }
version_of() { # DISTRIBUTION: its version in the environment, or nothing
    "$interpreter" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null || true
}

# torch comes from a single index. (uv asks an --extra-index-url before the --index-url: with the
# package index as the extra one, torch would be the index's, which finds no GPU on JetPack 6.)
asked="${torch_wheel:-$torch_index} $sha256"
if [[ "$(cat "$prefix/torch-from" 2>/dev/null)" != "$asked" || -z "$(version_of torch)" ]]; then
    if [[ -n "$torch_wheel" ]]; then
        file="$prefix/${torch_wheel##*/}"
        file="${file//%2[Bb]/+}"
        run curl -fL --retry 5 --continue-at - --output "$file" "$torch_wheel" \
            || die "$torch_wheel cannot be fetched; run the same command again to continue"
        if [[ -z "$dry" ]] && ! echo "$sha256  $file" | sha256sum --check --quiet; then
            rm "$file"
            die "$torch_wheel does not have the SHA-256 $sha256"
        fi
        pip_install --no-deps --reinstall-package torch "$file" || die "$torch_wheel is not for Python $python on this board"
        run rm "$file"
    else
        pip_install --no-deps --reinstall-package torch "${from_torch_index[@]}" 'torch>=2.6' \
            || die "no torch for Python $python at $torch_index; $instead"
    fi
    echo "$asked" | write "$prefix/torch-from"
fi
# Samara and torch's dependencies come from the package index; torch itself stays unchanged.
if [[ -n "$dry" ]]; then torch="as installed"; else torch="$(version_of torch)"; fi
echo "torch==$torch" | write "$prefix/constraints.txt"
pip_install "${from_package_index[@]}" --constraint "$prefix/constraints.txt" "$source_of_samara" \
    || die "Samara cannot be installed; see above"

check="$(cat <<'PYTHON'
import sys

try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(f"torch does not import: {error}")
built = f"torch {torch.__version__} for CUDA {torch.version.cuda}"
if not torch.cuda.is_available():
    sys.exit(f"{built} finds no GPU")
major, minor = torch.cuda.get_device_capability()
try:
    product = torch.full((64, 64), 2.0, device="cuda") @ torch.full((64, 64), 0.5, device="cuda")
    right = bool((product.cpu() == 64.0).all())
except RuntimeError as error:
    kernels = " ".join(torch.cuda.get_arch_list())
    line = str(error).splitlines()[0]
    sys.exit(f"{built} cannot multiply on this GPU, sm_{major}{minor}; it has {kernels}: {line}")
if not right:
    sys.exit(f"{built} multiplies wrongly on this GPU, sm_{major}{minor}")
print(f"{built}: a matrix product on sm_{major}{minor} is right")
PYTHON
)"
run "$interpreter" -c "$check" || die "$instead"

# Kernels of replay. Without these kernels, replay runs on the CPU, with the same results.
if [[ -z "$(version_of triton)" ]]; then
    pip_install --no-deps "${from_torch_index[@]}" triton \
        || say "triton is left out: replay runs on the CPU"
fi

# Wheels of bitsandbytes for ARM are for servers: import works, the first kernel fails.
if [[ -n "$bitsandbytes" && "$(cat "$prefix/bitsandbytes-from" 2>/dev/null)" != "$bitsandbytes $torch" ]]; then
    work="$prefix/bitsandbytes"
    run rm -rf "$work"
    run git clone --depth 1 --branch "$bitsandbytes" https://github.com/bitsandbytes-foundation/bitsandbytes "$work"
    capability="$("$interpreter" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())' || true)"
    run cmake -S "$work" -B "$work/build" -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY="${capability:-87}"
    run cmake --build "$work/build" --parallel 2
    pip_install --constraint "$prefix/constraints.txt" "$work"
    run rm -rf "$work"
    echo "$bitsandbytes $torch" | write "$prefix/bitsandbytes-from"
fi

# The library must match the version of the system's service. Without it, the kernel's files are read.
if command -v jtop >/dev/null; then
    jtop="$(jtop --version | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)"
    [[ -n "$jtop" && "$(version_of jetson-stats)" == "$jtop" ]] \
        || pip_install "${from_package_index[@]}" "jetson-stats==$jtop" || say "jetson-stats $jtop is left out"
fi

if [[ -n "$service" ]]; then
    for group in video render; do
        getent group "$group" >/dev/null || run groupadd --system "$group"
    done
    getent passwd samara >/dev/null \
        || run useradd --system --user-group --home-dir /var/lib/samara --shell /usr/sbin/nologin samara
    run install -d -o root -g samara -m 0750 /etc/samara
    shipped="$here/samara-client@.service"
    [[ -r "$shipped" ]] || shipped="$("$interpreter" -c 'import samara.devices.jetson as j; print(j.__path__[0])')/samara-client@.service"
    sed "s|/opt/samara/|$prefix/|g" "$shipped" | write "$unit"
    options="/etc/samara/$service.env"
    if [[ ! -e "$options" ]]; then
        write "$options" <<OPTIONS
# Options of \`samara client up\` beside --name and --home, such as --model, --data and --task.
SAMARA_OPTIONS=--device jetson-orin-nano
OPTIONS
        run chown root:samara "$options"
        run chmod 0640 "$options"
        say "put model, data and task into $options, and join with the operator's line:"
        say "  $prefix/venv/bin/samara client join … --home /var/lib/samara/$service"
        say "then: systemctl start samara-client@$service"
    fi
    run systemctl daemon-reload
    run systemctl enable "samara-client@$service"
fi

run rm -rf "$prefix/cache" "$prefix/install-uv.sh"
say "installed for JetPack $jetpack. Next: $prefix/venv/bin/samara client up --dry-run …"
