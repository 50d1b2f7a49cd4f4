// The part of the data that this rank loads: the samples of its replica.
#pragma once

#include "weft/data/loader.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class RankData {
 public:
  // `model`: of this rank's worker. `trace` records when batches are prepared; it must outlive the
  // loaders and may be null.
  RankData(const Options& options, const Mesh& mesh, const parallel::ParallelModel& model,
           observe::Trace* trace);

  // Index of this rank's share of a batch, over all workers; and the number of shares.
  int replica() const { return replica_of(worker_); }
  int replicas() const { return replicas_; }
  // Index of the share that this rank would have in another worker.
  int replica_of(int worker) const { return worker * worker_replicas_ + worker_replica_; }
  // A loader of this rank's part.
  data::Loader load(const data::Source& source, data::SamplerOptions sampling, int prefetch) const;

 private:
  const bool has_workers_;
  const int worker_, worker_replicas_, worker_replica_;  // of this rank
  const int replicas_;
  observe::Trace* const trace_;
};

}  // namespace weft::train::internal
