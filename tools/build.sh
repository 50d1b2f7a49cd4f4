# weft_build PRESET TARGET…: configures build/PRESET when that is new, and runs ninja with its progress on stderr: one changing line on a
# terminal, a line every 10 s elsewhere. Sourced after setup.sh; the full output is in build/PRESET/build.log.

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

# What went wrong, from the log $1: one line where the cause is known, else the end of the log.
weft_explain_build() {
  if grep -qE 'No space left on device' "$1"; then
    weft_die "the build failed: the disk is full; free some space in $root, then repeat the command"
  elif grep -qE 'Killed signal terminated program|out of memory|std::bad_alloc' "$1"; then
    weft_die "the build failed: the compiler ran out of memory; close other programs, or repeat the command with WEFT_JOBS=1"
  fi
  grep -vE '^\[[0-9]+/[0-9]+\]' "$1" | tail -n 40 >&2
  weft_die "the build failed; full output: $root/$1"
}

# The folder of a preset's build: one more for each torch that --torch asks for.
weft_build_folder() { echo "build/$1${WEFT_TORCH:+-torch-$WEFT_TORCH}"; }

# The command alone is built without tests and benches, which need more packages; whoever has asked for all goes on with them.
weft_build() {
  local preset=$1 build options=() parts=''
  build=$(weft_build_folder "$preset")
  shift
  case $preset in  # the others choose for themselves
    release | dev | ci) parts=$([[ $1 = weft* ]] && echo OFF || echo ON) ;;
  esac
  mkdir -p "$build"
  exec {weft_lock}>"$build/.lock"
  flock -n "$weft_lock" || { weft_say "another build of $preset is running: waiting for it"; flock "$weft_lock"; }
  if [[ ! -f $build/build.ninja ]] || { [[ -n ${WEFT_TORCH_ROOT-} ]] && ! grep -qxF "WEFT_TORCH_ROOT:PATH=$WEFT_TORCH_ROOT" "$build/CMakeCache.txt"; } ||
     { [[ $parts = ON ]] && grep -qx "WEFT_TESTS:BOOL=OFF" "$build/CMakeCache.txt"; }; then
    [[ -z ${WEFT_TORCH_ROOT-} ]] || options+=("-DWEFT_TORCH_ROOT:PATH=$WEFT_TORCH_ROOT")
    [[ -z $parts ]] || options+=("-DWEFT_TESTS:BOOL=$parts" "-DWEFT_BENCHMARKS:BOOL=$parts")
    [[ -z ${WEFT_CUDA-} ]] || options+=("-DWEFT_CUDA:BOOL=$WEFT_CUDA")
    weft_step "configuring $build" "$WEFT_CMAKE" --preset "$preset" -B "$build" "${options[@]}" || exit 1
  fi
  : >"$build/build.log"
  if ! NINJA_STATUS='[%f/%t] ' ninja -C "$build" -j "$(weft_jobs)" "$@" 2>&1 </dev/null {weft_lock}>&- |
      weft_progress "$build/build.log" "$preset"; then
    weft_explain_build "$build/build.log"
  fi
  exec {weft_lock}>&-
}
