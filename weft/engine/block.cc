#include "weft/engine/block.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>

#include "weft/base/error.h"
#include "weft/checkpoint/slice.h"

namespace weft::engine {

void prepare_buffers(torch::nn::Module& module, const std::string& prefix) {
  const at::NoGradGuard guard;
  for (const auto& item : module.named_buffers()) {
    at::Tensor buffer = item.value();
    if (!buffer.defined()) continue;
    const std::string name = "buffer '" + (prefix.empty() ? "" : prefix + ".") + item.key() + "'";
    WEFT_REQUIRE(buffer.layout() == at::kStrided && !buffer.is_quantized(),
                 name +
                     " is sparse or quantized, which parallel training does not support; keep "
                     "it as a dense tensor, or as a member that is not registered");
    checkpoint::plain_view(name, buffer.resolve_conj());  // throws if the type is not supported
    const bool lazy = buffer.is_conj() || buffer.is_neg();
    if (lazy || at::has_internal_overlap(buffer) == at::MemOverlap::Yes)
      buffer.set_data(
          buffer.detach().resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous));
    std::int64_t last = 0;  // place of the last element in memory
    for (std::int64_t d = 0; d < buffer.dim(); ++d)
      last += buffer.size(d) > 0 ? (buffer.size(d) - 1) * buffer.stride(d) : 0;
    WEFT_REQUIRE(last + 1 >= buffer.numel(),
                 name + " has elements that share memory; register a copy of it (clone())");
  }
}

std::string cause_in_batch_norm(const std::string& error, const std::string& remedy) {
  constexpr const char* kText = "Expected more than 1 value per channel when training";
  const auto begin = error.find(kText);
  if (begin == std::string::npos) return "";
  const auto size = error.find("input size ", begin);
  return "batch norm needs more than one value per channel in training, and this rank's part of "
         "the batch has one" +
         (size == std::string::npos
              ? ""
              : ": its input is " + error.substr(size + 11, error.find('\n', size) - size - 11)) +
         "; choose a batch size that leaves two samples for each rank in the last batch too, or "
         "take statistics over all ranks: " +
         remedy;
}

}  // namespace weft::engine
