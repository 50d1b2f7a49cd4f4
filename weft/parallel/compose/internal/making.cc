// The passes that make a rank's stages: the choice of blocks, and their layers.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "weft/base/text/words.h"
#include "weft/comm/texts.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/parallel/batch_norm/sync_batch_norm.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel {
namespace internal {

namespace lists = schedule::pipeline;

namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Calls make() with libtorch's default generator, which its layers use, seeded with `seed`, and
// restores the generator afterwards. Threads take turns, since ranks may be threads.
Block seeded(std::uint64_t seed, const std::function<Block()>& make) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  generator.set_current_seed(seed);
  Block block = make();
  generator.set_state(before);
  return block;
}

Block make_block(const Composition& c, int number, const Contexts& contexts) {
  const BlockSpec& spec = c.model.blocks[static_cast<std::size_t>(number)];
  Block block = seeded(block_seed(c.plan.seed, number), [&] { return spec.make(contexts); });
  WEFT_REQUIRE(block.module && block.forward,
               "block " + spec.name + " has no module or no forward");
  block.name = spec.name;
  return block;
}

TensorParallel context_of(const Composition& c, int block) {
  TensorParallel tp(c.mesh["tp"], block_seed(c.plan.seed, block));
  tp.seed_dropout(mixed(block_seed(c.plan.seed, block)));
  return tp;
}

// Cuts by the times of world rank 0, for all ranks.
std::vector<int> measured(const Composition& c, int stages) {
  std::vector<int> cuts(static_cast<std::size_t>(stages - 1));
  if (c.mesh.coordinate("pp") == 0) {  // uses all ranks of tp, but whole sequences and all experts
    const auto make = [&](int number) {
      const Contexts contexts{.tp = context_of(c, number), .cp = {}, .ep = {}};
      return make_block(c, number, contexts);
    };
    cuts = measured_cuts(static_cast<int>(c.model.blocks.size()), stages, make, c.plan.sample);
  }
  at::Tensor told = at::tensor(at::ArrayRef<int>(cuts), at::kInt);
  c.mesh.world().broadcast(told);
  const int* const first = told.const_data_ptr<int>();
  return {first, first + cuts.size()};
}

// Each stage has its own optimizer and statistics, so two stages would train one parameter apart,
// and one batch norm. A constant buffer may be in two. All ranks have all of the caller's modules,
// and find the same.
void check_between_stages(const Composition& c) {
  struct Holder {
    int stage;
    const BlockSpec& spec;
    std::string name;
  };
  std::map<const c10::TensorImpl*, std::vector<Holder>> holders;
  const auto look = [&](const Holder& one, const at::Tensor& tensor, bool is_parameter) {
    std::vector<Holder>& others = holders[tensor.unsafeGetTensorImpl()];
    const std::string* const tied = tied_name(*one.spec.own, tensor);
    for (const Holder& other : others) {
      const std::string* const there = tied_name(*other.spec.own, tensor);
      const bool is_tied = tied != nullptr && there != nullptr && *tied == *there,
                 on_one_rank =
                     lists::rank_of(c.request, one.stage) == lists::rank_of(c.request, other.stage);
      WEFT_REQUIRE(one.stage == other.stage || (is_tied && !on_one_rank),
                   "'" + other.name + "' of block '" + other.spec.name + "' and '" + one.name +
                       "' of block '" + one.spec.name + "' are one " +
                       (is_parameter ? "parameter" : "buffer") +
                       ", but the blocks are in different pipeline stages; " +
                       (!is_parameter ? "give each block its own"
                        : is_tied     ? "use a schedule with these stages on different ranks"
                                      : "name it in Block::tied of both") +
                       ", set the plan's cuts so that one stage has both, or use dp in place of "
                       "pp");
    }
    others.push_back(one);
  };
  for (std::size_t i = 0; i < c.model.blocks.size(); ++i) {
    const BlockSpec& spec = c.model.blocks[i];
    if (!spec.own) continue;
    const auto cut = std::upper_bound(c.cuts.begin(), c.cuts.end(), static_cast<int>(i));
    const int stage = static_cast<int>(cut - c.cuts.begin());
    for (const auto& item : spec.own->module->named_parameters()) {
      if (item.value().requires_grad()) look({stage, spec, item.key()}, item.value(), true);
    }
    for (const auto& item : spec.own->module->named_buffers()) {
      if (item.key().ends_with("running_mean"))
        look({stage, spec, item.key()}, item.value(), false);
    }
  }
}

}  // namespace

const std::string* tied_name(const Block& block, const at::Tensor& tensor) {
  for (const auto& [name, tied] : block.tied) {
    if (tied.is_same(tensor)) return &name;
  }
  return nullptr;
}

