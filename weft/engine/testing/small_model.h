// Test helpers: a small model of blocks, trained by one process, and by ranks.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/sharded.h"

namespace weft::engine::small_model {

inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

using Named = std::map<std::string, at::Tensor>;
// h + tanh(fc(norm(h))); the first block has no residual sum, the last may be tied to the first
// one's weight.
struct PartImpl : torch::nn::Module {
  PartImpl(int64_t in, int64_t out) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({in})));
    fc = register_module("fc", torch::nn::Linear(in, out));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (look) look(*this);
    const at::Tensor h = torch::tanh(fc(norm(x))), y = x.size(1) == h.size(1) ? x + h : h;
    return tied.defined() ? torch::linear(y, tied.t()) : y;
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear fc{nullptr};
  at::Tensor tied;
  std::function<void(PartImpl&)> look = nullptr;  // called while the block runs
};
TORCH_MODULE(Part);

struct ModelOptions {
  at::ScalarType type = at::kDouble;
  bool tie = false;     // the last block has the first one's weight
  bool freeze = false;  // the third block is not trained
  int64_t width = 10;
  int bodies = 3;
};

// Gives the parameters values by a formula, since ranks may be threads that share one random
// generator. `phase` grows by one for each parameter. Returns it.
inline double fill(const torch::nn::Module& module, double phase = 0) {
  const at::NoGradGuard guard;
  for (at::Tensor& p : module.parameters())
    p.copy_(((torch::arange(p.numel(), at::kDouble) * 0.7 + ++phase).sin() * 0.4).view(p.sizes()));
  return phase;
}

// Adds copies of the parameters, by `prefix` and their names.
inline void add_weights(Named& all, const std::string& prefix, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    all[prefix + item.key()] = item.value().detach().clone();
}

inline std::vector<Part> make_parts(const ModelOptions& options) {
  std::vector<Part> parts{Part(6, options.width)};
  for (int i = 0; i < options.bodies; ++i) parts.emplace_back(options.width, options.width);
  if (options.tie)
    parts.back()->tied = parts.back()->register_parameter("tied", parts[0]->fc->weight);
  double phase = 0;
  for (auto& part : parts) {
    part->to(options.type);
    if (part->tied.defined()) part->tied = part->named_parameters()["tied"];
    phase = fill(*part, phase);
  }
  if (options.freeze) {
    for (auto& p : parts[2]->parameters()) p.set_requires_grad(false);
  }
  return parts;
}

inline std::string part_name(std::size_t i) {
  std::string name = std::to_string(i);
  name.insert(name.begin(), 'b');  // g++ 12 warns of "b" + std::to_string(i)
  return name;
}

inline Named weights_of(const std::vector<Part>& parts) {
  Named all;
  for (std::size_t i = 0; i < parts.size(); ++i) add_weights(all, part_name(i) + ".", *parts[i]);
  return all;
}

inline std::vector<Block> blocks_of(const std::vector<Part>& parts) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < parts.size(); ++i) blocks.push_back(block(part_name(i), parts[i]));
  return blocks;
}

constexpr int64_t kBatch = 11;
constexpr int kSteps = 5;
inline at::Tensor batch_of(int step, at::ScalarType type) {
  return (torch::arange(kBatch * 6, at::kDouble) * 0.37 + step).sin().view({kBatch, 6}).to(type);
}
inline int64_t begin_of(int rank, int world) { return kBatch * rank / world; }
inline at::Tensor part_of(const at::Tensor& all, int rank, int world) {
  return all.slice(0, begin_of(rank, world), begin_of(rank + 1, world));
}
// Mean over samples, for any number of outputs.
inline at::Tensor loss_of(const at::Tensor& y) { return (y - 0.3).square().sum(1).mean(); }

// The blocks that a rank runs, in this order. Empty: all.
using Path = std::vector<std::size_t>;

struct Trained {
  std::vector<double> losses;
  Named gradients, weights;  // gradients of the last step; weights after it
};

