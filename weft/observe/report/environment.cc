#include "weft/observe/report/environment.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/observe/memory.h"

namespace weft::observe {
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0)
      return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

std::string environment_json(const std::vector<std::pair<std::string, std::string>>& more) {
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  nlohmann::ordered_json all = {{"started", local_time(std::chrono::system_clock::now())},
                                {"host", host},
                                {"processor", processor_name()},
                                {"cores", std::to_string(std::thread::hardware_concurrency())},
                                {"memory", format_bytes(machine_memory().total)}};
  for (const auto& [name, value] : more) all[name] = value;
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_environment(const std::string& file,
                       std::vector<std::pair<std::string, std::string>> more) {
  constexpr const char* kStarted = "started";
  std::ifstream in(file);
  const auto before = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (before.is_object() && before.contains(kStarted) && before[kStarted].is_string())
    more.emplace_back(kStarted, before[kStarted].get<std::string>());
  write_file_atomic(file, environment_json(more));
}

}  // namespace weft::observe
