// How the supervisor runs the parameter servers of this node (servers.h).
#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "weft/base/error.h"
#include "weft/base/process/start.h"
#include "weft/launch/internal/meeting_point.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/sibling_program.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

// Where workers of other hosts reach the servers of this node.
std::string server_interface(const Job& job) {
  const char* const asked = std::getenv("WEFT_INTERFACE");
  if (asked != nullptr && *asked != '\0') return asked;
  return job.plan ? own_host(job.plan->endpoint_host, job.plan->endpoint_port) : "127.0.0.1";
}

}  // namespace

// A folder for the directory of the servers of one node. That of the logs is kept, so it has none.
void Supervisor::make_servers_folder() {
  if (job_.servers == 0) return;
  server_program_ = sibling_program(options_.servers.program, "weft_ps", "weft_ps_server");
  if (job_.plan) return;
  std::string folder = (folder_ / "servers").string();
  if (keep_folder_) {
    folder = temporary_folder() + "/weft_servers_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr)
      throw Error(Errc::kUnavailable,
                  "--servers: cannot make a folder " + folder + ": " + std::strerror(errno));
  }
  job_.servers_folder = folder;
}

Servers::Options Supervisor::serving() {
  return {.has_copies = job_.server_backup,
          .start = [this](int server) { return start_server(server); },
          .note = [this](const std::string& text) { note(text); },
          .on_end = [this](pid_t group) { store_process_->forget(group); }};
}

ServerProcess Supervisor::start_server(int server) {
  const Fd secret = reopen(secret_), nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto [link, its_link] = agent::Link::make();
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  ProcessOptions process;
  process.before = [this] { store_process_->guard(::getpid()); };
  process.argv = {server_program_,
                  "--server",
                  text(server),
                  "--servers",
                  text(job_.servers),
                  "--backup",
                  job_.server_backup ? "1" : "0",
                  "--memory-mb",
                  text(options_.servers.memory_mb),
                  "--interface",
                  server_interface(job_),
                  "--stay",
                  "1"};
  process.environment =
      rank_environment(options_, job_, 0,
                       {situation_.restarts, "", secret.get(), -1, its_link.fd(), false, "", true,
                        -1, following_ ? following_->store->socket() : ""});
  for (const char* none : {"RANK=", "LOCAL_RANK=", "ROLE_RANK="})
    process.environment.emplace_back(none);  // the last entry of a name counts
  process.inherit = {its_link.fd()};
  if (secret) process.inherit.push_back(secret.get());
  process.stdin_fd = nothing.get();
  auto out = make_pipe("a server's output"), err = make_pipe("a server's output");
  process.stdout_fd = out[1].get();
  process.stderr_fd = err[1].get();
  Process started(process);
  return {std::move(started), std::move(link),
          relay_of_server(server, STDOUT_FILENO, std::move(out[0])),
          relay_of_server(server, STDERR_FILENO, std::move(err[0]))};
}

LineRelay Supervisor::relay_of_server(int server, int stream, Fd pipe) {
  LineRelay::Options options;
  options.console = stream;
  options.prefix = "[server " + std::to_string(server) + "] ";
  if (keep_folder_) {
    const auto folder = folder_ / ("attempt_" + std::to_string(situation_.restarts)) /
                        ("server_" + std::to_string(server));
    std::filesystem::create_directories(folder);
    options.log = open_log(folder / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log"), true);
  }
  return LineRelay(std::move(pipe), std::move(options));
}

// On one node, all servers. On several, those that the plan places here.
void Supervisor::run_servers() {
  std::set<int> wanted;
  if (following_) {
    const JobPlan& plan = following_->orders.plan;
    for (const auto& [server, node] : plan.servers) wanted.insert(server);
    situation_.plan->serves = !wanted.empty();
  } else {
    for (int server = 0; server < job_.servers; ++server) wanted.insert(server);
  }
  servers_.run(wanted, Deadline::Clock::now());
}

void Supervisor::look_after_servers() {
  servers_.look(Deadline::Clock::now());
  if (!servers_.failure() || situation_.servers_lost) return;
  situation_.servers_lost = servers_.failure();
  if (following_) return;  // the plan ends the job, on all nodes
  note(*situation_.servers_lost + ": the job ends");
  // Ranks that wait for a lost server would use up the whole time.
  if (!situation_.grace_end) situation_.grace_end = Deadline::Clock::now() + policy_.survivor_grace;
}

int Supervisor::end_of_servers() const {
  note("the job has ended: " + *situation_.servers_lost);
  return exit_code(Errc::kPeerLost);
}

}  // namespace weft::launch::internal
