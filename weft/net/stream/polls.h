// The descriptors that an event loop waits for, with what to do when one is ready.
#pragma once

#include <poll.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace weft::net::internal {

class Polls {
 public:
  void add(int fd, short events, std::function<void()> ready) {
    fds_.push_back({fd, events, 0});
    ready_.push_back(std::move(ready));
  }
  // Waits for at most this long, and calls what is ready.
  void wait(int milliseconds) {
    if (::poll(fds_.data(), fds_.size(), milliseconds) <= 0) return;
    for (std::size_t i = 0; i < fds_.size(); ++i) {
      if (fds_[i].revents != 0) ready_[i]();
    }
  }

 private:
  std::vector<pollfd> fds_;
  std::vector<std::function<void()>> ready_;
};

}  // namespace weft::net::internal
