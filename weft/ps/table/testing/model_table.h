// For tests: a table as a plain map, whose rows are updated one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "weft/base/random.h"
#include "weft/ps/table/table.h"

namespace weft::ps {

class ModelTable {
 public:
  struct Row {
    std::vector<float> weights, state;
    std::uint64_t touched = 0;
    std::int64_t updates = 0;
  };

  explicit ModelTable(const TableOptions& options) : options_(options) {}

  std::uint64_t clock = 0;

  std::vector<float> pull(std::span<const std::uint64_t> keys) {
    for (const std::uint64_t key : keys) touch(key);
    return read(keys);
  }

  std::vector<float> read(std::span<const std::uint64_t> keys) const {
    std::vector<float> out;
    for (const std::uint64_t key : keys) {
      const auto found = rows_.find(key);
      const Row row = found == rows_.end() ? new_row(key) : found->second;
      out.insert(out.end(), row.weights.begin(), row.weights.end());
    }
    return out;
  }

  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
    const auto width = static_cast<std::size_t>(options_.row_floats);
    std::map<std::uint64_t, std::vector<float>> sums;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto& sum = sums[keys[i]];
      const auto gradient = gradients.subspan(i * width, width);
      if (sum.empty()) {
        sum.assign(gradient.begin(), gradient.end());
      } else {
        for (std::size_t j = 0; j < width; ++j) sum[j] += gradient[j];
      }
    }
    for (const auto& [key, sum] : sums) {
      Row& row = touch(key);
      update_row(options_.rule, {row.weights.data(), row.state.data(), options_.row_floats},
                 sum.data(), ++row.updates);
    }
  }

  std::uint64_t evict(std::uint64_t age) {
    return std::erase_if(rows_, [&](const auto& row) { return clock - row.second.touched > age; });
  }

  const std::map<std::uint64_t, Row>& rows() const { return rows_; }

 private:
  Row new_row(std::uint64_t key) const {
    Random random(options_.seed, 0x70746162, key);
    Row row;
    for (std::int64_t i = 0; i < options_.row_floats; ++i) {
      const float draw = options_.initial_range > 0 ? random.uniform_float() : 0.5f;
      row.weights.push_back(options_.initial_range * (2 * draw - 1));
    }
    row.state.resize(row.weights.size() * static_cast<std::size_t>(state_arrays(options_.rule)));
    init_state(options_.rule, {row.weights.data(), row.state.data(), options_.row_floats});
    return row;
  }
  Row& touch(std::uint64_t key) {
    Row& row = rows_.try_emplace(key, new_row(key)).first->second;
    row.touched = clock;
    return row;
  }

  TableOptions options_;
  std::map<std::uint64_t, Row> rows_;
};

// Gradients for so many floats: multiples of 1/8 in [-1, 1].
inline std::vector<float> some_gradients(Random& random, std::size_t count) {
  std::vector<float> out(count);
  for (float& value : out) value = (static_cast<float>(random.below(17)) - 8) / 8;
  return out;
}

}  // namespace weft::ps
