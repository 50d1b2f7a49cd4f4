// The passes, in their order.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "weft/base/config.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/parallel/compose/internal/autocast.h"
#include "weft/parallel/compose/internal/composed.h"
#include "weft/parallel/compose/internal/passes.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel {
namespace internal {
namespace {

namespace lists = schedule::pipeline;

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

TensorParallel context_of(const Composed& c, int block) {
  TensorParallel tp(c.mesh["tp"], block_seed(c.plan.seed, block));
  tp.seed_dropout(mixed(block_seed(c.plan.seed, block)));
  return tp;
}

// By the times of world rank 0, for all.
std::vector<int> measured(const Composed& c, int stages) {
  std::vector<int> cuts(static_cast<std::size_t>(stages - 1));
  if (c.mesh.coordinate("pp") == 0) {  // with all ranks of tp; as if each had whole sequences and all experts
    const auto make = [&](int number) {
      const Contexts contexts{.tp = context_of(c, number), .cp = {}, .ep = {}};
      const Block block = c.model.blocks[static_cast<std::size_t>(number)].make(contexts);
      return Block{.module = block.module, .forward = block.forward};
    };
    cuts = measured_cuts(static_cast<int>(c.model.blocks.size()), stages, make, c.plan.sample);
  }
  at::Tensor told = at::tensor(at::ArrayRef<int>(cuts), at::kInt);
  c.mesh.world().broadcast(told);
  const int* const first = told.const_data_ptr<int>();
  return {first, first + cuts.size()};
}

std::string cut_stages(Composed& c) {
  const int blocks = static_cast<int>(c.model.blocks.size());
  c.request = {.algorithm = c.plan.schedule,
               .ranks = c.mesh.size("pp"),
               .micro_batches = c.plan.micro_batches,
               .virtual_stages = virtual_stages(c.plan)};
  const int stages = lists::num_stages(c.request);
  c.cuts = c.plan.cuts;
  const bool given = !c.cuts.empty(), measures = !given && !c.plan.sample.empty() && stages > 1;
  if (measures) c.cuts = measured(c, stages);
  for (int stage = 1; !given && !measures && stage < stages; ++stage) c.cuts.push_back(stage * blocks / stages);
  std::string mine;
  for (int stage = 0; stage < stages; ++stage) {
    if (lists::rank_of(c.request, stage) != c.mesh.coordinate("pp")) continue;
    const auto at = static_cast<std::size_t>(stage);
    const int begin = stage == 0 ? 0 : c.cuts[at - 1], end = at < c.cuts.size() ? c.cuts[at] : blocks;
    Stage& s = c.stages.emplace_back();
    s.number = stage;
    s.first = begin;
    for (int i = begin; i < end; ++i) s.names.push_back(c.model.blocks[static_cast<std::size_t>(i)].name);
    mine += (mine.empty() ? "" : ", ") + s.names.front() + (end - begin > 1 ? " to " + s.names.back() : "");
  }
  return count(static_cast<std::size_t>(blocks), "block") + " in " + count(static_cast<std::size_t>(stages), "stage") + " over " +
         axis(c.mesh, "pp") + " by " + lists::to_string(c.plan.schedule) + ", " + (measures ? "cut by measured times, " : "") +
         (c.plan.micro_batches == 1 ? "one micro-batch" : std::to_string(c.plan.micro_batches) + " micro-batches") +
         (c.plan.micro_shards > 0 ? " of all " + std::to_string(c.plan.micro_shards) : "") + "; this rank has " + mine;
}

std::string split_sequence(Composed& c) {
  if (c.mesh.size("cp") == 1) return "";
  c.cp = ContextParallel(c.mesh["cp"], c.plan.context);
  return "every sequence's positions lie over " + axis(c.mesh, "cp") + ", attention " +
         (c.plan.context == ContextMethod::kRing ? "by ring" : "by heads");
}

std::string place_experts(Composed& c) {
  const std::int64_t each = c.model.experts / c.mesh.size("ep"), first = each * c.mesh.coordinate("ep");
  if (c.model.experts == 0 || c.sharers().size() == 1) return "";
  c.ep = ExpertParallel(c.mesh["ep"], c.sharers());
  return count(static_cast<std::size_t>(c.model.experts), "expert") + " over " + axis(c.mesh, "ep") + ", balanced over " +
         count(static_cast<std::size_t>(c.sharers().size()), "rank") + "; this rank has " + std::to_string(first) + " to " +
         std::to_string(first + each - 1);
}

void list_parameters(Stage& stage) {
  std::set<const c10::TensorImpl*> known;
  for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
    const Block& block = stage.blocks[i];
    const auto slices = parallel::slices(*block.module), experts = expert_slices(*block.module);
    for (const auto& item : block.module->named_parameters()) {
      if (!known.insert(item.value().unsafeGetTensorImpl()).second) continue;
      Parameter p{.own = stage.names[i] + "." + item.key(), .slice = {}, .expert = {}, .sizes = item.value().sizes().vec()};
      p.whole = !block.prefix ? p.own : block.prefix->empty() ? item.key() : *block.prefix + "." + item.key();
      p.trained = item.value().requires_grad();
      for (const auto& [name, tensor] : block.tied) {
        if (!tensor.is_same(item.value())) continue;
        p.copy = p.whole != name;
        p.whole = name;
        p.tied = true;
      }
      if (const auto found = slices.find(item.key()); found != slices.end()) {
        p.slice = found->second;
        p.sizes[static_cast<std::size_t>(p.slice->dim)] = p.slice->whole;
      }
      if (const auto found = experts.find(item.key()); found != experts.end()) {
        p.expert = found->second;
        p.sizes[static_cast<std::size_t>(p.expert->dim)] = p.expert->whole;
      }
      stage.parameters.push_back(std::move(p));
    }
  }
}

// Parameters that other stages have too: the pipeline reads them before they are sharded, so that they stay whole until then.
std::function<bool(const at::Tensor&)> shared_with_stages(const Stage& stage, const Block& block) {
  if (!stage.tied) return nullptr;
  return [&block](const at::Tensor& parameter) {
    return std::any_of(block.tied.begin(), block.tied.end(), [&](const auto& tied) { return tied.second.is_same(parameter); });
  };
}

std::string split_layers(Composed& c) {
  c.tp = TensorParallel(c.mesh["tp"], c.plan.seed);
  if (c.mesh.size("fsdp") > 1) c.sharding.cuts = std::make_shared<ParameterCuts>(c.mesh["fsdp"]);
  std::size_t slices = 0, all = 0;
  for (Stage& stage : c.stages) {
    Contexts contexts{.tp = {}, .cp = c.cp, .ep = c.ep};
    contexts.selective = c.plan.recompute == Recompute::kSelective && !left_out(c, "recompute");
    for (std::size_t i = 0; i < stage.names.size(); ++i) {
      const int number = stage.first + static_cast<int>(i);
      contexts.tp = context_of(c, number);
      stage.tp.push_back(contexts.tp);
      Block block = c.model.blocks[static_cast<std::size_t>(number)].make(contexts);
      WEFT_REQUIRE(block.module && block.forward, "block " + stage.names[i] + " has no module or no forward");
      // With micro-shards each of tied blocks has a weight of its own, wherever they are, so that gradients are summed alike.
      if (c.plan.micro_shards == 0) contexts.before[stage.names[i]] = block.module;
      stage.tied = stage.tied || (!block.tied.empty() && (lists::num_stages(c.request) > 1 || c.plan.micro_shards > 0));
      if (c.sharding.cuts) c.sharding.cuts->cut(*block.module, shared_with_stages(stage, block));
      stage.blocks.push_back(std::move(block));
    }
    list_parameters(stage);
    all += stage.parameters.size();
    for (const Parameter& p : stage.parameters) slices += p.slice && c.tp.size() > 1 ? 1 : 0;
  }
  return std::to_string(slices) + " of " + count(all, "parameter") + " are slices over " + axis(c.mesh, "tp");
}

std::string set_precision(Composed& c) {
  if (c.plan.precision == Precision::kAsItIs) return "";
  c.precision = c.plan.precision;
  for (Stage& stage : c.stages) {
    for (Block& block : stage.blocks) {
      block.forward = [precision = c.plan.precision, forward = std::move(block.forward)](const Tensors& x) {
        const Autocast autocast(precision);
        return forward(x);
      };
    }
  }
  return std::string("blocks and loss compute in ") + (c.plan.precision == Precision::kBf16 ? "bfloat16" : "float16");
}

std::string recompute_blocks(Composed& c) {
  if (c.plan.recompute == Recompute::kNone) return "";
  if (c.plan.recompute == Recompute::kSelective) {
    if (!c.model.selective) throw Error(Errc::kBadConfig, "plan: this model's blocks know no selective recomputation; take full");
    return "blocks compute again in backward what is large and cheap";
  }
  std::size_t again = 0, all = 0;
  for (Stage& stage : c.stages) {
    all += stage.blocks.size();
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      if (static_cast<std::size_t>(stage.first) + i + 1 == c.model.blocks.size()) continue;
      ++again;
      const KeepState draws = keep_draws(stage.tp[i]);
      stage.blocks[i].forward = [draws, forward = std::move(stage.blocks[i].forward)](const Tensors& x) {
        return recompute_all(forward, x, {.random = false, .keep = {draws}});
      };
    }
  }
  return std::to_string(again) + " of " + count(all, "block") + " compute all again in backward";
}

