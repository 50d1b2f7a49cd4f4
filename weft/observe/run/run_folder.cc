#include "weft/observe/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"

namespace weft::observe {
namespace {

constexpr const char* kLock = ".lock";

// True if the folder exists and contains a file other than the lock.
bool holds_something(const std::string& path) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(path, error);
  if (error == std::errc::no_such_file_or_directory) return false;
  if (error) fail_io("cannot use the run folder", path, error.value());
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return entry.path().filename() != kLock; });
}

// "process 123 on host", for the error message of a second process and for owner_of_run().
std::string owner() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return "process " + std::to_string(::getpid()) + " on " + host;
}

// Creates a folder named after the time. Runs that start in the same second get a number after it.
std::string claim_folder(const std::string& parent, const std::string& recipe) {
  make_directories(parent);
  const auto now = std::chrono::system_clock::now();
  for (int nth = 1;; ++nth) {
    const std::string path = parent + "/" + default_run_name(recipe, now, nth);
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) {
      flush_directory(parent);
      return path;
    }
    if (error) fail_io("cannot make the run folder", path, error.value());
  }
}

// A look of is_in_use() at the folder ends at once, so a lock that is still held then is a run's.
// False: another run has it, or the file system cannot lock; see errno.
bool lock_for_run(int lock) {
  constexpr auto kLooks = std::chrono::milliseconds(200), kPause = std::chrono::milliseconds(2);
  for (const Deadline deadline = Deadline::in(kLooks);;) {
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || deadline.passed()) return false;
    std::this_thread::sleep_for(kPause);
  }
}

// A run that goes on writes its configuration again, unless it is the same: the disk may be full.
void write_if_different(const std::string& path, const std::string& text) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) == text.size() && !error &&
      read_file(path, text.size()) == text)
    return;
  write_file_atomic(path, text);
}

}  // namespace

void check_run_name(const std::string& name) {
  constexpr std::size_t kLongest = 255;  // bytes of a name in Linux
  WEFT_REQUIRE(
      std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }),
      "the run's name has a control character, such as a new line; use letters and digits");
  WEFT_REQUIRE(name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
                   name != "." && name != "..",
               "the run's name '" + name + "' must be a single folder name");
  WEFT_REQUIRE(name.size() <= kLongest, "the run's name '" + name.substr(0, 40) + "...' has " +
                                            std::to_string(name.size()) +
                                            " bytes; a folder name has at most 255");
}

std::string recipe_in_name(const std::string& recipe) {
  std::string name = recipe.empty() ? "run" : recipe;
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !std::isalnum(byte) && c != '.' && c != '-' && c != '_') c = '-';
  }
  return name;
}

std::string default_run_name(const std::string& recipe, std::chrono::system_clock::time_point now,
                             int nth) {
  return local_time(now, "%Y-%m-%d-%H%M%S-") + (nth > 1 ? std::to_string(nth) + "-" : "") +
         recipe_in_name(recipe);
}

bool is_in_use(const std::string& path) {
  const UniqueFd lock(::open((path + "/" + kLock).c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return false;
  return errno == EWOULDBLOCK;
}

RunOwner owner_of_run(const std::string& path) {
  if (!is_in_use(path)) return {};
  std::istringstream text(read_file(path + "/" + kLock, 1000));
  std::string process, on;
  RunOwner owner;
  text >> process >> owner.pid >> on >> owner.host;
  return text && process == "process" && on == "on" && owner.pid > 0 ? owner : RunOwner{};
}

RunFolder::RunFolder(const RunFolderOptions& options, const Config& config) {
  const std::string& name = options.name;
  check_run_name(name);
  path_ = name.empty() && !options.resume ? claim_folder(options.parent, options.recipe)
                                          : options.parent + "/" + name;
  WEFT_REQUIRE(!options.resume || holds_something(path_), "there is no run to resume in " + path_);
  lock(options.resume);
  made_ = !options.resume;
  try {
    make_directories(checkpoint_path());
    if (options.resume)
      resumed_config_ = config.to_toml();
    else
      write_file_atomic(config_path(), config.to_toml());
    attach_log_file(log_path());
  } catch (...) {
    std::error_code ignored;
    if (made_) std::filesystem::remove_all(path_, ignored);
    throw;
  }
}

void RunFolder::commit() {
  committed_ = true;
  const auto text = std::exchange(resumed_config_, {});
  if (text) write_if_different(config_path(), *text);
}

// Checks again under the lock that a new run's folder is empty: two jobs with the same name may
// start at the same moment.
void RunFolder::lock(bool resume) {
  const auto refuse_used = [&] {
    WEFT_REQUIRE(resume || !holds_something(path_),
                 "the run folder " + path_ + " is not empty; choose another name, or resume");
  };
  const std::string file = path_ + "/" + kLock;
  if (!std::filesystem::exists(file)) refuse_used();
  make_directories(path_);
  lock_ = UniqueFd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) fail_io("cannot make the run folder's lock", file, errno);
  if (!lock_for_run(lock_.get())) {
    if (errno == EWOULDBLOCK) {
      throw Error(Errc::kUnavailable, "the run folder " + path_ + " is in use by " +
                                          read_file(file, 1000) +
                                          "; choose another name, or end that run");
    }
    log_warn("cannot lock the run folder " + path_ +
             " on this file system: a second run in it would not be detected");
  }
  refuse_used();
  const std::string text = owner();
  // Only a message shows the owner, so a full disk does not matter.
  if (::ftruncate(lock_.get(), 0) == 0 && ::write(lock_.get(), text.data(), text.size()) < 0)
    log_debug("cannot write the owner into " + file);
}

bool RunFolder::is_gone() const {
  struct stat held {
  }, there{};
  if (::fstat(lock_.get(), &held) != 0) return false;
  return ::stat((path_ + "/" + kLock).c_str(), &there) != 0 || there.st_ino != held.st_ino ||
         there.st_dev != held.st_dev;
}

RunFolder::~RunFolder() {
  detach_log_file();
  std::error_code ignored;
  if (made_ && !committed_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace weft::observe
