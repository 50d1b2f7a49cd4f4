// Messages that a link could not take yet: they are sent later, in their order.
#pragma once

#include <deque>

#include "weft/rank_link/messages.h"

namespace weft::launch::internal {

class Outbox {
 public:
  explicit Outbox(rank_link::Link& link) : link_(link) {}

  // Sends the message, now or at a later flush().
  template <class M>
  void tell(const M& message) {
    unsent_.push_back(rank_link::encode(message));
    flush();
  }
  // Sends all that waits, without waiting. False: the link cannot take all of it yet.
  bool flush() {
    while (!unsent_.empty() && link_.tell(unsent_.front().verb, unsent_.front().value))
      unsent_.pop_front();
    return unsent_.empty();
  }

 private:
  rank_link::Link& link_;
  std::deque<rank_link::Message> unsent_;
};

}  // namespace weft::launch::internal