// Trains by torch in one process. The batch is divided into as many parts as there are paths.
template <class TorchOptimizer, class Options>
Trained by_torch(const ModelOptions& how, const Options& options,
                 const std::vector<Path>& paths = {{}}, double clip = 0) {
  const auto parts = make_parts(how);
  Named params;
  std::vector<at::Tensor> trained;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto& item : parts[i]->named_parameters()) {
      if (item.key() == "tied") continue;
      params[part_name(i) + "." + item.key()] = item.value();
      if (item.value().requires_grad()) trained.push_back(item.value());
    }
  }
  TorchOptimizer optim(trained, options);
  Trained result;
  const int world = static_cast<int>(paths.size());
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    at::Tensor loss = at::scalar_tensor(0.0, how.type);
    for (int rank = 0; rank < world; ++rank) {
      at::Tensor h = part_of(batch_of(step, how.type), rank, world);
      const double share = static_cast<double>(h.size(0)) / kBatch;
      Path path = paths[static_cast<std::size_t>(rank)];
      const bool is_whole = path.empty();
      for (std::size_t i = 0; is_whole && i < parts.size(); ++i) path.push_back(i);
      for (const std::size_t i : path) h = Part(parts[i])->forward(h);
      loss = loss + loss_of(h) * share;
    }
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.gradients.clear();
    for (const auto& [name, param] : params) {
      if (param.grad().defined()) result.gradients[name] = param.grad().clone();
    }
    if (clip > 0) torch::nn::utils::clip_grad_norm_(trained, clip);
    optim.step();
  }
  for (const auto& [name, param] : params) result.weights[name] = param.detach().clone();
  return result;
}

// Mean of the ranks' losses over all samples.
inline double joined(const Group& world, const at::Tensor& loss, int64_t samples) {
  at::Tensor sum =
      at::scalar_tensor(loss.item<double>() * static_cast<double>(samples) / kBatch, at::kDouble);
  world.all_reduce(sum);
  return sum.item<double>();
}

// A stage, and where the weights lie.
struct Case {
  int stage;
  Weights weights;
};
inline const std::vector<Case> kCases{
    {0, Weights::kShared}, {0, Weights::kPrivate}, {1, Weights::kShared},  {2, Weights::kShared},
    {3, Weights::kShared}, {1, Weights::kPrivate}, {2, Weights::kPrivate}, {3, Weights::kPrivate}};

// Small units, so that the model has several.
inline ShardedOptions options_of(int stage, Weights weights, int prefetch = 1) {
  ShardedOptions options;
  options.stage = stage;
  options.weights = weights;
  options.prefetch = prefetch;
  options.unit_bytes = 700;
  return options;
}

// Runs one step of a rank. Returns the mean loss of all ranks.
inline double train(Sharded& model, const Group& world, int step, const ModelOptions& how,
                    const Path& path = {}) {
  const at::Tensor x = part_of(batch_of(step, how.type), world.rank(), world.size());
  Tensors h{x};
  if (path.empty()) h = {model.forward(x)};
  for (const std::size_t i : path) h = model.run(i, h);
  const at::Tensor loss = loss_of(h[0]);
  loss.backward();
  model.step();
  return joined(world, loss, x.size(0));
}

inline void expect_close(const Named& actual, const Named& expected, double most,
                         const std::string& what) {
  require(actual.size() == expected.size(), what + ": " + std::to_string(actual.size()) +
                                                " tensors, not " + std::to_string(expected.size()));
  for (const auto& [name, tensor] : expected) {
    require(actual.count(name) == 1, what + ": no " + name);
    const at::Tensor& mine = actual.at(name);
    require(mine.sizes() == tensor.sizes() &&
                at::allclose(mine, tensor.to(mine.scalar_type()), most, most),
            c10::str(what, ": ", name, " differs by ", (mine - tensor).abs().max().item<double>()));
  }
}

// Selects the weights of a state.
inline Named weights_in(const Sharded::NamedTensors& state, const Named& like) {
  Named weights;
  for (const auto& [name, tensor] : state) {
    if (like.count(name) > 0) weights[name] = tensor;
  }
  return weights;
}

// Trains for kSteps steps and compares losses, the last gradients and the weights with one process.
inline void compare(Sharded& model, const Group& world, const Trained& expected,
                    const ModelOptions& how, const Path& path = {}) {
  const double most = how.type == at::kDouble ? 1e-10 : 1e-5;
  const std::string what = model.describe();
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    const double loss = train(model, world, step, how, path),
                 right = expected.losses[static_cast<std::size_t>(step)];
    require(std::abs(loss - right) <= most * std::max(1.0, std::abs(right)),
            what + ": loss " + std::to_string(loss) + ", not " + std::to_string(right));
  }
  const auto gradients = model.gradients();
  const auto state = model.state();
  require(world.rank() != 0 || !state.empty(), what + ": rank 0 got no state");
  if (state.empty()) return;
  expect_close(Named(gradients.begin(), gradients.end()), expected.gradients, most,
               what + ", gradients");
  expect_close(weights_in(state, expected.weights), expected.weights, most, what + ", weights");
}

}  // namespace weft::engine::small_model
namespace weft::engine::internal {
using namespace small_model;
}
