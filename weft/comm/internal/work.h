// The Work of the weft backend: completed by the thread that ran the operation, before or after it
// was handed out.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace weft::comm::internal {

// What an operation shows of itself: to profilers its title ("weft:all_reduce", static) and its
// inputs' shapes, to futures its results.
struct Shown {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> results;
};

class WeftWork final : public c10d::Work {
 public:
  WeftWork(int rank, const Shown& shown);

  // Called once, from any thread; `why` is null where it went well, `source` the rank that a
  // message came from, else -1. What it gives, if anything, completes the future, whose callbacks
  // may wait for other operations.
  std::function<void()> end(std::exception_ptr why, int source);

  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return source_; }
  // A single operation cannot be taken back: the group is aborted as a whole.
  void abort() override {}
  // The results, a list of tensors; exists only for those who ask. Its callbacks run on the thread
  // that completes the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void complete();

  std::vector<at::Tensor> results_;
  int source_ = -1;
  std::mutex future_mutex_;  // guards the two below
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

}  // namespace weft::comm::internal
