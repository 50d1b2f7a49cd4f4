// `weft checkpoint`: lists, shows, verifies and converts the checkpoints of runs.
#include "weft/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/reader.h"
#include "weft/cli/commands.h"
#include "weft/elastic/entry.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Reader;

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The folder with the checkpoints of a run. `name`: that folder itself, the run's folder, or the
// run's name in runs/.
std::string checkpoint_folder(const std::string& name) {
  for (const std::string& run : {name, "runs/" + name}) {
    if (is_folder(run + "/ckpt")) return run + "/ckpt";
  }
  WEFT_REQUIRE(is_folder(name), name + " is no folder, and no run of this name is in runs/");
  return name;
}

// `name` without a slash at its end, if it is the folder of one checkpoint.
std::optional<std::string> one_checkpoint(const std::string& name) {
  const fs::path path = fs::path(name + "/").parent_path();
  const bool is_one = is_folder(name) && path.filename().string().starts_with("step-");
  return is_one ? std::optional(path.string()) : std::nullopt;
}

// The folder of a checkpoint. `name`: that folder itself, or a run as in checkpoint_folder(). For a
// run, it is the newest complete checkpoint.
std::string checkpoint_of(const std::string& name) {
  if (const auto one = one_checkpoint(name)) return *one;
  return checkpoint::newest_complete(
      checkpoint_folder(name), name + " has no complete checkpoint", [](const std::string& line) {
        std::cerr << "passing over a damaged checkpoint: " << line << '\n';
      });
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d)
    text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

// The checkpoints of a run, oldest first. Training takes no other names either, such as those of
// copies ("step-00000938.bak").
std::vector<std::string> checkpoints_in(const std::string& dir) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (const auto step = checkpoint::step_of(entry.path().filename().string()))
      found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

// A run that trains has removed it, or put it in another place.
bool is_gone(const std::string& folder) {
  std::error_code ignored;
  return !fs::exists(fs::symlink_status(folder, ignored));
}

// What is wrong with a checkpoint. nullopt: nothing.
std::optional<std::string> damage_of(const std::string& folder) {
  try {
    checkpoint::verify(folder);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt && error.code() != Errc::kInvalidArgument) throw;
    return error.message();
  }
}

std::int64_t bytes_in(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file(ignored))
      bytes += static_cast<std::int64_t>(fs::file_size(entry.path(), ignored));
  }
  return bytes;
}

std::string mib(std::int64_t bytes) {
  return formatted("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::int64_t slices_of(const Reader& reader, const std::string& part) {
  std::int64_t count = 0;
  for (const auto& [name, shape] : reader.shapes(part))
    count += static_cast<std::int64_t>(reader.places(part, name).size());
  return count;
}

}  // namespace

int checkpoint_list(const CheckpointCommand& command) {
  const std::string dir = checkpoint_folder(command.checkpoint);
  int damaged = 0;
  const auto folders = checkpoints_in(dir);
  for (const std::string& folder : folders) {
    std::string line;
    try {
      if (!command.quick) checkpoint::verify(folder);
      const Reader reader(folder);
      for (const std::string& part : reader.parts()) {
        line += ", " + part + ": " + std::to_string(reader.shapes(part).size()) + " tensors in " +
                std::to_string(slices_of(reader, part)) + " slices";
      }
      line = mib(bytes_in(folder)) + line;
    } catch (const Error& error) {
      if (is_gone(folder)) continue;
      if (error.code() != Errc::kCorrupt && error.code() != Errc::kInvalidArgument) throw;
      line = "damaged: " + error.message();
      ++damaged;
    }
    std::cout << fs::path(folder).filename().string() << "  " << line << '\n';
  }
  if (folders.empty()) std::cout << dir << ": no checkpoint\n";
  return damaged == 0 ? 0 : 1;
}

int checkpoint_show(const CheckpointCommand& command) {
  const std::string folder = checkpoint_of(command.checkpoint);
  const Reader reader(folder);
  if (!command.part.empty()) reader.shapes(command.part);  // throws if there is no such part
  if (!command.json) {
    std::cout << folder << ": step " << reader.step() << '\n';
    for (const auto& [key, value] : reader.state())
      std::cout << "  " << key << " = " << elastic::in_decimal(value) << '\n';
  }
  for (const std::string& part : reader.parts()) {
    if (!command.part.empty() && part != command.part) continue;
    if (!command.json) std::cout << part << ":\n";
    for (const auto& [name, shape] : reader.shapes(part)) {
      const auto places = reader.places(part, name);
      const std::string dtype = c10::toString(reader.dtype(part, name));
      if (command.json) {
        nlohmann::ordered_json slices = nlohmann::ordered_json::array();
        for (const auto& place : places)
          slices.push_back(
              {{"file", place.file}, {"offset", place.offset}, {"sizes", place.sizes}});
        std::cout << nlohmann::ordered_json{{"part", part},
                                            {"name", name},
                                            {"dtype", dtype},
                                            {"shape", shape},
                                            {"slices", slices}}
                         .dump()
                  << '\n';
      } else {
        std::cout << "  " << name << ' ' << dtype << ' ' << shape_text(shape);
        if (places.size() > 1) std::cout << " in " << places.size() << " slices";
        std::cout << '\n';
      }
    }
  }
  return 0;
}

int checkpoint_verify(const CheckpointCommand& command) {
  const auto one = one_checkpoint(command.checkpoint);
  const auto folders =
      one ? std::vector<std::string>{*one} : checkpoints_in(checkpoint_folder(command.checkpoint));
  WEFT_REQUIRE(!folders.empty(), command.checkpoint + " has no checkpoint");
  bool is_damaged = false;
  for (const std::string& folder : folders) {
    const auto damage = damage_of(folder);
    if (damage && is_gone(folder)) continue;
    is_damaged = is_damaged || damage;
    if (damage) {
      std::cerr << "weft: Corrupt: " << *damage << '\n';
    } else {
      std::cout << folder << ": " << mib(bytes_in(folder)) << ", every checksum is right\n";
    }
  }
  return is_damaged ? exit_code(Errc::kCorrupt) : 0;
}

int checkpoint_convert(const CheckpointCommand& command) {
  const std::string folder = checkpoint_of(command.checkpoint);
  if (command.as_checkpoint) {
    std::cout << checkpoint::copy_checkpoint(folder, command.output) << '\n';
    return 0;
  }
  const Reader reader(folder);
  const std::string part = command.part.empty() ? "model" : command.part;
  if (fs::path(command.output).extension() == ".safetensors") {
    WEFT_REQUIRE(!command.max_shard_bytes, "--max-shard-size is for a folder, and " +
                                               command.output + " is one file; leave it out");
    checkpoint::write_plain(reader, part, command.output);
    std::cout << command.output << '\n';
    return 0;
  }
  constexpr std::uint64_t kUsual = 5'000'000'000, kMost = INT64_MAX;
  const auto most =
      static_cast<std::int64_t>(std::min(command.max_shard_bytes.value_or(kUsual), kMost));
  for (const std::string& name : checkpoint::write_hub(reader, part, command.output, most))
    std::cout << command.output << '/' << name << '\n';
  return 0;
}

}  // namespace weft::cli
