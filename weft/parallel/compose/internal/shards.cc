// One logical model as slices: each rank saves and loads its own part.
#include <ATen/ATen.h>

#include <map>
#include <set>

#include "weft/comm/texts.h"
#include "weft/optim/update_rule.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {
namespace {

// Parts of a checkpoint.
constexpr const char *kModel = "model", *kOptimizer = "optimizer";

}  // namespace

// Without slices over tp and ep, the parameter is the whole.
checkpoint::Rectangle Composed::place_of(const Parameter& p) const {
  checkpoint::Rectangle place{p.whole, p.sizes, std::vector<std::int64_t>(p.sizes.size(), 0),
                              p.sizes};
  const auto cut = [&](const Slice& slice, const TensorParallel& over) {
    const auto dim = static_cast<std::size_t>(slice.dim);
    place.sizes[dim] = slice.part(over.size());
    place.offset[dim] = over.rank() * place.sizes[dim];
  };
  if (p.slice) cut(*p.slice, tp);
  if (p.expert) cut(*p.expert, along_ep());
  return place;
}

checkpoint::Slices Composed::scaler_slices() {
  checkpoint::Slices slices;
  if (!scaler) return slices;
  slices.push_back(
      checkpoint::whole_slice("loss_scale", at::scalar_tensor(scaler->scale(), at::kDouble)));
  slices.push_back(checkpoint::whole_slice("loss_scale.good_steps",
                                           at::scalar_tensor(scaler->good_steps(), at::kLong)));
  return slices;
}

Sharded::Placing Composed::placing_of(const Stage& stage) const {
  return [this, &stage](const std::string& own) { return place_of(*stage.find(own)); };
}

// Throws on all ranks if `body` throws on one: there with its own code and text, elsewhere with the
// text of the first that failed. An error of the group itself ends all groups.
void Composed::try_on_all_ranks(const std::string& operation, const std::function<void()>& body) {
  const Group& world = mesh.world();
  std::string mine;  // a letter for the code, and the text; empty: no error
  try {
    body();
  } catch (const std::exception& error) {
    const Error own = as_error(error);
    mine = static_cast<char>('a' + static_cast<int>(own.code())) + own.message();
  }
  const auto all = guarded([&] { return comm::all_gather_texts(world, mine); });
  const auto refuse = [&](int rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)];
    const auto code = static_cast<Errc>(text[0] - 'a');
    if (rank == world.rank())
      throw Error(code, operation + ": " + text.substr(1), {operation, rank});
    throw Error(code == Errc::kInvalidArgument ? code : Errc::kAborted,
                operation + ": rank " + std::to_string(rank) + " failed: " + text.substr(1),
                {operation, world.rank(), rank});
  };
  if (!mine.empty()) refuse(world.rank());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!all[static_cast<std::size_t>(rank)].empty()) refuse(rank);
  }
}

// Before anything is changed: if a slice is missing on one rank, all ranks reject the state.
void Composed::check_on_all_ranks(const checkpoint::SliceSource& source, bool weights_only) {
  const auto check = [&] {
    checkpoint::Slices wanted;
    const auto want = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
      wanted.push_back({name, shape, {}, {}});
    };
    for (const Stage& stage : stages) {
      for (const Parameter& p : stage.parameters) {
        want(p.whole, p.sizes);
        if (weights_only || !p.trained) continue;
        for (const std::string& array : state_arrays(*this, stage, p))
          want(p.whole + "." + array, p.sizes);
        for (const auto& state : optim::tensor_states(plan.optimizer.rule, p.sizes))
          want(p.whole + "." + state.name, state.sizes);
        want(p.whole + ".step", {});
      }
    }
    if (!weights_only) want("steps", {});
    source.check(wanted);
    if (!weights_only) source.check(buffer_slices());
  };
  try_on_all_ranks("load_shards", check);
}

// Buffers of the first replica: a broadcast, or Statistics, has made them equal on all.
checkpoint::Slices Composed::buffer_slices() {
  checkpoint::Slices slices;
  for (const Stage& stage : stages) {
    for (const Statistics::Named& buffer : stage.statistics.buffers()) {
      slices.push_back(checkpoint::whole_slice(
          buffer.name, checkpoint::plain_view(buffer.name, buffer.tensor.variable_data())));
    }
  }
  return slices;
}

