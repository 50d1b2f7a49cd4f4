// A GPT as the list of blocks that parallel/compose takes: "embedding", "blocks.0" …, "head", with GptImpl's names of parameters.
//
//   auto model = parallel::parallelize(gpt_blocks(options), plan, mesh);
//   model.train_step({tokens}, {targets});              // int64 [batch, sequence], or {tokens, documents}
#pragma once

#include "weft/models/gpt.h"
#include "weft/parallel/compose/model.h"

namespace weft::models {

// Blocks take tokens and, where they are given, documents, which go on from stage to stage, as what experts add to the loss does; the head
// gives this rank's logits, the loss is GptImpl::loss(). Whole sequences go in, also over cp, where predict() gives the logits of all
// positions. A tied head on another stage than the embedding has a copy of its weight. Makes nothing yet. Throws Error(kInvalidArgument)
// for sizes that make no model.
parallel::BlockModel gpt_blocks(GptOptions options);

}  // namespace weft::models
