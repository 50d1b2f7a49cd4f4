// Lines of JSON: defaults, names of other tools, and mistakes.
#include "weft/plan/scenario/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cluster/cluster_file.h"
#include "weft/plan/model/model.h"
#include "weft/plan/model/profile.h"

namespace weft::plan {
namespace scenario_test {

using nlohmann::json;
using testing::HasSubstr;

Scenario parse(const std::string& line) { return parse_scenario(line, "line 1"); }

json answer(const std::string& line) { return json::parse(answer_line(line, "line 1").json); }

void expect_bad(const std::string& line, Errc code, const std::string& part) {
  expect_refused([&] { parse(line); }, code, part);
}

TEST(Scenario, OfThreeNamesGetsDefaultsForAllElse) {
  const Scenario s = parse(
      R"({"model": {"family": "gpt"}, "cluster": {"system": "Selene DGX A100", "nodes": 2}})");
  EXPECT_EQ(devices(s.job.cluster), 16);
  EXPECT_EQ(s.job.layout.dp, 16);
  EXPECT_EQ(s.job.layout.precision, Precision::kBf16);
  EXPECT_EQ(s.job.software.name, "megatron");
  EXPECT_EQ(s.job.optimizer.name, "adam");
  EXPECT_FALSE(s.notes.empty());
}

// A host that launches each kernel makes mixtures slower; one graph of all of them makes them
// faster. Hidden all-to-alls make no layout slower.
TEST(Scenario, OfAMixtureDependsOnItsCudaGraphs) {
  const auto seconds = [](const char* graphs, bool hidden) {
    return simulate_step(
               parse_scenario(json{{"model", {{"name", "qwen3 30b-a3b"}}},
                                   {"cluster", {{"accelerator", "B200 SXM"}, {"nodes", 1}}},
                                   {"plan",
                                    {{"dp", 8},
                                     {"ep", 8},
                                     {"micro_batch", 1},
                                     {"global_batch", 64},
                                     {"precision", "mxfp8"},
                                     {"software", "megatron"},
                                     {"cuda_graphs", graphs},
                                     {"overlap_experts", hidden}}}}
                                  .dump(),
                              "x")
                   .job)
        .seconds;
  };
  EXPECT_GT(seconds("none", false), 1.3 * seconds("partial", false));
  EXPECT_GT(seconds("partial", false), 1.3 * seconds("full", false));
  EXPECT_LT(seconds("full", true), seconds("full", false));
  expect_refused([&] { seconds("some", false); }, Errc::kInvalidArgument,
                 "use none, partial or full");
}

// Megatron-Core since 2023: distributed optimizer, sequence parallelism, interleaved stages of two
// layers. Megatron-LM of 2021 has none of them.
TEST(Scenario, OfMegatronHasTheVersionOfItsHardware) {
  const auto layout_on = [](const char* accelerator) {
    return parse_scenario(
               json{{"model", {{"family", "gpt"}, {"layers", 96}, {"hidden", 12288}}},
                    {"cluster", {{"accelerator", accelerator}, {"nodes", 12}}},
                    {"plan",
                     {{"tp", 8}, {"pp", 6}, {"global_batch", 1152}, {"software", "Megatron"}}}}
                   .dump(),
               "x")
        .job;
  };
  const Job hopper = layout_on("H100 SXM 80GB"), ampere = layout_on("A100 SXM 80GB");
  EXPECT_EQ(hopper.software.name, "megatron_core");
  EXPECT_EQ(hopper.layout.zero_stage, 1);
  EXPECT_EQ(hopper.layout.virtual_stages, 8);
  EXPECT_TRUE(hopper.layout.sequence_parallel);
  EXPECT_EQ(ampere.software.name, "megatron");
  EXPECT_EQ(ampere.layout.zero_stage, 0);
  EXPECT_EQ(ampere.layout.virtual_stages, 1);
  EXPECT_FALSE(ampere.layout.sequence_parallel);
}

TEST(Scenario, WithoutNodesHasAsManyAsThePlanNeeds) {
  const Scenario s = parse(R"({"model": {"family": "llama"}, "cluster": {"accelerator": "H100"},
                               "plan": {"tp": 8, "pp": 4, "dp": 2, "micro_batch": 1}})");
  EXPECT_EQ(num_nodes(s.job.cluster), 8);
  EXPECT_EQ(s.job.layout.global_batch, 2 * 4 * 4);
}

TEST(Scenario, HasTheNumberOfDevicesThatIsGivenOrIsRefused) {
  const std::string model = R"({"model": {"family": "gpt"}, "cluster": )";
  const auto a100 = [&](const std::string& fields) {
    return model + R"({"accelerator": "A100", )" + fields + "}}";
  };
  EXPECT_EQ(devices(parse(a100(R"("gpus": 24)")).job.cluster), 24);
  EXPECT_EQ(devices(parse(a100(R"("gpus": 12, "per_node": 4)")).job.cluster), 12);
  expect_bad(a100(R"("gpus": 12)"), Errc::kInvalidArgument,
             "cluster.gpus is 12, but the nodes of the cluster have 16 devices");
  EXPECT_THAT(parse(a100(R"("gpus": 12, "nodes": 2)")).notes,
              testing::Contains("ignored cluster.gpus, since cluster.nodes is given"));
  const TempDir folder;
  const std::string file = folder / "cluster.toml";
  write_file_atomic(file, to_toml(cluster_of_accelerator("A100 SXM 80GB", 2, 4)));
  const auto with_file = [&](const std::string& gpus) {
    return model + R"({"file": ")" + file + R"(", "gpus": )" + gpus + "}}";
  };
  EXPECT_EQ(devices(parse(with_file("8")).job.cluster), 8);
  expect_bad(with_file("16"), Errc::kInvalidArgument,
             "cluster.gpus is 16, but the nodes of the cluster have 8 devices");
}

TEST(Scenario, CountsExpertsInsideDataParallelismIfTheAxesSaySo) {
  const std::string head = R"({"model": {"family": "moe"}, "cluster": {"accelerator": "V100 SXM2",
                              "nodes": 1, "per_node": 8}, "plan": )";
  EXPECT_EQ(parse(head + R"({"dp": 8, "ep": 8}})").job.layout.dp, 1);
  EXPECT_EQ(parse(head + R"({"dp": 2, "ep": 4}})").job.layout.dp, 2);
  EXPECT_EQ(parse(head + R"({"ep": 8}})").job.layout.ep, 8);
}

