// How many ranks a job of one node shall have: what a discovery script offers, and how well the
// ranks are used. Pure functions.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

// A discovery script's output in Horovod's format: a line "host:slots", or "host" for one slot, for
// each host. `names`: of this host.
struct Discovered {
  std::optional<int> slots = {};  // Of this host; 0 if it is not listed. nullopt: see `wrong`.
  std::string wrong = {};         // The first line that has another format.
};
Discovered slots_of(const std::string& output, const std::vector<std::string>& names);
// "localhost", the name of this host, and its first part.
std::vector<std::string> names_of_this_host();

// What is known of the throughput at each number of ranks.
class Throughputs {
 public:
  struct Limits {
    double efficiency = 0;  // Least throughput per rank, as a fraction of the best one.
    int least = 1, most = 1;
  };
  // Rates count from this time after a change of the number of ranks on, for this time.
  static constexpr auto kSettle = std::chrono::seconds(3), kMeasure = std::chrono::seconds(5);
  // After this time a number of ranks that was too large is tried again.
  static constexpr auto kForget = std::chrono::minutes(10);
  // A number of ranks that was found to be right is left only if it falls short by this factor, so
  // that noise does not change it.
  static constexpr double kMargin = 0.95;

  // Samples per second of all `ranks` ranks now.
  void add(int ranks, double rate, Time now);
  // The number of ranks to change to. nullopt: stay. It looks for the largest number whose
  // throughput per rank is at least `efficiency` of the best one, by bisection: this throughput
  // falls as ranks are added.
  std::optional<int> next(const Limits& limits, Time now);

 private:
  struct Measured {
    double per_rank = 0;
    Time when{};
  };
  bool is_enough(int ranks, double least) const;

  int ranks_ = 0;    // now
  int settled_ = 0;  // the last number that was found to be right
  Time since_{};
  double sum_ = 0;  // of the rates since then, after kSettle
  int count_ = 0;
  std::map<int, Measured> measured_;
};

}  // namespace weft::launch::internal
