// Components of weft that only some options of a training need. A build can leave them out
// (docs/install.md), so the trainer gets them as an option.
#pragma once

#include <cstdint>
#include <optional>

namespace weft {
class Config;
}
namespace weft::strategy {
struct ServerComponent;
}

namespace weft::train {

namespace internal {
struct PlannerComponent;
}

// components::built() has all of this build. weft::Trainer and `weft train` set them. Null: the
// program has none, and an option that needs it is refused.
struct Components {
  // For Options::mesh = "auto" and predict_plan. CMake target weft::train_planner, option
  // WEFT_PLAN.
  const internal::PlannerComponent* planner = nullptr;
  // For downpour and easgd_async with workers on several hosts, or on the servers of the job. CMake
  // target weft::strategy_server, option WEFT_PS.
  const strategy::ServerComponent* servers = nullptr;
};

// Number of parameters of a recipe's model. nullopt without the planner, and for a model that the
// planner can describe by a profile only.
std::optional<std::int64_t> parameters_of(const Config& config, const Components& components);

}  // namespace weft::train
