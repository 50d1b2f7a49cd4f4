#include "weft/train/internal/run_state.h"

#include <ATen/ATen.h>

#include <charconv>
#include <set>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/comm/texts.h"

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

// Which part of a checkpoint has this tensor of ParallelModel::state(). A parameter's name is that of no other tensor with something behind
// it: state of the optimizer is called "<parameter>.<array>".
const char* part_of(const std::string& name, const std::set<std::string>& names) {
  if (name == "loss_scale" || name == "loss_scale.good_steps") return "scaling";
  if (name == "steps") return "optimizer";
  const auto dot = name.rfind('.');
  return dot != std::string::npos && names.count(name.substr(0, dot)) > 0 ? "optimizer" : "model";
}

const checkpoint::TensorMap& part(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.parts.find(name);
  if (found == checkpoint.parts.end()) {
    throw Error(Errc::kCorrupt, "the checkpoint of step " + std::to_string(checkpoint.step) + " has no part \"" + name + "\"");
  }
  return found->second;
}

}  // namespace

void save(const Shelf& shelf, parallel::ParallelModel& model, const Progressed& progressed) {
  const NamedTensors state = model.state(), codec = model.codec_state();
  if (shelf.world.rank() != 0) return;
  checkpoint::Checkpoint checkpoint;
  checkpoint.step = progressed.step;
  std::set<std::string> names;
  for (const auto& [name, tensor] : state) names.insert(name);
  for (const auto& [name, tensor] : state) checkpoint.parts[part_of(name, names)][name] = tensor;
  if (!codec.empty()) checkpoint.parts["codec"] = {codec.begin(), codec.end()};
  checkpoint.state = {{"step", std::to_string(progressed.step)},
                      {"epoch", std::to_string(progressed.sampler.epoch)},
                      {"position", std::to_string(progressed.sampler.position)},
                      {"epoch_loss", to_text(progressed.epoch_loss)},
                      {"seed", std::to_string(progressed.seed)},
                      {"batch", std::to_string(progressed.batch)}};
  const auto saved = checkpoint::save(shelf.folder, checkpoint, {shelf.keep});
  log_debug("checkpoint", {{"folder", saved}});
}

NamedTensors Saved::codec() const {
  const auto found = checkpoint_.parts.find("codec");
  return found == checkpoint_.parts.end() ? NamedTensors{} : NamedTensors{found->second.begin(), found->second.end()};
}

Progressed Saved::progress(std::uint64_t seed, std::int64_t batch) const {
  const checkpoint::Checkpoint& checkpoint = checkpoint_;
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

void Saved::restore(parallel::ParallelModel& model, const Group& world) const {
  NamedTensors all;
  for (const char* name : {"model", "optimizer"}) {
    const auto& of = part(checkpoint_, name);
    all.insert(all.end(), of.begin(), of.end());
  }
  if (const auto scaling = checkpoint_.parts.find("scaling"); scaling != checkpoint_.parts.end())
    all.insert(all.end(), scaling->second.begin(), scaling->second.end());
  try {
    model.load_state(all);
  } catch (const Error& error) {
    if (error.code() != Errc::kInvalidArgument) throw;
    throw Error(Errc::kInvalidArgument, "cannot resume, since the checkpoint is of another model or optimizer: " + error.message());
  }
  if (!model.load_codec_state(codec()) && world.rank() == 0) {
    log_warn("the codec begins without memory: the checkpoint has none of this codec on this mesh");
  }
}

std::optional<Saved> load_latest(const Group& world, const std::string& folder) {
  std::string found;
  if (world.rank() == 0) {
    const auto latest = checkpoint::latest(folder);
    for (const auto& line : latest.damaged) log_warn("passing over a damaged checkpoint: " + line);
    found = latest.folder.value_or("");
  }
  found = comm::broadcast_text(world, found);
  if (found.empty()) return std::nullopt;
  return Saved(checkpoint::load(found));
}

}  // namespace weft::train::internal
