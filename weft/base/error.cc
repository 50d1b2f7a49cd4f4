#include "weft/base/error.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "weft/base/internal/describe.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"

namespace weft {
namespace {

std::string render(Errc code, const std::string& message, const Error::Context& context) {
  std::string where;
  if (!context.operation.empty()) where += context.operation;
  if (context.rank >= 0)
    where += (where.empty() ? "rank " : ", rank ") + std::to_string(context.rank);
  std::string head = to_string(code);
  if ((code == Errc::kPeerLost || code == Errc::kTimeout) && context.peer >= 0)
    head += "{" + std::to_string(context.peer) + "}";
  return head + ": " + (where.empty() ? "" : where + ": ") + message;
}

// Messages quote text from files, peers and the environment. That text must not break the line or
// reach the terminal as a control sequence.
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// What has run out. Allocates nothing, as all of describe_into().
enum class RunOut { kNothing, kThreads, kPrimitives, kMemory };

constexpr std::string_view kPrimitive = "could not create a primitive";  // of oneDNN
constexpr std::string_view kAsked = "you tried to allocate ";            // libtorch's CPU allocator

RunOut run_out(const std::exception& error) noexcept {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return RunOut::kThreads;
  const std::string_view text = error.what();
  if (text == kPrimitive) return RunOut::kPrimitives;
  const bool is_bad_alloc = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                            (system != nullptr && system->code() == std::errc::not_enough_memory);
  return is_bad_alloc || text.find(kAsked) != std::string_view::npos ? RunOut::kMemory
                                                                     : RunOut::kNothing;
}

template <class Append>
void compose_run_out(RunOut what, std::string_view text, const Append& append) {
  if (what == RunOut::kThreads)
    return append(
        "cannot start a thread: there are too many, or too little memory; raise the limit "
        "(ulimit -u, the cgroup's pids.max, or the limit of memory)");
  if (what == RunOut::kPrimitives) {
    append("out of memory? oneDNN ");
    return append(kPrimitive);
  }
  append("out of memory");
  if (const auto at = text.find(kAsked); at != std::string_view::npos) {
    const auto digits = text.substr(at + kAsked.size());
    append(": ");
    append(digits.substr(0, digits.find_first_not_of("0123456789")));
    append(" bytes were asked for");
  }
  append("; use a smaller batch or model, fewer ranks, or a higher memory limit");
}

// An error of the system that libraries throw: its reason, and for the file system the paths.
template <class Append>
void compose_system(const std::system_error& error, const Append& append) {
  const auto* const files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (files == nullptr || files->path1().empty()) return append(error.what());
  append(files->path1().native());
  if (!files->path2().empty()) {
    append(" and ");
    append(files->path2().native());
  }
  append(": ");
  append(::strerrordesc_np(error.code().value()));
}

bool is_of_system(const std::system_error& error) noexcept {
  return error.code().category() == std::system_category() ||
         error.code().category() == std::generic_category();
}

// describe(), in parts.
template <class Append>
void compose(const std::exception& error, const Append& append) {
  std::string_view text = error.what();
  if (dynamic_cast<const Error*>(&error) != nullptr) return append(text);
  if (const RunOut what = run_out(error); what != RunOut::kNothing) {
    append("Unavailable: ");
    return compose_run_out(what, text, append);
  }
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && is_of_system(*system)) {
    append(to_string(code_of(error)));
    append(": ");
    return compose_system(*system, append);
  }
  text = text.substr(0, text.find("\nException raised from "));
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  append(text);
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
  if (internal::wants_full_text()) return error.what();
  std::string text;
  compose(error, [&](std::string_view part) { text += part; });
  std::replace(text.begin(), text.end(), '\n', ' ');
  return one_line(text, '?');
}

Errc code_of(const std::exception& error) noexcept {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return known->code();
  if (run_out(error) != RunOut::kNothing) return Errc::kUnavailable;
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  return system != nullptr && is_of_system(*system)
             ? internal::code_of_errno(system->code().value())
             : Errc::kInternal;
}

namespace internal {

Errc code_of_errno(int error_number) noexcept {
  switch (error_number) {
    case EACCES:
    case EEXIST:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:
    case ENOTDIR:
    case ENOTEMPTY:
    case EPERM:
    case EROFS: return Errc::kInvalidArgument;
    default: return Errc::kUnavailable;
  }
}

bool wants_full_text() noexcept {
  const char* const debug = variable_or_null("WEFT_DEBUG");
  return debug != nullptr && std::string_view(debug) == "1";
}

std::size_t describe_into(const std::exception& error, char* out, std::size_t size) noexcept {
  std::size_t used = 0;
  const auto append = [&](std::string_view part) {
    for (const char c : part.substr(0, size - 1 - used)) out[used++] = c;
  };
  if (wants_full_text()) {
    append(error.what());
  } else {
    compose(error, append);
    std::replace(out, out + used, '\n', ' ');
    std::replace_if(out, out + used, is_control, '?');
  }
  out[used] = '\0';
  return used;
}

}  // namespace internal

Error::Error(Errc code, const std::string& message) : Error(code, message, Context{}) {}

Error::Error(Errc code, const std::string& message, Context context)
    : std::runtime_error(one_line(render(code, message, context), '?')),
      code_(code),
      context_(std::move(context)),
      message_(one_line(message, '?')) {}

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
