#include "weft/components/trainer.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"

namespace weft::components {
namespace trainer_test {

#ifdef WEFT_HAS_PLAN
constexpr bool kHasPlanner = true;
#else
constexpr bool kHasPlanner = false;
#endif
#ifdef WEFT_HAS_PS
constexpr bool kHasServers = true;
#else
constexpr bool kHasServers = false;
#endif

TEST(Components, AreThoseOfTheBuild) {
  EXPECT_EQ(built().planner != nullptr, kHasPlanner);
  EXPECT_EQ(built().servers != nullptr, kHasServers);
}

// A task without a model is refused after options that need an absent component.
TEST(Trainer, HasTheComponentsOfTheBuildAndTheOneOfTheCoreHasNone) {
  comm::replicate(1, [](const Group& world) {
    const train::Task none;
    train::Options options;
    options.mesh = "auto";
    expect_refused([&] { train::Trainer trainer(none, options, world); }, Errc::kBadConfig,
                   "needs the planner");
    expect_refused([&] { Trainer trainer(none, options, world); },
                   kHasPlanner ? Errc::kInvalidArgument : Errc::kBadConfig,
                   kHasPlanner ? "the task has no model" : "needs the planner");
  });
}

}  // namespace trainer_test
}  // namespace weft::components
