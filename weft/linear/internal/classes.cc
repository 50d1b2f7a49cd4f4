#include "weft/linear/internal/classes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/internal/group_ranks.h"

namespace weft::linear::internal {
namespace {

void check_count(std::size_t classes, std::size_t most) {
  WEFT_REQUIRE(classes <= most,
               "the labels have more than " + std::to_string(most) +
                   " classes; if they are numbers to predict, use the loss squared, else raise "
                   "max_classes");
}

// Classes of this rank's labels, in the order in which they occur.
std::vector<int> own_classes(std::span<const double> labels, std::size_t most) {
  std::vector<int> classes;
  std::unordered_set<int> known;
  for (const double label : labels) {
    WEFT_REQUIRE(
        label == std::trunc(label) && std::abs(label) <= double{std::numeric_limits<int>::max()},
        "label " + json_number(label) +
            " is not a whole number, so it names no class; to predict numbers, use the "
            "loss squared");
    if (!known.insert(static_cast<int>(label)).second) continue;
    classes.push_back(static_cast<int>(label));
    check_count(classes.size(), most);
  }
  return classes;
}

}  // namespace

std::vector<int> find_classes(std::span<const double> labels, std::size_t max_classes,
                              Ranks& ranks) {
  std::vector<int> mine;
  together(ranks, [&] { mine = own_classes(labels, max_classes); });
  std::vector<int> classes;
  for (const std::string& bytes :
       ranks.gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(int)})) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(int)) {
      int of_rank = 0;
      std::memcpy(&of_rank, bytes.data() + at, sizeof(int));
      if (std::find(classes.begin(), classes.end(), of_rank) == classes.end())
        classes.push_back(of_rank);
    }
  }
  check_count(classes.size(), max_classes);
  WEFT_REQUIRE(classes.size() != 1, "all rows have the label " + std::to_string(classes[0]) +
                                        "; a classifier needs at least two classes");
  if (classes == std::vector{-1, 1}) std::swap(classes[0], classes[1]);
  return classes;
}

std::vector<double> targets_of(std::span<const double> labels, int of_class) {
  std::vector<double> targets;
  targets.reserve(labels.size());
  for (const double label : labels) targets.push_back(label == of_class ? 1 : -1);
  return targets;
}

}  // namespace weft::linear::internal
