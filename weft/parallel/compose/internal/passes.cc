// The passes, in their order. Each reads what earlier ones left in the Composition. So the order is
// a part of the strategy:
//
//   cut stages               makes the stages, which all others go through
//   split sequence,          cp and ep must exist before the factories of blocks get their Contexts
//     place experts
//   split layers             makes the blocks and lists their parameters by name. All ranks then
//                            agree whether they keep whole stages
//   join batch norms         replaces layers, so before anything moves or wraps a block
//   move to device,          wrap Block::forward, each around the one before. So a recomputed block
//     precision, recompute   runs in the precision and on the device of the first time
//   scale loss               options of the engine depend on it (data_parallel_of)
//   connect stages           copies tied parameters, which must still be whole
//   replicate                chooses the engine's stage, and the ranks that combine gradients
//   shard parameters         takes Block::forward as it is now, and divides the parameters
//   clip                     only notes the norm: step() clips over the whole model
//
// All ranks run the same passes in this order, since several are collective.
//
// Lifetime: the pipeline and the engines keep references to the Composition and to its stages. So
// neither moves after "cut stages".
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/text/words.h"
#include "weft/comm/texts.h"
#include "weft/parallel/compose/autocast.h"
#include "weft/parallel/compose/internal/composition.h"
#include "weft/parallel/compose/internal/on_device.h"
#include "weft/parallel/compose/internal/passes.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel {
namespace internal {
namespace {

namespace lists = schedule::pipeline;

std::string split_sequence(Composition& c) {
  if (c.mesh.size("cp") == 1) return "";
  c.contexts.cp = ContextParallel(c.mesh["cp"], c.plan.context);
  return "positions of every sequence are divided over " + axis(c.mesh, "cp") + ", attention " +
         (c.plan.context == ContextMethod::kRing ? "by ring" : "by heads");
}

std::string place_experts(Composition& c) {
  const std::int64_t each = c.model.experts / c.mesh.size("ep"),
                     first = each * c.mesh.coordinate("ep");
  if (c.model.experts == 0 || c.sharers().size() == 1) return "";
  c.contexts.ep = ExpertParallel(c.mesh["ep"], c.sharers());
  return counted(c.model.experts, "expert") + " over " + axis(c.mesh, "ep") + ", balanced over " +
         counted(c.sharers().size(), "rank") + "; this rank has " + std::to_string(first) + " to " +
         std::to_string(first + each - 1);
}

std::string move_to_device(Composition& c) {
  const at::Device device = c.plan.device;
  if (device.is_cpu()) return "";
  for (Stage& stage : c.stages) {
    for (Block& block : stage.blocks) {
      block.module->to(device);
      block.forward = [device, forward = std::move(block.forward)](const Tensors& x) {
        return forward(on_device(x, device));
      };
    }
  }
  return "blocks compute on " + device.str();
}

std::string set_precision(Composition& c) {
  if (c.plan.precision == Precision::kAsItIs) return "";
  c.precision = c.plan.precision;
  for (Stage& stage : c.stages) {
    for (Block& block : stage.blocks) {
      block.forward = [precision = c.plan.precision, device = c.plan.device.type(),
                       forward = std::move(block.forward)](const Tensors& x) {
        const Autocast autocast(precision, device);
        return forward(x);
      };
    }
  }
  return std::string("blocks and loss compute in ") +
         (c.plan.precision == Precision::kBf16 ? "bfloat16" : "float16");
}

std::string recompute_blocks(Composition& c) {
  if (c.plan.recompute == Recompute::kNone) return "";
  if (c.plan.recompute == Recompute::kSelective) {
    if (!c.model.selective)
      throw Error(Errc::kBadConfig,
                  "plan: this model's blocks do not support selective recomputation; use full");
    return "blocks recompute large and cheap activations in backward";
  }
  std::size_t again = 0, all = 0;
  for (Stage& stage : c.stages) {
    all += stage.blocks.size();
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      // The last block's backward mostly follows its forward at once, so recomputation would save
      // little.
      if (static_cast<std::size_t>(stage.first) + i + 1 == c.model.blocks.size()) continue;
      ++again;
      std::vector<PreserveState> preserve{preserve_draws(stage.tp[i])};
      // Inputs may come from the CPU.
      if (c.plan.device.is_cuda()) preserve.push_back(preserve_generator(c.plan.device));
      if (!stage.blocks[i].module->buffers().empty()) {
        preserve.push_back(preserve_buffers(stage.blocks[i].module->buffers()));
        preserve.push_back(preserve_modes(stage.blocks[i]));
      }
      stage.blocks[i].forward = [preserve,
                                 forward = std::move(stage.blocks[i].forward)](const Tensors& x) {
        return recompute_all(forward, x, {.preserve = preserve});
      };
    }
  }
  return std::to_string(again) + " of " + counted(all, "block") +
         " recompute everything in backward";
}

std::string scale_loss(Composition& c) {
  if (!scales_loss(c.plan)) return "";
  c.scaler.emplace(c.plan.loss_scale.value_or(LossScaleOptions{}));
  return "the loss is scaled by " + std::to_string(static_cast<std::int64_t>(c.scale())) +
         " at first";
}

// Makes outputs, and so their gradients, contiguous, as if they came from another stage. Operations
// on strided tensors may add in another order.
Tensors packed(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.contiguous();
    if (tensor.requires_grad())
      tensor.register_hook([](const at::Tensor& gradient) { return gradient.contiguous(); });
  }
  return tensors;
}

