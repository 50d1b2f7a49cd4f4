#include "weft/parallel/compose/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/compress/spec.h"
#include "weft/parallel/compose/model.h"

namespace weft::parallel {
namespace {

using schedule::pipeline::Algorithm;

constexpr std::array kAxes = {"dp", "fsdp", "pp", "tp", "cp", "ep"};

// The parts of a plan that can be changed to make it work.
struct Sizes {
  std::array<int, kAxes.size()> of = {};
  int micro_batches = 1;

  int dp() const { return of[0]; }
  int fsdp() const { return of[1]; }
  int pp() const { return of[2]; }
  int tp() const { return of[3]; }
  int cp() const { return of[4]; }
  int ep() const { return of[5]; }
  int replicas() const { return dp() * fsdp() * ep(); }
  bool replicas_alone() const { return fsdp() * pp() * tp() * ep() == 1; }
};

std::string named(const char* axis, int size) {
  return std::string(axis) + "=" + std::to_string(size);
}

// Each check returns what does not work; empty: it works.
struct Question {
  const Plan& plan;
  const ModelShape& model;

  std::string of_splits(const Sizes& sizes) const {
    if (sizes.tp() > 1 && model.splits.empty())
      return named("tp", sizes.tp()) +
             " divides layers, but this model has none that can be divided";
    for (const auto& [what, size] : model.splits) {
      if (size % sizes.tp() != 0)
        return what + " = " + std::to_string(size) + " cannot be split over " +
               named("tp", sizes.tp());
    }
    return "";
  }
  std::string of_sequences(const Sizes& sizes) const {
    const int cp = sizes.cp();
    if (cp == 1) return "";
    if (model.heads == 0)
      return named("cp", cp) + " divides sequences, which this model's blocks do not support";
    if (plan.context == ContextMethod::kRing) return "";
    // If keys and values do not divide over tp, each rank has those of its queries. Attention
    // checks whether these divide.
    const std::int64_t all = model.kv_heads > 0 ? model.kv_heads : model.heads,
                       kv = all % sizes.tp() == 0 ? all / sizes.tp() : 0;
    const std::int64_t heads = model.heads / sizes.tp();
    const bool shared = kv == 0 || kv % cp == 0 || cp % kv == 0;
    if (heads % cp == 0 && shared) return "";
    return (heads % cp != 0 ? std::to_string(heads) + " heads"
                            : std::to_string(kv) + " heads of keys and values") +
           " of a rank cannot be divided over " + named("cp", cp) + " by heads; a ring can";
  }
  std::string of_experts(const Sizes& sizes) const {
    if (sizes.ep() == 1) return "";
    if (model.experts == 0)
      return named("ep", sizes.ep()) + " divides experts, but this model has none";
    if (model.experts % sizes.ep() == 0) return "";
    return "experts = " + std::to_string(model.experts) + " cannot be divided over " +
           named("ep", sizes.ep());
  }
  std::string of_stages(const Sizes& sizes) const {
    const int each = virtual_stages(plan), stages = sizes.pp() * each;
    if (stages <= model.blocks) return "";
    if (model.blocks == 1)
      return named("pp", sizes.pp()) +
             " needs a model given as a list of blocks, but this one is a single module";
    return std::to_string(stages) + " stages (" + named("pp", sizes.pp()) + ", " +
           std::to_string(each) + " of each rank) of " + std::to_string(model.blocks) +
           " blocks; every stage needs at least one";
  }
  std::string of_shards(const Sizes& sizes) const {
    if (plan.micro_shards == 0) return "";
    const std::string what = "micro_shards = " + std::to_string(plan.micro_shards);
    if (sizes.tp() * sizes.cp() * sizes.ep() > 1) {
      return what +
             " gives the same bits only over dp, fsdp and pp; divided layers and sequences sum in "
             "another order";
    }
    if (plan.micro_shards % sizes.replicas() == 0) return "";
    return what + " cannot be divided over " + std::to_string(sizes.replicas()) + " replicas";
  }
  std::string of_batch(const Sizes& sizes) const {
    const auto needed =
        static_cast<std::int64_t>(sizes.replicas()) * sizes.micro_batches * plan.accumulate;
    if (plan.batch == 0 || plan.batch >= needed || plan.micro_shards > 0) return "";
    return "a batch of " + counted(plan.batch, "sample") + " cannot be divided into " +
           std::to_string(sizes.micro_batches * plan.accumulate) + " micro-batches on each of " +
           std::to_string(sizes.replicas()) + " replicas";
  }

