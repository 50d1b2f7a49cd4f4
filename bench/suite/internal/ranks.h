// What all ranks that the harness forks have in common: where they run, and how they find each
// other.
#pragma once

#include <string>

#include "weft/net/memory/host.h"

namespace weft::cli::bench_internal {

// Binds to the rank-th of the cores that this process may use, where there is one for each of the
// ranks.
void bind_to_core(int rank, int ranks);

// An exchange by files in `folder`, which all ranks of one group use and nobody else.
net::Exchange exchange_by_files(const std::string& folder, int rank, int ranks);

}  // namespace weft::cli::bench_internal