std::string connect_stages(Composition& c) {
  std::map<int, Block> blocks;
  for (Stage& stage : c.stages) {
    std::set<const c10::TensorImpl*> listed;
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      Block block{.module = stage.blocks[i].module};
      block.forward = [&stage, i, alike = c.plan.micro_shards > 0](const Tensors& x) {
        const Tensors y = in_one_line("block " + stage.names[i], x, [&] {
          // Looked up in each call, since "shard parameters" makes the engine after the pipeline.
          return stage.sharded ? stage.sharded->run(i, x) : stage.blocks[i].forward(x);
        });
        return alike ? packed(y) : y;
      };
      for (const auto& [name, tensor] : stage.blocks[i].tied) {
        // Autograd adds the gradients of blocks of one stage, so each tensor is listed once.
        if (listed.insert(tensor.unsafeGetTensorImpl()).second) block.tied[name] = tensor;
      }
      blocks[stage.first + static_cast<int>(i)] = std::move(block);
    }
  }
  PipelineOptions options{
      .algorithm = c.request.algorithm, .micro_batches = c.request.micro_batches, .cuts = c.cuts};
  options.virtual_stages = c.request.virtual_stages;
  options.loss = c.calls.loss;
  options.before = c.calls.before;
  options.after = c.calls.after;
  const int all = static_cast<int>(c.model.blocks.size());
  c.pipeline = std::make_unique<Pipeline>(
      c.mesh["pp"], all, [&](int i) { return blocks.at(i); }, std::move(options));
  if (c.request.ranks == 1) return "";
  return "activations and gradients are sent between stages over " + axis(c.mesh, "pp");
}

std::string clip(Composition& c) {
  if (c.max_norm() <= 0) return "";
  std::ostringstream text;
  text << "gradients to a norm of " << c.max_norm() << " over the whole model";
  return text.str();
}

bool always(const Composition&) { return true; }
bool never(const Composition&) { return false; }
bool on_cp(const Composition& c) { return c.mesh.size("cp") > 1; }
bool on_ep(const Composition& c) { return c.mesh.size("ep") > 1; }
bool on_copies(const Composition& c) { return c.mesh.size("dp") > 1 || on_cp(c) || on_ep(c); }

struct Pass {
  PassInfo info;
  bool (*needed)(const Composition&);  // the result or the memory depends on it
  std::string (*run)(Composition&);    // description of what it did; empty: nothing to do
};

