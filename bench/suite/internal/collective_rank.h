// The ranks of weft in `weft bench collectives`. They follow the rules of
// bench/peers/mpi_collectives.cc, so that the times can be compared.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"

namespace weft::cli::bench_internal {

enum class Way {
  kNet,       // net::Direct on memory of the shared heap
  kGroup,     // comm::Group on tensors of the shared heap
  kOrdinary,  // comm::Group on tensors over malloc'ed memory
  kPrepared,  // comm::PreparedAllReduce on tensors of the shared heap; all_reduce only
};

// Executes {"op":…,"bytes":…,"iterations":…,"warmup":…,"block":…,"rewrite":…} and answers
// `"verified":…,"us":[…]`: the samples of the slowest rank. It first verifies one call exactly.
// With "rewrite", each rank writes its vector before each timed call. Throws
// Error(kInvalidArgument) for commands that cannot be executed.
CarryOut make_collectives(const comm::Group& group, Way way);

}  // namespace weft::cli::bench_internal
