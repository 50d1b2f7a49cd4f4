// The benches. Each function runs one in the harness process. bench.h describes the options and the
// exit code.
#pragma once

#include "bench/suite/internal/participant.h"
#include "bench/suite/internal/peers.h"
#include "weft/cli/bench.h"

namespace weft::cli::bench_internal {

// All of them throw Interrupted.
int bench_collectives(const BenchOptions& options, const Signals& signals);
// Measures messages between two ranks, by size.
int bench_p2p(const BenchOptions& options, const Signals& signals);
// Measures the transports, and saves the table where comm finds it
// (plan/collectives/calibration.h).
int bench_calibrate(const BenchOptions& options, const Signals& signals);
int bench_explain(const BenchOptions& options);
int bench_verify(const BenchOptions& options, const Signals& signals);
int bench_training(const BenchOptions& options, const Signals& signals);
// Measure GPTs with data parallelism and ZeRO, with tensor parallelism and with pipeline schedules;
// and the automatic cuts of models into stages.
int bench_sharded(const BenchOptions& options, const Signals& signals);
int bench_tensor(const BenchOptions& options, const Signals& signals);
int bench_pipeline(const BenchOptions& options, const Signals& signals);
int bench_stages(const BenchOptions& options, const Signals& signals);
int bench_startup(const BenchOptions& options, const Signals& signals);

// Rounds of each participant and case: options.rounds, or `usual` if that is 0.
inline int rounds_of(const BenchOptions& options, int usual = 9) {
  return options.rounds > 0 ? options.rounds : usual;
}
// Whether this is the name of an implementation of weft.
inline bool is_ours(const std::string& impl) { return impl.rfind("weft", 0) == 0; }
// Whether options.impls contains it or is empty.
bool wanted(const BenchOptions& options, const std::string& impl);
// Starts a peer. If that fails, prints its name and the reason on stderr and returns null.
std::shared_ptr<Participant> start_peer(const PeerProgram& program, const Signals& signals);

}  // namespace weft::cli::bench_internal
