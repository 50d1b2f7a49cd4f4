// For tests: what all nodes of a store must agree on.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "weft/store/internal/node.h"

namespace weft::store {

// A broken promise of the store.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One member leads a term, and all nodes apply the same entries.
class Agreement {
 public:
  // Checks what the node has applied since `checked`, and moves it on.
  void check(const internal::Node& node, internal::Index& checked) {
    const internal::Raft& raft = *node.raft();
    if (raft.leads()) {
      const auto [leader, is_new] = leaders_.emplace(raft.term(), raft.options().me);
      if (leader->second != raft.options().me)
        throw Violation("two leaders in term " + std::to_string(raft.term()));
    }
    checked = std::max(checked, raft.log().base());
    for (; checked < node.applied(); ++checked) {
      const internal::LogEntry& entry = raft.log().at(checked + 1);
      const std::pair mine(entry.term, std::hash<std::string>()(entry.data));
      if (applied_.size() <= checked) applied_.resize(checked + 1);
      auto& theirs = applied_[checked];
      if (theirs.first == 0) theirs = mine;
      if (theirs != mine)
        throw Violation("nodes apply different entries at index " + std::to_string(checked + 1));
    }
  }
  std::size_t leaders() const { return leaders_.size(); }

 private:
  std::map<internal::Term, internal::MemberId> leaders_;
  std::vector<std::pair<internal::Term, std::size_t>> applied_;  // by index: term, hash
};

}  // namespace weft::store
