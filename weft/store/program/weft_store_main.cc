// weft_store: the store process of a node. The launcher starts it (launch/internal/
// job_store_process.h) and passes sockets, journal and secret as descriptors.
//
//   weft_store --clients-fd 3 --lifeline-fd 4 --journal-fd 5 --node 0 --founders 3
//              --peers-fd 6 --address 10.0.0.1:29400 --seed 10.0.0.2:29400 --secret-fd 7 --job NAME
//   weft_store --clients-fd 3 --lifeline-fd 4 --rendezvous etcd://10.0.0.1:2379/prefix
//
// It ends when its lifeline is closed, which also happens when its parent process ends.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <map>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/store/server.h"
#ifdef WEFT_STORE_ETCD
#include "weft/store/etcd/etcd_server.h"
#endif

namespace {

using weft::Errc;
using weft::Error;
using weft::UniqueFd;

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (name.rfind("--", 0) != 0 || i + 1 == argc)
        throw Error(Errc::kInvalidArgument, "'" + name + "' is not an option with a value");
      values_.emplace(name.substr(2), argv[i + 1]);
    }
  }

  std::string text(const std::string& name) {
    const auto found = values_.find(name);
    if (found == values_.end()) return "";
    std::string value = found->second;
    values_.erase(found);
    return value;
  }
  std::vector<std::string> texts(const std::string& name) {
    std::vector<std::string> all;
    for (std::string one = text(name); !one.empty(); one = text(name)) all.push_back(one);
    return all;
  }
  int number(const std::string& name, int otherwise) {
    const std::string value = text(name);
    if (value.empty()) return otherwise;
    const auto number = weft::parse_count(value);
    if (!number)
      throw Error(Errc::kInvalidArgument, "--" + name + " " + value + " is not a number");
    return *number;
  }
  UniqueFd fd(const std::string& name) { return UniqueFd(number(name, -1)); }
  void expect_all_used() const {
    if (!values_.empty())
      throw Error(Errc::kInvalidArgument, "--" + values_.begin()->first + " is not an option");
  }

 private:
  std::multimap<std::string, std::string> values_;
};

std::array<std::byte, 32> read_secret(const UniqueFd& fd) {
  std::array<std::byte, 32> secret;
  if (::pread(fd.get(), secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw Error(Errc::kInvalidArgument, "--secret-fd is not an open file of 32 bytes");
  return secret;
}

void serve_etcd([[maybe_unused]] Arguments& arguments, const std::string& url) {
#ifdef WEFT_STORE_ETCD
  weft::store::EtcdServerOptions options;
  options.url = url;
  options.clients = arguments.fd("clients-fd");
  options.lifeline = arguments.fd("lifeline-fd");
  arguments.expect_all_used();
  weft::store::serve_etcd(std::move(options));
#else
  throw Error(Errc::kUnavailable, "--rendezvous " + url +
                                      ": this weft was built without etcd; install "
                                      "libcpp-httplib-dev, and build it again");
#endif
}

void serve(Arguments& arguments) {
  if (const std::string url = arguments.text("rendezvous"); !url.empty())
    return serve_etcd(arguments, url);
  weft::store::ServerOptions options;
  options.clients = arguments.fd("clients-fd");
  options.lifeline = arguments.fd("lifeline-fd");
  options.journal = arguments.fd("journal-fd");
  options.node = static_cast<std::uint32_t>(arguments.number("node", 0));
  options.founders = static_cast<std::uint32_t>(arguments.number("founders", 1));
  options.peers = arguments.fd("peers-fd");
  options.address = arguments.text("address");
  options.seeds = arguments.texts("seed");
  options.job = arguments.text("job");
  if (const UniqueFd secret = arguments.fd("secret-fd")) options.secret = read_secret(secret);
  arguments.expect_all_used();
  if (!options.clients || !options.lifeline || !options.journal)
    throw Error(Errc::kInvalidArgument,
                "--clients-fd, --lifeline-fd and --journal-fd are needed; weft run starts this "
                "program with them");
  weft::store::serve(std::move(options));
}

}  // namespace

int main(int argc, char** argv) {
  // Requests to stop are for the launcher, which then closes the lifeline. They may come to all
  // processes of a job.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE})
    std::signal(number, SIG_IGN);
  try {
    Arguments arguments(argc, argv);
    serve(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "weft_store: " << weft::describe(error) << '\n';
    return weft::exit_code(weft::code_of(error));
  }
}
