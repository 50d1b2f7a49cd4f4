#include "weft/components/components.h"

#ifdef WEFT_HAS_PLAN
#include "weft/train/planner/planning.h"
#endif
#ifdef WEFT_HAS_PS
#include "weft/strategy/server/server_center.h"
#endif

namespace weft::components {

train::Components built() {
  train::Components all;
#ifdef WEFT_HAS_PLAN
  all.planner = &train::planner_component();
#endif
#ifdef WEFT_HAS_PS
  all.servers = &strategy::server_component();
#endif
  return all;
}

}  // namespace weft::components
