// For tests: groups whose ranks are threads, over any transport.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/net/inproc/inproc.h"
#include "weft/net/tcp/tcp.h"

namespace weft::net::internal {

using Group = std::vector<std::unique_ptr<Endpoint>>;

// Runs `body(rank)` in one thread per rank. Rethrows the exception of the lowest rank when all have
// ended.
inline void run_ranks(int world, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Gathers every rank's address within a process.
class AddressBook {
 public:
  explicit AddressBook(int world) : addresses_(world) {}

  std::function<std::vector<std::string>(const std::string&)> exchange(int rank) {
    return [this, rank](const std::string& mine) {
      std::unique_lock lock(mutex_);
      addresses_[rank] = mine;
      ++known_;
      changed_.notify_all();
      if (!changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return known_ >= addresses_.size(); })) {
        throw Error(Errc::kTimeout, "a rank did not provide its address");
      }
      return addresses_;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> addresses_;
  std::size_t known_ = 0;
};

inline Group make_tcp(int world, TcpOptions options = {}) {
  AddressBook book(world);
  Group group(world);
  run_ranks(world, [&](int rank) {
    TcpOptions mine = options;
    mine.rank = rank;
    mine.world = world;
    mine.exchange = book.exchange(rank);
    group[rank] = connect_tcp(mine);
  });
  return group;
}

}  // namespace weft::net::internal
