#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/cli/internal/checks.h"
#include "weft/net/mpi/mpi.h"
#include "weft/observe/memory.h"

namespace weft::cli {
namespace {

using Grade = Finding::Grade;

std::string first_line_of(const std::string& command) {
  std::string line;
  FILE* const pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return line;
  char text[256];
  if (std::fgets(text, sizeof text, pipe) != nullptr) line = text;
  ::pclose(pipe);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

Finding toolchain() {
  const auto cmake = first_line_of("cmake --version");
  return {"toolchain", cmake.empty() ? Grade::kWarn : Grade::kOk,
          std::string("built with g++ ") + __VERSION__ + ", " +
              (cmake.empty() ? "no cmake in PATH" : cmake),
          cmake.empty() ? "install cmake to build programs (apt-get install cmake)" : ""};
}

Finding cores() {
  cpu_set_t set;
  const int usable = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::string found = std::to_string(usable) + " of " + std::to_string(online) + " usable";
  // "150000 100000" or "max 100000": CPU quota and period, in microseconds.
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (in >> quota >> period && period > 0) {
    std::ostringstream text;
    text << quota / period;
    found += ", cgroup quota " + text.str();
    if (quota / period < usable) {
      return {
          "cores", Grade::kWarn, found,
          "start no more ranks than the quota, or raise it: throttled ranks make the others wait"};
    }
  }
  return {"cores", Grade::kOk, found, ""};
}

Finding memory() {
  const observe::MachineMemory memory = observe::machine_memory();
  std::string found =
      format_bytes(memory.available) + " of " + format_bytes(memory.total) + " available";
  if (memory.limit) found += ", cgroup limit " + format_bytes(*memory.limit);
  const bool low = memory.available < (std::uint64_t{1} << 30);
  return {"memory", low ? Grade::kWarn : Grade::kOk, found,
          low ? "free some: a rank of the CNN takes about 250 MiB" : ""};
}

Finding shared_memory() {
  const UniqueFd fd(::memfd_create("weft-doctor", MFD_CLOEXEC));
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  void* mapped = MAP_FAILED;
  if (fd && ::ftruncate(fd.get(), kBytes) == 0)
    mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    return {"shared memory", Grade::kWarn,
            std::string("memfd_create or mmap fails: ") + std::strerror(errno),
            "allow memfd_create (seccomp, container profile), or ranks of a host talk TCP"};
  }
  ::munmap(mapped, kBytes);
  std::string found = "memfd works";
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    found += ", /dev/shm has " + format_bytes(shm.f_bavail * shm.f_frsize) + " (not used)";
  return {"shared memory", Grade::kOk, found, ""};
}

// Whether a process may read the memory of its siblings, as the ranks of a host do. A child reads
// its parent, since some policies let only a parent read its children.
Finding single_copy() {
  const std::uint64_t value = 0x77656674'72656164;
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    std::uint64_t copy = 0;
    const iovec to{&copy, sizeof copy}, from{const_cast<std::uint64_t*>(&value), sizeof value};
    const bool read = ::process_vm_readv(parent, &to, 1, &from, 1, 0) == sizeof copy;
    ::_exit(read && copy == value ? 0 : read ? 1 : errno);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int error = child < 0 ? errno : WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
  if (error == 0)
    return {"single copy", Grade::kOk, "ranks may read each other's memory (process_vm_readv)", ""};
  return {"single copy", Grade::kWarn,
          std::string("process_vm_readv between processes fails: ") + std::strerror(error),
          "all-reduces of memory from malloc copy it twice; kernel.yama.ptrace_scope=0 or the "
          "container's seccomp profile allows one copy"};
}

// Whether the kernel gives huge pages to shared memory on request.
Finding huge_pages() {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const UniqueFd fd(::memfd_create("weft-doctor", MFD_CLOEXEC));
  void* mapped = MAP_FAILED;
  if (fd && ::ftruncate(fd.get(), 2 * kHuge) == 0)
    mapped = ::mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED)
    return {"huge pages", Grade::kWarn, "not tried: no shared memory", "see the line above"};
  std::memset(mapped, 1, 2 * kHuge);
  constexpr int kCollapse =
      25;  // MADV_COLLAPSE of Linux 6.1, newer than the headers of Debian 12's libc
  const auto aligned = (reinterpret_cast<std::uintptr_t>(mapped) + kHuge - 1) / kHuge * kHuge;
  const bool works = ::madvise(reinterpret_cast<void*>(aligned), kHuge, kCollapse) == 0;
  const std::string reason = works ? "" : std::strerror(errno);
  ::munmap(mapped, 2 * kHuge);
  if (works) return {"huge pages", Grade::kOk, "MADV_COLLAPSE works on shared memory", ""};
  return {"huge pages", Grade::kWarn, "MADV_COLLAPSE fails on shared memory (" + reason + ")",
          "training works with small pages, large models a few percent slower; Linux 6.1 or newer "
          "has it"};
}

Finding descriptors() {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const bool low = limit.rlim_cur < 1024;
  return {"file descriptors", low ? Grade::kWarn : Grade::kOk,
          std::to_string(limit.rlim_cur) + " (hard limit " + std::to_string(limit.rlim_max) + ")",
          low ? "raise it: ulimit -n 4096" : ""};
}

Finding loopback() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  const bool works = listener && caller && ::bind(listener.get(), place, size) == 0 &&
                     ::listen(listener.get(), 1) == 0 &&
                     ::getsockname(listener.get(), place, &size) == 0 &&
                     ::connect(caller.get(), place, size) == 0;
  if (works) return {"loopback", Grade::kOk, "a port of 127.0.0.1 accepts connections", ""};
  return {"loopback", Grade::kFail,
          std::string("127.0.0.1 does not accept connections: ") + std::strerror(errno),
          "bring the interface lo up: ranks meet there"};
}

Finding clock() {
  std::ifstream in("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  in >> source;
  using Clock = std::chrono::steady_clock;
  constexpr int kReadings = 1000;
  const auto start = Clock::now();
  for (int i = 0; i < kReadings; ++i) static_cast<void>(Clock::now());
  const double each =
      std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kReadings;
  const bool slow = each > 500;
  return {"clock", slow ? Grade::kWarn : Grade::kOk,
          (source.empty() ? "" : source + ", ") + std::to_string(static_cast<int>(each)) +
              " ns a reading",
          slow ? "choose the clock source tsc: each wait reads the clock" : ""};
}

Finding mpi() {
  std::string found;
  for (const auto& [implementation, path] : net::mpi::plugins()) {
    const auto launcher = first_line_of("mpirun." + implementation + " --version");
    found += (found.empty() ? "" : ", ") + implementation +
             (launcher.empty() ? " (no mpirun." + implementation + " in PATH)" : "");
  }
  if (found.empty()) {
    return {"mpi", Grade::kOk, "no plug-in: mpirun works on one host only, or with MASTER_ADDR",
            "for more install libopenmpi-dev or libmpich-dev and build again"};
  }
  return {"mpi", Grade::kOk, "plug-ins for " + found, ""};
}

}  // namespace

std::vector<Finding> machine_findings() {
  return {toolchain(),  cores(),       memory(),   shared_memory(), single_copy(),
          huge_pages(), descriptors(), loopback(), mpi(),           clock()};
}

}  // namespace weft::cli