constexpr std::array kPasses = {
    Pass{{"cut stages", "chooses the blocks of this rank"}, always, cut_stages},
    Pass{{"split sequence", "gives each rank a part of every sequence"}, on_cp, split_sequence},
    Pass{{"place experts", "gives each rank some of the experts"}, on_ep, place_experts},
    Pass{{"split layers", "makes the blocks of this rank, with its part of every split layer"},
         always,
         split_layers},
    Pass{{"join batch norms", "batch norms take statistics over all replicas"},
         never,
         join_batch_norms},
    Pass{{"move to device", "blocks compute on the device of this rank"}, never, move_to_device},
    Pass{{"precision", "blocks and loss compute in a narrower type"}, never, set_precision},
    Pass{{"recompute",
          "blocks keep only their inputs, or their expensive activations, and recompute the rest "
          "in backward"},
         never,
         recompute_blocks},
    Pass{{"scale loss", "scales the loss so that float16 gradients do not vanish"},
         never,
         scale_loss},
    Pass{{"connect stages", "sends micro-batches through the stages by a schedule"},
         always,
         connect_stages},
    Pass{{"replicate", "averages gradients over replicas"}, on_copies, replicate},
    Pass{
        {"shard parameters", "divides parameters over ranks, with the optimizer that updates them"},
        always,
        shard_parameters},
    Pass{{"clip", "limits the norm of the whole model's gradients"}, never, clip},
};

constexpr auto kInfos = [] {
  std::array<PassInfo, kPasses.size()> infos{};
  for (std::size_t i = 0; i < kPasses.size(); ++i) infos[i] = kPasses[i].info;
  return infos;
}();

void check_left_out(const Composition& c) {
  for (const std::string& name : c.plan.without) {
    const auto found = std::find_if(kPasses.begin(), kPasses.end(),
                                    [&](const Pass& pass) { return name == pass.info.name; });
    std::vector<std::string> known;
    for (const Pass& pass : kPasses) known.emplace_back(pass.info.name);
    if (found == kPasses.end()) {
      throw Error(Errc::kBadConfig, "plan: there is no pass '" + name + "'; did you mean '" +
                                        nearest(name, known).value_or(known[0]) + "'?");
    }
    if (found->needed(c))
      throw Error(Errc::kBadConfig, "plan: the pass '" + name + "' cannot be left out on " +
                                        c.mesh.layout().describe());
  }
}

// Ends the groups if a pass throws on this rank, since other ranks may wait for it. The groups
// outlive errors that all ranks find alike: those of the plan and of the cuts.
std::string run(const Pass& pass, Composition& c) {
  if (pass.run == cut_stages) return cut_stages(c);
  std::exception_ptr of_plan;
  const std::string done = c.guarded([&]() -> std::string {
    try {
      std::string what = pass.run(c);
      // Blocks are the program's own and may fail on one rank. The others notice it here: groups
      // that later passes make would wait for that rank until their timeout.
      if (pass.run == split_layers)
        c.keeps_whole = comm::holds_on_all(c.mesh.world(), can_keep_stages_whole(c));
      return what;
    } catch (const Error& error) {
      if (error.code() != Errc::kBadConfig) throw;
      of_plan = std::current_exception();
      return "";
    }
  });
  if (of_plan) std::rethrow_exception(of_plan);
  return done;
}

// Of another model of these modules: sums over its ranks, or parts of them.
void drop_gradients(const BlockModel& model) {
  for (const BlockSpec& spec : model.blocks) {
    if (!spec.own) continue;
    for (const at::Tensor& parameter : spec.own->module->parameters())
      parameter.mutable_grad().reset();
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> compose(Composition& c) {
  check_plan(c.plan, shape_of(c.model), c.mesh.layout());
  check_left_out(c);
  if (c.plan.micro_shards > 0 && !c.mesh.world().has_ordered_sums()) {
    throw Error(Errc::kBadConfig,
                "plan: micro_shards needs a fixed order of sums, but the transport of this group "
                "chooses its own; make the group with InitOptions::ordered_sums");
  }
  // Groups are made first, before anything can fail on one rank, since all ranks must make them.
  for (const char* name : {"tp", "pp", "dp", "fsdp", "cp", "ep"}) c.mesh[name];
  c.replicas();
  c.sharers();
  c.copies();
  c.copies_of_experts();
  c.same_blocks();
  drop_gradients(c.model);
  std::vector<std::pair<std::string, std::string>> done;
  for (const Pass& pass : kPasses) {
    done.emplace_back(pass.info.name, left_out(c, pass.info.name) ? "left out" : run(pass, c));
  }
  c.own_modules = OwnModules(c.model, c.stages);
  return done;
}

}  // namespace internal

std::span<const PassInfo> passes() { return internal::kInfos; }

}  // namespace weft::parallel