std::string cut_stages(Composition& c) {
  const int blocks = static_cast<int>(c.model.blocks.size());
  c.request = {.algorithm = c.plan.schedule,
               .ranks = c.mesh.size("pp"),
               .micro_batches = c.plan.micro_batches,
               .virtual_stages = virtual_stages(c.plan)};
  const int stages = lists::num_stages(c.request);
  c.cuts = c.plan.cuts;
  const bool given = !c.cuts.empty(), measures = !given && !c.plan.sample.empty() && stages > 1;
  if (measures) c.cuts = c.guarded([&] { return measured(c, stages); });
  for (int stage = 1; !given && !measures && stage < stages; ++stage)
    c.cuts.push_back(stage * blocks / stages);
  check_between_stages(c);
  std::string mine;
  for (int stage = 0; stage < stages; ++stage) {
    if (lists::rank_of(c.request, stage) != c.mesh.coordinate("pp")) continue;
    const auto at = static_cast<std::size_t>(stage);
    const int begin = stage == 0 ? 0 : c.cuts[at - 1],
              end = at < c.cuts.size() ? c.cuts[at] : blocks;
    Stage& s = c.stages.emplace_back();
    s.number = stage;
    s.first = begin;
    for (int i = begin; i < end; ++i)
      s.names.push_back(c.model.blocks[static_cast<std::size_t>(i)].name);
    mine += (mine.empty() ? "" : ", ") + s.names.front() +
            (end - begin > 1 ? " to " + s.names.back() : "");
  }
  if (stages == 1 && c.plan.micro_batches == 1 && c.plan.micro_shards == 0) return "";
  const std::string batches =
      (c.plan.micro_batches == 1 ? "one micro-batch"
                                 : std::to_string(c.plan.micro_batches) + " micro-batches") +
      (c.plan.micro_shards > 0 ? " of all " + std::to_string(c.plan.micro_shards) : "");
  if (stages == 1) return "this rank computes its share of a batch as " + batches;
  return counted(blocks, "block") + " in " + counted(stages, "stage") + " over " +
         axis(c.mesh, "pp") + " by " + lists::to_string(c.plan.schedule) + ", " +
         (measures ? "cut by measured times, " : "") + batches + "; this rank has " + mine;
}

namespace {

// The name without its block's prefix.
std::string whole_name(const Block& block, const std::string& name) {
  const std::string& prefix = block.prefix ? *block.prefix : block.name;
  return prefix.empty() ? name : prefix + "." + name;
}

// A saved state has other values by these names.
void check_name(const std::string& name) {
  WEFT_REQUIRE(name != "steps" && name != "loss_scale" && name != "loss_scale.good_steps",
               "checkpoints have a value of weft's own by the name '" + name +
                   "'; rename the parameter or buffer, or give its block a prefix");
}

void list_parameters(Stage& stage) {
  std::set<const c10::TensorImpl*> known;
  for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
    const Block& block = stage.blocks[i];
    const auto slices = parallel::slices(*block.module), experts = expert_slices(*block.module);
    for (const auto& item : block.module->named_parameters()) {
      if (!known.insert(item.value().unsafeGetTensorImpl()).second) continue;
      Parameter p{.own = stage.names[i] + "." + item.key(),
                  .slice = {},
                  .expert = {},
                  .sizes = item.value().sizes().vec()};
      p.whole = whole_name(block, item.key());
      p.trained = item.value().requires_grad();
      if (const std::string* const name = tied_name(block, item.value())) {
        p.copy = p.whole != *name;
        p.whole = *name;
        p.tied = true;
      }
      check_name(p.whole);
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

void list_buffers(Stage& stage) {
  std::vector<Statistics::Named> buffers;
  std::set<const c10::TensorImpl*> known;
  for (const Block& block : stage.blocks) {
    engine::prepare_buffers(*block.module, block.prefix.value_or(block.name));
    for (const auto& item : block.module->named_buffers()) {
      if (!known.insert(item.value().unsafeGetTensorImpl()).second) continue;
      buffers.push_back({whole_name(block, item.key()), item.value()});
      check_name(buffers.back().name);
    }
  }
  stage.statistics = Statistics(std::move(buffers));
}

// A tied parameter is at the edge if any of its blocks is, on this rank or another, so that all
// copies are updated alike.
void mark_edges(Composition& c) {
  const int last = static_cast<int>(c.model.blocks.size()) - 1;
  std::string mine;
  for (const Stage& stage : c.stages) {
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      const int number = stage.first + static_cast<int>(i);
      if (number != 0 && number != last) continue;
      const Block& block = stage.blocks[i];
      for (const auto& item : block.module->named_parameters()) {
        const std::string* const tied = tied_name(block, item.value());
        mine += (tied ? *tied : whole_name(block, item.key())) + "\n";
      }
    }
  }
  std::set<std::string> names;
  for (const std::string& text : comm::all_gather_texts(c.mesh["pp"], mine)) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);) names.insert(name);
  }
  for (Stage& stage : c.stages) {
    for (Parameter& p : stage.parameters) p.edge = names.contains(p.whole);
  }
}

