#!/usr/bin/env bash
# run.sh CONSUMER BUILD CMAKE OPTION…: installs BUILD, moves the result, and builds and runs
# CONSUMER against it, also under each MPI whose plug-in was installed. CONSUMER "new" is the
# project that the installed `weft new` makes.
set -euo pipefail
consumer=$1 build=$2 cmake=$3
shift 3
source=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cmake" --install "$build" --component devel --prefix "$scratch/first" >"$scratch/log" ||
  { cat "$scratch/log"; exit 1; }
prefix="$scratch/moved to"
mv "$scratch/first" "$prefix"

fail() { echo "$*" >&2; exit 1; }
[[ -z $(find "$prefix/include" -path '*/internal/*') ]] || fail "private headers were installed"
! grep -rnF -e "$build" -e "$(cd "$source/../.." && pwd)/weft" -e "$scratch/first" \
  "$prefix/lib/cmake" || fail "the package names the build's own folders"
! grep -rnE 'weft_(warnings|pch)' "$prefix/lib/cmake" ||
  fail "the package exports the build's warnings or precompiled header"

if [[ $consumer == new ]]; then
  "$cmake" --install "$build" --component runtime --prefix "$prefix" >"$scratch/log" ||
    { cat "$scratch/log"; exit 1; }
  cd "$scratch"
  "$prefix/bin/weft" train shapes --dry-run >"$scratch/log" ||
    fail "no installed recipe by its name"
  "$prefix/bin/weft" new rings
  "$cmake" -S rings -B rings/build -G Ninja "$@"  # finds weft by itself
  "$cmake" --build rings/build
  "${cmake%cmake}ctest" --test-dir rings/build --output-on-failure
  export OMP_NUM_THREADS=1
  for axes in dp fsdp pp; do
    "$prefix/bin/weft" run -n 2 rings/build/rings rings/train.toml "parallel.$axes=2" \
      "run.name=$axes" || fail "over $axes"
    [[ -s runs/$axes/metrics.jsonl && -n $(ls "runs/$axes/ckpt") ]] || fail "no run folder of $axes"
  done
  ! "$prefix/bin/weft" new rings 2>"$scratch/again" || fail "weft new wrote over a folder"
  grep -q "exists already" "$scratch/again" || fail "weft new: $(cat "$scratch/again")"
  exit 0
fi
"$cmake" -S "$source/$consumer" -B "$scratch/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  "-DCMAKE_PREFIX_PATH=$prefix" "$@"
"$cmake" --build "$scratch/consumer"
"$scratch/consumer/consumer"
[[ $consumer == program ]] || exit 0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
  OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1
for mpi in openmpi mpich; do
  if [[ -e $prefix/lib/weft/libweft_mpi_$mpi.so ]] && command -v "mpirun.$mpi" >/dev/null; then
    WEFT_TRANSPORT=mpi "mpirun.$mpi" -n 2 "$scratch/consumer/consumer" >"$scratch/ranks" 2>&1 ||
      { cat "$scratch/ranks"; fail "under mpirun.$mpi"; }
    grep -q "of 2: 3" "$scratch/ranks" ||
      fail "mpirun.$mpi did not make two ranks: $(cat "$scratch/ranks")"
  fi
done
