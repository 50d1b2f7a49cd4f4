#include "weft/engine/internal/state_slices.h"

#include <vector>

namespace weft::engine::internal {

checkpoint::Rectangle rectangle_of(const Param& param, const Sharded::Placing& placing) {
  if (placing) return placing(param.name);
  const auto sizes = param.tensor.sizes().vec();
  return {param.name, sizes, std::vector<std::int64_t>(sizes.size(), 0), sizes};
}

}  // namespace weft::engine::internal
