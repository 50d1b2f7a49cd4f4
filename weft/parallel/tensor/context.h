// What the split layers of one rank have in common: its group, and where random numbers come from. And how a whole weight and a rank's
// slice of it become each other.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"

namespace torch::nn {
class Module;
}

namespace weft::parallel {

// A cheap value, copied into every layer. All ranks of the group make their layers in the same order with the same seed; then each draws
// the whole of every weight, one after the other, from a generator in the same state, and keeps its slice. The draws are those of
// libtorch's own layers: a split model starts with the bits that the whole one has after torch::manual_seed(seed). A whole weight exists
// only while it is drawn.
class TensorParallel {
 public:
  // Alone: a group of one. Initial values come from libtorch's default generator, and layers are libtorch's own, at no cost.
  TensorParallel();
  // Not collective.
  TensorParallel(Group group, std::uint64_t seed);

  int rank() const;
  int size() const;
  // Throws Error(kInvalidArgument) where there is none (alone).
  const Group& group() const;
  // Initial values. In the same state on all ranks.
  at::Generator generator() const;

  // Dropout's random numbers, by address: a mask's element is philox(seed, draw, its index in the whole tensor), where `draw` counts masks.
  // So a rank draws its part of a mask without the rest, replicated regions get the same numbers on all ranks and split ones different
  // numbers, and together they are what one process draws. `draw` is all the state there is: set it back to repeat a forward pass
  // (recomputation). Replicas (data parallelism) take different seeds here; micro-batches follow each other as on one process.
  void seed_dropout(std::uint64_t seed) const;
  std::uint64_t draw() const;
  void set_draw(std::uint64_t draw) const;
  // The next mask's (seed, draw).
  std::pair<std::uint64_t, std::uint64_t> next_draw() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The size of each rank's part of something that must divide. Throws Error(kInvalidArgument) naming the nearest sizes that do.
std::int64_t even_part(const std::string& what, std::int64_t whole, int ranks);

// How a parameter lies over the ranks: divided along `dim`, whose size over all ranks is `whole`. Rank r has ceil(whole / ranks) entries
// from r · ceil(whole / ranks) on; what lies beyond the whole is padding, zero.
struct Slice {
  std::int64_t dim = 0;
  std::int64_t whole = 0;

  std::int64_t part(int ranks) const { return (whole + ranks - 1) / ranks; }
};

// This rank's part of a whole tensor: a copy, or the tensor itself in a group of one.
at::Tensor slice_of(const at::Tensor& whole, const Slice& slice, const TensorParallel& tp);
// The whole of all ranks' parts, without padding. Collective. Without gradient.
at::Tensor whole_of(const at::Tensor& part, const Slice& slice, const TensorParallel& tp);

// A module some of whose own parameters are slices.
class SplitModule {
 public:
  virtual ~SplitModule() = default;
  // By the parameter's name; those not named are whole on every rank.
  virtual std::map<std::string, Slice> slices() const = 0;
};

// Of all parameters below `root`, by their full names ("blocks.0.mlp.up_proj.weight").
std::map<std::string, Slice> slices(const torch::nn::Module& root);

// Scales the gradients below `root` so that their joint norm, over all ranks, is at most `max_norm`, and gives the norm that it was: split
// parameters count every rank's part, whole ones once. Collective (one all-reduce of one number). As torch's clip_grad_norm_ on the whole
// model.
double clip_grad_norm(const torch::nn::Module& root, double max_norm, const TensorParallel& tp);

}  // namespace weft::parallel
