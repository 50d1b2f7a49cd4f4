// What real steps have shown of a job, and the bytes that its ranks send.
#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/plan/step/internal/replica.h"

namespace weft::plan::internal {
namespace {

bool is_time(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

double step_overhead(const Job& job) {
  return job.loading + job.measured.step.value_or(job.software.step_overhead);
}

CodecCost codec_cost(const Job& job) {
  const auto measured = job.measured.codecs.find(job.layout.codec);
  if (measured != job.measured.codecs.end()) return measured->second;
  return {.seconds = 0, .bytes = codec_ratio(job.layout.codec)};
}

void check(const Corrections& m, int ranks) {
  const bool times = is_time(m.compute) && is_time(m.micro_batch) && is_time(m.message) &&
                     is_time(m.sync) && is_time(m.sync_start) && is_time(m.step.value_or(0));
  WEFT_REQUIRE(times, "measured times must be finite and not negative");
  for (const auto& [codec, cost] : m.codecs)
    WEFT_REQUIRE(is_time(cost.seconds) && is_time(cost.bytes),
                 "the costs of codec " + codec + " must be finite and not negative");
  if (m.slowness.empty()) return;
  WEFT_REQUIRE(static_cast<int>(m.slowness.size()) == ranks,
               "the speeds of " + std::to_string(m.slowness.size()) + " ranks were measured, for " +
                   std::to_string(ranks) + " ranks");
  const bool positive = std::all_of(m.slowness.begin(), m.slowness.end(),
                                    [](double one) { return std::isfinite(one) && one > 0; });
  WEFT_REQUIRE(positive, "measured speeds of ranks must be above 0");
}

bool reads_in_place(const GroupShape& group) {
  return group.library == Library::kWeft && group.shared_memory && group.nodes == 1;
}

bool updates_once_a_host(const Job& job, const GroupShape& replicas) {
  return job.layout.zero_stage == 0 && job.layout.rule.is_sync() && reads_in_place(replicas);
}

// Of the slowest rank that works on a stage of this replica. With shares by speed, ranks of fsdp
// and ep have samples by their speed, and end together.
double Replica::slowness(int rank) const {
  const std::vector<double>& all = job_.measured.slowness;
  if (all.empty()) return 1;
  const Layout& l = job_.layout;
  const int alike = l.cp * l.tp, groups = l.fsdp * l.ep;
  auto group = all.begin() + sites_[static_cast<std::size_t>(rank)].first_rank;
  double slowest = 0, speed = 0;
  for (int i = 0; i < groups; ++i, group += alike) {
    const double one = *std::max_element(group, group + alike);
    slowest = std::max(slowest, one);
    speed += 1 / one / groups;
  }
  return l.shares.empty() ? slowest : 1 / speed;
}

// Where ranks read each other's memory, a rank reads what the others have, once.
double Replica::exchange_bytes(const ModelBlock& block, int rank, double repeats) const {
  const Site& site = sites_[static_cast<std::size_t>(rank)];
  double sum = 0;
  for (const Exchange& e : block.exchanges) {
    const GroupShape& group = e.axis == SplitAxis::kTensor    ? site.tensor
                              : e.axis == SplitAxis::kContext ? site.context
                                                              : site.expert;
    const double passes = e.kind == ExchangeKind::kAllReduce ? 2 : 1;
    const double share = static_cast<double>(group.ranks - 1) / group.ranks;
    sum += (e.forward + e.backward + repeats * e.again) * passes * share * e.sent * e.bytes;
  }
  return sum;
}

// Also where stages read each other's tensors in place: the reader counts them.
double Replica::sent_bytes(int rank) const {
  const auto crosses = [&](std::size_t s) { return stages_[s].rank != stages_[s + 1].rank; };
  double sum = 0;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s].rank != rank) continue;
    sum += stages_[s].exchange_bytes;
    if (s + 1 < stages_.size() && crosses(s)) sum += stages_[s].message_bytes;
    // The gradient of its input.
    if (s > 0 && crosses(s - 1)) sum += stages_[s - 1].message_bytes;
  }
  return sum;
}

}  // namespace weft::plan::internal
