# Memory and disk space of this machine. Sourced by the callers of setup.sh.

# MiB of memory and swap that this process may use: that of the machine, or the limit of its control
# groups (version 2 or 1).
weft_memory_mib() {
  local mib limit folder of=(/sys/fs/cgroup /sys/fs/cgroup/memory) at name
  mib=$(awk '/^(MemTotal|SwapTotal)/ { sum += $2 } END { print int(sum / 1024) }' /proc/meminfo)
  for at in "$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null)" \
    "$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup 2>/dev/null)"; do
    folder=${of[0]}$at
    while [[ $folder == "${of[0]}"* ]]; do
      for name in memory.max memory.limit_in_bytes; do
        limit=$(cat "$folder/$name" 2>/dev/null || true)
        if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1048576 < mib)); then mib=$((limit / 1048576)); fi
      done
      folder=${folder%/*}
    done
    of=("${of[@]:1}")
  done
  echo "$mib"
}

# Checks the memory: one compiler job needs up to 2 GB (for the precompiled header of libtorch).
weft_check_memory() {
  local mib
  mib=$(weft_memory_mib)
  ((mib >= 2600)) ||
    weft_die "this machine has $(awk "BEGIN { printf \"%.1f\", $mib / 1024 }") GB of memory and" \
      "swap; compiling weft takes 2.6 GB: add swap, or build on a larger machine"
}

# weft_check_disk GB WHY
weft_check_disk() {
  local kib
  kib=$(df -Pk . | awk 'NR == 2 { print $4 }')
  ((kib >= $1 * 1000000)) ||
    weft_die "$(awk "BEGIN { printf \"%.1f\", $kib / 1e6 }") GB are free in $root; $2:" \
      "free some space, or clone to a larger disk"
}

# Number of parallel compiler jobs, with 1.5 GB of memory for each.
weft_jobs() {
  local jobs=$(($(weft_memory_mib) / 1536))
  if ((jobs > $(nproc))); then jobs=$(nproc); fi
  echo "${WEFT_JOBS:-$((jobs < 1 ? 1 : jobs))}"
}
