// The layouts of a space.
#include <algorithm>
#include <set>

#include "weft/base/error.h"
#include "weft/plan/search/search.h"

namespace weft::plan {
namespace {

using schedule::pipeline::Algorithm;

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

std::vector<int> sizes(bool allowed, int n, std::int64_t most) {
  std::vector<int> all;
  for (const int d : divisors(n))
    if (d == 1 || (allowed && d <= most)) all.push_back(d);
  return all;
}

// Sizes of a micro-batch that divide a replica's batch: powers of two, and the whole batch.
std::vector<int> micro_batch_sizes(const Space& space, std::int64_t samples) {
  std::set<int> all;
  if (space.micro_batches.empty()) {
    for (std::int64_t b = 1; b <= samples && b <= 4096; b *= 2)
      if (samples % b == 0) all.insert(static_cast<int>(b));
    if (samples <= 4096) all.insert(static_cast<int>(samples));
  } else {
    for (const int b : space.micro_batches)
      if (b >= 1 && samples % b == 0) all.insert(b);
  }
  return {all.begin(), all.end()};
}

class Maker {
 public:
  Maker(const Job& job, const Space& space)
      : job_(job),
        space_(space),
        model_(complete(job.model)),
        blocks_(blocks_of(model_, {.precision = job.layout.precision, .software = job.software})),
        layout_(job.layout) {
    layout_.shares.clear();
    layout_.cuts.clear();
  }

  std::vector<Layout> all() {
    const int world = devices(job_.cluster);
    int node = world;
    for (const NodeType& type : job_.cluster.nodes) node = std::min(node, type.devices);
    const bool transformer = is_transformer(model_);
    const int most_tp = space_.most_tp > 0 ? space_.most_tp : node;
    for (const int tp : sizes(space_.tp && transformer, world, most_tp)) {
      if (transformer && (model_.heads % tp != 0 || model_.ffn % tp != 0)) continue;
      layout_.tp = tp;
      for (const int pp : sizes(space_.pp, world / tp, stages())) {
        if (space_.only_pp > 0 && pp != space_.only_pp) continue;
        layout_.pp = pp;
        context_axes(world / tp / pp);
      }
    }
    return std::move(found_);
  }

 private:
  std::int64_t stages() const { return static_cast<std::int64_t>(blocks_.size()); }

  void context_axes(int rest) {
    const bool decoder = is_transformer(model_) && !has_images(model_) &&
                         model_.family != Family::kBert && positions(model_) >= 2048;
    for (const int cp : sizes(space_.cp && decoder, rest, positions(model_) / 1024)) {
      layout_.cp = cp;
      for (const int ep : sizes(space_.ep && model_.experts > 0, rest / cp, model_.experts)) {
        if (model_.experts > 0 && model_.experts % ep != 0) continue;
        layout_.ep = ep;
        data_axes(rest / cp / ep);
      }
    }
  }

  void data_axes(int rest) {
    for (const int fsdp : sizes(space_.fsdp, rest, rest)) {
      if (!space_.dp && rest / fsdp > 1) continue;
      layout_.fsdp = fsdp;
      layout_.dp = rest / fsdp;
      if (layout_.global_batch % replicas_of(layout_) != 0) continue;
      if (fsdp == 1) {
        layout_.zero_stage = 0;
        batches();
        continue;
      }
      for (const int zero : space_.zero_stages) {
        layout_.zero_stage = zero;
        batches();
      }
    }
  }

  void batches() {
    const std::int64_t samples = layout_.global_batch / replicas_of(layout_);
    for (const int size : micro_batch_sizes(space_, samples)) {
      layout_.micro_batch = size;
      schedules(samples / size);
    }
  }

  void schedules(std::int64_t micro_batches) {
    layout_.virtual_stages = 1;
    layout_.schedule = Algorithm::kOneForwardOneBackward;
    if (layout_.pp == 1) return options();
    if (micro_batches > 65536) return;
    for (const Algorithm algorithm : space_.schedules) {
      layout_.schedule = algorithm;
      if (algorithm == Algorithm::kInterleaved) {
        for (const int v : space_.virtual_stages) {
          layout_.virtual_stages = v;
          if (v >= 2 && fits_stages()) options();
        }
        continue;
      }
      layout_.virtual_stages = algorithm == Algorithm::kZeroBubbleV ? 2 : 1;
      if (fits_stages()) options();
    }
  }

  bool fits_stages() const {
    std::int64_t layers = 0;
    for (const auto& block : blocks_) layers += block->is_layer ? 1 : 0;
    return static_cast<std::int64_t>(layout_.pp) * layout_.virtual_stages <=
           (job_.software.cuts == CutRule::kEven ? layers : stages());
  }

  void options() {
    for (const Recompute recompute : space_.recomputes) {
      if (recompute == Recompute::kSelective && !is_transformer(model_)) continue;
      layout_.recompute = recompute;
      for (const Rule& rule : space_.rules) {
        const bool workers = layout_.dp > 1 && layout_.cp * layout_.ep == 1;
        if (!rule.is_sync() && !workers) continue;
        layout_.rule = rule;
        for (const std::string& codec : space_.codecs) {
          const bool serves = codec == "none" || layout_.dp * layout_.ep * layout_.cp > 1;
          if (!serves && space_.codecs.size() > 1) continue;
          layout_.codec = serves ? codec : "none";
          splits();
        }
      }
    }
  }

  void splits() {
    for (const bool split : space_.sequence_parallel) {
      if (split && layout_.tp == 1) continue;
      if (split && positions(model_) % (static_cast<std::int64_t>(layout_.tp) * layout_.cp) != 0)
        continue;
      layout_.sequence_parallel = split;
      found_.push_back(layout_);
    }
  }

  const Job& job_;
  const Space& space_;
  Model model_;
  Blocks blocks_;
  Layout layout_;
  std::vector<Layout> found_;
};

}  // namespace

std::vector<Layout> layouts_of(const Job& job, const Space& space) {
  WEFT_REQUIRE(job.layout.global_batch >= 1, "a step needs at least one sample");
  return Maker(job, space).all();
}

}  // namespace weft::plan
