// A model divided by parallelize().
#include <ATen/ATen.h>

#include <sstream>

#include "weft/data/text/batches.h"
#include "weft/models/gpt_blocks.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/data/update_rule.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_learner.h"

namespace weft::train::internal {
namespace {

using parallel::Precision;
using parallel::Recompute;

parallel::Plan plan_of(const LearnerParts& parts) {
  const Config& config = parts.config;
  const auto& precision = config.get_string("train.precision");
  const auto& weights = config.get_string("parallel.weights");
  parallel::Plan plan;
  plan.optimizer = optimizer_choice(config);
  plan.decay_vectors = config.get_bool("optimizer.decay_vectors");
  plan.seed = static_cast<std::uint64_t>(config.get_int("train.seed"));
  plan.schedule = schedule::pipeline::parse_algorithm(config.get_string("parallel.schedule"));
  plan.micro_batches = static_cast<int>(config.get_int("parallel.micro_batches"));
  if (plan.micro_batches == 0) plan.micro_batches = parts.mesh.size("pp") > 1 ? 4 * parts.mesh.size("pp") : 1;
  for (const std::int64_t cut : config.get_ints("parallel.cuts")) plan.cuts.push_back(static_cast<int>(cut));
  const int replicas = parts.mesh.size("dp") * parts.mesh.size("fsdp") * parts.mesh.size("ep");
  const std::int64_t rows = std::max<std::int64_t>(1, parts.batch / replicas / plan.micro_batches);
  if (parts.mesh.size("pp") > 1) plan.sample = {at::zeros({rows, config.get_int("model.sequence")}, at::kLong)};
  plan.context = config.get_string("parallel.context") == "ring" ? parallel::ContextMethod::kRing : parallel::ContextMethod::kHeads;
  plan.zero_stage = static_cast<int>(config.get_int("parallel.zero_stage"));
  plan.form = weights == "private" ? "gathered" : weights;
  const auto& recompute = config.get_string("train.recompute");
  plan.recompute = recompute == "none" ? Recompute::kNone : recompute == "full" ? Recompute::kFull : Recompute::kSelective;
  plan.precision = precision == "bf16" ? Precision::kBf16 : precision == "f16" ? Precision::kF16 : Precision::kAsItIs;
  plan.batch = parts.batch;
  return plan;
}

class ComposedGpt : public TextLearner {
 public:
  explicit ComposedGpt(const LearnerParts& parts)
      : mesh_(parts.mesh),
        rule_(optimizer_choice(parts.config).rule),
        blocks_(models::gpt_blocks(gpt_options(parts.config, parts.vocabulary))),
        vocabulary_(parts.vocabulary),
        micro_batches_(plan_of(parts).micro_batches),
        tp_(mesh_["tp"], 0),
        model_(parallel::parallelize(blocks_, plan_of(parts), mesh_)) {}

  double train(const Batch& batch, observe::StepTimer& timer) override {
    double loss = 0;
    {
      // By the pipeline's schedule forward and backward mix.
      const auto scope = timer.time(observe::Phase::kBackward);
      loss = model_.train_step({batch.tokens}, {batch.targets});
    }
    const auto scope = timer.time(observe::Phase::kOptimizer);
    model_.step();
    model_.zero_grad();
    return loss * static_cast<double>(batch.global) / mesh_.world().size();
  }

  at::Tensor score(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    at::Tensor sums = at::zeros({3}, at::kDouble);
    const std::int64_t rows = batch.tokens.size(0), missing = std::max<std::int64_t>(0, micro_batches_ - rows);
    // All replicas make all passes.
    const at::Tensor padding = at::zeros({missing, batch.tokens.size(1)}, at::kLong);
    parallel::Tensors outputs = model_.predict({at::cat({batch.tokens, padding})});
    if (outputs.empty() || rows == 0) return sums;
    outputs[0] = outputs[0].narrow(0, 0, rows);
    const at::Tensor counted = batch.targets.ne(data::text::kNoTarget), tokens = counted.sum().to(at::kDouble);
    const at::Tensor right = likeliest(outputs[0], vocabulary_, tp_).eq(batch.targets).logical_and(counted).sum();
    const at::Tensor loss = blocks_.loss(outputs, {batch.targets}, {.tp = tp_}).to(at::kDouble) * tokens;
    return tp_.rank() == 0 ? at::stack({loss, right.to(at::kDouble), tokens}) : sums;
  }

  void set_lr(double lr) override { model_.set_lr(lr); }
  void settle() override {}

  std::vector<std::string> describe() const override {
    std::vector<std::string> lines;
    std::istringstream all(model_.describe());
    for (std::string line; std::getline(all, line);) {
      if (line.find(": nothing to do") == std::string::npos) lines.push_back(line);
    }
    return lines;
  }

  State state() override {
    State state;
    for (auto& [name, tensor] : model_.state()) part_of(name, state)[name] = tensor;
    return state;
  }

  void load(const State& state) override {
    NamedTensors all(state.model.begin(), state.model.end());
    all.insert(all.end(), state.optimizer.begin(), state.optimizer.end());
    all.insert(all.end(), state.scaling.begin(), state.scaling.end());
    model_.load_state(all);
  }

 private:
  checkpoint::TensorMap& part_of(const std::string& name, State& state) const {
    if (name.rfind("loss_scale", 0) == 0) return state.scaling;
    const auto ends_with = [&](const std::string& suffix) {
      return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
    };
    bool optimizers = name == "steps" || ends_with(".step");
    for (const std::string& array : parallel::state_names(rule_)) optimizers = optimizers || ends_with("." + array);
    return optimizers ? state.optimizer : state.model;
  }

  const Mesh mesh_;
  const parallel::UpdateRule rule_;
  const parallel::BlockModel blocks_;
  const std::int64_t vocabulary_, micro_batches_;
  const parallel::TensorParallel tp_;
  parallel::ParallelModel model_;
};

}  // namespace

void check_composed(const Config& config, const Mesh& mesh) {
  constexpr std::int64_t kAnyVocabulary = 1;
  const auto replicas = static_cast<std::int64_t>(mesh.size("dp")) * mesh.size("fsdp") * mesh.size("ep");
  const auto per_rank = config.get_int("train.batch_per_rank");
  const std::int64_t batch = per_rank > 0 ? per_rank * replicas : config.get_int("train.batch");
  const parallel::BlockModel model = models::gpt_blocks(gpt_options(config, kAnyVocabulary));
  const parallel::ModelShape shape{static_cast<int>(model.blocks.size()), model.splits, model.heads, model.kv_heads, model.experts};
  parallel::check_plan(plan_of({.config = config, .mesh = mesh, .vocabulary = kAnyVocabulary, .batch = batch}), shape, mesh.layout());
}

std::unique_ptr<TextLearner> make_composed(const LearnerParts& parts) { return std::make_unique<ComposedGpt>(parts); }

}  // namespace weft::train::internal
