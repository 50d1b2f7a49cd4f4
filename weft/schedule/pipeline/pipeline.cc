#include "weft/schedule/pipeline/pipeline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline {
namespace {

using internal::Actions;

constexpr std::array kAlgorithms = {Algorithm::kGPipe,        Algorithm::kOneForwardOneBackward,
                                    Algorithm::kInterleaved,  Algorithm::kZeroBubbleH1,
                                    Algorithm::kZeroBubbleH2, Algorithm::kZeroBubbleV,
                                    Algorithm::kAutomatic,    Algorithm::kForwardOnly};
constexpr int kAny = 1 << 20;
constexpr int kMaxRanks = 4096;
constexpr double kMaxActions = 1e8;
constexpr double kFarthest = 1e6;  // beyond this ratio, sums lose the times of short actions

struct Entry {
  const char* name;
  int fewest, most;  // number of virtual stages
  bool splits;
  Actions (*make)(const Request&, int rank);  // null: automatic()
};

// All algorithms, in the order of enum Algorithm.
constexpr Entry kTable[] = {
    {"gpipe", 1, kAny, false, internal::gpipe},
    {"1f1b", 1, 1, false, internal::one_forward_one_backward},
    {"interleaved", 2, kAny, false, internal::interleaved},
    {"zb_h1", 1, 1, true, internal::zero_bubble_h1},
    {"zb_h2", 1, 1, true, internal::zero_bubble_h2},
    {"zb_v", 2, 2, true, internal::zero_bubble_v},
    {"automatic", 1, 1, true, nullptr},
    {"forward_only", 1, kAny, false, internal::forward_only},
};
static_assert(std::size(kTable) == kAlgorithms.size());

const Entry& entry(Algorithm algorithm) { return kTable[static_cast<int>(algorithm)]; }

// Names of the algorithms that support this number of virtual stages: "1f1b, zb_h1".
std::string able(int virtual_stages) {
  std::vector<std::string> names;
  for (const Entry& e : kTable) {
    if (virtual_stages >= e.fewest && virtual_stages <= e.most) names.emplace_back(e.name);
  }
  return joined(names);
}

void check_size(const Request& q) {
  WEFT_REQUIRE(q.ranks >= 1,
               "a pipeline of " + std::to_string(q.ranks) + " ranks; it must have at least one");
  WEFT_REQUIRE(q.micro_batches >= 1, "a pipeline of " + std::to_string(q.micro_batches) +
                                         " micro-batches; it must have at least one");
  WEFT_REQUIRE(q.virtual_stages >= 1,
               std::to_string(q.virtual_stages) + " virtual stages; a rank must have at least one");
  WEFT_REQUIRE(q.ranks <= kMaxRanks, "a pipeline of " + std::to_string(q.ranks) +
                                         " ranks; at most " + std::to_string(kMaxRanks));
  WEFT_REQUIRE(3.0 * q.ranks * q.virtual_stages * q.micro_batches <= kMaxActions,
               "a pipeline of more than 100 million actions; give fewer micro-batches or stages");
}

void check_costs(const Costs& c) {
  const double least = std::min({c.forward, c.backward_input, c.backward_weight});
  const double most = std::max({c.forward, c.backward_input, c.backward_weight, c.message});
  WEFT_REQUIRE(
      least > 0 && c.message >= 0 &&
          std::isfinite(c.forward + c.backward_input + c.backward_weight + c.message),
      "costs of a pipeline must be positive, and the cost of a message must not be negative");
  WEFT_REQUIRE(
      most <= kFarthest * least,
      "the costs of a pipeline differ by more than a factor of a million; check their units");
}

void check(const Request& q) {
  check_size(q);
  check_costs(q.costs);
  const auto& [name, fewest, most, splits, make] = entry(q.algorithm);
  const std::string takes =
      fewest == most ? std::to_string(fewest) : "at least " + std::to_string(fewest);
  WEFT_REQUIRE(q.virtual_stages >= fewest && q.virtual_stages <= most,
               name + (" takes " + takes) + (takes == "1" ? " virtual stage" : " virtual stages") +
                   " a rank, not " + std::to_string(q.virtual_stages) + "; so many take " +
                   able(q.virtual_stages));
  WEFT_REQUIRE(q.memory >= 0, "a memory of " + std::to_string(q.memory) +
                                  " micro-batches; give at least 1, or 0 for the default");
  WEFT_REQUIRE(
      q.memory == 0 || q.algorithm == Algorithm::kAutomatic,
      std::string("only automatic accepts a memory limit; ") + name + " has a fixed memory use");
}

}  // namespace

Schedule make(const Request& request) {
  check(request);
  Schedule schedule{request, {}};
  const Entry& e = entry(request.algorithm);
  if (e.make == nullptr) {
    schedule.actions = internal::automatic(request);
    return schedule;
  }
  for (int rank = 0; rank < request.ranks; ++rank)
    schedule.actions.push_back(e.make(request, rank));
  return schedule;
}

int num_stages(const Request& request) { return request.ranks * request.virtual_stages; }

int rank_of(const Request& q, int stage) {
  WEFT_REQUIRE(stage >= 0 && stage < num_stages(q),
               "stage " + std::to_string(stage) + " of " + std::to_string(num_stages(q)));
  if (q.algorithm == Algorithm::kZeroBubbleV) return std::min(stage, 2 * q.ranks - 1 - stage);
  return stage % q.ranks;
}

int most_held(const Request& q, int rank) {
  check(q);
  WEFT_REQUIRE(rank >= 0 && rank < q.ranks,
               "rank " + std::to_string(rank) + " of a pipeline of " + std::to_string(q.ranks));
  const int m = q.micro_batches, p = q.ranks, v = q.virtual_stages;
  switch (q.algorithm) {
    case Algorithm::kGPipe: return v * m;
    case Algorithm::kOneForwardOneBackward: return std::min(m, p - rank);
    case Algorithm::kInterleaved:
      return std::min(v * m, (v - 1) * internal::largest_group(q) + 2 * (p - rank - 1) + 1);
    case Algorithm::kZeroBubbleH1: return std::min(m, p);
    case Algorithm::kZeroBubbleH2: return std::min(m, 2 * p - 1);
    case Algorithm::kZeroBubbleV: return std::min(2 * m, 2 * p);
    case Algorithm::kAutomatic: return internal::memory_of(q);
    case Algorithm::kForwardOnly: return 0;
  }
  return 0;
}

std::string describe(const Action& action) {
  return std::string(to_string(action.work)) + " of micro-batch " +
         std::to_string(action.micro_batch) + " in stage " + std::to_string(action.stage);
}

bool splits_backward(Algorithm algorithm) { return entry(algorithm).splits; }

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const char* to_string(Algorithm algorithm) { return entry(algorithm).name; }

const char* to_string(Work work) {
  constexpr const char* kNames[] = {"forward", "backward", "backward_input", "backward_weight"};
  return kNames[static_cast<int>(work)];
}

Algorithm parse_algorithm(const std::string& name) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : kAlgorithms) {
    if (name == to_string(algorithm)) return algorithm;
    names.emplace_back(to_string(algorithm));
  }
  const auto near = nearest(name, names);
  WEFT_REQUIRE(false, "unknown pipeline schedule '" + name + "'; " +
                          (near ? "did you mean '" + *near + "'?" : "there are " + joined(names)));
  return Algorithm::kGPipe;
}

}  // namespace weft::schedule::pipeline
