// `weft bench`: measures weft and its peers in one run (bench/README.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace weft::cli {

struct BenchOptions {
  // Name of the bench: "collectives", "p2p", "training", "startup", "calibrate", or "parallel".
  // "parallel" runs four benches: "sharded", "tensor", "pipeline" and "stages".
  std::string what;
  int ranks = 2;
  int rounds = 0;  // rounds of each participant and case; 0: the default of the bench
  // collectives and p2p: "tcp" measures weft over TCP instead of shared memory
  std::string transport = "auto";
  // collectives: all_reduce, all_gather, … (bench.cc lists all); empty: all_reduce
  std::vector<std::string> ops;
  std::vector<std::size_t> sizes;  // bytes of the whole vector; empty: the default of the bench
  // collectives and p2p: cores of the ranks, "near" (they share a cache) or "far" (they share
  // none); empty: the first cores
  std::vector<std::string> cores;
  // training: mlp, cnn, resnet18, resnet18-adamw; parallel: gpt-384, gpt-128; empty: all
  std::vector<std::string> models;
  std::vector<std::string> impls;  // variants of weft and peers to measure; empty: all
  int batch = 0;                   // training: samples per rank; 0: the default of the model
  // Time limit for one answer of a participant. A participant that exceeds it is named on stderr
  // and left out.
  std::chrono::seconds limit{120};
  bool explain = false;  // collectives: print the planner's predictions for TCP, measure nothing
  // collectives: measure all algorithms over TCP, and compare the planner's choices with the best
  bool verify = false;
  // World sizes of calibrate, explain and verify. Empty: 2 and 4, or `ranks` for explain.
  std::vector<int> worlds;
  bool json = false;  // JSON lines on stdout, the tables on stderr
};

// Runs a bench and returns the exit code: 0 on success, 1 if weft gave a wrong result or none,
// 128 + n after signal n. A signal also ends every process that the bench started. Peers that are
// missing or fail are named on stderr and left out. Throws Error(kBadConfig) for unknown names.
// Forks: call it in a process without other threads.
int bench(const BenchOptions& options);

}  // namespace weft::cli
