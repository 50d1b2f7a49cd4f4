#include "weft/engine/internal/held_changes.h"

#include <ATen/ATen.h>

namespace weft::engine::internal {

void HeldChanges::lend(checkpoint::Slices& held) {
  for (checkpoint::Slice& slice : held) {
    const at::Tensor of = slice.tensor;
    if (!of.is_cpu()) continue;
    slice.tensor = at::from_blob(
        of.data_ptr(), of.sizes(), of.strides(), [of](void*) {}, of.options());
    const auto version = versions_.try_emplace(slice.name, c10::VariableVersion(0)).first;
    unknown_ = unknown_ || slice.tensor.is_inference();
    if (!slice.tensor.is_inference())
      slice.tensor.unsafeGetTensorImpl()->set_version_counter(version->second);
  }
}

std::uint64_t HeldChanges::count() const {
  std::uint64_t changes = 0;
  for (const auto& [name, version] : versions_) changes += version.current_version();
  return changes;
}

}  // namespace weft::engine::internal
