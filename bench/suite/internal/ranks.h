// Code shared by all ranks that the harness forks: their cores and their rendezvous.
#pragma once

#include <string>

#include "weft/net/memory/host.h"

namespace weft::cli::bench_internal {

// Binds this process to the rank-th of the cores that it may use, if there are at least `ranks`.
void bind_to_core(int rank, int ranks);

// An exchange through files in `folder`, which only the ranks of this group use.
net::Exchange exchange_by_files(const std::string& folder, int rank, int ranks);

}  // namespace weft::cli::bench_internal
