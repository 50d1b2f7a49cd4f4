// Unix sockets between the ranks of a host: they hand over the heaps' descriptors, and their
// closing tells that a peer has died.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/net/memory/internal/region.h"

namespace weft::net::internal {

// A listening abstract socket with a random name; only processes of the same user are let in.
class LinkListener {
 public:
  LinkListener();
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::string name_;
};

struct Link {
  int fd = -1;                   // -1 for the own rank
  std::shared_ptr<Region> heap;  // the peer's, mapped here; mapped once however many groups use it
};

struct LinkOptions {
  int rank = 0;
  std::vector<std::string> names;  // each rank's listener
  int heap_fd = -1;
  std::size_t heap_bytes = 0;
  std::chrono::nanoseconds timeout{};
  std::function<std::optional<int>()> lost_peer;  // may be empty
};

// Connects with every other rank and swaps descriptors. Throws Error(kUnavailable | kTimeout)
// naming the peer.
std::vector<Link> link_all(const LinkListener& listener, const LinkOptions& options);

// True where the process at the other end is dead, or has closed the link.
bool is_closed(const Link& link);

// The first rank whose socket was closed although it has not `departed` in order: its process is
// dead. nullopt when all are well.
std::optional<int> first_closed(const std::vector<Link>& links,
                                const std::function<bool(int)>& departed);

}  // namespace weft::net::internal
