#include "weft/launch/internal/node_reports.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include "weft/launch/internal/store_process.h"

namespace weft::launch::internal {
namespace {

Situation of_node_1() {
  const Time now = std::chrono::steady_clock::now();
  Situation mine;
  mine.first_rank = 2;
  mine.ranks = {RankEnd{{true, SIGKILL}, now, Cause{"Timeout: \xff", Errc::kTimeout, 1}, true},
                std::nullopt};
  mine.stopped = {1};
  return mine;
}

// A listening socket that nobody serves, and its port.
std::pair<Fd, int> silent_host() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listener.get(), any, length), 0);
  EXPECT_EQ(::listen(listener.get(), 8), 0);
  EXPECT_EQ(::getsockname(listener.get(), any, &length), 0);
  return {std::move(listener), ntohs(address.sin_port)};
}

Situation whole() {
  Situation whole;
  whole.ranks.assign(4, std::nullopt);
  return whole;
}

TEST(NodeReports, SurviveTheWayAsText) {
  const Situation mine = of_node_1();
  Situation all = whole();
  add_text(to_text(mine), all);
  EXPECT_FALSE(all.ranks[0] || all.ranks[1] || all.ranks[3]);
  ASSERT_TRUE(all.ranks[2]);
  const RankEnd& end = *all.ranks[2];
  EXPECT_TRUE(end.status.signaled);
  EXPECT_EQ(end.status.value, SIGKILL);
  EXPECT_TRUE(end.told);
  ASSERT_TRUE(end.cause);
  EXPECT_EQ(end.cause->code, Errc::kTimeout);
  EXPECT_EQ(end.cause->peer, 1);
  EXPECT_LT(std::chrono::abs(end.when - mine.ranks[0]->when), std::chrono::seconds(1));
  EXPECT_EQ(all.stopped, std::set<int>{3});
}

TEST(NodeReports, LeaveTheRanksUnknownIfTheTextIsNotAReport) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string(R"({"first_rank": 0})"),
        std::string(R"({"first_rank": 4, "ranks": [{}], "stopped": []})"),
        std::string(R"({"first_rank": -1, "ranks": [{"signaled": 1}], "stopped": []})")}) {
    Situation all = whole();
    add_text(text, all);
    for (const auto& end : all.ranks) EXPECT_FALSE(end) << text;
  }
}

// Rank 1 failed first, and the clock of its node is 10 s ahead.
TEST(NodeReports, NameTheSameRankOnNodesWhoseClocksDiffer) {
  StoreProcess::Options hosting;
  hosting.host = "127.0.0.1";
  const Fd listener = listen_for_store(hosting.host, 0, &hosting.port);
  hosting.listener = listener.get();
  const StoreProcess store(hosting);
  const auto failed_first = [&](int node, std::chrono::seconds age, std::chrono::seconds error) {
    Situation mine;
    mine.first_rank = node;
    mine.ranks = {RankEnd{{true, SIGSEGV}, std::chrono::steady_clock::now() - age}};
    NodeReportsOptions options;
    options.store_host = hosting.host;
    options.store_port = hosting.port;
    options.prefix = "job";
    options.nodes = 2;
    options.node = node;
    options.wait = std::chrono::seconds(30);
    options.clock_error = error;
    return first_failure(exchange_reports(mine, options)).value_or(-1);
  };
  ProcessOptions options;
  options.call = [&] { return failed_first(1, std::chrono::seconds(2), std::chrono::seconds(10)); };
  Process other(options);
  EXPECT_EQ(failed_first(0, std::chrono::seconds(0), std::chrono::seconds(0)), 1);
  const auto end = other.wait(Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->describe(), "exit code 1") << "the rank that it names";
}

TEST(NodeReportsSlow, AreGivenUpIfTheStoreNeverAnswers) {
  // A host that accepts connections and says nothing, as a stopped store does.
  const auto [listener, port] = silent_host();
  NodeReportsOptions options{.store_host = "127.0.0.1", .store_port = port, .prefix = "job"};
  options.nodes = 2;
  options.node = 1;
  options.wait = std::chrono::milliseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  const Situation seen = exchange_reports(of_node_1(), options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(seen.first_rank, of_node_1().first_rank);
}

}  // namespace
}  // namespace weft::launch::internal
