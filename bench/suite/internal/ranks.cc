#include "bench/suite/internal/ranks.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::cli::bench_internal {

using namespace std::chrono_literals;

void bind_to_core(int rank, int ranks) {
  cpu_set_t usable, one;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0 || CPU_COUNT(&usable) < ranks) return;
  int core = -1;
  for (int seen = 0; seen <= rank; ++seen) {
    do ++core;
    while (!CPU_ISSET(core, &usable));
  }
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

net::Exchange exchange_by_files(const std::string& folder, int rank, int ranks) {
  constexpr std::size_t kMaxBytes = 1 << 20;
  const auto round = std::make_shared<int>(0);
  return [folder, rank, ranks, round](const std::string& mine) {
    const std::string prefix = folder + "/" + std::to_string((*round)++) + "-";
    write_file_atomic(prefix + std::to_string(rank), mine);
    const auto deadline = Deadline::in(30s);
    std::vector<std::string> all;
    for (int peer = 0; peer < ranks; ++peer) {
      const std::string path = prefix + std::to_string(peer);
      while (::access(path.c_str(), F_OK) != 0) {
        if (deadline.passed())
          throw Error(Errc::kTimeout, "rank " + std::to_string(peer) + " did not come within 30 s",
                      {"bench", rank, peer});
        std::this_thread::sleep_for(200us);
      }
      all.push_back(read_file(path, kMaxBytes));
    }
    return all;
  };
}

}  // namespace weft::cli::bench_internal
