// The newest changes of keys, for those who wait for one.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "weft/store/store.h"

namespace weft::store::internal {

inline bool begins_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

class Changes {
 public:
  // Revisions in ascending order.
  void add(Revision revision, const std::string& key) {
    changes_.push_back({revision, key});
    if (changes_.size() <= kMost) return;
    known_after_ = changes_.front().revision;
    changes_.pop_front();
  }
  // Forgets all: changes up to this revision are unknown.
  void restart(Revision revision) {
    changes_.clear();
    known_after_ = revision;
  }
  // True if a key with this prefix has changed after `since`, or if that is unknown.
  bool any_since(const std::string& prefix, Revision since) const {
    if (since < known_after_) return true;
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
      if (change->revision <= since) return false;
      if (begins_with(change->key, prefix)) return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t kMost = 4096;
  struct Change {
    Revision revision;
    std::string key;
  };
  std::deque<Change> changes_;
  Revision known_after_ = 0;
};

}  // namespace weft::store::internal
