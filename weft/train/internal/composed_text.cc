// A model divided by parallelize().
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <sstream>

#include "weft/base/log.h"
#include "weft/optim/update_rule.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_learner.h"

namespace weft::train::internal {
namespace {

using observe::Phase;
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
  if (config.get_bool("train.reproducible")) plan.micro_shards = static_cast<int>(config.get_int("train.micro_shards"));
  if (plan.micro_batches == 0) plan.micro_batches = parts.mesh.size("pp") > 1 && plan.micro_shards == 0 ? 4 * parts.mesh.size("pp") : 1;
  for (const std::int64_t cut : config.get_ints("parallel.cuts")) plan.cuts.push_back(static_cast<int>(cut));
  if (plan.cuts.empty()) plan.cuts = parallel::ParallelModel::cuts_of_codec_state(parts.mesh, parts.codec);
  const int replicas = parts.mesh.size("dp") * parts.mesh.size("fsdp") * parts.mesh.size("ep");
  const int passes = std::max(1, parallel::micro_batches(plan, parts.mesh.layout()));
  const std::int64_t rows = std::max<std::int64_t>(1, parts.batch / replicas / passes);
  if (parts.mesh.size("pp") > 1) plan.sample = {at::zeros({rows, config.get_int("model.sequence")}, at::kLong)};
  plan.codec = config.get_string("parallel.codec");
  plan.context = config.get_string("parallel.context") == "ring" ? parallel::ContextMethod::kRing : parallel::ContextMethod::kHeads;
  plan.zero_stage = static_cast<int>(config.get_int("parallel.zero_stage"));
  plan.form = weights == "private" ? "gathered" : weights;
  const auto& recompute = config.get_string("train.recompute");
  plan.recompute = recompute == "none" ? Recompute::kNone : recompute == "full" ? Recompute::kFull : Recompute::kSelective;
  plan.precision = precision == "bf16" ? Precision::kBf16 : precision == "f16" ? Precision::kF16 : Precision::kAsItIs;
  plan.batch = parts.batch;
  return plan;
}

class ComposedText : public TextLearner {
 public:
  explicit ComposedText(const LearnerParts& parts)
      : mesh_(parts.mesh),
        plan_(plan_of(parts)),
        vocabulary_(parts.vocabulary),
        has_experts_(parts.config.get_int("model.experts") > 0),
        tp_(mesh_["tp"], 0),
        model_(parallel::parallelize(text_blocks(parts.config, parts.vocabulary), plan_, mesh_)) {}

  double train(const Batch& batch, observe::StepTimer& timer) override {
    const double loss = model_.train_step({batch.tokens}, {batch.targets});
    count_times(timer);
    const auto scope = timer.time(Phase::kOptimizer);
    model_.step();
    model_.zero_grad();
    timer.add(Phase::kOptimizer, -count_times(timer));
    return mesh_.world().rank() == 0 ? loss * static_cast<double>(batch.global) : 0;  // all ranks have it
  }

  at::Tensor score(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    const std::int64_t passes = parallel::micro_batches(plan_, mesh_.layout());
    const std::int64_t rows = batch.tokens.size(0), missing = std::max<std::int64_t>(0, passes - rows);
    // All replicas make all passes.
    const at::Tensor padding = at::zeros({missing, batch.tokens.size(1)}, at::kLong);
    const parallel::Tensors outputs = model_.predict({at::cat({batch.tokens, padding})});
    // Every rank of cp has these.
    if (outputs.empty() || rows == 0 || mesh_.coordinate("cp") > 0) return at::zeros({3}, at::kDouble);
    return score_of(outputs[0].narrow(0, 0, rows), batch.targets, vocabulary_, tp_);
  }

  // Each rank of pp has layers of its own, whose loads are over all ranks that share the batch.
  std::optional<ExpertUse> expert_use() override {
    if (!has_experts_) return std::nullopt;
    at::Tensor most = at::ones({1}, at::kDouble), choices = at::zeros({2}, at::kDouble);  // dropped, all
    for (const auto& [layer, load] : model_.take_expert_loads()) {
      most.clamp_min_(load.imbalance());
      choices[0] += std::accumulate(load.dropped.begin(), load.dropped.end(), 0.0);
      choices[1] += std::accumulate(load.wanted.begin(), load.wanted.end(), 0.0);
    }
    mesh_["pp"].all_reduce(most, ReduceOp::kMax);
    mesh_["pp"].all_reduce(choices);
    return ExpertUse{most.item<double>(), choices[0].item<double>() / std::max(1.0, choices[1].item<double>())};
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
    state.codec = model_.codec_state();
    return state;
  }

  void load(const State& state) override {
    NamedTensors all(state.model.begin(), state.model.end());
    all.insert(all.end(), state.optimizer.begin(), state.optimizer.end());
    all.insert(all.end(), state.scaling.begin(), state.scaling.end());
    model_.load_state(all);
    if (!model_.load_codec_state(state.codec) && mesh_.world().rank() == 0) {
      log_warn("the codec begins without memory: the checkpoint has none of this codec on this mesh");
    }
  }

 private:
  checkpoint::TensorMap& part_of(const std::string& name, State& state) const {
    if (name.starts_with("loss_scale")) return state.scaling;
    bool optimizers = name == "steps" || name.ends_with(".step");
    for (const std::string& array : parallel::state_names(plan_.optimizer.rule)) optimizers = optimizers || name.ends_with("." + array);
    return optimizers ? state.optimizer : state.model;
  }

  // Gives what was waited.
  std::chrono::nanoseconds count_times(observe::StepTimer& timer) {
    const auto add = [&](Phase phase, double seconds) {
      const std::chrono::nanoseconds time(std::llround(seconds * 1e9));
      timer.add(phase, time);
      return time;
    };
    const parallel::ParallelModel::Times times = model_.take_times();
    add(Phase::kForward, times.forward);
    add(Phase::kBackward, times.backward);
    return add(Phase::kCommunication, times.communication);
  }

  const Mesh mesh_;
  const parallel::Plan plan_;
  const std::int64_t vocabulary_;
  const bool has_experts_;
  const parallel::TensorParallel tp_;
  parallel::ParallelModel model_;
};

}  // namespace

void check_composed(const Config& config, const Mesh& mesh) {
  constexpr std::int64_t kAnyVocabulary = 1;
  const auto replicas = static_cast<std::int64_t>(mesh.size("dp")) * mesh.size("fsdp") * mesh.size("ep");
  const auto per_rank = config.get_int("train.batch_per_rank");
  const std::int64_t batch = per_rank > 0 ? per_rank * replicas : config.get_int("train.batch");
  const parallel::BlockModel model = text_blocks(config, kAnyVocabulary);
  const parallel::ModelShape shape{static_cast<int>(model.blocks.size()), model.splits, model.heads, model.kv_heads, model.experts};
  parallel::check_plan(plan_of({.config = config, .mesh = mesh, .vocabulary = kAnyVocabulary, .batch = batch}), shape, mesh.layout());
}

std::unique_ptr<TextLearner> make_composed(const LearnerParts& parts) { return std::make_unique<ComposedText>(parts); }

}  // namespace weft::train::internal
