// The passes that place the weights, gradients and optimizer state of each stage, and choose the
// ranks over which gradients are combined.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <variant>

#include "weft/base/text/words.h"
#include "weft/comm/texts.h"
#include "weft/compress/spec.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {

namespace lists = schedule::pipeline;

std::string axis(const Mesh& mesh, const char* name) {
  return std::string(name) + "=" + std::to_string(mesh.size(name));
}

bool left_out(const Composition& c, const std::string& name) {
  return std::find(c.plan.without.begin(), c.plan.without.end(), name) != c.plan.without.end();
}

// Codecs on one host, or for models that are divided further or have several stages, use shards
// instead: their memory is saved for all stages together.
bool can_keep_stages_whole(const Composition& c) {
  if (c.mesh.size("fsdp") > 1 || c.mesh.size("ep") > 1) return false;
  // Each accumulated batch is summed over the ranks separately.
  if (c.plan.micro_shards > 0 && c.plan.accumulate > 1) return false;
  const bool divided = c.mesh.size("tp") > 1 || lists::num_stages(c.request) > 1;
  if (c.plan.codec != "none" && c.plan.codec != "auto" && (divided || c.copies().host() != nullptr))
    return false;
  for (const Stage& stage : c.stages) {
    for (const Block& block : stage.blocks) {
      for (const at::Tensor& parameter : block.module->parameters()) {
        const bool plain =
            (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble) &&
            parameter.is_contiguous();
        if (parameter.requires_grad() && !plain) return false;
      }
    }
  }
  return true;
}

namespace {

// 2: gradients are sent during the last backward.
int engine_stage(const Composition& c) {
  return c.keeps_whole ? 0 : c.mesh.size("fsdp") > 1 ? c.plan.zero_stage : 2;
}

// The parameters of a stage that differ between replicas.
std::optional<engine::ShardedOptions::Apart> experts_apart(const Composition& c,
                                                           const Stage& stage) {
  if (c.mesh.size("ep") == 1) return std::nullopt;
  engine::ShardedOptions::Apart apart{
      [&stage](const std::string& own) { return stage.find(own)->expert.has_value(); },
      std::nullopt};
  if (c.copies_of_experts().size() > 1) apart.replicas = c.copies_of_experts();
  return apart;
}

// The parameters of a stage that are equal on other ranks of tp or on another stage, but would be
// encoded with different neighbors.
std::function<bool(const std::string&)> uncoded(const Composition& c, const Stage& stage) {
  if (c.sharding.codec == "none") return nullptr;
  return [whole = c.mesh.size("tp") == 1, &stage](const std::string& own) {
    const Parameter& p = *stage.find(own);
    return (!whole && !p.slice) || (stage.tied && p.tied);
  };
}

// The other ranks with parts of a stage's parameters, for rules that need whole tensors. Copies of
// tied parameters need the same bits on ranks that divide them in other ways.
engine::WholeTensors whole_tensors(const Composition& c, const Stage& stage) {
  engine::WholeTensors whole;
  if (!optim::needs_whole_tensors(c.plan.optimizer.rule)) return whole;
  whole.exact = c.plan.micro_shards > 0 || stage.tied;
  if (c.mesh.size("tp") > 1)
    whole.splits.push_back(
        {c.mesh["tp"], [&stage](const std::string& own) { return !!stage.find(own)->slice; }});
  if (c.mesh.size("ep") > 1)
    whole.splits.push_back(
        {c.mesh["ep"], [&stage](const std::string& own) { return !!stage.find(own)->expert; }});
  return whole;
}

// Each parameter once.
std::vector<at::Tensor> trained(const Stage& stage) {
  std::vector<at::Tensor> all;
  std::set<const c10::TensorImpl*> known;
  for (const Block& block : stage.blocks) {
    for (const at::Tensor& parameter : block.module->parameters()) {
      if (parameter.requires_grad() && known.insert(parameter.unsafeGetTensorImpl()).second)
        all.push_back(parameter);
    }
  }
  return all;
}

// If the norm of all gradients is needed, no weight is updated before it is known.
engine::DataParallelOptions data_parallel_of(const Composition& c) {
  engine::DataParallelOptions options = c.plan.data_parallel;
  options.codec = c.plan.codec;
  options.sync_buffers = options.sync_buffers && c.plan.micro_shards == 0;
  const bool waits = c.max_norm() > 0 || c.scaler || c.plan.measure_noise || c.plan.adasum ||
                     optim::needs_whole_tensors(c.plan.optimizer.rule);
  if (!waits) return options;
  options.update_in_backward = options.overlap_forward = false;
  compress::Spec spec = compress::parse(options.codec);
  spec.momentum_before = false;
  options.codec = compress::to_string(spec);
  return options;
}

}  // namespace

bool is_not_orthogonal(const Composition& c, const Stage& stage, const std::string& own) {
  const auto& asked = c.plan.optimizer.not_orthogonal;
  const Parameter& p = *stage.find(own);
  return asked ? asked(p.whole) : p.edge;
}

std::vector<std::string> state_arrays(const Composition& c, const Stage& stage,
                                      const Parameter& p) {
  std::vector<std::string> names = state_names(c.plan.optimizer.rule);
  const bool is_matrix = p.sizes.size() >= 2 && c10::multiply_integers(p.sizes) > 0;
  if (std::holds_alternative<optim::Muon>(c.plan.optimizer.rule) && is_matrix &&
      !is_not_orthogonal(c, stage, p.own)) {
    names.resize(1);
  }
  return names;
}

