#!/usr/bin/env bash
# shell.sh BUILD CMAKE: checks what `cmake --install` installs for shells and man: the completion
# scripts of bash, zsh and fish, and weft(1). Each installed shell reads its own script.
set -euo pipefail
build=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$*" >&2; exit 1; }

"$cmake" --install "$build" --component runtime --prefix "$scratch" >"$scratch/log" ||
  { cat "$scratch/log"; exit 1; }
bash=$scratch/share/bash-completion/completions/weft zsh=$scratch/share/zsh/site-functions/_weft
fish=$scratch/share/fish/vendor_completions.d/weft.fish man=$scratch/share/man/man1/weft.1
for file in "$bash" "$zsh" "$fish" "$man"; do
  [[ -s $file ]] || fail "not installed: ${file#"$scratch/"}"
done

# What Tab offers after the words.
offered() {
  bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft
    printf "%s\n" "${COMPREPLY[@]}"' - "$bash" "$@"
}
[[ $(offered weft tra) == train ]] || fail "bash offers for \"weft tra\": $(offered weft tra)"
offered weft train --ht | grep -qx -e --http || fail "bash does not offer --http to weft train"
head -n 1 "$zsh" | grep -q '^#compdef weft' || fail "zsh would not take $(head -n 1 "$zsh")"

# zsh on a terminal of its own: the first Tab after "weft tra".
typed() {
  zsh -f -s "$1" <<'ZSH'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1='prompt> '; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -u -D; echo rea\dy"
zpty -r -m shell seen $'*\nready*prompt> *'
zpty -w -n shell $'weft tra\tEND'
zpty -r -m shell seen '*END*'
print -r -- "$seen"
ZSH
}
if command -v zsh >/dev/null; then
  tab=$(timeout 60 bash -c "$(declare -f typed); typed \"\$1\"" - "${zsh%/*}" |
    tr -d '\033\b' | tail -n 1)
  [[ $tab == *"weft train"* ]] || fail "zsh completes \"weft tra\" as: $tab"
fi
if command -v fish >/dev/null; then
  fish -c "source '$fish'; complete -C 'weft tra'" | grep -q '^train' ||
    fail "fish does not complete \"weft tra\""
fi
grep -q '^\.TH WEFT 1' "$man" || fail "no title of a manual page: $(head -n 3 "$man")"
grep -q 'weft.train' "$man" || fail "the manual page does not name weft train"
