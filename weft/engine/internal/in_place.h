// Gradients that ranks of one host reduce where autograd left them: each rank reads its shard of everybody's, nothing is copied or sent.
//
//   put() …, publish()      this rank's gradients of a unit may be read
//   reduce()                waits until all ranks have published the unit, and sums what belongs to this rank's shard
//   release()               waits until all ranks have done so, and drops this rank's gradients
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "weft/engine/internal/unit.h"
#include "weft/net/memory/host.h"

namespace weft::parallel::internal {

class InPlace {
 public:
  // Collective. All outlive it.
  InPlace(net::Host& host, const std::vector<Param>& params, const std::vector<Unit>& units, std::chrono::nanoseconds timeout);

  // Keeps the gradient, or a copy of one that peers cannot read, until release().
  void put(int param, const at::Tensor& gradient);
  // Parameters that were not put have no gradient here. `weight`: of this rank's in the sum.
  void publish(int unit, double weight);
  // By all ranks: reduce(), release() would not wait.
  bool is_published(int unit) const { return waits_for(published(0), unit) < 0; }
  bool is_reduced(int unit) const { return waits_for(reduced(0), unit) < 0; }
  // Writes the whole shard; what nobody has a gradient of, and padding, is zero. Throws what Host::wait() throws.
  void reduce(int unit, at::Tensor& shard);
  void release(int unit);

 private:
  using Stamp = std::atomic<std::uint32_t>;
  using Token = net::Host::Token;

  // In shared memory, by rank and unit or parameter.
  Token* tokens(int rank) const { return tokens_ + index(rank) * params_.size(); }
  double* weights(int rank) const { return weights_ + index(rank) * units_.size(); }
  Stamp* published(int rank) const { return published_ + index(rank) * units_.size(); }
  Stamp* reduced(int rank) const { return reduced_ + index(rank) * units_.size(); }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  // The first rank whose stamp of the unit is not this round's; -1: none.
  int waits_for(const Stamp* of_rank_0, int unit) const;
  void await(const Stamp* of_rank_0, int unit);

  net::Host& host_;
  const std::vector<Param>& params_;
  const std::vector<Unit>& units_;
  const std::chrono::nanoseconds timeout_;
  std::vector<std::uint32_t> round_;  // by unit: how often it was published
  std::vector<at::Tensor> held_;      // by parameter
  Token* tokens_ = nullptr;
  double* weights_ = nullptr;
  Stamp *published_ = nullptr, *reduced_ = nullptr;
};

}  // namespace weft::parallel::internal