namespace {

// Gradients of joint statistics then pass between replicas in each micro-batch, so all losses of a
// micro-batch need their weights in the whole batch. By samples, a replica's loss would get its
// weight only afterwards.
bool joins_micro_batches(const Composition& c) {
  return c.plan.sync_batch_norm && c.plan.micro_batches > 1 && !c.plan.adasum;
}

}  // namespace

bool sums_gradients(const Composition& c) {
  const bool whole = c.keeps_whole, copies = c.copies().size() > 1;
  const bool coded = c.plan.codec != "none" && !whole,
             over_batches = whole && c.plan.accumulate > 1;
  return c.plan.micro_shards > 0 || c.mesh.size("ep") > 1 || joins_micro_batches(c) ||
         (copies && (coded || over_batches));
}

std::string replicate(Composition& c) {
  c.sharding.stage = engine_stage(c);
  if (c.copies().size() == 1) return "";
  if (!c.replicates()) c.sharding.replicas = c.copies();
  std::string over;
  for (const char* name : {"dp", "cp", "ep"}) {
    if (c.mesh.size(name) > 1) over += (over.empty() ? "" : " x ") + axis(c.mesh, name);
  }
  c.sharding.codec = c.plan.codec;
  const bool coded = c.plan.codec != "none" && !c.replicates();
  if (coded || c.mesh.size("ep") > 1) c.sharding.average = engine::ShardedOptions::Average::kSum;
  const auto* const sgd = std::get_if<kernels::Sgd>(&c.plan.optimizer.rule);
  const bool before =
      coded && compress::parse(c.plan.codec).momentum_before && sgd != nullptr && sgd->momentum > 0;
  const std::string through =
      c.plan.codec != "none"
          ? ", through " + c.plan.codec + (before ? ", with momentum after the codec" : "")
          : "";
  if (c.plan.adasum) return "gradients are combined by Adasum over " + over + ", once a step";
  if (c.mesh.size("ep") == 1)
    return "gradients are averaged over " + over + ", once a step" + through;
  const std::string apart = over.substr(0, over.rfind("ep=")),
                    experts = apart.substr(0, apart.rfind(" x "));
  return "gradients are summed over " + over + ", once a step; experts' " +
         (experts.empty() ? "stay" : "over " + experts + " alone") + through;
}

namespace {

// Throws on all ranks if the stages of one do not fit.
void check_for_adasum(const Composition& c) {
  if (!c.plan.adasum) return;
  const bool is_tied =
      std::any_of(c.stages.begin(), c.stages.end(), [](const Stage& stage) { return stage.tied; });
  if (!comm::holds_on_all(c.mesh.world(), !is_tied && c.replicates()))
    throw Error(Errc::kBadConfig,
                "plan: adasum needs float32 parameters, and no weight that is tied over stages");
}

}  // namespace

std::string shard_parameters(Composition& c) {
  c.sharding.stage = engine_stage(c);
  // With several batches, each is weighted by its own samples, which are known only during the
  // batch.
  const bool over_batches = c.replicates() && c.plan.accumulate > 1 && c.copies().size() > 1;
  if (c.plan.micro_shards > 0 || over_batches || joins_micro_batches(c))
    c.sharding.average = engine::ShardedOptions::Average::kSum;
  if (c.plan.adasum) c.sharding.average = engine::ShardedOptions::Average::kAdasum;
  c.sharding.weights = c.plan.weights;
  // Else Statistics.
  c.sharding.sync_buffers = c.plan.data_parallel.sync_buffers && c.plan.micro_shards == 0;
  if (c.replicates()) c.sharding.data_parallel = data_parallel_of(c);
  check_for_adasum(c);
  std::string text;
  for (Stage& stage : c.stages) {
    stage.statistics.take_first(c.same_blocks());
    if (stage.parameters.empty()) continue;
    OptimizerSpec spec = c.plan.optimizer;
    spec.max_grad_norm = 0;  // the pass "clip" clips over the whole model
    for (optim::ParamGroup& group : spec.groups) {
      group.which = [&stage, asked = std::move(group.which)](const std::string& own) {
        return asked && asked(stage.find(own)->whole);
      };
    }
    spec.not_orthogonal = [&c, &stage](const std::string& own) {
      return is_not_orthogonal(c, stage, own);
    };
    if (spec.no_decay || !c.plan.decay_vectors) {
      spec.no_decay = [&c, &stage, asked = spec.no_decay](const std::string& own) {
        const Parameter& p = *stage.find(own);
        return (!c.plan.decay_vectors && p.sizes.size() <= 1) || (asked && asked(p.whole));
      };
    }
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      blocks.push_back({.name = stage.names[i],
                        .module = stage.blocks[i].module,
                        .forward = stage.blocks[i].forward});
    }
    c.sharding.apart = experts_apart(c, stage);
    c.sharding.uncoded = uncoded(c, stage);
    c.sharding.whole_tensors = whole_tensors(c, stage);
    if (c.plan.micro_shards > 0)
      stage.tree = std::make_unique<GradientTree>(trained(stage), c.plan.micro_batches);
    if (c.skips()) stage.check = std::make_shared<engine::GradientCheck>();
    if (c.plan.measure_noise) stage.check->measure();
    c.sharding.check = stage.check;
    const Group& group = c.replicates() ? c.copies() : c.mesh["fsdp"];
    stage.sharded =
        std::make_unique<engine::Sharded>(std::move(blocks), group, std::move(spec), c.sharding);
    text += (text.empty() ? "" : "; ") + stage.sharded->describe();
  }
  return text;
}

}  // namespace weft::parallel::internal
