#include "weft/launch/internal/job_store_process.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/launch/internal/sibling_program.h"

namespace weft::launch::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kToEnd = 1s;

Fd make_journal() {
  Fd fd(::memfd_create("weft-store-journal", MFD_CLOEXEC));
  if (!fd)
    throw Error(Errc::kUnavailable,
                std::string("no memory for the journal of the store: ") + std::strerror(errno));
  return fd;
}

}  // namespace

JobStoreProcess::JobStoreProcess(Options options)
    : options_(std::move(options)), listener_(store::listen_locally()), journal_(make_journal()) {
  options_.program = sibling_program(options_.program, "weft_store", "weft_store");
  start(Deadline::Clock::now());
}

JobStoreProcess::~JobStoreProcess() {
  lifeline_.reset();
  if (process_) process_->wait(Deadline::in(kToEnd));
}

std::vector<std::string> JobStoreProcess::command_line(int lifeline) const {
  std::vector<std::string> line = {options_.program, "--clients-fd",
                                   std::to_string(listener_.fd.get()), "--lifeline-fd",
                                   std::to_string(lifeline)};
  const auto add = [&](const char* name, const std::string& value) {
    line.emplace_back(name);
    line.push_back(value);
  };
  if (!options_.rendezvous.empty()) {
    add("--rendezvous", options_.rendezvous);
    return line;
  }
  add("--journal-fd", std::to_string(journal_.get()));
  add("--node", std::to_string(options_.node));
  add("--founders", std::to_string(options_.nodes));
  if (!options_.job.empty()) add("--job", options_.job);
  if (options_.secret_fd >= 0) add("--secret-fd", std::to_string(options_.secret_fd));
  if (!options_.listener) return line;
  add("--peers-fd", std::to_string(options_.listener.get()));
  add("--address", options_.address);
  for (const std::string& seed : options_.seeds) add("--seed", seed);
  return line;
}

std::vector<int> JobStoreProcess::descriptors(int lifeline) const {
  std::vector<int> all = {listener_.fd.get(), journal_.get(), lifeline};
  for (const int fd : {options_.secret_fd, options_.listener.get()}) {
    if (fd >= 0) all.push_back(fd);
  }
  return all;
}

void JobStoreProcess::start(Time now) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(Errc::kUnavailable,
                std::string("no socket for the store process: ") + std::strerror(errno));
  lifeline_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  ProcessOptions process;
  process.argv = command_line(theirs.get());
  process.inherit = descriptors(theirs.get());
  process_.emplace(process);
  restarts_.began(now);
}

std::optional<JobStoreProcess::Time> JobStoreProcess::tend(Time now) {
  if (process_) {
    const auto ended = process_->poll();
    if (!ended) return std::nullopt;
    restarts_.ended(now);
    log_warn("the store process of this node ended with " + ended->describe() +
             " and is started again; ranks that ask it wait");
    process_.reset();
  }
  if (const auto until = restarts_.pause(now)) return until;
  return restarts_.try_start(now, [&] { start(now); });
}

}  // namespace weft::launch::internal
