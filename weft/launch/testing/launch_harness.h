// For the launcher's tests: runs it in its own process and reads its output and files.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "weft/base/error.h"
#include "weft/launch/internal/rank_environment.h"
#include "weft/launch/internal/store_process.h"
#include "weft/launch/launcher.h"
#include "weft/launch/process.h"

namespace weft::launch {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// Field 22 of /proc/PID/stat. Empty if there is no such process, or it is dead but not reaped yet.
inline std::string start_time(const std::string& pid) {
  const auto stat = read_file("/proc/" + pid + "/stat");
  if (stat.empty()) return "";
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string field;
  for (int i = 0; i <= 19; ++i) {
    fields >> field;
    if (i == 0 && (field == "Z" || field == "X")) return "";
  }
  return field;
}

class Folder {
 public:
  Folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "weft_launcher_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

struct Result {
  int code = -1;
  std::string out, err;
};

// A running launcher that tests can signal. `folder` has its error file, logs and other files.
class Running {
 public:
  explicit Running(std::function<int(const std::string& folder)> call,
                   std::vector<std::string> environment = {})
      : out_(folder.path / "out"), err_(folder.path / "err") {
    const Fd out = create(out_), err = create(err_);
    ProcessOptions options;
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    options.environment = std::move(environment);
    options.environment.push_back("TMPDIR=" + temporary().string());
    options.environment.push_back("OMP_NUM_THREADS=1");
    options.call = [this, call = std::move(call)] { return call(folder.path.string() + "/"); };
    std::filesystem::create_directories(temporary());
    process_.emplace(options);
  }

  pid_t pid() const { return process_->pid(); }
  std::filesystem::path temporary() const { return folder.path / "tmp"; }
  // Waits until the ranks have made these files.
  void await(const std::vector<std::string>& names) {
    const auto deadline = Deadline::in(std::chrono::seconds(60));
    for (const auto& name : names) {
      while (!std::filesystem::exists(folder.path / name) && !process_->poll() &&
             !deadline.passed())
        ::usleep(500);
      ASSERT_TRUE(std::filesystem::exists(folder.path / name)) << name << "\n" << read_file(err_);
    }
  }
  Result end() {
    const auto status = process_->wait(Deadline::in(std::chrono::seconds(60)));
    return {status ? status->code() : -1, read_file(out_), read_file(err_)};
  }

  Folder folder;

 private:
  static Fd create(const std::filesystem::path& file) {
    return Fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
  std::filesystem::path out_, err_;
  std::optional<Process> process_;
};

inline LaunchOptions child(int ranks, std::vector<std::string> things) {
  LaunchOptions options;
  options.nproc_per_node = std::to_string(ranks);
  options.program = std::move(things);
  options.program.insert(options.program.begin(), WEFT_LAUNCH_CHILD);
  options.survivor_grace = milliseconds(100);
  return options;
}

inline Result run(const LaunchOptions& options, const std::vector<std::string>& environment = {}) {
  Running launcher([&](const std::string&) { return launch(options); }, environment);
  const auto result = launcher.end();
  EXPECT_TRUE(std::filesystem::is_empty(launcher.temporary())) << "temporary files are left";
  return result;
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

// What `torchrun --no-python --standalone --nproc-per-node 2 env` of torch 2.13 prints, for rank 1,
// but for host, port, id and file.
const std::map<std::string, std::string> kTorchrun = {
    {"RANK", "1"},
    {"WORLD_SIZE", "2"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"GROUP_RANK", "0"},
    {"GROUP_WORLD_SIZE", "1"},
    {"ROLE_NAME", "default"},
    {"ROLE_RANK", "1"},
    {"ROLE_WORLD_SIZE", "2"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_MAX_RESTARTS", "0"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};

}  // namespace weft::launch
