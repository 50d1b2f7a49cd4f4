// A model over a mesh with its optimiser, as a recipe means it: what a text is trained with. There are two, which learn the same:
//
//   replicated   GPT over dp x tp, LSTM over dp: DataParallel's shared weights, codecs and gradients that travel into the next forward
//   composed     GPT over any product of dp, fsdp, tp, pp, cp and ep, LSTM over dp, fsdp and pp; experts, micro-batches, float16,
//                reproducible sums, clipping or codecs over split layers: parallelize()
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/observe/step_timer.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/recipe.h"

namespace weft::train::internal {

// The mesh of [parallel]. Throws Error(kBadConfig) with the nearest one where the sizes do not make `world`.
Mesh text_mesh(const Config& config, const Group& world);

// Calls are collective over the mesh's world but for set_lr() and describe(). A batch is [rows, length] of int64, the replica's share of
// the global batch, the same on all its ranks; it may have no row.
class TextLearner {
 public:
  struct Batch {
    at::Tensor tokens, targets;
    std::int64_t global = 0;  // rows over all replicas
  };
  // By the names of one process's model and optimiser, on the world's rank 0.
  struct State {
    checkpoint::TensorMap model, optimizer;
    checkpoint::TensorMap scaling;  // of the loss; empty where it has not been scaled
    NamedTensors codec;             // what it remembers of gradients that were not sent; empty without one
  };

  virtual ~TextLearner() = default;
  // Forward, backward and update. Gives this rank's part of the loss summed over the rows of all replicas.
  virtual double train(const Batch& batch, observe::StepTimer& timer) = 0;
  virtual void set_lr(double lr) = 0;
  // This rank's part of: loss summed over tokens, tokens whose likeliest successor was right, tokens. Without gradient, in evaluation mode,
  // between settle() and the next train(); float64 [3].
  virtual at::Tensor score(const Batch& batch) = 0;
  // Returns when the weights are those of the last step.
  virtual void settle() = 0;
  // Of the experts' choices in training since the last call, alike on all ranks; none where there are no experts.
  struct ExpertUse {
    double load_max = 1;  // in the least even layer, what the most wanted expert got over an even share: 1 where all got the same
    double dropped = 0;   // share over the capacity, of all layers' choices
  };
  virtual std::optional<ExpertUse> expert_use() { return std::nullopt; }
  virtual State state() = 0;
  // Every rank gives the whole; the model's is that which the learner was made with. Throws Error(kInvalidArgument) naming what does not
  // fit.
  virtual void load(const State& state) = 0;
  // How the model is divided, a line each.
  virtual std::vector<std::string> describe() const = 0;
};

struct LearnerParts {
  const Config& config;
  const Mesh& mesh;
  const checkpoint::TensorMap* weights = nullptr;  // whole, to begin with; null: drawn by the recipe's seed
  std::int64_t vocabulary = 0;
  std::int64_t batch = 0;   // global
  NamedTensors codec = {};  // State::codec of the checkpoint that the run resumes from
};
// Collective. Throws as check_text_learner().
std::unique_ptr<TextLearner> make_text_learner(const LearnerParts& parts);
// Throws Error(kBadConfig) for keys that do not go together and plans that cannot be, before anything is made. Not collective.
void check_text_learner(const Config& config, const Mesh& mesh);
void check_composed(const Config& config, const Mesh& mesh);

std::unique_ptr<TextLearner> make_replicated(const LearnerParts& parts);
std::unique_ptr<TextLearner> make_composed(const LearnerParts& parts);

}  // namespace weft::train::internal
