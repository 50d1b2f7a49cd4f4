// What codecs remember, to and from a checkpoint.
//
//   spec, step, layout   the codec in use, steps done, what else the memory depends on
//   memory.<rank>        that rank's memory, buffer after buffer
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

namespace weft::parallel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct CodecProgress {
  compress::Spec spec;
  std::int64_t step = 0;
  std::vector<std::int64_t> layout;  // the order of parameters in the buffers, the sizes of a mesh
};

// Collective. Rank 0 gets all, the others nothing.
NamedTensors gather_codec_state(const Group& group, const CodecProgress& progress, const std::vector<std::span<float>>& memory);

// Reads what gather_codec_state wrote; nullopt where it is of another number of ranks. Throws Error(kCorrupt) where it is damaged.
std::optional<CodecProgress> read_codec_progress(const Group& group, const NamedTensors& state);
// Collective. Overwrites the memory; false, and nothing is changed on any rank, where some rank's has another length.
bool restore_codec_memory(const Group& group, const NamedTensors& state, const std::vector<std::span<float>>& memory);

}  // namespace weft::parallel
