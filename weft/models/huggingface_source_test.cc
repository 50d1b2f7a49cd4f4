// Loads Hugging Face's sharded safetensors into models that are divided over ranks.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/convert.h"
#include "weft/comm/replicate.h"
#include "weft/models/gpt_blocks.h"
#include "weft/models/huggingface.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::models {
namespace {

using parallel::Axis;

GptOptions small(const std::string& family) {
  GptOptions o{
      .vocabulary = 13, .layers = 2, .width = 8, .heads = 4, .sequence_length = 6, .dropout = 0};
  if (family == "gpt2") return o;
  o = like_llama(o);
  o.kv_heads = 2;
  o.hidden = 12;
  if (family == "llama") return o;
  o.experts = 4;
  o.experts_top_k = 2;
  o.experts_capacity = 0;
  return o;
}

// Writes files of 1 KiB and an index, the format of large models on the Hugging Face Hub.
std::vector<std::string> write_sharded(const std::string& folder,
                                       const checkpoint::TensorMap& weights) {
  checkpoint::save_safetensors(folder + "/whole.safetensors", {weights, {}});
  const auto reader = checkpoint::Reader::of_files({folder + "/whole.safetensors"});
  EXPECT_GT(checkpoint::write_hub(reader, "model", folder, 1024).size(), 3U);
  std::filesystem::remove(folder + "/whole.safetensors");
  return huggingface_files(folder);
}

TEST(HuggingFaceSource, GivesEachRankItsOwnSlicesUnderAnyPlan) {
  for (const std::string family : {"gpt2", "llama", "mixtral"}) {
    SCOPED_TRACE(family);
    const TempDir folder;
    const GptOptions options = small(family);
    Gpt whole(options, parallel::TensorParallel());
    const auto paths = write_sharded(folder.path(), get_huggingface(*whole));
    std::vector<std::vector<Axis>> plans{{}, {{"pp", 2}, {"tp", 2}}, {{"fsdp", 2}, {"tp", 2}}};
    if (family == "mixtral") plans.push_back({{"fsdp", 2}, {"ep", 2}});
    for (const auto& axes : plans) {
      int world = 1;
      for (const Axis& axis : axes) world *= axis.size;
      comm::replicate(world, [&](const Group& group) {
        auto model = parallel::parallelize(gpt_blocks(options), {.seed = 3}, Mesh(group, axes));
        model.load_weights(*huggingface_source(options, paths));
        for (const auto& [name, tensor] : model.state()) {
          const auto parameters = whole->named_parameters();
          if (parameters.contains(name)) {
            EXPECT_TRUE(at::equal(parameters[name], tensor)) << name;
          }
        }
      });
    }
  }
}

TEST(HuggingFaceSource, RefusesFilesOfAnotherModel) {
  const TempDir folder;
  Gpt whole(small("llama"), parallel::TensorParallel());
  const auto paths = write_sharded(folder.path(), get_huggingface(*whole));
  expect_refused([&] { huggingface_source(small("gpt2"), paths); }, Errc::kInvalidArgument,
                 "is missing");
  GptOptions fewer = small("llama");
  fewer.layers = 1;
  expect_refused([&] { huggingface_source(fewer, paths); }, Errc::kInvalidArgument,
                 "the model has no place for");
  GptOptions wider = small("llama");
  wider.hidden = 16;
  comm::replicate(2, [&](const Group& group) {
    auto model = parallel::parallelize(gpt_blocks(wider), {}, Mesh(group, {{"fsdp", 2}}));
    expect_refused([&] { model.load_weights(*huggingface_source(wider, paths)); },
                   Errc::kInvalidArgument, "another shape");
  });
}

}  // namespace
}  // namespace weft::models
