// The folders of checkpoints: their names, how a new one takes its place, and what is in one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/checkpoint/internal/input_file.h"
#include "weft/checkpoint/internal/manifest.h"

namespace weft::checkpoint::internal {

constexpr const char* kManifestName = "manifest";
constexpr const char* kStateName = "state.json";
constexpr std::string_view kTensorSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr std::size_t kMostStateBytes = std::size_t{1} << 20;
constexpr std::size_t kMostTextBytes = std::size_t{256} << 20;  // of a manifest, or an index

// "step-00000938".
std::string folder_name(std::int64_t step);
// "model.safetensors", or "model-00001-of-00004.safetensors" for file 0 of several.
std::string tensor_file_name(const std::string& part, std::size_t file, std::size_t files);
// The path of a folder that is not complete yet.
std::string aside_name(const std::string& dir, std::int64_t step);
// Of a folder's name; nullopt for another name.
std::optional<std::int64_t> step_of(std::string_view name);
// Of a folder's path, with or without a slash at the end. Throws Error(kInvalidArgument) for
// another name.
std::int64_t step_of_folder(const std::string& folder);

// Paths of checkpoints, complete or damaged, newest first. A `dir` that does not exist holds none.
std::map<std::int64_t, std::string, std::greater<>> list_folders(const std::string& dir);

// Puts `aside` in the place of `target`, which may exist: exchanged at one instant where the file
// system can.
void put_in_place(const std::string& aside, const std::string& target);
// Removes what crashes and put_in_place() have left. Errors are passed over.
void remove_aside(const std::string& dir);
// Removes all but the newest `keep`, of which `saved` counts as one whatever its step. Errors are
// passed over.
void remove_old(const std::string& dir, std::int64_t saved, int keep);

// A flat JSON object of strings.
std::string render_state(const std::map<std::string, std::string>& state);
std::map<std::string, std::string> parse_state(const std::string& text, const std::string& file);

// The manifest, and that all of its files are there, in their size. Throws Error(kCorrupt) naming
// the file.
Manifest read_manifest(const std::string& folder);
// A file of the manifest. Throws Error(kCorrupt) where the manifest has no such file.
std::unique_ptr<InputFile> open_file(const std::string& folder, const Manifest& manifest,
                                     const std::string& name);
// The whole of a text file, with its checksums.
std::string read_text(const std::string& folder, const Manifest& manifest, const std::string& name);
// This rank's share of the bytes of all files have their checksums.
void verify_share(const std::string& folder, const Manifest& manifest, int rank, int ranks);

}  // namespace weft::checkpoint::internal
