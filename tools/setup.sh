# Finds what weft needs and installs what is missing. Sourced by bin/weft and dev, which set $root and stand in it.
#
# weft_setup leaves its result in build/setup.env (CMake, the directory of TorchConfig.cmake, a Python); while that file is newer than
# this one and still true, a call only reads it. Steps and their times go to stderr, their full output to build/setup.log.

weft_torch_version=2.13.0
weft_packages=(libcli11-dev nlohmann-json3-dev libtomlplusplus-dev zlib1g-dev libpcre2-dev libssl-dev libgtest-dev libgmock-dev libbenchmark-dev)

# What the recipes read, and the MPIs: a plug-in is built for each that is there.
weft_optional_packages=(dataset-fashion-mnist libopenmpi-dev libmpich-dev)

weft_say() { printf '[weft] %s\n' "$*" >&2; }
weft_die() { weft_say "$@"; exit 1; }

# weft_step TEXT COMMAND…: runs the command with its output in the log; one line says what it is and how long it took.
weft_step() {
  local text=$1 start=$SECONDS clock='' from status=0
  shift
  from=$(($(wc -l <build/setup.log) + 1))
  printf '[weft] %s …' "$text" >&2
  if [[ -t 2 ]]; then
    while sleep 1 && kill -0 $$ 2>/dev/null; do printf '\r[weft] %s … %d s' "$text" $((SECONDS - start)) >&2; done &
    clock=$!
  fi
  "$@" </dev/null >>build/setup.log 2>&1 || status=$?
  [[ -z $clock ]] || { kill "$clock" && wait "$clock"; } 2>/dev/null || true
  [[ ! -t 2 ]] || printf '\r[weft] %s …' "$text" >&2
  printf ' %d s%s\n' $((SECONDS - start)) "$([[ $status = 0 ]] || echo ', failed')" >&2
  [[ $status = 0 ]] || weft_explain "$from"
  return $status
}

# The end of the log from line $1, and the likely cause when the network is what failed.
weft_explain() {
  tail -n +"$1" build/setup.log | tail -n 15 | sed 's/^/    /' >&2
  if tail -n +"$1" build/setup.log | grep -qE 'resolve|resolution|unreachable|Failed to (fetch|establish)|Could not connect|timed out'; then
    weft_say "the package archive could not be reached: is this machine offline? Connect it (or set its proxy) and repeat the command."
  fi
  weft_say "full output: $root/build/setup.log"
}

# True when the version $1 is at least $2.
weft_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

weft_cmake_is_new() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n '1s/.* //p')
  [[ -n $version ]] && weft_at_least "$version" 3.25
}

