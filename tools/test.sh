# Runs the tests of a preset. Sourced by dev, after the other files of this folder.

# Prints how many tests ctest would run with the arguments.
weft_count_tests() {
  "${WEFT_CMAKE%cmake}ctest" --test-dir "$1" -N "${@:2}" 2>/dev/null |
    sed -n 's/^Total Tests: //p'
}

# weft_say_skipped BUILD LABELS: a line with the number of tests that did not run, by their reasons.
# LABELS are those that -LE left out.
weft_say_skipped() {
  local build=$1 left_out=()
  [[ $2 != *slow* ]] || left_out+=("slow (./dev test --slow)=$(weft_count_tests "$build" -L slow)")
  left_out+=("for a GPU=$(weft_count_tests "$build" -L gpu)")
  python3 tools/skipped "$build/Testing/Temporary/LastTest.log" "${left_out[@]}"
}

# The last line is ctest's result, and the line before it says which tests did not run.
run_tests() {
  local exclude='gpu|slow' status=0 build log
  if [[ -n $slow ]]; then
    exclude=gpu
    [[ $preset = [at]san ]] || ./dev test --preset tsan || status=$?
  fi
  set_up
  [[ -z $WEFT_WITH_PYTHON || -z ${WEFT_TORCH_ROOT-} ]] || weft_setup_python_torch
  build=$(weft_build_folder "$preset") log=$build/ctest.log
  # The slow tests include smoke runs of the benches.
  weft_build "$preset" "$([[ -n $slow ]] && echo all || echo tests)"
  PATH=$root/$WEFT_VENV/bin:$PATH "${WEFT_CMAKE%cmake}ctest" --test-dir "$build" -j4 \
    -LE "$exclude" --no-label-summary --output-on-failure \
    "${arguments[@]}" </dev/null 2>&1 | tee "$log" || status=$?
  weft_say_skipped "$build" "$exclude" || true
  # CMake 4.4 omits the number of failed tests if it is 0.
  grep -E '^[0-9]+% tests passed' "$log" | sed 's/passed out of/passed, 0 tests failed out of/' ||
    { echo "no tests were run"; status=1; }
  return $status
}
