// Unix sockets between the ranks of a host. They pass the descriptors of the heaps. A closed socket
// means that the peer has died.
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

// A listening abstract socket with a random name. Only processes of the same user are accepted.
class LinkListener {
 public:
  LinkListener();
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
  std::string name_;
};

struct Link {
  int fd = -1;                   // -1 for the own rank
  std::shared_ptr<Region> heap;  // the peer's heap, mapped once for all groups
};

struct LinkOptions {
  int rank = 0;
  std::vector<std::string> names;  // each rank's listener
  int heap_fd = -1;
  std::size_t heap_bytes = 0;
  std::chrono::nanoseconds timeout{};
  std::function<std::optional<int>()> lost_peer;  // may be empty
};

// Connects to every other rank and exchanges descriptors. Throws Error(kUnavailable | kTimeout)
// naming the peer. A rank that fails tells the others, and closes the listener.
std::vector<Link> link_all(LinkListener& listener, const LinkOptions& options);

// True if the process at the other end is dead or has closed the link.
bool is_closed(const Link& link);

// Returns the first rank whose socket was closed although it has not `departed` in order: its
// process is dead. nullopt if there is none.
std::optional<int> first_closed(const std::vector<Link>& links,
                                const std::function<bool(int)>& departed);

}  // namespace weft::net::internal
