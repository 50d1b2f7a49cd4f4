// Parameter groups: learning rates and weight decay by name, as in torch, for any placement of the
// parameters.
#include <torch/optim/adamw.h>

#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_groups_test {

using namespace internal;
using torch::optim::AdamW;

bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }
bool is_word(const std::string& name) { return name.rfind("words.", 0) == 0; }

const Adam kOfWords = Adam(adam()).betas({0.8, 0.9});

// Norms have four times the current learning rate and no decay; words have half of it and their own
// betas.
void by_hand(AdamW& optim, const Named& weights) {
  std::vector<at::Tensor> norms, words, rest;
  for (const auto& [name, weight] : weights)
    (is_norm(name) ? norms : is_word(name) ? words : rest).push_back(weight);
  auto& groups = optim.param_groups();
  groups.clear();
  groups.emplace_back(rest, std::make_unique<Adam>(adam()));
  groups.emplace_back(norms,
                      std::make_unique<Adam>(Adam(adam()).lr(4 * adam().lr()).weight_decay(0)));
  groups.emplace_back(words, std::make_unique<Adam>(Adam(kOfWords).lr(adam().lr() / 2)));
}

TEST(ComposeGroups, EqualTorchsParameterGroups) {
  const Tiny how;
  const auto expected = by_torch<AdamW>(how, adam(), {}, by_hand),
             alike = by_torch<AdamW>(how, adam());
  EXPECT_GT((expected.weights.at("words.tokens.weight") - alike.weights.at("words.tokens.weight"))
                .abs()
                .max()
                .item<double>(),
            1e-3);
  for (const Case& c : {on({{"dp", 1}}), on({{"dp", 2}, {"tp", 2}}),
                        on({{"fsdp", 2}}, {.weights = Weights::kPrivate}), on({{"fsdp", 2}}),
                        on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    replicate(c.world(), [&](const Group& world) {
      Plan plan = trained_by(c);
      plan.optimizer.groups = {{is_norm, 4, 0},
                               {is_word, 0.5, 1, optimizer_spec(kOfWords, {}).rule}};
      ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
      model.set_lr(adam().lr());  // groups keep their ratio to it
      for (int step = 0; step < kSteps; ++step) {
        train(model, step, how.length);
        model.step();
      }
      const Named all = named(model.state());
      if (world.rank() == 0) expect_close(all, expected.weights, 1e-10, c.name());
    });
  }
}

}  // namespace compose_groups_test
}  // namespace weft::parallel
