#include "weft/engine/internal/overlaps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "weft/base/error.h"

namespace weft::engine::internal {
namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  const Param* param = nullptr;
};

}  // namespace

void check_apart(const std::vector<Param>& params) {
  std::vector<Range> ranges;
  for (const Param& param : params) {
    const at::Tensor& tensor = param.tensor;
    // Without memory: divided over the ranks. With gaps: not known.
    if (!tensor.has_storage() || tensor.storage().nbytes() == 0 || tensor.numel() == 0 ||
        !tensor.is_non_overlapping_and_dense())
      continue;
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const auto begin =
        reinterpret_cast<std::uintptr_t>(storage->_mutable_data_ptr_no_checks().get()) +
        static_cast<std::uintptr_t>(tensor.storage_offset()) * tensor.element_size();
    ranges.push_back({begin, begin + tensor.nbytes(), &param});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    throw Error(Errc::kInvalidArgument,
                "'" + ranges[i - 1].param->name + "' and '" + ranges[i].param->name +
                    "' have the same memory, and each would get values of its own; to tie them, "
                    "register one parameter or module in both places");
  }
}

}  // namespace weft::engine::internal
