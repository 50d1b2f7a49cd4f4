// For tests: whether the answers that clients got for one key could come from a single copy of it.
//
// Wing and Gong, "Testing and Verifying Concurrent Objects", 1993, with the memory of visited
// states of Lowe, "Testing for linearizability", 2017. Keys are independent, so each is checked
// alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace weft::store {

// A call of a client on a key, and its answer. Written values differ, so that a value stands for
// its revision.
struct Operation {
  enum class Kind { kGet, kSet, kSwap, kAdd, kAppend, kErase };
  using Content = std::optional<std::string>;  // of the key

  Kind kind = Kind::kGet;
  std::int64_t begin = 0;
  std::int64_t end = INT64_MAX;  // no answer: it may take effect at any later time, or never
  std::string argument = {};     // value, delta or appended bytes
  Content expected = {};         // kSwap
  Content found = {};            // kGet, kAdd: the answer; a kSwap that failed: the value there
  bool done = true;              // kSwap, kErase: the answer

  bool has_answer() const { return end != INT64_MAX; }
};

class KeyHistory {
 public:
  explicit KeyHistory(std::vector<Operation> operations) : operations_(std::move(operations)) {
    std::stable_sort(operations_.begin(), operations_.end(),
                     [](const Operation& a, const Operation& b) { return a.begin < b.begin; });
    for (const Operation& one : operations_) answers_ += one.has_answer() ? 1 : 0;
  }

  // True if there is an order of the operations that respects time and gives all answers.
  bool is_linearizable() {
    done_.assign(operations_.size(), '0');
    visited_.clear();
    return search(std::nullopt, answers_, 0);
  }

 private:
  // The content after the operation; none if its answer is not possible.
  static std::optional<Operation::Content> apply(const Operation& one,
                                                 const Operation::Content& content) {
    using Kind = Operation::Kind;
    const bool answered = one.has_answer();
    switch (one.kind) {
      case Kind::kGet: break;
      case Kind::kSet: return Operation::Content(one.argument);
      case Kind::kAppend: return Operation::Content(content.value_or("") + one.argument);
      case Kind::kAdd: {
        auto sum = std::to_string(std::stoll(content.value_or("0")) + std::stoll(one.argument));
        if (answered && one.found != sum) return std::nullopt;
        return Operation::Content(std::move(sum));
      }
      case Kind::kErase:
        if (answered && one.done != content.has_value()) return std::nullopt;
        return Operation::Content();
      case Kind::kSwap: {
        const bool swaps = content == one.expected;
        if (answered && (one.done != swaps || (!swaps && one.found != content)))
          return std::nullopt;
        return swaps ? Operation::Content(one.argument) : content;
      }
    }
    if (answered && one.found != content) return std::nullopt;
    return content;
  }

  // `from`: all operations before it have taken effect.
  bool search(const Operation::Content& content, std::size_t answers_left, std::size_t from) {
    if (answers_left == 0) return true;
    while (done_[from] != '0') ++from;
    if (!visited_.insert(done_ + (content ? "=" + *content : "-")).second) return false;
    std::int64_t first_end = INT64_MAX;
    for (std::size_t i = from; i < operations_.size(); ++i) {
      if (operations_[i].begin > first_end) break;
      if (done_[i] == '0') first_end = std::min(first_end, operations_[i].end);
    }
    for (std::size_t i = from; i < operations_.size(); ++i) {
      const Operation& one = operations_[i];
      if (one.begin > first_end) break;
      if (done_[i] != '0') continue;
      const auto after = apply(one, content);
      if (!after) continue;
      done_[i] = '1';
      if (search(*after, answers_left - (one.has_answer() ? 1 : 0), from)) return true;
      done_[i] = '0';
    }
    return false;
  }

  std::vector<Operation> operations_;  // by begin
  std::size_t answers_ = 0;
  std::string done_;
  std::unordered_set<std::string> visited_;
};

inline bool is_linearizable(std::vector<Operation> operations) {
  return KeyHistory(std::move(operations)).is_linearizable();
}

}  // namespace weft::store
