// Hill climbing from the best layout of the search. A change is kept only if the simulated step
// still fits and is shorter. The space of the search has none of these changes, since each would
// multiply its size. Each kind of change begins with what the kinds before it have kept.
//
// A plan becomes a recipe (train/planner/planning.h). So there are only changes that a recipe can
// express: no recomputation by stage, and cuts of transformers alone. Stages of other models are
// cut by the times of their blocks.
//
// The limits of replicas, cuts and rounds keep the number of simulations small.
#include "weft/plan/search/internal/refine.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::plan::internal {
namespace {

bool fits(const Step& step, double headroom) {
  for (std::size_t r = 0; r < step.memory.size(); ++r)
    if (step.memory[r].total() > step.capacity[r] * (1 - headroom)) return false;
  return true;
}

class Refiner {
 public:
  Refiner(const Job& job, const Step& step, double headroom)
      : job_(job), best_(job.layout), seconds_(step.seconds), headroom_(headroom) {}

  Layout run() {
    if (!is_uniform(job_.cluster)) try_shares();
    if (best_.pp > 1 && is_transformer(job_.model)) try_cuts();
    return best_;
  }

 private:
  bool attempt(const Layout& layout) {
    Job job = job_;
    job.layout = layout;
    try {
      const Step step = simulate_step(job);
      if (step.seconds >= seconds_ || !fits(step, headroom_)) return false;
      best_ = layout;
      seconds_ = step.seconds;
      return true;
    } catch (const Error&) {  // the layout is impossible
      return false;
    }
  }

  // Seconds of a forward and backward of one replica along dp, as if all had equal shares. A step
  // has the stages of its slowest replica alone. So the other replicas get almost no samples here.
  double replica_seconds(int index) const {
    Job job = job_;
    job.layout = best_;
    job.layout.shares.assign(static_cast<std::size_t>(best_.dp), 1e-3);
    job.layout.shares[static_cast<std::size_t>(index)] = 1;
    const Step step = simulate_step(job);
    double busy = 0;
    for (const StageReport& stage : step.stages)
      busy = std::max(busy, stage.forward + stage.backward);
    return busy;
  }

  void try_shares() {
    if (best_.dp < 2 || best_.dp > 256 || best_.micro_batch < 2) return;
    std::vector<double> speeds;
    for (int d = 0; d < best_.dp; ++d) speeds.push_back(1 / std::max(1e-12, replica_seconds(d)));
    Layout layout = best_;
    layout.shares.clear();
    for (const int samples : divide_samples(speeds, best_.dp * best_.micro_batch))
      layout.shares.push_back(static_cast<double>(samples) / best_.micro_batch);
    attempt(layout);
  }

  // Moves the border between two stages by one block, as long as that helps.
  void try_cuts() {
    Layout layout = best_;
    layout.cuts = cuts_of(best_);
    attempt(layout);
    for (int round = 0; round < 8; ++round) {
      bool moved = false;
      for (std::size_t c = 0; c < layout.cuts.size() && c < 64; ++c) {
        for (const int by : {-1, 1}) {
          Layout next = best_;
          if (next.cuts.empty()) next.cuts = cuts_of(best_);
          next.cuts[c] += by;
          moved = attempt(next) || moved;
        }
      }
      if (!moved) break;
    }
  }

  std::vector<int> cuts_of(const Layout& layout) const {
    if (!layout.cuts.empty()) return layout.cuts;
    Job job = job_;
    job.layout = layout;
    std::vector<int> cuts;
    const Step step = simulate_step(job);
    for (std::size_t s = 1; s < step.stages.size(); ++s) cuts.push_back(step.stages[s].first_block);
    return cuts;
  }

  const Job& job_;
  Layout best_;
  double seconds_;
  double headroom_;
};

struct Named {
  const char* name;
  double Parts::*part;
};
constexpr Named kParts[] = {{"computation", &Parts::compute},
                            {"recomputation", &Parts::recompute},
                            {"bubble", &Parts::bubble},
                            {"tensor parallelism", &Parts::tensor},
                            {"context parallelism", &Parts::context},
                            {"expert parallelism", &Parts::expert},
                            {"pipeline messages", &Parts::pipeline},
                            {"sharding", &Parts::sharding},
                            {"gradients", &Parts::gradients},
                            {"optimizer", &Parts::optimizer},
                            {"other", &Parts::other}};

}  // namespace

std::vector<int> divide_samples(const std::vector<double>& speeds, int samples) {
  std::vector<std::size_t> order(speeds.size());  // the slowest first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return speeds[a] < speeds[b]; });
  std::vector<int> shares(speeds.size(), 1);
  double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  int left = samples;
  auto first = order.begin();  // of those with more than the least
  for (; first != order.end() && speeds[*first] * left < sum; ++first, --left)
    sum -= speeds[*first];
  const auto exact = [&, rest = left](std::size_t one) { return speeds[one] * rest / sum; };
  for (auto one = first; one != order.end(); ++one) {
    shares[*one] = static_cast<int>(exact(*one));
    left -= shares[*one];
  }
  std::stable_sort(first, order.end(), [&](std::size_t a, std::size_t b) {
    return exact(a) - shares[a] > exact(b) - shares[b];
  });
  for (; left > 0 && first != order.end(); --left, ++first) ++shares[*first];
  return shares;
}

Layout refine(const Job& job, const Step& step, double headroom) {
  return Refiner(job, step, headroom).run();
}

std::string why_slower(const Step& step, const Step& best) {
  std::vector<std::pair<double, const char*>> more;
  for (const Named& named : kParts) {
    const double by = step.parts.*named.part - best.parts.*named.part;
    if (by > 0.002 * best.seconds) more.emplace_back(by, named.name);
  }
  std::sort(more.rbegin(), more.rend());
  const double slower = 100 * (step.seconds / best.seconds - 1);
  std::string why =
      formatted("%.1f %% %s", std::fabs(slower), slower >= 0 ? "slower" : "faster, but needs more");
  for (std::size_t i = 0; i < more.size() && i < 2; ++i) {
    why += formatted("%s+%.3g s %s", i == 0 ? ": " : ", ", more[i].first, more[i].second);
  }
  if (more.empty() && step.peak().total() > best.peak().total()) {
    why += formatted("; %.3g GiB more memory", (step.peak().total() - best.peak().total()) / kGiB);
  }
  return why;
}

}  // namespace weft::plan::internal
