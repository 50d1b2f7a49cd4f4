#include "weft/plan/mesh/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Score of a partition. Fields are compared in this order.
struct Score {
  double slowest = kInfinity;
  std::int64_t bytes = 0;
  bool operator<(const Score& other) const {
    return std::pair(slowest, bytes) < std::pair(other.slowest, other.bytes);
  }
};

class Model {
 public:
  Model(std::span<const Block> blocks, const StageLimits& limits)
      : blocks_(blocks), limits_(limits) {
    seconds_.push_back(0);
    memory_.push_back(0);
    for (const Block& block : blocks) {
      seconds_.push_back(seconds_.back() + block.seconds);
      memory_.push_back(memory_.back() + block.memory);
    }
  }

  // True if a stage with more blocks never takes less time.
  bool grows() const { return !limits_.bandwidth; }

  int size() const { return static_cast<int>(blocks_.size()); }
  std::int64_t memory(int first, int last) const { return memory_[at(last)] - memory_[at(first)]; }
  bool fits(int first, int last) const {
    return !limits_.memory || memory(first, last) <= *limits_.memory;
  }
  // Bytes that cross the cut in front of block `cut`, in one direction.
  std::int64_t bytes(int cut) const {
    return cut > 0 && cut < size() ? blocks_[at(cut) - 1].boundary_bytes : 0;
  }
  // Time of the stage of blocks [first, last). In front of it, activations come in and gradients go
  // out; behind it, the other way round.
  double seconds(int first, int last) const {
    const double own = seconds_[at(last)] - seconds_[at(first)];
    if (!limits_.bandwidth) return own;
    return own + 2 * static_cast<double>(bytes(first) + bytes(last)) / *limits_.bandwidth;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  std::span<const Block> blocks_;
  const StageLimits& limits_;
  std::vector<double> seconds_;       // sum over all blocks before
  std::vector<std::int64_t> memory_;  // sum over all blocks before
};

void check(std::span<const Block> blocks, const StageLimits& limits) {
  const int n = static_cast<int>(blocks.size());
  WEFT_REQUIRE(limits.stages >= 1,
               std::to_string(limits.stages) + " stages; a pipeline must have at least one");
  WEFT_REQUIRE(n >= 1, "a model without blocks cannot be divided into stages");
  WEFT_REQUIRE(limits.stages <= n, std::to_string(limits.stages) + " stages of " +
                                       counted(n, "block") + "; use " + std::to_string(n) +
                                       " or fewer, or divide the model into more blocks");
  WEFT_REQUIRE(!limits.bandwidth || (*limits.bandwidth > 0 && std::isfinite(*limits.bandwidth)),
               "the bandwidth must be a positive number");
  for (int i = 0; i < n; ++i) {
    const Block& b = blocks[static_cast<std::size_t>(i)];
    const std::string name = "block " + std::to_string(i);
    WEFT_REQUIRE(
        b.seconds >= 0 && std::isfinite(b.seconds) && b.memory >= 0 && b.boundary_bytes >= 0,
        name + " has a negative or infinite time or size");
    WEFT_REQUIRE(!limits.memory || b.memory <= *limits.memory,
                 name + " alone takes " + std::to_string(b.memory) + " bytes, more than the " +
                     std::to_string(*limits.memory) + " of a stage; divide it");
  }
}

// Fewest stages that respect the memory limit: fills each stage as far as possible.
int fewest_stages(const Model& model) {
  int stages = 1;
  for (int first = 0, i = 1; i <= model.size(); ++i) {
    if (model.fits(first, i)) continue;
    ++stages;
    first = i - 1;
  }
  return stages;
}

// Time of the slowest stage if each stage is filled up to `ceiling` and the memory limit. Infinite
// if that takes more than `stages`.
double slowest_within(const Model& model, int stages, double ceiling) {
  double slowest = 0;
  for (int first = 0; first < model.size();) {
    int last = first;
    while (last < model.size() && model.fits(first, last + 1) &&
           model.seconds(first, last + 1) <= ceiling)
      ++last;
    if (last == first || stages-- == 0) return kInfinity;
    slowest = std::max(slowest, model.seconds(first, last));
    first = last;
  }
  return slowest;
}

// Least time of the slowest stage, where a stage with more blocks never takes less: halves the
// range of ceilings until no number lies between them. Fewer stages than asked for count, since a
// stage can be divided.
double least_slowest(const Model& model, int stages) {
  double above = slowest_within(model, stages, kInfinity), below = 0;
  if (slowest_within(model, stages, 0) == 0) return 0;
  for (double middle = above / 2; below < middle && middle < above;
       middle = below + (above - below) / 2) {
    const double slowest = slowest_within(model, stages, middle);
    (slowest < kInfinity ? above : below) = std::min(slowest, middle);
  }
  return above;
}

// best[s][i]: score of blocks [i, n) in s + 1 stages. The table is built from the back, so that the
// first cuts can be chosen last.
using Table = std::vector<std::vector<Score>>;

Score beginning_with(const Model& model, const Table& best, int s, int i, int cut) {
  if (!model.fits(i, cut)) return {};
  const double own = model.seconds(i, cut);
  if (s == 0) return {own, 0};
  const Score& rest = best[static_cast<std::size_t>(s - 1)][static_cast<std::size_t>(cut)];
  return {std::max(own, rest.slowest), rest.bytes + model.bytes(cut)};
}

// Without a ceiling, finds the time of the slowest stage. With this time as the ceiling, finds the
// fewest bytes: it covers all partitions within the ceiling, because a stage that is not the
// slowest may become slower.
Table tabulate(const Model& model, int stages, double ceiling) {
  const int n = model.size();
  Table best(static_cast<std::size_t>(stages), std::vector<Score>(static_cast<std::size_t>(n) + 1));
  for (int s = 0; s < stages; ++s) {
    for (int i = n - 1 - s; i >= 0; --i) {
      Score& score = best[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)];
      for (int cut = s == 0 ? n : i + 1; cut <= n - s; ++cut) {
        // A longer first stage can only be slower.
        if (model.grows() && model.seconds(i, cut) > ceiling) break;
        Score with = beginning_with(model, best, s, i, cut);
        if (with.slowest > ceiling) continue;
        if (ceiling < kInfinity) with.slowest = ceiling;
        score = std::min(score, with);
      }
    }
  }
  return best;
}