  std::string trouble(const Sizes& sizes) const {
    for (const auto of : {&Question::of_splits, &Question::of_sequences, &Question::of_experts,
                          &Question::of_stages, &Question::of_shards, &Question::of_batch}) {
      if (std::string why = (this->*of)(sizes); !why.empty()) return why;
    }
    return "";
  }
};

double distance(const Sizes& a, const Sizes& b) {
  const auto ratio = [](int x, int y) { return std::abs(std::log(static_cast<double>(x) / y)); };
  double sum = ratio(a.micro_batches, b.micro_batches);
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) sum += ratio(a.of[axis], b.of[axis]);
  return sum;
}

// Divides `ranks` among the axes up to `axis` in every way, with the fewest on later axes first,
// and calls `take` for each.
template <class Take>
void deal(int ranks, std::size_t axis, Sizes& sizes, const Take& take) {
  if (axis == 0) {
    sizes.of[0] = ranks;
    return take(sizes);
  }
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    sizes.of[axis] = size;
    deal(ranks / size, axis - 1, sizes, take);
  }
}

// Returns the nearest plan with the same number of ranks, if any.
std::optional<Sizes> least_far(const Question& question, const Sizes& wanted, int ranks) {
  std::optional<Sizes> best;
  Sizes sizes;
  deal(ranks, kAxes.size() - 1, sizes, [&](Sizes some) {
    for (some.micro_batches = wanted.micro_batches; some.micro_batches >= 1; --some.micro_batches) {
      if (best && distance(some, wanted) >= distance(*best, wanted)) continue;
      if (question.trouble(some).empty()) best = some;
    }
  });
  return best;
}

std::string describe_sizes(const Sizes& sizes, const Sizes& wanted) {
  std::string text;
  const auto add = [&](const char* name, int size, bool shown) {
    if (shown) text += (text.empty() ? "" : ",") + named(name, size);
  };
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis)
    add(kAxes[axis], sizes.of[axis], sizes.of[axis] > 1 || wanted.of[axis] > 1);
  add("micro_batches", sizes.micro_batches,
      sizes.micro_batches != wanted.micro_batches || text.empty());
  return text;
}

void require(bool good, const std::string& why) {
  if (!good) throw Error(Errc::kBadConfig, why);
}

void check_cuts(const Plan& plan, int blocks, int stages) {
  if (plan.cuts.empty()) return;
  require(static_cast<int>(plan.cuts.size()) + 1 == stages,
          "plan: " + std::to_string(stages) + " stages need " + std::to_string(stages - 1) +
              " cuts, not " + std::to_string(plan.cuts.size()));
  int before = 0;
  for (const int cut : plan.cuts) {
    require(cut > before && cut < blocks,
            "plan: cuts must rise from 1 to " + std::to_string(blocks - 1) +
                ", so that every stage has a block; " + std::to_string(cut) + " does not");
    before = cut;
  }
}

void check_codec(const Plan& plan, const Sizes& sizes) {
  const compress::Spec spec = [&] {
    try {
      return compress::parse(plan.codec);
    } catch (const Error& error) {
      throw Error(Errc::kBadConfig, "plan: " + error.message());
    }
  }();
  if (spec.kind == compress::Kind::kNone) return;
  require(
      spec.kind != compress::Kind::kAuto || (sizes.replicas_alone() && virtual_stages(plan) == 1),
      "plan: codec = \"auto\" measures replicas of a whole model; name a codec");
  require(!scales_loss(plan),
          "plan: a codec is not supported with loss scaling, since its memory would outlive the "
          "scale; use bf16, or no codec");
  require(sizes.fsdp() == 1 || sizes.dp() * sizes.cp() * sizes.ep() > 1,
          "plan: codec " + plan.codec +
              " compresses gradients between replicas of dp, but there are none; use dp on the "
              "slow links and fsdp on the fast ones");
}

void check_optimizer(const Plan& plan, const plan::MeshLayout& mesh) {
  const std::string name = optim::name_of(plan.optimizer.rule);
  const bool has_matrices = name == "adafactor" || name == "muon";
  require(!has_matrices || (mesh.size("tp") == 1 && mesh.size("ep") == 1),
          "plan: the optimizer " + name +
              " does not support tp or ep, which divide its matrices; use dp, fsdp or pp");
}

void check_adasum(const Plan& plan, const plan::MeshLayout& mesh) {
  if (!plan.adasum) return;
  for (const char* axis : {"fsdp", "tp", "cp", "ep"}) {
    require(mesh.size(axis) == 1,
            std::string("plan: adasum combines whole gradients of dp and does not support ") +
                axis + "; use dp and pp");
  }
  const int ranks = mesh.size("dp");
  require((ranks & (ranks - 1)) == 0,
          "plan: adasum needs a power of two of ranks on dp, not " + std::to_string(ranks));
  require(plan.codec == "none" && plan.micro_shards == 0 && plan.accumulate == 1 &&
              !plan.measure_noise && plan.weights != Weights::kShared,
          "plan: adasum does not support codec, micro_shards, accumulate, measure_noise or shared "
          "weights; use one of them");
}

