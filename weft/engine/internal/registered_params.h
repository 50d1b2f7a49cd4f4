// Notices that parameters of a model's modules came or went, and buffers if they are synchronized.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/block.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

// The name in the model of a parameter, buffer or module of a block.
std::string full_name(const std::string& block, const std::string& name);

class RegisteredParams {
 public:
  // `params` of the blocks; outlives it. `buffers`: looks at buffers too.
  RegisteredParams(const std::vector<Block>& blocks, const std::vector<Param>& params,
                   bool buffers);
  // Throws Error(kInvalidArgument), with the name, for a parameter that came or went. Costs a
  // comparison of a pointer for each parameter.
  void check() const;
  // The same for a buffer. Costs a copy of its name too, since libtorch gives buffers by names.
  void check_buffers() const;

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
  };
  template <class Before, class Named>
  void look_for(const Before& before, const Named& named, const std::string& kind,
                const std::string& consequence) const;

  const std::vector<Param>& params_;
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules_;
  const bool with_buffers_;
  std::vector<const c10::TensorImpl*> list_;  // all parameters of the modules, as they are found
  std::vector<Buffer> buffers_;               // the same of buffers; keeps them
};

// Ends a message about a change that cannot count: it says what to do.
inline constexpr const char* kMakeAgain =
    "change the module before data_parallel(), bind() or Sharded(), or make the parallel model "
    "again";

}  // namespace weft::engine::internal
