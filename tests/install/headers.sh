#!/usr/bin/env bash
# headers.sh BUILD CMAKE CXX TORCH: installs BUILD and compiles each public header alone, against
# nothing but the install tree and libtorch.
set -euo pipefail
build=$1 cmake=$2 cxx=$3 torch=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$cmake" --install "$build" --component devel --prefix "$scratch/prefix" >"$scratch/log" ||
  { cat "$scratch/log"; exit 1; }
cd "$scratch/prefix/include"
compile() {
  "$1" -std=c++20 -fsyntax-only -Wall -Werror -I . -isystem "$2/include" \
    -isystem "$2/include/torch/csrc/api/include" -x c++ - <<<"#include \"$3\"" ||
    { echo "$3 does not compile alone"; return 1; }
}
export -f compile
mapfile -t headers < <(find weft -name '*.h' | sort)
((${#headers[@]} > 0)) || { echo "no header was installed"; exit 1; }
printf '%s\0' "${headers[@]}" | xargs -0 -P 2 -I{} bash -c 'compile "$@"' _ "$cxx" "$torch" {}
echo "${#headers[@]} headers compile alone"
