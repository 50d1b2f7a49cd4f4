// gpt_blocks() makes a GPT as the list of blocks that parallel/compose takes: "embedding",
// "blocks.0" …, "head", with GptImpl's parameter names.
//
//   auto model = parallel::parallelize(gpt_blocks(options), plan, mesh);
//   model.train_step({tokens}, {targets});   // int64 [batch, sequence], or {tokens, documents}
#pragma once

#include "weft/models/gpt.h"
#include "weft/parallel/compose/model.h"

namespace weft::models {

// Blocks take tokens and, if given, documents, which go from stage to stage, as does the auxiliary
// loss of experts. The head returns this rank's logits; the loss is GptImpl::loss(). Inputs are
// whole sequences, also over cp, where predict() returns the logits of all positions. If a tied
// head and the embedding are on different stages, the head has a copy of the weight. This call
// makes no block yet.
// Throws Error(kInvalidArgument) for invalid sizes.
parallel::BlockModel gpt_blocks(GptOptions options);

}  // namespace weft::models
