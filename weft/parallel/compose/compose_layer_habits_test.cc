// Random sequences of what programs do between two steps of a ParallelModel whose layers are
// divided by tp, cp and ep. Each ends with the weights of torch::nn in one process, or is an error
// (engine/testing/sequences.h). compose_habits_test.cc has modules of the caller.
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <map>
#include <optional>

#include "weft/checkpoint/slice.h"
#include "weft/engine/testing/sequences.h"
#include "weft/parallel/compose/testing/by_torch.h"
#include "weft/parallel/compose/testing/states.h"

namespace weft::parallel {
namespace compose_layer_habits_test {

namespace small_model = engine::small_model;
using namespace engine::habits;
using internal::Tiny;

// A mesh, a plan and a model.
struct Way {
  const char* name;
  std::vector<Axis> axes;
  Plan plan = {};
  Tiny how = {};
  double tolerance = 1e-6;
  bool update_in_backward = false;

  int size(const std::string& axis) const {
    int size = 1;
    for (const Axis& one : axes) size *= axis.empty() || one.name == axis ? one.size : 1;
    return size;
  }
  int ranks(int /*wanted*/) const { return size(""); }
  int replicas(int /*ranks*/) const { return size("dp") * size("fsdp") * size("ep"); }
  bool is_shared() const { return plan.weights != Weights::kPrivate; }
  bool divides_weights() const { return size("fsdp") > 1 && plan.zero_stage == 3 && !is_shared(); }
};

const Tiny kAttends{.bodies = 2, .length = 7, .attends = true};
const Tiny kExperts{.bodies = 2, .experts = 4};
const std::vector<Way> kWays{
    {"tp 2", {{"tp", 2}}, {.weights = Weights::kPrivate}},
    {"dp 2, tp 2, shared", {{"dp", 2}, {"tp", 2}}, {.weights = Weights::kShared}},
    {"fsdp 2, tp 2, ZeRO-1",
     {{"fsdp", 2}, {"tp", 2}},
     {.zero_stage = 1, .weights = Weights::kPrivate}},
    {"fsdp 2, tp 2, ZeRO-3", {{"fsdp", 2}, {"tp", 2}}, {.weights = Weights::kPrivate}},
    {"pp 2, tp 2", {{"pp", 2}, {"tp", 2}}, {.micro_batches = 2, .weights = Weights::kPrivate}},
    {"cp 2", {{"cp", 2}}, {.weights = Weights::kPrivate}, kAttends},
    {"fsdp 2, cp 2, ZeRO-2",
     {{"fsdp", 2}, {"cp", 2}},
     {.zero_stage = 2, .weights = Weights::kPrivate},
     kAttends},
    {"fsdp 2, cp 2, ZeRO-3, shared",
     {{"fsdp", 2}, {"cp", 2}},
     {.weights = Weights::kShared},
     kAttends},
    {"ep 2", {{"ep", 2}}, {.weights = Weights::kPrivate}, kExperts},
    {"dp 2, ep 2", {{"dp", 2}, {"ep", 2}}, {.weights = Weights::kPrivate}, kExperts},
    {"fsdp 2, ep 2, ZeRO-1",
     {{"fsdp", 2}, {"ep", 2}},
     {.zero_stage = 1, .weights = Weights::kPrivate},
     kExperts},
    {"fsdp 2, ep 2, ZeRO-3, shared",
     {{"fsdp", 2}, {"ep", 2}},
     {.weights = Weights::kShared},
     kExperts},
};

// The language model of testing/tiny.h. Its parts are blocks, which the program knows by name.
class Layers : public Trainer {
 public:
  Layers(const Way& way, const Rule& rule)
      : Trainer(way.replicas(0), rule), how(way.how), rule(rule) {}
  using Change = std::function<void(at::Tensor& parameter)>;
  // Changes each parameter of a block that this rank has, in an equal way for each value.
  virtual void change(const std::string& block, const Change& fn) = 0;

  const Tiny how;
  const Rule rule;

