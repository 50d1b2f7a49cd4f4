// What codecs remember, to and from a checkpoint: its part "codec".
//
//   spec, step, layout   codec in use, steps done, what else the memory depends on; written by rank 0
//   memory.<rank>        memory of that rank, buffer after buffer; written by that rank, in place
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/compress/spec.h"

namespace weft::parallel {

struct CodecProgress {
  compress::Spec spec;
  std::int64_t step = 0;
  std::vector<std::int64_t> layout;  // order of parameters in the buffers, sizes of a mesh
};

// This rank's slices: views of the memory. Not collective.
checkpoint::Slices codec_slices(const Group& group, const CodecProgress& progress, const std::vector<std::span<float>>& memory);

// nullopt where the checkpoint has no such part, or that of another number of ranks. Throws Error(kCorrupt) where the part is damaged.
std::optional<CodecProgress> read_codec_progress(const Group& group, const checkpoint::Reader& saved);
// Overwrites the memory, after read_codec_progress(). Collective. False, and nothing is changed on any rank, where some rank's memory has
// another length.
bool restore_codec_memory(const Group& group, const checkpoint::Reader& saved, const std::vector<std::span<float>>& memory);

}  // namespace weft::parallel
