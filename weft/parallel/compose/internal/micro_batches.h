// The micro-batches of a replica's batch: the samples of each, and the weight of its loss.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/parallel/compose/internal/composition.h"

namespace weft::parallel::internal {

class MicroBatches {
 public:
  // `composition` must outlive it.
  explicit MicroBatches(const Composition& composition) : c_(composition) {}

  // Divides a batch of `rows` samples evenly. The loss of each micro-batch counts `factor` times
  // its share of the samples.
  void divide_evenly(std::int64_t rows, double factor);
  // Divides this replica's `rows` samples of a batch of `all` samples into the plan's micro-shards.
  // Throws Error(kInvalidArgument) if they are not this replica's part.
  void divide_into_shards(std::int64_t rows, std::int64_t all, double factor);
  // Tensors by micro-batch, for the pipeline and loss_of().
  struct Cut {
    std::vector<Tensors> inputs, targets;
  };
  Cut cut(const Tensors& inputs, const Tensors& targets) const;
  // For a prediction: the inputs alone; the pipeline's outputs for them as those of the batch.
  std::vector<Tensors> cut(const Tensors& inputs) const;
  Tensors join(const std::vector<Tensors>& outputs) const;

  // True for a micro-batch of made-up rows.
  bool is_made_up(int number) const { return is_made_up(parts_[static_cast<std::size_t>(number)]); }
  // The next losses are of this micro-batch.
  void begin(int number) { current_ = number; }
  // The weighted loss of a micro-batch, from the last block's outputs and the targets of cut().
  at::Tensor loss_of(const Tensors& outputs, const Tensors& targets);
  // The losses of all micro-shards, summed over samples; zero for those of other ranks. Empty
  // without micro-shards.
  const std::vector<double>& losses() const { return losses_; }

 private:
  // Rows of a micro-batch, as told to the pipeline (at least one), and the factor of the loss.
  struct Part {
    std::int64_t begin, rows, told;
    double weight;
  };
  bool is_made_up(const Part& part) const;
  // The parts of tensors with `rows` samples, by micro-batch. `what`: their name for an error.
  std::vector<Tensors> deal(const Tensors& tensors, std::int64_t rows, const char* what) const;

  const Composition& c_;
  std::vector<Part> parts_;
  std::vector<double> losses_;
  int current_ = 0;
};

}  // namespace weft::parallel::internal
