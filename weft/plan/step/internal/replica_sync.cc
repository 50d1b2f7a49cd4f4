// What follows the last backward of a step: gradients, shards, the optimizer.
#include <algorithm>

#include "weft/plan/step/internal/replica.h"

namespace weft::plan::internal {

double gathered_bytes(const Job& job) { return element_bytes(job.layout.precision) < 4 ? 2 : 4; }

double gradient_bytes(const Job& job) {
  return element_bytes(job.layout.precision) < 4 ? job.software.gradient_bytes : 4;
}

// NCCL runs on some 16 streaming multiprocessors. weft has no communication threads beside those
// that compute.
double Replica::interference(int rank) const {
  constexpr double kUnits = 16;
  const Accelerator& a = device(rank).accelerator();
  if (a.generation == Generation::kTpu || a.generation == Generation::kCpu) return 0;
  return std::min(0.5, kUnits / a.units);
}

double Replica::shard_parameters(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)].all_parameters() / shard_ranks(job_);
}

Replica::Sync Replica::sync(int rank) const {
  const Layout& l = job_.layout;
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  const bool is_sync = l.rule.is_sync();
  const CodecCost codec = codec_cost(job_);
  const double g = gradient_bytes(job_) * (is_sync ? codec.bytes : 1),
               trained = trained_share(job_.model);
  const RankCost& sums = ranks_[static_cast<std::size_t>(rank)];
  const double dense = trained * sums.parameters, experts = trained * sums.expert_parameters;
  const int shards = shard_ranks(job_);
  Sync sync;
  double reduce = 0;
  if (l.zero_stage == 0) {
    if (is_sync) reduce = collective_seconds(ExchangeKind::kAllReduce, dense * g, site.replicas);
  } else {
    if (!gathers_each_time()) {
      reduce = collective_seconds(ExchangeKind::kReduceScatter, dense * g, site.shards);
      if (!reads_in_place(site.shards))
        sync.sharding =
            collective_seconds(ExchangeKind::kAllGather, dense * gathered_bytes(job_), site.shards);
    }
    if (is_sync)
      reduce += collective_seconds(ExchangeKind::kAllReduce, dense * g / shards, site.replicas);
  }
  if (experts > 0)
    reduce += collective_seconds(ExchangeKind::kAllReduce, experts * g, site.expert_data);
  if (tied_parameters_ > 0 && (rank == stages_.front().rank || rank == stages_.back().rank)) {
    const int first = stages_.front().rank, last = stages_.back().rank;
    const int from = sites_[static_cast<std::size_t>(first)].first_rank,
              to = sites_[static_cast<std::size_t>(last)].first_rank;
    sync.gradients = message_seconds(job_.cluster, from, to, tied_parameters_ * g, l.tp * l.cp);
  }
  // Buckets hide behind the last backward, all but the last one.
  const double bytes = (dense + experts) * g;
  const double last = bytes > 0 ? std::min(1.0, job_.software.bucket_bytes / bytes) : 1;
  const double hides = std::min(sums.backward, reduce) * job_.software.overlap * (1 - last) *
                       (1 - interference(rank));
  sync.gradients += reduce - hides;
  // Gathers of updated weights hide behind the first forward, all but the first one.
  const double gather = std::min(sums.forward, sync.sharding) * job_.software.overlaps_gather;
  sync.sharding -= gather * (1 - last) * (1 - interference(rank));
  if (!is_sync)
    sync.gradients +=
        collective_seconds(ExchangeKind::kAllReduce, exchanged_bytes(rank), site.replicas) /
        l.rule.period;
  if (gathers_each_time()) sync.sharding += sums.tail;
  const bool half = element_bytes(l.precision) < 4 && job_.software.master_weights;
  // Adam reads and writes state, weights and gradient once; clipping and unscaling read the
  // gradient twice and write it once.
  const double traffic =
      2 * job_.optimizer.state_bytes + (half ? 8 + 2 : 8) + 4 * gradient_bytes(job_);
  const double once = updates_once_a_host(job_, site.replicas) ? site.replicas.ranks : 1;
  sync.optimizer = device(rank).memory(trained * shard_parameters(rank) / once * traffic, 8);
  const Corrections& measured = job_.measured;
  sync.optimizer = measured.sync * (measured.sync_start + sync.optimizer);
  sync.gradients *= measured.sync;
  // The processors that compute also encode and decode.
  if (is_sync)
    sync.gradients += 4 * (dense / (l.zero_stage == 0 ? 1 : shards) + experts) * codec.seconds;
  sync.sharding *= measured.sync;
  sync.bytes = sync_bytes(rank);
  return sync;
}

// Weights in float32, once each period, nothing of which hides.
double Replica::exchanged_bytes(int rank) const {
  const Layout& l = job_.layout;
  return 4 * codec_cost(job_).bytes * ranks_[static_cast<std::size_t>(rank)].parameters /
         (l.zero_stage == 0 ? 1 : shard_ranks(job_));
}

// Ranks of weft on one host read each other's gradients in place, and share the weights.
double Replica::sync_bytes(int rank) const {
  const Layout& l = job_.layout;
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  const bool is_sync = l.rule.is_sync();
  const double g = gradient_bytes(job_) * (is_sync ? codec_cost(job_).bytes : 1);
  const RankCost& sums = ranks_[static_cast<std::size_t>(rank)];
  const double dense = sums.parameters, experts = sums.expert_parameters;
  const auto others = [](const GroupShape& group) {
    return static_cast<double>(group.ranks - 1) / group.ranks;
  };
  const auto all_reduced = [&](double bytes, const GroupShape& group) {
    return (reads_in_place(group) ? 1 : 2) * others(group) * bytes;
  };
  double sum = all_reduced(experts * g, site.expert_data);
  if (rank == stages_.front().rank || rank == stages_.back().rank) sum += tied_parameters_ * g;
  const double replicas =
      is_sync ? all_reduced(dense * g, site.replicas) / (l.zero_stage == 0 ? 1 : shard_ranks(job_))
              : all_reduced(exchanged_bytes(rank), site.replicas) / l.rule.period;
  if (l.zero_stage == 0) return sum + replicas;
  const double gathers = !gathers_each_time() ? 1 : 2.0 * micro_batches_of(l);
  const double gathered = reads_in_place(site.shards) ? 0 : gathers * gathered_bytes(job_);
  sum += others(site.shards) * dense * (g + gathered);
  return sum + replicas;
}

}  // namespace weft::plan::internal
