#!/usr/bin/env bash
# aarch64.sh SOURCE CMAKE: cross-compiles the folders without libtorch for aarch64 and runs their
# tests under qemu-user. The libraries for aarch64 come from the distribution's archive into a
# folder of this test; nothing of the machine is changed.
set -euo pipefail
source=$1 cmake=$2

skip() { echo "skipped: $1"; exit 77; }

for tool in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg-deb; do
  command -v "$tool" >/dev/null ||
    skip "there is no $tool; apt-get install g++-aarch64-linux-gnu qemu-user gives it"
done
[[ -d /usr/src/googletest ]] ||
  skip "there is no /usr/src/googletest; apt-get install libgtest-dev gives it"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root libraries=$scratch/root/usr/lib/aarch64-linux-gnu

mkdir -p "$scratch"/{lists/partial,cache/archives/partial,debs} "$root"
: >"$scratch/status"
apt=(apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64
     -o Dir::State::Lists="$scratch/lists" -o Dir::State::status="$scratch/status"
     -o Dir::Cache="$scratch/cache" -o APT::Sandbox::User=)
"${apt[@]}" update >"$scratch/log" 2>&1 ||
  { tail -n 3 "$scratch/log"; skip "the package archive cannot be reached"; }
(cd "$scratch/debs" && "${apt[@]}" download zlib1g zlib1g-dev libssl3 libssl-dev \
    libpcre2-8-0 libpcre2-dev libutf8proc2 libutf8proc-dev >>"$scratch/log" 2>&1) ||
  { tail -n 3 "$scratch/log"; exit 1; }
for package in "$scratch"/debs/*.deb; do dpkg-deb -x "$package" "$root"; done
for package in libz libcrypto libssl; do  # absolute links would leave the folder
  [[ ! -L $libraries/$package.so || -e $libraries/$package.so ]] ||
    ln -sf "$(basename "$(readlink "$libraries/$package.so")")" "$libraries/$package.so"
done
cp -r "$root"/lib/aarch64-linux-gnu/. "$libraries/" 2>/dev/null || true

emulator="qemu-aarch64;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=$libraries"
cross=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux
  -DCMAKE_SYSTEM_PROCESSOR=aarch64
       -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
       "-DCMAKE_CXX_FLAGS=-isystem $root/usr/include/aarch64-linux-gnu"
       "-DCMAKE_EXE_LINKER_FLAGS=-L$libraries -Wl,-rpath-link,$libraries"
       "-DCMAKE_FIND_ROOT_PATH=$root" -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
       "-DCMAKE_CROSSCOMPILING_EMULATOR=$emulator")
"$cmake" -S /usr/src/googletest -B "$scratch/gtest" "${cross[@]}" \
  -DCMAKE_INSTALL_PREFIX="$root/usr" >"$scratch/log" 2>&1 &&
  "$cmake" --build "$scratch/gtest" --target install >>"$scratch/log" 2>&1 ||
  { tail -n 20 "$scratch/log"; exit 1; }

toml=$(dpkg -L libtomlplusplus-dev | grep '/tomlplusplusConfig.cmake$')
json=$(dpkg -L nlohmann-json3-dev | grep '/nlohmann_jsonConfig.cmake$')
"$cmake" -S "$source" -B "$scratch/build" "${cross[@]}" "-Dtomlplusplus_DIR=${toml%/*}" \
  "-Dnlohmann_json_DIR=${json%/*}" -DWEFT_TORCH=OFF -DWEFT_BENCHMARKS=OFF -DWEFT_INSTALL=OFF
"$cmake" --build "$scratch/build" --target all
# Left out for qemu-user's limits: it knows no SO_ZEROCOPY, and programs that tests start again are
# not of this machine.
left_out='base.LogEnvironment|observe.EventFileReadBack|tools.check_layers'
left_out+='|net_inproc.EndpointContract|net_tcp.(LentPayload|ZeroCopySends|ZeroCopySendsTiming)'
"${cmake%cmake}ctest" --test-dir "$scratch/build" -j2 -LE 'slow|mpi|setup' --output-on-failure \
  --timeout 600 -E "^($left_out)\$"
LD_LIBRARY_PATH='' qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libraries" \
  "$scratch/build/weft/net/inproc/weft_net_inproc_test" \
  --gtest_filter='*EndpointContract*:-LendingTcp/*' --gtest_brief=1
