// The update rule of a shard's tensors, with its state: one array for each name in
// optim::state_names, as long as the array of values, and the mean square of the gradients for
// adaptive delay compensation. Deterministic. For one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/ps/internal/state_bytes.h"
#include "weft/ps/options.h"

namespace weft::ps::internal {

class TensorUpdates {
 public:
  TensorUpdates() = default;
  // For this many values.
  TensorUpdates(const Options& options, std::size_t values);
  // Bytes of the arrays, and of the values.
  static std::uint64_t bytes(const Options& options, std::uint64_t values);

  // An update of `count` values from `offset` on.
  struct Update {
    std::int64_t offset = 0, count = 0;
    std::int64_t step = 0;  // counts the updates of these values, from 1
    const float* gradient = nullptr;
    double lr = -1;  // below 0: that of the rule
    // The whole array, as the worker has it; empty: no delay compensation.
    std::span<const float> pulled;
  };
  void apply(const Update& update, std::span<float> values);

  void put(ByteWriter& out) const;
  static TensorUpdates taken(ByteReader& in, const Options& options);
  // The same without the number of arrays, for checkpoints.
  void save(ByteWriter& out) const;
  // Arrays of the same rule. Throws Error(kCorrupt).
  TensorUpdates loaded(ByteReader& in) const;
  // True if the arrays are those of this rule for this many values. `is_defined`: false: none.
  bool fits(std::size_t values, bool is_defined) const;

 private:
  void compensate(const Update& update, std::int64_t begin, std::span<const float> values,
                  std::span<float> gradient);

  Options options_;
  std::vector<std::vector<float>> states_;
  std::vector<float> mean_square_;
};

}  // namespace weft::ps::internal
