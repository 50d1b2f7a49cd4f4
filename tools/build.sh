# weft_build PRESET TARGET…: configures build/PRESET when that is new, and runs ninja with its progress on stderr: one changing line on a
# terminal, a line every 10 s elsewhere. Sourced after setup.sh; the full output is in build/PRESET/build.log.

# Threads for ninja: a libtorch file takes 1.3 GB (CMake lets two of them run at once), so small machines get one.
weft_jobs() {
  local mib
  mib=$(awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo)
  if ((mib < 4096)); then echo 1; else nproc; fi
}

# Reads ninja's output; $1 is the log, $2 what is being built.
weft_progress() {
  local line='' log=$1 what=$2 start=$SECONDS shown=$SECONDS last='' status
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status == 0)); then
      printf '%s\n' "$line" >>"$log"
      [[ $line =~ ^\[([0-9]+/[0-9]+)\] ]] || continue
      last=${BASH_REMATCH[1]}
    elif ((status <= 128)); then  # end of file; a time-out gives more than 128
      break
    fi
    [[ -n $last ]] || continue
    if [[ -t 2 ]]; then
      printf '\r[weft] building %s %s … %d s ' "$what" "$last" $((SECONDS - start)) >&2
    elif ((SECONDS - shown >= 10)); then
      printf '[weft] building %s %s … %d s\n' "$what" "$last" $((SECONDS - start)) >&2
      shown=$SECONDS
    fi
  done
  [[ ! -t 2 || -z $last ]] || printf '\n' >&2
  if [[ ! -t 2 ]] && ((SECONDS > start)); then printf '[weft] built %s in %d s\n' "$what" $((SECONDS - start)) >&2; fi
}

weft_build() {
  local preset=$1 build=build/$1 options=()
  shift
  mkdir -p "$build"
  exec {weft_lock}>"$build/.lock"
  flock -n "$weft_lock" || { weft_say "another build of $preset is running: waiting for it"; flock "$weft_lock"; }
  if [[ ! -f $build/build.ninja ]] || ! grep -qxF "Torch_DIR:PATH=$WEFT_TORCH_DIR" "$build/CMakeCache.txt"; then
    [[ -z $WEFT_TORCH_DIR ]] || options+=("-DTorch_DIR:PATH=$WEFT_TORCH_DIR")
    weft_step "configuring $build" "$WEFT_CMAKE" --preset "$preset" "${options[@]}" || exit 1
  fi
  : >"$build/build.log"
  if ! NINJA_STATUS='[%f/%t] ' ninja -C "$build" -j "$(weft_jobs)" "$@" 2>&1 </dev/null {weft_lock}>&- |
      weft_progress "$build/build.log" "$preset"; then
    grep -vE '^\[[0-9]+/[0-9]+\]' "$build/build.log" | tail -n 40 >&2
    weft_die "the build failed; full output: $root/$build/build.log"
  fi
  exec {weft_lock}>&-
}
