// One logical model as slices: each rank saves and loads its own part.
#include <ATen/ATen.h>

#include <map>
#include <set>

#include "weft/comm/texts.h"
#include "weft/optim/update_rule.h"
#include "weft/parallel/compose/internal/model_state.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {
namespace {

// Parts of a checkpoint.
constexpr const char *kModel = "model", *kOptimizer = "optimizer";

}  // namespace

checkpoint::Slices ModelState::scaler_slices() {
  checkpoint::Slices slices;
  if (!c_.scaler) return slices;
  slices.push_back(
      checkpoint::whole_slice("loss_scale", at::scalar_tensor(c_.scaler->scale(), at::kDouble)));
  slices.push_back(checkpoint::whole_slice("loss_scale.good_steps",
                                           at::scalar_tensor(c_.scaler->good_steps(), at::kLong)));
  return slices;
}

// Before anything is changed: if a slice is missing on one rank, all ranks reject the state.
void ModelState::check_on_all_ranks(const checkpoint::SliceSource& source, bool weights_only) {
  const auto check = [&] {
    checkpoint::Slices wanted;
    const auto want = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
      wanted.push_back({name, shape, {}, {}});
    };
    for (const Stage& stage : c_.stages) {
      for (const Parameter& p : stage.parameters) {
        want(p.whole, p.sizes);
        if (weights_only || !p.trained) continue;
        for (const std::string& array : state_arrays(c_, stage, p))
          want(p.whole + "." + array, p.sizes);
        for (const auto& state : optim::tensor_states(c_.plan.optimizer.rule, p.sizes))
          want(p.whole + "." + state.name, state.sizes);
        want(p.whole + ".step", {});
      }
    }
    if (!weights_only) want("steps", {});
    source.check(wanted);
    if (!weights_only) source.check(buffer_slices());
  };
  c_.try_on_all_ranks("load_shards", check);
}

// Buffers of the first replica: a broadcast, or Statistics, has made them equal on all.
checkpoint::Slices ModelState::buffer_slices() {
  checkpoint::Slices slices;
  for (const Stage& stage : c_.stages) {
    for (const Statistics::Named& buffer : stage.statistics.buffers()) {
      slices.push_back(checkpoint::whole_slice(
          buffer.name, checkpoint::plain_view(buffer.name, buffer.tensor.variable_data())));
    }
  }
  return slices;
}

// Ranks of dp and cp have equal tensors; so have ranks of tp for tensors that are not slices, and
// ranks of ep for tensors that are not experts.
checkpoint::Parts ModelState::shards() {
  checkpoint::Parts parts;
  const auto put = [&](const std::string& part, checkpoint::Slices slices) {
    for (checkpoint::Slice& slice : slices) parts[part].push_back(std::move(slice));
  };
  struct Like {  // properties that these slices have in common
    std::string part;
    bool over_tp, over_ep;
    auto operator<=>(const Like&) const = default;
  };
  std::map<Like, checkpoint::Slices> by_copies;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    std::map<std::string, std::pair<bool, bool>> divided;
    const auto placing = [&](const std::string& own) {
      const Parameter& p = *stage.find(own);
      if (p.copy) return checkpoint::Rectangle{};
      divided[p.whole] = {p.slice && c_.mesh.size("tp") > 1, p.expert && c_.mesh.size("ep") > 1};
      return c_.place_of(p);
    };
    for (checkpoint::Slice& slice : stage.sharded->shards(placing)) {
      if (slice.name == "steps") continue;
      // Optimizer arrays have the layout of their parameter; the number of steps is equal on all
      // ranks.
      std::string parameter = slice.name;
      while (!divided.contains(parameter) && parameter.find('.') != std::string::npos)
        parameter.resize(parameter.rfind('.'));
      const bool count = slice.name == parameter + ".step" && slice.shape.empty();
      const auto [over_tp, over_ep] = count ? std::pair(false, false) : divided.at(parameter);
      by_copies[{std::string(slice.name == parameter ? kModel : kOptimizer), over_tp, over_ep}]
          .push_back(std::move(slice));
    }
  }
  for (auto& [like, slices] : by_copies) {
    int copy = 0, copies = 1;
    const auto alike = [&](const char* axis) {
      copy = copy * c_.mesh.size(axis) + c_.mesh.coordinate(axis);
      copies *= c_.mesh.size(axis);
    };
    if (!c_.replicates()) {  // otherwise the engine has divided them
      alike("dp");
      alike("cp");
    }
    if (!like.over_tp) alike("tp");
    if (!like.over_ep) alike("ep");
    put(like.part, checkpoint::deal(std::move(slices), copy, copies));
  }
  if (c_.replica() == 0 && c_.is_first_copy() && c_.is_first_of_tp()) put(kModel, buffer_slices());
  if (c_.mesh.world().rank() == 0) {
    put(kOptimizer, {checkpoint::whole_slice("steps", at::scalar_tensor(c_.steps, at::kLong))});
    put("scaling", scaler_slices());
  }
  put("codec", codec_slices());
  return parts;
}

