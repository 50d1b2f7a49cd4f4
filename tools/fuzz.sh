# weft_fuzz RUNS [TARGET…]: runs fuzz targets of tests/fuzz (default: all) under libFuzzer with RUNS
# inputs each, and with the address and undefined behavior sanitizers. Failing inputs are in
# build/fuzz/found; the corpora grow in build/fuzz/corpus. Sourced after setup.sh and build.sh.

weft_setup_fuzz() {
  local needed
  command -v clang++ >/dev/null &&
    compgen -G "$(clang++ -print-resource-dir)/lib/*/libclang_rt.fuzzer*.a" >/dev/null && return
  weft_rights ||
    weft_die "libFuzzer is missing; this line installs it:" \
      "sudo apt-get install -y clang libclang-rt-dev"
  local depends='s/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p'
  mapfile -t needed < <(apt-cache depends clang | sed -n "$depends")
  weft_install clang "${needed[@]}" || weft_die "the fuzz targets need clang with libFuzzer"
}

weft_fuzz() {
  local runs=$1 target log all=() failed=''
  shift
  mapfile -t all < <(cd tests/fuzz && ls ./*_fuzz.cc | sed 's,./\(.*\)_fuzz.cc,\1,')
  for target in "$@"; do
    [[ " ${all[*]} " == *" $target "* ]] ||
      weft_die "no fuzz target $target; there are: ${all[*]}"
  done
  (($# > 0)) || set -- "${all[@]}"
  weft_setup packages
  weft_setup_fuzz
  weft_build fuzz "${@/#/fuzz_}"
  mkdir -p build/fuzz/found
  for target in "$@"; do
    mkdir -p "build/fuzz/corpus/$target"
    printf '[weft] fuzzing %s, %s inputs\n' "$target" "$runs" >&2
    # The resident limit covers the memory of the sanitizers and of libFuzzer itself. run.cc limits
    # the memory of an input.
    log=build/fuzz/$target.log
    build/fuzz/tests/fuzz/"fuzz_$target" -runs="$runs" -max_len=4096 -timeout=10 \
      -malloc_limit_mb=64 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/corpus/$target" \
      "tests/fuzz/corpus/$target" </dev/null >"$log" 2>&1 || failed+=" $target"
    grep -E 'fuzz:|ERROR|SUMMARY|runtime error|written to|executed_units' "$log" || tail -n 3 "$log"
  done
  [[ -z $failed ]] ||
    weft_die "found something in:$failed (inputs in build/fuzz/found," \
      "full output in build/fuzz/TARGET.log)"
}
