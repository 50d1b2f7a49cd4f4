#include "weft/train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/train/internal/newest_run.h"
#include "weft/train/options.h"

namespace weft::train {
namespace recipe_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The message of the Error(kBadConfig) that `call` throws.
template <class Call>
std::string bad_config(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Creates a folder with recipes/ and makes it the current folder during its lifetime.
class InFolderOfRecipes {
 public:
  InFolderOfRecipes() : before_(std::filesystem::current_path()) {
    for (const char* name : {"fashion-mnist", "shapes"}) {
      make_directories(folder_ / ("recipes/" + std::string(name)));
      write_file_atomic(folder_ / ("recipes/" + std::string(name) + "/recipe.toml"),
                        "[model]\nname = \"cnn\"\n[data]\nname = \"shapes\"\n"
                        "[train]\nepochs = 3\n");
    }
    std::filesystem::current_path(folder_.path());
  }
  ~InFolderOfRecipes() { std::filesystem::current_path(before_); }

 private:
  TempDir folder_;
  std::filesystem::path before_;
};

TEST(Recipe, IsFoundByNameByFolderAndByFile) {
  const InFolderOfRecipes here;
  for (const char* words :
       {"shapes", "recipes/shapes", "recipes/shapes/", "recipes/shapes/recipe.toml"}) {
    const auto file = find_recipe(words);
    EXPECT_EQ(recipe_name(file), "shapes") << words;
    EXPECT_EQ(load_recipe(words).get_int("train.epochs"), 3) << words;
  }
}

TEST(Recipe, OfTheCheckoutIsFoundByItsNameFromAnyFolder) {
  const TempDir elsewhere;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(elsewhere.path());
  const std::string file = find_recipe("shapes");
  std::filesystem::current_path(before);
  EXPECT_THAT(file, testing::EndsWith("/recipes/shapes/recipe.toml"));
}

TEST(Recipe, ThatIsUnknownGetsTheNearestNameOrAllNamesAndTheFoldersThatWereSearched) {
  const InFolderOfRecipes here;
  EXPECT_THAT(bad_config([] { find_recipe("recipes/fashon-mnist"); }),
              HasSubstr("did you mean \"fashion-mnist\"?"));
  EXPECT_THAT(
      bad_config([] { find_recipe("imagenet"); }),
      AllOf(HasSubstr("searched " + (std::filesystem::current_path() / "recipes").string() + ", "),
            HasSubstr("there are: "), HasSubstr("fashion-mnist, "), HasSubstr("shapes")));
  EXPECT_THAT(bad_config([] { find_recipe("recipes"); }),
              HasSubstr("the folder recipes has no recipe.toml"));
}

TEST(Recipe, WithoutAModelOrDataIsRefused) {
  const TempDir folder;
  const std::string file = folder / "recipe.toml";
  const std::string model = "[model]\nname = \"cnn\"\n", data = "[data]\nname = \"shapes\"\n";
  write_file_atomic(file, "");
  EXPECT_THAT(bad_config([&] { load_recipe(file); }), HasSubstr(file + ": model.name is not set"));
  write_file_atomic(file, model);
  EXPECT_THAT(bad_config([&] { load_recipe(file); }), HasSubstr("data.name is not set"));
  EXPECT_EQ(load_recipe(file, {"data.name=shapes"}).get_string("data.name"), "shapes");
  write_file_atomic(file, model + data);
  load_recipe(file);
  EXPECT_THAT(bad_config([] { check_recipe(Config(recipe_schema())); }),
              HasSubstr("model.name is not set"));
}

TEST(Recipe, AcceptsAssignmentsAndRejectsUnknownKeysWrongTypesAndRanges) {
  const InFolderOfRecipes here;
  const auto config = load_recipe("shapes", {"train.epochs=7", "optimizer.lr=0.5"});
  EXPECT_EQ(config.get_int("train.epochs"), 7);
  EXPECT_EQ(config.origin("train.epochs"), "--set");
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"train.epoch=7"}); }),
              HasSubstr("train.epochs"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"train.epochs=many"}); }),
              HasSubstr("train.epochs"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"train.label_smoothing=1.5"}); }),
              HasSubstr("train.label_smoothing"));
  for (const char* key : {"train.batch", "train.batch_per_rank", "train.eval_batch"}) {
    EXPECT_THAT(
        bad_config([&] { load_recipe("shapes", {std::string(key) + "=9223372036854775807"}); }),
        HasSubstr(key));
  }
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"optimizer.betas=[0.9]"}); }),
              HasSubstr("two numbers"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"optimizer.betas=[0.9, 1]"}); }),
              HasSubstr("but a list of numbers of at least 0 and below 1 is expected"));
  EXPECT_THAT(bad_config([] {
                load_recipe("shapes", {"optimizer.nesterov=true", "optimizer.momentum=0"});
              }),
              HasSubstr("optimizer.nesterov (--set) needs an optimizer.momentum above 0"));
}

