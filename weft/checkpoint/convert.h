// Checkpoints as other programs read them, and old ones as new ones. One tensor, or a MiB, is in
// memory at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/checkpoint/reader.h"

namespace weft::checkpoint {

// Writes a part, whole, as one plain safetensors file: complete or absent, as save_safetensors()
// does.
void write_plain(const Reader& reader, const std::string& part, const std::string& path);

// Writes a part, whole, into a folder as Hugging Face's hub has it: PART.safetensors; or, where it
// has more than `most_bytes`, PART-00001-of-00003.safetensors and so on with
// PART.safetensors.index.json. A file has more only where one tensor has. 0: no limit. Files of
// these names are replaced. Gives the files' names. Throws Error(kInvalidArgument), before it
// writes, if the folder has files of the part in another number, which readers would take, too.
std::vector<std::string> write_hub(const Reader& reader, const std::string& part,
                                   const std::string& folder, std::int64_t most_bytes);

// Copies a checkpoint of this or an older weft to `dir`/step-…, with the newest form of manifest.
// Gives the folder. Locks `dir` as a save does. Throws Error(kInvalidArgument) where there is one,
// Error(kCorrupt) for one that is damaged, Error(kUnavailable) while a job saves into `dir`.
std::string copy_checkpoint(const std::string& folder, const std::string& dir);

}  // namespace weft::checkpoint
