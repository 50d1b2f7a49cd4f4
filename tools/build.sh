# Configures build/PRESET if it is new, and runs ninja. Shows the progress on stderr: one changing
# line on a terminal, otherwise a line every 10 s. The full output is in build/PRESET/build.log.
# Sourced after setup.sh.

# Reads ninja's output, writes it to the log $1 and shows the progress of the build of $2.
weft_progress() {
  local line='' log=$1 what=$2 start=$SECONDS shown=$SECONDS last='' status
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status == 0)); then
      printf '%s\n' "$line" >>"$log"
      [[ $line =~ ^\[([0-9]+/[0-9]+)\] ]] || continue
      last=${BASH_REMATCH[1]}
    elif ((status <= 128)); then  # end of file; a timeout has a status above 128
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
  if [[ ! -t 2 ]] && ((SECONDS > start)); then
    printf '[weft] built %s in %d s\n' "$what" $((SECONDS - start)) >&2
  fi
}

# Ends with the cause of the failure in the log $1, in one line; or with the end of the log, if the
# cause is unknown.
weft_explain_build() {
  if grep -qE 'No space left on device' "$1"; then
    weft_die "the build failed: the disk is full; free some space in $root, then repeat the command"
  elif grep -qE 'Killed signal terminated program|out of memory|std::bad_alloc' "$1"; then
    weft_die "the build failed: the compiler ran out of memory; close other programs," \
      "or repeat the command with WEFT_JOBS=1"
  fi
  grep -vE '^\[[0-9]+/[0-9]+\]' "$1" | tail -n 40 >&2
  weft_die "the build failed; full output: $root/$1"
}

# The build folder of a preset. Each version of torch that --torch requests has its own folder. "ci"
# uses the folder of "release", with warnings as errors.
weft_build_folder() { echo "build/${1/#ci/release}${WEFT_TORCH:+-torch-$WEFT_TORCH}"; }

# weft_parts BUILD PRESET TARGET: appends to `options` the CMake options that turn on the tests and
# benches which the target needs and the build does not have yet. The target weft needs neither;
# "tests" needs no benches. They stay off if possible, because they need more packages and time. A
# build that has them keeps them.
weft_parts() {
  local wanted=(WEFT_TESTS WEFT_BENCHMARKS) part
  case $3 in weft*) wanted=() ;; tests) wanted=(WEFT_TESTS) ;; esac
  case $2 in release | dev | ci) ;; *) return 0 ;; esac  # the other presets set these options
  for part in WEFT_TESTS WEFT_BENCHMARKS; do
    if [[ " ${wanted[*]-} " == *" $part "* ]]; then
      grep -qsx "$part:BOOL=ON" "$1/CMakeCache.txt" || options+=("-D$part:BOOL=ON")
    elif [[ ! -f $1/CMakeCache.txt ]]; then
      options+=("-D$part:BOOL=OFF")
    fi
  done
}

# weft_build PRESET TARGET…: builds the targets. "tests" means everything except the benches;
# "weft/FOLDER/all", as the first one, also the folders below it.
weft_build() {
  local preset=$1 build options=()
  build=$(weft_build_folder "$preset")
  shift
  mkdir -p "$build"
  exec {weft_lock}>"$build/.lock"
  flock -n "$weft_lock" ||
    { weft_say "another build of $preset is running: waiting for it"; flock "$weft_lock"; }
  weft_parts "$build" "$preset" "$1"
  [[ $1 != tests ]] || set -- all
  [[ $preset != ci ]] || grep -qsx "WEFT_WERROR:BOOL=ON" "$build/CMakeCache.txt" ||
    options+=(-DWEFT_WERROR:BOOL=ON)
  if [[ -n ${WEFT_TORCH_ROOT-} ]] &&
    ! grep -qsxF "WEFT_TORCH_ROOT:PATH=$WEFT_TORCH_ROOT" "$build/CMakeCache.txt"; then
    options+=("-DWEFT_TORCH_ROOT:PATH=$WEFT_TORCH_ROOT")
  fi
  [[ -z ${WEFT_CUDA-} ]] || grep -qsx "WEFT_CUDA:BOOL=$WEFT_CUDA" "$build/CMakeCache.txt" ||
    options+=("-DWEFT_CUDA:BOOL=$WEFT_CUDA")
  if [[ ! -f $build/build.ninja || ${#options[@]} != 0 ]]; then
    weft_step "configuring $build" "$WEFT_CMAKE" --preset "$preset" -B "$build" "${options[@]}" ||
      exit 1
  fi
  # ninja's target of a folder has none of the folders below it.
  if [[ $1 == weft/*/all ]]; then
    local folder=${1%/all} folders
    mapfile -t folders < <(sed -nE "s#^build ($folder(/[a-z_/]+)?/all): .*#\1#p" \
      "$build/build.ninja")
    ((${#folders[@]} != 0)) || weft_die "the preset $preset builds nothing of $folder"
    set -- "${folders[@]}"
  fi
  : >"$build/build.log"
  if ! NINJA_STATUS='[%f/%t] ' ninja -C "$build" -j "$(weft_jobs)" "$@" 2>&1 </dev/null \
    {weft_lock}>&- |
      weft_progress "$build/build.log" "$preset"; then
    weft_explain_build "$build/build.log"
  fi
  exec {weft_lock}>&-
}