TEST(Scenario, TakesNullsNumbersWithPointsAndNamesOfOtherTools) {
  const Scenario s = parse(
      R"({"model": {"family": "gpt", "num_layers": 24.0, "hidden_size": 1024, "heads": null},
          "cluster": {"system": "DLPerf cluster", "nodes": 1, "per_node": 8},
          "plan": {"data_parallel": 8, "micro_batch_size": 4, "global_batch_size": 32,
                   "recompute": true, "precision": "amp"}})");
  EXPECT_EQ(s.job.model.layers, 24);
  EXPECT_EQ(s.job.layout.recompute, Recompute::kFull);
  EXPECT_EQ(s.job.layout.precision, Precision::kFp16);
}

TEST(Scenario, KnowsModelsBySizeAndName) {
  const auto model = [](const std::string& fields) {
    return parse(R"({"model": {)" + fields + R"(}, "cluster": {"accelerator": "A100"}})").job.model;
  };
  EXPECT_EQ(model(R"("family": "llama-2", "size": "70B")").layers, 80);
  EXPECT_EQ(model(R"("family": "bert-large")").hidden, 1024);
  EXPECT_EQ(model(R"("name": "Mixtral 8x7B")").experts, 8);
  EXPECT_EQ(model(R"("family": "resnet", "size": "101")").layers, 101);
  // Sizes that are given hold; then `size` is what a table calls the model.
  EXPECT_EQ(model(R"("family": "gpt", "layers": 60, "hidden": 10240, "size": "76B")").layers, 60);
  expect_bad(R"({"model": {"family": "llama", "size": "71B"}, "cluster": {"accelerator": "A100"}})",
             Errc::kInvalidArgument, "model.size \"71B\" of \"llama\" is not known");
  const Scenario s =
      parse(R"({"model": {"family": "megatron"}, "cluster": {"accelerator": "A100"}})");
  EXPECT_THAT(s.notes, testing::Contains("family megatron counts as gpt"));
}

