// The one exception type of weft, and the two checks that throw it.
//
// A code says what the caller can do next; the message says what happened, where, and what to do, in one line.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

enum class Errc {
  kInvalidArgument,  // fix the call
  kBadConfig,        // fix the file
  kTimeout,          // re-form the group
  kPeerLost,         // re-form the group
  kAborted,          // another operation failed first
  kUnavailable,      // try again
  kCorrupt,          // use an older one
  kInternal,         // report a bug
};

// The code's name as written in the enum, without the k: "PeerLost".
const char* to_string(Errc code) noexcept;

// The exit code of a process that ends by this error: 2 for the caller's and the file's mistakes, 65 for corrupt data, 70 for ours,
// and 128 or more where a retry may help (schedulers treat those as retryable).
int exit_code(Errc code) noexcept;

class Error : public std::runtime_error {
 public:
  // Where it happened: the operation ("all_reduce"), the rank that saw it, the peer at fault; -1 where there is none.
  struct Context {
    std::string operation;
    int rank = -1;
    int peer = -1;
  };

  Error(Errc code, const std::string& message);
  Error(Errc code, const std::string& message, Context context);

  Errc code() const noexcept { return code_; }
  const Context& context() const noexcept { return context_; }
  // The message without code and context, as given.
  const std::string& message() const noexcept { return message_; }

 private:
  Errc code_;
  Context context_;
  std::string message_;
};

namespace detail {
[[noreturn]] void fail_require(const char* condition, const char* file, int line, const std::string& message);
[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& message);
}  // namespace detail

}  // namespace weft

// The caller's mistake: throws Error(kInvalidArgument). The message is evaluated only on failure.
#define WEFT_REQUIRE(condition, message) \
  (static_cast<bool>(condition) ? void(0) : ::weft::detail::fail_require(#condition, __FILE__, __LINE__, (message)))
// Our mistake: throws Error(kInternal).
#define WEFT_CHECK(condition, message) \
  (static_cast<bool>(condition) ? void(0) : ::weft::detail::fail_check(#condition, __FILE__, __LINE__, (message)))
