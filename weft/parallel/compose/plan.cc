#include "weft/parallel/compose/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "weft/base/error.h"

namespace weft::parallel {
namespace {

using schedule::pipeline::Algorithm;

// What of a plan can be changed to make it work.
struct Sizes {
  int dp = 1, fsdp = 1, tp = 1, pp = 1, micro_batches = 1;

  int replicas() const { return dp * fsdp; }
};

struct Question {
  const Plan& plan;
  const ModelShape& model;

  // Empty: it works.
  std::string trouble(const Sizes& sizes) const {
    for (const auto& [what, size] : model.splits) {
      if (size % sizes.tp != 0) return what + " = " + std::to_string(size) + " cannot be split over tp=" + std::to_string(sizes.tp);
    }
    const int stages = sizes.pp * virtual_stages(plan);
    if (stages > model.blocks) {
      return std::to_string(stages) + " stages (pp=" + std::to_string(sizes.pp) + ", " + std::to_string(virtual_stages(plan)) +
             " of each rank) of " + std::to_string(model.blocks) + " blocks; every stage takes one at least";
    }
    const auto needed = static_cast<std::int64_t>(sizes.replicas()) * sizes.micro_batches * plan.accumulate;
    if (plan.batch > 0 && plan.batch < needed) {
      return "a batch of " + std::to_string(plan.batch) + " samples cannot be " + std::to_string(sizes.micro_batches * plan.accumulate) +
             " micro-batches on each of " + std::to_string(sizes.replicas()) + " replicas";
    }
    return "";
  }
};

double distance(const Sizes& a, const Sizes& b) {
  const auto ratio = [](int x, int y) { return std::abs(std::log(static_cast<double>(x) / y)); };
  return ratio(a.dp, b.dp) + ratio(a.fsdp, b.fsdp) + ratio(a.tp, b.tp) + ratio(a.pp, b.pp) + ratio(a.micro_batches, b.micro_batches);
}

// All that make the same number of ranks.
std::vector<Sizes> others(const Sizes& wanted) {
  const int ranks = wanted.replicas() * wanted.tp * wanted.pp;
  std::vector<Sizes> all;
  for (int tp = 1; tp <= ranks; ++tp) {
    for (int pp = 1; ranks % tp == 0 && pp <= ranks / tp; ++pp) {
      for (int fsdp = 1; (ranks / tp) % pp == 0 && fsdp <= ranks / tp / pp; ++fsdp) {
        if (ranks / tp / pp % fsdp != 0) continue;
        for (int m = wanted.micro_batches; m >= 1; --m) all.push_back({ranks / tp / pp / fsdp, fsdp, tp, pp, m});
      }
    }
  }
  return all;
}

std::string describe(const Sizes& sizes, const Sizes& wanted) {
  std::string text;
  const auto add = [&](const char* name, int size, bool shown) {
    if (shown) text += (text.empty() ? "" : ",") + std::string(name) + "=" + std::to_string(size);
  };
  add("dp", sizes.dp, sizes.dp > 1 || wanted.dp > 1);
  add("fsdp", sizes.fsdp, sizes.fsdp > 1 || wanted.fsdp > 1);
  add("tp", sizes.tp, sizes.tp > 1 || wanted.tp > 1);
  add("pp", sizes.pp, sizes.pp > 1 || wanted.pp > 1);
  add("micro_batches", sizes.micro_batches, sizes.micro_batches != wanted.micro_batches || text.empty());
  return text;
}

void require(bool good, const std::string& why) {
  if (!good) throw Error(Errc::kBadConfig, why);
}

}  // namespace

OptimizerSpec plain_sgd() { return {}; }

int virtual_stages(const Plan& plan) {
  if (plan.virtual_stages > 0) return plan.virtual_stages;
  return plan.schedule == Algorithm::kInterleaved || plan.schedule == Algorithm::kZeroBubbleV ? 2 : 1;
}

void check_plan(const Plan& plan, const ModelShape& model, const plan::MeshLayout& mesh) {
  require(plan.micro_batches >= 1 && plan.accumulate >= 1 && plan.virtual_stages >= 0 && plan.batch >= 0,
          "plan: micro_batches and accumulate are at least 1, virtual_stages and batch at least 0");
  require(plan.zero_stage >= 1 && plan.zero_stage <= 3, "plan: zero_stage is 1, 2 or 3, not " + std::to_string(plan.zero_stage));
  require(plan.schedule != Algorithm::kForwardOnly, "plan: forward_only does not train; take 1f1b");
  for (const char* axis : {"cp", "ep"}) {
    require(mesh.size(axis) == 1, "plan: " + std::string(axis) + "=" + std::to_string(mesh.size(axis)) +
                                      " is not composed with the others; take dp, fsdp, tp and pp");
  }
  const Sizes wanted{mesh.size("dp"), mesh.size("fsdp"), mesh.size("tp"), mesh.size("pp"), plan.micro_batches};
  const Question question{plan, model};
  const std::string trouble = question.trouble(wanted);
  if (trouble.empty()) return;
  const Sizes* best = nullptr;
  const auto all = others(wanted);
  for (const Sizes& sizes : all) {
    if (question.trouble(sizes).empty() && (best == nullptr || distance(sizes, wanted) < distance(*best, wanted))) best = &sizes;
  }
  throw Error(Errc::kBadConfig, "plan: " + trouble +
                                    (best != nullptr ? "; nearest that works: " + describe(*best, wanted)
                                                     : "; no plan of " + std::to_string(mesh.world()) + " ranks works, take fewer"));
}

}  // namespace weft::parallel
