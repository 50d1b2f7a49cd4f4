#include "weft/checkpoint/convert.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/folder_lock.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using internal::Entry;
using internal::FileWriter;
using internal::Header;

// The tensors of a part that are written to one file.
Header header_of(const Reader& reader, const std::string& part,
                 const std::vector<std::string>& names) {
  Header header{{}, {{"format", "pt"}}};  // transformers requires it
  for (const std::string& name : names) {
    header.entries.push_back(
        {name, internal::dtype_of(name, reader.dtype(part, name)), reader.shapes(part).at(name)});
  }
  internal::lay_out(header.entries);
  return header;
}

void write_file(const Reader& reader, const std::string& part,
                const std::vector<std::string>& names, const std::string& path) {
  internal::replace_file(path, [&](FileWriter& out) {
    const Header header = header_of(reader, part, names);
    out.write(internal::render_header(header));
    for (const Entry& entry : header.entries) {
      const at::Tensor tensor = reader.read(part, entry.name);
      out.write({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  });
}

std::vector<std::string> names_of(const Reader& reader, const std::string& part) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : reader.shapes(part)) names.push_back(name);
  return names;
}

// True for PART.safetensors, PART-00001-of-00003.safetensors and PART.safetensors.index.json.
bool is_hub_file(std::string_view name, const std::string& part) {
  if (!name.starts_with(part)) return false;
  name.remove_prefix(part.size());
  if (name == internal::kTensorSuffix || name == internal::kIndexSuffix) return true;
  constexpr std::string_view kPlace = "-ddddd-of-ddddd";
  if (name.size() != kPlace.size() + internal::kTensorSuffix.size() ||
      !name.ends_with(internal::kTensorSuffix))
    return false;
  return std::equal(kPlace.begin(), kPlace.end(), name.begin(), [](char place, char c) {
    return place == 'd' ? c >= '0' && c <= '9' : c == place;
  });
}

// Readers take PART.safetensors before an index, and some take all files, so a file of another
// division would count instead of the new ones.
void refuse_others(const std::string& folder, const std::string& part, std::size_t files) {
  std::set<std::string> mine;
  if (files > 1) mine.insert(part + std::string(internal::kIndexSuffix));
  for (std::size_t i = 0; i < files; ++i) mine.insert(internal::tensor_file_name(part, i, files));
  std::error_code failed;
  fs::directory_iterator at(folder, failed);
  for (; !failed && at != fs::directory_iterator(); at.increment(failed)) {
    const std::string name = at->path().filename().string();
    WEFT_REQUIRE(!is_hub_file(name, part) || mine.contains(name),
                 folder + " has " + name + ", which readers would take beside the new files of \"" +
                     part + "\"; remove it, or name another folder");
  }
  if (failed) fail_io("cannot list", folder, failed.value());
}

}  // namespace

void write_plain(const Reader& reader, const std::string& part, const std::string& path) {
  write_file(reader, part, names_of(reader, part), path);
}

std::vector<std::string> write_hub(const Reader& reader, const std::string& part,
                                   const std::string& folder, std::int64_t most_bytes) {
  std::vector<std::vector<std::string>> files(1);
  std::int64_t total = 0, bytes = 0;
  for (const std::string& name : names_of(reader, part)) {
    const std::int64_t more = internal::bytes_of(internal::dtype_of(name, reader.dtype(part, name)),
                                                 reader.shapes(part).at(name));
    if (most_bytes > 0 && bytes > 0 && bytes + more > most_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(name);
    bytes += more;
    total += more;
  }
  make_directories(folder);
  refuse_others(folder, part, files.size());
  std::vector<std::string> written;
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = internal::tensor_file_name(part, i, files.size());
    write_file(reader, part, files[i], folder + "/" + name);
    for (const std::string& tensor : files[i]) weight_map[tensor] = name;
    written.push_back(name);
  }
  if (files.size() == 1) return written;
  const std::string index = part + std::string(internal::kIndexSuffix);
  const nlohmann::ordered_json document = {{"metadata", {{"total_size", total}}},
                                           {"weight_map", weight_map}};
  write_file_atomic(folder + "/" + index, document.dump(2) + "\n");
  written.push_back(index);
  return written;
}

std::string copy_checkpoint(const std::string& folder, const std::string& dir) {
  const std::int64_t step = internal::step_of_folder(folder);
  const std::string target = dir + "/" + internal::folder_name(step),
                    aside = internal::aside_name(dir, step);
  const auto refuse_existing = [&] {
    WEFT_REQUIRE(!fs::exists(target), "checkpoint: " + target + " exists already");
  };
  refuse_existing();
  const internal::Manifest from = internal::read_manifest(folder);
  internal::verify_share(folder, from, 0, 1);
  make_directories(dir);
  // A save would remove the folder of this copy, and this copy the folder of a save of this step.
  const internal::FolderLock lock(dir);
  refuse_existing();   // a save may have made it meanwhile
  remove_tree(aside);  // left by a copy that was killed
  const internal::OwnFolder made(aside);
  internal::Manifest manifest;
  try {
    for (const auto& [name, sums] : from.files) {
      const auto in = internal::open_file(folder, from, name);
      FileWriter out(aside + "/" + name);
      std::string part(static_cast<std::size_t>(internal::kChunkBytes), '\0');
      for (std::int64_t at = 0; at < in->bytes(); at += internal::kChunkBytes) {
        const std::int64_t count = std::min(internal::kChunkBytes, in->bytes() - at);
        in->read(part.data(), count, at);
        out.write({part.data(), static_cast<std::size_t>(count)});
      }
      manifest.files[name] = out.finish();
    }
    made.require_in_place();
    internal::write_text(aside + "/" + internal::kManifestName,
                         internal::render_manifest(manifest));
    flush_directory(aside);
    made.require_in_place();
    rename_path(aside, target);
    flush_directory(dir);
  } catch (...) {
    // If its folder was replaced, it is another job's.
    if (made.is_in_place()) remove_tree(aside);
    throw;
  }
  return target;
}

}  // namespace weft::checkpoint
