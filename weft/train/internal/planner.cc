#include "weft/train/internal/planner.h"

#include "weft/base/error.h"

namespace weft::train {

const internal::PlannerComponent& internal::planner_of(const Options& options,
                                                       const std::string& what) {
  if (options.components.planner != nullptr) return *options.components.planner;
  throw Error(Errc::kBadConfig,
              what +
                  " needs the planner, which this program does not have; build weft with "
                  "-DWEFT_PLAN=ON, and use weft::Trainer");
}

std::optional<std::int64_t> parameters_of(const Config& config, const Components& components) {
  if (components.planner == nullptr) return std::nullopt;
  return components.planner->parameters_of(config);
}

}  // namespace weft::train
