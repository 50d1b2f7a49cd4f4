// Checkpoints contain the codec's state: a resumed run has the same bits as an uninterrupted one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/data/shapes.h"
#include "weft/train/recipe.h"
#include "weft/train/testing/text_runs.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace codec_resume_test {

std::shared_ptr<const data::ImageSet> shapes(data::Part part) {
  return std::make_shared<const data::ImageSet>(
      data::make_shapes({.train = 96, .test = 16, .seed = 1}, part));
}

// Trains with two processes over TCP. A second call with the same name resumes the run.
void train(const std::string& folder, const std::string& name, const std::string& codec,
           int max_steps) {
  const bool resume = std::filesystem::exists(folder + "/" + name);
  const auto codes = comm::fork_ranks(2, "tcp", [&](const Group& group) {
    set_log_level(LogLevel::kError);
    at::set_num_threads(1);
    Config config(recipe_schema());
    for (const char* common : {"train.batch=16", "train.epochs=2", "data.prefetch=0",
                               "model.name=mlp", "data.name=shapes", "optimizer.lr=0.02"})
      config.set(common);
    config.set("parallel.codec=\"" + codec + "\"");
    config.set("train.max_steps=" + std::to_string(max_steps));
    config.set("run.dir=\"" + folder + "\"");
    config.set("run.name=" + name);
    TrainerOptions options;
    options.resume = resume;
    options.train_images = shapes(data::Part::kTrain);
    options.test_images = shapes(data::Part::kTest);
    Trainer(config, group, options).run();
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0})) << codec;
}

checkpoint::Checkpoint newest(const std::string& run) {
  const auto latest = checkpoint::latest(run + "/ckpt");
  if (!latest.folder) throw std::runtime_error("no checkpoint in " + run);
  return checkpoint::load(*latest.folder);
}

TEST(CodecResume, HasTheBitsOfTheUninterruptedRun) {
  const TempDir folder;
  for (const std::string codec : {"topk:0.05", "int4:64,delta", "powersgd:2,warmup=3", "sign:64"}) {
    const std::string whole = "whole-" + codec.substr(0, 4), cut = "cut-" + codec.substr(0, 4);
    train(folder.path(), whole, codec, 0);
    train(folder.path(), cut, codec, 8);  // in the second epoch
    train(folder.path(), cut, codec, 0);
    const auto a = newest(folder / whole), b = newest(folder / cut);
    ASSERT_EQ(a.step, 12);
    ASSERT_EQ(b.step, 12);
    for (const char* part : {"model", "optimizer", "codec"}) {
      ASSERT_TRUE(a.parts.count(part) == 1 && b.parts.count(part) == 1) << codec << " " << part;
      ASSERT_EQ(a.parts.at(part).size(), b.parts.at(part).size()) << codec << " " << part;
      for (const auto& [name, tensor] : a.parts.at(part))
        EXPECT_TRUE(at::equal(tensor, b.parts.at(part).at(name))) << codec << " " << name;
    }
  }
}

TEST(CodecResume, HasTheBitsOfTheUninterruptedRunWithPipelineFsdpAndTensorParallelism) {
  const internal::TextRuns runs;
  for (const std::string form : {"parallel.pp=2", "parallel.fsdp=2", "parallel.tp=2"}) {
    SCOPED_TRACE(form);
    const std::vector<std::string> words = {form, "parallel.dp=2", "parallel.micro_batches=2",
                                            "parallel.codec=\"topk:0.1\"", "train.max_steps=6"};
    runs.train(4, "whole-" + form, words);
    runs.train(4, "cut-" + form,
               {form, "parallel.dp=2", "parallel.micro_batches=2", "parallel.codec=\"topk:0.1\"",
                "train.max_steps=3"});
    runs.train(4, "cut-" + form, words);
    internal::expect_equal(runs.weights("cut-" + form), runs.weights("whole-" + form));
    EXPECT_EQ(newest(runs.path("cut-" + form)).parts.count("codec"), 1);
  }
}

}  // namespace codec_resume_test
}  // namespace weft::train
