# Finds or installs libtorch. Sourced after setup.sh. Sets WEFT_TORCH_ROOT, the folder with its lib
# and include.
#
# Torch_DIR, if it is set, must be usable. Otherwise uses the torch of python3, or the one in .venv,
# or lets pip install one into .venv. Any build of torch is suitable, with or without CUDA.
# WEFT_TORCH (dev --torch) names a version, which pip installs into its own environment.

# Supported and tested versions, newest first. pip installs the first one if there is no CPU build
# of any of them.
weft_torch_versions=(2.15.0 2.14.1 2.14.0 2.13.0)

# weft_use_torch -DTorch_DIR=FOLDER|-DPYTHON=python: true if that libtorch can be linked. Otherwise
# sets WEFT_TORCH_PROBLEM to the reason.
weft_use_torch() {
  local answer
  answer=$("$WEFT_CMAKE" "$1" -P cmake/WeftTorch.cmake 2>&1 | tail -n 1)
  WEFT_TORCH_PROBLEM=''
  case $answer in
    "torch "*) WEFT_TORCH_ROOT=${answer#torch * } WEFT_TORCH_FOUND=${answer#torch } \
      WEFT_TORCH_FOUND=${WEFT_TORCH_FOUND%% *} ;;
    "problem none") return 1 ;;
    *) WEFT_TORCH_PROBLEM=${answer#problem }; return 1 ;;
  esac
}

# Prints the version to install: the newest for which this pip has a CPU build, else the newest.
weft_choose_torch() {
  local listed version
  listed=$("$WEFT_VENV/bin/pip" index versions torch 2>>build/setup.log)
  listed=" $(sed -n 's/^Available versions: //p' <<<"$listed" | tr ',' ' ') "
  for version in ${WEFT_TORCH:-"${weft_torch_versions[@]}"}; do
    [[ $listed != *" $version+cpu "* ]] || { echo "$version+cpu"; return; }
  done
  echo "${WEFT_TORCH:-${weft_torch_versions[0]}}"
}

# Prints the CUDA packages that libtorch_cpu of a CUDA build needs, libcudart and libcupti, in the
# versions that torch's metadata requires.
weft_torch_needs() {
  "$WEFT_VENV/bin/python" - <<'PY'
import importlib.metadata, re
for line in importlib.metadata.requires("torch") or []:
    pin = re.match(r"cuda-toolkit\[.*?\](==[^ ;]+)", line)
    if pin and "extra ==" not in line:
        print("cuda-toolkit[cudart,cupti]" + pin[1])
PY
}

weft_install_torch() {
  local version pip=("$WEFT_VENV/bin/pip" install --no-compile --retries 2 --timeout 30) needs
  version=$(weft_choose_torch)
  local size="550 MB to download, 1.3 GB on disk"
  [[ $version != *+cpu ]] || size="200 MB to download, 0.8 GB on disk"
  weft_step "installing libtorch of torch $version into $WEFT_VENV ($size)" "${pip[@]}" --no-deps \
    "torch==$version" || return 1
  mapfile -t needs < <(weft_torch_needs)
  ((${#needs[@]} == 0)) ||
    weft_step "installing what its CPU part needs: ${needs[*]}" "${pip[@]}" "${needs[@]}"
}

weft_setup_torch() {
  local python pythons=(python3 "$WEFT_VENV/bin/python")
  if [[ -n ${WEFT_TORCH-} ]]; then
    pythons=("$WEFT_VENV/bin/python")
  elif [[ -n ${Torch_DIR-} ]]; then
    weft_use_torch "-DTorch_DIR=$Torch_DIR" || weft_die "Torch_DIR=$Torch_DIR: $WEFT_TORCH_PROBLEM"
    pythons=()
  fi
  for python in "${pythons[@]}"; do
    # Passes the full path, because cmake may be a script that changes PATH.
    if weft_use_torch "-DPYTHON=$(command -v "$python" || echo none)"; then break; fi
    [[ -z $WEFT_TORCH_PROBLEM ]] || weft_say "not used: $WEFT_TORCH_PROBLEM"
  done
  if [[ -z $WEFT_TORCH_ROOT ]]; then
    weft_venv && weft_install_torch ||
      weft_die "weft cannot be built without libtorch: set Torch_DIR to one that is installed," \
        "or repeat the command"
    weft_use_torch "-DPYTHON=$WEFT_VENV/bin/python" ||
      weft_die "the libtorch in $WEFT_VENV cannot be used:" \
        "${WEFT_TORCH_PROBLEM:-pip installed none}"
  fi
  weft_say "libtorch $WEFT_TORCH_FOUND: $WEFT_TORCH_ROOT"
}

# Prints the Python of the environment that contains the libtorch.
weft_torch_python() {
  local python code='import importlib.util as u'
  code+='; print(u.find_spec("torch").submodule_search_locations[0])'
  for python in "$WEFT_VENV/bin/python" python3; do
    [[ $("$python" -c "$code" 2>/dev/null) != "$WEFT_TORCH_ROOT" ]] ||
      { echo "$python"; return; }
  done
}

# The tests of the Python module import torch. The Python packages of a CPU build are small, so they
# are installed. Those of a CUDA build take 5 GB, so they have an environment of their own, which
# WEFT_WITH_PYTHON (dev test --python) installs. Without it, these tests are skipped.
weft_setup_python_torch() {
  local python
  python=$(weft_torch_python)
  if [[ -z $python ]]; then
    weft_say "tests of the Python module are skipped: $WEFT_TORCH_ROOT belongs to no Python here"
  elif [[ $python = "$WEFT_VENV"/* && ! -e $WEFT_TORCH_ROOT/lib/libtorch_cuda.so ]]; then
    weft_setup_python "tests of the Python module" 'lib/python3*/site-packages/sympy' \
      "torch==$WEFT_TORCH_FOUND"
  elif ! "$python" -c 'import torch' 2>/dev/null; then
    weft_setup_cuda_python "$python"
  fi
}

# weft_setup_cuda_python PYTHON: makes .venv-python, with PYTHON's version of torch and the packages
# of the tests.
weft_setup_cuda_python() {
  local name="torch-$WEFT_TORCH_FOUND.dist-info"
  if compgen -G ".venv-python/lib/python3*/site-packages/$name" >/dev/null; then return; fi
  if [[ -z ${WEFT_WITH_PYTHON-} ]]; then
    weft_say "tests of the Python module are skipped: this torch cannot be imported without its" \
      "CUDA packages; ./dev test --python installs them into .venv-python (5.3 GB)"
    return
  fi
  weft_check_disk 7 "torch with its CUDA packages takes 5.3 GB"
  weft_step "making a Python environment in .venv-python" "$1" -m venv --clear .venv-python &&
    weft_step "installing torch $WEFT_TORCH_FOUND with its CUDA packages (5.3 GB on disk)" \
      .venv-python/bin/pip install --no-compile "torch==$WEFT_TORCH_FOUND" numpy expecttest \
      safetensors setuptools wheel || weft_die "the tests of the Python module cannot do without"
}
