// Reports the first use of a parameter by an operation of this thread, whichever module uses it.
// libtorch's C++ modules have no forward hooks, but every operation can be observed with its
// arguments (at::RecordFunction). Costs about a microsecond per operation once it was armed.
//
// Seen: tensors, optional tensors and lists of them among the arguments. Not seen: memory read
// through data_ptr(), other threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace weft::engine::internal {

class WeightGuard {
 public:
  // `used(param)` is called before the first operation on each parameter after arm(). Its
  // exceptions are lost.
  WeightGuard(const std::vector<at::Tensor>& params, std::function<void(int)> used);
  ~WeightGuard();
  WeightGuard(const WeightGuard&) = delete;
  WeightGuard& operator=(const WeightGuard&) = delete;

  // Starts to observe the calling thread's operations.
  void arm();
  // Stops observing. May be called within backward().
  void disarm();

  // Data of the observer.
  struct Watch;

 private:
  std::shared_ptr<Watch> watch_;
  std::optional<std::uint64_t> handle_;
  std::thread::id thread_;
};

}  // namespace weft::engine::internal
