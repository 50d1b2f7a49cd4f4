// What a program leaves, or does on one rank only, between two steps: it counts as in one process,
// or is an error that says what to do. module_changes_test.cc has changes of the module itself.
#include <gmock/gmock.h>

#include <sstream>

#include "weft/engine/testing/small_model.h"

namespace weft::parallel {
namespace between_steps_test {

using namespace std::chrono_literals;
using internal::batch_of;
using internal::blocks_of;
using internal::Case;
using internal::kCases;
using internal::loss_of;
using internal::make_parts;
using internal::Named;
using internal::options_of;
using internal::Part;
using internal::part_of;
using testing::AllOf;
using testing::HasSubstr;

const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);
constexpr double kClip = 0.05;
using Parts = std::vector<Part>;

std::string error_of(const std::function<void(const Group&)>& ranks, int world = 2) {
  try {
    comm::replicate(world, ranks, 20s);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    return error.what();
  }
  return "no error";
}

void backward(Sharded& model, const Group& group, int step) {
  loss_of(model.forward(part_of(batch_of(step, at::kDouble), group.rank(), group.size())))
      .backward();
}

// `between` is called before each forward pass.
using Between = std::function<void(Sharded& model, Parts& parts, int step)>;
void train(const Group& group, const Case& how, double clip, const Between& between,
           const Named* expected = nullptr) {
  Parts parts = make_parts({});
  Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {.max_grad_norm = clip}),
                options_of(how.stage, how.weights));
  for (int step = 0; step < internal::kSteps; ++step) {
    between(model, parts, step);
    backward(model, group, step);
    model.step();
  }
  const auto state = model.state();
  if (expected != nullptr && group.rank() == 0)
    internal::expect_close(internal::weights_in(state, *expected), *expected, 1e-10,
                           model.describe());
}

// One process that never drops its gradients.
Named without_zero_grad(double clip) {
  Parts parts = make_parts({});
  std::vector<at::Tensor> all;
  for (Part& part : parts) {
    for (at::Tensor& parameter : part->parameters()) all.push_back(parameter);
  }
  torch::optim::SGD optimizer(all, kSgd);
  for (int step = 0; step < internal::kSteps; ++step) {
    at::Tensor x = batch_of(step, at::kDouble);
    for (Part& part : parts) x = part(x);
    loss_of(x).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(all, clip);
    optimizer.step();
  }
  Named weights;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto& item : parts[i]->named_parameters())
      weights[internal::part_name(i) + "." + item.key()] = item.value().detach();
  }
  return weights;
}

TEST(BetweenSteps, SavingWeightsThatAreDividedIsAnError) {
  const auto saved = [](const Group& group, Weights weights) {
    Parts parts = make_parts({});
    Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}), options_of(3, weights));
    for (int step = 0; step < 2; ++step) {
      std::ostringstream file;
      std::string error;
      try {
        torch::save(parts[1], file);
      } catch (const c10::Error& what) {
        error = what.what_without_backtrace();
      }
      if (weights == Weights::kShared) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("are divided over the ranks between two steps"),
                                 HasSubstr("to read them, call state()")));
      }
      model.zero_grad();
      backward(model, group, step);
      model.step();
    }
  };
  for (const Weights weights : {Weights::kShared, Weights::kPrivate})
    comm::replicate(
        2, [&](const Group& group) { saved(group, weights); }, 20s);
}

}  // namespace between_steps_test
}  // namespace weft::parallel
