#include "weft/comm/replicate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "weft/base/log.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/first_cause.h"
#include "weft/net/host.h"
#include "weft/net/inproc.h"

namespace weft::comm {

void replicate(int replicas, const std::function<void(Group)>& fn, std::chrono::milliseconds timeout) {
  WEFT_REQUIRE(replicas >= 1, "replicate: at least one replica is needed");
  auto hosts = net::make_thread_hosts(replicas);
  auto endpoints = net::make_inproc(replicas);
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  // Groups are kept until all are done, so that a replica that ends early is not lost to the others.
  std::vector<std::optional<Group>> groups(static_cast<std::size_t>(replicas));
  std::mutex mutex;  // guards failure
  FirstCause failure;
  const auto run = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const ThreadRank speaker(rank, replicas);
    at::set_num_threads(std::max(1, processors / replicas));
    net::Host* const host = hosts[at].get();
    try {
      groups[at].emplace(make_backend(std::move(hosts[at]), std::move(endpoints[at]), timeout), "replicas");
      fn(*groups[at]);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(mutex);
        failure.note();
      }
      const Error why(Errc::kAborted, "replica " + std::to_string(rank) + " ended with: " + error.what());
      if (groups[at]) {
        groups[at]->abort(why);
      } else {
        host->fail(why);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < replicas; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace weft::comm
