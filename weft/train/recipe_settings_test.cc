#include "weft/train/internal/recipe_settings.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/data/augment.h"
#include "weft/data/image_set.h"
#include "weft/models/gpt.h"
#include "weft/models/loss.h"
#include "weft/models/registry.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace recipe_settings_test {

using internal::recipe_settings_of;
using internal::RecipeSettings;

TEST(RecipeSettings, AreTheDefaultsWhereARecipeSetsNothing) {
  const RecipeSettings read = recipe_settings_of(Config(recipe_schema())), defaults;
  EXPECT_EQ(read.model.name, defaults.model.name);
  EXPECT_EQ(read.model.family, defaults.model.family);
  EXPECT_EQ(read.model.hidden, defaults.model.hidden);
  EXPECT_EQ(read.model.experts_balance, defaults.model.experts_balance);
  EXPECT_EQ(read.data.seed, defaults.data.seed);
  EXPECT_EQ(read.data.validation, defaults.data.validation);
  EXPECT_EQ(read.loss.name, defaults.loss.name);
  EXPECT_EQ(read.where("model.name"), "model.name (default)");
}

TEST(RecipeSettings, HaveTheValuesOfARecipeAndTheirOrigins) {
  Config config(recipe_schema());
  for (const char* assignment :
       {"model.family=llama", "model.hidden=[7]", "model.tied=false", "model.dropout=0.5",
        "data.seed=9", "data.crop_padding=2", "train.loss=mse", "train.label_smoothing=0.25"})
    config.set(assignment);
  const RecipeSettings settings = recipe_settings_of(config);
  EXPECT_EQ(settings.model.family, internal::Family::kLlama);
  EXPECT_EQ(settings.model.hidden, std::vector<std::int64_t>{7});
  EXPECT_FALSE(settings.model.tied);
  EXPECT_EQ(settings.model.dropout, 0.5);
  EXPECT_EQ(settings.data.seed, 9u);
  EXPECT_EQ(settings.data.crop_padding, 2);
  EXPECT_EQ(settings.loss.name, "mse");
  EXPECT_EQ(settings.loss.label_smoothing, 0.25);
  EXPECT_EQ(settings.where("data.seed"), "data.seed (--set)");
}

// Except for model.stem and the sizes of text models, which are small in a recipe.
TEST(RecipeSettings, HaveTheDefaultsOfTheOptionsInCpp) {
  const RecipeSettings settings;
  const models::ModelOptions image = {};
  EXPECT_EQ(settings.model.name, image.name);
  EXPECT_EQ(settings.model.hidden, image.hidden);
  EXPECT_EQ(settings.model.patch, image.patch);
  EXPECT_EQ(settings.model.layers, image.layers);
  EXPECT_EQ(settings.model.width, image.width);
  EXPECT_EQ(settings.model.heads, image.heads);
  EXPECT_EQ(settings.model.pool, image.pool);
  EXPECT_EQ(settings.model.dropout, image.dropout);
  const models::GptOptions gpt = {};
  EXPECT_EQ(settings.model.kv_heads, gpt.kv_heads);
  EXPECT_EQ(settings.model.experts, gpt.experts);
  EXPECT_EQ(settings.model.experts_top_k, gpt.experts_top_k);
  EXPECT_EQ(settings.model.experts_capacity, gpt.experts_capacity);
  EXPECT_EQ(settings.model.experts_balance, gpt.experts_balance);
  const data::SetOptions set;
  EXPECT_EQ(settings.data.name, set.name);
  EXPECT_EQ(settings.data.dir, set.dir);
  EXPECT_EQ(settings.data.seed, set.seed);
  const data::AugmentOptions augment;
  EXPECT_EQ(settings.data.crop_padding, augment.crop_padding);
  EXPECT_EQ(settings.data.flip, augment.flip);
  const models::LossOptions loss;
  EXPECT_EQ(models::parse_loss(settings.loss.name), loss.kind);
  EXPECT_EQ(settings.loss.label_smoothing, loss.label_smoothing);
}

// A program's configuration has no model.
TEST(RecipeSettings, AreNotReadFromOtherConfigurations) {
  expect_refused([] { recipe_settings_of(Config(options_schema())); }, Errc::kInvalidArgument,
                 "model.name");
}

}  // namespace recipe_settings_test
}  // namespace weft::train
