// One rank of a group over two hosts, with all of weft/comm: in two levels, or flat over the same
// connections. rank.h describes its commands.
//
//   RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… weft_network_hosts
//       two-levels|flat-ring|flat-sharded [INTERFACE]
#include <exception>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "bench/network/rank.h"
#include "weft/comm/environment.h"
#include "weft/comm/internal/transport.h"
#include "weft/net/execute/executor.h"
#include "weft/net/memory/heap.h"

namespace weft::bench {
namespace {

constexpr net::Channel kFlat = 77;

std::unique_ptr<comm::internal::Engine> join(const comm::Identity& me,
                                             const std::string& interface) {
  c10d::TCPStoreOptions where;
  where.port = me.master_port;
  where.isServer = me.rank == 0;
  where.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>(me.master_addr, where);
  return comm::internal::make_engine(
      comm::internal::meet_at(store, {me.rank, me.world, std::chrono::minutes(1)}),
      {.interface = interface, .store_host = me.master_addr});
}

void run(const std::string& way, const std::string& interface) {
  const comm::Identity me = comm::discover(comm::Environment::process());
  const auto engine = join(me, interface);
  net::Executor executor;
  const auto two_levels = [&](float* data, std::size_t count) {
    engine->run(schedule::Collective::kAllReduce,
                {.input = data, .output = data, .count = static_cast<std::int64_t>(count)});
  };
  const auto flat = [&](float* data, std::size_t count) {
    const auto algorithm =
        way == "flat-ring" ? schedule::Algorithm::kRing : schedule::Algorithm::kSharded;
    const schedule::Request request{.collective = schedule::Collective::kAllReduce,
                                    .algorithm = algorithm,
                                    .rank = me.rank,
                                    .world = me.world,
                                    .count = static_cast<std::int64_t>(count)};
    const auto deadline = Deadline::in(std::chrono::minutes(1));
    executor.run(schedule::make(request), engine->endpoint(),
                 {.input = data, .output = data, .channel = kFlat, .deadline = deadline});
  };
  Library library{.rank = me.rank, .world = me.world};
  if (way == "two-levels") {
    library.all_reduce = two_levels;
  } else {
    library.all_reduce = flat;
  }
  library.barrier = [&] { engine->run(schedule::Collective::kBarrier, {}); };
  // Memory that the other ranks of the host can read, like the memory of tensors.
  library.allocate = [](std::size_t bytes) {
    return static_cast<float*>(net::process_heap()->allocate(bytes));
  };
  serve(library);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  if (way != "two-levels" && way != "flat-ring" && way != "flat-sharded") {
    std::cerr << "usage: weft_network_hosts two-levels|flat-ring|flat-sharded [INTERFACE]\n";
    return 2;
  }
  try {
    weft::bench::run(way, argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::cerr << "weft_network_hosts: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
