// Random sequences of what programs do to their own module between two steps of a ParallelModel:
// each ends with the weights of one process, or is an error (engine/testing/sequences.h).
#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <optional>

#include "weft/checkpoint/slice.h"
#include "weft/engine/testing/sequences.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/compose/testing/states.h"

namespace weft::parallel {
namespace compose_habits_test {

namespace small_model = engine::small_model;
using namespace engine::habits;
using small_model::weights_of;
using Algorithm = schedule::pipeline::Algorithm;

// A mesh and a plan.
struct Way {
  const char* name;
  std::vector<Axis> axes;
  Plan plan = {};
  double tolerance = 1e-6;
  at::ScalarType type = at::kDouble;
  bool keeps_held = false;  // the program has slices of held(), as strategies do
  bool update_in_backward = false;

  int size(const std::string& axis) const {
    int size = 1;
    for (const Axis& one : axes) size *= one.name == axis ? one.size : 1;
    return size;
  }
  int ranks(int /*wanted*/) const { return size("pp") * size("dp") * size("fsdp"); }
  int replicas(int /*ranks*/) const { return size("dp") * size("fsdp"); }
  bool is_shared() const { return plan.weights != Weights::kPrivate; }
  // The program's weights have no values, until it gathers them.
  bool divides_weights() const { return size("fsdp") > 1 && plan.zero_stage == 3 && !is_shared(); }
};
const std::vector<Way> kWays{
    {"dp 2, private", {{"dp", 2}}, {.weights = Weights::kPrivate}},
    {"dp 2, shared", {{"dp", 2}}, {.weights = Weights::kShared}},
    {"dp 2, overlap_forward",
     {{"dp", 2}},
     {.weights = Weights::kPrivate, .data_parallel = {.overlap_forward = true}}},
    {"dp 3, micro-batches", {{"dp", 3}}, {.micro_batches = 2, .weights = Weights::kPrivate}},
    {"fsdp 2, ZeRO-1", {{"fsdp", 2}}, {.zero_stage = 1, .weights = Weights::kPrivate}},
    {"fsdp 2, ZeRO-2", {{"fsdp", 2}}, {.zero_stage = 2, .weights = Weights::kPrivate}},
    {"fsdp 2, ZeRO-3", {{"fsdp", 2}}, {.weights = Weights::kPrivate}},
    {"fsdp 2, ZeRO-3 shared", {{"fsdp", 2}}, {.weights = Weights::kShared}},
    {"pp 2", {{"pp", 2}}, {.micro_batches = 2, .weights = Weights::kPrivate}},
    {"pp 2 interleaved",
     {{"pp", 2}},
     {.schedule = Algorithm::kInterleaved, .micro_batches = 2, .weights = Weights::kPrivate}},
    {"pp 2, dp 2", {{"pp", 2}, {"dp", 2}}, {.micro_batches = 2, .weights = Weights::kPrivate}},
    {"pp 2, fsdp 2", {{"pp", 2}, {"fsdp", 2}}, {.micro_batches = 2, .weights = Weights::kPrivate}},
    {.name = "dp 2, powersgd",  // of full rank, so that it rounds only
     .axes = {{"dp", 2}},
     .plan = {.weights = Weights::kPrivate, .codec = "powersgd:10"},
     .tolerance = 1e-2,
     .type = at::kFloat},
    {.name = "dp 2, shared, held",
     .axes = {{"dp", 2}},
     .plan = {.weights = Weights::kShared},
     .keeps_held = true},
    {.name = "fsdp 2, ZeRO-1, held",
     .axes = {{"fsdp", 2}},
     .plan = {.zero_stage = 1, .weights = Weights::kPrivate},
     .keeps_held = true},
    {.name = "fsdp 2, ZeRO-3 shared, held",
     .axes = {{"fsdp", 2}},
     .plan = {.weights = Weights::kShared},
     .keeps_held = true},
    {.name = "pp 2, dp 2, without skipped steps",
     .axes = {{"pp", 2}, {"dp", 2}},
     .plan = {.micro_batches = 2, .weights = Weights::kPrivate, .skip_not_finite = false}},
};

class ComposedRank final : public Trainer {
 public:
  ComposedRank(const Group& world, const Way& way, const Rule& rule)
      : Trainer(way.replicas(world.size()), rule), world_(world), way_(way), rule_(rule) {
    make_parallel();
  }
  at::Tensor loss(const Pass& pass) override {
    const at::Tensor x = rows_of(pass, model_->replica());
    ++batches;
    model_->train_step({x}, {x});
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
    gather();
    return weights_of(parts);
  }
  void restart() override {
    gather();
    model_.reset();
    make_parallel();
  }
  // The first model ends after the second is made.
  void restart_beside() {
    gather();
    make_parallel();
  }
  ParallelModel& model() { return *model_; }
  // The slices that the program keeps, or new ones.
  ParallelModel::Held held() {
    if (!way_.keeps_held) return model_->held();
    model_->take_changes();  // what the program has loaded is in other memory than these slices
    return held_;
  }
  void gather() {
    model_->gather();
    const at::NoGradGuard no_grad;
    double sum = 0, place = 0;
    for (const at::Tensor& parameter : parameters())
      sum += parameter.sum().item<double>() * (1 + 0.01 * ++place);
    at::Tensor most = at::tensor({sum, -sum}, at::kDouble);
    world_.all_reduce(most, ReduceOp::kMax);
    small_model::require(std::abs(most.sum().item<double>()) < 1e-9, "gather: the ranks differ");
  }

