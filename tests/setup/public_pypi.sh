#!/usr/bin/env bash
# public_pypi.sh SOURCE CMAKE: the README's first command in a fresh clone, by a user who has the
# public PyPI alone: pip then gives a CUDA build of torch. Asserts that weft trains with its CPU
# libraries, without the CUDA packages, and that it can be installed next.
set -euo pipefail
source=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_CONFIG_FILE=/dev/null
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL Torch_DIR
python3 -m pip index versions torch >/dev/null 2>&1 ||
  { echo "skipped: the package index cannot be reached"; exit 77; }
! python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
  { echo "skipped: python3 has a torch"; exit 77; }

git clone -q "$source" "$scratch/weft"
cd "$scratch/weft"
bin/weft train shapes -n 2 --set train.max_steps=20 --set run.dir="$scratch/runs" 2>&1 |
  tee "$scratch/log"
grep -q "libtorch 2\.[0-9]*\.[0-9]*: $scratch/weft/.venv" "$scratch/log" ||
  { echo "the libtorch in .venv was not used"; exit 1; }
torch=$(sed -n 's/.*libtorch 2[^:]*: //p' "$scratch/log")
[[ -e $torch/lib/libtorch_cuda.so || $(uname -m) != x86_64 ]] ||
  { echo "pip gave a CPU build: this test is of the CUDA build"; exit 1; }
! ldd build/release/bin/weft | grep -E 'libtorch_cuda|libcudnn|not found' ||
  { echo "weft links CUDA libraries"; exit 1; }

"$cmake" --install build/release --prefix "$scratch/prefix" >"$scratch/log" ||
  { tail -n 20 "$scratch/log"; exit 1; }
"$scratch/prefix/bin/weft" --version
[[ -f $scratch/prefix/lib/cmake/weft/weftConfig.cmake ]] || { echo "no package"; exit 1; }
