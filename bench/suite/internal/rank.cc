#include "bench/suite/internal/rank.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <iostream>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "bench/suite/internal/ranks.h"
#include "weft/base/log.h"
#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/net/memory/host.h"

namespace weft::cli::bench_internal {
namespace {

using namespace std::chrono_literals;

void answer(int rank, const std::string& impl, const std::string& fields) {
  if (rank == 0) std::cout << "{\"impl\":" << json_quote(impl) << "," << fields << "}" << std::endl;
}

comm::Group join(int rank, int ranks, const RankOptions& options) {
  set_rank(rank, ranks);
  at::set_num_threads(1);
  if (options.shared_allocator) comm::install_allocator();
  const auto store = c10::make_intrusive<c10d::FileStore>(options.meeting_file, ranks);
  auto backend = comm::make_backend(
      store, rank, ranks, {.transport = comm::parse_transport(options.transport), .timeout = 60s});
  if (options.bind_to_cores)
    // Not earlier: a backend that saw only one core would yield instead of spinning.
    bind_to_core(rank, ranks);
  return {std::move(backend), options.impl};
}

}  // namespace

int serve_rank(int rank, int ranks, const RankOptions& options,
               const std::function<CarryOut(comm::Group)>& make) {
  try {
    const comm::Group group = join(rank, ranks, options);
    try {
      const CarryOut carry_out = make(group);
      for (std::string line; std::getline(std::cin, line);)
        answer(rank, options.impl, carry_out(parse_message(line)));
      return 0;
    } catch (const std::exception& error) {
      const Error why(Errc::kAborted, error.what());
      if (group.host() != nullptr) group.host()->fail(why);
      group.abort(why);
      throw;
    }
  } catch (const std::exception& error) {
    const std::string what = error.what();
    log_error(options.impl + ": " + what);
    answer(rank, options.impl, "\"error\":" + json_quote(what.substr(0, what.find('\n'))));
    return 1;
  }
}

void meet(const comm::Group& group) {
  if (net::Host* host = group.host()) {
    host->meet("bench", 60s);
  } else {
    group.barrier();
  }
}

}  // namespace weft::cli::bench_internal
