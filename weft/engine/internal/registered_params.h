// Notices that parameters of a model's modules came or went.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/block.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

class RegisteredParams {
 public:
  // `params` of the blocks; outlives it.
  RegisteredParams(const std::vector<Block>& blocks, const std::vector<Param>& params);
  // Throws Error(kInvalidArgument), with the name, for a parameter that came or went. Costs a
  // comparison of a pointer for each parameter.
  void check() const;

 private:
  void look_for_names() const;

  const std::vector<Param>& params_;
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules_;
  std::vector<const c10::TensorImpl*> list_;  // all parameters of the modules, as they are found
};

// Ends a message about a change that cannot count: it says what to do.
inline constexpr const char* kMakeAgain =
    "change the module before data_parallel(), bind() or Sharded(), or make the parallel model "
    "again";

}  // namespace weft::engine::internal
