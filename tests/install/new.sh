#!/usr/bin/env bash
# new.sh BUILD CMAKE configured|trained: the commands that the `weft new` of a build folder prints
# work as they stand, in a home folder where weft has never been installed. "configured" leaves out
# the compiler and the program.
set -euo pipefail
build=$1 cmake=$2 until=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HOME=$scratch/home PATH=${cmake%/*}:$PATH
mkdir "$HOME"
cd "$scratch"
"$build/bin/weft" new rings >printed
mapfile -t commands < <(sed -n 's/^  //p' printed)
((${#commands[@]} == 2)) || { echo "not two commands:"; cat printed; exit 1; }
[[ $until == trained ]] || commands[1]=${commands[1]%% && cmake --build*}
for command in "${commands[@]}"; do
  bash -euo pipefail -c "$command" >log 2>&1 || { tail -n 30 log; echo "failed: $command"; exit 1; }
done
[[ -f rings/build/CMakeCache.txt ]] || { echo "nothing was configured:"; cat printed; exit 1; }
while IFS= read -r command; do
  grep -qF -- "${command%% && *}" rings/README.md ||
    { echo "rings/README.md does not have: ${command%% && *}"; exit 1; }
done < <(printf '%s\n' "${commands[@]}" | sed 's/^cd rings && //')
