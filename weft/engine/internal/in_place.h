// Gradients of the ranks of one host, read where autograd left them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/engine/internal/ledger.h"
#include "weft/engine/internal/plan.h"
#include "weft/engine/internal/unit.h"
#include "weft/kernels/reduce.h"

namespace weft::parallel::internal {

// Throws Error(kInvalidArgument) for types that are not floating.
DType dtype_of(at::ScalarType type);

// The gradients of all ranks that have one, from element `begin` of a stretch on, and how to add
// them.
struct Sources {
  // A gradient that exists only so that peers find one: zeros of a rank that did not use the
  // parameter.
  static constexpr Ledger::Token kUnused = Ledger::Token{1} << 63;
  static bool has_gradient(Ledger::Token token) {
    return token != net::Host::kNoToken && (token & kUnused) == 0;
  }

  // `weights`: by rank; null: all the same.
  Sources(const Ledger& ledger, const Stretch& at, DType dtype, const double* weights);
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  // Writes the sum to each of the destinations.
  void reduce(void* const* destinations, int count) const {
    kernels::reduce(destinations, count, data, this->count, args);
  }
  void reduce(void* destination) const { reduce(&destination, 1); }

  const void* data[256];
  double weights[256];
  int count = 0;
  int first = -1;  // the first rank that has one
  kernels::ReduceArgs args;
};

// This rank's gradients in the ledger: where autograd left them if peers can read them there, else
// copies.
class ShownGradients {
 public:
  // `ledger` outlives it.
  ShownGradients(Ledger& ledger, std::vector<at::Tensor> params);
  void show(int param);
  // Of a parameter that this rank did not use.
  void show_zeros(int param);
  // What peers see of a parameter, or its grad().
  const at::Tensor& of(int param) const;
  // The step is over. With `results`, what peers saw holds them, and goes to grad() of the used
  // parameters.
  void end(bool results, const std::vector<bool>& used);

 private:
  void show_copy(int param, const at::Tensor& gradient, Ledger::Token mark);

  Ledger& ledger_;
  const std::vector<at::Tensor> params_;
  std::vector<at::Tensor> copies_;  // by parameter: of this step
};

// Rank 0's buffers in the ledger, behind the parameters, for the other ranks to copy.
class ShownBuffers {
 public:
  // `ledger` outlives it. `first`: the ledger's place of the first buffer.
  ShownBuffers(Ledger& ledger, int first, std::vector<at::Tensor> buffers)
      : ledger_(ledger), first_(first), buffers_(std::move(buffers)) {}
  // On rank 0, before it publishes `unit`.
  void show();
  // On the other ranks: waits until rank 0 has published `unit`, and copies its buffers into this
  // rank's. Rank 0 must not change them before all ranks have met again. Adds the seconds of the
  // wait to `waited`.
  void take(int unit, double& waited);

 private:
  Ledger& ledger_;
  const int first_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;  // what peers read, on rank 0
};

// ZeRO on one host: each rank reads its shard of everybody's gradients, nothing is copied or sent.
//
//   put() …, publish()      this rank's gradients of a unit may be read
//   reduce()                waits until all ranks have published the unit, and sums what belongs to
//                           this rank's shard
//   release()               waits until all ranks have done so, and drops this rank's gradients
class InPlace {
 public:
  // Collective. All outlive it.
  InPlace(net::Host& host, const std::vector<Param>& params, const std::vector<Unit>& units,
          std::chrono::nanoseconds timeout);

  // A round of all units begins. `weight`: of this rank's gradients in the sums.
  void begin(double weight) { ledger_.begin(weight); }
  // Keeps the gradient, or a copy of one that peers cannot read, until release().
  void put(int param, const at::Tensor& gradient);
  // Parameters that were not put have no gradient here.
  void publish(int unit);
  // By all ranks: reduce(), release() would not wait.
  bool is_published(int unit) const { return ledger_.published(unit); }
  bool is_reduced(int unit) const { return ledger_.is_read(unit); }
  // Writes the whole shard; what nobody has a gradient of, and padding, is zero. Throws what
  // Host::wait() throws.
  void reduce(int unit, at::Tensor& shard);
  void release(int unit);

 private:
  const std::vector<Param>& params_;
  const std::vector<Unit>& units_;
  Ledger ledger_;
  std::vector<at::Tensor> held_;  // by parameter
};

}  // namespace weft::parallel::internal
