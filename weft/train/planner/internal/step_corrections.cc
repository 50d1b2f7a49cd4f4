#include "weft/train/planner/internal/step_corrections.h"

#include <algorithm>
#include <numeric>

namespace weft::train::internal {
namespace {

constexpr double kMinFactor = 0.6, kMaxFactor = 1.8;  // Of computation.
constexpr double kMinSync = 0.1, kMaxSync = 20;
constexpr double kMaxChange = 20;   // Of the speed of a part.
constexpr double kMinShare = 0.05;  // Of an even share.

double mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

// Seconds of a step that are neither computation nor communication, data or optimizer, on the rank
// where they are least: work of the host.
double host_seconds(const ProbedStep& step) {
  if (step.busy.empty()) return step.rest();
  const double least = *std::min_element(step.busy.begin(), step.busy.end());
  return std::max(0.0, least - step.data - step.compute - step.update);
}

// Mean seconds that a rank computes, with what makes a rank slow.
double computing(const ProbedStep& step) {
  if (step.busy.empty()) return step.compute;
  return std::max(0.0, mean(step.busy) - step.data - step.update - host_seconds(step));
}

double computing(const plan::Parts& parts) { return parts.compute + parts.recompute; }

}  // namespace

plan::Corrections corrections(const ComparedStep& few, const std::optional<ComparedStep>& more,
                              double crowd) {
  plan::Corrections m;
  const double real = computing(few.measured), model = computing(few.predicted);
  const double passes = few.micro_batches;
  if (model > 0 && real > 0) {
    m.compute = 1;
    if (more) {
      // real = compute * model + micro_batches * fixed, for both.
      const double det = model * more->micro_batches - computing(more->predicted) * passes;
      const double over = real * more->micro_batches - computing(more->measured) * passes;
      if (det > 0.1 * model) m.compute = std::clamp(over / det, kMinFactor, kMaxFactor);
    }
    m.micro_batch = (real - m.compute * model) / passes / crowd;
    if (m.micro_batch < 0) {
      m.micro_batch = 0;
      m.compute = std::clamp(real / model, kMinFactor, kMaxFactor);
    }
  }
  const double sync = few.predicted.gradients + few.predicted.sharding + few.predicted.optimizer;
  m.sync_start = kSyncStart;
  m.sync = std::clamp((few.measured.update + few.measured.communication) / (sync + kSyncStart),
                      kMinSync, kMaxSync);
  // What is left: data loading, work of the host, and waits for ranks that are late in turn.
  m.step =
      std::max(0.0, few.measured.seconds - real - few.measured.update - few.measured.communication);
  const auto& busy = few.measured.busy;
  if (busy.size() < 2) return m;
  const auto [fast, slow] = std::minmax_element(busy.begin(), busy.end());
  if (*fast <= 0 || *slow < kUnequalRanks * *fast) return m;
  const double rest = few.measured.data + few.measured.update + host_seconds(few.measured);
  m.step = few.measured.data + host_seconds(few.measured);
  for (const double one : busy)
    m.slowness.push_back(std::max(1e-3, (one - rest) / std::max(1e-9, real)));
  return m;
}

plan::Job departed(plan::Job job, const StepParts& expected, const Departure& departure,
                   double traffic) {
  const StepParts& now = departure.measured;
  const auto ratio = [](double real, double planned) {
    return planned > 0 ? std::clamp(real / planned, 1 / kMaxChange, kMaxChange) : 1;
  };
  const double compute = ratio(now.compute, expected.compute),
               links =
                   ratio(now.communication + now.update, expected.communication + expected.update);
  plan::Corrections& measured = job.measured;
  measured.compute *= compute;
  measured.micro_batch *= compute;
  measured.step = std::max(0.0, measured.step.value_or(0) + now.data - expected.data);
  if (departure.cause != Cause::kLinks) {
    measured.sync *= links;
    return job;
  }
  // Most of the communication may have been hidden. So the link is not faster than the bytes on it.
  const double seconds = now.communication + now.update;
  const bool is_one_host = job.cluster.nodes.size() == 1 && job.cluster.nodes[0].count == 1;
  for (plan::NodeType& node : job.cluster.nodes) {
    plan::Link& link = is_one_host ? node.intra : node.inter;
    const double bytes = traffic * (is_one_host ? 1 : node.devices);
    link.bandwidth /= links;
    if (bytes > 0) link.bandwidth = std::min(link.bandwidth, bytes / seconds);
    link.latency *= links;
  }
  measured.message *= links;
  // A factor below 1 was measured while the update in memory took most of the time. It does not
  // apply to slow links.
  measured.sync = std::max(1.0, measured.sync);
  return job;
}

std::vector<double> shares_of(const plan::Layout& l, const std::vector<double>& slowness) {
  const int alike = l.cp * l.tp, replica = l.fsdp * l.ep * alike, stage = replica * l.dp;
  std::vector<double> shares;
  double sum = 0;
  for (int d = 0; d < l.dp; ++d) {
    double speed = 0;
    for (int part = 0; part < replica; part += alike) {
      double slowest = 1e-6;
      for (int p = 0; p < l.pp; ++p) {
        const auto first = slowness.begin() + p * stage + d * replica + part;
        slowest = std::max(slowest, *std::max_element(first, first + alike));
      }
      speed += 1 / slowest;
    }
    shares.push_back(speed);
    sum += speed;
  }
  for (double& share : shares) share = std::max(kMinShare, share / sum * l.dp);
  return shares;
}

}  // namespace weft::train::internal
