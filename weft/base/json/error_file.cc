#include "weft/base/json/error_file.h"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

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

const char* path_of_file() {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

bool write(const Cause& cause) noexcept {
  const char *path = path_of_file(), *reports = std::getenv("WEFT_LAUNCHER_REPORTS");
  if (path == nullptr) return false;
  try {
    json extra = {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}};
    if (cause.code) extra["weft"] = {{"code", to_string(*cause.code)}, {"peer", cause.peer}};
    const json content = {{"message", {{"message", cause.message}, {"extraInfo", extra}}}};
    std::ofstream file(path);
    file << content.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
    return file && reports != nullptr && *reports == '1';
  } catch (const std::exception&) {
    return false;
  }
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

bool write_error_file(const std::string& message) noexcept { return write({message}); }

bool write_error_file(const Error& error) noexcept {
  return write({error.what(), error.code(), error.context().peer});
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
