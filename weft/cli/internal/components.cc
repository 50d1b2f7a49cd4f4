#include "weft/cli/internal/components.h"

#include <algorithm>
#include <array>
#include <vector>

namespace weft::cli {
namespace {

struct Component {
  std::string_view option;  // of CMake
  const char* name;
  std::vector<std::string_view> words;  // that it adds
};

std::array<Component, 3> all_components() {
  return {{
      {kPlanner, "the planner", {"plan auto", "plan profile", "plan predict", "plan validate"}},
      {kParameterServer,
       "the parameter server",
       {"run --servers", "run --server-backup", "run --no-server-backup", "run --server-memory",
        "train --servers", "train --server-backup", "train --no-server-backup",
        "train --server-memory"}},
      {kLinearModels, "the linear models", {"linear"}},
  }};
}

}  // namespace

std::optional<Error> absent(const std::string& words) {
  for (const Component& component : all_components()) {
    const auto& adds = component.words;
    if (has(component.option) || std::find(adds.begin(), adds.end(), words) == adds.end()) continue;
    return Error(Errc::kInvalidArgument, "weft " + words + " needs " + component.name +
                                             ", which this weft was built without; build it with "
                                             "-D" +
                                             std::string(component.option) + "=ON");
  }
  return std::nullopt;
}

}  // namespace weft::cli