TEST(Batches, KeepTheGlobalBatchSizeAtAnyWorldSize) {
  const Config config(recipe_schema());
  for (const int world : {1, 2, 3, 4}) {
    const auto batches = plan_batches(options_of(config), world, 60'000);
    EXPECT_EQ(batches.global, 128);
    EXPECT_EQ(batches.per_epoch, 469);
    EXPECT_EQ(batches.base_rate, 0.1);
  }
}

TEST(Batches, GrowWithTheWorldSizeAndScaleTheRateIfBatchPerRankIsSet) {
  Config config(recipe_schema());
  config.set("train.batch_per_rank=64");
  config.set("schedule.reference_batch=64");
  const auto batches = plan_batches(options_of(config), 4, 60'000);
  EXPECT_EQ(batches.global, 256);
  EXPECT_EQ(batches.per_epoch, 235);
  EXPECT_DOUBLE_EQ(batches.base_rate, 0.4);
}

TEST(Recipe, RejectsAMisspelledCodecAndNamesItsKey) {
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"parallel.codec=\"powersdg:4\""}); }),
              AllOf(HasSubstr("parallel.codec"), HasSubstr("did you mean \"powersgd\"?")));
  EXPECT_EQ(load_recipe("shapes", {"parallel.codec=\"topk:0.01,warmup=10\""})
                .get_string("parallel.codec"),
            "topk:0.01,warmup=10");
}

