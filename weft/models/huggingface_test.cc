// Folders as Hugging Face's transformers keeps them: testdata/ has what it computes, and its
// config.json as metadata (gpt_reference.py).
#include "weft/models/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"

namespace weft::models {
namespace huggingface_test {

using nlohmann::json;
using parallel::TensorParallel;
using testing::HasSubstr;

struct Known {
  checkpoint::TensorFile file;
  at::Tensor tokens, logits;
};

Known known(const std::string& name) {
  Known k{checkpoint::load_safetensors(
              (std::filesystem::path(WEFT_TESTDATA) / (name + ".safetensors")).string()),
          {},
          {}};
  k.tokens = k.file.tensors.extract("tokens").mapped();
  k.logits = k.file.tensors.extract("logits").mapped();
  k.file.tensors.erase("loss");
  return k;
}

// Writes the weights as two files and an index.
void write_folder(const Known& k, const std::string& folder) {
  checkpoint::TensorFile first, second;
  json map = json::object();
  for (const auto& [name, tensor] : k.file.tensors) {
    const bool late = name.find(".1.") != std::string::npos;
    (late ? second : first).tensors[name] = tensor;
    map[name] = late ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
  }
  checkpoint::save_safetensors(folder + "/model-00001-of-00002.safetensors", first);
  checkpoint::save_safetensors(folder + "/model-00002-of-00002.safetensors", second);
  write_file_atomic(folder + "/model.safetensors.index.json",
                    json{{"metadata", json::object()}, {"weight_map", map}}.dump());
  write_file_atomic(folder + "/config.json", k.file.metadata.at("config"));
}

TEST(HuggingFaceConfigText, OfExpertsIsMixtralsAndReadAsItWasWritten) {
  GptOptions o = like_llama({.vocabulary = 96,
                             .layers = 2,
                             .width = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .hidden = 40,
                             .tied = false});
  o.experts = 4;
  o.experts_top_k = 3;
  o.experts_balance = 0.03;
  const TempDir folder;
  write_file_atomic(folder.path() + "/config.json",
                    huggingface_config({.options = o, .begin = {}, .ends = {}}));
  const json text = json::parse(read_file(folder.path() + "/config.json", 1 << 20));
  EXPECT_EQ(text["model_type"], "mixtral");
  EXPECT_EQ(text["num_local_experts"], 4);
  // The balance loss of transformers is top_k times that of a layer, and a mean over two layers.
  EXPECT_DOUBLE_EQ(text["router_aux_loss_coef"], 0.02);
  const GptOptions read = read_huggingface_config(folder.path()).options;
  EXPECT_EQ(huggingface_family(read), HuggingFace::kMixtral);
  EXPECT_EQ(read.experts, 4);
  EXPECT_EQ(read.experts_top_k, 3);
  EXPECT_DOUBLE_EQ(read.experts_balance, 0.03);
}

TEST(HuggingFaceFolder, GivesTransformersLogitsByItsOwnConfig) {
  for (const std::string name : {"gpt2", "llama", "llama3"}) {
    const Known k = known(name);
    const TempDir folder;
    write_folder(k, folder.path());
    const HuggingFaceConfig config = read_huggingface_config(folder.path());
    const auto files = huggingface_files(folder.path());
    ASSERT_EQ(files.size(), 2u);
    for (const int ranks : {1, 2}) {
      replicate(ranks, [&](Group group) {
        Gpt model(config.options, TensorParallel(std::move(group), 1));
        load_huggingface(*model, files);
        const at::Tensor logits =
            parallel::whole_of(model->forward(k.tokens).detach(), {2, 37}, model->tp);
        EXPECT_TRUE(torch::allclose(logits, k.logits, 2e-5, 2e-5))
            << name << ": " << (logits - k.logits).abs().max().item<float>();
        for (const auto& [key, tensor] : get_huggingface(*model))
          EXPECT_TRUE(torch::equal(k.file.tensors.at(key), tensor)) << key;
      });
    }
  }
}

TEST(HuggingFaceFolder, StretchesPositionsAsLlama3Does) {
  const Known k = known("llama3");
  const TempDir folder;
  write_folder(k, folder.path());
  GptOptions options = read_huggingface_config(folder.path()).options;
  EXPECT_EQ(options.rope_scaling.factor, 8);
  options.rope_scaling = {};
  Gpt model(options, TensorParallel());
  set_huggingface(*model, k.file.tensors);
  EXPECT_FALSE(torch::allclose(model->forward(k.tokens), k.logits, 1e-2, 1e-2))
      << "the known answer would not see it";
}

TEST(HuggingFaceFolder, ItsConfigIsReadBackAsWritten) {
  for (const std::string name : {"gpt2", "llama", "llama3"}) {
    const Known k = known(name);
    const TempDir theirs, ours;
    write_folder(k, theirs.path());
    const HuggingFaceConfig config = read_huggingface_config(theirs.path());
    write_file_atomic(ours / "config.json", huggingface_config(config));
    const json written = json::parse(huggingface_config(config)),
               original = json::parse(k.file.metadata.at("config"));
    for (const auto& [key, value] : written.items()) {
      const bool elsewhere = key == "architectures" || key == "torch_dtype" ||
                             key.starts_with("rope_") || key == "n_inner";
      if (elsewhere) continue;
      EXPECT_EQ(value, original.at(key)) << name << ": " << key;
    }
    EXPECT_EQ(huggingface_config(read_huggingface_config(ours.path())), huggingface_config(config));
    EXPECT_EQ(config.ends, name == "gpt2"    ? std::vector<std::int64_t>{0}
                           : name == "llama" ? std::vector<std::int64_t>{2}
                                             : std::vector<std::int64_t>({2, 3}));
  }
}

// Returns the error of reading the folder after one change of llama3's config.json.
std::string refusal(const std::string& pointer, const json& value) {
  const TempDir folder;
  json config = json::parse(known("llama3").file.metadata.at("config"));
  config[json::json_pointer(pointer)] = value;
  write_file_atomic(folder / "config.json", config.dump());
  try {
    read_huggingface_config(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_THAT(error.what(), HasSubstr("config.json: "));
    return error.what();
  }
  return "accepted";
}

TEST(HuggingFaceFolder, RefusesAModelThatItWouldComputeWrongly) {
  EXPECT_THAT(
      refusal("/model_type", "gemma"),
      HasSubstr("model_type = \"gemma\" is not supported; weft has gpt2, llama and mixtral"));
  EXPECT_THAT(refusal("/hidden_act", "gelu"), HasSubstr("hidden_act = \"gelu\""));
  EXPECT_THAT(refusal("/mlp_bias", true), HasSubstr("mlp_bias = true is not supported"));
  EXPECT_THAT(refusal("/rope_parameters/rope_type", "yarn"),
              HasSubstr("rope_type = \"yarn\" is not supported; weft has default and llama3"));
  EXPECT_THAT(refusal("/rope_parameters/rope_type", nullptr),
              HasSubstr("rope_parameters: rope_type is missing beside factor"));
  EXPECT_THAT(refusal("/rope_parameters/factor", nullptr),
              HasSubstr("rope_parameters: factor is missing"));
  EXPECT_THAT(refusal("/rope_scaling", json{{"rope_type", "default"}}),
              HasSubstr("is not that of rope_parameters; keep one of them"));
  EXPECT_THAT(refusal("/rope_parameters/partial_rotary_factor", 0.5),
              HasSubstr("partial_rotary_factor = 0.5 is not supported; weft has 1 only"));
  EXPECT_THAT(refusal("/partial_rotary_factor", 0.5), HasSubstr("weft has 1 only"));
  EXPECT_EQ(refusal("/partial_rotary_factor", 1.0), "accepted");
  EXPECT_THAT(refusal("/quantization_config", json::object()), HasSubstr("quantization_config"));
  EXPECT_THAT(refusal("/hidden_size", "16"),
              HasSubstr("hidden_size = \"16\" must be a whole number"));
  EXPECT_THAT(refusal("/vocab_size", 0), HasSubstr("vocab_size = 0 must be"));
  EXPECT_THAT(refusal("/tie_word_embeddings", 1), HasSubstr("must be true or false"));
  EXPECT_THAT(refusal("/eos_token_id", 37), HasSubstr("eos_token_id = 37 is not a token"));
  EXPECT_EQ(refusal("/use_cache", false), "accepted");
}

TEST(HuggingFaceFolder, GivesMissingKeysTheValuesOfTheirFamily) {
  json config{{"vocab_size", 32},          {"hidden_size", 64},       {"num_hidden_layers", 1},
              {"num_attention_heads", 16}, {"intermediate_size", 96}, {"num_local_experts", 4}};
  config["model_type"] = "mixtral";
  const GptOptions mixtral = parse_huggingface_config(config.dump(), "config.json").options;
  EXPECT_EQ(mixtral.kv_heads, 8);
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  config["model_type"] = "llama";
  const GptOptions llama = parse_huggingface_config(config.dump(), "config.json").options;
  EXPECT_EQ(llama.kv_heads, 16);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.rope_theta, 1e4);
}

TEST(HuggingFaceFolder, RefusesIntegersAsWeights) {
  const Known k = known("llama3");
  const TempDir folder;
  write_folder(k, folder.path());
  const HuggingFaceConfig config = read_huggingface_config(folder.path());
  const std::string name = "model.layers.0.mlp.up_proj.weight", file = folder / "model.safetensors";
  auto tensors = k.file.tensors;
  tensors.at(name) = tensors.at(name).to(torch::kInt8);
  checkpoint::save_safetensors(file, {tensors, {}});
  const std::string what = "\"" + name + "\" is int8; weft reads float64";
  Gpt model(config.options, TensorParallel());
  const at::Tensor before = model->parameters()[0].clone();
  expect_refused([&] { set_huggingface(*model, tensors); }, Errc::kInvalidArgument, what);
  expect_refused([&] { load_huggingface(*model, {file}); }, Errc::kInvalidArgument, what);
  expect_refused([&] { huggingface_source(config.options, {file}); }, Errc::kInvalidArgument, what);
  EXPECT_TRUE(torch::equal(model->parameters()[0], before));
}

TEST(HuggingFaceFolder, RefusesAnIndexThatNamesAMissingFile) {
  const TempDir folder;
  write_file_atomic(folder / "model.safetensors.index.json",
                    R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  expect_refused([&] { huggingface_files(folder.path()); }, Errc::kInvalidArgument,
                 "index.json names model-00001-of-00002.safetensors, which is not in the folder");
}

// The hub's cache consists of links.
TEST(HuggingFaceFolder, NamesALinkThatLeadsNowhere) {
  const TempDir folder;
  const std::string whole = folder / "model.safetensors", part = folder / "model-1.safetensors";
  std::filesystem::create_symlink("../../blobs/12ab", whole);
  const auto files = [&] { huggingface_files(folder.path()); };
  expect_refused(files, Errc::kInvalidArgument,
                 whole + " is a link that leads nowhere, to ../../blobs/12ab; download");
  std::filesystem::rename(whole, part);
  write_file_atomic(folder / "model.safetensors.index.json",
                    R"({"weight_map": {"a": "model-1.safetensors"}})");
  expect_refused(files, Errc::kInvalidArgument, part + " is a link that leads nowhere");
}

TEST(HuggingFaceFolder, RefusesAFolderWithoutWeightsAndAnIndexThatLeavesIt) {
  const TempDir folder;
  EXPECT_THROW(read_huggingface_config(folder.path()), Error);
  EXPECT_THROW(huggingface_files(folder.path()), Error);
  write_file_atomic(folder / "config.json", "{");
  EXPECT_THROW(read_huggingface_config(folder.path()), Error);
  const auto index = [&](const std::string& text) -> std::string {
    write_file_atomic(folder / "model.safetensors.index.json", text);
    try {
      huggingface_files(folder.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(index(R"({"weight_map": {"a": "../secret"}})"),
              HasSubstr("\"a\" is in no file of the folder"));
  EXPECT_THAT(index(R"({"weight_map": {}})"), HasSubstr("names no files"));
  EXPECT_THAT(index("["), HasSubstr("not JSON"));
}

}  // namespace huggingface_test
}  // namespace weft::models
