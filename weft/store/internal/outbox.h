// Messages that a member of the consensus has to send, in order.
#pragma once

#include <utility>
#include <vector>

#include "weft/store/internal/message.h"

namespace weft::store::internal {

class Outbox {
 public:
  Outbox(std::uint64_t cluster, MemberId me) : cluster_(cluster), me_(me) {}

  // Adds a message. The caller fills in the rest before the next call.
  Message& add(Message::Type type, MemberId to, Term term) {
    Message& made = messages_.emplace_back();
    made.type = type;
    made.cluster = cluster_;
    made.from = me_;
    made.to = to;
    made.term = term;
    return made;
  }
  std::vector<Message> take() { return std::exchange(messages_, {}); }

 private:
  std::uint64_t cluster_;
  MemberId me_;
  std::vector<Message> messages_;
};

}  // namespace weft::store::internal
