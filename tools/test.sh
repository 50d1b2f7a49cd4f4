# Runs the tests of a preset. Sourced by dev, after the other files of this folder.

# weft_left_out BUILD LABELS: the tests that -LE LABELS leaves out, a group in each line, as
# tools/skipped takes it. ctest overwrites its log of outputs, so call this before the tests.
weft_left_out() {
  local label
  for label in slow gpu; do
    [[ $2 != *$label* ]] ||
      "${WEFT_CMAKE%cmake}ctest" --test-dir "$1" -N -L "$label" 2>/dev/null |
        sed -n "s/^Total Tests: /$label=/p"
  done | sed 's/^slow/slow (.\/dev test --slow)/; s/^gpu/for a GPU/'
}

# A test that computes has two ranks and counts as two jobs; one that mostly waits counts as one. A
# job needs up to 600 MB.
weft_test_jobs() {
  local jobs=$((3 * $(nproc))) room=$(($(weft_memory_mib) / 600))
  echo $((room < 2 ? 2 : jobs < room ? jobs : room))
}

# The last line is ctest's result, and the line before it says which tests did not run.
run_tests() {
  local exclude='gpu|slow' status=0 build log left_out
  if [[ -n $slow ]]; then
    exclude=gpu
    [[ $preset = *[at]san* ]] || ./dev test --preset tsan || status=$?
    [[ $preset = *[at]san* ]] ||
      ./dev test --preset asan-torch -L '^(comm|checkpoint|elastic|engine)$' || status=$?
  fi
  [[ $preset != asan-torch ]] || exclude="$exclude|timing"
  if [[ -n $only ]]; then
    if [[ ! -d weft/$only ]]; then
      echo "./dev test --only: there is no folder weft/$only" >&2
      return 2
    fi
    arguments+=(-L "^${only//\//_}(_.*)?\$")
  fi
  set_up
  [[ -z $WEFT_WITH_PYTHON || -z ${WEFT_TORCH_ROOT-} ]] || weft_setup_python_torch
  build=$(weft_build_folder "$preset") log=$build/ctest.log
  # The slow tests include smoke runs of the benches.
  local target=tests
  [[ -z $slow ]] || target=all
  [[ -z $only ]] || target=weft/$only/all
  weft_build "$preset" "$target"
  mapfile -t left_out < <(weft_left_out "$build" "$exclude")
  WEFT_CMAKE=$WEFT_CMAKE python3 tools/changed_tests "$build" begin "$build/changed_tests" || return
  if [[ -n $changed ]]; then
    if ! "${WEFT_CMAKE%cmake}ctest" --help | grep -q tests-from-file; then
      echo "./dev test --changed needs CMake 3.29 or newer" >&2
      return 2
    fi
    arguments+=(--tests-from-file "$root/$build/changed_tests" --no-tests=ignore)
  fi
  PATH=$root/$WEFT_VENV/bin:$PATH "${WEFT_CMAKE%cmake}ctest" --test-dir "$build" \
    -j"$(weft_test_jobs)" -LE "$exclude" --no-label-summary --output-on-failure \
    "${arguments[@]}" </dev/null 2>&1 | tee "$log" || status=$?
  python3 tools/changed_tests "$build" end "$log" || status=1
  python3 tools/skipped "$log" "$build/Testing/Temporary/LastTest.log" "${left_out[@]}" || true
  # CMake 4.4 omits the number of failed tests if it is 0.
  grep -E '^[0-9]+% tests passed' "$log" | sed 's/passed out of/passed, 0 tests failed out of/' ||
    if [[ -n $changed && $status = 0 ]]; then
      echo "all of these tests have passed with these inputs"
    else
      echo "no tests were run"
      status=1
    fi
  return $status
}