void check_noise(const Plan& plan, const plan::MeshLayout& mesh) {
  if (!plan.measure_noise) return;
  require(plan.skip_not_finite && plan.micro_shards == 0,
          "plan: measure_noise needs skip_not_finite, and is not supported with micro_shards");
  require(mesh.size("cp") == 1 && mesh.size("ep") == 1,
          "plan: measure_noise is not supported with cp or ep, where no rank has the gradient of "
          "its samples; use dp, fsdp, tp or pp");
}

void check_micro_shards(const Plan& plan, const Sizes& sizes, const ModelShape& model) {
  const int shards = plan.micro_shards, replicas = sizes.replicas();
  if (shards == 0) return;
  const std::string what = "plan: micro_shards = " + std::to_string(shards);
  require(shards > 0 && (shards & (shards - 1)) == 0, what + " must be a power of two");
  require(plan.micro_batches == 1 || plan.micro_batches * replicas == shards,
          what + " sets the number of micro-batches; remove micro_batches = " +
              std::to_string(plan.micro_batches));
  require(model.experts == 0, what +
                                  " gives the same bits only over dp, fsdp and pp; experts are "
                                  "balanced over the current tokens of the ranks");
  require(!plan.sync_batch_norm, what +
                                     " is not supported with sync_batch_norm, whose statistics "
                                     "depend on the replicas; use one of them");
  require(plan.codec == "none", what +
                                    " is not supported with a codec, whose rounding depends on the "
                                    "number of ranks; use one of them");
}

void check_device(const Plan& plan, const plan::MeshLayout& mesh) {
  if (plan.device.is_cpu()) return;
  const std::string what = "plan: a device (" + plan.device.str() + ")";
  for (const char* axis : {"fsdp", "tp", "pp", "cp", "ep"}) {
    require(mesh.size(axis) == 1,
            what + " is supported with dp alone, not with " + axis + "; use dp, or the CPU");
  }
  require(virtual_stages(plan) == 1, what + " is supported with one stage on a rank, not with " +
                                         std::to_string(virtual_stages(plan)) +
                                         "; use the schedule 1f1b, or the CPU");
  require(plan.codec == "none" && plan.micro_shards == 0 && !plan.adasum &&
              plan.weights != Weights::kShared,
          what +
              " does not support codec, micro_shards (reproducible), adasum or shared weights; "
              "leave them out, or use the CPU");
  require(!optim::needs_whole_tensors(plan.optimizer.rule),
          what + " does not support the optimizer " + optim::name_of(plan.optimizer.rule) +
              "; use sgd, rmsprop, adagrad, adam, adamw or lion");
}

}  // namespace

OptimizerSpec plain_sgd() { return {}; }

ModelShape shape_of(const BlockModel& model) {
  return {static_cast<int>(model.blocks.size()), model.splits, model.heads, model.kv_heads,
          model.experts};
}

int micro_batches(const Plan& plan, const plan::MeshLayout& mesh) {
  return plan.micro_shards > 0 ? plan.micro_shards / (mesh.size("dp") * mesh.size("fsdp"))
                               : plan.micro_batches;
}

bool scales_loss(const Plan& plan) {
  return plan.loss_scale.has_value() || plan.precision == Precision::kF16;
}

int virtual_stages(const Plan& plan) {
  if (plan.virtual_stages > 0) return plan.virtual_stages;
  return plan.schedule == Algorithm::kInterleaved || plan.schedule == Algorithm::kZeroBubbleV ? 2
                                                                                              : 1;
}

void check_plan(const Plan& plan, const ModelShape& model, const plan::MeshLayout& mesh) {
  require(plan.micro_batches >= 1 && plan.accumulate >= 1 && plan.virtual_stages >= 0 &&
              plan.batch >= 0,
          "plan: micro_batches and accumulate must be at least 1, and virtual_stages and batch at "
          "least 0");
  require(plan.zero_stage >= 1 && plan.zero_stage <= 3,
          "plan: zero_stage must be 1, 2 or 3, not " + std::to_string(plan.zero_stage));
  require(plan.schedule != Algorithm::kForwardOnly, "plan: forward_only does not train; use 1f1b");
  Sizes wanted{.micro_batches = micro_batches(plan, mesh)};
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) wanted.of[axis] = mesh.size(kAxes[axis]);
  check_micro_shards(plan, wanted, model);
  check_codec(plan, wanted);
  check_optimizer(plan, mesh);
  check_noise(plan, mesh);
  check_adasum(plan, mesh);
  check_device(plan, mesh);
  const Question question{plan, model};
  const std::string trouble = question.trouble(wanted);
  if (trouble.empty()) return check_cuts(plan, model.blocks, wanted.pp() * virtual_stages(plan));
  const auto best = least_far(question, wanted, mesh.world());
  throw Error(Errc::kBadConfig,
              "plan: " + trouble +
                  (best ? "; nearest that works: " + describe_sizes(*best, wanted)
                        : "; no plan of " + counted(mesh.world(), "rank") + " works; use fewer"));
}

}  // namespace weft::parallel
