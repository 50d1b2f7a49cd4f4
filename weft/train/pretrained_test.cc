// Recipes that start from weights in Hugging Face's format (model.from).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "weft/checkpoint/safetensors.h"
#include "weft/data/text/tokenizer.h"
#include "weft/models/gpt.h"
#include "weft/models/huggingface.h"
#include "weft/train/export.h"
#include "weft/train/testing/text_runs.h"

namespace weft::train::internal {
namespace pretrained_test {

using testing::HasSubstr;

// A folder with a small random model, whose vocabulary is larger than its tokenizer's.
class Pretrained : public testing::Test {
 protected:
  Pretrained() : Pretrained(gpt2()) {}
  explicit Pretrained(const models::GptOptions& options) : folder_(runs_.path("pretrained")) {
    std::filesystem::create_directories(folder_);
    model_ = models::Gpt(options, parallel::TensorParallel());
    checkpoint::save_safetensors(folder_ + "/model.safetensors",
                                 {models::get_huggingface(*model_), {}});
    write_file_atomic(folder_ + "/config.json", models::huggingface_config({options, {}, {}}));
    write_file_atomic(folder_ + "/tokenizer.json", data::text::byte_tokenizer_json());
  }

  static models::GptOptions gpt2() {
    return {.vocabulary = 260, .layers = 2, .width = 16, .heads = 4, .sequence_length = 24};
  }
  static models::GptOptions llama() {
    models::GptOptions options = models::like_llama(gpt2());
    options.kv_heads = 2;
    options.hidden = 24;
    options.norm_eps = 1e-4;
    return options;
  }

  // Assignments for a run that starts from the folder. A rate of 0 leaves the weights as they are.
  Assignments from(const Assignments& more) const {
    return joined({"model.layers=4", "model.width=128", "model.from=" + folder_, "optimizer.lr=0",
                   "train.max_steps=1"},
                  more);
  }
  void expect_weights(const std::string& run) const {
    const auto found = runs_.weights(run);
    const auto parameters = model_->named_parameters();
    EXPECT_EQ(found.size(), parameters.size());
    for (const auto& one : parameters)
      EXPECT_TRUE(at::equal(found.at(one.key()), one.value())) << one.key();
  }
  void expect_start(const std::vector<Split>& splits) const {
    for (const Split& split : splits) {
      SCOPED_TRACE(split.name);
      runs_.train(split.world, split.name, from(split.assignments));
      expect_weights(split.name);
    }
  }

  const TextRuns runs_;
  const std::string folder_;
  models::Gpt model_{nullptr};
};

class PretrainedLlama : public Pretrained {
 protected:
  PretrainedLlama() : Pretrained(llama()) {}
};

TEST_F(Pretrained, IsTheStartUnderEveryPlan) {
  expect_start({{"one", 1, {}},
                {"dp", 2, {}},
                {"fsdp", 2, {"parallel.fsdp=2"}},
                {"zero", 2, {"parallel.fsdp=2", "parallel.zero_stage=1"}},
                {"tp", 2, {"parallel.tp=2"}},
                {"pp", 2, {"parallel.pp=2"}},
                {"cp", 2, {"parallel.cp=2"}},
                {"reproducible", 2, {"train.reproducible=true"}},
                {"local_sgd", 2, {"strategy.name=local_sgd"}}});
}

TEST_F(PretrainedLlama, IsTheStartUnderEveryPlan) {
  expect_start({{"tp", 2, {"parallel.tp=2"}}, {"pp", 2, {"parallel.pp=2"}}});
}

TEST_F(PretrainedLlama, IsNotNeededToResumeGenerateAndExport) {
  runs_.train(1, "run", from({"optimizer.lr=0.01"}));
  std::filesystem::remove_all(folder_);
  Config config = Config::load(runs_.path("run") + "/config.toml", recipe_schema());
  config.set("train.max_steps=2");
  replicate(1, [&](const Group& group) {
    TrainerOptions options;
    options.resume = true;
    EXPECT_EQ(Trainer(config, group, options).run().steps, 2);
  });
  std::string text;
  weft::train::generate(runs_.path("run"), {.prompt = "warp", .tokens = 5},
                        [&](std::string_view piece) { text += piece; });
  export_huggingface(runs_.path("run"), runs_.path("export"));
  const auto options = models::read_huggingface_config(runs_.path("export")).options;
  EXPECT_EQ(options.norm_eps, 1e-4);
  EXPECT_EQ(options.hidden, 24);
  EXPECT_EQ(options.vocabulary, 260);
}

// The first loss would be NaN, and the advice to lower the learning rate.
TEST_F(Pretrained, WithAValueThatIsNotFiniteIsRefusedOnAllRanks) {
  {
    const at::NoGradGuard no_grad;
    model_->named_parameters()["blocks.1.mlp.up_proj.bias"][3] =
        std::numeric_limits<float>::infinity();
  }
  checkpoint::save_safetensors(folder_ + "/model.safetensors",
                               {models::get_huggingface(*model_), {}});
  replicate(2, [&](const Group& group) {
    expect_refused([&] { runs_.train(group, "run", from({"parallel.pp=2"}), false); },
                   Errc::kCorrupt,
                   "values that are NaN or infinite: \"blocks.1.mlp.up_proj.bias\"");
  });
  EXPECT_FALSE(std::filesystem::exists(runs_.path("run")));
}

TEST_F(Pretrained, IsRefusedWithKeysThatContradictIt) {
  const auto refused = [&](const Assignments& more) { return runs_.refused(1, from(more)); };
  EXPECT_THAT(refused({"model.layers=2"}),
              HasSubstr("model.layers (--set): model.from gives the sizes of the model"));
  EXPECT_THAT(refused({"model.sequence=25"}), HasSubstr("longer than the 24 positions"));
  EXPECT_THAT(refused({"model.name=lstm"}), HasSubstr("model.from (--set) is for model.name"));
  EXPECT_THAT(refused({"data.tokenizer=bpe:300"}),
              HasSubstr("tokens, the model in model.from 260"));
  EXPECT_THAT(refused({"model.from=/nowhere"}), HasSubstr("/nowhere has no config.json"));
  EXPECT_THAT(refused({"model.from=", "model.config={}"}), HasSubstr("set model.from to a folder"));
}

}  // namespace pretrained_test
}  // namespace weft::train::internal
