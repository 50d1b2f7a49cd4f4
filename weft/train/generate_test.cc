// Text from folders in Hugging Face's format whose weights and tokenizer do not fit each other.
#include "weft/train/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/data/text/tokenizer.h"
#include "weft/models/huggingface.h"

namespace weft::train {
namespace generate_test {

// A GPT-2 with a vocabulary of 300, of which the tokenizer has 257.
class PaddedVocabulary : public testing::Test {
 protected:
  PaddedVocabulary() {
    models::HuggingFaceConfig config;
    config.options = {.vocabulary = 300, .layers = 1, .width = 8, .heads = 2, .sequence_length = 8};
    model_ = models::Gpt(config.options, parallel::TensorParallel());
    write_file_atomic(folder_ / "config.json", models::huggingface_config(config));
    write_file_atomic(folder_ / "tokenizer.json", data::text::byte_tokenizer_json());
  }

  std::string text(const GenerateOptions& options) {
    checkpoint::save_safetensors(folder_ / "model.safetensors",
                                 {models::get_huggingface(*model_), {}});
    std::string all;
    generate(folder_.path(), options, [&](std::string_view piece) { all += piece; });
    return all;
  }

  TempDir folder_;
  models::Gpt model_{nullptr};
};

TEST_F(PaddedVocabulary, IsNotDrawnFrom) {
  // Weights are small, so all 300 ids have about the same probability.
  for (const std::uint64_t seed : {1, 2, 3})
    EXPECT_FALSE(text({.prompt = "a", .tokens = 60, .temperature = 2, .seed = seed}).empty());
  EXPECT_FALSE(text({.prompt = "a", .tokens = 20, .temperature = 0}).empty());
}

TEST_F(PaddedVocabulary, WithWeightsThatAreNotFiniteIsRefusedWithTheWeight) {
  {
    const at::NoGradGuard no_grad;
    model_->named_parameters()["blocks.0.mlp.up_proj.bias"][1] =
        std::numeric_limits<float>::quiet_NaN();
  }
  expect_refused([&] { text({.prompt = "a", .tokens = 3}); }, Errc::kCorrupt,
                 folder_.path() +
                     ": the model gives NaN or infinity for a token: "
                     "\"blocks.0.mlp.up_proj.bias\" has values that are NaN");
  expect_refused([&] { text({.prompt = "a", .tokens = 3, .temperature = 0}); }, Errc::kCorrupt,
                 "NaN");
}

TEST_F(PaddedVocabulary, WithAnotherConfigIsRefusedWithTheFolder) {
  models::HuggingFaceConfig config;
  config.options = model_->options;
  for (const auto& [layers, what] :
       {std::pair{2, "\"transformer.h.1.ln_1.weight\" is missing"}, {1, "accepted"}}) {
    config.options.layers = layers;
    write_file_atomic(folder_ / "config.json", models::huggingface_config(config));
    const std::string found = refusal([&] { text({.prompt = "a", .tokens = 1}); });
    EXPECT_THAT(found, testing::HasSubstr(what));
    EXPECT_TRUE(layers == 1 || found.find(folder_.path() + ": ") != std::string::npos) << found;
  }
}

TEST(Distribution, AtAVerySmallTemperatureIsThatOfTheLikeliestToken) {
  const at::Tensor logits = at::tensor({1.0, 30.0, -std::numeric_limits<double>::infinity(), 2.0});
  for (const double temperature : {1e-300, 1e-308, 5e-324}) {
    const at::Tensor found = distribution(logits, {.temperature = temperature});
    EXPECT_TRUE(at::equal(found, at::tensor({0.0, 1.0, 0.0, 0.0}, at::kDouble))) << found;
  }
}

TEST(Run, WhoseCheckpointsAreAllDamagedIsNotToldToHaveNone) {
  const TempDir folder;
  write_file_atomic(folder / "config.toml", "[model]\nname = \"gpt\"\n[data]\nname = \"text\"\n");
  const auto text = [&] { generate(folder.path(), {.tokens = 1}, [](std::string_view) {}); };
  expect_refused(text, Errc::kInvalidArgument, "has no checkpoint yet");
  make_directories(folder / "ckpt/step-00000007");
  expect_refused(text, Errc::kCorrupt, "step-00000007/manifest: missing");
}

}  // namespace generate_test
}  // namespace weft::train
