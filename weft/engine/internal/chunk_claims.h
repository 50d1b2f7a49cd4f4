// The parameters of a step in shared memory. They become visible to peers in units, and are
// processed in chunks.
//
// Each chunk is processed once in a phase of the step, by the rank that claims it in the ledger.
// Owners come first; others take what an owner has not begun.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/engine/internal/bucket_assignment.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/ledger.h"

namespace weft::engine::internal {

class ChunkClaims {
 public:
  struct Phase {
    int number = 0;          // as in the ledger: 0 or 1
    bool each_rank = false;  // Each rank processes all chunks, so none is claimed.
  };

  // The most chunks that parameters of these sizes (in elements) have in any order.
  static int most_chunks(const std::vector<std::int64_t>& sizes);
  // `ledger` outlives it. Until agree(), parameters are taken in reverse order.
  ChunkClaims(Ledger& ledger, std::vector<std::int64_t> sizes);

  // The order of gradients in backward() is known on all ranks.
  bool is_agreed() const { return agreed_; }
  // Takes that order, between two steps. Units and chunks are other ones from now on.
  void agree(const std::vector<int>& order);

  const BucketAssignment& plan() const { return assignment_; }
  int units() const { return static_cast<int>(assignment_.buckets.size()); }
  int chunks() const { return static_cast<int>(assignment_.chunks.size()); }
  // The first chunk of a unit, or the number of chunks for units().
  int first_chunk(int unit) const { return first_chunk_[index(unit)]; }
  const std::vector<Stretch>& pieces(int chunk) const {
    return assignment_.chunks[index(chunk)].pieces;
  }

  // True if this rank is to process the chunk now. With `all`, also chunks that their owners have
  // not begun.
  bool take(int chunk, const Phase& phase, bool all);
  // The first unit from `unit` on with a chunk that nobody has taken, or -1.
  int first_open(const Phase& phase, int unit) const;

 private:
  void reassign(const std::vector<int>& order);
  int owner(int chunk) const;
  bool taken(int chunk, const Phase& phase) const;

  Ledger& ledger_;
  const std::vector<std::int64_t> sizes_;
  BucketAssignment assignment_;
  std::vector<int> first_chunk_;  // by unit, and one past the end
  // By chunk, if each rank processes all chunks: the last step in which this rank processed it.
  std::vector<std::uint32_t> own_done_;
  bool agreed_ = false;
};

}  // namespace weft::engine::internal
