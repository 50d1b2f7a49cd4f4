// Tells when the operations of this thread first use a parameter, whatever module uses it:
// libtorch's C++ modules have no hooks on forward, but every operation can be observed with its
// arguments (at::RecordFunction). Costs about a microsecond an operation, once it was armed.
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

namespace weft::parallel::internal {

class WeightGuard {
 public:
  // `used(param)` is called before the first operation on each parameter after arm(). What it
  // throws reaches nobody.
  WeightGuard(const std::vector<at::Tensor>& params, std::function<void(int)> used);
  ~WeightGuard();
  WeightGuard(const WeightGuard&) = delete;
  WeightGuard& operator=(const WeightGuard&) = delete;

  // Looks at the calling thread's operations from now on.
  void arm();
  // Looks no more. May be called within backward().
  void disarm();

  // What the observer looks at.
  struct Watch;

 private:
  std::shared_ptr<Watch> watch_;
  std::optional<std::uint64_t> handle_;
  std::thread::id thread_;
};

}  // namespace weft::parallel::internal