 protected:
  // This replica's rows of the next batch; `shift`: 0 for the inputs, 1 for the targets.
  at::Tensor rows(const Pass& pass, int first, int last, int shift) const {
    return internal::tokens_of(batches, shift, how.length)
        .slice(0, pass.begin(first, ranks), pass.begin(last, ranks));
  }
};

// By torch::nn, in one process.
class LayersAlone final : public Layers {
 public:
  LayersAlone(const Way& way, const Rule& rule)
      : Layers(way, rule),
        model_(internal::same_model(how), internal::initial_weights(how), how.type) {
    for (const auto& [name, parameter] : model_.parameters()) all_.push_back(parameter);
    if (rule.adam)
      optimizer_ = std::make_unique<torch::optim::AdamW>(all_, torch::optim::AdamWOptions(0.01));
    else
      optimizer_ =
          std::make_unique<torch::optim::SGD>(all_, torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  at::Tensor loss(const Pass& pass) override {
    const at::Tensor loss = model_.loss(rows(pass, 0, ranks, 0), rows(pass, 0, ranks, 1));
    ++batches;
    return loss;
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  void step() override {
    if (rule.clip > 0) torch::nn::utils::clip_grad_norm_(all_, rule.clip);
    optimizer_->step();
  }
  void set_lr(double lr) override { optimizer_->param_groups()[0].options().set_lr(lr); }
  void save() override {
    saved_.clear();
    for (const at::Tensor& parameter : all_) saved_.push_back(parameter.detach().clone());
    std::ostringstream state;
    torch::save(*optimizer_, state);
    state_ = state.str();
  }
  void load() override {
    if (state_.empty()) return;
    for (std::size_t i = 0; i < all_.size(); ++i) all_[i].set_data(saved_[i].clone());
    std::istringstream state(state_);
    const double lr = optimizer_->param_groups()[0].options().get_lr();
    optimizer_->state().clear();
    torch::load(*optimizer_, state);
    set_lr(lr);
  }
  Named weights() override {
    Named all;
    for (const auto& [name, parameter] : model_.parameters())
      all[name] = parameter.detach().clone();
    return all;
  }
  void change(const std::string& block, const Change& fn) override {
    for (auto& [name, parameter] : model_.parameters()) {
      if (name.starts_with(block + ".")) fn(parameter);
    }
  }
  void scale_held(double factor) override {
    const at::NoGradGuard guard;
    for (at::Tensor& parameter : all_) parameter.mul_(factor);
  }

 private:
  internal::reference::Model model_;
  std::vector<at::Tensor> all_, saved_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::string state_;
};

class LayersRank final : public Layers {
 public:
  LayersRank(const Group& world, const Way& way, const Rule& rule)
      : Layers(way, rule), world_(world) {
    BlockModel model = internal::tiny_model(how);
    for (BlockSpec& spec : model.blocks) {
      spec.make = [this, name = spec.name, make = spec.make](const Contexts& with) {
        Block block = make(with);
        modules_[name] = block.module;
        return block;
      };
    }
    Plan plan = way.plan;
    plan.optimizer = spec_of(rule);
    plan.seed = internal::kSeed;
    plan.accumulate = 2;
    model_.emplace(parallelize(model, plan, Mesh(world, way.axes)));
    model_->set_accumulate(1);
  }
  at::Tensor loss(const Pass& pass) override {
    const int mine = model_->replica();
    model_->train_step({rows(pass, mine, mine + 1, 0)}, {rows(pass, mine, mine + 1, 1)});
    ++batches;
    return {};  // backward is done
  }
  void zero_grad() override { model_->zero_grad(); }
  void step() override { small_model::require(model_->step(), "a step was skipped"); }
  void set_lr(double lr) override { model_->set_lr(lr); }
  void save() override { state_ = internal::state_on_all(*model_, world_); }
  void load() override {
    if (!state_.empty()) model_->load_state(state_);
  }
  Named weights() override {
    const ParallelModel::NamedTensors state = model_->state();
    const Named all(state.begin(), state.end());
    Named weights;
    for (const auto& [name, tensor] : all) {
      if (all.contains(name + ".step")) weights[name] = tensor;
    }
    return weights;
  }
  void change(const std::string& block, const Change& fn) override {
    const auto module = modules_.find(block);
    if (module == modules_.end()) return;
    for (at::Tensor& parameter : module->second->parameters()) fn(parameter);
  }
  void scale_held(double factor) override {
    const at::NoGradGuard guard;
    model_->take_changes();
    const ParallelModel::Held held = model_->held();
    for (const checkpoint::Slice& slice : held.weights) slice.tensor.mul_(factor);
    model_->take_changes();
  }
  ParallelModel& model() { return *model_; }

 private:
  const Group world_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::optional<ParallelModel> model_;
  ParallelModel::NamedTensors state_;
};

constexpr const char* kBlock = "body.1";
void on_ranks(Trainer& trainer, const std::function<void(LayersRank&)>& act) {
  if (auto* const rank = dynamic_cast<LayersRank*>(&trainer)) act(*rank);
}
void change(Trainer& trainer, const Layers::Change& how) {
  dynamic_cast<Layers&>(trainer).change(kBlock, how);
}
void write(Trainer& trainer) {
  without_grad([&] { change(trainer, [](at::Tensor& p) { p.mul_(0.9); }); });
}
void replace(Trainer& trainer) {
  change(trainer, [](at::Tensor& p) { p.set_data(p.detach() * 0.9 + 0.01); });
}
void freeze_block(Trainer& trainer, bool requires_grad) {
  change(trainer, [&](at::Tensor& p) { p.requires_grad_(requires_grad); });
}

bool always(const Way&) { return true; }
bool never(const Way&) { return false; }
bool to_shared_weights(const Way& way) { return way.is_shared(); }
// One process can write to any weight, a rank only to one with values.
bool with_values(const Way& way) { return !way.divides_weights(); }

const std::vector<Habit<Way>> kHabits{
    {"trains", [](Trainer& t) { t.train(); }},
    {"lets gradients add up", add_up, always},
    {"evaluates",
     [](Trainer& t) {
       on_ranks(t, [](LayersRank& rank) {
         rank.model().evaluate({internal::tokens_of(1, 0, rank.how.length)},
                               {internal::tokens_of(1, 1, rank.how.length)});
       });
     }},
    {"sets the learning rate", [](Trainer& t) { t.set_lr(0.02); }},
    {"sets the learning rate before step()",
     [](Trainer& t) { between(t, [&] { t.set_lr(0.03); }); }},
    {"writes weights", write, to_shared_weights, with_values},
    {"writes weights through data()",
     [](Trainer& t) { change(t, [](at::Tensor& p) { p.data().mul_(0.9); }); }, to_shared_weights,
     with_values},
    {"writes weights before step()", [](Trainer& t) { between(t, [&] { write(t); }); },
     to_shared_weights, with_values},
    {"replaces weights", replace, never, with_values},
    {"replaces weights before step()", [](Trainer& t) { between(t, [&] { replace(t); }); },
     to_shared_weights, with_values},
    {"freezes a block", [](Trainer& t) { freeze_block(t, false); }},
    {"trains it again", [](Trainer& t) { freeze_block(t, true); }},
    {"freezes it before step()", [](Trainer& t) { between(t, [&] { freeze_block(t, false); }); },
     always},
    {"accumulates",
     [](Trainer& t) {
       accumulate(t, [&](int batches) {
         on_ranks(t, [&](LayersRank& rank) { rank.model().set_accumulate(batches); });
       });
     }},
    {"drops the gradients of a batch", drop_batch, always},
    {"divides a batch unevenly", [](Trainer& t) { t.train({.shares = Pass::Shares::kUneven}); }},
    {"gives a batch to rank 0 only",
     [](Trainer& t) { t.train({.shares = Pass::Shares::kRankZero}); }},
    {"takes a smaller batch", [](Trainer& t) { t.train({.rows = 7}); }},
    {"steps again", [](Trainer& t) { between(t, [&] { t.step(); }); }, always},
    {"steps without gradients", step_without_gradients, always},
    {"saves its state", [](Trainer& t) { t.save(); }},
    {"goes back to the saved state", [](Trainer& t) { t.load(); }},
    {"saves its state before step()", [](Trainer& t) { between(t, [&] { t.save(); }); }},
    {"goes back to the saved state before step()",
     [](Trainer& t) { between(t, [&] { t.load(); }); },
     [](const Way& way) { return way.is_shared() || way.divides_weights(); }},
    {"writes held values", [](Trainer& t) { t.scale_held(0.95); }},
    {"compares replicas",
     [](Trainer& t) {
       on_ranks(t, [](LayersRank& rank) {
         small_model::require(rank.model().compare_replicas().empty(), "replicas differ");
       });
     }},
};

Sequences<Way> sequences() {
  std::vector<const Way*> ways;
  for (const Way& way : kWays) ways.push_back(&way);
  return {
      ways, kHabits,
      [](const Group& world, const Way& way, const Rule& rule) {
        return std::make_unique<LayersRank>(world, way, rule);
      },
      [](const Way& way, const Rule& rule) { return std::make_unique<LayersAlone>(way, rule); }};
}

TEST(ComposeLayerHabits, CountAsInOneProcessOrAreAnError) { sequences().expect_right(3); }

}  // namespace compose_layer_habits_test
}  // namespace weft::parallel