// Ranks of dp and cp have equal tensors; so have ranks of tp for tensors that are not slices, and
// ranks of ep for tensors that are not experts.
checkpoint::Parts Composed::shards() {
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
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    std::map<std::string, std::pair<bool, bool>> divided;
    const auto placing = [&](const std::string& own) {
      const Parameter& p = *stage.find(own);
      if (p.copy) return checkpoint::Rectangle{};
      divided[p.whole] = {p.slice && tp.size() > 1, p.expert && mesh.size("ep") > 1};
      return place_of(p);
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
      copy = copy * mesh.size(axis) + mesh.coordinate(axis);
      copies *= mesh.size(axis);
    };
    if (!replicates()) {  // otherwise the engine has divided them
      alike("dp");
      alike("cp");
    }
    if (!like.over_tp) alike("tp");
    if (!like.over_ep) alike("ep");
    put(like.part, checkpoint::deal(std::move(slices), copy, copies));
  }
  if (replica() == 0 && is_first_copy() && tp.rank() == 0) put(kModel, buffer_slices());
  if (mesh.world().rank() == 0) {
    put(kOptimizer, {checkpoint::whole_slice("steps", at::scalar_tensor(steps, at::kLong))});
    put("scaling", scaler_slices());
  }
  put("codec", codec_slices());
  return parts;
}

// Copies of tied parameters too, since they must change as the others do.
ParallelModel::Held Composed::held() {
  ParallelModel::Held held;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    std::set<std::string> trained;
    const auto placing = [&](const std::string& own) {
      const Parameter& p = *stage.find(own);
      if (!p.trained) return checkpoint::Rectangle{};
      trained.insert(p.whole);
      return place_of(p);
    };
    for (checkpoint::Slice& slice : stage.sharded->held(placing)) {
      if (trained.contains(slice.name)) held.weights.push_back(std::move(slice));
    }
  }
  for (checkpoint::Slice& slice : buffer_slices()) {
    if (slice.tensor.is_floating_point()) held.buffers.push_back(std::move(slice));
  }
  return held;
}

void Composed::take_changes() {
  own_modules.note_loads();
  if (mesh.size("pp") > 1 && !own_modules.empty()) {
    guarded([&] {
      at::Tensor any = at::full({1}, own_modules.has_loaded_elsewhere() ? 1 : 0, at::kInt);
      mesh.world().all_reduce(any, ReduceOp::kMax);
      if (any.item<int>() != 0) own_modules.check_loads(mesh.world());
    });
  }
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->take_changes();
  }
  own_modules.forget();
}

void Composed::load_shards(const checkpoint::SliceSource& source) {
  const at::Tensor done = at::scalar_tensor(0, at::kLong);
  check_on_all_ranks(source, false);
  guarded([&] {
    for (Stage& stage : stages) {
      if (stage.sharded) stage.sharded->load_shards(source, placing_of(stage));
    }
    source.fill(buffer_slices());
    source.fill({checkpoint::whole_slice("steps", done)});
    if (scaler && source.has("loss_scale")) {
      const checkpoint::Slices saved = scaler_slices();
      source.fill(saved);
      scaler->set(saved[0].tensor.item<double>(), saved[1].tensor.item<std::int64_t>());
    }
  });
  steps = done.item<std::int64_t>();
  own_modules.forget();
}

// The engines of stages 1 to 3 first let go of what they have gathered, so that each tensor either
// has its values or no memory.
void Composed::gather() {
  if (own_modules.empty()) return;
  guarded([&] {
    wait_for_weights();
    own_modules.note_loads();
    for (Stage& stage : stages) {
      if (!stage.sharded) continue;
      if (replicates()) {
        stage.sharded->check_changes();
        continue;
      }
      stage.sharded->let_go();
      stage.sharded->take_changes();
    }
    const checkpoint::Parts parts = shards();
    const auto model_part = parts.find(kModel);
    own_modules.gather(mesh.world(),
                       model_part == parts.end() ? checkpoint::Slices{} : model_part->second);
  });
}

void Composed::load_weights(const checkpoint::SliceSource& source) {
  check_on_all_ranks(source, true);
  guarded([&] {
    for (Stage& stage : stages) {
      if (stage.sharded) stage.sharded->load_weights(source, placing_of(stage));
    }
  });
  own_modules.forget();
}

}  // namespace weft::parallel::internal
