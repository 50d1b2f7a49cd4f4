#include "weft/launch/live_page.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"
#include "weft/launch/internal/pipe.h"

namespace weft::launch {
namespace {

constexpr std::chrono::seconds kToListen{20};
constexpr const char* kLiveFd = "WEFT_LIVE_FD";

std::filesystem::path live_program() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft_live";
  if (!std::filesystem::exists(program)) {
    throw Error(Errc::kInvalidArgument,
                "--http: this weft was built without the live page; install libcpp-httplib-dev and "
                "prometheus-cpp-dev, and build it again",
                {"launch", -1, -1});
  }
  return program;
}

// What the program says first; empty where it ends without a word.
std::string first_line(int fd, Deadline deadline) {
  std::string line;
  for (char c = 0; !deadline.passed();) {
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, deadline.left_ms()) <= 0) continue;
    if (::read(fd, &c, 1) != 1 || c == '\n') break;
    line += c;
  }
  return line;
}

}  // namespace

LivePage::LivePage(const std::string& address) {
  const auto program = live_program();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(Errc::kUnavailable, std::string("--http: no socket: ") + std::strerror(errno));
  socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  auto output = internal::make_pipe("the live page's output");
  ProcessOptions options;
  options.argv = {program.string(), address};
  options.stdin_fd = theirs.get();
  options.stdout_fd = output[1].get();
  process_.emplace(options);
  output[1].reset();
  const std::string said = first_line(output[0].get(), Deadline::in(kToListen));
  if (said.rfind("error ", 0) == 0) throw Error(Errc::kInvalidArgument, said.substr(6));
  if (said.rfind("listening ", 0) != 0)
    throw Error(Errc::kUnavailable,
                "--http " + address + ": " + program.string() + " does not say where it listens");
  log_info("live page: " + said.substr(10));
}

void LivePage::use_here() const { ::setenv(kLiveFd, std::to_string(fd()).c_str(), 1); }

void show_run(const std::string& run_folder) noexcept {
  const auto fd = number_variable(kLiveFd);
  if (!fd) return;
  std::error_code ignored;
  const std::string line = "run " + std::filesystem::absolute(run_folder, ignored).string() + "\n";
  // A page that has ended is no reason to end a run.
  [[maybe_unused]] const auto sent = ::send(*fd, line.data(), line.size(), MSG_NOSIGNAL);
}

}  // namespace weft::launch
