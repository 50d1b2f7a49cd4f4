// ImageRuns: helpers of tests for small training runs on generated images. Needs GoogleTest and is
// not installed.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/data/shapes.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

inline std::shared_ptr<const data::ImageSet> shapes(data::Part part) {
  return std::make_shared<const data::ImageSet>(
      data::make_shapes({.train = 100, .test = 70, .seed = 1}, part));
}

// Results of a run.
struct Outcome {
  TrainResult result;
  std::map<std::string, at::Tensor> tensors;  // Parameters and buffers.
  std::vector<std::string> losses;            // Logged losses, as exact text.
};

// Returns the text `"loss":value` of every record in a metrics file.
inline std::vector<std::string> losses_of(const std::string& file) {
  std::vector<std::string> losses;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto at = line.find("\"loss\":");
    if (at != std::string::npos) losses.push_back(line.substr(at, line.find(',', at) - at));
  }
  return losses;
}

class ImageRuns {
 public:
  ImageRuns() { set_log_level(LogLevel::kError); }

  // Trains with `world` ranks, each a thread. A second call with the same name resumes the run.
  Outcome train(int world, const std::string& name, std::vector<std::string> assignments,
                std::function<bool()> should_stop = nullptr, const std::string& trace = "") {
    Config config(recipe_schema());
    for (const char* common :
         {"model.name=cnn", "data.name=shapes", "train.batch=16", "train.epochs=2",
          "train.log_every=3", "train.eval_batch=20", "data.prefetch=0"})
      config.set(common);
    for (const auto& assignment : assignments) config.set(assignment);
    config.set("run.dir=\"" + folder_.path() + "\"");
    config.set("run.name=" + name);
    const bool resume = std::filesystem::exists(folder_ / name);
    Outcome outcome;
    const auto on_rank = [&](const Group& group) {
      TrainerOptions options;
      options.resume = resume;
      options.trace = trace;
      options.progress = progress;
      options.train_images = train_;
      options.test_images = test_;
      options.components = components;
      if (group.rank() == group.size() - 1) options.should_stop = should_stop;
      Trainer trainer(config, group, options);
      const auto result = trainer.run();
      const auto state = trainer.model().state();
      if (group.rank() != 0) return;
      outcome.result = result;
      outcome.tensors = {state.begin(), state.end()};
    };
    if (tcp) {
      const bool ordered = *tcp == Sums::kOrdered;
      comm::replicate_over_tcp(world, on_rank,
                               {.ordered_sums = ordered, .timeout = std::chrono::seconds(60)});
    } else {
      replicate(world, on_rank);
    }
    outcome.losses = losses_of(folder_ / (name + "/metrics.jsonl"));
    return outcome;
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  enum class Sums { kOrdered, kAsTheyCome };
  std::optional<Sums> tcp;  // If set, ranks communicate over TCP, as on several hosts.
  Components components;
  observe::ProgressMode progress = observe::ProgressMode::kNone;

 private:
  TempDir folder_;
  std::shared_ptr<const data::ImageSet> train_ = shapes(data::Part::kTrain),
                                        test_ = shapes(data::Part::kTest);
};

inline void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_FALSE(a.losses.empty());
  EXPECT_EQ(a.result.accuracy, b.result.accuracy);
  EXPECT_EQ(a.result.loss, b.result.loss);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

inline std::vector<std::string> with(std::vector<std::string> base,
                                     const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

// Compares parameters and buffers, but not the optimizer state.
inline void expect_close(const Outcome& a, const Outcome& b, double most) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    const at::Tensor other = b.tensors.at(name).to(at::kDouble), mine = tensor.to(at::kDouble);
    EXPECT_TRUE(at::allclose(mine, other, most, most))
        << name << " by " << (mine - other).abs().max().item<double>();
  }
}

}  // namespace weft::train::internal
