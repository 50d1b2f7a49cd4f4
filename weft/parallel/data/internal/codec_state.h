// What codecs remember, to and from a checkpoint.
//
//   spec, step, order   the codec in use, steps done, the order of parameters in the buckets
//   memory.<rank>       that rank's memory, buffer after buffer
//
// Rank 0 holds all of it while it is written: the memory of all ranks, as much as their gradients or twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/spec.h"

namespace weft::parallel::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct CodecProgress {
  compress::Spec spec;
  std::int64_t step = 0;
  std::vector<int> order;
};

// Collective. Rank 0 gets all, the others nothing.
NamedTensors gather_codec_state(const Group& group, const CodecProgress& progress, const std::vector<std::span<float>>& memory);

// Reads what gather_codec_state wrote; nullopt where it is of another world or number of parameters. Throws Error(kCorrupt) where it is
// damaged.
std::optional<CodecProgress> read_codec_progress(const Group& group, const NamedTensors& state, std::size_t params);
// Collective. Overwrites the memory; false, and nothing is changed on any rank, where some rank's has another length.
bool restore_codec_memory(const Group& group, const NamedTensors& state, const std::vector<std::span<float>>& memory);

}  // namespace weft::parallel::internal