TEST(Recipe, RejectsKeysThatItsModelDataOrOptimizerDoesNotUseUnlessTheyAreDefaults) {
  const InFolderOfRecipes here;
  const auto with = [](const std::string& model, const std::string& key) {
    return [=] {
      load_recipe("shapes",
                  {model == "gpt" || model == "lstm" ? "data.name=text" : "data.name=shapes",
                   "model.name=" + model, key});
    };
  };
  EXPECT_THAT(bad_config(with("cnn", "parallel.tp=2")),
              AllOf(HasSubstr("parallel.tp (--set) is for model.name = \"gpt\" or \"vit\" or "
                              "\"mixer\", not \"cnn\""),
                    HasSubstr("leave it at 1")));
  EXPECT_THAT(bad_config(with("vit", "parallel.cp=2")),
              HasSubstr("is for model.name = \"gpt\", not \"vit\""));
  EXPECT_THAT(bad_config(with("lstm", "model.kv_heads=2")),
              HasSubstr("is for model.name = \"gpt\", not \"lstm\""));
  EXPECT_THAT(bad_config(with("lstm", "train.precision=f16")), HasSubstr("no LSTM in float16"));
  EXPECT_THAT(bad_config(with("cnn", "train.recompute=selective")),
              HasSubstr("use \"full\" or \"none\""));
  EXPECT_THAT(bad_config(with("gpt", "model.tied=false")),
              HasSubstr("is for model.name = \"lstm\""));
  EXPECT_THAT(bad_config(with("gpt", "train.label_smoothing=0.1")),
              HasSubstr("is for data.name = \"fashion-mnist\" or \"shapes\""));
  EXPECT_THAT(bad_config(with("cnn", "optimizer.alpha=0.5")),
              HasSubstr("is for optimizer.name = \"rmsprop\", not \"sgd\""));
  for (const auto& [rule, key] : {std::pair{"lamb", "optimizer.trust=0.1"},
                                  {"lars", "optimizer.betas=[0.5, 0.5]"},
                                  {"muon", "optimizer.update_clip=2"},
                                  {"adafactor", "optimizer.l1=0.1"}}) {
    EXPECT_THAT(bad_config([&] {
                  load_recipe("shapes", {std::string("optimizer.name=") + rule, key});
                }),
                HasSubstr(std::string("not \"") + rule + "\""));
  }
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"optimizer.name=lambs"}); }),
              HasSubstr("lamb"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"parallel.reduce=sum"}); }),
              HasSubstr("adasum"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"train.device=gpu"}); }),
              HasSubstr("train.device (--set): unknown device 'gpu'; use cpu, cuda"));
  EXPECT_THAT(bad_config([] { load_recipe("shapes", {"model.name=lstm"}); }),
              HasSubstr("go together"));
  for (const char* key : {"model.heads=4", "parallel.dp=2", "train.precision=bf16",
                          "model.tied=false", "train.balance=speed"})
    with("lstm", key)();
  for (const char* key : {"parallel.fsdp=2", "parallel.pp=2", "parallel.cuts=[1]",
                          "train.recompute=full", "train.precision=f16"})
    with("resnet18", key)();
}

TEST(Recipe, ItsNewestRunIsTheLastOneOfItsSecond) {
  const TempDir folder;
  const std::string second = "2026-01-31-235959-";
  for (const char* rest :
       {"shapes", "2-shapes", "9-shapes", "10-shapes", "7-my-shapes", "x-shapes"})
    make_directories(folder / (second + rest));
  make_directories(folder / "2026-01-31-235958-99-shapes");
  EXPECT_EQ(internal::newest_run(folder.path(), "shapes"), second + "10-shapes");
  EXPECT_EQ(internal::newest_run(folder.path(), "my-shapes"), second + "7-my-shapes");
  EXPECT_FALSE(internal::newest_run(folder.path(), "cnn"));
  EXPECT_FALSE(internal::newest_run(folder / "nowhere", "shapes"));
}

TEST(Options, OfAProgramKeepQuotesAndBackslashesOfNames) {
  Options options;
  options.dir = "runs\\new";
  options.name = "the \"best\" run, größer";
  const Options again = options_of(config_of(options));
  EXPECT_EQ(again.dir, options.dir);
  EXPECT_EQ(again.name, options.name);
}

// The ranks have met before, by InitOptions.
TEST(Options, OfAProgramRefuseKeysOfTheMeetingThatAreNotTheDefaults) {
  const TempDir folder;
  const std::string file = folder / "train.toml";
  write_file_atomic(file, "[train]\nepochs = 3\n[comm]\ntransport = \"auto\"\n");
  EXPECT_EQ(load_options(file).epochs, 3);
  EXPECT_THAT(bad_config([&] { load_options(file, {"comm.transport=tcp"}); }),
              HasSubstr("has no effect on a program: pass InitOptions to weft::init()"));
  write_file_atomic(file, "[comm]\ntimeout_s = 20\n");
  EXPECT_THAT(bad_config([&] { load_options(file); }),
              AllOf(HasSubstr("comm.timeout_s"), HasSubstr("train.toml:2")));
}

