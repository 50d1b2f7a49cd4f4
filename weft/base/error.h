// weft::Error, the one exception type of weft, and the two checks that throw it.
//
// The code says what the caller can do next. The message says in one line what happened, where, and
// what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

enum class Errc {
  kInvalidArgument,  // Fix the call.
  kBadConfig,        // Fix the file.
  kTimeout,          // Form the group again.
  kPeerLost,         // Form the group again.
  kAborted,          // Another operation failed first.
  kUnavailable,      // Try again.
  kCorrupt,          // Use an older one.
  kInternal,         // Report a bug.
};

// Name of the code as in the enum, without the k: "PeerLost".
const char* to_string(Errc code) noexcept;

// Exit code of a process that ends by this error (docs/exit-codes.md): 2 for mistakes of the caller
// or in a file, 65 for corrupt data, 70 for bugs of weft. 200 to 203 where a retry may help:
// schedulers retry codes above 127, and 129 to 192 mean that a signal ended the process.
int exit_code(Errc code) noexcept;

// Returns the text of any library's exception as one line, without the stack frames of libtorch's
// errors. If memory or threads have run out, says so, and how many bytes were asked for where that
// is known. With WEFT_DEBUG=1 in the environment, returns the full text.
std::string describe(const std::exception& error);

class Error : public std::runtime_error {
 public:
  // Place of the error: the operation ("all_reduce"), the rank that saw it, the peer at fault. -1:
  // none.
  struct Context {
    std::string operation;
    int rank = -1;
    int peer = -1;
  };

  Error(Errc code, const std::string& message);
  Error(Errc code, const std::string& message, Context context);

  Errc code() const noexcept { return code_; }
  const Context& context() const noexcept { return context_; }
  // Message as it was given, without code and context.
  const std::string& message() const noexcept { return message_; }

 private:
  Errc code_;
  Context context_;
  std::string message_;
};

// The code of an Error. For other exceptions: kUnavailable if memory or threads have run out, that
// of the reason for an error of the system (a missing path: kInvalidArgument), else kInternal.
Errc code_of(const std::exception& error) noexcept;

namespace detail {
[[noreturn]] void fail_require(const char* condition, const char* file, int line,
                               const std::string& message);
[[noreturn]] void fail_check(const char* condition, const char* file, int line,
                             const std::string& message);
}  // namespace detail

}  // namespace weft

// For mistakes of the caller: throws Error(kInvalidArgument). The message is evaluated only on
// failure.
#define WEFT_REQUIRE(condition, message) \
  (static_cast<bool>(condition)          \
       ? void(0)                         \
       : ::weft::detail::fail_require(#condition, __FILE__, __LINE__, (message)))
// For bugs of weft: throws Error(kInternal).
#define WEFT_CHECK(condition, message) \
  (static_cast<bool>(condition)        \
       ? void(0)                       \
       : ::weft::detail::fail_check(#condition, __FILE__, __LINE__, (message)))
