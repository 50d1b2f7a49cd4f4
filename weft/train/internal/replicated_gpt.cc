// Replicas of a model whose layers may be split.
#include <ATen/ATen.h>

#include <optional>

#include "weft/data/text/batches.h"
#include "weft/models/gpt_blocks.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/step.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_learner.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

class ReplicatedGpt : public TextLearner {
 public:
  explicit ReplicatedGpt(const LearnerParts& parts)
      : mesh_(parts.mesh),
        bf16_(parts.config.get_string("train.precision") == "bf16"),
        recompute_(parts.config.get_string("train.recompute") == "full") {
    const auto seed = static_cast<std::uint64_t>(parts.config.get_int("train.seed"));
    const parallel::TensorParallel tp(mesh_["tp"], seed);
    tp.seed_dropout(seed + static_cast<std::uint64_t>(mesh_.coordinate("dp")));
    models::GptOptions options = gpt_options(parts.config, parts.vocabulary);
    options.selective = parts.config.get_string("train.recompute") == "selective";
    gpt_ = models::Gpt(options, tp);
    if (parts.weights != nullptr) {
      set_whole_tensors(*gpt_, *parts.weights);
    } else {
      draw_weights(seed);
    }
    model_.emplace(parallel::data_parallel(gpt_, mesh_["dp"], parallel_options(parts.config)));
    optimizer_.emplace(model_->optimizer(optimizer_choice(parts.config, *gpt_)));
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
    at::Tensor sums = at::zeros({3}, at::kDouble);
    if (batch.tokens.size(0) == 0) return sums;
    gpt_->eval();
    const at::Tensor logits = gpt_->forward(batch.tokens), counted = batch.targets.ne(data::text::kNoTarget);
    const at::Tensor tokens = counted.sum().to(at::kDouble);
    const at::Tensor right = likeliest(logits, gpt_->options.vocabulary, gpt_->tp).eq(batch.targets).logical_and(counted).sum();
    const at::Tensor loss = gpt_->loss(logits, batch.targets).to(at::kDouble) * tokens;
    gpt_->train();
    return mesh_.coordinate("tp") == 0 ? at::stack({loss, right.to(at::kDouble), tokens}) : sums;
  }

  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  void settle() override { model_->wait_for_weights(); }
  std::vector<std::string> describe() const override { return {"gradients: " + model_->describe()}; }

  State state() override {
    const NamedTensors mine = optimizer_->state();
    if (mesh_.coordinate("dp") != 0) return {};  // these meet the others at the next step
    const NamedTensors optimizer = whole_state(*gpt_, mine);
    return {whole_tensors(*gpt_), {optimizer.begin(), optimizer.end()}};
  }

  // The weights are those that it was made with.
  void load(const State& state) override { optimizer_->load_state(part_of_state(*gpt_, state.optimizer)); }

 private:
  // Block by block, so that the seed makes the same model here and over stages.
  void draw_weights(std::uint64_t seed) {
    const at::NoGradGuard no_grad;
    const auto parameters = gpt_->named_parameters();
    parallel::Contexts contexts;
    int number = 0;
    for (const auto& block : models::gpt_blocks(gpt_->options).blocks) {
      contexts.tp = parallel::TensorParallel(mesh_["tp"], parallel::block_seed(seed, number++));
      const auto drawn = contexts.before[block.name] = block.make(contexts).module;
      for (const auto& item : drawn->named_parameters()) {
        if (const at::Tensor* mine = parameters.find(block.name + "." + item.key())) mine->copy_(item.value());
      }
    }
  }

  at::Tensor logits(const at::Tensor& tokens) {
    if (!recompute_) return gpt_->forward(tokens);
    const parallel::KeepState draws = [tp = gpt_->tp] { return [tp, draw = tp.draw()] { tp.set_draw(draw); }; };
    at::Tensor x = tokens;
    for (const auto& part : gpt_->parts()) {
      const auto forward = [part, bf16 = bf16_](const at::Tensor& in) {
        const Autocast autocast(bf16);
        return part->forward(in);
      };
      x = part == gpt_->head ? part->forward(x) : parallel::recompute_with({.random = false, .keep = {draws}}, forward, x);
    }
    return x;
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
      loss = gpt_->loss(logits(batch.tokens), batch.targets);
    }
    count_exchange({*model_, timer}, Phase::kForward);
    const auto scope = timer.time(Phase::kBackward);
    loss.backward();
    return loss.item<double>() * rows;
  }

  const Mesh mesh_;
  const bool bf16_, recompute_;
  models::Gpt gpt_{nullptr};
  std::optional<parallel::DataParallel<models::GptImpl>> model_;
  std::optional<parallel::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<TextLearner> make_replicated(const LearnerParts& parts) { return std::make_unique<ReplicatedGpt>(parts); }

}  // namespace weft::train::internal