std::string scale_loss(Composed& c) {
  if (!scales_loss(c.plan)) return "";
  c.scaler.emplace(c.plan.loss_scale.value_or(LossScaleOptions{}));
  return "the loss is scaled by " + std::to_string(static_cast<std::int64_t>(c.scale())) + " at first";
}

// Without gaps, and so their gradients: as they come from another stage. Operations on strided tensors may add in another order.
Tensors packed(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.contiguous();
    if (tensor.requires_grad()) tensor.register_hook([](const at::Tensor& gradient) { return gradient.contiguous(); });
  }
  return tensors;
}

std::string connect_stages(Composed& c) {
  std::map<int, Block> blocks;
  for (Stage& stage : c.stages) {
    std::set<const c10::TensorImpl*> listed;
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      Block block{.module = stage.blocks[i].module};
      block.forward = [&stage, i, alike = c.plan.micro_shards > 0](const Tensors& x) {
        const Tensors y = stage.sharded ? stage.sharded->run(i, x) : stage.blocks[i].forward(x);
        return alike ? packed(y) : y;
      };
      for (const auto& [name, tensor] : stage.blocks[i].tied) {
        if (listed.insert(tensor.unsafeGetTensorImpl()).second) block.tied[name] = tensor;
      }
      blocks[stage.first + static_cast<int>(i)] = std::move(block);
    }
  }
  PipelineOptions options{.algorithm = c.request.algorithm, .micro_batches = c.request.micro_batches, .cuts = c.cuts};
  options.virtual_stages = c.request.virtual_stages;
  options.loss = [&c](const Tensors& y, const Tensors& t) { return c.loss_of(y, t); };
  options.before = [&c](const lists::Action& action) { c.before(action); };
  options.after = [&c](const lists::Action& action) { c.after(action); };
  const int all = static_cast<int>(c.model.blocks.size());
  c.pipeline = std::make_unique<Pipeline>(
      c.mesh["pp"], all, [&](int i) { return blocks.at(i); }, std::move(options));
  if (c.request.ranks == 1) return "";
  return "activations and gradients go from stage to stage over " + axis(c.mesh, "pp");
}

