// Pushes that wait for the other workers of their step (staleness 0), of tensors and of rows.
//
// A worker has at most one push of tensors for a step. It ends the worker's step, to which the rows
// pushed before belong. A step is applied once, as a whole. For one thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "weft/ps/internal/tables.h"
#include "weft/ps/internal/tensors.h"

namespace weft::ps::internal {

class Rounds {
 public:
  // True if the worker has ended this step.
  bool has(std::int64_t step, std::uint32_t worker) const;
  // Bytes of all pushes.
  std::uint64_t bytes() const { return bytes_; }

  // Refuses a push whose learning rate differs from other pushes of the step; for rows, from those
  // to the same table. `rule`: the learning rate of the rule.
  Answer check_lr(const Request& push, std::int64_t step, double rule) const;
  Answer check_rows_lr(const Request& push, std::int64_t step, const std::string& table) const;
  void add(std::int64_t step, std::uint32_t worker, TensorPush push);
  void add_rows(std::int64_t step, std::uint32_t worker, RowPush push);
  // Forgets the rows of a step that the worker has not ended: it does not happen.
  void drop_unfinished_rows(std::uint32_t worker);

  bool is_empty() const { return rounds_.empty(); }
  // The earliest step that waits. Not if there is none.
  std::int64_t first() const { return rounds_.begin()->first; }
  // Applies that step and forgets it. Returns its number of pushes.
  std::size_t apply_first(Tensors& tensors, Tables& tables);

  void put(ByteWriter& out) const;
  static Rounds taken(ByteReader& in);
  // True if all pushes have the sizes of these.
  bool fits(const Tensors& tensors, const Tables& tables) const;

 private:
  void apply_rows(std::int64_t step, std::size_t workers, Tables& tables);

  // By step, by worker.
  std::map<std::int64_t, std::map<std::uint32_t, TensorPush>> rounds_;
  std::map<std::int64_t, std::map<std::uint32_t, std::vector<RowPush>>> row_rounds_;
  std::uint64_t bytes_ = 0;
};

}  // namespace weft::ps::internal
