#include "tests/chaos/fault.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "weft/base/error.h"

namespace weft::chaos {
namespace {

struct About {
  FaultKind kind;
  const char* name;
  bool loses_a_rank, has_a_duration;
};

using enum FaultKind;
constexpr std::array kKinds{
    About{kKill, "kill", true, false},           About{kStop, "stop", true, false},
    About{kPause, "pause", false, true},         About{kSlow, "slow", false, true},
    About{kTerm, "term", false, false},          About{kDiskFull, "disk-full", false, true},
    About{kPartition, "partition", false, true}, About{kFailpoint, "failpoint", true, false},
};

const About& about(FaultKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(),
                       [&](const About& one) { return one.kind == kind; });
}

}  // namespace

const char* to_string(FaultKind kind) { return about(kind).name; }
bool loses_a_rank(FaultKind kind) { return about(kind).loses_a_rank; }
bool has_a_duration(FaultKind kind) { return about(kind).has_a_duration; }

std::vector<FaultKind> parse_faults(const std::string& names) {
  std::vector<FaultKind> kinds;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                    [&](const About& one) { return one.name == word; });
    if (found == kKinds.end()) {
      std::string known;
      for (const About& one : kKinds) known += (known.empty() ? "" : ", ") + std::string(one.name);
      throw Error(Errc::kInvalidArgument,
                  "--faults " + names + ": there is no \"" + word + "\"; there are " + known);
    }
    kinds.push_back(found->kind);
  }
  WEFT_REQUIRE(!kinds.empty(), "--faults needs at least one kind of fault, such as kill");
  return kinds;
}

}  // namespace weft::chaos
