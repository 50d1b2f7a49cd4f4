#include "weft/plan/collectives/calibration.h"

#include <unistd.h>

#include <fstream>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"

namespace weft::plan {
namespace {

constexpr std::size_t kMaxBytes = 4 << 20;

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string key(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return formatted("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace

std::string machine_identity() {
  return processor() + ", " + std::to_string(std::thread::hardware_concurrency()) + " processors";
}

std::string calibration_path() {
  if (const std::string given = variable("WEFT_CALIBRATION"); !given.empty()) return given;
  std::string cache = variable("XDG_CACHE_HOME");
  if (cache.empty() && !variable("HOME").empty()) cache = variable("HOME") + "/.cache";
  return cache.empty() ? "" : cache + "/weft/calibration-" + key(machine_identity()) + ".txt";
}

CostTable load_table() {
  const std::string path = calibration_path();
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) {
    if (!variable("WEFT_CALIBRATION").empty())
      log_warn("calibration: there is no " + path + "; planning with the built-in costs");
    return default_table();
  }
  const std::string remedy =
      "; planning with the built-in costs, remove it or name another by WEFT_CALIBRATION";
  try {
    CostTable table = CostTable::parse(read_file(path, kMaxBytes));
    if (table.machine == machine_identity()) return table;
    log_warn("calibration: " + path + " is of another machine (" + table.machine + ", here " +
             machine_identity() + ")" + remedy);
  } catch (const Error& error) {
    log_warn("calibration: " + path + " cannot be used: " + error.message() + remedy);
  }
  return default_table();
}

std::string save_table(const CostTable& table) {
  const std::string path = calibration_path();
  if (path.empty())
    throw Error(
        Errc::kUnavailable,
        "calibration: no folder to keep it in; set HOME, XDG_CACHE_HOME or WEFT_CALIBRATION");
  if (const auto slash = path.rfind('/'); slash != std::string::npos && slash > 0)
    make_directories(path.substr(0, slash));
  write_file_atomic(path, table.text());
  return path;
}

}  // namespace weft::plan
