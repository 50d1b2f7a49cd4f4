#include "weft/train/internal/resizing.h"

#include <algorithm>
#include <utility>

namespace weft::train::internal {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

int replicas(const plan::MeshLayout& mesh) {
  return mesh.size("dp") * mesh.size("fsdp") * mesh.size("ep");
}

std::string asked_batch(const Config& config) {
  const bool is_per_rank = config.get_int("train.batch_per_rank") > 0;
  const std::string key = is_per_rank ? "train.batch_per_rank" : "train.batch";
  return key + "=" + std::to_string(config.get_int(key));
}

int micro_batches_of(const Options& options, const plan::MeshLayout& mesh) {
  if (options.plan.micro_batches != 0) return options.plan.micro_batches;
  return mesh.size("pp") > 1 && options.plan.micro_shards == 0 ? 4 * mesh.size("pp") : 1;
}

Options with_passes(Options options, const BatchDivision& before, int replicas, int ranks) {
  // Micro-shards fix the passes already.
  if (options.plan.micro_shards > 0 || before.pass <= 0) return options;
  // Each replica has a sample in each pass.
  const std::int64_t passes =
      std::min(ceil_div(ceil_div(options.batch, replicas), before.pass), options.batch / replicas);
  if (passes > micro_batches_of(options, plan::MeshLayout(ranks, options.mesh.axes())))
    options.plan.micro_batches = static_cast<int>(passes);
  return options;
}

Options resized(Options options, const BatchDivision& before, int replicas, int ranks) {
  options.batch_per_rank = 0;
  options.batch = std::max<std::int64_t>(replicas, before.global);
  if (options.on_resize == OnResize::kScale && before.replicas > 0) {
    const bool by_ranks = before.first_ranks > 0;
    const std::int64_t now = by_ranks ? ranks : replicas,
                       start = by_ranks ? before.first_ranks : before.start_replicas();
    // Each batch is rounded once, so that the same number of ranks has the same batch again.
    options.batch = std::max<std::int64_t>(replicas, before.start_global() * now / start);
    options.reference_batch = before.reference;
  }
  return with_passes(std::move(options), before, replicas, ranks);
}

}  // namespace weft::train::internal
