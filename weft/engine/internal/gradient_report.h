// At the end of each backward pass, the ranks tell each other in one all-reduce: their samples,
// parameters with gradients, whether these are finite, the changes of their modules, and which
// models the pass has reached together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/group.h"

namespace weft::engine::internal {

class GradientReport {
 public:
  explicit GradientReport(std::size_t params) : mine_(params, false), used_(params, false) {}

  // This rank has a gradient of the parameter in this backward pass.
  void add(int param) { mine_[static_cast<std::size_t>(param)] = true; }
  bool has(int param) const { return mine_[static_cast<std::size_t>(param)]; }

  struct Facts {
    double samples = 0;
    std::uint32_t digest = 0;   // ModuleWatch::digest()
    std::uint64_t company = 0;  // Company::value()
    int first_not_finite = -1;  // parameter whose gradient is not finite; -1: none
  };
  // Sends them, and the parameters of add(), which begin anew. Collective.
  void send(const Group& group, const Facts& facts);
  bool is_under_way() const { return numbers_.defined(); }
  // Waits for the answers of all ranks, and of the replicas if there are some. Returns the samples
  // of all. Collective.
  double await(const std::optional<Group>& replicas);
  // Adds the answers to the ones below. Nothing is under way then.
  void take();

  // Of all reports that were taken since clear():
  // By parameter: whether any rank has had a gradient.
  const std::vector<bool>& used() const { return used_; }
  // False if a gradient of any rank was not finite.
  bool all_finite() const { return all_finite_; }
  // False if the ranks have changed their modules differently.
  bool alike() const { return alike_; }
  // True if passes of the ranks have reached this model with other ones (company.h).
  bool are_apart() const { return apart_; }
  void clear();

 private:
  std::vector<bool> mine_, used_;  // by parameter
  bool all_finite_ = true, alike_ = true, apart_ = false;
  // Sums over the ranks, in this order:
  //   samples
  //   for each parameter: ranks with a gradient, and kNotFinite for each one that is not finite
  //   1, so the number of ranks
  //   digests, and their squares
  //   the same three of companies, over the ranks that have one
  static constexpr double kNotFinite = 1e6;
  at::Tensor numbers_;
  Group::Work work_;
};

}  // namespace weft::engine::internal