TEST(Options, OfAProgramRefuseKeysThatTheOthersDoNotUse) {
  const TempDir folder;
  const std::string file = folder / "train.toml";
  write_file_atomic(file, "[optimizer]\nname = \"adamw\"\n");
  const auto refused = [&](const std::vector<std::string>& words) {
    return bad_config([&] { load_options(file, words); });
  };
  EXPECT_THAT(refused({"optimizer.nesterov=true"}),
              HasSubstr("optimizer.nesterov (--set) is for optimizer.name = \"sgd\" or \"lars\", "
                        "not \"adamw\""));
  EXPECT_THAT(refused({"schedule.gamma=0.5"}), HasSubstr("is for schedule.name = \"step\""));
  EXPECT_THAT(refused({"strategy.codec=bf16"}), HasSubstr("strategy.codec (--set) is for"));
  for (const std::string name : {"diloco", "downpour", "easgd_async", "ad_psgd"}) {
    EXPECT_THAT(refused({"strategy.name=" + name, "strategy.adapt_steps=4"}),
                HasSubstr("strategy.adapt_steps (--set) is for strategy.name = \"local_sgd\" or "
                          "\"slow_momentum\" or \"easgd\" or \"gossip\", not \"" +
                          name));
  }
  EXPECT_THAT(refused({"strategy.name=ad_psgd", "strategy.codec=bf16"}),
              AllOf(HasSubstr("strategy.codec (--set) is for"), HasSubstr("not \"ad_psgd\"")));
  EXPECT_THAT(refused({"parallel.plan=auto", "parallel.dp=2"}), HasSubstr("parallel.dp is set"));
  EXPECT_THAT(refused({"run.recipe=shapes"}), HasSubstr("has no effect on a program: leave it"));
  EXPECT_EQ(load_options(file, {"optimizer.betas=[0.8,0.9]", "parallel.tp=2"}).mesh, "dp=0,tp=2");
}

TEST(Options, OfAProgramConvertToTheConfigurationThatTheyCameFrom) {
  Config config(recipe_schema());
  for (const char* assignment :
       {"train.epochs=7", "train.batch=24", "optimizer.name=adamw", "optimizer.weight_decay=0.1",
        "optimizer.lr=0.003", "schedule.name=step", "parallel.pp=2", "parallel.micro_batches=3",
        "train.precision=bf16", "train.reproducible=true", "parallel.weights=private",
        "train.recompute=full", "run.name=mine"})
    config.set(assignment);
  const Options options = options_of(config);
  EXPECT_EQ(options.mesh, "pp=2,dp=0");
  EXPECT_EQ(options.plan.micro_shards, 4);
  EXPECT_EQ(options.plan.weights, engine::Weights::kPrivate);
  const Config written = config_of(options);
  for (const auto& row : written.describe()) {
    const auto rows = config.describe();
    const auto same =
        std::find_if(rows.begin(), rows.end(), [&](const auto& one) { return one.key == row.key; });
    ASSERT_NE(same, rows.end()) << row.key;
    EXPECT_EQ(row.value, same->value) << row.key;
  }
}

TEST(Options, OfRulesOfWholeTensorsConvertToTheirKeys) {
  for (const std::vector<std::string>& assignments :
       {std::vector<std::string>{"optimizer.name=lars", "optimizer.trust=0.02",
                                 "optimizer.nesterov=true", "parallel.reduce=adasum"},
        {"optimizer.name=lamb", "optimizer.betas=[0.8, 0.9]", "optimizer.weight_decay=0.1"},
        {"optimizer.name=adafactor", "optimizer.update_clip=2"},
        {"optimizer.name=muon", "optimizer.adam_lr=0.1", "optimizer.eps=1e-6",
         "train.noise_scale=true"}}) {
    Config config(recipe_schema());
    for (const auto& assignment : assignments) config.set(assignment);
    const Config written = config_of(options_of(config));
    for (const auto& assignment : assignments) {
      const std::string key = assignment.substr(0, assignment.find('='));
      const auto rows = config.describe(), same = written.describe();
      const auto is = [&](const auto& row) { return row.key == key; };
      EXPECT_EQ(std::find_if(rows.begin(), rows.end(), is)->value,
                std::find_if(same.begin(), same.end(), is)->value)
          << key;
    }
  }
}

