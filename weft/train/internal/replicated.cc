// Replicas of a model whose layers may be split.
#include "weft/train/internal/replicated.h"

#include <ATen/ATen.h>

#include <optional>

#include "weft/base/random.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/tensor/vocabulary.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/step.h"
#include "weft/train/internal/text.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

constexpr std::uint32_t kMasks = 0x6d61736b;  // a stream of random numbers: "mask"

class Replicated : public TextLearner {
 public:
  Replicated(const LearnerParts& parts, ReplicatedModel replica)
      : mesh_(parts.mesh),
        bf16_(parts.config.get_string("train.precision") == "bf16"),
        seed_(static_cast<std::uint64_t>(parts.config.get_int("train.seed"))),
        replica_(std::move(replica)) {
    if (parts.weights != nullptr) set_whole_tensors(*replica_.module, replica_.tp, *parts.weights);
    model_.emplace(parallel::data_parallel(replica_.module, mesh_["dp"], parallel_options(parts.config)));
    optimizer_.emplace(model_->optimizer(optimizer_choice(parts.config, *replica_.module)));
  }

  double train(const Batch& batch, observe::StepTimer& timer) override {
    const double loss = forward_backward(batch, timer);
    count_exchange({*model_, timer}, Phase::kBackward);
    {
      const auto scope = timer.time(Phase::kOptimizer);
      optimizer_->step();
      optimizer_->zero_grad();
    }
    count_exchange({*model_, timer}, Phase::kOptimizer);
    return loss / mesh_.size("tp");  // whose ranks all have the same
  }

  at::Tensor score(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    if (batch.tokens.size(0) == 0) return at::zeros({3}, at::kDouble);
    replica_.module->eval();
    const at::Tensor logits = replica_.forward(batch.tokens);
    replica_.module->train();
    return score_of(logits, batch.targets, replica_.vocabulary, replica_.tp);
  }

  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  void settle() override { model_->wait_for_weights(); }
  std::vector<std::string> describe() const override { return {"gradients: " + model_->describe()}; }

  State state() override {
    const NamedTensors mine = optimizer_->state();
    NamedTensors codec = model_->codec_state();
    if (mesh_.coordinate("dp") != 0) return {};  // these meet the others at the next step
    const NamedTensors optimizer = whole_state(*replica_.module, replica_.tp, mine);
    return {.model = whole_tensors(*replica_.module, replica_.tp),
            .optimizer = {optimizer.begin(), optimizer.end()},
            .codec = std::move(codec)};
  }

  // The weights are those that it was made with.
  void load(const State& state) override {
    optimizer_->load_state(part_of_state(*replica_.module, replica_.tp, state.optimizer));
    model_->load_codec_state(state.codec);
  }

 private:
  // A function of seed, step and replica, so that a resumed run drops what the uninterrupted one does.
  void seed_dropout() {
    const auto step = static_cast<std::uint64_t>(optimizer_->steps()), replicas = static_cast<std::uint64_t>(mesh_.size("dp"));
    Random numbers(seed_, kMasks, step * replicas + static_cast<std::uint64_t>(mesh_.coordinate("dp")));
    replica_.seed_dropout(numbers.next_u64());
  }

  // The loss summed over this replica's rows.
  double forward_backward(const Batch& batch, observe::StepTimer& timer) {
    const auto rows = static_cast<double>(batch.tokens.size(0));
    model_->set_samples(rows);
    if (rows == 0) return 0;
    at::Tensor loss;
    {
      const auto scope = timer.time(Phase::kForward);
      const Autocast autocast(bf16_);
      seed_dropout();
      loss = parallel::cross_entropy(replica_.forward_in_training(batch.tokens), batch.targets, {.vocabulary = replica_.vocabulary},
                                     replica_.tp);
    }
    count_exchange({*model_, timer}, Phase::kForward);
    const auto scope = timer.time(Phase::kBackward);
    loss.backward();
    return loss.item<double>() * rows;
  }

  const Mesh mesh_;
  const bool bf16_;
  const std::uint64_t seed_;
  const ReplicatedModel replica_;
  std::optional<Parallel> model_;
  std::optional<parallel::Optimizer> optimizer_;
};

}  // namespace

void draw_weights(torch::nn::Module& model, const parallel::BlockModel& blocks, const parallel::TensorParallel& tp, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  parallel::Contexts contexts;
  int number = 0;
  for (const auto& block : blocks.blocks) {
    contexts.tp = parallel::TensorParallel(tp.group(), parallel::block_seed(seed, number++));
    const parallel::Block drawn = block.make(contexts);
    contexts.before[block.name] = drawn.module;
    for (const auto& item : drawn.module->named_parameters()) {
      const std::string name = drawn.prefix.value_or(block.name) + "." + item.key();
      if (const at::Tensor* mine = parameters.find(name)) mine->copy_(item.value());
    }
  }
}

std::unique_ptr<TextLearner> make_replicated(const LearnerParts& parts) {
  const bool lstm = parts.config.get_string("model.name") == "lstm";
  return std::make_unique<Replicated>(parts, lstm ? replicated_lstm(parts) : replicated_gpt(parts));
}

}  // namespace weft::train::internal
