#include "weft/checkpoint/internal/folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/checkpoint/checkpoint.h"

namespace weft::checkpoint::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAside = ".tmp-", kOld = "-old";

// A file that may not be read, or whose disk fails, says nothing about the checkpoint: it must not
// count as damaged, since an older one would take its place.
void require_readable(const std::string& path, std::error_code failed) {
  for (const auto why : {std::errc::permission_denied, std::errc::operation_not_permitted,
                         std::errc::io_error, std::errc::too_many_files_open,
                         std::errc::too_many_files_open_in_system, std::errc::not_enough_memory}) {
    if (failed == why) fail_io("cannot read", path, failed.value());
  }
}

// A link that leads nowhere exists, too.
bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// Gives an old checkpoint its name again, if a crash has come before the new one had it. Returns
// false for another temporary folder. Throws Error if the file system refuses it.
bool give_back(const std::string& dir, const std::string& aside) {
  if (!aside.ends_with(kOld)) return false;
  const std::string name = aside.substr(kAside.size(), aside.size() - kAside.size() - kOld.size()),
                    target = dir + "/" + name;
  if (!step_of(name) || exists(target)) return false;
  rename_path(dir + "/" + aside, target);
  return true;
}

}  // namespace

std::string folder_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kStepPrefix) + digits;
}

std::string tensor_file_name(const std::string& part, std::size_t file, std::size_t files) {
  const std::string place = files > 1 ? formatted("-%05zu-of-%05zu", file + 1, files) : "";
  return part + place + std::string(kTensorSuffix);
}

std::string aside_name(const std::string& dir, std::int64_t step) {
  return dir + "/" + std::string(kAside) + folder_name(step);
}

std::int64_t step_of_folder(const std::string& folder) {
  const auto step = step_of(fs::path(folder + "/").parent_path().filename().string());
  WEFT_REQUIRE(step.has_value(), "checkpoint: " + folder + " is not called step-NNNNNNNN");
  return *step;
}

std::map<std::int64_t, std::string, std::greater<>> list_folders(const std::string& dir) {
  std::map<std::int64_t, std::string, std::greater<>> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = step_of(it->path().filename().string()))
      found.emplace(*step, it->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail_io("cannot list", dir, error.value());
  return found;
}

void put_in_place(const std::string& aside, const std::string& target) {
  const bool is_new = !exists(target), is_exchanged = !is_new && exchange_paths(target, aside);
  const std::string old = aside + std::string(kOld);
  // On other file systems there is a moment at which this one step has no checkpoint.
  if (!is_new && !is_exchanged) rename_path(target, old);
  bool is_moved = is_exchanged;
  try {
    if (!is_moved) rename_path(aside, target);
    is_moved = true;
    flush_directory(parent_of(target));
  } catch (const Error&) {
    try {
      if (is_exchanged) {
        exchange_paths(target, aside);
      } else {
        if (is_moved) rename_path(target, aside);
        if (!is_new) rename_path(old, target);
      }
    } catch (const Error& again) {
      log_warn(target + " is not as before the save that failed: " + again.message());
    }
    throw;
  }
}

void remove_aside(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kAside)) continue;
    try {
      if (!give_back(dir, name)) remove_tree(entry.path().string());
    } catch (const Error& error) {
      log_warn("a checkpoint keeps its temporary name: " + error.message());
    }
  }
}

void remove_old(const std::string& dir, std::int64_t saved, const SaveOptions& options) {
  const auto has = [](const std::vector<std::int64_t>& steps, std::int64_t step) {
    return std::ranges::find(steps, step) != steps.end();
  };
  int kept = 1;  // the one that was saved
  for (const auto& [step, folder] : list_folders(dir)) {
    if (step == saved) continue;
    if (kept < options.keep) {
      if (!has(options.damaged, step)) ++kept;
      continue;
    }
    if (has(options.also, step)) continue;
    // The folder is renamed first, so that a half removed one is never taken for a damaged
    // checkpoint.
    const std::string aside = aside_name(dir, step);
    try {
      rename_path(folder, aside);
      remove_tree(aside);
    } catch (const Error&) {  // it stays
    }
  }
}

