// Numbers of a reducer's memory that can go back to how they were at the last commit().
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace weft::compress::internal {

class Remembered {
 public:
  explicit Remembered(std::size_t count) : now_(count, 0.0f) {}

  bool empty() const { return now_.empty(); }
  std::size_t size() const { return now_.size(); }
  std::span<float> now() { return now_; }
  std::span<float> part(std::size_t first, std::size_t count) {
    return now().subspan(first, count);
  }

  // rollback() goes back to the numbers of now. The next change costs as much memory again.
  void commit() {
    keeps_ = true;
    has_before_ = false;
  }
  void rollback() {
    if (!std::exchange(has_before_, false)) return;
    now_.swap(before_);
    keeps_ = true;
  }

  // Begins a change in which the caller writes all of now(). Returns the numbers before it, which
  // may be the same memory. Costs nothing more than a change in place.
  std::span<const float> rewrite() {
    if (!std::exchange(keeps_, false)) return now_;
    before_.resize(now_.size());
    now_.swap(before_);
    has_before_ = true;
    return before_;
  }
  // Begins a change of some of the numbers. Costs a copy of all.
  void change() {
    if (!std::exchange(keeps_, false)) return;
    before_ = now_;
    has_before_ = true;
  }

 private:
  std::vector<float> now_, before_;
  bool keeps_ = false;       // the next change must not lose the numbers
  bool has_before_ = false;  // rollback() takes before_
};

}  // namespace weft::compress::internal