TEST(Batches, AreRejectedIfTheyDoNotFitTheWorldSizeOrReproducibility) {
  Config config(recipe_schema());
  config.set("train.batch=3");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 4, 100); }),
              AllOf(HasSubstr("train.batch = 3"), HasSubstr("4 ranks")));
  config.set("train.batch=8");
  config.set("train.reproducible=true");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 3, 100); }),
              HasSubstr("multiple of the 3 ranks"));
  config.set("train.micro_shards=6");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 2, 100); }),
              HasSubstr("power of two"));
  config.set("train.micro_shards=4");
  config.set("model.sync_batch_norm=true");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 2, 100); }),
              HasSubstr("model.sync_batch_norm"));
  config.set("model.sync_batch_norm=false");
  config.set("train.balance=speed");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 2, 100); }),
              HasSubstr("train.balance"));
  config.set("train.balance=even");
  config.set("parallel.codec=bf16");
  EXPECT_THAT(bad_config([&] { plan_batches(options_of(config), 2, 100); }),
              HasSubstr("parallel.codec"));
}

TEST(Recipe, NamesKeysThatHaveNoEffectBesideTheOthers) {
  const InFolderOfRecipes here;
  const auto idle = [](const std::vector<std::string>& assignments) {
    return idle_keys(load_recipe("shapes", assignments));
  };
  EXPECT_THAT(idle({}), testing::IsEmpty());
  EXPECT_THAT(idle({"train.micro_shards=8", "parallel.zero_stage=1", "parallel.schedule=gpipe",
                    "train.best_metric=accuracy"}),
              testing::UnorderedElementsAre(
                  "train.micro_shards (--set) has no effect: train.reproducible is false",
                  "parallel.zero_stage (--set) has no effect: parallel.fsdp is 1",
                  "parallel.schedule (--set) has no effect: parallel.pp is 1",
                  "train.best_metric (--set) has no effect: neither train.keep_best nor "
                  "train.patience is set"));
  EXPECT_THAT(idle({"parallel.plan=auto", "parallel.micro_batches=3", "train.recompute=full",
                    "parallel.zero_stage=1"}),
              testing::ElementsAre(
                  "train.recompute (--set) has no effect: parallel.plan = \"auto\" chooses it",
                  "parallel.zero_stage (--set) has no effect: parallel.plan = \"auto\" chooses it",
                  "parallel.micro_batches (--set) has no effect: parallel.plan = \"auto\" chooses "
                  "it"));
  EXPECT_THAT(
      idle({"train.batch=60", "train.batch_per_rank=8", "train.peak_tflops=1",
            "optimizer.weight_decay=0", "optimizer.decay_vectors=false"}),
      testing::ElementsAre("train.batch (--set) has no effect: train.batch_per_rank is set",
                           "train.peak_tflops (--set) has no effect: the FLOPs of a sample are "
                           "known for gpt only",
                           "optimizer.decay_vectors (--set) has no effect: neither "
                           "optimizer.weight_decay nor optimizer.l1 is set"));
  EXPECT_THAT(idle({"train.micro_shards=8", "train.reproducible=true", "parallel.zero_stage=1",
                    "parallel.fsdp=2", "train.best_metric=accuracy", "train.patience=3"}),
              testing::IsEmpty());
}

// Else the first step would fail, in ranks that have started.
TEST(Recipe, RefusesLabelSmoothingWithAnotherLoss) {
  const InFolderOfRecipes here;
  const auto load = [](const std::string& loss) {
    load_recipe("shapes", {"train.label_smoothing=0.1", "train.loss=" + loss});
  };
  load("cross_entropy");
  EXPECT_THAT(bad_config([&] { load("mse"); }),
              HasSubstr("train.label_smoothing (--set) is for train.loss = \"cross_entropy\""));
}

}  // namespace recipe_test
}  // namespace weft::train
