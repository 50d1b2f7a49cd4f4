// TextRuns: helpers of tests for small training runs on a text that is learned in seconds. Needs
// GoogleTest and is not installed.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/train/generate.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

using Assignments = std::vector<std::string>;

inline Assignments joined(Assignments first, const Assignments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// Runs, each in a run folder of its name. The model is a GPT unless an assignment changes it.
class TextRuns {
 public:
  TextRuns() {
    set_log_level(LogLevel::kError);
    // Two alternating words, so that a trained model predicts the next word.
    std::string verses;
    for (int i = 0; i < 400; ++i) verses += i % 2 == 0 ? "warp " : "weft ";
    write_file_atomic(folder_ / "verses.txt", verses);
  }

  Config config(const Assignments& assignments) const {
    Config config(recipe_schema());
    for (const char* common :
         {"data.name=text", "model.name=gpt", "model.layers=1", "model.width=16",
          "model.sequence=16", "train.batch=8", "train.epochs=2", "optimizer.name=adamw",
          "optimizer.lr=0.01", "schedule.name=constant"})
      config.set(common);
    config.set("data.file=\"" + (folder_ / "verses.txt") + "\"");
    config.set("run.dir=\"" + folder_.path() + "\"");
    for (const auto& assignment : assignments) config.set(assignment);
    return config;
  }

  // Trains as this rank of `group`. `resume` continues the run of that name.
  TrainResult train(const Group& group, const std::string& name, const Assignments& assignments,
                    bool resume) const {
    TrainerOptions options;
    options.resume = resume;
    return Trainer(config(joined(assignments, {"run.name=" + name})), group, options).run();
  }
  // Trains with `world` ranks, each a thread. A second call with the same name resumes the run.
  TrainResult train(int world, const std::string& name, const Assignments& assignments) const {
    const bool resume = std::filesystem::exists(path(name));
    TrainResult result;
    replicate(world, [&](const Group& group) {
      const auto mine = train(group, name, assignments, resume);
      if (group.rank() == 0) result = mine;
    });
    return result;
  }

  // The same over TCP, as on several hosts.
  TrainResult train_over_tcp(int world, bool ordered_sums, const std::string& name,
                             const Assignments& assignments) const {
    TrainResult result;
    const auto on_rank = [&](const Group& group) {
      const auto mine = train(group, name, assignments, false);
      if (group.rank() == 0) result = mine;
    };
    comm::replicate_over_tcp(world, on_rank,
                             {.ordered_sums = ordered_sums, .timeout = std::chrono::seconds(60)});
    return result;
  }

  // Returns the error of a refused recipe, which must leave no run folder.
  std::string refused(int world, const Assignments& assignments) const {
    const std::string what =
        refusal([&] { train(world, "refused", assignments); }, Errc::kBadConfig);
    EXPECT_FALSE(what != "accepted" && std::filesystem::exists(path("refused"))) << what;
    return what;
  }

  // Makes a folder of 40 documents of 1 to 40 words and returns its path, for data.file.
  std::string documents() const {
    const std::string folder = path("documents");
    std::filesystem::create_directories(folder);
    for (int document = 0; document < 40; ++document) {
      std::string words;
      for (int word = 0; word <= document; ++word) words += word % 2 == 0 ? "warp " : "weft ";
      write_file_atomic(folder + "/" + std::to_string(document) + ".txt", words);
    }
    return folder;
  }

  checkpoint::TensorMap weights(const std::string& name) const {
    return checkpoint::load(*checkpoint::latest(path(name) + "/ckpt").folder).parts.at("model");
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  TempDir folder_;
};

inline void expect_close(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(at::allclose(tensor, b.at(name), 1e-3, 1e-4)) << name;
}

inline void expect_equal(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

struct Split {
  const char* name;
  int world;
  Assignments assignments;
};

// Trains the run "one" on one rank, and each split as a run of the split's name. Expects about the
// same loss, accuracy and weights. Returns the result of "one".
inline TrainResult expect_learned_alike(const TextRuns& runs, const Assignments& words,
                                        const std::vector<Split>& splits) {
  const auto one = runs.train(1, "one", words);
  for (const auto& split : splits) {
    SCOPED_TRACE(split.name);
    const auto result = runs.train(split.world, split.name, joined(words, split.assignments));
    EXPECT_NEAR(result.loss, one.loss, 1e-3);
    EXPECT_NEAR(result.accuracy, one.accuracy, 0.02);
    expect_close(runs.weights(split.name), runs.weights("one"));
  }
  return one;
}

inline std::string text_of(const std::string& folder, const GenerateOptions& options,
                           const parallel::TensorParallel& tp = {}) {
  std::string text;
  generate(
      folder, options, [&](std::string_view piece) { text += piece; }, tp);
  return text;
}

}  // namespace weft::train::internal
