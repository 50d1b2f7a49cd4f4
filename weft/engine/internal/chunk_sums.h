// Sums the gradients of a chunk over the ranks of a host, and updates weights by the sum, keeps it,
// or writes it to the gradients of all ranks.
//
// A program must not change weights that exist once for all ranks. So each update compares them
// with what the last one wrote (written.h). Rules that need whole tensors look themselves.
#pragma once

#include <vector>

#include "weft/engine/internal/chunk_claims.h"
#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/written.h"

namespace weft::engine::internal {

class ChunkSums {
 public:
  // All outlive it. `types`: by parameter.
  ChunkSums(Ledger& ledger, const TransportContext& context, const ChunkClaims& claims,
            const std::vector<DType>& types)
      : ledger_(ledger), context_(context), claims_(claims), types_(types) {}

  // Begins a step.
  void begin();
  // Factor of the sums in the updates of this step.
  void set_scale(double scale) { scale_ = scale; }
  double scale() const { return scale_; }
  // Reads the weights of the ranks' gradients. Once all ranks have published a unit.
  void weigh_ranks();
  // The factor of a rank's gradient in the sums. After it.
  double weight_of(int rank) const { return weighting_.of(rank); }

  // Once all ranks have published the chunk's unit. If it `keeps` the sum, the sum takes the place
  // of the first gradient. Otherwise it updates weights. Without an updater, all gradients get it.
  void combine(int chunk, bool keeps);
  // Updates weights by a sum that was kept.
  void update_by_sum(int chunk);
  // Norm of the sums that were kept. After all ranks have met.
  double norm() const;

  // Weights exist once for all ranks, and are compared.
  bool checks_written() const { return new_check().on(); }
  // As Transport::check_written().
  void check_written() const;
  // The present weights are right. Each rank takes some chunks.
  void note_written() const;

 private:
  WrittenCheck new_check() const;
  void end_written(const WrittenCheck& check, int chunk, Written& written) const;
  void keep(const Stretch& at, WrittenCheck& check) const;
  WrittenCheck kept(int chunk) const;
  void update(const Stretch& at, Sources& sources, WrittenCheck& check) const;

  Ledger& ledger_;
  const TransportContext& context_;
  const ChunkClaims& claims_;
  const std::vector<DType>& types_;
  Weighting weighting_;
  bool weighted_ = false;
  double scale_ = 1;
};

}  // namespace weft::engine::internal
