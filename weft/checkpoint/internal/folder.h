// Checkpoint folders: their names, how a new one replaces an old one, and their text files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/internal/input_file.h"
#include "weft/checkpoint/internal/manifest.h"

namespace weft::checkpoint {
struct SaveOptions;
}

namespace weft::checkpoint::internal {

constexpr std::string_view kStepPrefix = "step-";
constexpr const char* kManifestName = "manifest";
constexpr const char* kStateName = "state.json";
constexpr std::string_view kTensorSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
// Longest name of a part, so that readers take the names of its files.
constexpr std::size_t kMaxPartBytes =
    kMaxNameBytes - std::string_view("-00001-of-00004.safetensors").size();
constexpr std::size_t kMaxStateBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;  // limit of a manifest or an index

// "step-00000938".
std::string folder_name(std::int64_t step);
// "model.safetensors", or "model-00001-of-00004.safetensors" for file 0 of several.
std::string tensor_file_name(const std::string& part, std::size_t file, std::size_t files);
// The path of the temporary folder in which a checkpoint is written.
std::string aside_name(const std::string& dir, std::int64_t step);
// Parses the step from a folder's path, with or without a slash at the end. Throws
// Error(kInvalidArgument) for any other name.
std::int64_t step_of_folder(const std::string& folder);

// Paths of checkpoints, complete or damaged, newest first. A `dir` that does not exist holds none.
std::map<std::int64_t, std::string, std::greater<>> list_folders(const std::string& dir);

// Moves `aside` to `target`, and flushes the folder of both. If `target` exists, the two are
// exchanged atomically where the file system supports it. If an error is thrown, `target` is what
// it was before, unless the file system refuses that too.
void put_in_place(const std::string& aside, const std::string& target);
// Removes temporary folders left by crashes and by put_in_place(). A crash may have left the only
// checkpoint of a step under such a name: it gets its own name again. Ignores errors.
void remove_aside(const std::string& dir);
// Removes the checkpoints that these options do not keep. `saved` counts as one of the newest
// whatever its step is. Ignores errors.
void remove_old(const std::string& dir, std::int64_t saved, const SaveOptions& options);

// Writes and reads a flat JSON object of strings.
std::string render_state(const std::map<std::string, std::string>& state);
std::map<std::string, std::string> parse_state(const std::string& text, const std::string& file);

// Reads the manifest and checks that each of its files exists with the right size. Throws
// Error(kCorrupt) with the file's name, and as base/file.h for a file that may not be read.
Manifest read_manifest(const std::string& folder);
// Returns the manifest's entry of a file. Throws Error(kCorrupt) if there is none.
std::unique_ptr<InputFile> open_file(const std::string& folder, const Manifest& manifest,
                                     const std::string& name);
// Reads a whole text file and verifies its checksums.
std::string read_text(const std::string& folder, const Manifest& manifest, const std::string& name);
// Verifies the checksums of this rank's share of the bytes of all files.
void verify_share(const std::string& folder, const Manifest& manifest, int rank, int ranks);

}  // namespace weft::checkpoint::internal
