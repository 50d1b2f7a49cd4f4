// One cluster's part in the ring of its host's clusters, whose weights lie in shared memory
// (token_ring.h). The token is the turn.
//
// A cluster ends when its first worker has visited its rows. Its copy stays in the ring: the
// nearest cluster before it that has not ended takes its turns too. Clusters end once in an epoch,
// so two of them never take the same turn.
#pragma once

#include <cstdint>

#include "weft/linear/hogwild/internal/shared_weights.h"

namespace weft::linear::internal {

class ClusterMember {
 public:
  // The turn is passed on `rows` rows after an exchange.
  ClusterMember(const SharedWeights& shared, int cluster, std::int64_t rows)
      : shared_(shared), cluster_(cluster), rows_(rows) {}

  // If this cluster takes the turn: exchanges with the next cluster, or passes the turn on. `rows`:
  // rows that the caller has visited since the last call.
  void poll(std::int64_t rows);

 private:
  // True if this cluster takes the turns of `holder`.
  bool acts_for(int holder) const;

  SharedWeights shared_;
  int cluster_;
  std::int64_t rows_;
  std::int64_t left_ = 0;  // Rows until the turn is passed on. 0: there was no exchange yet.
};

}  // namespace weft::linear::internal
