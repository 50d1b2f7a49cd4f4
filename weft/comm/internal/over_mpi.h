// Ranks that an MPI launcher started: how they meet through that MPI, and its collectives as an
// engine.
#pragma once

#include <memory>

#include "weft/comm/backend.h"
#include "weft/comm/environment.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/meeting.h"
#include "weft/net/mpi/mpi.h"

namespace weft::comm::internal {

// All that the launcher started, without a store or a port: their words go over MPI. Collective
// over them. Throws kUnavailable where there is no MPI or no plug-in for it, kBadConfig where MPI
// numbers the ranks otherwise than `me`, kTimeout.
Forming meet_over_mpi(const Identity& me, const BackendOptions& options);

// The group of these ranks of the launcher's world, in this order. Collective over them.
Forming meet_over_mpi(const std::vector<int>& ranks, int me, const BackendOptions& options);

// Those that meet, joined by the MPI that started each of them. Collective. Throws on all of them,
// with one reason, where one has no MPI.
std::unique_ptr<net::mpi::MpiEndpoint> connect_mpi(const Forming& forming,
                                                   const BackendOptions& options);

// Collectives by the MPI itself, messages over it. With ordered sums those that
// BackendOptions::ordered_sums is about go by schedules.
std::unique_ptr<Engine> make_mpi_engine(std::unique_ptr<net::mpi::MpiEndpoint> endpoint,
                                        bool ordered_sums);

}  // namespace weft::comm::internal