std::string clip(Composed& c) {
  c.max_norm = c.plan.optimizer.max_grad_norm;
  if (c.max_norm <= 0) return "";
  std::ostringstream text;
  text << "gradients to a norm of " << c.max_norm << " over the whole model";
  return text.str();
}

bool always(const Composed&) { return true; }
bool never(const Composed&) { return false; }
bool on_cp(const Composed& c) { return c.mesh.size("cp") > 1; }
bool on_ep(const Composed& c) { return c.mesh.size("ep") > 1; }
bool on_copies(const Composed& c) { return c.mesh.size("dp") > 1 || on_cp(c) || on_ep(c); }

struct Pass {
  PassInfo info;
  bool (*needed)(const Composed&);  // the result, or whether it fits at all, depends on it
  std::string (*run)(Composed&);    // what it did; empty: nothing, with this plan
};

constexpr std::array kPasses = {
    Pass{{"cut stages", "which blocks this rank has"}, always, cut_stages},
    Pass{{"split sequence", "each rank has a part of every sequence's positions"}, on_cp, split_sequence},
    Pass{{"place experts", "each rank has some of the experts"}, on_ep, place_experts},
    Pass{{"split layers", "makes these blocks, each with its part of every split layer"}, always, split_layers},
    Pass{{"precision", "blocks and loss compute in a narrower type"}, never, set_precision},
    Pass{{"recompute", "blocks keep their inputs alone, or what is dear, and compute again in backward"}, never, recompute_blocks},
    Pass{{"scale loss", "so that float16's gradients do not vanish"}, never, scale_loss},
    Pass{{"connect stages", "micro-batches go through the stages by a schedule"}, always, connect_stages},
    Pass{{"replicate", "gradients are averaged over replicas"}, on_copies, replicate},
    Pass{{"shard parameters", "over ranks, with the optimiser that updates them"}, always, shard_parameters},
    Pass{{"clip", "the norm of the whole model's gradients is bounded"}, never, clip},
};

