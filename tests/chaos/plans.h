// The forms of parallelism that `weft chaos --plans` runs, as settings of a recipe.
#pragma once

#include <string>
#include <vector>

namespace weft::chaos {

struct Plan {
  std::string name;
  std::vector<std::string> settings;  // "a.b=c"
  bool is_text = false;               // It trains a GPT on a text, otherwise an MLP on images.
};

// Each plan is for four ranks.
constexpr int kPlanRanks = 4;
const std::vector<Plan>& all_plans();
// "all", or names that commas separate. Throws Error(kInvalidArgument) with the known names.
std::vector<Plan> parse_plans(const std::string& names);

// The settings of the model, the data and the length of a plan, with room for so many faults.
// `text`: a file for the plans that train on a text.
std::vector<std::string> workload_of(const Plan& plan, const std::string& text, int faults);

}  // namespace weft::chaos
