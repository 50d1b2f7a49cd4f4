// Test helper: a small model and an optimizer behind one interface, for one process and for ranks
// (trainers.h).
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "weft/engine/testing/small_model.h"

namespace weft::engine::habits {

using small_model::batch_of;
using small_model::kBatch;
using small_model::loss_of;
using small_model::Named;
using small_model::Part;
using small_model::Path;
using Parts = std::vector<Part>;
using Forward = std::function<at::Tensor(const at::Tensor& x, const Path& path)>;

// How the ranks train.
struct Way {
  const char* name;
  int stage = 0;
  Weights weights = Weights::kPrivate;
  bool torch_optimizer = false;
  bool module = false;  // data_parallel(), not Sharded
  bool overlap_forward = false;
  bool update_in_backward = false;  // which refuses more
  const char* codec = "none";
  double tolerance = 1e-6;  // of weights; above 1e-3 only with SGD
  at::ScalarType type = at::kDouble;
  std::size_t split = 0;    // parts before it have an optimizer of their own; 0: one optimizer
  bool keeps_held = false;  // the program has slices of held(), as strategies do
  int64_t width = 0;        // of the model; 0: drawn

  bool is_plain() const { return split == 0 && !keeps_held && width <= 10; }
  bool is_zero() const { return stage > 0; }
  bool is_sharded() const { return !module && !torch_optimizer; }
  bool is_shared() const { return weights != Weights::kPrivate; }
  bool divides_weights() const { return stage == 3 && !is_shared(); }
  int ranks(int wanted) const { return wanted; }
  int replicas(int ranks) const { return ranks; }
};
inline const std::vector<Way> kWays{
    {"torch::optim", 0, Weights::kPrivate, true, true},
    {"data_parallel(), private", 0, Weights::kPrivate, false, true},
    {"data_parallel(), shared", 0, Weights::kShared, false, true},
    {.name = "data_parallel(), private, overlap_forward", .module = true, .overlap_forward = true},
    {.name = "data_parallel(), shared, update_in_backward",
     .weights = Weights::kShared,
     .module = true,
     .update_in_backward = true},
    {.name = "data_parallel(), private, powersgd",  // of full rank, so that it rounds only
     .module = true,
     .codec = "powersgd:10",
     .tolerance = 1e-2,
     .type = at::kFloat,
     .width = 10},
    {.name = "data_parallel(), above the limit of shared weights",
     .weights = Weights::kAuto,
     .module = true,
     .width = 430},
    {.name = "two models, torch::optim", .torch_optimizer = true, .module = true, .split = 2},
    {.name = "two models, private", .module = true, .split = 2},
    {.name = "two models, shared", .weights = Weights::kShared, .module = true, .split = 2},
    {"Sharded, private, stage 0", 0},
    {"Sharded, private, stage 1", 1},
    {"Sharded, private, stage 2", 2},
    {"Sharded, private, stage 3", 3},
    {"Sharded, shared, stage 1", 1, Weights::kShared},
    {"Sharded, shared, stage 2", 2, Weights::kShared},
    {"Sharded, shared, stage 3", 3, Weights::kShared},
    {.name = "Sharded, private, stage 1, held", .stage = 1, .keeps_held = true},
    {.name = "Sharded, shared, stage 0, held", .weights = Weights::kShared, .keeps_held = true},
    {.name = "Sharded, shared, stage 2, held",
     .stage = 2,
     .weights = Weights::kShared,
     .keeps_held = true},
};

// The optimizer.
struct Rule {
  bool adam = false;
  double clip = 0;     // 2-norm of the gradient; 0: none
  int64_t width = 10;  // of the model
  at::ScalarType type = at::kDouble;
  std::size_t split = 0;  // parts before it have an optimizer of their own; 0: one optimizer
};

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(Parts all) : parts(std::move(all)) {
    for (std::size_t i = 0; i < parts.size(); ++i)
      register_module(small_model::part_name(i), parts[i]);
  }
  at::Tensor forward(at::Tensor x, const Path& path) {
    for (const std::size_t part : path) x = parts[part](x);
    return x;
  }
  Parts parts;
};
TORCH_MODULE(Chain);

// The rows of a batch, divided over the ranks, and the parts that run.
struct Pass {
  int64_t rows = kBatch;
  enum class Shares { kEven, kUneven, kRankZero } shares = Shares::kEven;
  std::vector<int> without = {};  // by rank: the part that it leaves out; -1: none
  int twice = -1;                 // a part that runs twice
  bool penalty = false;           // adds the gradient of the loss by the input, squared

