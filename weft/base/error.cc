#include "weft/base/error.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

namespace weft {
namespace {

std::string render(Errc code, const std::string& message, const Error::Context& context) {
  std::string where;
  if (!context.operation.empty()) where += context.operation;
  if (context.rank >= 0)
    where += (where.empty() ? "rank " : ", rank ") + std::to_string(context.rank);
  std::string head = to_string(code);
  if (code == Errc::kPeerLost && context.peer >= 0)
    head += "{" + std::to_string(context.peer) + "}";
  return head + ": " + (where.empty() ? "" : where + ": ") + message;
}

// Messages quote text from files, peers and the environment. That text must not break the line or
// reach the terminal as a control sequence.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

// What has run out, as a message. Empty for other exceptions.
std::string exhausted(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return "cannot start a thread: there are too many, or too little memory; raise the limit "
           "(ulimit -u, the cgroup's pids.max, or the limit of memory)";
  constexpr std::string_view kPrimitive = "could not create a primitive";  // of oneDNN
  if (error.what() == kPrimitive) return "out of memory? oneDNN " + std::string(kPrimitive);
  constexpr std::string_view kAsked = "you tried to allocate ";  // libtorch's CPU allocator
  const std::string_view text = error.what();
  const auto at = text.find(kAsked);
  const bool is_bad_alloc = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (at == std::string_view::npos && !is_bad_alloc) return "";
  std::string asked;
  if (at != std::string_view::npos) {
    const auto digits = text.substr(at + kAsked.size());
    asked = ": " + std::string(digits.substr(0, digits.find_first_not_of("0123456789"))) +
            " bytes were asked for";
  }
  return "out of memory" + asked +
         "; use a smaller batch or model, fewer ranks, or a higher memory limit";
}

// The path relative to the project's root, without the folders of the build machine.
std::string short_path(const std::string& file) {
  const auto at = file.rfind("weft/");
  return at == std::string::npos ? file : file.substr(at);
}

}  // namespace

const char* to_string(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return "InvalidArgument";
    case Errc::kBadConfig: return "BadConfig";
    case Errc::kTimeout: return "Timeout";
    case Errc::kPeerLost: return "PeerLost";
    case Errc::kAborted: return "Aborted";
    case Errc::kUnavailable: return "Unavailable";
    case Errc::kCorrupt: return "Corrupt";
    case Errc::kInternal: return "Internal";
  }
  return "Unknown";
}

int exit_code(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument:
    case Errc::kBadConfig: return 2;
    case Errc::kCorrupt: return 65;
    case Errc::kInternal: return 70;
    case Errc::kTimeout: return 200;
    case Errc::kPeerLost: return 201;
    case Errc::kAborted: return 202;
    case Errc::kUnavailable: return 203;
  }
  return 70;
}

std::string describe(const std::exception& error) {
  std::string text = error.what();
  const char* debug = std::getenv("WEFT_DEBUG");
  if (debug != nullptr && std::string_view(debug) == "1") return text;
  if (const std::string what = exhausted(error); !what.empty())
    return Error(Errc::kUnavailable, what).what();
  text = text.substr(0, text.find("\nException raised from "));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return one_line(text);
}

Errc code_of(const std::exception& error) noexcept {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return known->code();
  return exhausted(error).empty() ? Errc::kInternal : Errc::kUnavailable;
}

Error::Error(Errc code, const std::string& message) : Error(code, message, Context{}) {}

Error::Error(Errc code, const std::string& message, Context context)
    : std::runtime_error(one_line(render(code, message, context))),
      code_(code),
      context_(std::move(context)),
      message_(one_line(message)) {}

namespace detail {

void fail_require(const char* condition, const char*, int, const std::string& message) {
  throw Error(Errc::kInvalidArgument,
              message.empty() ? std::string("expected ") + condition : message);
}

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(Errc::kInternal, message + " (" + condition + " does not hold at " +
                                   short_path(file) + ":" + std::to_string(line) +
                                   "); please report this");
}

}  // namespace detail
}  // namespace weft
