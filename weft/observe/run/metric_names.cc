#include "weft/observe/run/metric_names.h"

#include <algorithm>
#include <array>

namespace weft::observe {
namespace {

constexpr std::array<std::string_view, 27> kNames{"step",
                                                  "epoch",
                                                  "loss",
                                                  "test_loss",
                                                  "lr",
                                                  "samples_per_s",
                                                  "grad_norm",
                                                  "noise_scale",
                                                  "batch",
                                                  "mfu",
                                                  "skipped_steps",
                                                  "dropped_steps",
                                                  "staleness",
                                                  "memory_gb",
                                                  "sent_mb",
                                                  "shared_mb",
                                                  "awaited_rank",
                                                  "awaited_share",
                                                  "slowest_rank",
                                                  "slowest_over_median",
                                                  "data_ms",
                                                  "forward_ms",
                                                  "backward_ms",
                                                  "communication_ms",
                                                  "optimizer_ms",
                                                  "expert_dropped",
                                                  "expert_load_max"};

}  // namespace

bool is_of_weft(std::string_view name) {
  return name.starts_with("staleness_") || std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace weft::observe
