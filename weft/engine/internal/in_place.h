// Reads the gradients of the ranks of one host where autograd left them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/engine/gradient_check.h"
#include "weft/engine/internal/bucket_assignment.h"
#include "weft/engine/internal/ledger.h"
#include "weft/engine/internal/unit.h"
#include "weft/kernels/reduce.h"

namespace weft::engine::internal {

// Throws Error(kInvalidArgument) for types that are not floating.
DType dtype_of(at::ScalarType type);

// The gradients of all ranks that have one, from element `begin` of a stretch on, and the arguments
// of their sum.
struct Sources {
  // Marks a placeholder gradient: zeros of a rank that did not use the parameter.
  static constexpr Ledger::Token kUnused = Ledger::Token{1} << 63;
  static bool has_gradient(Ledger::Token token) {
    return token != net::Host::kNoToken && (token & kUnused) == 0;
  }

  // `weights`: by rank; null: all equal.
  Sources(const Ledger& ledger, const Stretch& at, DType dtype, const double* weights);
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  // Writes the sum to each of the destinations.
  void reduce(void* const* destinations, int count) const {
    kernels::reduce(destinations, count, data, this->count, args);
  }
  void reduce(void* destination) const { reduce(&destination, 1); }
  // Writes the sum to the gradient of every rank, including one that did not use the parameter.
  void reduce_to_all(const Ledger& ledger, const Stretch& at) const;
  // Bytes of the other ranks among them.
  std::uint64_t peer_bytes() const {
    return static_cast<std::uint64_t>(peers * args.count) * size_of(args.dtype);
  }

  const void* data[256];
  double weights[256];
  int count = 0;
  int peers = 0;   // of `count`, those of other ranks
  int first = -1;  // the first rank that has one
  kernels::ReduceArgs args;
};

// The first rank with a gradient of the parameter; -1: none.
int first_with_gradient(const Ledger& ledger, int param);

// Publishes this rank's gradients in the ledger: in place if peers can read them there and nothing
// else uses that memory, else as copies.
class ShownGradients {
 public:
  // `ledger` and `check` outlive it.
  ShownGradients(Ledger& ledger, std::vector<at::Tensor> params, GradientCheck* check);
  void show(int param);
  // Publishes zeros for a parameter that this rank did not use.
  void show_zeros(int param);
  // The gradient that peers see: a copy, or grad() itself.
  const at::Tensor& of(int param) const;
  // Ends the step. With `results`: the copies hold the results and are written to grad() of the
  // used parameters.
  void end(bool results, const std::vector<bool>& used);

 private:
  void show_copy(int param, const at::Tensor& gradient, Ledger::Token mark);

  Ledger& ledger_;
  const std::vector<at::Tensor> params_;
  GradientCheck* const check_;  // null: none
  // By parameter, of this step: the gradients, since a program may drop them, and copies.
  std::vector<at::Tensor> shown_, copies_;
};

// Publishes rank 0's buffers in the ledger, after the parameters, for the other ranks to copy.
class ShownBuffers {
 public:
  // Entries of the ledger: the place of each buffer, then the size of each.
  static int entries(const std::vector<at::Tensor>& buffers) {
    return 2 * static_cast<int>(buffers.size());
  }
  // `ledger` outlives it. `first`: index in the ledger of entries(buffers).
  ShownBuffers(Ledger& ledger, int first, std::vector<at::Tensor> buffers)
      : ledger_(ledger), first_(first), buffers_(std::move(buffers)) {}
  // Called on rank 0 before it publishes `unit`.
  void show();
  // On the other ranks: waits until rank 0 has published `unit`, and copies its buffers into this
  // rank's. Rank 0 must not change them before all ranks have met again. Buffers of another size
  // stay: the ranks' modules then differ (rank_settings.h). Adds the seconds of the wait to
  // `waited`.
  void take(int unit, double& waited);

 private:
  Ledger& ledger_;
  const int first_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;  // on rank 0: the tensors that peers read
};

// ZeRO on one host: each rank reads its shard of all ranks' gradients. Nothing is copied or sent.
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
  ~InPlace();
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  // Begins a round over all units. `weight`: factor of this rank's gradients in the sums.
  void begin(double weight) { ledger_.begin(weight); }
  // Keeps the dense gradient, or a copy of one that peers cannot read, until release().
  void put(int param, const at::Tensor& gradient);
  // Parameters without put() have no gradient on this rank.
  void publish(int unit);
  // True if all ranks have done so, so that reduce() or release() would not wait.
  bool is_published(int unit) const { return ledger_.published(unit); }
  bool is_reduced(int unit) const { return ledger_.is_read(unit); }
  // Writes the whole shard, with zeros for padding and for parameters without a gradient on any
  // rank. Throws as Host::wait() does.
  void reduce(int unit, at::Tensor& shard);
  void release(int unit);

 private:
  const std::vector<Param>& params_;
  const std::vector<Unit>& units_;
  Ledger ledger_;
  std::vector<at::Tensor> held_;  // by parameter
};

}  // namespace weft::engine::internal
