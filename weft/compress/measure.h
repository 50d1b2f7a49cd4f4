// Measures what a codec costs: for codec = "auto", and for plans that choose a codec.
#pragma once

#include <vector>

#include "weft/compress/choose.h"
#include "weft/compress/reducer.h"

namespace weft::compress {

// Encodes and decodes one step's buffers on this processor. Sends nothing: each rank is assumed to
// have sent what this one has. Takes some milliseconds.
Candidate measure(const Spec& spec, const std::vector<Unit>& buffers);

}  // namespace weft::compress
