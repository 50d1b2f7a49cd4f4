#include "weft/base/json/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "weft/base/file.h"
#include "weft/base/internal/describe.h"
#include "weft/base/internal/utf8.h"
#include "weft/base/text/variables.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr Errc kCodes[] = {Errc::kInvalidArgument, Errc::kBadConfig, Errc::kTimeout,
                           Errc::kPeerLost,        Errc::kAborted,   Errc::kUnavailable,
                           Errc::kCorrupt,         Errc::kInternal};

// What record_failure() has written in this process.
struct Recorded {
  std::mutex mutex;
  std::optional<Errc> code;  // guarded by mutex
};
Recorded& recorded() {
  static Recorded state;
  return state;
}

// Larger: tells more about the cause.
int weight(Errc code) { return code == Errc::kAborted ? 0 : code == Errc::kPeerLost ? 1 : 2; }

const char* path_of_file() { return variable_or_null("TORCHELASTIC_ERROR_FILE"); }

// A failure may mean that memory has run out. So the file is made from memory that is set aside
// here, and by system calls.
class Reserve {
 public:
  bool write(const char* path, const std::exception& error) noexcept {
    const std::lock_guard lock(mutex_);
    const std::size_t size = internal::describe_into(error, message_, sizeof message_);
    return write_message(path, {message_, size}, dynamic_cast<const Error*>(&error));
  }
  bool write(const char* path, std::string_view message) noexcept {
    const std::lock_guard lock(mutex_);
    return write_message(path, message.substr(0, kMaxMessage), nullptr);
  }

 private:
  static constexpr std::size_t kMaxMessage = 4095;
  // A byte of the message becomes at most "\\u001f".
  static constexpr std::size_t kMaxText = 6 * kMaxMessage + 512;

  bool write_message(const char* path, std::string_view message, const Error* known) noexcept {
    used_ = 0;
    add("{\"message\":{\"message\":\"");
    add_escaped(message);
    add("\",\"extraInfo\":{\"py_callstack\":\"\",\"timestamp\":\"");
    add_number(std::time(nullptr));
    add("\"");
    if (known != nullptr) {
      add(",\"weft\":{\"code\":\"");
      add(to_string(known->code()));
      add("\",\"peer\":");
      add_number(known->context().peer);
      add("}");
    }
    add("}}}\n");
    const UniqueFd file(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    return file && ::write(file.get(), text_, used_) == static_cast<ssize_t>(used_);
  }

  void add(std::string_view part) noexcept {
    const std::size_t bytes = std::min(part.size(), kMaxText - used_);
    std::memcpy(text_ + used_, part.data(), bytes);
    used_ += bytes;
  }
  void add_number(std::int64_t number) noexcept {
    char digits[24];
    const auto [end, failed] = std::to_chars(digits, digits + sizeof digits, number);
    add({digits, static_cast<std::size_t>(end - digits)});
  }
  // As JSON wants it. Bytes that are not UTF-8 become "?".
  void add_escaped(std::string_view message) noexcept {
    for (std::size_t at = 0; at < message.size();) {
      const std::size_t length = internal::utf8_length(message, at);
      const char c = message[at];
      if (length == 1 && (c == '"' || c == '\\')) add("\\");
      if (length == 1 && static_cast<unsigned char>(c) < 0x20) {
        constexpr std::string_view kDigits = "0123456789abcdef";
        const char escaped[] = {'\\', 'u', '0', '0', kDigits[(c >> 4) & 15], kDigits[c & 15]};
        add({escaped, sizeof escaped});
      } else {
        add(length == 0 ? "?" : message.substr(at, length));
      }
      at += std::max<std::size_t>(length, 1);
    }
  }

  std::mutex mutex_;
  std::size_t used_ = 0;  // guarded by mutex_, as the next two
  char message_[kMaxMessage + 1], text_[kMaxText];
};
Reserve reserve;

// `what`: an exception, or a message.
template <class What>
bool write(const What& what) noexcept {
  const char *path = path_of_file(), *reports = variable_or_null("WEFT_LAUNCHER_REPORTS");
  return path != nullptr && reserve.write(path, what) && reports != nullptr && *reports == '1';
}

std::optional<Errc> parse_code(const std::string& name) {
  for (const Errc code : kCodes) {
    if (name == to_string(code)) return code;
  }
  return std::nullopt;
}

void read_details(const json& message, Cause& cause) {
  const json extra = message.value("extraInfo", json());
  const json weft = extra.is_object() ? extra.value("weft", json()) : json();
  if (!weft.is_object()) return;
  if (weft.contains("code") && weft["code"].is_string()) cause.code = parse_code(weft["code"]);
  if (weft.contains("peer") && weft["peer"].is_number_integer()) cause.peer = weft["peer"];
}

}  // namespace

bool write_error_file(const std::string& message) noexcept { return write(message); }

bool write_error_file(const std::exception& error) noexcept { return write(error); }

void print_error(const std::exception& error) noexcept {
  char line[4096] = "weft: ";
  const std::size_t head = std::strlen(line);
  std::size_t size = head + internal::describe_into(error, line + head, sizeof line - head - 1);
  line[size++] = '\n';
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, size);
}

int fail_with(const std::exception& error) noexcept {
  if (!write_error_file(error)) print_error(error);
  return exit_code(code_of(error));
}

void report_exhaustion_on_terminate() noexcept {
  static const std::terminate_handler before = std::get_terminate();
  std::set_terminate([] {
    if (const std::exception_ptr current = std::current_exception()) {
      try {
        std::rethrow_exception(current);
      } catch (const std::exception& error) {
        if (code_of(error) == Errc::kUnavailable) ::_exit(fail_with(error));
      } catch (...) {  // of no known type: as before
      }
    }
    before();
    std::abort();
  });
}

void record_failure(const Error& error) noexcept {
  const std::lock_guard lock(recorded().mutex);
  if (path_of_file() == nullptr) return;
  if (recorded().code && weight(error.code()) <= weight(*recorded().code)) return;
  recorded().code = error.code();
  write_error_file(error);
}

void forget_failure() noexcept {
  const std::lock_guard lock(recorded().mutex);
  if (!recorded().code) return;
  recorded().code.reset();
  std::error_code ignored;
  if (const char* path = path_of_file()) std::filesystem::remove(path, ignored);
}

std::optional<Cause> read_error_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  const json content = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || !content.contains("message")) return std::nullopt;
  Cause cause;
  json message = content["message"];
  if (message.is_object() && message.contains("message")) {
    read_details(message, cause);
    message = json(message["message"]);
  }
  if (!message.is_string()) return std::nullopt;
  cause.message = message.get<std::string>();
  while (!cause.message.empty() && cause.message.back() == '\n') cause.message.pop_back();
  if (cause.message.empty()) return std::nullopt;
  cause.message = cause.message.substr(cause.message.rfind('\n') + 1);
  return cause;
}

}  // namespace weft
