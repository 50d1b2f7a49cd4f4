#include "weft/train/internal/plan_keys.h"

#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

constexpr const char* kAxes[] = {"dp", "fsdp", "tp", "pp", "cp", "ep"};

[[noreturn]] void refuse(const Config& config, const std::string& key, const std::string& what) {
  throw Error(Errc::kBadConfig, config.origin(key) + ": " + key + " " + what);
}

}  // namespace

void check_plan_keys(const Config& config) {
  const std::string plan = "parallel.plan = \"" + config.get_string("parallel.plan") + "\"";
  if (config.get_string("parallel.plan") == "manual") return;
  for (const char* axis : kAxes) {
    const std::string key = std::string("parallel.") + axis;
    if (config.get_string("parallel.plan") != "auto" || config.origin(key) == "default") continue;
    refuse(config, key, "is set, but " + plan + " chooses it; leave one of them out");
  }
  if (config.get_int("train.batch_per_rank") > 0)
    refuse(config, "train.batch_per_rank", "is not supported with " + plan + "; set train.batch");
  if (config.get_string("strategy.name") != "sync" || config.get_int("strategy.backup") > 0)
    refuse(config, config.get_int("strategy.backup") > 0 ? "strategy.backup" : "strategy.name",
           "is not supported with " + plan + ", which plans synchronous training; leave it out");
  if (config.get_bool("train.reproducible"))
    refuse(
        config, "train.reproducible",
        "sets the micro-batches itself, so " + plan + " is not supported; leave one of them out");
  if (config.get_string("train.batch_schedule") != "constant")
    refuse(config, "train.batch_schedule",
           "is not supported with " + plan + "; leave it \"constant\"");
  if (config.get_string("train.device") != "cpu")
    refuse(config, "train.device", "is not supported with " + plan + "; leave it \"cpu\"");
  if (config.get_int("train.verify_steps") > 0)
    refuse(config, "train.verify_steps", "is not supported with " + plan + "; leave it 0");
}

void set_plan_keys(Config& config, const std::string& fragment, const std::string& origin) {
  if (config.get_string("parallel.codec") == "auto") config.set("parallel.codec=none", origin);
  std::istringstream lines(fragment);
  std::string table;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (!line.empty() && line.front() == '[') table = line.substr(1, line.size() - 2) + ".";
    if (equals == std::string::npos) continue;
    const std::string key = table + line.substr(0, equals);
    if (key != "train.batch") config.set(key + "=" + line.substr(equals + 3), origin);
  }
}

}  // namespace weft::train::internal
