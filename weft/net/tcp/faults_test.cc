// Faults of the TCP transport: foreign connections, damaged streams, dead and silent peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <random>
#include <utility>

#include "weft/base/testing/in_time.h"
#include "weft/net/tcp/handshake.h"
#include "weft/net/tcp/testing/adversary.h"
#include "weft/net/testing/trials.h"

namespace weft::net::internal {
namespace faults_test {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kMemoryBound = std::size_t{16} << 20;

TcpOptions job() {
  TcpOptions options;
  options.job = "attacked";
  options.secret = secret_of('K');
  return options;
}

// Checks that the group works after everything that happened before.
void expect_works(const Group& group) {
  std::array<std::byte, 5> out{std::byte{1}, std::byte{2}}, in{};
  group[0]->send(1, 1, out, soon());
  group[1]->recv(0, 1, in, soon());
  EXPECT_EQ(in, out);
}

std::string random_bytes(std::size_t size) {
  std::mt19937_64 random(11);
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(Strangers, AreRejectedAndTheGroupStillForms) {
  Header huge;
  huge.total = std::uint64_t{1} << 63;
  huge.offset = huge.total - 1;
  huge.length = ~std::uint32_t{0};
  const HeaderBytes claim = encode(huge);
  const std::string speeches[] = {
      random_bytes(5000),
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + random_bytes(500),
      std::string(reinterpret_cast<const char*>(claim.data()), claim.size()) + random_bytes(1000),
      std::string(8, '\xff') + std::string(8, '\x7f'),
  };
  const auto before = resident_bytes();
  AttackedGroup attacked(job());
  for (const std::string& speech : speeches) {
    Stranger stranger(attacked.address());
    stranger.send(speech);
    EXPECT_TRUE(stranger.closed_within(2000));
  }
  Group group = attacked.complete();
  expect_works(group);
  ASSERT_FALSE(attacked.refused().empty());
  EXPECT_THAT(
      attacked.refused().front(),
      HasSubstr("rank 0 refused a connection from 127.0.0.1: it did not send weft's handshake"));
  EXPECT_LT(resident_bytes(), before + kMemoryBound);
}

TEST(StrangersTiming, SlowSendersAreDisconnectedAfterTheHandshakeTimeout) {
  TcpOptions options = job();
  options.handshake_timeout = 60ms;
  expect_within(2s, [&](SlowestRank& slowest) {
    AttackedGroup attacked(options);
    Stranger dripping(attacked.address());
    const Hello hello = make_hello({"attacked", 1, 2, 3, 0, secret_of('K')}, 0, 0, fresh_nonce());
    std::size_t sent = 0;
    const auto begin = Deadline::Clock::now();
    while (sent < hello.size() && dripping.send(std::span(hello).subspan(sent, 1)) &&
           !dripping.closed_within(5))
      ++sent;
    EXPECT_LT(sent, hello.size());
    slowest.report_since(begin);
    expect_works(attacked.complete());
  });
}

void attack_with_idle(std::size_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < count + 2048)
    GTEST_SKIP() << "the limit of descriptors, " << limit.rlim_cur << ", is too low";
  expect_works(AttackedGroup(job()).complete());  // makes what the process keeps
  const auto before = resident_bytes();
  const auto descriptors = open_descriptors();
  {
    AttackedGroup attacked(job());
    std::vector<Stranger> idle;
    idle.reserve(count);
    for (std::size_t i = 0; i < count; ++i) idle.emplace_back(attacked.address());
    const Group group = attacked.complete();
    expect_works(group);
    EXPECT_LT(resident_bytes(), before + kMemoryBound);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Strangers, AThousandIdleConnectionsBlockNoRank) { attack_with_idle(1000); }
TEST(StrangersSlow, TenThousandIdleConnectionsBlockNoRank) { attack_with_idle(10'000); }

TEST(Impostors, GetTheReasonForTheirRejectionAndNeverSeeTheSecret) {
  struct Case {
    const char* what;
    void (*change)(TcpOptions&);
    Errc code;
    const char* says;
  };
  const Case cases[] = {
      {"secret", [](TcpOptions& o) { o.secret = secret_of('Q'); }, Errc::kBadConfig, "secret"},
      {"no secret", [](TcpOptions& o) { o.secret.reset(); }, Errc::kBadConfig, "secret"},
      {"job", [](TcpOptions& o) { o.job = "other"; }, Errc::kBadConfig, "another job"},
      {"epoch", [](TcpOptions& o) { o.epoch = 9; }, Errc::kUnavailable, "another epoch"},
      {"streams", [](TcpOptions& o) { o.streams = 4; }, Errc::kBadConfig, "streams"},
  };
  for (const Case& c : cases) {
    AttackedGroup attacked(job());
    TcpOptions wrong = job();
    c.change(wrong);
    const Error error = error_of([&] { attacked.join(wrong, attacked.address()); });
    EXPECT_EQ(error.code(), c.code) << c.what;
    EXPECT_THAT(error.what(), HasSubstr(c.says));
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    expect_works(attacked.complete());
    ASSERT_FALSE(attacked.refused().empty()) << c.what;
    EXPECT_THAT(attacked.refused().front(), HasSubstr(c.says));
    for (const std::string& line : {attacked.refused().front(), std::string(error.what())}) {
      EXPECT_THAT(line, Not(HasSubstr("KKKK")));
      EXPECT_THAT(line, Not(HasSubstr("QQQQ")));
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
}

// Sends a rank's part of a handshake, to the end.
void shake_hands(Stranger& connection, const Identity& me) {
  const Hello hello = make_hello(me, 0, 0, fresh_nonce());
  Reply reply;
  Done done;
  ASSERT_TRUE(connection.send(hello) && connection.receive(reply));
  ASSERT_TRUE(connection.send(make_proof(me, hello, reply)) && connection.receive(done));
  ASSERT_EQ(check_done(done), Verdict::kWelcome);
}

TEST(Handshakes, AConnectionThatItsRankHasClosedGivesWayToTheNextOne) {
  AttackedGroup group(job());
  {
    Stranger first(group.address());
    shake_hands(first, {"attacked", 1, 2, 3, 0, secret_of('K')});
  }
  expect_works(group.complete());
}

TEST(Impostors, WithAReplayedHandshakeAreRejected) {
  const Identity me{"attacked", 1, 2, 3, 0, secret_of('K')};
  const Hello hello = make_hello(me, 0, 0, fresh_nonce());
  Proof proof;
  {
    TcpOptions brief = job();
    brief.connect_timeout = 1s;
    AttackedGroup recorded(brief);
    Stranger honest(recorded.address());
    Reply reply;
    Done done;
    ASSERT_TRUE(honest.send(hello) && honest.receive(reply));
    ASSERT_EQ(check_reply(me, hello, reply), Verdict::kWelcome);
    proof = make_proof(me, hello, reply);
    ASSERT_TRUE(honest.send(proof) && honest.receive(done));
    ASSERT_EQ(check_done(done), Verdict::kWelcome);
    // Rank 1 is connected now, so a second rank 1 is rejected.
    EXPECT_THAT(error_of([&] { recorded.join(job(), recorded.address()); }).what(),
                HasSubstr("connected already"));
    EXPECT_THAT(recorded.abandon().what(), HasSubstr("rank 1"));
  }
  AttackedGroup attacked(job());
  Stranger replaying(attacked.address());
  Reply reply;
  Done done;
  ASSERT_TRUE(replaying.send(hello) && replaying.receive(reply) && replaying.send(proof) &&
              replaying.receive(done));
  EXPECT_EQ(check_done(done), Verdict::kSecret);
  Group group = attacked.complete();
  expect_works(group);
}

TEST(DamagedStreams, AFlippedBitInPayloadOrHeaderEndsTheGroupAsCorruptNamingTheSender) {
  for (const int at : {-1, 20}) {
    AttackedGroup attacked(job());
    Proxy proxy(attacked.address());
    Group group = attacked.complete(proxy.address());
    expect_works(group);
    proxy.flip(at);
    run_ranks(2, [&](int rank) {
      std::vector<std::byte> bytes(1000);
      if (rank == 1) {
        group[1]->send(0, 1, bytes, soon());
        const Error error = error_of([&] { group[1]->recv(0, 1, bytes, soon()); });
        EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("rank 0 failed"));
      } else {
        const Error error = error_of([&] { group[0]->recv(1, 1, bytes, soon()); });
        EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
        EXPECT_EQ(error.context().peer, 1);
        EXPECT_THAT(error.what(), HasSubstr("checksum"));
      }
    });
    EXPECT_EQ(proxy.flipped(), 1);
    group.clear();
  }
}

TEST(DamagedStreams, APeerGetsACauseThatIsFoundAfterTheGroupHasFailed) {
  for (const auto& [code, failed_before] :
       {std::pair(Errc::kCorrupt, false), std::pair(Errc::kCorrupt, true),
        std::pair(Errc::kTimeout, false), std::pair(Errc::kTimeout, true)}) {
    AttackedGroup attacked(job());
    Group group = attacked.complete();
    if (failed_before) group[1]->fail(Error(Errc::kAborted, "left in the midst of a step"));
    group[1]->fail(Error(code, "frame 5 instead of frame 7"));
    group[1].reset();
    std::array<std::byte, 8> in;
    const Error error = error_of([&] { group[0]->recv(1, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rank 1 failed"), HasSubstr("frame 5 instead of frame 7")));
  }
}

TEST(DamagedStreamsTiming, ACutConnectionIsALostPeerOnBothSidesWithinTwoSeconds) {
  for (const int which : {-1, 0, 2}) {  // all, one data stream, the control stream
    expect_within(2s, [&](SlowestRank& slowest) {
      AttackedGroup attacked(job());
      Proxy proxy(attacked.address());
      Group group = attacked.complete(proxy.address());
      expect_works(group);
      const auto begin = Deadline::Clock::now();
      proxy.cut(which);
      run_ranks(2, [&](int rank) {
        std::array<std::byte, 8> in;
        const Error error = error_of([&] { group[rank]->recv(1 - rank, 1, in, soon()); });
        slowest.report_since(begin);
        // A rank may first learn that the other one has aborted because of the cut.
        const bool named = error.code() == Errc::kPeerLost ||
                           std::string(error.what()).find("gave this rank up") != std::string::npos;
        EXPECT_TRUE(named) << error.what();
      });
      group.clear();
    });
  }
}

// Ranks 0 and 1 are threads. Rank 2 is a separate process, which sends one byte to each and then
// receives forever.
class DeadPeer : public testing::Test {
 protected:
  // Ends the process of an earlier call.
  void start(TcpOptions options) {
    end();
    options.world = 3;
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(be_rank_two(options, pipe[0]));
    }
    ::close(pipe[0]);
    group_.resize(2);
    AddressBook book(2);
    run_ranks(2, [&](int rank) {
      TcpOptions mine = options;
      mine.rank = rank;
      const auto exchange = book.exchange(rank);
      mine.exchange = [&, rank](const std::string& address) {
        auto all = exchange(address);
        const std::string line = all[0] + "\n" + all[1] + "\n";
        const bool told = rank != 0 || ::write(pipe[1], line.data(), line.size()) ==
                                           static_cast<ssize_t>(line.size());
        EXPECT_TRUE(told);
        all.emplace_back();  // no lower rank dials rank 2
        return all;
      };
      group_[rank] = connect_tcp(mine);
      std::byte hello{};
      group_[rank]->recv(2, 1, {&hello, 1}, soon());
    });
    ::close(pipe[1]);
  }

  static int be_rank_two(TcpOptions options, int from) {
    options.rank = 2;
    options.exchange = [&](const std::string& mine) {
      std::vector<std::string> all(1);
      for (char c = 0; all.size() < 3 && ::read(from, &c, 1) == 1;) {
        if (c == '\n') {
          all.emplace_back();
        } else {
          all.back() += c;
        }
      }
      all[2] = mine;
      return all;
    };
    try {
      const auto endpoint = connect_tcp(options);
      std::byte byte{};
      for (const int peer : {0, 1}) endpoint->send(peer, 1, {&byte, 1}, soon());
      endpoint->recv(0, 99, {&byte, 1}, Deadline::in(60s));
    } catch (...) {
      return 1;
    }
    return 0;
  }

  void end() {
    group_.clear();
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  void TearDown() override { end(); }

  // Stops rank 2, which closes nothing.
  void expect_lost(const char* why) {
    ::kill(child_, SIGSTOP);
    std::byte byte{};
    const Error error = error_of([&] { group_[0]->recv(2, 1, {&byte, 1}, soon()); });
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr(why)));
  }

  pid_t child_ = -1;
  Group group_;
};

class DeadPeerTiming : public DeadPeer {};

TEST_F(DeadPeerTiming, AKilledRankIsNamedByEverySurvivorWithinTwoSeconds) {
  expect_within(2s, [&](SlowestRank& slowest) {
    start(job());
    const auto begin = Deadline::Clock::now();
    ::kill(child_, SIGKILL);
    run_ranks(2, [&](int rank) {
      std::byte byte{};
      // Rank 0 waits for the dead rank, rank 1 for the living one.
      const Error error = error_of([&] {
        group_[rank]->recv(rank == 0 ? 2 : 0, 1, {&byte, 1}, soon());
      });
      slowest.report_since(begin);
      EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
      EXPECT_EQ(error.context().peer, 2) << error.what();
      EXPECT_EQ(group_[rank]->failure()->code(), Errc::kPeerLost);
    });
  });
}

TEST_F(DeadPeer, IsNoticedWithoutAnyCall) {
  start(job());
  ::kill(child_, SIGKILL);
  for (const Deadline end = soon(); !group_[0]->failure() && !end.passed();)
    std::this_thread::yield();
  ASSERT_TRUE(group_[0]->failure());
  EXPECT_EQ(group_[0]->failure()->code(), Errc::kPeerLost);
}

TEST_F(DeadPeerTiming, AStoppedRankIsNamedAtTheDeadlineAndReportedToOthers) {
  expect_within(2s, [&](SlowestRank& slowest) {
    start(job());
    ::kill(child_, SIGSTOP);
    const auto begin = Deadline::Clock::now();
    run_ranks(2, [&](int rank) {
      std::byte byte{};
      const Deadline deadline = rank == 0 ? Deadline::in(50ms) : soon();
      const Error error = error_of([&] {
        group_[rank]->recv(rank == 0 ? 2 : 0, 1, {&byte, 1}, deadline);
      });
      slowest.report_since(begin);
      EXPECT_EQ(error.code(), rank == 0 ? Errc::kTimeout : Errc::kAborted) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    });
  });
}

TEST_F(DeadPeer, ThatIsSilentIsLostAfterThePeerTimeout) {
  TcpOptions options = job();
  options.peer_timeout = 1s;
  start(options);
  expect_lost("nothing was heard of it for 1000 ms");
}

TEST_F(DeadPeer, ThatIsSilentIsLostWhenOthersHaveFoundItToBeLost) {
  // The endpoints outlive this function.
  const auto found = std::make_shared<std::atomic<bool>>(false);
  TcpOptions options = job();
  options.found_lost = [found] { return *found ? std::vector{7, -1, 2} : std::vector<int>{}; };
  start(options);
  *found = true;
  expect_lost("its node is lost");
}

}  // namespace faults_test
}  // namespace weft::net::internal
