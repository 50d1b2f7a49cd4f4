// Tells when the operations of this thread first use a parameter, whatever module uses it: libtorch's C++ modules have no hooks on forward,
// but every operation can be observed with its arguments (at::RecordFunction). Costs about a microsecond an operation while armed.
//
// Seen: tensors, optional tensors and lists of them among the arguments. Not seen: memory read through data_ptr(), other threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace weft::parallel::internal {

class WeightGuard {
 public:
  // `used(param)` is called before the first operation on each parameter after arm(). What it throws reaches nobody.
  WeightGuard(const std::vector<at::Tensor>& params, std::function<void(int)> used);
  ~WeightGuard();
  WeightGuard(const WeightGuard&) = delete;
  WeightGuard& operator=(const WeightGuard&) = delete;

  // Observes the calling thread from now on. No effect where armed.
  void arm();
  // Ends that; no effect on another thread than the one that is observed.
  void disarm();

  // What the observer looks at.
  struct Watch;

 private:
  std::shared_ptr<Watch> watch_;
  std::optional<std::uint64_t> handle_;
  std::thread::id thread_;
};

}  // namespace weft::parallel::internal