std::string seconds_text(double seconds) { return formatted("%.3g s", seconds); }

std::string reason_of(const Model& model, const StagePlan& plan, double average) {
  const auto stage = static_cast<int>(std::max_element(plan.seconds.begin(), plan.seconds.end()) -
                                      plan.seconds.begin());
  const int first = stage == 0 ? 0 : plan.cuts[static_cast<std::size_t>(stage) - 1];
  const int last = stage == static_cast<int>(plan.cuts.size())
                       ? model.size()
                       : plan.cuts[static_cast<std::size_t>(stage)];
  const std::string blocks =
      last - first == 1 ? "block " + std::to_string(first) + " alone"
                        : "blocks " + std::to_string(first) + " to " + std::to_string(last - 1);
  const std::string share =
      formatted("%.0f %%", average > 0 ? 100 * (plan.slowest / average - 1) : 0.0);
  return "stage " + std::to_string(stage) + " is the slowest with " + seconds_text(plan.slowest) +
         " (" + blocks + "), " + share +
         " above the average; no other cut of these blocks is faster";
}

}  // namespace

StagePlan cut_stages(std::span<const Block> blocks, const StageLimits& limits) {
  check(blocks, limits);
  const Model model(blocks, limits);
  const int n = model.size(), stages = limits.stages,
            fewest = limits.memory ? fewest_stages(model) : 1;
  WEFT_REQUIRE(stages >= fewest, counted(stages, "stage") + " of at most " +
                                     std::to_string(limits.memory.value_or(0)) +
                                     " bytes cannot hold the model (" +
                                     std::to_string(model.memory(0, n)) + " bytes); use " +
                                     std::to_string(fewest) + " stages");
  StagePlan plan{.slowest = model.grows() ? least_slowest(model, stages)
                                          : tabulate(model, stages, kInfinity).back()[0].slowest};
  const Table best = tabulate(model, stages, plan.slowest);
  plan.boundary_bytes = best.back()[0].bytes;
  double sum = 0;
  for (int s = stages - 1, i = 0; s >= 0; --s) {
    const std::int64_t bytes = best[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)].bytes;
    int next = n;
    for (int cut = s == 0 ? n : n - s; cut > i; --cut) {
      const Score with = beginning_with(model, best, s, i, cut);
      if (with.slowest > plan.slowest || with.bytes != bytes) continue;
      next = cut;
      break;
    }
    plan.seconds.push_back(model.seconds(i, next));
    plan.memory.push_back(model.memory(i, next));
    sum += plan.seconds.back();
    if (s > 0) plan.cuts.push_back(next);
    i = next;
  }
  plan.reason = reason_of(model, plan, sum / stages);
  return plan;
}

}  // namespace weft::plan
