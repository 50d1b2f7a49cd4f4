// In place of plan_auto.cc and plan_profile.cc, where WEFT_PLAN is off.
#include "weft/cli/commands.h"
#include "weft/cli/internal/components.h"

namespace weft::cli {

int plan_auto(const AutoCommand&) { throw absent("weft plan auto", "the planner", "WEFT_PLAN"); }

int plan_profile(const ProfileCommand&) {
  throw absent("weft plan profile", "the planner", "WEFT_PLAN");
}

}  // namespace weft::cli
