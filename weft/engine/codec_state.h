// Saves and loads the memory of codecs (gradients not sent yet) as the part "codec" of a
// checkpoint.
//
//   spec            codec in use; written by rank 0, as the next two are
//   step            steps done
//   layout          order of parameters in the buffers, sizes of the mesh
//   memory.<rank>   memory of that rank, buffer after buffer; each rank writes its own
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/compress/spec.h"

namespace weft::engine {

struct CodecProgress {
  compress::Spec spec;
  std::int64_t step = 0;
  std::vector<std::int64_t> layout;  // order of parameters in the buffers, sizes of a mesh
};

// Returns this rank's slices: views of the memory. Not collective.
checkpoint::Slices codec_slices(const Group& group, const CodecProgress& progress,
                                const std::vector<std::span<float>>& memory);

// Returns nullopt if the checkpoint has no such part or another number of ranks wrote it. Throws
// Error(kCorrupt) if it is damaged.
std::optional<CodecProgress> read_codec_progress(const Group& group,
                                                 const checkpoint::Reader& saved);
// The same on all ranks alike: nullopt if a rank reads none, or one that does not fit there. Throws
// on all ranks if one cannot read it: there as read_codec_progress(), elsewhere kAborted.
// Collective.
std::optional<CodecProgress> agree_on_codec_progress(
    const Group& group, const checkpoint::Reader& saved,
    const std::function<bool(const CodecProgress&)>& fits);
// Overwrites the memory. Call it after agree_on_codec_progress(). Collective. Returns false,
// without changes on any rank, if the memory of any rank has another length. Throws on all ranks if
// one cannot read its own.
bool restore_codec_memory(const Group& group, const checkpoint::Reader& saved,
                          const std::vector<std::span<float>>& memory);

}  // namespace weft::engine
