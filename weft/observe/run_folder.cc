#include "weft/observe/run_folder.h"

#include <cctype>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"

namespace weft::observe {
namespace {

// Whether the folder is there with something in it.
bool holds_something(const std::string& path) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(path, error);
  if (error == std::errc::no_such_file_or_directory) return false;
  if (error) fail_io("cannot use the run folder", path, error.value());
  return entries != std::filesystem::directory_iterator();
}

// A new folder named by the time: runs that begin in one second get a number behind it.
std::string claim_folder(const std::string& parent, const std::string& recipe) {
  make_directories(parent);
  const auto now = std::chrono::system_clock::now();
  for (int nth = 1;; ++nth) {
    const std::string path = parent + "/" + default_run_name(recipe, now, nth);
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) return path;
    if (error) fail_io("cannot make the run folder", path, error.value());
  }
}

}  // namespace

std::string default_run_name(const std::string& recipe, std::chrono::system_clock::time_point now, int nth) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d-%H%M%S-", &parts);
  std::string name = recipe.empty() ? "run" : recipe;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-' && c != '_') c = '-';
  }
  return date + (nth > 1 ? std::to_string(nth) + "-" : "") + name;
}

RunFolder::RunFolder(const RunFolderOptions& options, const Config& config) {
  const std::string& name = options.name;
  WEFT_REQUIRE(name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "." && name != "..",
               "the run's name '" + name + "' must be a single folder name");
  path_ = name.empty() && !options.resume ? claim_folder(options.parent, options.recipe) : options.parent + "/" + name;
  const bool holds_run = holds_something(path_);
  WEFT_REQUIRE(options.resume || !holds_run, "the run folder " + path_ + " is not empty; choose another name, or resume");
  WEFT_REQUIRE(!options.resume || holds_run, "there is no run to resume in " + path_);
  make_directories(checkpoint_path());
  write_file_atomic(config_path(), config.to_toml());
  attach_log_file(log_path());
}

RunFolder::~RunFolder() { detach_log_file(); }

}  // namespace weft::observe