  int64_t begin(int rank, int ranks) const {
    if (shares == Shares::kRankZero) return rank == 0 ? 0 : rows;
    if (shares == Shares::kEven) return rows * rank / ranks;
    return rows * rank * (rank + 1) / (ranks * (ranks + 1));
  }
  Path path(int rank, std::size_t parts) const {
    const int left_out =
        without.empty() ? -1 : without[static_cast<std::size_t>(rank) % without.size()];
    Path path;
    for (std::size_t part = 0; part < parts; ++part) {
      if (static_cast<int>(part) != left_out) path.push_back(part);
      if (static_cast<int>(part) == twice) path.push_back(part);
    }
    return path;
  }
};

// Accumulates without communication as long as the result lives.
template <class Model>
std::shared_ptr<void> pause(Model& model) {
  return std::shared_ptr<NoSync>(new NoSync{model.no_sync()});
}

// A model that trains, in one process or on a rank.
class Trainer {
 public:
  Trainer(int ranks, const Rule& rule)
      : ranks(ranks),
        type(rule.type),
        parts(small_model::make_parts({.type = rule.type, .width = rule.width})) {}
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  virtual ~Trainer() = default;

  // The loss of this rank's share; of all shares in one process. Undefined without a share.
  virtual at::Tensor loss(const Pass& pass) = 0;
  virtual void zero_grad() = 0;
  virtual void step() = 0;
  virtual void set_lr(double lr) = 0;
  // With several optimizers: of one of them.
  virtual void zero_grad_of(std::size_t /*optimizer*/) { zero_grad(); }
  virtual void step_of(std::size_t /*optimizer*/) { step(); }
  virtual std::shared_ptr<void> no_sync() { return nullptr; }
  virtual void skip_batch() {}
  virtual void save() = 0;
  virtual void load() = 0;
  // Makes the model parallel again, and the optimizer, without gradients.
  virtual void restart() {}
  // Multiplies weights by a factor through held().
  virtual void scale_held(double /*factor*/) {}
  virtual Named weights() { return small_model::weights_of(parts); }

  void backward(const Pass& pass = {}) {
    const at::Tensor mine = loss(pass);
    mine.defined() ? mine.backward() : skip_batch();
  }
  void train(const Pass& pass = {}) {
    zero_grad();
    backward(pass);
    step();
  }
  std::vector<at::Tensor> parameters() {
    std::vector<at::Tensor> all;
    for (Part& part : parts) {
      for (at::Tensor& parameter : part->parameters()) all.push_back(parameter);
    }
    return all;
  }

  const int ranks;
  const at::ScalarType type;
  int batches = 0;  // that were used
  Parts parts;

 protected:
  // The mean over the share of a rank; undefined without a share.
  at::Tensor loss_of_share(const Pass& pass, int rank, const Forward& forward) const {
    const at::Tensor rows = rows_of(pass, rank);
    if (rows.size(0) == 0) return {};
    const Path path = pass.path(rank, parts.size());
    if (!pass.penalty) return loss_of(forward(rows, path));
    const at::Tensor x = rows.detach().clone().requires_grad_();
    const at::Tensor y = forward(x, path);
    const at::Tensor slope = torch::autograd::grad({y.square().sum()}, {x}, /*grad_outputs=*/{},
                                                   /*retain_graph=*/true, /*create_graph=*/true)[0];
    return loss_of(y) + 0.1 * slope.square().sum(1).mean();
  }
  // Of the next batch.
  at::Tensor next_loss(const Pass& pass, int rank, const Forward& forward) {
    const at::Tensor loss = loss_of_share(pass, rank, forward);
    ++batches;
    return loss;
  }
  at::Tensor rows_of(const Pass& pass, int rank) const {
    return batch_of(batches, type).slice(0, pass.begin(rank, ranks), pass.begin(rank + 1, ranks));
  }
  void save_weights() {
    saved_.clear();
    for (const at::Tensor& parameter : parameters()) saved_.push_back(parameter.detach().clone());
  }
  void load_weights() {
    std::size_t i = 0;
    for (at::Tensor& parameter : parameters()) parameter.set_data(saved_[i++].clone());
  }

 private:
  std::vector<at::Tensor> saved_;
};

inline void replace_bias(Trainer& trainer) {
  at::Tensor& bias = trainer.parts[1]->fc->bias;
  bias.set_data(torch::arange(bias.numel(), trainer.type) * 0.005 + 0.1 * trainer.batches);
}

}  // namespace weft::engine::habits