 private:
  void make_parallel() {
    BlockModel model = blocks_of(small_model::blocks_of(parts));
    model.loss = [](const at::Tensor& y, const at::Tensor&) { return loss_of(y); };
    Plan plan = way_.plan;
    plan.optimizer = spec_of(rule_);
    plan.accumulate = 2;
    model_.emplace(parallelize(model, plan, Mesh(world_, way_.axes)));
    model_->set_accumulate(1);
    if (way_.keeps_held) held_ = model_->held();
  }

  const Group world_;
  const Way way_;
  const Rule rule_;
  std::optional<ParallelModel> model_;
  ParallelModel::Held held_;
  ParallelModel::NamedTensors state_;
};

std::unique_ptr<Trainer> trainer_of(const Group& world, const Way& way, const Rule& rule) {
  return std::make_unique<ComposedRank>(world, way, rule);
}

// Something that one process need not do.
void on_ranks(Trainer& trainer, const std::function<void(ComposedRank&)>& act) {
  if (auto* const rank = dynamic_cast<ComposedRank*>(&trainer)) act(*rank);
}
// The modules of all ranks are equal then.
void gather(Trainer& trainer) {
  on_ranks(trainer, [](ComposedRank& rank) { rank.gather(); });
}
void evaluate(Trainer& trainer) {
  on_ranks(trainer, [](ComposedRank& rank) {
    const at::Tensor x = batch_of(2, rank.type).slice(0, 0, 5);
    rank.model().evaluate({x}, {x});
  });
}
// With pp, all of the first rank's blocks.
void freeze_first(Trainer& trainer, bool requires_grad) {
  for (const std::size_t part : {0U, 1U}) {
    for (at::Tensor& parameter : trainer.parts[part]->parameters())
      parameter.requires_grad_(requires_grad);
  }
}
// Changes a weight where this rank has its values: ranks of other stages have none.
void change(at::Tensor weight, const std::function<void(at::Tensor&)>& how) {
  if (checkpoint::has_values(weight)) how(weight);
}
void change_without_grad(at::Tensor weight) {
  without_grad([&] { change(weight, [](at::Tensor& w) { w.mul_(0.8); }); });
}
at::Tensor& weight(Trainer& trainer, std::size_t part = 1) {
  return trainer.parts[part]->fc->weight;
}
void load_file(Trainer& t) {
  small_model::Part saved(t.parts[3]->fc->weight.size(1), t.parts[3]->fc->weight.size(0));
  saved->to(t.type);
  small_model::fill(*saved, t.batches);
  std::stringstream file;
  torch::save(saved, file);
  for (const std::size_t part : {1U, 3U}) {
    file.seekg(0);
    torch::load(t.parts[part], file);
  }
}
// All ranks that share memory write the same values.
void write_held(Trainer& t) {
  const at::Tensor& whole = weight(t);
  const at::Tensor values =
      ((torch::arange(whole.numel(), at::kDouble) * 0.37 + t.batches).sin() * 0.3)
          .view(whole.sizes())
          .to(t.type);
  without_grad([&] {
    auto* const rank = dynamic_cast<ComposedRank*>(&t);
    if (rank == nullptr) {
      weight(t).copy_(values);
      return;
    }
    const ParallelModel::Held held = rank->held();
    for (const auto& slice : held.weights) {
      if (slice.name != "b1.fc.weight") continue;
      at::Tensor part = values;
      for (std::int64_t dim = 0; dim < part.dim(); ++dim)
        part =
            part.narrow(dim, slice.offset[static_cast<std::size_t>(dim)], slice.tensor.size(dim));
      slice.tensor.detach().copy_(part);
    }
    rank->model().take_changes();
  });
}

bool always(const Way&) { return true; }
bool to_shared_weights(const Way& way) { return way.is_shared(); }
bool to_divided_weights(const Way& way) { return way.divides_weights(); }
// One process can write to any weight, a rank only to one with values.
bool with_values(const Way& way) { return !way.divides_weights(); }

const std::vector<Habit<Way>> kHabits{
    {"trains", [](Trainer& t) { t.train(); }},
    {"lets gradients add up", add_up, always},
    {"evaluates", evaluate},
    {"predicts",
     [](Trainer& t) {
       on_ranks(t, [](ComposedRank& rank) { rank.model().predict({batch_of(3, rank.type)}); });
     }},
    {"sets the learning rate", [](Trainer& t) { t.set_lr(0.02); }},
    {"sets the learning rate before step()",
     [](Trainer& t) { between(t, [&] { t.set_lr(0.03); }); }},
    {"writes a weight", [](Trainer& t) { change_without_grad(weight(t)); }, to_shared_weights,
     with_values},
    {"writes a weight through data()",
     [](Trainer& t) { change(weight(t), [](at::Tensor& w) { w.data().mul_(0.8); }); },
     to_shared_weights, with_values},
    {"writes one value through data()",
     [](Trainer& t) { change(weight(t, 3), [](at::Tensor& w) { w.data()[2][3] += 0.5; }); },
     to_shared_weights, with_values},
    {"writes a weight before step()",
     [](Trainer& t) { between(t, [&] { change_without_grad(weight(t)); }); }, to_shared_weights,
     with_values},
    {"keeps a view of a weight",
     [](Trainer& t) {
       at::Tensor view;
       t.parts[1]->look = [&](small_model::PartImpl& part) { view = part.fc->weight.detach(); };
       t.train();
       t.parts[1]->look = nullptr;
       if (view.defined()) view.norm().item<double>();
     },
     to_divided_weights},
    {"clamps a weight while its block runs", clamp_while_block_runs,
     [](const Way& way) { return way.is_shared() || way.divides_weights(); }},
    {"replaces a weight", replace_bias, to_divided_weights},
    {"loads a file on every rank", load_file, to_divided_weights},
    {"loads a file on every rank before step()",
     [](Trainer& t) { between(t, [&] { load_file(t); }); }, always},
    {"freezes a layer", [](Trainer& t) { freeze(t, false); }},
    {"trains it again", [](Trainer& t) { freeze(t, true); }},
    {"freezes it before step()", [](Trainer& t) { between(t, [&] { freeze(t, false); }); }, always},
    {"accumulates",
     [](Trainer& t) {
       accumulate(t, [&](int batches) {
         on_ranks(t, [&](ComposedRank& rank) { rank.model().set_accumulate(batches); });
       });
     }},
    {"drops the gradients of a batch", drop_batch, always},
    {"divides a batch unevenly", [](Trainer& t) { t.train({.shares = Pass::Shares::kUneven}); }},
    {"gives a batch to rank 0 only",
     [](Trainer& t) { t.train({.shares = Pass::Shares::kRankZero}); }},
    {"takes a smaller batch", [](Trainer& t) { t.train({.rows = 7}); }},
    {"steps again", [](Trainer& t) { between(t, [&] { t.step(); }); }, always},
    {"steps without gradients", step_without_gradients, always},
    {"freezes the first stage", [](Trainer& t) { freeze_first(t, false); }},
    {"trains that again", [](Trainer& t) { freeze_first(t, true); }},
    {"evaluates before step()", [](Trainer& t) { between(t, [&] { evaluate(t); }); }},
    {"gathers before step()", [](Trainer& t) { between(t, [&] { gather(t); }); }},
    {"saves its state before step()", [](Trainer& t) { between(t, [&] { t.save(); }); }},
    {"goes back to the saved state before step()",
     [](Trainer& t) { between(t, [&] { t.load(); }); },
     [](const Way& way) { return way.is_shared() || way.divides_weights(); }},
    {"saves its state", [](Trainer& t) { t.save(); }},
    {"goes back to the saved state", [](Trainer& t) { t.load(); }},
    {"converts to the same type",
     [](Trainer& t) {
       for (small_model::Part& part : t.parts) part->to(t.type);
     },
     to_divided_weights},
    {"reads weights",
     [](Trainer& t) {
       for (const at::Tensor& parameter : t.parameters())
         change(parameter, [](at::Tensor& w) { w.norm().item<double>(); });
     }},
    {"gathers", gather},
    {"loads a file and gathers",
     [](Trainer& t) {
       load_file(t);
       gather(t);
     },
     to_divided_weights},
    {"goes back to the saved state and gathers",
     [](Trainer& t) {
       t.load();
       gather(t);
     }},
    {"gathers and writes a weight",
     [](Trainer& t) {
       gather(t);
       without_grad([&] { weight(t).mul_(0.8); });
     },
     to_shared_weights},
    {"gathers and writes a weight through data()",
     [](Trainer& t) {
       gather(t);
       weight(t).data().mul_(0.8);
     },
     to_shared_weights},
    {"gathers and replaces a weight",
     [](Trainer& t) {
       gather(t);
       replace_bias(t);
     },
     to_divided_weights},
    {"gathers and loads a file",
     [](Trainer& t) {
       gather(t);
       load_file(t);
     },
     to_divided_weights},
    {"writes held values", write_held},
    {"compares replicas",
     [](Trainer& t) {
       on_ranks(t, [](ComposedRank& rank) {
         small_model::require(rank.model().compare_replicas().empty(), "replicas differ");
       });
     }},
    {"is made parallel again",
     [](Trainer& t) {
       freeze(t, true);
       freeze_first(t, true);
       t.restart();
     }},
    {"is made parallel again beside the first",
     [](Trainer& t) {
       freeze(t, true);
       freeze_first(t, true);
       auto* const rank = dynamic_cast<ComposedRank*>(&t);
       rank != nullptr ? rank->restart_beside() : t.restart();
     }},
};

Sequences<Way> sequences() {
  std::vector<const Way*> ways;
  for (const Way& way : kWays) ways.push_back(&way);
  return {ways, kHabits, trainer_of};
}

TEST(ComposeHabits, ThatWereFaultsAreNone) {
  const auto tries = sequences();
  for (const Way& way : kWays) {
    if (way.ranks(2) > 2 || way.type != at::kDouble || way.keeps_held) continue;
    for (const std::vector<const char*>& names :
         {std::vector<const char*>{"gathers and replaces a weight", "gathers"},
          {"gathers and loads a file", "writes held values"},
          {"gathers and writes a weight"},
          {"gathers and writes a weight", "gathers before step()"},
          {"gathers and writes a weight through data()", "gathers", "trains"},
          {"gathers", "trains", "loads a file and gathers"},
          {"replaces a weight", "compares replicas", "loads a file and gathers"},
          {"gathers and replaces a weight", "writes a weight", "writes held values"},
          {"gathers before step()"},
          {"loads a file on every rank", "evaluates"},
          {"is made parallel again", "lets gradients add up"},
          {"gathers and writes a weight", "saves its state", "goes back to the saved state"},
          {"saves its state", "loads a file on every rank", "writes held values",
           "goes back to the saved state", "loads a file and gathers"},
          {"saves its state", "gathers", "goes back to the saved state and gathers"}})
      tries.expect_right(tries.named(way, names));
    Sequence<Way> clipped = tries.named(way, {"lets gradients add up"});
    clipped.rule.clip = 0.05;
    tries.expect_right(clipped);
  }
}

TEST(ComposeHabits, OfAProgramWithHeldSlicesThatWereFaultsAreNone) {
  const auto tries = sequences();
  for (const Way& way : kWays) {
    if (!way.keeps_held) continue;
    for (const std::vector<const char*>& names :
         {std::vector<const char*>{"gathers and writes a weight through data()", "gathers"},
          {"loads a file on every rank", "writes held values", "gathers"}})
      tries.expect_right(tries.named(way, names));
  }
}

TEST(ComposeHabits, CountAsInOneProcessOrAreAnError) { sequences().expect_right(10); }

}  // namespace compose_habits_test
}  // namespace weft::parallel
