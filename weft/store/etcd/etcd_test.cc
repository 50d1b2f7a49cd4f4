// The store in real etcd servers. Skipped where etcd is not installed (Debian: etcd-server).
#include "weft/store/etcd/etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "weft/base/file.h"
#include "weft/net/tcp/socket.h"
#include "weft/store/etcd/internal/change_feed.h"
#include "weft/store/etcd/internal/etcd_api.h"
#include "weft/store/testing/contract.h"
#include "weft/store/testing/store_processes.h"

namespace weft::store {
namespace etcd_test {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

bool has_etcd() { return ::access("/usr/bin/etcd", X_OK) == 0; }

// A port that was free a moment ago. etcd cannot take a bound socket.
int free_port() { return net::internal::bound_port(net::internal::listen_on("127.0.0.1", 0)); }

// etcd servers of one cluster, on loopback.
class Servers {
 public:
  explicit Servers(int count) {
    std::string cluster;
    for (int i = 0; i < count; ++i) {
      ports_.push_back({free_port(), free_port()});
      cluster += (i == 0 ? "" : ",") + name(i) + "=" + peer_url(i);
    }
    for (int i = 0; i < count; ++i) pids_.push_back(start(i, cluster));
  }
  ~Servers() {
    for (std::size_t i = 0; i < pids_.size(); ++i) kill(static_cast<int>(i));
  }

  std::string address() const {
    std::string text = "etcd://";
    for (std::size_t i = 0; i < ports_.size(); ++i)
      text += (i == 0 ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(ports_[i].client);
    return text + "/test/run";
  }
  EtcdUrl url() const { return parse_etcd_url(address()); }
  void kill(int server) {
    pid_t& pid = pids_[static_cast<std::size_t>(server)];
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }
  // The server that leads the cluster.
  int leader() const {
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      EtcdUrl one;
      one.endpoints = {{"127.0.0.1", ports_[i].client}};
      internal::EtcdApi api(one);
      const auto status =
          api.call("/v3/maintenance/status", nlohmann::json::object(), in_time()).body;
      if (internal::number_in(status, "leader") ==
          internal::number_in(status["header"], "member_id"))
        return static_cast<int>(i);
    }
    throw std::runtime_error("no etcd server leads");
  }

 private:
  struct Ports {
    int client, peer;
  };
  static std::string name(int i) { return "server" + std::to_string(i); }
  std::string client_url(int i) const {
    return "http://127.0.0.1:" + std::to_string(ports_[static_cast<std::size_t>(i)].client);
  }
  std::string peer_url(int i) const {
    return "http://127.0.0.1:" + std::to_string(ports_[static_cast<std::size_t>(i)].peer);
  }

