// Weights that ZeRO-3 divides have values only while their block runs: what a program takes or
// changes then.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace divided_weights_test {

using namespace std::chrono_literals;
using namespace small_model;
using testing::AllOf;
using testing::HasSubstr;

// Trains for some steps. `look` is called when the second block runs, `after` after each step.
void train(const Group& group, const std::function<void(PartImpl&)>& look,
           const std::function<void()>& after = nullptr) {
  std::vector<Part> parts = make_parts({});
  parts[1]->look = look;
  Sharded model(blocks_of(parts), group,
                optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9), {}),
                options_of(3, Weights::kPrivate));
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    small_model::train(model, group, step, {});
    if (after) after();
  }
}

TEST(DividedWeights, AViewIsRefusedWhenItsBlockHasEnded) {
  comm::replicate(
      2,
      [](const Group& group) {
        std::vector<at::Tensor> views;
        at::Tensor copy;
        const auto look = [&](PartImpl& part) {
          const at::Tensor& weight = part.fc->weight;
          views = {weight.t(), weight.detach(), weight[0], weight.data(), weight.view({-1})};
          copy = weight.detach().clone();
        };
        train(group, look, [&] {
          require(copy.norm().item<double>() > 0, "a copy");
          for (const at::Tensor& view : views) {
            const std::vector<std::function<void()>> uses{
                [&] { view.sum(); }, [&] { view.narrow(0, 0, 1).norm(); },
                [&] { view.detach().fill_(1); }, [&] { view.clone(); }};
            for (const auto& use : uses)
              EXPECT_THAT(refusal(use),
                          AllOf(HasSubstr("divided over the ranks"), HasSubstr("call state()")));
          }
        });
      },
      20s);
}

// The gathered values are copies, so the change would be lost.
TEST(DividedWeights, AValueThatIsWrittenWhileItsBlockRunsIsAnError) {
  EXPECT_THAT(refusal([] {
                comm::replicate(
                    2,
                    [](const Group& group) {
                      train(group, [](PartImpl& part) {
                        part.fc->weight.data().view({-1})[70].fill_(0.3);
                      });
                    },
                    20s);
              }),
              HasSubstr("'b1.fc.weight' was changed in place, but the optimizer keeps another"));
}

}  // namespace divided_weights_test
}  // namespace weft::engine
