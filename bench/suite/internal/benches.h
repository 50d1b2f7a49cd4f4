// The benches, each run whole in the harness process: see bench.h for options and the exit code.
#pragma once

#include "bench/suite/internal/participant.h"
#include "bench/suite/internal/peers.h"
#include "weft/cli/bench.h"

namespace weft::cli::bench_internal {

// Throw Interrupted.
int bench_collectives(const BenchOptions& options, const Signals& signals);
// Messages between two ranks, by size.
int bench_p2p(const BenchOptions& options, const Signals& signals);
// Measures what the transports take and leaves the table where comm finds it
// (weft/plan/calibration.h).
int bench_calibrate(const BenchOptions& options, const Signals& signals);
int bench_explain(const BenchOptions& options);
int bench_verify(const BenchOptions& options, const Signals& signals);
int bench_training(const BenchOptions& options, const Signals& signals);
// GPTs under data parallelism and ZeRO, under tensor parallelism, under pipeline schedules; where
// models are cut into stages.
int bench_sharded(const BenchOptions& options, const Signals& signals);
int bench_tensor(const BenchOptions& options, const Signals& signals);
int bench_pipeline(const BenchOptions& options, const Signals& signals);
int bench_stages(const BenchOptions& options, const Signals& signals);
int bench_startup(const BenchOptions& options, const Signals& signals);

// Rounds of each participant and case: those asked for, else the usual number of the bench.
inline int rounds_of(const BenchOptions& options, int usual = 9) {
  return options.rounds > 0 ? options.rounds : usual;
}
// Whether an implementation is weft's, by its name.
inline bool is_ours(const std::string& impl) { return impl.rfind("weft", 0) == 0; }
// Whether options.impls asks for it.
bool wanted(const BenchOptions& options, const std::string& impl);
// Starts a peer; null, with its name and the reason on stderr, where that fails.
std::shared_ptr<Participant> start_peer(const PeerProgram& program, const Signals& signals);

}  // namespace weft::cli::bench_internal
