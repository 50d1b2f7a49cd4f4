// What a warm spare does before it has a rank.
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/parallel/compose/modules.h"
#include "weft/rank_link/spare.h"
#include "weft/train/dataset.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace rehearsal_test {

namespace nn = torch::nn;

struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t i) override {
    return {torch::full({4}, static_cast<double>(i % 3)), torch::tensor(i % 2 == 0 ? 1.0F : 0.0F)};
  }
  std::optional<std::size_t> size() const override { return 40; }
};

class Rehearsal : public testing::Test {
 protected:
  Rehearsal() {
    set_log_level(LogLevel::kOff);
    ::setenv("WORLD_SIZE", "2", 1);
  }
  ~Rehearsal() override {
    ::unsetenv(rank_link::kSpareVariable);
    ::unsetenv("WORLD_SIZE");
  }

  Task task() {
    Task made(parallel::blocks_of(net_), [this](const at::Tensor& y, const at::Tensor& t) {
      samples_.push_back(y.size(0));
      if (fails_) throw std::runtime_error("no such kernel");
      return (y.flatten() - t).square().mean();
    });
    made.train = dataset(Numbers());
    return made;
  }

  nn::Linear net_{4, 1};
  std::vector<std::int64_t> samples_;  // of each forward pass
  bool fails_ = false;
  Options options_{.batch = 16};
};

TEST_F(Rehearsal, DoesStepsOfTheShareOfARankAndChangesNoWeight) {
  ::setenv(rank_link::kSpareVariable, "1", 1);
  const at::Tensor before = net_->weight.detach().clone();
  Trainer::prepare(task(), options_);
  EXPECT_EQ(samples_, (std::vector<std::int64_t>{8, 8}));
  EXPECT_TRUE(at::equal(net_->weight, before));
}

TEST_F(Rehearsal, DoesNothingInOtherProcesses) {
  Trainer::prepare(task(), options_);
  EXPECT_TRUE(samples_.empty());
}

TEST_F(Rehearsal, ThatFailsIsNoError) {
  ::setenv(rank_link::kSpareVariable, "1", 1);
  fails_ = true;
  Trainer::prepare(task(), options_);
  EXPECT_EQ(samples_.size(), 1u);
}

// Makes images first.
class RehearsalSlow : public Rehearsal {};

TEST_F(RehearsalSlow, LoadsTheImagesOfARecipe) {
  Config config(recipe_schema());
  for (const char* set :
       {"data.name=\"shapes\"", "model.name=\"mlp\"", "model.hidden=[8]", "train.batch=32"})
    config.set(set, "test");
  TrainerOptions options;
  Trainer::prepare(config, options);
  EXPECT_FALSE(options.train_images);
  ::setenv(rank_link::kSpareVariable, "1", 1);
  Trainer::prepare(config, options);
  EXPECT_TRUE(options.train_images && options.test_images);
}

}  // namespace rehearsal_test
}  // namespace weft::train