std::string render_state(const std::map<std::string, std::string>& state) {
  try {
    return nlohmann::json(state).dump(1) + "\n";
  } catch (const nlohmann::json::type_error&) {
    throw Error(Errc::kInvalidArgument,
                "checkpoint: a name or value of the state is not UTF-8 and cannot be written");
  }
}

std::map<std::string, std::string> parse_state(const std::string& text, const std::string& file) {
  const nlohmann::json document = parse_json(text, file, {.depth = 1, .unique_keys = true});
  if (!document.is_object()) throw Error(Errc::kCorrupt, file + ": expected an object");
  std::map<std::string, std::string> state;
  for (const auto& [key, value] : document.items()) {
    if (!value.is_string())
      throw Error(Errc::kCorrupt, file + ": expected a string as " + nlohmann::json(key).dump());
    state.emplace(key, value.get<std::string>());
  }
  return state;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  std::error_code failed;
  const bool is_file = fs::is_regular_file(path, failed);
  require_readable(path, failed);
  if (!is_file) throw Error(Errc::kCorrupt, path + ": missing, so the checkpoint is not complete");
  Manifest manifest = parse_manifest(read_file(path, kMaxTextBytes), path);
  if (!manifest.files.contains(kStateName))
    throw Error(Errc::kCorrupt, path + ": lists no " + kStateName);
  for (const auto& [name, sums] : manifest.files) {
    const std::string file = folder + "/" + name;
    const auto bytes = fs::file_size(file, failed);
    require_readable(file, failed);
    if (bytes == static_cast<std::uintmax_t>(-1))
      throw Error(Errc::kCorrupt, file + ": listed in the manifest, but it can't be opened");
    if (bytes != static_cast<std::uintmax_t>(sums.bytes)) {
      throw Error(Errc::kCorrupt, file + ": has " + std::to_string(bytes) + " bytes, not " +
                                      std::to_string(sums.bytes));
    }
  }
  return manifest;
}

std::unique_ptr<InputFile> open_file(const std::string& folder, const Manifest& manifest,
                                     const std::string& name) {
  const auto found = manifest.files.find(name);
  if (found == manifest.files.end())
    throw Error(Errc::kCorrupt, folder + "/" + kManifestName + ": lists no " + name);
  return std::make_unique<InputFile>(folder + "/" + name, found->second, manifest.chunk_bytes);
}

std::string read_text(const std::string& folder, const Manifest& manifest,
                      const std::string& name) {
  const auto file = open_file(folder, manifest, name);
  const std::size_t most = name == kStateName ? kMaxStateBytes : kMaxTextBytes;
  if (file->bytes() > static_cast<std::int64_t>(most))
    file->fail("is larger than the " + std::to_string(most) + " bytes that it may have");
  std::string text(static_cast<std::size_t>(file->bytes()), '\0');
  file->read(text.data(), file->bytes(), 0);
  return text;
}

void verify_share(const std::string& folder, const Manifest& manifest, int rank, int ranks) {
  std::int64_t all = 0, before = 0;
  for (const auto& [name, sums] : manifest.files)
    all += static_cast<std::int64_t>(sums.chunks.size());
  const std::int64_t first = all * rank / ranks, last = all * (rank + 1) / ranks;
  for (const auto& [name, sums] : manifest.files) {
    const auto count = static_cast<std::int64_t>(sums.chunks.size());
    const std::int64_t begin = std::clamp<std::int64_t>(first - before, 0, count),
                       end = std::clamp<std::int64_t>(last - before, 0, count);
    if (begin < end) open_file(folder, manifest, name)->verify(begin, end);
    before += count;
  }
}

}  // namespace weft::checkpoint::internal
