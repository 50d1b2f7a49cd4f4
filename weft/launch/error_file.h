// The file by which a failing rank reports the cause to its launcher (TORCHELASTIC_ERROR_FILE,
// torchrun's format): {"message": {"message": "…", "extraInfo": {"py_callstack": "…", "timestamp":
// "…"}}}
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace weft::launch {

// Writes `message` to the file named by TORCHELASTIC_ERROR_FILE. Does nothing if it is unset or the
// file cannot be written, since the caller is about to end with the real error. main() of a rank
// calls it before it ends. Returns true if the launcher is weft's: it prints the message in its
// report, once for all ranks with the same message, so the rank need not print it.
bool write_error_file(const std::string& message) noexcept;

// Returns the message in such a file; if it has several lines, the last one (a Python traceback
// ends with the cause). nullopt if there is no file or it has another format.
std::optional<std::string> read_error_file(const std::filesystem::path& file);

}  // namespace weft::launch