  pid_t start(int i, const std::string& cluster) const {
    std::vector<std::string> arguments = {
        "/usr/bin/etcd", "--name", name(i), "--data-dir", folder_ / name(i), "--listen-client-urls",
        client_url(i), "--advertise-client-urls", client_url(i), "--listen-peer-urls", peer_url(i),
        "--initial-advertise-peer-urls", peer_url(i), "--initial-cluster", cluster, "--logger",
        "zap", "--log-level", "error", "--heartbeat-interval", "50", "--election-timeout", "500",
        // The data of a test need not survive a power cut.
        "--unsafe-no-fsync"};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::freopen("/dev/null", "w", stderr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  TempDir folder_;
  std::vector<Ports> ports_;
  std::vector<pid_t> pids_;
};

TEST(EtcdSlow, KeepsTheContractOfAStore) {
  if (!has_etcd()) GTEST_SKIP() << "etcd is not installed; install etcd-server";
  const Servers servers(1);
  Etcd store(servers.url());
  expect_values(store);
  expect_swaps(store);
  expect_listings(store);
  expect_waits(store);
  expect_leases(store, 1s);
}

TEST(EtcdSlow, MakesAChangeOnceIfItsRequestIsSentAgain) {
  if (!has_etcd()) GTEST_SKIP() << "etcd is not installed; install etcd-server";
  const Servers servers(1);
  const internal::Request request{
      .op = internal::Op::kAdd, .client = 7, .sequence = 1, .key = "n", .number = 1};
  Etcd first(servers.url()), second(servers.url());
  const auto never = [] { return false; };
  const auto answer = first.execute(request, in_time(), never);
  EXPECT_EQ(second.execute(request, in_time(), never), answer);  // from another store process
  EXPECT_EQ(first.get("n", in_time()).value().bytes, "1");
}

TEST(EtcdSlow, ServesRanksThroughTheStoreProcessOfTheirNode) {
  if (!has_etcd()) GTEST_SKIP() << "etcd is not installed; install etcd-server";
  const Servers servers(1);
  StoreProcess process(
      {.program = WEFT_STORE_PROGRAM, .more = {"--rendezvous", servers.address()}});
  Client client(process.socket());
  expect_values(client);
  expect_waits(client);
  expect_leases(client, 1s);  // several grants of one client
  const Revision since = client.set({"a", "1"}, in_time());
  std::jthread waiter([&] { EXPECT_TRUE(client.wait("a", since, in_time())); });
  process.kill();
  process.start();
  EXPECT_EQ(client.get("a", in_time()).value().bytes, "1");
  client.set({"a", "2"}, in_time());
  waiter.join();
  EXPECT_EQ(process.hang_up(), 0);
}

// Clients go on, and nothing that was acknowledged is lost.
TEST(EtcdSlowTiming, ClientsGoOnWithinTwoSecondsWhenTheLeaderIsKilled) {
  if (!has_etcd()) GTEST_SKIP() << "etcd is not installed; install etcd-server";
  Servers servers(3);
  Etcd store(servers.url());
  std::int64_t done = 0;
  Clock::duration longest{};
  for (int i = 0; i < 60; ++i) {
    if (i == 20) servers.kill(servers.leader());
    const auto start = Clock::now();
    EXPECT_EQ(store.add("count", 1, in_time()), ++done);
    store.set({"key/" + std::to_string(i), "value"}, in_time());
    if (i > 0) longest = std::max(longest, Clock::now() - start);
  }
  EXPECT_LT(longest, 2s);
  EXPECT_EQ(store.get("count", in_time()).value().bytes, std::to_string(done));
  EXPECT_EQ(store.list("key/", in_time()).items.size(), 60u);
}

TEST(ChangeFeed, PausesAfterAWatchThatBringsNothing) {
  const auto listener = net::internal::listen_on("127.0.0.1", 0);
  std::atomic<int> tries = 0;
  const std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd ready{listener.get(), POLLIN, 0};
      if (::poll(&ready, 1, 5) <= 0) continue;
      if (UniqueFd(::accept(listener.get(), nullptr, nullptr))) ++tries;
    }
  });
  EtcdUrl url;
  url.endpoints = {{"127.0.0.1", net::internal::bound_port(listener)}};
  internal::ChangeFeed feed(url, "prefix/");
  EXPECT_FALSE(feed.wait("", 0, Deadline::in(50ms), [] { return false; }));
  EXPECT_GT(tries, 0);
  EXPECT_LT(tries, 10);
}

TEST(EtcdUrl, NamesServersAndAPrefix) {
  const EtcdUrl url = parse_etcd_url("etcd://a:1,[::1]:2,b/jobs/7");
  ASSERT_EQ(url.endpoints.size(), 3u);
  EXPECT_EQ(url.endpoints[0].text(), "a:1");
  EXPECT_EQ(url.endpoints[1].text(), "[::1]:2");
  EXPECT_EQ(url.endpoints[2].text(), "b:2379");
  EXPECT_EQ(url.prefix, "jobs/7");
  EXPECT_EQ(parse_etcd_url("etcd://a").prefix, "weft");
  for (const char* text : {"http://a", "etcd://", "etcd://a:0", "etcd://a:x", "etcd://a,,b"})
    expect_refused([&] { parse_etcd_url(text); }, Errc::kBadConfig, "--rendezvous");
}

// The test vectors of RFC 4648, section 10.
TEST(Base64, EncodesAndDecodesTheVectorsOfItsStandard) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(internal::to_base64(bytes), text);
    EXPECT_EQ(internal::from_base64(text), bytes);
  }
  expect_refused([] { internal::from_base64("Z?=="); }, Errc::kCorrupt, "base64");
}

}  // namespace etcd_test
}  // namespace weft::store
