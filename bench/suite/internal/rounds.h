// Interleaved rounds: in each round, every participant runs one block of samples in turn, so that
// all of them see the same state of the machine.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/suite/internal/participant.h"

namespace weft::cli::bench_internal {

// One implementation of a case: a participant and the commands for it.
struct Contender {
  std::string impl;
  std::shared_ptr<Participant> participant;
  // Command before the rounds, which verifies and warms up. Its answer is kept.
  std::string check;
  std::string command;  // command of each round
  std::string samples;  // field of its answers that holds the samples
};

struct Series {
  std::string impl;
  std::vector<double> rounds;   // median of each round's samples
  std::vector<double> samples;  // samples of all rounds
  Message checked, last;        // answers to `check` and to the last command
};

struct RoundOptions {
  int rounds = 9;
  std::chrono::milliseconds limit{120'000};
};

// Runs the rounds. Contenders that fail are named on stderr and left out of the result, so every
// series has all rounds. Participants that cannot be used any more are ended, and their pointers in
// `contenders` become null. Contenders without a participant are skipped.
std::vector<Series> interleave(std::vector<Contender>& contenders, const RoundOptions& options);

struct LossCheck {
  double tolerance;   // relative tolerance
  std::string model;  // name in the error message
};
// Whether the "losses" in the answer to the series' check are near the expected ones. If not,
// prints the series and the model on stderr.
bool losses_near(const Series& series, const std::vector<double>& expected, const LossCheck& check);

double median(std::vector<double> values);
// The 95th percentile, by the nearest-rank method.
double p95(std::vector<double> values);
// How many times faster ours is: the median over the rounds of theirs / ours.
double speedup(const Series& ours, const Series& theirs);

}  // namespace weft::cli::bench_internal
