// A program changes parameters that are not trained between two steps, as a teacher that follows by
// moving averages: each change counts as in one process, or is an error.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace frozen_test {

using namespace std::chrono_literals;
using internal::Case;
using internal::Named;
using internal::Part;

void halve_in_place(Part& part) {
  const at::NoGradGuard guard;
  for (at::Tensor& parameter : part->parameters()) parameter.mul_(0.5);
}
void halve_by_data(Part& part) {
  for (at::Tensor& parameter : part->parameters()) parameter.data().mul_(0.5);
}
void halve_by_load(Part& part) {
  Part half = internal::make_parts({})[2];
  halve_in_place(half);
  std::stringstream file;
  torch::save(half, file);
  torch::load(part, file);
}

enum class When { kBeforeAStep, kAfterIt, kBeforeTakeChanges };
struct Change {
  void (*how)(Part& part);
  When when;
};
const std::vector<Change> kChanges{
    {halve_in_place, When::kBeforeAStep}, {halve_in_place, When::kBeforeTakeChanges},
    {halve_by_data, When::kBeforeAStep},  {halve_by_data, When::kAfterIt},
    {halve_by_load, When::kBeforeAStep},  {halve_by_load, When::kAfterIt}};

// The third block is not trained.
Named state_of(const Group& group, const Case& how, const Change& change) {
  std::vector<Part> parts = internal::make_parts({.freeze = true});
  Sharded model(internal::blocks_of(parts), group,
                optimizer_spec(torch::optim::SGDOptions(0.1), {}),
                internal::options_of(how.stage, how.weights));
  if (change.when == When::kBeforeAStep) change.how(parts[2]);
  const at::Tensor all = internal::batch_of(0, at::kDouble);
  internal::loss_of(model.forward(internal::part_of(all, group.rank(), group.size()))).backward();
  model.step();
  if (change.when != When::kBeforeAStep) change.how(parts[2]);
  if (change.when == When::kBeforeTakeChanges) model.take_changes();
  const auto state = model.state();
  return {state.begin(), state.end()};
}

std::string error_of(const Case& how, const Change& change) {
  const auto ranks = [&](const Group& group) { state_of(group, how, change); };
  return refusal([&] { comm::replicate(2, ranks, 20s); });
}

void expect_half(const Case& how, const Change& change) {
  Part half = internal::make_parts({})[2];
  halve_in_place(half);
  Named expected;
  internal::add_weights(expected, "b2.", *half);
  comm::replicate(
      2,
      [&](const Group& group) {
        const Named state = state_of(group, how, change);
        for (const auto& [name, value] : expected)
          internal::require(group.rank() > 0 || at::equal(state.at(name), value),
                            name + " at stage " + std::to_string(how.stage));
      },
      20s);
}

// At stage 0 they are never shared. At stage 3 private ones have no values between two steps.
TEST(Frozen, ValuesWrittenInPlaceCountOnceOrAreAnError) {
  for (const Case& how : internal::kCases) {
    for (const Change& change : kChanges) {
      const bool writes = change.how != halve_by_load, shares = how.weights == Weights::kShared;
      if (writes && how.stage == 3 && !shares) continue;
      if (writes && how.stage > 0 && shares) {
        EXPECT_THAT(error_of(how, change),
                    testing::HasSubstr("'b2.norm.weight' was changed in place, but its memory is "
                                       "shared by the ranks of this host"));
      } else {
        expect_half(how, change);
      }
    }
  }
}

}  // namespace frozen_test
}  // namespace weft::engine
