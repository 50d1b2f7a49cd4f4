// A directory of servers that counts the attempts of a client to connect.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "weft/ps/view.h"

namespace weft::strategy::internal {

// Counts how often a client has asked where a server is, which it does before each attempt to
// connect.
class CountedDirectory final : public ps::Directory {
 public:
  explicit CountedDirectory(ps::Directory& of) : of_(of) {}

  int attempts() const { return attempts_.load(); }
  std::map<std::uint32_t, ps::View> views(Deadline deadline) override {
    return of_.views(deadline);
  }
  bool replace(std::uint32_t shard, const ps::View& next, Deadline deadline) override {
    return of_.replace(shard, next, deadline);
  }
  std::map<std::uint32_t, ps::ServerAddress> servers(Deadline deadline) override {
    ++attempts_;
    return of_.servers(deadline);
  }
  void announce(std::uint32_t server, const ps::ServerAddress& address,
                Deadline deadline) override {
    of_.announce(server, address, deadline);
  }

 private:
  ps::Directory& of_;
  std::atomic<int> attempts_{0};
};

}  // namespace weft::strategy::internal
