#include "weft/launch/error_file.h"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weft::launch {

using nlohmann::json;

bool write_error_file(const std::string& message) noexcept {
  const char *path = std::getenv("TORCHELASTIC_ERROR_FILE"),
             *reports = std::getenv("WEFT_LAUNCHER_REPORTS");
  if (path == nullptr || *path == '\0') return false;
  try {
    const json extra = {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}};
    const json content = {{"message", {{"message", message}, {"extraInfo", extra}}}};
    std::ofstream file(path);
    file << content.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
    return file && reports != nullptr && *reports == '1';
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<std::string> read_error_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  const json content = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || !content.contains("message")) return std::nullopt;
  json message = content["message"];
  if (message.is_object() && message.contains("message")) message = message["message"];
  if (!message.is_string()) return std::nullopt;
  auto text = message.get<std::string>();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return std::nullopt;
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace weft::launch
