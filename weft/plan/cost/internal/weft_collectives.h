// Collectives of weft's own library: its schedules, played on the links of a group.
#pragma once

#include "weft/plan/cost/collectives.h"

namespace weft::plan::internal {

// Seconds of the fastest algorithm. Results are cached; any thread may call it.
double weft_seconds(ExchangeKind kind, double bytes, const GroupShape& group);

}  // namespace weft::plan::internal
