// Interleaved rounds: every participant in turn, one block of samples each, so that all of them see
// the same machine.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/suite/internal/participant.h"

namespace weft::cli::bench_internal {

// One way of doing a case: which participant is asked, and what.
struct Contender {
  std::string impl;
  std::shared_ptr<Participant> participant;
  // The command that verifies and warms up, before the rounds; its answer is kept.
  std::string check;
  std::string command;  // the command of each round
  std::string samples;  // the field of its answers that holds the samples
};

struct Series {
  std::string impl;
  std::vector<double> rounds;   // the median of each round's samples
  std::vector<double> samples;  // of all rounds
  Message checked, last;        // the answers to `check` and to the last command
};

struct RoundOptions {
  int rounds = 9;
  std::chrono::milliseconds limit{120'000};
};

// Contenders that fail are named on stderr and left out of what is returned (every series has all
// rounds). Participants that can't be used any more are ended: their pointers in `contenders`
// become null. Contenders without a participant are passed over.
std::vector<Series> interleave(std::vector<Contender>& contenders, const RoundOptions& options);

struct LossCheck {
  double tolerance;   // relative
  std::string model;  // for the line
};
// Whether the "losses" of the series' check are these; where not, a line on stderr says which
// series is wrong on which model.
bool losses_near(const Series& series, const std::vector<double>& expected, const LossCheck& check);

double median(std::vector<double> values);
// The 95th percentile, by the nearest rank.
double p95(std::vector<double> values);
// The median over rounds of theirs / ours: how many times faster ours is.
double speedup(const Series& ours, const Series& theirs);

}  // namespace weft::cli::bench_internal
