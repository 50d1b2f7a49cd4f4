// What no program can say of a pipeline schedule.
#pragma once

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::docs::internal {

extern const char* const kPipelines;     // of the page, up to the table of all
extern const char* const kSlowMessages;  // before the table with uneven costs
extern const char* const kMemory;        // before the table of the automatic schedule by memory
extern const char* const kAfterwards;    // the end of the page

struct PipelineWords {
  schedule::pipeline::Algorithm algorithm;
  const char* what;
  const char* source;
  const char* idle;      // the formula of the idle share or of the bubble
  const char* held;      // by rank r
  const char* messages;  // in all
  const char* when;      // to take it
};

// Throws Error(kInternal) for an algorithm without words.
const PipelineWords& words_of(schedule::pipeline::Algorithm algorithm);

}  // namespace weft::docs::internal
