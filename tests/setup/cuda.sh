#!/usr/bin/env bash
# cuda.sh SOURCE CMAKE: the GPU build: it compiles, links and starts, and its tests labeled gpu pass
# or are skipped without a device. It takes the CUDA build of torch of WEFT_CUDA_TORCH (a Python
# environment with all CUDA packages), else python3's.
set -euo pipefail
source=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python=${WEFT_CUDA_TORCH:+$WEFT_CUDA_TORCH/bin/}python3
code='import torch; print(torch.__path__[0] if torch.version.cuda else "")'
torch=$("$python" -c "$code" 2>/dev/null) || torch=''
if [[ -z $torch ]]; then
  echo "skipped: $python has no CUDA build of torch with its packages;" \
    "WEFT_CUDA_TORCH names an environment that has (pip install torch)"
  exit 77
fi

"$cmake" -S "$source" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON \
  -DWEFT_TORCH_ROOT="$torch" -DWEFT_BENCHMARKS=OFF
"$cmake" --build "$scratch/build" --target weft weft_comm_test
readelf -d "$scratch/build/bin/weft" | grep -q 'NEEDED.*libtorch_cuda' ||
  { echo "weft does not link libtorch_cuda"; exit 1; }
"$scratch/build/bin/weft" --version
"$scratch/build/bin/weft" train "$source/recipes/shapes" -n 2 --set train.max_steps=5 \
  --set run.dir="$scratch/runs"
"$scratch/build/weft/comm/weft_comm_test" --gtest_filter='*Gpu.*:*Nccl*'
