// Converts the shards, slices and stages of all ranks to one logical model, and back.
#include "weft/parallel/compose/internal/model_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <locale>
#include <map>
#include <sstream>

#include "weft/engine/codec_state.h"
#include "weft/optim/update_rule.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {

using NamedTensors = ParallelModel::NamedTensors;

namespace {

constexpr int kTag = 0x636f;

// "name\ntype\ndimensions\nsizes …\n" of each.
void send_all(const Group& group, const NamedTensors& tensors, int peer) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const auto& [name, tensor] : tensors) {
    out << name << '\n' << static_cast<int>(tensor.scalar_type()) << ' ' << tensor.dim();
    for (const std::int64_t size : tensor.sizes()) out << ' ' << size;
    out << '\n';
  }
  const std::string text = out.str();
  at::Tensor letters = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(letters.data_ptr(), text.data(), text.size());
  group.send(at::tensor({letters.numel()}, at::kLong), peer, kTag);
  if (text.empty()) return;
  group.send(letters, peer, kTag);
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() > 0) group.send(tensor.contiguous(), peer, kTag);
  }
}

void receive_all(const Group& group, int peer, NamedTensors& into) {
  at::Tensor length = at::zeros({1}, at::kLong);
  group.recv(length, peer, kTag);
  if (length.item<std::int64_t>() == 0) return;
  at::Tensor letters = at::empty({length.item<std::int64_t>()}, at::kByte);
  group.recv(letters, peer, kTag);
  std::istringstream in(std::string(static_cast<const char*>(letters.data_ptr()),
                                    static_cast<std::size_t>(letters.numel())));
  for (std::string name; std::getline(in, name);) {
    int type = 0, dims = 0;
    in >> type >> dims;
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(dims));
    for (std::int64_t& size : sizes) in >> size;
    in.ignore(1);
    at::Tensor tensor = at::empty(sizes, static_cast<at::ScalarType>(type));
    if (tensor.numel() > 0) group.recv(tensor, peer, kTag);
    into.emplace_back(name, tensor);
  }
}

// Entries of the state for one parameter, by the suffix after its name, and their sizes in the
// whole model.
std::map<std::string, std::vector<std::int64_t>> suffixes(const Composition& c, const Stage& stage,
                                                          const Parameter& p) {
  std::map<std::string, std::vector<std::int64_t>> all{{"", p.sizes}};
  if (!p.trained) return all;
  for (const std::string& array : state_arrays(c, stage, p)) all["." + array] = p.sizes;
  for (auto& state : optim::tensor_states(c.plan.optimizer.rule, p.sizes))
    all["." + state.name] = std::move(state.sizes);
  all[".step"];
  return all;
}

// Moments of rows and columns exist only where no tensor is divided.
bool is_divided(const std::string& suffix) {
  return suffix != ".step" && suffix != ".exp_avg_sq_row" && suffix != ".exp_avg_sq_col";
}

}  // namespace

NamedTensors ModelState::whole(const std::function<engine::Sharded::NamedTensors(Stage&)>& of,
                               bool with_buffers) {
  const at::NoGradGuard no_grad;
  NamedTensors mine;
  for (Stage& stage : c_.stages) {
    if (with_buffers && c_.replica() == 0 && c_.is_first_copy() && c_.is_first_of_tp()) {
      for (const Statistics::Named& buffer : stage.statistics.buffers())
        mine.emplace_back(buffer.name, buffer.tensor.clone());
    }
    if (!stage.sharded) continue;
    const auto shards = of(stage);
    if (!c_.is_first_copy() || c_.mesh.coordinate("fsdp") != 0) continue;
    const std::map<std::string, at::Tensor> own(shards.begin(), shards.end());
    for (const Parameter& p : stage.parameters) {
      for (const auto& [suffix, sizes] : suffixes(c_, stage, p)) {
        const auto found = own.find(p.own + suffix);
        if (p.copy || found == own.end()) continue;
        at::Tensor all = found->second;
        if (p.slice && is_divided(suffix)) all = whole_of(all, *p.slice, c_.contexts.tp);
        if (p.expert && is_divided(suffix)) all = whole_of(all, *p.expert, c_.along_ep());
        if (c_.is_first_of_tp() && c_.is_first_of_ep()) mine.emplace_back(p.whole + suffix, all);
      }
    }
  }
  if (!c_.is_first_copy() || c_.replica() != 0 || !c_.is_first_of_tp()) return {};
  const Group& pipe = c_.mesh["pp"];
  if (pipe.rank() > 0) {
    send_all(pipe, mine, 0);
    return {};
  }
  for (int peer = 1; peer < pipe.size(); ++peer) receive_all(pipe, peer, mine);
  return mine;
}

NamedTensors ModelState::state() {
  return c_.guarded([&] {
    NamedTensors all = whole([](Stage& stage) { return stage.sharded->state(); }, true);
    if (c_.mesh.world().rank() != 0) return NamedTensors{};
    all.emplace_back("steps", at::scalar_tensor(c_.steps, at::kLong));
    if (c_.scaler) {
      all.emplace_back("loss_scale", at::scalar_tensor(c_.scaler->scale(), at::kDouble));
      all.emplace_back("loss_scale.good_steps",
                       at::scalar_tensor(c_.scaler->good_steps(), at::kLong));
    }
    return all;
  });
}

NamedTensors ModelState::gradients(double scale) {
  return c_.guarded([&] {
    NamedTensors all = whole([](Stage& stage) { return stage.sharded->gradients(); });
    for (auto& [name, tensor] : all) {
      if (scale != 1) tensor = tensor / scale;
    }
    return all;
  });
}

