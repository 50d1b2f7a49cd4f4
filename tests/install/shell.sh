#!/usr/bin/env bash
# shell.sh BUILD CMAKE: what `cmake --install` gives to shells and to man: completion of bash, zsh and fish, and weft(1). Each shell that is
# here reads its own script.
set -euo pipefail
build=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$*" >&2; exit 1; }

"$cmake" --install "$build" --component runtime --prefix "$scratch" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
bash=$scratch/share/bash-completion/completions/weft zsh=$scratch/share/zsh/site-functions/_weft
fish=$scratch/share/fish/vendor_completions.d/weft.fish man=$scratch/share/man/man1/weft.1
for file in "$bash" "$zsh" "$fish" "$man"; do [[ -s $file ]] || fail "not installed: ${file#"$scratch/"}"; done

# What Tab offers after the words.
offered() {
  bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; printf "%s\n" "${COMPREPLY[@]}"' - "$bash" "$@"
}
[[ $(offered weft tra) == train ]] || fail "bash offers for \"weft tra\": $(offered weft tra)"
offered weft train --ht | grep -qx -e --http || fail "bash does not offer --http to weft train"
head -n 1 "$zsh" | grep -q '^#compdef weft' || fail "zsh would not take $(head -n 1 "$zsh")"
! command -v zsh >/dev/null || zsh -n "$zsh" || fail "zsh cannot read its script"
! command -v fish >/dev/null || fish -n "$fish" || fail "fish cannot read its script"
grep -q '^\.TH WEFT 1' "$man" || fail "no title of a manual page: $(head -n 3 "$man")"
grep -q 'weft.train' "$man" || fail "the manual page does not name weft train"
