// The file through which a failing rank tells its launcher the cause (TORCHELASTIC_ERROR_FILE,
// torchrun's format): {"message": {"message": "…", "extraInfo": {"py_callstack": "…", "timestamp":
// "…"}}}
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace weft::launch {

// Writes `message` to the file that TORCHELASTIC_ERROR_FILE names; does nothing when it is unset or
// the file cannot be written, since the caller is about to end with the true error. To be called by
// main() of a rank on its way out. True: the launcher is weft's, and prints the message in its
// report, once for all ranks that have the same one; the rank need not print it.
bool write_error_file(const std::string& message) noexcept;

// The message in such a file, its last line when there are several (a Python traceback ends with
// the cause); nullopt when there is no file or it is not in this format.
std::optional<std::string> read_error_file(const std::filesystem::path& file);

}  // namespace weft::launch