// Checks this rank's parameters. Empty if all fit.
std::string ModelState::mismatch(const std::map<std::string, at::Tensor>& state) const {
  if (state.count("steps") == 0) return "the state has no 'steps'";
  for (const Stage& stage : c_.stages) {
    for (const Parameter& p : stage.parameters) {
      for (const auto& [suffix, sizes] : suffixes(c_, stage, p)) {
        const auto found = state.find(p.whole + suffix);
        if (found == state.end()) return "the state has no '" + p.whole + suffix + "'";
        const bool fits =
            suffix != ".step" ? found->second.sizes().vec() == sizes : found->second.numel() == 1;
        if (!fits)
          return "'" + p.whole + suffix + "' has another shape in the state than in the model";
      }
    }
    for (const Statistics::Named& buffer : stage.statistics.buffers()) {
      const auto found = state.find(buffer.name);
      if (found == state.end()) return "the state has no '" + buffer.name + "'";
      if (found->second.sizes() != buffer.tensor.sizes())
        return "'" + buffer.name + "' has another shape in the state than in the model";
    }
  }
  return "";
}

void ModelState::load(Stage& stage, const std::map<std::string, at::Tensor>& state) {
  engine::Sharded::NamedTensors own;
  for (const Parameter& p : stage.parameters) {
    for (const auto& [suffix, sizes] : suffixes(c_, stage, p)) {
      at::Tensor part = state.at(p.whole + suffix);
      if (p.expert && is_divided(suffix)) part = slice_of(part, *p.expert, c_.along_ep());
      if (p.slice && is_divided(suffix)) part = slice_of(part, *p.slice, c_.contexts.tp);
      own.emplace_back(p.own + suffix, part);
    }
  }
  own.emplace_back("steps", state.at("steps"));
  stage.sharded->load_state(own);
}

void ModelState::load_state(const NamedTensors& given) {
  const std::map<std::string, at::Tensor> state(given.begin(), given.end());
  c_.try_on_all_ranks("load_state", [&] {
    const std::string why = mismatch(state);
    if (!why.empty()) throw Error(Errc::kInvalidArgument, why);
  });
  c_.guarded([&] {
    for (Stage& stage : c_.stages) {
      if (stage.sharded) load(stage, state);
      for (const Statistics::Named& buffer : stage.statistics.buffers())
        buffer.tensor.variable_data().copy_(state.at(buffer.name));
    }
  });
  c_.steps = state.at("steps").item<std::int64_t>();
  c_.own_modules.forget();
  if (const auto scale = state.find("loss_scale"); c_.scaler && scale != state.end()) {
    const auto good = state.find("loss_scale.good_steps");
    c_.scaler->set(scale->second.item<double>(),
                   good != state.end() ? good->second.item<std::int64_t>() : 0);
  }
}

std::vector<std::span<float>> ModelState::codec_memory() {
  std::vector<std::span<float>> all;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    for (const auto& part : stage.sharded->codec_memory()) all.push_back(part);
  }
  return all;
}

namespace {

std::vector<std::int64_t> places(const Mesh& mesh) {
  std::vector<std::int64_t> numbers;
  for (const char* axis : {"dp", "fsdp", "tp", "pp", "cp", "ep"}) {
    numbers.push_back(mesh.size(axis));
    for (int rank = 0; rank < mesh.layout().world(); ++rank)
      numbers.push_back(mesh.layout().coordinate(rank, axis));
  }
  return numbers;
}

}  // namespace

std::vector<int> saved_cuts(const Mesh& mesh, const checkpoint::Reader& saved) {
  const auto progress = engine::read_codec_progress(mesh.world(), saved);
  const auto prefix = places(mesh);
  if (!progress || progress->layout.size() < prefix.size() ||
      !std::equal(prefix.begin(), prefix.end(), progress->layout.begin()))
    return {};
  return {progress->layout.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
          progress->layout.end()};
}

// The codec's memory depends on the part of the model on each rank: the positions on the mesh, then
// the stage cuts.
std::vector<std::int64_t> ModelState::layout() const {
  std::vector<std::int64_t> numbers = places(c_.mesh);
  numbers.insert(numbers.end(), c_.cuts.begin(), c_.cuts.end());
  return numbers;
}

checkpoint::Slices ModelState::codec_slices() {
  if (c_.sharding.codec == "none") return {};
  if (c_.replicates()) return c_.stages[0].sharded->codec_slices();
  const auto coded = std::find_if(c_.stages.begin(), c_.stages.end(),
                                  [](const Stage& stage) { return stage.sharded != nullptr; });
  const std::int64_t done = coded == c_.stages.end() ? 0 : coded->sharded->codec_steps();
  return engine::codec_slices(c_.mesh.world(), {compress::parse(c_.sharding.codec), done, layout()},
                              codec_memory());
}

bool ModelState::load_codec(const checkpoint::Reader& saved) {
  if (c_.sharding.codec == "none") return true;
  if (c_.replicates()) return c_.guarded([&] { return c_.stages[0].sharded->load_codec(saved); });
  const auto fits = [&](const engine::CodecProgress& progress) {
    return progress.spec == compress::parse(c_.sharding.codec) && progress.layout == layout();
  };
  const auto progress =
      c_.guarded([&] { return engine::agree_on_codec_progress(c_.mesh.world(), saved, fits); });
  if (!progress || !c_.guarded([&] {
        return engine::restore_codec_memory(c_.mesh.world(), saved, codec_memory());
      }))
    return false;
  for (Stage& stage : c_.stages) {
    if (stage.sharded) stage.sharded->set_codec_steps(progress->step);
  }
  return true;
}

}  // namespace weft::parallel::internal
