// The batch size by the gradient noise scale (train.batch_schedule = "noise"; McCandlish and others
// 2018, section 2.2: the batch that balances time and samples is about the noise scale).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace weft::train::internal {

// Batches of an optimizer step from now on: as many as the noise scale has, at most twice as many
// as now, at most `most`. They never become fewer, since the estimate is noisy and the scale grows
// while the loss falls.
inline std::int64_t next_passes(std::int64_t now, std::optional<double> noise_scale,
                                std::int64_t batch, std::int64_t most) {
  if (!noise_scale) return now;
  const double wanted = std::min(*noise_scale / static_cast<double>(batch), 1e9);
  return std::max(now, std::min({static_cast<std::int64_t>(wanted), 2 * now, most}));
}

}  // namespace weft::train::internal
