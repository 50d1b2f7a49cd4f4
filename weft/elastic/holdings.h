// Decisions about copies of a job's state, as pure functions: which rank keeps a copy for which
// other rank, which copies make up a whole state, and how often copies are worth their cost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::elastic {

// A copy of one rank's part of the state that a rank can read.
struct Holding {
  std::uint32_t epoch = 0;  // Epoch of the group whose ranks made the copy.
  int world = 1;            // Number of ranks of that group.
  int owner = 0;            // The rank, in that group, whose part it is.
  std::int64_t step = 0;    // Optimizer steps done.
  std::int64_t bytes = 0;
  bool operator==(const Holding&) const = default;
};
std::string to_text(const std::vector<Holding>& holdings);
// Inverse of to_text(). Throws Error(kCorrupt) for any other text.
std::vector<Holding> holdings_of(const std::string& text);

// A whole state: the same epoch and step, and a rank that can read each part.
struct Choice {
  std::uint32_t epoch = 0;
  std::int64_t step = 0;
  std::vector<int> holders;         // By owner: the lowest rank that can read its part.
  std::vector<std::int64_t> bytes;  // By owner.
};
// The newest whole state among the holdings of all ranks, by rank; of two of the same step, the one
// of the later epoch. nullopt: there is none, and `*missing`, where given, says what the newest
// lacks ("the parts of ranks 1, 3 of step 40").
std::optional<Choice> choose(const std::vector<std::vector<Holding>>& by_rank,
                             std::string* missing = nullptr);

// By rank: the rank on another host that keeps a copy of its part, so that the loss of a host loses
// no state. `hosts`: each host's ranks. Empty where all ranks share one host.
std::vector<int> copy_places(const std::vector<std::vector<int>>& hosts);

// Steps from one copy to the next. After a loss, the steps since the last copy are done again. With
// copies at 1 % of the time, these take at most 100 times as long as a copy. The number at most
// doubles from one copy to the next: a copy may take long by chance, since another process has the
// processor.
class CopyInterval {
 public:
  // Largest share of the training time that copies may take.
  static constexpr double kShare = 0.01;
  // `fixed`: steps between copies. 0: from the measured times.
  explicit CopyInterval(std::int64_t fixed = 0) : fixed_(fixed) {}

  bool is_due(std::int64_t step) const { return step >= next_; }
  // The copy after `step` took `copy_s` seconds, and a step since the last copy took `step_s` (0:
  // unknown). All ranks pass the same times.
  void taken(std::int64_t step, double copy_s, double step_s);

 private:
  const std::int64_t fixed_;
  std::int64_t steps_ = 1;  // between the last two copies
  std::int64_t next_ = 0;
};

}  // namespace weft::elastic