// Parameters that other stages have too stay whole until the pipeline has read them, and are
// sharded afterwards.
std::function<bool(const at::Tensor&)> shared_with_stages(const Stage& stage, const Block& block) {
  if (!stage.tied) return nullptr;
  return [&block](const at::Tensor& parameter) {
    return std::any_of(block.tied.begin(), block.tied.end(),
                       [&](const auto& tied) { return tied.second.is_same(parameter); });
  };
}

}  // namespace

std::string split_layers(Composition& c) {
  c.contexts.tp = TensorParallel(c.mesh["tp"], c.plan.seed);
  if (c.mesh.size("fsdp") > 1)
    c.sharding.cuts = std::make_shared<engine::ParameterCuts>(c.mesh["fsdp"]);
  std::size_t slices = 0, all = 0;
  std::set<std::string> names;
  for (Stage& stage : c.stages) {
    Contexts contexts{.tp = {}, .cp = c.contexts.cp, .ep = c.contexts.ep};
    contexts.selective = c.plan.recompute == Recompute::kSelective && !left_out(c, "recompute");
    for (std::size_t i = 0; i < stage.names.size(); ++i) {
      const int number = stage.first + static_cast<int>(i);
      contexts.tp = context_of(c, number);
      stage.tp.push_back(contexts.tp);
      Block block = make_block(c, number, contexts);
      // With micro-shards, each tied block has its own copy of the weight on any plan, so that
      // gradients are summed in the same way.
      if (c.plan.micro_shards == 0) contexts.before[stage.names[i]] = block.module;
      stage.tied = stage.tied || (!block.tied.empty() &&
                                  (lists::num_stages(c.request) > 1 || c.plan.micro_shards > 0));
      if (c.sharding.cuts) c.sharding.cuts->cut(*block.module, shared_with_stages(stage, block));
      stage.blocks.push_back(std::move(block));
    }
    list_parameters(stage);
    list_buffers(stage);
    for (const Parameter& p : stage.parameters) {
      WEFT_REQUIRE(
          names.insert(p.whole).second || p.tied,
          "two blocks have a parameter '" + p.whole + "'; give the blocks different names");
    }
    all += stage.parameters.size();
    for (const Parameter& p : stage.parameters) slices += p.slice && c.mesh.size("tp") > 1 ? 1 : 0;
  }
  mark_edges(c);
  if (c.mesh.size("tp") == 1) return "";
  return std::to_string(slices) + " of " + counted(all, "parameter") + " are slices over " +
         axis(c.mesh, "tp");
}

namespace {

// blocks_of(Sequential) leaves the caller's Sequential as it is.
void list_modes(Stage& stage, const Block& block, const std::optional<Block>& own) {
  if (!own) return;
  const auto layers = block.module->named_children();
  for (const auto& given : own->module->named_children()) {
    const auto* const layer = layers.find(given.key());
    if (layer == nullptr || *layer == given.value()) continue;
    stage.follow_modes.emplace_back(
        [from = given.value(), to = *layer] { to->train(from->is_training()); });
  }
}

}  // namespace

std::string join_batch_norms(Composition& c) {
  if (!c.plan.sync_batch_norm) return "";
  const auto average = sums_gradients(c) ? engine::ShardedOptions::Average::kSum
                                         : engine::ShardedOptions::Average::kBySamples;
  at::Tensor layers = at::zeros({1}, at::kLong);
  for (Stage& stage : c.stages) {
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      const Block& block = stage.blocks[i];
      layers += convert_sync_batch_norm(block.module, c.replicas(), average);
      list_modes(stage, block, c.model.blocks[static_cast<std::size_t>(stage.first) + i].own);
    }
  }
  at::Tensor all = layers.clone();
  c.mesh.world().all_reduce(all, ReduceOp::kMax);
  if (all.item<std::int64_t>() == 0)
    throw Error(Errc::kBadConfig, "plan: sync_batch_norm: the model has no batch norm");
  return counted(layers.item<std::int64_t>(), "batch norm") + " over " +
         counted(c.replicas().size(), "replica");
}

}  // namespace internal

std::uint64_t block_seed(std::uint64_t seed, int block) {
  return internal::mixed(internal::mixed(seed) + static_cast<std::uint64_t>(block));
}

}  // namespace weft::parallel