TEST(Scenario, IgnoresUnknownFieldsAndSaysSo) {
  const Scenario s = parse(
      R"({"model": {"family": "gpt", "color": 3}, "cluster": {"accelerator": "A100"}, "x": 1})");
  EXPECT_THAT(s.notes, testing::Contains(HasSubstr("ignored model.color")));
  EXPECT_THAT(s.notes, testing::Contains("ignored x"));
}

TEST(Scenario, ThatIsNonsenseIsRefusedWithTheField) {
  const std::string model = R"({"model": {"family": "gpt"}, "cluster": )";
  const std::string a100 = R"({"accelerator": "A100", "nodes": 1, "per_node": 8})";
  expect_bad("{", Errc::kCorrupt, "line 1");
  expect_bad("[1, 2]", Errc::kCorrupt, "object");
  expect_bad("{}", Errc::kInvalidArgument, "no \"model\"");
  expect_bad(model + "{}}", Errc::kInvalidArgument, "\"system\", \"accelerator\" or \"file\"");
  expect_bad(model + R"({"accelerator": "A100", "nodes": 0}})", Errc::kInvalidArgument,
             "cluster.nodes");
  expect_bad(model + R"({"accelerator": "A100", "nodes": -1}})", Errc::kInvalidArgument,
             "cluster.nodes");
  expect_bad(model + R"({"accelerator": 7}})", Errc::kInvalidArgument, "not known");
  expect_bad(model + a100 + R"(, "plan": {"tp": 3}})", Errc::kInvalidArgument,
             "have 3 ranks, but the cluster has 8");
  expect_bad(model + a100 + R"(, "plan": {"dp": 5}})", Errc::kInvalidArgument, "use dp = 8");
  expect_bad(model + a100 + R"(, "plan": {"tp": "two"}})", Errc::kInvalidArgument,
             "plan.tp must be a number");
  expect_bad(model + a100 + R"(, "plan": {"tp": 2.5}})", Errc::kInvalidArgument, "whole number");
  expect_bad(model + a100 + R"(, "plan": {"micro_batch": 0}})", Errc::kInvalidArgument,
             "micro_batch");
  expect_bad(model + a100 + R"(, "plan": {"precision": "int3"}})", Errc::kInvalidArgument,
             "precision");
  expect_bad(model + a100 + R"(, "plan": {"schedule": "2f2b"}})", Errc::kInvalidArgument, "1f1b");
  expect_bad(model + R"({"file": "no/such.toml"}})", Errc::kInvalidArgument, "no/such.toml");
  expect_bad(R"({"model": {"family": "gpt", "layers": 1e12}, "cluster": )" + a100 + "}",
             Errc::kInvalidArgument, "model.layers");
  EXPECT_THAT(
      answer_line(R"({"model": {"family": "resnet", "layers": 20}, "cluster": )" + a100 + "}", "x")
          .error,
      HasSubstr("model.layers = 20 is no ResNet; use 18, 34"));
}

TEST(AnswerLine, HasTheFieldsOfTheInterface) {
  const json a = answer(R"({"id": 7, "model": {"family": "gpt", "layers": 24, "hidden": 2304,
      "heads": 24, "vocab": 51200, "sequence": 2048}, "cluster": {"system": "Selene DGX A100",
      "nodes": 4}, "plan": {"dp": 32, "micro_batch": 16, "global_batch": 512,
      "recompute": "full", "precision": "fp16"}})");
  for (const char* key :
       {"step_s", "tokens_per_s", "samples_per_s", "tflops_per_device", "mfu", "memory_gib"})
    EXPECT_GT(a.at(key).get<double>(), 0) << key;
  EXPECT_EQ(a.at("id"), 7);
  EXPECT_TRUE(a.at("fits").get<bool>());
  double sum = 0;
  for (const auto& [name, seconds] : a.at("parts").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, a.at("step_s").get<double>(), 1e-4 * sum);
  // Narayanan et al. SC 2021, table 1: 137 TFLOP/s with recomputation, 3.515 s.
  EXPECT_NEAR(a.at("step_s").get<double>(), 3.515, 0.1 * 3.515);
}

