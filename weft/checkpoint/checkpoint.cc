#include "weft/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/internal/write_tensors.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using internal::FileSum;
using internal::FileWriter;
using internal::Manifest;

constexpr std::string_view kPrefix = "step-", kAside = ".tmp-", kSuffix = ".safetensors";
constexpr const char* kManifest = "manifest";
constexpr const char* kState = "state.json";
constexpr std::size_t kMaxTextBytes = 1 << 20;  // of manifest and state

std::string folder_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (code != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

// Folders of checkpoints, complete or damaged, newest first.
std::map<std::int64_t, std::string, std::greater<>> list(const std::string& dir) {
  std::map<std::int64_t, std::string, std::greater<>> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = step_of(it->path().filename().string())) found.emplace(*step, it->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) fail_io("cannot list", dir, error.value());
  return found;
}

std::string render_state(const StringMap& state) {
  try {
    return nlohmann::json(state).dump(1) + "\n";
  } catch (const nlohmann::json::type_error&) {
    throw Error(Errc::kInvalidArgument, "a name or value is not UTF-8 and cannot be written");
  }
}

StringMap parse_state(const std::string& text, const std::string& file) {
  const nlohmann::json document = parse_json(text, file, {.depth = 1, .unique_keys = true});
  if (!document.is_object()) throw Error(Errc::kCorrupt, file + ": expected an object");
  StringMap state;
  for (const auto& [key, value] : document.items()) {
    if (!value.is_string()) throw Error(Errc::kCorrupt, file + ": expected a string as " + nlohmann::json(key).dump());
    state.emplace(key, value.get<std::string>());
  }
  return state;
}

FileSum write_text(const std::string& path, const std::string& text) {
  FileWriter out(path);
  out.write(text);
  out.finish();
  return {out.crc(), out.bytes()};
}

void write_files(const std::string& folder, const Checkpoint& checkpoint) {
  Manifest manifest;
  for (const auto& [part, tensors] : checkpoint.parts) {
    const std::string name = part + std::string(kSuffix);
    FileWriter out(folder + "/" + name);
    internal::write_tensors(out, {tensors, {}});
    out.finish();
    manifest[name] = {out.crc(), out.bytes()};
  }
  const std::string state = render_state(checkpoint.state);
  WEFT_REQUIRE(state.size() <= kMaxTextBytes, "checkpoint: the state is larger than 1 MiB; put tensors into a part");
  manifest[kState] = write_text(folder + "/" + kState, state);
  write_text(folder + "/" + kManifest, internal::render_manifest(manifest));
  internal::flush_directory(folder);
}

void remove_aside(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    if (entry.path().filename().string().starts_with(kAside)) fs::remove_all(entry.path(), ignored);
  }
}

// Puts `aside` in the place of `target`, which may exist: exchanged at one instant where the file system can.
void put_in_place(const std::string& aside, const std::string& target) {
  if (::rename(aside.c_str(), target.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_io("cannot rename to", target);
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_io("cannot replace", target);
  // Elsewhere there is a moment at which this step, and only this, has no checkpoint.
  if (::rename(target.c_str(), (aside + "-old").c_str()) != 0 || ::rename(aside.c_str(), target.c_str()) != 0) {
    fail_io("cannot replace", target);
  }
}

void remove_old(const std::string& dir, std::int64_t saved, int keep) {
  int kept = 0;
  for (const auto& [step, folder] : list(dir)) {
    if (step == saved || ++kept <= keep - 1) continue;
    // Renamed first, so that what is half removed is never taken for a damaged checkpoint.
    const std::string aside = dir + "/" + std::string(kAside) + folder_name(step);
    std::error_code ignored;
    fs::rename(folder, aside, ignored);
    fs::remove_all(aside, ignored);
  }
}

// Streams the file, so that verifying takes no memory.
FileSum sum_of(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw Error(Errc::kCorrupt, path + ": listed in the manifest, but it can't be opened");
  FileSum sum;
  std::vector<char> chunk(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path);
    if (got == 0) return sum;
    sum.crc = crc32c(chunk.data(), static_cast<std::size_t>(got), sum.crc);
    sum.bytes += got;
  }
}

// Throws Error(kCorrupt) unless every file is what the manifest says.
Manifest verify(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  if (!fs::is_regular_file(path)) throw Error(Errc::kCorrupt, path + ": missing, so the checkpoint is not complete");
  const Manifest manifest = internal::parse_manifest(read_file(path, kMaxTextBytes), path);
  if (!manifest.contains(kState)) throw Error(Errc::kCorrupt, path + ": lists no " + kState);
  for (const auto& [name, want] : manifest) {
    const std::string file = folder + "/" + name;
    const FileSum got = sum_of(file);
    if (got.bytes != want.bytes) {
      throw Error(Errc::kCorrupt, file + ": has " + std::to_string(got.bytes) + " bytes, not " + std::to_string(want.bytes));
    }
    if (got.crc != want.crc) throw Error(Errc::kCorrupt, file + ": its checksum is not that of the manifest");
  }
  return manifest;
}

}  // namespace

std::string save(const std::string& dir, const Checkpoint& checkpoint, SaveOptions options) {
  WEFT_REQUIRE(checkpoint.step >= 0 && options.keep >= 0, "checkpoint: step and keep are not negative");
  for (const auto& [part, tensors] : checkpoint.parts) {
    WEFT_REQUIRE(internal::is_plain_name(part) && part.find('.') == std::string::npos,
                 "checkpoint: a part's name has letters, digits, '_' and '-' only, got \"" + part + "\"");
  }
  make_directories(dir);
  remove_aside(dir);
  const std::string name = folder_name(checkpoint.step), target = dir + "/" + name, aside = dir + "/" + std::string(kAside) + name;
  try {
    if (::mkdir(aside.c_str(), 0755) != 0) fail_io("cannot make the folder", aside);
    write_files(aside, checkpoint);
    put_in_place(aside, target);
    internal::flush_directory(dir);
  } catch (...) {
    remove_aside(dir);
    throw;
  }
  remove_aside(dir);  // what the new one replaced
  if (options.keep > 0) remove_old(dir, checkpoint.step, options.keep);
  return target;
}

Checkpoint load(const std::string& folder) {
  // The name of the folder, with or without a slash at the end.
  const auto step = step_of(fs::path(folder + "/").parent_path().filename().string());
  WEFT_REQUIRE(step.has_value(), "checkpoint: " + folder + " is not called step-NNNNNNNN");
  const Manifest manifest = verify(folder);
  Checkpoint checkpoint{.step = *step};
  for (const auto& [name, sum] : manifest) {
    const std::string file = folder + "/" + name;
    if (name == kState) {
      checkpoint.state = parse_state(read_file(file, kMaxTextBytes), file);
    } else if (name.ends_with(kSuffix)) {
      checkpoint.parts[name.substr(0, name.size() - kSuffix.size())] = load_safetensors(file).tensors;
    }
  }
  return checkpoint;
}

Latest latest(const std::string& dir) {
  Latest result;
  for (const auto& [step, folder] : list(dir)) {
    try {
      verify(folder);
      result.folder = folder;
      return result;
    } catch (const Error& error) {
      if (error.code() != Errc::kCorrupt) throw;
      result.damaged.push_back(error.message());
    }
  }
  return result;
}

}  // namespace weft::checkpoint