constexpr auto kInfos = [] {
  std::array<PassInfo, kPasses.size()> infos{};
  for (std::size_t i = 0; i < kPasses.size(); ++i) infos[i] = kPasses[i].info;
  return infos;
}();

void check_left_out(const Composed& c) {
  for (const std::string& name : c.plan.without) {
    const auto found = std::find_if(kPasses.begin(), kPasses.end(), [&](const Pass& pass) { return name == pass.info.name; });
    std::vector<std::string> known;
    for (const Pass& pass : kPasses) known.emplace_back(pass.info.name);
    if (found == kPasses.end()) {
      throw Error(Errc::kBadConfig,
                  "plan: there is no pass '" + name + "'; did you mean '" + nearest(name, known).value_or(known[0]) + "'?");
    }
    if (found->needed(c))
      throw Error(Errc::kBadConfig, "plan: the pass '" + name + "' cannot be left out on " + c.mesh.layout().describe());
  }
}

}  // namespace

void compose(Composed& c) {
  const BlockModel& m = c.model;
  check_plan(c.plan, {static_cast<int>(m.blocks.size()), m.splits, m.heads, m.kv_heads, m.experts}, c.mesh.layout());
  check_left_out(c);
  if (c.plan.micro_shards > 0 && !c.mesh.world().has_ordered_sums()) {
    throw Error(Errc::kBadConfig,
                "plan: micro_shards adds gradients in one order, and this group in another that its transport chose; make the group with "
                "InitOptions::ordered_sums");
  }
  // Before anything goes wrong, since all their ranks make them.
  for (const char* name : {"tp", "pp", "dp", "fsdp", "cp", "ep"}) c.mesh[name];
  c.replicas();
  c.sharers();
  c.copies();
  c.copies_of_experts();
  for (const Pass& pass : kPasses) {
    c.done.emplace_back(pass.info.name, left_out(c, pass.info.name) ? "left out" : pass.run(c));
  }
}

}  // namespace internal

std::span<const PassInfo> passes() { return internal::kInfos; }

std::uint64_t block_seed(std::uint64_t seed, int block) {
  return internal::mixed(internal::mixed(seed) + static_cast<std::uint64_t>(block));
}

}  // namespace weft::parallel
