// `weft bench`: weft beside its peers, measured in one go (bench/README.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace weft::cli {

struct BenchOptions {
  // "collectives", "p2p", "training", "parallel" (or one of its "sharded", "tensor", "pipeline",
  // "stages"), "startup", "calibrate".
  std::string what;
  int ranks = 2;
  int rounds = 0;  // of each participant and case; 0: the bench's own
  std::string transport =
      "auto";  // collectives: "tcp" measures weft over TCP in place of shared memory
  // collectives: all_reduce, all_gather, … (bench.cc has them all); empty: all_reduce
  std::vector<std::string> ops;
  std::vector<std::size_t> sizes;  // collectives: bytes of the whole vector; empty: 1 KB to 256 MB
  // training: mlp, cnn, resnet18, resnet18-adamw; parallel: gpt-384, gpt-128; empty: all
  std::vector<std::string> models;
  std::vector<std::string> impls;  // only these of weft's variants and the peers; empty: all
  int batch = 0;                   // training: samples a rank; 0: the model's own
  std::chrono::seconds limit{
      120};              // for one answer of a participant; one that is later is named and left out
  bool explain = false;  // collectives: print what the planner predicts over TCP, and run nothing
  bool verify =
      // collectives: measure every algorithm over TCP, and say how good the planner's choices are
      false;
  // calibrate, explain and verify: numbers of ranks; empty: 2 and 4 (explain: ranks)
  std::vector<int> worlds;
  bool json = false;  // JSON lines on stdout, the tables on stderr
};

// Runs a bench and returns the exit code: 0; 1 where weft itself gave a wrong result or none; 128 +
// n after signal n, with every process that it started ended. Peers that are not there, or fail,
// are named on stderr and left out. Throws Error(kBadConfig) for unknown names. Call it in a
// process without other threads: it forks.
int bench(const BenchOptions& options);

}  // namespace weft::cli
