#include "weft/checkpoint/checkpoint.h"

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/latest.h"
#include "weft/checkpoint/internal/save_job.h"
#include "weft/checkpoint/reader.h"

namespace weft::checkpoint {

std::string save(const std::string& dir, const Checkpoint& checkpoint, SaveOptions options) {
  Shards shards{.step = checkpoint.step, .parts = {}, .state = checkpoint.state};
  for (const auto& [part, tensors] : checkpoint.parts) {
    Slices& slices = shards.parts[part];
    for (const auto& [name, tensor] : tensors) {
      WEFT_REQUIRE(tensor.defined(), "checkpoint: \"" + name + "\" is undefined");
      slices.push_back(whole_slice(name, tensor));
    }
  }
  return internal::run_save(internal::plan_save(dir, shards, options, 0, 1), {});
}

Checkpoint load(const std::string& folder) {
  const Reader reader(folder);
  Checkpoint checkpoint{.step = reader.step(), .parts = {}, .state = reader.state()};
  for (const std::string& part : reader.parts()) {
    TensorMap& tensors = checkpoint.parts[part];
    for (const auto& [name, shape] : reader.shapes(part))
      tensors.emplace(name, reader.read(part, name));
  }
  return checkpoint;
}

Latest latest(const std::string& dir) { return internal::find_latest(dir, {}); }

std::string newest_complete(const std::string& dir, const std::string& if_none,
                            const std::function<void(const std::string&)>& passed_over) {
  const Latest found = latest(dir);
  if (!found.folder && !found.damaged.empty()) {
    throw Error(Errc::kCorrupt, "all checkpoints in " + dir + " are damaged (" +
                                    std::to_string(found.damaged.size()) +
                                    "); the newest: " + found.damaged.front());
  }
  WEFT_REQUIRE(found.folder, if_none);
  for (const std::string& line : found.damaged) passed_over(line);
  return *found.folder;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(internal::kStepPrefix)) return std::nullopt;
  name.remove_prefix(internal::kStepPrefix.size());
  return parse_count<std::int64_t>(name);
}

std::int64_t newest_step(const std::string& dir) {
  const auto folders = internal::list_folders(dir);
  return folders.empty() ? -1 : folders.begin()->first;
}

void verify(const std::string& folder) {
  const internal::Manifest manifest = internal::read_manifest(folder);
  internal::verify_share(folder, manifest, 0, 1);
  const Reader reader(folder);
  for (const std::string& part : reader.parts()) {
    for (const auto& [name, shape] : reader.shapes(part)) reader.dtype(part, name);
  }
}

}  // namespace weft::checkpoint
