// In place of plan_predict.cc, where WEFT_PLAN is off.
#include "weft/cli/commands.h"
#include "weft/cli/internal/components.h"

namespace weft::cli {

int plan_predict(const PredictCommand&) {
  throw absent("weft plan predict", "the planner", "WEFT_PLAN");
}

}  // namespace weft::cli