# The Debian packages of the tools that PATH lacks, one a line.
weft_missing_tools() {
  local tool
  for tool in g++:g++ ninja:ninja-build ccache:ccache git:git python3:python3; do
    command -v "${tool%%:*}" >/dev/null || echo "${tool##*:}"
  done
  weft_cmake_is_new cmake || [[ -x .venv/bin/cmake ]] || dpkg -s cmake >/dev/null 2>&1 || echo cmake
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

# Those of the given packages that are not installed.
weft_missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

# Sets weft_as to what runs a command with root rights; fails where there are none.
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

weft_setup_packages() {
  local needed optional all package
  if ! command -v apt-get >/dev/null; then
    weft_say "no apt-get here: g++ >= 12, CMake >= 3.25, Ninja, git, Python and ${weft_packages[*]} are taken to be installed"
    return
  fi
  mapfile -t needed < <(weft_missing_tools; weft_missing_of "${weft_packages[@]}")
  mapfile -t optional < <(weft_missing_of "${weft_optional_packages[@]}")
  all=("${needed[@]}" "${optional[@]}")
  ((${#all[@]})) || return 0
  if weft_rights; then
    weft_step "reading the package lists" "${weft_as[@]}" apt-get update || true  # the lists that are there may do
    ((${#needed[@]} == 0)) || weft_install "${needed[@]}" || weft_die "weft cannot be built without these packages"
    for package in "${optional[@]}"; do weft_install "$package" || true; done
    mapfile -t optional < <(weft_missing_of "${optional[@]}")
  else
    weft_say "packages are missing and there are no root rights to install them; this line does it:"
    printf '    sudo apt-get install -y %s\n' "${all[*]}" >&2
    ((${#needed[@]} == 0)) || weft_die "run it, then repeat the command"
  fi
  for package in "${optional[@]}"; do
    case $package in
      dataset-fashion-mnist) weft_say "no Fashion-MNIST images here: recipes train on generated ones with --set data.name=shapes" ;;
      *) weft_say "no $package here: weft is built without the plug-in for that MPI (docs/mpi.md)" ;;
    esac
  done
}

weft_venv() {
  [[ -x .venv/bin/pip ]] || weft_step "making a Python environment in .venv" python3 -m venv .venv
}

weft_setup_cmake() {
  local cmake
  for cmake in cmake "$root/.venv/bin/cmake"; do
    if weft_cmake_is_new "$cmake"; then WEFT_CMAKE=$(command -v "$cmake"); return; fi
  done
  weft_venv && weft_step "installing CMake (the distribution's is older than 3.25)" .venv/bin/pip install 'cmake>=3.25' ||
    weft_die "CMake 3.25 or newer is needed"
  WEFT_CMAKE=$root/.venv/bin/cmake
}

# The CMake directory of the Torch that Python $1 imports, when it is new enough and complete.
weft_torch_of() {
  "$1" - 2>>build/setup.log <<'PY'
import os, re, shutil, sys, torch
version = tuple(int(x) for x in re.findall(r"\d+", torch.__version__)[:2])
config = os.path.join(torch.utils.cmake_prefix_path, "Torch")
if version < (2, 11) or not os.path.isfile(os.path.join(config, "TorchConfig.cmake")):
    sys.exit(f"{sys.executable}: torch {torch.__version__} is older than 2.11 or has no CMake files")
if torch.version.cuda and not (shutil.which("nvcc") or os.path.exists("/usr/local/cuda")):
    sys.exit(f"{sys.executable}: torch {torch.__version__} is a CUDA build, which can only be linked where the CUDA toolkit is installed")
print(config)
PY
}

weft_setup_torch() {
  local python
  if [[ -n ${Torch_DIR-} ]]; then
    [[ -f $Torch_DIR/TorchConfig.cmake ]] || weft_die "Torch_DIR=$Torch_DIR has no TorchConfig.cmake: set it to the folder that has, or unset it"
    WEFT_TORCH_DIR=$Torch_DIR
  else
    for python in python3 .venv/bin/python; do
      if WEFT_TORCH_DIR=$(weft_torch_of "$python"); then break; fi
    done
    if [[ -z $WEFT_TORCH_DIR ]]; then
      weft_venv && weft_step "installing torch $weft_torch_version into .venv (200 MB to download, 750 MB on disk)" \
        .venv/bin/pip install "torch==$weft_torch_version" || weft_die "a Torch is needed: set Torch_DIR to one, or repeat the command"
      WEFT_TORCH_DIR=$(weft_torch_of .venv/bin/python) || weft_die "torch cannot be used: $(tail -n 1 build/setup.log)"
    fi
  fi
  weft_say "Torch: $WEFT_TORCH_DIR"
}

# weft_setup [packages]: with "packages" without a Torch.
weft_setup() {
  mkdir -p build
  if [[ build/setup.env -nt tools/setup.sh ]]; then
    . build/setup.env
    [[ ${Torch_DIR-} == "$WEFT_ASKED_TORCH_DIR" && -f $WEFT_TORCH_DIR/TorchConfig.cmake && -x $WEFT_CMAKE ]] && return
  fi
  exec {weft_setup_lock}>build/.setup_lock
  flock -n "$weft_setup_lock" || { weft_say "another set-up of this checkout is running: waiting for it"; flock "$weft_setup_lock"; }
  : >build/setup.log
  WEFT_TORCH_DIR=''
  weft_setup_packages
  weft_setup_cmake
  [[ ${1-} == packages ]] || weft_setup_torch
  exec {weft_setup_lock}>&-
  [[ ${1-} != packages ]] || return 0
  printf '%s=%q\n' WEFT_CMAKE "$WEFT_CMAKE" WEFT_TORCH_DIR "$WEFT_TORCH_DIR" WEFT_ASKED_TORCH_DIR "${Torch_DIR-}" >build/setup.env.new
  mv build/setup.env.new build/setup.env
}

# weft_setup_python WHAT FILE REQUIREMENT…: installs the Python packages into .venv unless one of them has left FILE (below .venv) there.
weft_setup_python() {
  local what=$1 file=$2
  shift 2
  ! compgen -G ".venv/$file" >/dev/null || return 0
  : >>build/setup.log
  weft_venv && weft_step "installing $* for the $what" .venv/bin/pip install "$@" || weft_die "the $what cannot do without"
}

# With these the tests read back what weft writes.
weft_setup_tests() { weft_setup_python tests 'lib/python3*/site-packages/expecttest' numpy safetensors tensorboard expecttest; }

# Pinned, since another version formats and complains differently.
weft_setup_lint() { weft_setup_python lint bin/clang-tidy clang-format==14.0.6 clang-tidy==20.1.0; }
