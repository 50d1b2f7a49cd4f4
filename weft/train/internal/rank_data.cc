#include "weft/train/internal/rank_data.h"

#include <utility>

#include "weft/strategy/strategy.h"
#include "weft/train/internal/resizing.h"

namespace weft::train::internal {
namespace {

// Wraps the source so that the trace records each batch that it prepares.
data::Source traced(const data::Source& source, observe::Trace* trace) {
  if (trace == nullptr) return source;
  return {source.size, [make = source.make, trace](const data::Share& share) {
            const observe::Trace::Use here(trace, "batches");
            const observe::TraceScope scope("data", "make batch");
            return make(share);
          }};
}

}  // namespace

RankData::RankData(const Options& options, const Mesh& mesh, const parallel::ParallelModel& model,
                   observe::Trace* trace)
    : has_workers_(strategy::exchanges_weights(options.strategy)),
      worker_(has_workers_ ? mesh.coordinate("dp") : 0),
      worker_replicas_(model.replicas()),
      worker_replica_(model.replica()),
      replicas_(internal::replicas(mesh.layout())),
      trace_(trace) {}

data::Loader RankData::load(const data::Source& source, data::SamplerOptions sampling,
                            int prefetch) const {
  sampling.size = source.size;
  sampling.rank = replica();
  sampling.world = replicas_;
  if (has_workers_) sampling.group = worker_replicas_;
  return data::Loader(traced(source, trace_), data::Sampler(sampling), prefetch);
}

}  // namespace weft::train::internal
