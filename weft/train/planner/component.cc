#include "weft/train/planner/internal/component.h"

#include <memory>

#include "weft/train/internal/planner.h"
#include "weft/train/planner/internal/auto_planner.h"
#include "weft/train/planner/planning.h"

namespace weft::train {

const internal::PlannerComponent& planner_component() {
  static constexpr internal::PlannerComponent kComponent{
      .make = [](const Config& config, bool is_recipe) -> std::unique_ptr<internal::Planner> {
        return std::make_unique<internal::AutoPlanner>(config, is_recipe);
      },
      .parameters_of = parameters_of,
      .profile = internal::profile_program};
  return kComponent;
}

}  // namespace weft::train
