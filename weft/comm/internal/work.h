// The Work of the weft backend. The thread that ran the operation completes it, before or after the
// caller gets it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/base/error.h"

namespace weft::comm::internal {

// Description of an operation: its title ("weft:all_reduce", static) and its inputs' shapes for
// profilers, its results for futures.
struct Shown {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> results;
  bool writes = true;  // to the results, on this rank

  // The title without its prefix: "all_reduce".
  std::string_view name() const {
    const std::string_view whole = title;
    return whole.substr(whole.find(':') + 1);
  }
};

class WeftWork final : public c10d::Work {
 public:
  // `number`: of the operation in its group, for torch's debugging tools.
  WeftWork(int rank, const Shown& shown, std::uint64_t number);

  // Called once, from any thread. `why` is null on success. `source` is the sender of a message,
  // else -1. Returns a function that completes the future, or nothing. The future's callbacks may
  // wait for other operations.
  std::function<void()> end(std::exception_ptr why, int source);

  // For an operation without a deadline of its own: wait() calls these.
  struct Waiting {
    std::chrono::milliseconds patience{kNoTimeout};
    // Called when a wait() without a timeout has lasted longer than `patience`. Ends the operation
    // with an error.
    std::function<void()> expire = nullptr;
    // Called when the first wait() begins, and, if there was one, at the end of the operation.
    std::function<void(bool begin)> wait = nullptr;
  };
  // Call it before the operation starts.
  void set_waiting(Waiting waiting) { waiting_ = std::move(waiting); }
  // As after such a wait. No effect on an operation that has ended.
  void expire();

  // Shows the wait in the position of the rank.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Throws kInvalidArgument before the end of the operation.
  std::vector<at::Tensor> result() override {
    WEFT_REQUIRE(isCompleted(), "the operation has no result yet: call wait() before result()");
    return results_;
  }
  int sourceRank() const override { return source_; }
  uint64_t getSequencenumber() const override { return number_; }
  // A single operation cannot be canceled; the whole group is aborted.
  void abort() override {}
  // The results, a list of tensors. Created on request. Its callbacks run on the thread that
  // completes the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void complete();
  // Returns the patience.
  std::chrono::milliseconds begin_wait();

  const char* const name_;
  const std::uint64_t number_;
  std::vector<at::Tensor> results_;
  int source_ = -1;
  std::mutex waiting_mutex_;  // guards the two below
  Waiting waiting_;           // without functions after the end: the backend may be gone
  bool is_awaited_ = false;
  std::mutex future_mutex_;  // guards the two below
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

}  // namespace weft::comm::internal
