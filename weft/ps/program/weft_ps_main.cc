// weft_ps: one server of a parameter server, as a process of its own. Start it in a job of
// `weft run`, whose store tells the workers where it is:
//
//   weft run -n 5 sh -c 'case $RANK in 0|1) exec weft_ps --server $RANK --servers 2;; esac
//                        exec ./worker'
//
// It ends when it has had workers, all of them have left and no client is connected, or by SIGTERM.
//
// `weft run --servers N` starts these programs itself, with --stay 1. On the link to the launcher
// (weft/rank_link/link.h) a server says "serving", "replicated" or "alone" when this changes, and
// "lost SHARD".
#include <pthread.h>
#include <sys/prctl.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

#include "weft/base/text/numbers.h"
#include "weft/ps/job.h"
#include "weft/ps/server.h"
#include "weft/rank_link/messages.h"

namespace {

using weft::Errc;
using weft::Error;
using namespace std::chrono_literals;

constexpr const char* kHelp =
    R"(weft_ps --server I --servers N [OPTION VALUE]…: one server of a parameter server

  --server I        number of this server, from 0
  --servers N       number of servers
  --name NAME       name of the parameter server in the job's store (default: default)
  --store SOCKET    store of the job (default: WEFT_STORE, which weft run sets)
  --backup 0        without a backup of each shard (default: 1)
  --memory-mb N     most memory of a shard (default: 4096)
  --folder PATH     folder for tables whose rows lie in files (default: such tables are refused)
  --folder-mb N     most bytes of these files, of a shard (default: 65536)
  --interface ADDR  where other hosts connect: an address, a network or an interface
                    (default: 127.0.0.1); none: only processes of this host
  --advertise HOST  host that others connect to (default: the bound address)
  --port N          port (default: a free one)
  --stay 1          do not end after the workers: only by SIGTERM (default: 0)

The secret of the job comes from WEFT_SECRET_FD, which weft run sets.
)";

class Words {
 public:
  Words(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (name.rfind("--", 0) != 0 || i + 1 == argc)
        throw Error(Errc::kInvalidArgument, "'" + name + "' is not an option with a value");
      values_[name.substr(2)] = argv[i + 1];
    }
  }
  std::string text(const std::string& name, const std::string& otherwise) {
    const auto found = values_.find(name);
    if (found == values_.end()) return otherwise;
    std::string value = found->second;
    values_.erase(found);
    return value;
  }
  std::int64_t number(const std::string& name, const std::string& otherwise) {
    const std::string value = text(name, otherwise);
    const auto number = weft::parse_count<std::int64_t>(value);
    if (!number)
      throw Error(Errc::kInvalidArgument,
                  "--" + name + " needs a number of at least 0, not '" + value + "'");
    return *number;
  }
  void expect_all_used() const {
    if (!values_.empty())
      throw Error(Errc::kInvalidArgument,
                  "--" + values_.begin()->first + " is not an option; see weft_ps --help");
  }

 private:
  std::map<std::string, std::string> values_;
};

// Tells the launcher, if one watches this server, how its shards are.
class StateReports {
 public:
  void look(const weft::ps::Server& server) {
    if (!serves_) weft::rank_link::tell_launcher(weft::rank_link::Serving{});
    serves_ = true;
    if (server.is_replicated() != replicated_) {
      replicated_ = !replicated_;
      if (replicated_) weft::rank_link::tell_launcher(weft::rank_link::Replicated{});
      if (!replicated_) weft::rank_link::tell_launcher(weft::rank_link::Alone{});
    }
    const auto lost = server.lost_shard();
    if (lost && !lost_)
      weft::rank_link::tell_launcher(weft::rank_link::ShardLost{static_cast<int>(*lost)});
    lost_ = lost_ || lost;
  }

 private:
  bool serves_ = false, replicated_ = false, lost_ = false;
};

void serve(Words words) {
  const auto directory =
      weft::ps::job_directory(words.text("name", "default"), words.text("store", ""));
  weft::ps::ServerOptions options;
  options.directory = directory.get();
  options.server = static_cast<std::uint32_t>(words.number("server", "0"));
  options.servers = static_cast<std::uint32_t>(words.number("servers", "1"));
  options.backup = words.number("backup", "1") != 0;
  options.memory_mb = words.number("memory-mb", "4096");
  options.folder = words.text("folder", "");
  options.folder_mb = words.number("folder-mb", "65536");
  options.interface = words.text("interface", "127.0.0.1");
  if (options.interface == "none") options.interface.clear();
  options.advertise = words.text("advertise", "");
  options.port = static_cast<int>(words.number("port", "0"));
  options.secret = weft::ps::job_secret();
  const bool stays = words.number("stay", "0") != 0;
  words.expect_all_used();
  ::prctl(PR_SET_NAME, ("weft server " + std::to_string(options.server)).c_str());

  // Before the server has its thread, so that only this thread gets the signals.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&ends, number);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const weft::ps::Server server(std::move(options));
  StateReports reports;
  reports.look(server);
  for (const timespec pause{0, 50'000'000}; ::sigtimedwait(&ends, nullptr, &pause) < 0;) {
    if (const auto failure = server.failure()) throw Error(*failure);
    reports.look(server);
    if (server.is_over() && !stays) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::cout << kHelp;
    return 0;
  }
  try {
    serve(Words(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "weft_ps: " << weft::describe(error) << '\n';
    return weft::exit_code(weft::code_of(error));
  }
}
