// TensorParallel: the group of ranks over which layers are split, and the source of their random
// numbers. Also converts between a whole weight and a rank's slice of it.
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

// A cheap value to copy into every layer. All ranks of the group make their layers in the same
// order with the same seed. Each rank draws the whole of every weight, one after the other, from a
// generator in the same state, and keeps its slice. The draws are those of libtorch's own layers: a
// split model starts with the bits that the whole model has after torch::manual_seed(seed). A whole
// weight exists only while it is drawn.
class TensorParallel {
 public:
  // One rank alone. Initial values come from libtorch's default generator. Layers are libtorch's
  // own, without communication.
  TensorParallel();
  // Not collective.
  TensorParallel(Group group, std::uint64_t seed);

  int rank() const;
  int size() const;
  // Throws Error(kInvalidArgument) for one rank alone, which has no group.
  const Group& group() const;
  // Generator of initial values, in the same state on all ranks.
  at::Generator generator() const;

  // Random numbers of dropout. An element of a mask is philox(seed, draw, its index in the whole
  // tensor), where `draw` counts masks. So a rank draws its part of a mask without the rest.
  // Replicated regions get the same numbers on all ranks, split regions different ones, and
  // together they are what one process draws.
  // `draw` is the only state: set it back to repeat a forward pass (recomputation). Replicas (data
  // parallelism) call seed_dropout() with different seeds. Micro-batches follow each other as on
  // one process.
  void seed_dropout(std::uint64_t seed) const;
  std::uint64_t draw() const;
  void set_draw(std::uint64_t draw) const;
  // Returns (seed, draw) of the next mask.
  std::pair<std::uint64_t, std::uint64_t> next_draw() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Returns the size of each rank's part of a size that must divide. Throws Error(kInvalidArgument),
// naming the nearest sizes that do.
std::int64_t even_part(const std::string& what, std::int64_t whole, int ranks);

// Division of a parameter over the ranks, along `dim`, whose size over all ranks is `whole`. Rank r
// has ceil(whole / ranks) entries from r · ceil(whole / ranks) on. Entries beyond the whole are
// padding, zero.
struct Slice {
  std::int64_t dim = 0;
  std::int64_t whole = 0;

  std::int64_t part(int ranks) const { return (whole + ranks - 1) / ranks; }
};

// Returns this rank's part of a whole tensor: a copy, or the tensor itself in a group of one.
at::Tensor slice_of(const at::Tensor& whole, const Slice& slice, const TensorParallel& tp);
// Joins all ranks' parts into the whole, without padding and without gradient. Collective.
at::Tensor whole_of(const at::Tensor& part, const Slice& slice, const TensorParallel& tp);

// A module of which some own parameters are slices.
class SplitModule {
 public:
  virtual ~SplitModule() = default;
  // Slices by the parameter's name. Parameters without one are whole on every rank.
  virtual std::map<std::string, Slice> slices() const = 0;
};

// Slices of all parameters below `root`, by their full names ("blocks.0.mlp.up_proj.weight").
std::map<std::string, Slice> slices(const torch::nn::Module& root);

// Scales the gradients below `root` so that their joint norm over all ranks is at most `max_norm`.
// Returns the norm before. Every rank's part of a split parameter counts; whole parameters count
// once. As torch's clip_grad_norm_ on the whole model. Collective: one all-reduce of one number.
double clip_grad_norm(const torch::nn::Module& root, double max_norm, const TensorParallel& tp);

}  // namespace weft::parallel