TEST(AnswerLine, OfAMistakeIsAnErrorThatKeepsTheOthersGoing) {
  const Answer bad = answer_line("not json", "line 3");
  EXPECT_THAT(bad.error, HasSubstr("line 3"));
  EXPECT_TRUE(json::parse(bad.json).contains("error"));
}

// Writes a profile of `blocks` blocks, each of which takes 1 ms forward and 2 ms backward a sample.
std::string profile_of(int blocks, const TempDir& folder) {
  Profile profile{.name = "made up", .machine = "another machine", .batches = {1}};
  for (int b = 0; b < blocks; ++b)
    profile.blocks.push_back({.name = std::to_string(b),
                              .forward = {1e-3},
                              .backward = {2e-3},
                              .parameters = 1000,
                              .output_bytes = 4096});
  const std::string file = folder / "blocks.toml";
  write_file_atomic(file, to_toml(profile));
  return file;
}

json with_profile(int blocks) {
  const TempDir folder;
  const json model = {{"family", "gpt"}, {"layers", 4}, {"profile", profile_of(blocks, folder)}};
  const json cluster = {{"accelerator", "A100"}, {"nodes", 1}, {"per_node", 1}};
  return answer(
      json{{"model", model}, {"cluster", cluster}, {"plan", {{"micro_batch", 2}}}}.dump());
}

TEST(Scenario, WithAProfileOfTheModelsBlocksTakesTheirTimes) {
  const json a = with_profile(6);  // The embedding, four layers, the head.
  EXPECT_NEAR(a.at("parts").at("compute_s").get<double>(), 2 * 6 * 3e-3, 1e-6);
  EXPECT_THAT(a.at("notes").dump(), HasSubstr("measured on another machine"));
  EXPECT_THAT(a.at("notes").dump(), testing::Not(HasSubstr("the profile's blocks")));
}

TEST(Scenario, WithAProfileOfOtherBlocksHasTheseBlocks) {
  const json a = with_profile(3);
  EXPECT_NEAR(a.at("parts").at("compute_s").get<double>(), 2 * 3 * 3e-3, 1e-6);
  EXPECT_THAT(a.at("notes").dump(), HasSubstr("the profile's blocks"));
}

// Every family on every accelerator and system of the catalog.
TEST(AnswerLine, AnswersEveryFamilyOnEveryAcceleratorAndSystem) {
  for (const std::string& family : families()) {
    for (const std::string& accelerator : accelerator_names()) {
      const Answer one = answer_line(json{{"model", {{"family", family}, {"layers", 0}}},
                                          {"cluster", {{"accelerator", accelerator}}}}
                                         .dump(),
                                     "x");
      EXPECT_THAT(one.error, HasSubstr("model.layers")) << family;  // strict for each family
      const json a =
          answer(json{{"model", {{"family", family}}}, {"cluster", {{"accelerator", accelerator}}}}
                     .dump());
      ASSERT_TRUE(a.contains("step_s")) << family << ' ' << accelerator << ' ' << a.dump();
      EXPECT_GT(a["step_s"].get<double>(), 0);
    }
  }
  for (const std::string& system : system_names()) {
    const json a = answer(
        json{{"model", {{"family", "bert"}}}, {"cluster", {{"system", system}, {"nodes", 2}}}}
            .dump());
    ASSERT_TRUE(a.contains("step_s")) << system << ' ' << a.dump();
  }
}

}  // namespace scenario_test
}  // namespace weft::plan
