#include "weft/train/internal/run_state.h"

#include <torch/nn/module.h>

#include <charconv>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::train::internal {
namespace {

// Exact and locale-free.
std::string to_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::hex).ptr;
  return std::string(text, end);
}

template <class T>
T number(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.state.find(name);
  T value{};
  bool good = found != checkpoint.state.end();
  if (good) {
    const char *begin = found->second.data(), *end = begin + found->second.size();
    std::from_chars_result result{};
    if constexpr (std::is_floating_point_v<T>) {
      result = std::from_chars(begin, end, value, std::chars_format::hex);
    } else {
      result = std::from_chars(begin, end, value);
    }
    good = result.ec == std::errc() && result.ptr == end;
  }
  if (!good) throw Error(Errc::kCorrupt, "the checkpoint of step " + std::to_string(checkpoint.step) + " has no number \"" + name + "\"");
  return value;
}

void require_same(const std::string& what, std::int64_t then, std::int64_t now) {
  WEFT_REQUIRE(then == now, "cannot resume: " + what + " was " + std::to_string(then) + " when the checkpoint was made and is " +
                                std::to_string(now) + " now");
}

// Parameters and buffers by qualified name.
checkpoint::TensorMap tensors_of(const torch::nn::Module& module) {
  checkpoint::TensorMap tensors;
  for (const auto& parameter : module.named_parameters()) tensors[parameter.key()] = parameter.value().detach();
  for (const auto& buffer : module.named_buffers()) tensors[buffer.key()] = buffer.value();
  return tensors;
}

const checkpoint::TensorMap& part(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.parts.find(name);
  if (found == checkpoint.parts.end()) {
    throw Error(Errc::kCorrupt, "the checkpoint of step " + std::to_string(checkpoint.step) + " has no part \"" + name + "\"");
  }
  return found->second;
}

}  // namespace

checkpoint::Checkpoint pack(const torch::nn::Module& module, const parallel::Optimizer& optimizer, const Progressed& progressed) {
  return pack(tensors_of(module), optimizer.state(), progressed);
}

checkpoint::Checkpoint pack(checkpoint::TensorMap model, const NamedTensors& optimizer, const Progressed& progressed) {
  checkpoint::Checkpoint checkpoint;
  checkpoint.step = progressed.step;
  checkpoint.parts["model"] = std::move(model);
  checkpoint.parts["optimizer"] = {optimizer.begin(), optimizer.end()};
  checkpoint.state = {{"step", std::to_string(progressed.step)},
                      {"epoch", std::to_string(progressed.sampler.epoch)},
                      {"position", std::to_string(progressed.sampler.position)},
                      {"epoch_loss", to_text(progressed.epoch_loss)},
                      {"seed", std::to_string(progressed.seed)},
                      {"batch", std::to_string(progressed.batch)}};
  return checkpoint;
}

void pack_codec(const NamedTensors& state, checkpoint::Checkpoint& checkpoint) {
  if (!state.empty()) checkpoint.parts["codec"] = {state.begin(), state.end()};
}

NamedTensors unpack_codec(const checkpoint::Checkpoint& checkpoint) {
  const auto found = checkpoint.parts.find("codec");
  return found == checkpoint.parts.end() ? NamedTensors{} : NamedTensors{found->second.begin(), found->second.end()};
}

Progressed unpack_progress(const checkpoint::Checkpoint& checkpoint, std::uint64_t seed, std::int64_t batch) {
  Progressed progressed;
  progressed.step = number<std::int64_t>(checkpoint, "step");
  progressed.sampler = {number<std::int64_t>(checkpoint, "epoch"), number<std::int64_t>(checkpoint, "position")};
  progressed.epoch_loss = number<double>(checkpoint, "epoch_loss");
  progressed.seed = number<std::uint64_t>(checkpoint, "seed");
  progressed.batch = number<std::int64_t>(checkpoint, "batch");
  require_same("train.seed", static_cast<std::int64_t>(progressed.seed), static_cast<std::int64_t>(seed));
  require_same("the global batch", progressed.batch, batch);
  return progressed;
}

void unpack_module(const checkpoint::Checkpoint& checkpoint, torch::nn::Module& module) {
  const auto& saved = part(checkpoint, "model");
  const auto tensors = tensors_of(module);
  for (const auto& [name, tensor] : tensors) {
    const auto found = saved.find(name);
    WEFT_REQUIRE(found != saved.end(), "cannot resume: the checkpoint has no tensor \"" + name + "\"; is it of another model?");
    WEFT_REQUIRE(found->second.sizes() == tensor.sizes(), "cannot resume: the checkpoint's \"" + name + "\" has another shape");
  }
  WEFT_REQUIRE(saved.size() == tensors.size(), "cannot resume: the checkpoint holds tensors that the model lacks");
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) at::Tensor(tensor).copy_(saved.at(name));
}

void unpack_optimizer(const checkpoint::Checkpoint& checkpoint, parallel::Optimizer& optimizer) {
  const auto& saved = part(checkpoint, "optimizer");
  optimizer.load_state({saved.begin(), saved.end()});
}

std::string broadcast_text(const Group& world, const std::string& text) {
  auto size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  world.broadcast(size);
  auto bytes = at::empty({size.item<std::int64_t>()}, at::kByte);
  if (bytes.numel() == 0) return "";
  if (world.rank() == 0) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  world.broadcast(bytes);
  return std::string(static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel()));
}

std::optional<checkpoint::Checkpoint> load_latest(const Group& world, const std::string& folder) {
  std::string found;
  if (world.rank() == 0) {
    const auto latest = checkpoint::latest(folder);
    for (const auto& line : latest.damaged) log_warn("passing over a damaged checkpoint: " + line);
    found = latest.folder.value_or("");
  }
  found = broadcast_text(world, found);
  if (found.empty()) return std::nullopt;
  return checkpoint::load(found);
}

}  // namespace weft::train::internal
