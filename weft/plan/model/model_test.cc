// Compares parameter counts with the published ones, and operations with the formulas of papers.
#include "weft/plan/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/testing/decimal_comma.h"
#include "weft/base/testing/refusal.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/model/profile.h"

namespace weft::plan {
namespace model_test {

using testing::HasSubstr;

Model gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab) {
  Model m = default_model("gpt");
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.vocab = vocab;
  return m;
}

Model llama(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t kv_heads) {
  Model m = default_model("llama");
  m.layers = layers;
  m.hidden = hidden;
  m.ffn = ffn;
  m.heads = hidden / 128;
  m.kv_heads = kv_heads;
  return m;
}

// Sums over the modules of Hugging Face's and torchvision's models.
TEST(Parameters, OfKnownModelsAreThePublishedCounts) {
  EXPECT_EQ(parameters(default_model("gpt")), 124'439'808);          // GPT-2 small
  EXPECT_EQ(parameters(llama(32, 4096, 14336, 8)), 8'030'261'248);   // Llama 3 8B
  EXPECT_EQ(parameters(llama(80, 8192, 28672, 8)), 70'553'706'496);  // Llama 3 70B
  EXPECT_EQ(parameters(default_model("bert")), 110'106'428);         // BertForPreTraining
  EXPECT_EQ(parameters(default_model("vit")), 86'567'656);           // ViT-B/16
  EXPECT_EQ(parameters(default_model("resnet18")), 11'689'512);
  EXPECT_EQ(parameters(default_model("resnet50")), 25'557'032);
  EXPECT_EQ(parameters(default_model("resnet101")), 44'549'160);
}

// As above, and those that the model cards give.
TEST(Parameters, OfWellKnownModelsAreThePublishedCounts) {
  const auto count = [](const char* name) {
    const auto known = known_model(name);
    EXPECT_TRUE(known) << name;
    return known ? parameters(*known) : 0;
  };
  EXPECT_EQ(count("GPT-2 medium"), 354'823'168);
  EXPECT_EQ(count("gpt2-large"), 774'030'080);
  EXPECT_EQ(count("gpt2_xl"), 1'557'611'200);
  EXPECT_NEAR(count("GPT-3 175B"), 175e9, 1e9);
  EXPECT_NEAR(count("GPT-3 1.3B"), 1.3e9, 0.05e9);
  EXPECT_NEAR(count("OPT-30B"), 30e9, 0.3e9);
  EXPECT_NEAR(count("bloom-7b1"), 7'069'016'064, 10e6);
  EXPECT_NEAR(count("bloom"), 176'247'271'424, 50e6);
  EXPECT_EQ(count("Llama 2 7B"), 6'738'415'616);
  EXPECT_EQ(count("llama-2-70b"), 68'976'648'192);
  EXPECT_EQ(count("llama-65b"), 65'285'660'672);
  EXPECT_EQ(count("Llama 3.2 1B"), 1'235'814'400);
  EXPECT_EQ(count("Llama 3.2 3B"), 3'212'749'824);
  EXPECT_EQ(count("Llama 3.1 405B"), 405'853'388'800);
  EXPECT_EQ(count("Mistral 7B"), 7'241'732'096);
  EXPECT_EQ(count("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(count("BERT large"), 336'226'108);
  EXPECT_EQ(count("ViT-L/16"), 304'326'632);
  EXPECT_EQ(count("vit_h_14"), 632'045'800);
  EXPECT_EQ(count("ViT-B/32"), 88'224'232);
  EXPECT_FALSE(known_model("llama-2-71b"));
  // Without the biases of convolutions.
  EXPECT_NEAR(parameters(default_model("VGG16")), 138'357'544, 10'000);
  EXPECT_NEAR(parameters(default_model("vgg19")), 143'667'240, 10'000);
  EXPECT_NEAR(model_flops(default_model("vgg16")), 3 * 2 * 15.47e9, 0.1e9);
}

// GPipe, table 1, and torchgpipe's README.
// Counts of the model cards, in 1e9. DeepSeek-V3: 671 without the block that predicts ahead.
TEST(Parameters, OfMixturesOfExpertsAreThoseOfTheirModelCards) {
  const auto count = [](const char* name) { return parameters(known_model(name).value()) / 1e9; };
  Model deepseek = known_model("DeepSeek V3").value();
  const double whole = parameters(deepseek) / 1e9;
  deepseek.predicts = 0;
  EXPECT_NEAR(parameters(deepseek) / 1e9, 671, 1);
  EXPECT_NEAR(whole, 671 + 11.5, 1);
  EXPECT_NEAR(count("Kimi K2"), 1026, 2);
  EXPECT_NEAR(count("Qwen3 30B-A3B"), 30.5, 0.1);
  EXPECT_NEAR(count("Qwen3-235B-A22B"), 235, 0.5);
  EXPECT_NEAR(count("gpt-oss-120b"), 116.8, 0.2);
  EXPECT_NEAR(count("gpt-oss-20b"), 20.9, 0.1);
  EXPECT_NEAR(count("Nemotron 3 Nano"), 31.6, 0.1);
  Model large = known_model("Nemotron 3 Super").value();
  large.predicts = 0;
  EXPECT_NEAR(parameters(large) / 1e9, 120.6, 1);
}

// bench/published/megatron_bridge.csv, release 26.08: FLOP/s over tokens/s. The table counts causal
// attention by half.
TEST(ModelFlops, OfHybridAndMixedModelsAreThoseOfMegatronBridge) {
  const auto flops = [](const char* name) {
    const Model m = complete(known_model(name).value());
    return model_flops(m) / static_cast<double>(positions(m));
  };
  EXPECT_NEAR(flops("Nemotron 3 Nano"), 901e12 / 39936, 0.05 * flops("Nemotron 3 Nano"));
  EXPECT_NEAR(flops("Nemotron 3 Super"), 831e12 / 9856, 0.05 * flops("Nemotron 3 Super"));
  const double half = 6 * 61 * 4096.0 * 128 * 160;  // Of the attention of DeepSeek-V3, roughly.
  EXPECT_NEAR(flops("DeepSeek V3") - half, 1635e12 / 6288, 0.05 * flops("DeepSeek V3"));
}

TEST(Complete, RefusesPatternsWithUnknownLayersAndMixturesWithoutExperts) {
  Model m = known_model("Nemotron 3 Nano").value();
  m.pattern = "MEX";
  expect_refused([&] { complete(m); }, Errc::kInvalidArgument, "must consist of M, *, E and -");
  m.pattern = "ME";
  EXPECT_EQ(complete(m).layers, 2);
  m.experts = 0;
  expect_refused([&] { complete(m); }, Errc::kInvalidArgument, "give experts and top_k");
}

// LoRA leaves no gradient of a weight to compute, and a small share of parameters to train.
TEST(Blocks, OfAdaptersHaveFrozenWeights) {
  Model m = known_model("llama3 8b").value();
  m.adapter = 32;
  int frozen = 0;
  const Blocks blocks = blocks_of(m, {});
  for (const Operator& op : blocks[1]->operators)
    if (op.kind == OperatorKind::kMatmul && op.has_weights) frozen += op.frozen ? 1 : 100;
  EXPECT_GE(frozen, 4);
  EXPECT_LT(frozen, 100);
  EXPECT_LT(trained_share(m), 0.02);
  EXPECT_EQ(trained_share(known_model("llama3 8b").value()), 1);
}

TEST(Parameters, OfAmoebaNetAndUNetAreThoseOfGPipesTables) {
  const auto amoebanet = [](std::int64_t layers, std::int64_t filters) {
    Model m = default_model("amoebanet-d");
    m.layers = layers;
    m.base = filters;
    return parameters(m);
  };
  EXPECT_NEAR(amoebanet(18, 208), 81.5e6, 0.01 * 81.5e6);
  EXPECT_NEAR(amoebanet(18, 544), 542.7e6, 0.02 * 542.7e6);
  EXPECT_NEAR(amoebanet(72, 512), 1840e6, 0.02 * 1840e6);
  const auto unet = [](std::int64_t convs, std::int64_t base) {
    Model m = default_model("unet");
    m.convs = convs;
    m.base = base;
    return parameters(m);
  };
  EXPECT_NEAR(unet(11, 128), 2.21e9, 0.02 * 2.21e9);
  EXPECT_NEAR(unet(24, 160), 7.80e9, 0.02 * 7.80e9);
}

// alpa_osdi22_e2e.csv.
TEST(Parameters, OfAlpasMixturesAndWideResNetsAreThoseOfItsTables) {
  const auto moe = [](std::int64_t layers, std::int64_t hidden, std::int64_t experts) {
    Model m = default_model("moe");
    m.layers = layers;
    m.hidden = hidden;
    m.heads = 16;
    m.experts = experts;
    return parameters(m);
  };
  EXPECT_NEAR(moe(8, 768, 8), 0.3835e9, 0.005 * 0.3835e9);
  EXPECT_NEAR(moe(16, 1024, 16), 2.383e9, 0.005 * 2.383e9);
  EXPECT_NEAR(moe(16, 2048, 48), 26.6481e9, 0.005 * 26.6481e9);
  const auto wide = [](std::int64_t base, std::int64_t factor) {
    Model m = default_model("wresnet");
    m.base = base;
    m.factor = factor;
    return parameters(m);
  };
  EXPECT_NEAR(wide(224, 2), 0.495e9, 0.01 * 0.495e9);
  EXPECT_NEAR(wide(448, 2), 1.965e9, 0.01 * 1.965e9);
  EXPECT_NEAR(wide(320, 16), 6.7277e9, 0.01 * 6.7277e9);
}

// P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)): Narayanan et al. SC 2021, equation 2. It leaves out
// the last norm.
TEST(Parameters, OfGptMatchTheFormulaOfMegatron) {
  for (const auto& [l, h, a] : {std::tuple{24, 2304, 24}, {96, 12288, 96}, {128, 25600, 160}}) {
    const double L = l, H = h, V = 51200, S = 1024;
    const double formula = 12 * L * H * H * (1 + 13 / (12 * H) + (V + S) / (12 * L * H));
    EXPECT_NEAR(parameters(gpt(l, h, a, 51200)), formula + 2 * H, 1e-9 * formula);
  }
}

// F = 72 B s l h^2 (1 + s/(6h) + V/(12lh)): Korthikanti et al. 2022, equation 7.
TEST(ModelFlops, OfGptMatchTheFormulaOfTheNumeratorOfMfu) {
  Model m = gpt(96, 12288, 96, 51200);
  m.sequence = 2048;
  const double l = 96, h = 12288, s = 2048, v = 51200;
  const double formula = 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  EXPECT_NEAR(model_flops(m), formula, 1e-9 * formula);
}

// torchvision: 4.09 and 1.81 G multiply-adds in forward.
TEST(ModelFlops, OfResNetsAreThoseOfTorchvision) {
  EXPECT_NEAR(model_flops(default_model("resnet50")) / 6, 4.09e9, 0.01 * 4.09e9);
  EXPECT_NEAR(model_flops(default_model("resnet18")) / 6, 1.81e9, 0.01 * 1.81e9);
}

TEST(DefaultModel, TakesOtherNamesOfAFamilyAndNamesTheNearestForATypo) {
  EXPECT_EQ(default_model("GPT-3").family, Family::kGpt);
  EXPECT_EQ(default_model("Llama 3.1 8B").family, Family::kLlama);
  EXPECT_EQ(default_model("W-ResNet"), default_model("wresnet"));
  EXPECT_EQ(default_model("ResNet50 v1.5").layers, 50);
  expect_refused([] { default_model("resnet5O"); }, Errc::kInvalidArgument,
                 "did you mean resnet50");
  expect_refused([] { default_model("transformer-xl"); }, Errc::kInvalidArgument, "use one of gpt");
}

// Radford et al. 2019; Devlin et al. 2018; Dosovitskiy et al. 2020.
TEST(Complete, GivesTheHeadsOfGpt2BertAndVit) {
  EXPECT_EQ(complete(default_model("gpt")).heads, 12);
  EXPECT_EQ(complete(gpt(36, 1280, 0, 50257)).heads, 20);
  EXPECT_EQ(complete(gpt(48, 1600, 0, 50257)).heads, 25);
  EXPECT_EQ(complete(default_model("bert")).heads, 12);
  EXPECT_EQ(complete(default_model("vit")).heads, 12);
}

TEST(Complete, FillsDefaultsAndRefusesSizesThatCannotBe) {
  Model m = gpt(24, 14336, 0, 50257);
  EXPECT_EQ(complete(m).heads, 112);  // 128 features each
  m.hidden = 14400;
  EXPECT_EQ(complete(m).heads, 96);
  m.heads = 7;
  expect_refused([&] { complete(m); }, Errc::kInvalidArgument, "does not divide hidden");
  m = gpt(0, 768, 12, 50257);
  expect_refused([&] { complete(m); }, Errc::kInvalidArgument, "model.layers is 0");
  m = gpt(12, 768, 12, 50257);
  m.kv_heads = 5;
  expect_refused([&] { complete(m); }, Errc::kInvalidArgument, "kv_heads");
}

// Bytes that a layer keeps: Korthikanti et al. 2022, equations 1 and 2, table 2.
TEST(Blocks, KeepTheActivationsOfThePaper) {
  Model m = gpt(2, 6144, 64, 51200);
  m.sequence = 2048;
  const double s = 2048, b = 4, h = 6144, a = 64;
  Split split{.micro_batch = b, .precision = Precision::kFp16, .software = software("megatron")};
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_all, s * b * h * (34 + 5 * a * s / h));
  split.tp = 8;
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_all,
                   s * b * h * (10 + 24.0 / 8 + 5 * a * s / (h * 8)));
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_selective, s * b * h * (10 + 24.0 / 8));
  split.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_all, s * b * h / 8 * (34 + 5 * a * s / h));
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_selective, s * b * h / 8 * 34);
  EXPECT_DOUBLE_EQ(blocks_of(m, split)[1]->kept_input, 2 * s * b * h / 8);
}

// The dense blocks of DeepSeek-V3 are nine times as wide as its experts.
TEST(Blocks, WithoutExpertsKeepTheActivationsOfTheirOwnWidth) {
  const Model mixed = known_model("DeepSeek V3").value();
  Model dense = mixed;
  dense.ffn = mixed.dense_ffn;
  dense.experts = dense.dense_layers = dense.dense_ffn = dense.shared_ffn = 0;
  for (const char* framework : {"megatron_core", "torchtitan"}) {
    for (const bool compiled : {false, true}) {
      Split split = {.micro_batch = 1, .tp = 8, .software = software(framework)};
      split.software.compiled = compiled;
      const auto block = blocks_of(mixed, split)[1], other = blocks_of(dense, split)[1];
      EXPECT_EQ(block->kept_all, other->kept_all) << framework;
      EXPECT_EQ(block->kept_selective, other->kept_selective) << framework;
      EXPECT_EQ(block->transient, other->transient) << framework;
      EXPECT_EQ(block->parameters, other->parameters) << framework;
    }
  }
  Model odd = mixed;
  odd.dense_ffn = 18433;
  expect_refused([&] { blocks_of(odd, {.tp = 8}); }, Errc::kInvalidArgument,
                 "tp = 8 does not divide dense_ffn = 18433");
}

TEST(Blocks, OfAllRanksTogetherHaveTheParametersOfTheModel) {
  for (const char* family : {"gpt", "llama", "moe", "bert"}) {
    const Model m = complete(default_model(family));
    Split split{.micro_batch = 1, .tp = 4, .software = software("megatron")};
    double sum = 0;
    for (const auto& block : blocks_of(m, split))
      sum += (block->parameters + block->expert_parameters) * split.tp;
    // Norms and positions are whole on every rank, the vocabulary is padded.
    EXPECT_NEAR(sum, parameters(m), 0.05 * parameters(m)) << family;
  }
}

// Forward of a layer: 24 b s h^2 + 4 b s^2 h (Narayanan et al. SC 2021, appendix).
TEST(Blocks, HaveTheOperationsOfTheLayer) {
  Model m = gpt(1, 1024, 16, 51200);
  const double s = 1024, b = 2, h = 1024;
  const Split split{.micro_batch = b, .software = software("megatron")};
  const auto blocks = blocks_of(m, split);
  double sum = 0;
  for (const Operator& op : blocks[1]->operators) sum += forward_flops(op);
  EXPECT_DOUBLE_EQ(sum, 24 * b * s * h * h + 4 * b * s * s * h);
}

// How often a layer gathers its inputs over tp in backward, beyond the gathers of gradients.
double further_gathers(const char* framework) {
  const Split split{
      .micro_batch = 1, .tp = 8, .sequence_parallel = true, .software = software(framework)};
  const auto block = blocks_of(llama(1, 4096, 14336, 8), split)[1];
  double count = 0;
  for (const Exchange& e : block->exchanges)
    if (e.kind == ExchangeKind::kAllGather) count += e.selective + e.backward - e.forward;
  return count;
}

// Korthikanti et al. 2022, section 4.2.2; torchtitan's _save_list; nanotron keeps them.
TEST(Blocks, WithASplitSequenceGatherTheirInputsAgainAsTheFrameworkDoes) {
  EXPECT_EQ(further_gathers("megatron"), 2);
  EXPECT_EQ(further_gathers("torchtitan"), 2);
  EXPECT_EQ(further_gathers("nanotron"), 0);
}

double sum_bytes_of_parameter(const char* framework, Precision precision) {
  const Split split{.micro_batch = 1, .precision = precision, .software = software(framework)};
  const auto block = blocks_of(gpt(1, 1024, 16, 51200), split)[1];
  double bytes = 0;
  for (const Operator& op : block->operators)
    if (op.name == "gradient sums") bytes += op.backward_bytes;
  return bytes / block->parameters;
}

// Smith et al. 2022 (MT-NLG), section 2.1: gradients of 2 bytes and of 4 bytes. DeepSpeed's
// update_hp_grads() copies (2 + 4 bytes) and adds (4 + 4 + 4 bytes).
TEST(Blocks, AddGradientsToAFloat32SumWhereTheFrameworkDoesSoForBfloat16) {
  EXPECT_EQ(sum_bytes_of_parameter("megatron_deepspeed", Precision::kBf16), 18);
  EXPECT_EQ(sum_bytes_of_parameter("megatron_deepspeed", Precision::kFp16), 0);
  EXPECT_EQ(sum_bytes_of_parameter("megatron", Precision::kBf16), 0);
}

TEST(Blocks, RefuseASplitThatDoesNotDivideWithTheNearestThatDoes) {
  const Model m = gpt(2, 768, 12, 50257);
  expect_refused([&] { blocks_of(m, {.tp = 8}); }, Errc::kInvalidArgument,
                 "tp = 8 does not divide heads = 12; use tp = 6");
  expect_refused([&] { blocks_of(m, {.ep = 2}); }, Errc::kInvalidArgument, "ep = 2 needs a model");
  expect_refused([] { blocks_of(default_model("resnet50"), {.tp = 2}); }, Errc::kInvalidArgument,
                 "no tp");
}

TEST(Software, IsFoundByNameAndATypoNamesTheNearest) {
  EXPECT_EQ(software("Megatron-DeepSpeed").name, "megatron_deepspeed");
  expect_refused([] { software("megatrom"); }, Errc::kInvalidArgument, "did you mean megatron");
}

TEST(Profile, IsTheSameFileInEachLocale) {
  const Profile profile{.batches = {1, 2048},
                        .blocks = {{.name = "a",
                                    .forward = {2.5e-6, 0.004},
                                    .backward = {5e-6, 0.008},
                                    .parameters = 1000}}};
  const std::string text = to_toml(profile);
  const DecimalComma locale;
  EXPECT_EQ(to_toml(profile), text);
}

TEST(ParsePrecision, TakesTheNamesOfTables) {
  EXPECT_EQ(parse_precision("fp16/mixed"), Precision::kFp16);
  EXPECT_EQ(parse_precision("amp"), Precision::kFp16);
  EXPECT_EQ(parse_precision("bf16, fp32 grad accumulation"), Precision::kBf16);
  EXPECT_EQ(parse_precision("Float8"), Precision::kFp8);
  expect_refused([] { parse_precision("int8"); }, Errc::kInvalidArgument, "precision");
}

}  // namespace model_test
}  // namespace weft::plan
