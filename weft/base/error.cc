#include "weft/base/error.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

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
  text = text.substr(0, text.find("\nException raised from "));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return one_line(text);
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