// Copies of tied parameters too, since they must change as the others do.
ParallelModel::Held ModelState::held() {
  ParallelModel::Held held;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    std::map<std::string, at::Tensor> trained;
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      for (const auto& item : stage.blocks[i].module->named_parameters()) {
        const Parameter* const p = stage.find(stage.names[i] + "." + item.key());
        if (p != nullptr && p->trained) trained.emplace(p->whole, item.value());
      }
    }
    const auto placing = [&](const std::string& own) {
      const Parameter& p = *stage.find(own);
      return p.trained ? c_.place_of(p) : checkpoint::Rectangle{};
    };
    for (checkpoint::Slice& slice : stage.sharded->held(placing)) {
      const auto found = trained.find(slice.name);
      if (found == trained.end()) continue;
      held.parameters.push_back(found->second);
      held.weights.push_back(std::move(slice));
    }
  }
  for (checkpoint::Slice& slice : buffer_slices()) {
    if (slice.tensor.is_floating_point()) held.buffers.push_back(std::move(slice));
  }
  return held;
}

void ModelState::take_changes() {
  c_.own_modules.note_loads();
  if (c_.mesh.size("pp") > 1 && !c_.own_modules.empty()) {
    c_.guarded([&] {
      at::Tensor any = at::full({1}, c_.own_modules.has_loaded_elsewhere() ? 1 : 0, at::kInt);
      c_.mesh.world().all_reduce(any, ReduceOp::kMax);
      if (any.item<int>() != 0) c_.own_modules.check_loads(c_.mesh.world());
    });
  }
  for (Stage& stage : c_.stages) {
    if (stage.sharded) stage.sharded->take_changes();
  }
  c_.own_modules.forget();
}

void ModelState::check_changes() {
  for (Stage& stage : c_.stages) {
    if (stage.sharded) stage.sharded->check_changes();
  }
}

void ModelState::load_shards(const checkpoint::SliceSource& source) {
  const at::Tensor done = at::scalar_tensor(0, at::kLong);
  check_on_all_ranks(source, false);
  c_.guarded([&] {
    for (Stage& stage : c_.stages) {
      if (stage.sharded) stage.sharded->load_shards(source, c_.placing_of(stage));
    }
    source.fill(buffer_slices());
    source.fill({checkpoint::whole_slice("steps", done)});
    if (c_.scaler && source.has("loss_scale")) {
      const checkpoint::Slices saved = scaler_slices();
      source.fill(saved);
      c_.scaler->set(saved[0].tensor.item<double>(), saved[1].tensor.item<std::int64_t>());
    }
  });
  c_.steps = done.item<std::int64_t>();
  c_.own_modules.forget();
}

// The engines of stages 1 to 3 first let go of what they have gathered, so that each tensor either
// has its values or no memory.
void ModelState::gather() {
  if (c_.own_modules.empty()) return;
  c_.guarded([&] {
    c_.wait_for_weights();
    c_.own_modules.note_loads();
    for (Stage& stage : c_.stages) {
      if (!stage.sharded) continue;
      if (c_.replicates()) {
        stage.sharded->check_changes();
        continue;
      }
      stage.sharded->reshard();
      stage.sharded->take_changes();
    }
    const checkpoint::Parts parts = shards();
    const auto model_part = parts.find(kModel);
    c_.own_modules.gather(c_.mesh.world(),
                          model_part == parts.end() ? checkpoint::Slices{} : model_part->second);
  });
}

void ModelState::load_weights(const checkpoint::SliceSource& source) {
  check_on_all_ranks(source, true);
  c_.guarded([&] {
    for (Stage& stage : c_.stages) {
      if (stage.sharded) stage.sharded->load_weights(source, c_.placing_of(stage));
    }
  });
  c_.own_modules.forget();
}

}  // namespace weft::parallel::internal
