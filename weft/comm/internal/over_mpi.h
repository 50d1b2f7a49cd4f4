// For ranks that an MPI launcher started: the rendezvous through that MPI, and an engine with its
// collectives.
#pragma once

#include <memory>

#include "weft/comm/backend.h"
#include "weft/comm/environment.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/meeting.h"
#include "weft/net/mpi/mpi.h"

namespace weft::comm::internal {

// Joins all ranks that the launcher started, over MPI, without a store or a port. Collective over
// them. Throws kUnavailable if there is no MPI or no plug-in for it, kBadConfig if MPI's rank
// differs from `me`, and kTimeout.
Forming meet_over_mpi(const Identity& me, const BackendOptions& options);

// Makes the group of these ranks of the launcher's world, in this order. Collective over them.
Forming meet_over_mpi(const std::vector<int>& ranks, int me, const BackendOptions& options);

// Connects the participants by the MPI that started each of them. Collective. If one has no MPI,
// all throw with the same reason.
std::unique_ptr<net::mpi::MpiEndpoint> connect_mpi(const Forming& forming,
                                                   const BackendOptions& options);

// Runs collectives by MPI's own functions, and messages over MPI. The sums that
// BackendOptions::ordered_sums covers run by schedules if it is set.
std::unique_ptr<Engine> make_mpi_engine(std::unique_ptr<net::mpi::MpiEndpoint> endpoint,
                                        bool ordered_sums);

}  // namespace weft::comm::internal
