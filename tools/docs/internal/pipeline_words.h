// Descriptions of the pipeline schedules.
#pragma once

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::docs::internal {

extern const char* const kPipelines;     // beginning of the page, up to the table of all schedules
extern const char* const kSlowMessages;  // text before the table with uneven costs
extern const char* const kMemory;        // text before the table of automatic schedules by memory
extern const char* const kAfterwards;    // end of the page

struct PipelineWords {
  schedule::pipeline::Algorithm algorithm;
  const char* what;
  const char* source;
  const char* idle;      // formula of the idle share or of the bubble
  const char* held;      // activations that rank r holds
  const char* messages;  // messages of all ranks
  const char* when;      // when to use it
};

// Throws Error(kInternal) for an algorithm without a description.
const PipelineWords& words_of(schedule::pipeline::Algorithm algorithm);

}  // namespace weft::docs::internal
