#include "weft/train/export.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/reader.h"
#include "weft/models/huggingface.h"
#include "weft/train/internal/best.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

std::string newest_of(const std::string& dir) {
  return checkpoint::newest_complete(
      dir, "load_weights: " + dir + " holds no complete checkpoint",
      [](const std::string& line) { log_warn("passing over a damaged checkpoint: " + line); });
}

checkpoint::Reader reader_of(const std::string& from, bool best) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(from + "/" + name, ignored); };
  WEFT_REQUIRE(!best || has("ckpt"), "load_weights: " + from + " is no run, which `best` is for");
  if (fs::is_regular_file(from, ignored)) return checkpoint::Reader::of_files({from});
  if (best) return checkpoint::Reader(internal::best_checkpoint(from));
  if (has("manifest")) return checkpoint::Reader(from);
  if (has("ckpt")) return checkpoint::Reader(newest_of(from + "/ckpt"));
  if (has("model.safetensors") || has("model.safetensors.index.json"))
    return checkpoint::Reader::of_files(models::huggingface_files(from));
  throw Error(Errc::kInvalidArgument,
              "load_weights: " + from +
                  " holds no weights; give a folder that Trainer::save() wrote, a run's folder, a "
                  "checkpoint, or a .safetensors file");
}

// Tensors of a module by name. One tensor under several names appears once, with all its names.
struct Target {
  std::vector<std::string> names;
  at::Tensor tensor;
};

std::vector<Target> targets_of(const torch::nn::Module& module, const std::string& prefix) {
  std::vector<Target> all;
  std::map<const c10::TensorImpl*, std::size_t> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [at, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), all.size());
    if (is_new) all.push_back({{}, tensor});
    all[at->second].names.push_back(prefix + name);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return all;
}

// Whatever their types are. NaN is the same as NaN.
bool are_same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
}

// A file of a module that did not share a tensor can hold other values under its second name.
void check_shared(const Target& target, const std::string& from, const std::string& name,
                  const checkpoint::Reader& reader) {
  const auto& stored = reader.shapes("model");
  std::optional<at::Tensor> values;
  for (const std::string& other : target.names) {
    if (other == name || !stored.contains(other)) continue;
    if (!values) values = reader.read("model", name);
    WEFT_REQUIRE(
        stored.at(other) == stored.at(name) && are_same(*values, reader.read("model", other)),
        "load_weights: '" + name + "' and '" + other +
            "' are one tensor in the module, and have different values in " + from);
  }
}

}  // namespace

void load_weights(torch::nn::Module& module, const std::string& from,
                  const WeightsOptions& options) {
  const checkpoint::Reader reader = reader_of(from, options.best);
  const auto& stored = reader.shapes("model");
  const std::vector<Target> targets = targets_of(module, options.prefix);
  std::vector<std::string> names;
  std::set<std::string> used;
  for (const Target& target : targets) {
    const std::string* found = nullptr;
    for (const std::string& name : target.names) {
      used.insert(name);
      if (found == nullptr && stored.contains(name)) found = &name;
    }
    WEFT_REQUIRE(found != nullptr, "load_weights: " + from + " has no '" + target.names.front() +
                                       "'; it has '" +
                                       (stored.empty() ? "" : stored.begin()->first) +
                                       "' and others: load a module of the same names, or set "
                                       "WeightsOptions::prefix");
    WEFT_REQUIRE(target.tensor.sizes() == at::IntArrayRef(stored.at(*found)),
                 "load_weights: '" + *found + "' has the shape [" + joined(stored.at(*found)) +
                     "] in " + from + ", and [" + joined(target.tensor.sizes()) + "]" +
                     " in the module");
    const at::ScalarType type = reader.dtype("model", *found), wanted = target.tensor.scalar_type();
    WEFT_REQUIRE(checkpoint::Reader::converts(type, wanted),
                 "load_weights: '" + *found + "' is " + at::toString(type) + " in " + from +
                     ", and " + at::toString(wanted) + " in the module, which is not converted");
    check_shared(target, from, *found, reader);
    names.push_back(*found);
  }
  for (const auto& [name, shape] : stored) {
    WEFT_REQUIRE(used.contains(name) || !name.starts_with(options.prefix),
                 "load_weights: the module has no '" + name + "', which is in " + from);
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    at::Tensor tensor = targets[i].tensor;
    const at::Tensor values = reader.read("model", names[i]);
    if (checkpoint::has_values(tensor)) {
      tensor.copy_(values);  // an operation on the parameter itself, which weft notices
    } else {
      tensor.set_data(values.to(tensor.options().requires_grad(false)));
    }
  }
}

}  // namespace weft::train
