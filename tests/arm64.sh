#!/usr/bin/env bash
# Makes a folder with Debian's Python and what Samara needs for arm64, to be run by QEMU's
# user-mode emulation. Needs Debian or Ubuntu with qemu-user-static, and Python 3.11 with pip.
#
# usage: tests/arm64.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?usage: tests/arm64.sh FOLDER}")
command -v qemu-aarch64-static apt-get dpkg-deb >/dev/null || {
	echo "qemu-aarch64-static or apt-get is missing; install qemu-user-static on Debian or Ubuntu" >&2
	exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial,root,wheels,site}
touch "$work/status"
cat >"$work/apt.conf" <<-END
	APT::Architecture "arm64"; APT::Architectures { "arm64"; };
	Dir::State::status "$work/status"; Dir::State::Lists "$work/lists";
	Dir::Cache "$work"; Dir::Cache::Archives "$work/archives";
	APT::Sandbox::User "";
END
export APT_CONFIG="$work/apt.conf"
apt-get update -qq
apt-get install -qq --yes --download-only --no-install-recommends python3 libstdc++6 >/dev/null
for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
version=$(basename "$(find "$work/root/usr/bin" -name "python3.??" | sort | head -1)")
version=${version#python}
source=$(cd "$(dirname "$0")/.." && pwd)
fetch() {
	python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
		--dest "$work/wheels" --python-version "$version" --implementation cp \
		--abi "cp${version/./}" --abi abi3 --abi none \
		--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
		--platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 "$@"
}
# pip takes this machine's processor for that of the wheels, for which torch would bring CUDA.
# torch 2.13 does not run as a Cortex-A57.
fetch --no-deps torch==2.9.1 accelerate
sed '/^torch==/d' "$source/constraints.txt" >"$work/constraints.txt"
python3 -c 'import sys, tomllib; project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print(*(x for x in project["dependencies"] if not x.startswith(("torch>", "accelerate>"))), sep="\n")' \
	"$source/pyproject.toml" >"$work/requirements.txt"
fetch --constraint "$work/constraints.txt" --requirement "$work/requirements.txt" \
	hypothesis pytest sympy networkx jinja2 fsspec
for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/site"; done
ln -s "python$version" "$work/root/usr/bin/python"
rm -rf "$folder" && mkdir -p "$folder" && mv "$work/root" "$work/site" "$folder/"
echo "$folder holds Python $version for arm64"
