// The file by which a failing rank reports the cause to its launcher (TORCHELASTIC_ERROR_FILE, in
// torchrun's format):
//
//   {"message": {"message": "…", "extraInfo": {"py_callstack": "…", "timestamp": "…",
//                                              "weft": {"code": "PeerLost", "peer": 5}}}}
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "weft/base/error.h"

namespace weft {

// Why a rank failed.
struct Cause {
  std::string message;
  std::optional<Errc> code = {};  // Empty: the error was not weft's.
  int peer = -1;                  // Rank of the job that the failed rank waited for. -1: none.
};

// Each writes to the file named by TORCHELASTIC_ERROR_FILE, and does nothing if it is unset or the
// file cannot be written, since the caller is about to end with the real error. main() of a rank
// calls one before it ends. Returns true if the launcher is weft's: it prints the message in its
// report, once for all ranks with the same message, so the rank need not print it. An exception is
// written as describe() says it, from memory that is set aside: also if memory has run out.
bool write_error_file(const std::string& message) noexcept;
bool write_error_file(const std::exception& error) noexcept;

// Prints "weft: " and describe(error) as one line on stderr. Allocates nothing.
void print_error(const std::exception& error) noexcept;
// What main() does with an exception that ends the process: writes the error file, or if no
// launcher of weft reports it, prints the line. Returns the exit code. Allocates nothing.
int fail_with(const std::exception& error) noexcept;
// From now on, an exception that no code catches ends the process by fail_with() if memory, threads
// or another resource have run out (kUnavailable). Others abort as before. Once a process, in
// main().
void report_exhaustion_on_terminate() noexcept;

// Records the failure of a group, in case the program ends without a report of its own (uncaught
// exception, exit code of the user's). A failure that is a consequence (kAborted, kPeerLost) does
// not replace a recorded one that tells more. Thread-safe.
void record_failure(const Error& error) noexcept;
// Removes what record_failure() recorded: the program goes on without the failed group.
void forget_failure() noexcept;

// Returns the content of such a file. If the message has several lines, only the last one (a Python
// traceback ends with the cause). nullopt if there is no file or it has another format.
std::optional<Cause> read_error_file(const std::filesystem::path& file);

}  // namespace weft
