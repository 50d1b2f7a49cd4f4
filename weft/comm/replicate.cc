#include "weft/comm/replicate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "weft/base/caught/caught.h"
#include "weft/base/deadline.h"
#include "weft/base/log.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/first_cause.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/net/inproc/inproc.h"
#include "weft/net/memory/host.h"

namespace weft::comm {

namespace {

using internal::WeftBackend;

// Subgroups of the replicas: the first replica makes the backends of all, the others take theirs.
class Parts : public std::enable_shared_from_this<Parts> {
 public:
  using RelatedGroups = std::shared_ptr<internal::RelatedGroups>;  // of one replica

  c10::intrusive_ptr<c10d::Backend> make(const WeftBackend::Part& part,
                                         const RelatedGroups& related) {
    const int size = static_cast<int>(part.ranks.size());
    Seats* seats = nullptr;
    if (part.me == 0) {
      auto made =
          std::make_unique<Seats>(Seats{net::make_thread_hosts(size), net::make_inproc(size)});
      seats = made.get();
      const std::lock_guard lock(mutex_);
      all_.push_back(std::move(made));
      const std::string place = std::to_string(all_.size() - 1);
      part.store->set("seats", std::vector<std::uint8_t>(place.begin(), place.end()));
    } else {
      const std::string place = await(part);
      const std::lock_guard lock(mutex_);
      seats = all_.at(std::stoul(place)).get();
    }
    const auto at = static_cast<std::size_t>(part.me);
    auto engine = internal::make_direct_engine(std::move(seats->hosts[at]),
                                               std::move(seats->endpoints[at]), part.timeout);
    auto backend = c10::make_intrusive<WeftBackend>(std::move(engine), part.me, size, part.timeout,
                                                    origin(part.store, related));
    enlist(backend);
    return backend;
  }

  // A group of one replica, aborted if another replica fails: it may wait for a message that is
  // never sent.
  void enlist(const c10::intrusive_ptr<WeftBackend>& backend) {
    const std::lock_guard lock(mutex_);
    if (failed_) backend->abort_with(*why_);
    backends_.emplace_back(backend);
  }

  WeftBackend::Origin origin(c10::intrusive_ptr<c10d::Store> store, const RelatedGroups& related) {
    const auto make = [parts = shared_from_this(), related](const WeftBackend::Part& part) {
      return parts->make(part, related);
    };
    return {std::move(store), make, related};
  }

  // Aborts all groups and all waits for groups. The first call wins.
  void fail(const Error& why) {
    std::vector<c10::intrusive_ptr<WeftBackend>> alive;
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      why_ = why;
      failed_ = true;
      for (const auto& weak : backends_) alive.push_back(weak.lock());
    }
    for (const auto& backend : alive) {
      if (backend) backend->abort_with(why);
    }
  }

 private:
  struct Seats {
    std::vector<std::unique_ptr<net::Host>> hosts;
    std::vector<std::unique_ptr<net::Endpoint>> endpoints;
  };

  std::string await(const WeftBackend::Part& part) const {
    const auto deadline = Deadline::in(part.timeout);
    while (!part.store->check({"seats"})) {
      if (failed_) throw Error(Errc::kAborted, "a replica has failed", {"subgroup", part.me});
      if (deadline.passed())
        throw Error(Errc::kTimeout, "replica 0 of the subgroup did not call subgroup()",
                    {"subgroup", part.me, 0});
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const auto place = part.store->get("seats");
    return {place.begin(), place.end()};
  }

  std::mutex mutex_;  // guards all_, backends_ and why_
  std::vector<std::unique_ptr<Seats>> all_;
  std::vector<c10::weak_intrusive_ptr<WeftBackend>> backends_;
  std::optional<Error> why_;
  std::atomic<bool> failed_ = false;
};

// libtorch starts threads of its own here.
void set_threads(int threads) {
  try {
    at::set_num_threads(threads);
  } catch (const std::exception& error) {
    throw Error(Errc::kUnavailable,
                "libtorch cannot start its threads: there are too many, or too "
                "little memory (" +
                    describe(error) + ")");
  }
}

}  // namespace

void replicate(int replicas, const std::function<void(Group)>& fn,
               std::chrono::milliseconds timeout) {
  WEFT_REQUIRE(replicas >= 1, "replicate: at least one replica is needed");
  timeout = bounded_timeout(timeout);
  auto hosts = net::make_thread_hosts(replicas);
  auto endpoints = net::make_inproc(replicas);
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  // Groups are kept until all replicas are done, so that the others do not lose a replica that ends
  // early.
  std::vector<std::optional<Group>> groups(static_cast<std::size_t>(replicas));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto parts = std::make_shared<Parts>();
  std::mutex mutex;  // guards failure
  FirstCause failure;
  const auto run = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const ThreadRank speaker(rank, replicas);
    try {
      set_threads(std::max(1, processors / replicas));
      auto engine =
          internal::make_direct_engine(std::move(hosts[at]), std::move(endpoints[at]), timeout);
      const auto backend = c10::make_intrusive<WeftBackend>(
          std::move(engine), rank, replicas, timeout,
          parts->origin(store, std::make_shared<internal::RelatedGroups>()));
      parts->enlist(backend);
      groups[at].emplace(backend, "replicas");
      fn(*groups[at]);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(mutex);
        failure.note();
      }
      const Error why(Errc::kAborted,
                      "replica " + std::to_string(rank) + " ended with: " + describe(error));
      parts->fail(why);
      if (hosts[at]) hosts[at]->fail(why);  // else it has ended with its engine or is in a group
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(replicas));
  try {
    for (int rank = 0; rank < replicas; ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& error) {  // those that have started wait for this one
    {
      std::lock_guard lock(mutex);
      failure.note();
    }
    const Error why = as_ended(error, "replica " + std::to_string(threads.size()));
    parts->fail(why);
    hosts[threads.size()]->fail(why);
  }
  for (auto& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace weft::comm
