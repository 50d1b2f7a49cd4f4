// The numbers of ranks that a program can use. A rank tells its launcher, which asks for such
// numbers only. Pure.
#pragma once

#include <string>

namespace weft::rank_link {

struct UsableRanks {
  int multiple = 1;  // Only multiples of it, such as the stages of a pipeline.
  // A power of two that the number of multiples must divide, such as the micro-shards of
  // reproducible sums. 0: any number of multiples.
  int shards = 0;
  // The largest number of multiples. A batch limits it, since each replica takes at least one
  // sample. 0: any number.
  int replicas = 0;

  // The most usable ranks up to `ranks`. 0: none.
  int most(int ranks) const;
  // The fewest usable ranks from `ranks` on, at least 1. 0: none.
  int least(int ranks) const;
  bool has(int ranks) const { return ranks > 0 && most(ranks) == ranks; }
  // "multiples of 2", "1, 2 or 4 ranks", "multiples of 2 up to 16".
  std::string describe() const;
  bool operator==(const UsableRanks&) const = default;
};

// Calls visit(name, field) for each field, for JSON (weft/base/json/json_fields.h).
template <class Visit>
void each_field(UsableRanks& o, Visit&& visit) {
  visit("multiple", o.multiple);
  visit("shards", o.shards);
  visit("replicas", o.replicas);
}

// "2", "2 4", "2 0 8": a message of rank_link::Link.
std::string to_text(const UsableRanks& usable);
// The inverse. Another text gives any number of ranks.
UsableRanks usable_ranks_of(const std::string& text);

}  // namespace weft::rank_link
