// weft's ranks of `weft bench collectives`: the rules of bench/peers/mpi_collectives.cc, so that
// their times can stand side by side.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"

namespace weft::cli::bench_internal {

enum class Way {
  kNet,       // net::Direct on memory of the shared heap
  kGroup,     // comm::Group on tensors of the shared heap
  kOrdinary,  // comm::Group on tensors over malloc'ed memory
};

// Carries out {"op":…,"bytes":…,"iterations":…,"warmup":…,"block":…,"rewrite":…} and answers
// `"verified":…,"us":[…]`: the slowest rank's samples. First one call is verified exactly. With
// "rewrite" each rank writes its vector before each timed call. Throws Error(kInvalidArgument) for
// commands that cannot be carried out.
CarryOut make_collectives(const comm::Group& group, Way way);

}  // namespace weft::cli::bench_internal
