#include "weft/net/tcp/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <random>

#include "weft/base/crc32c.h"
#include "weft/net/internal/mailbox.h"
#include "weft/net/tcp/handshake.h"
#include "weft/net/tcp/internal/wire.h"
#include "weft/net/tcp/testing/adversary.h"
#include "weft/net/testing/trials.h"

namespace weft::net::internal {
namespace tcp_test {

using namespace std::chrono_literals;
using testing::HasSubstr;

Header some_header() {
  Header header;
  header.stream = 1;
  header.epoch = 7;
  header.channel = 0x1122334455667788;
  header.sequence = 3;
  header.message = 9;
  header.total = 1'000'000;
  header.offset = 262'144;
  header.length = 262'144;
  header.payload_crc = 0xdeadbeef;
  return header;
}

// A header with a valid checksum and arbitrary fields.
HeaderBytes seal(HeaderBytes bytes) {
  put(bytes.data() + 12, std::uint32_t{0});
  put(bytes.data() + 12, crc32c(bytes.data(), bytes.size()));
  return bytes;
}

bool refused(const HeaderBytes& bytes) {
  return error_of([&] { decode(bytes); }).code() == Errc::kCorrupt;
}

TEST(Frame, EncodesAndDecodesEveryField) {
  EXPECT_EQ(decode(encode(some_header())), some_header());
}

TEST(Frame, RejectsEverySingleBitFlip) {
  const HeaderBytes good = encode(some_header());
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(refused(bad)) << bit;
  }
}

TEST(Frame, RejectsValuesBeyondTheLimitsEvenWithAValidChecksum) {
  const auto with = [](auto change) {
    Header header = some_header();
    change(header);
    return encode(header);
  };
  EXPECT_TRUE(refused(with([](Header& h) { h.length = kMaxPayload + 1; })));
  EXPECT_TRUE(refused(with([](Header& h) { h.total = std::uint64_t{1} << 63; })));
  EXPECT_TRUE(refused(with([](Header& h) { h.offset = h.total; })));
  EXPECT_TRUE(refused(with([](Header& h) { h.offset = ~std::uint64_t{0} - 10; })));
  EXPECT_TRUE(refused(with([](Header& h) { h.length = 0; })));
  EXPECT_TRUE(refused(with([](Header& h) { h.type = static_cast<FrameType>(6); })));
  EXPECT_TRUE(refused(with([](Header& h) {
    h.type = FrameType::kAbort;
    h.length = kMaxControl + 1;
  })));
  EXPECT_TRUE(refused(with([](Header& h) {
    h.type = FrameType::kCall;
    h.length = 1;
  })));
}

TEST(Frame, SurvivesTwentyThousandMutationsWithinItsLimits) {
  std::mt19937_64 random(20260);
  const HeaderBytes good = encode(some_header());
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    HeaderBytes bytes = good;
    for (std::uint64_t changes = 1 + random() % 8; changes > 0; --changes)
      bytes[random() % kHeaderBytes] = static_cast<std::byte>(random());
    EXPECT_TRUE(bytes == good || refused(bytes));
    try {
      const Header h = decode(seal(bytes));
      ++accepted;
      EXPECT_LE(h.length, h.type == FrameType::kData ? kMaxPayload : kMaxControl);
      EXPECT_TRUE(h.type != FrameType::kData || (h.total <= kMaxMessage && h.offset <= h.total &&
                                                 h.length <= h.total - h.offset));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt);
    }
  }
  EXPECT_GT(accepted, 200);  // otherwise the limits were never reached
}

TEST(Frame, AnAbortKeepsItsMeaningAndStaysOneLine) {
  const Abort back = decode_abort(encode(Abort{Errc::kPeerLost, 3, "two\nlines"}));
  EXPECT_EQ(back.code, Errc::kPeerLost);
  EXPECT_EQ(back.peer, 3);
  EXPECT_EQ(back.message, "two?lines");
  EXPECT_EQ(encode(Abort{Errc::kInternal, -1, std::string(5000, 'x')}).size(), kMaxControl);
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(random() % 40);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % 12);
    try {
      decode_abort(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt);
    }
  }
}

class Handshake : public testing::Test {
 protected:
  Identity acceptor_{"job", 0, 4, 3, 5, secret_of('s')};
  Identity dialer_{"job", 2, 4, 3, 5, secret_of('s')};

  Verdict outcome() const {
    const Hello hello = make_hello(dialer_, 0, 1, fresh_nonce());
    const Reply reply =
        make_reply(acceptor_, hello, check_hello(acceptor_, hello).verdict, fresh_nonce());
    const Verdict seen = check_reply(dialer_, hello, reply);
    if (seen != Verdict::kWelcome) return seen;
    return check_proof(acceptor_, hello, reply, make_proof(dialer_, hello, reply))
               ? Verdict::kWelcome
               : Verdict::kSecret;
  }
};

TEST_F(Handshake, AcceptsAPeerOfTheSameJobAndReturnsItsStream) {
  EXPECT_EQ(outcome(), Verdict::kWelcome);
  const HelloCheck check = check_hello(acceptor_, make_hello(dialer_, 0, 1, fresh_nonce()));
  EXPECT_EQ(check.from, 2);
  EXPECT_EQ(check.stream, 1);
}

TEST_F(Handshake, RejectsDifferencesWithTheirNames) {
  const Identity good = dialer_;
  const auto with = [&](auto change) {
    dialer_ = good;
    change(dialer_);
    return outcome();
  };
  EXPECT_EQ(with([](Identity& i) { i.job = "another"; }), Verdict::kJob);
  EXPECT_EQ(with([](Identity& i) { i.epoch = 6; }), Verdict::kEpoch);
  EXPECT_EQ(with([](Identity& i) { i.world = 5; }), Verdict::kWorld);
  EXPECT_EQ(with([](Identity& i) { i.rank = 0; }), Verdict::kRank);
  EXPECT_EQ(with([](Identity& i) { i.rank = 4; }), Verdict::kRank);
  EXPECT_EQ(with([](Identity& i) { i.streams = 2; }), Verdict::kStreams);
  EXPECT_EQ(with([](Identity& i) { i.secret = secret_of('t'); }), Verdict::kSecret);
  EXPECT_EQ(with([](Identity& i) { i.secret.reset(); }), Verdict::kSecret);
  Hello newer = make_hello(good, 0, 1, fresh_nonce());
  put(newer.data() + 4, static_cast<std::uint16_t>(kWireVersion + 1));
  EXPECT_EQ(check_hello(acceptor_, newer).verdict, Verdict::kVersion);
}

TEST_F(Handshake, AProofIsInvalidForAnotherNonceOrTheOtherDirection) {
  const Hello hello = make_hello(dialer_, 0, 1, fresh_nonce());
  const Reply reply = make_reply(acceptor_, hello, Verdict::kWelcome, fresh_nonce());
  const Proof proof = make_proof(dialer_, hello, reply);
  EXPECT_TRUE(check_proof(acceptor_, hello, reply, proof));
  EXPECT_FALSE(check_proof(acceptor_, hello,
                           make_reply(acceptor_, hello, Verdict::kWelcome, fresh_nonce()), proof));
  Proof reflected;
  std::copy_n(reply.begin() + 40, reflected.size(), reflected.begin());
  EXPECT_FALSE(check_proof(acceptor_, hello, reply, reflected));
}

TEST_F(Handshake, EveryMutationOfTheTranscriptIsRejected) {
  std::mt19937_64 random(77);
  const Hello hello = make_hello(dialer_, 0, 1, fresh_nonce());
  const Reply reply = make_reply(acceptor_, hello, Verdict::kWelcome, fresh_nonce());
  const Proof proof = make_proof(dialer_, hello, reply);
  const auto mutate = [&](auto bytes) {
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    return bytes;
  };
  for (int i = 0; i < 10'000; ++i) {
    const Hello bad = mutate(hello);
    const HelloCheck check = check_hello(acceptor_, bad);
    EXPECT_TRUE(check.verdict != Verdict::kWelcome ||
                (check.from > 0 && check.from < 4 && check.stream >= 0 && check.stream < 3));
    EXPECT_FALSE(check_proof(acceptor_, bad, reply, proof));
    EXPECT_NE(check_reply(dialer_, hello, mutate(reply)), Verdict::kWelcome);
    EXPECT_FALSE(check_proof(acceptor_, hello, reply, mutate(proof)));
    check_done(mutate(make_done(Verdict::kWelcome)));
  }
}

TEST(Mailbox, JoinsPiecesInAnyOrderBeforeAndAfterTheReceiveIsPosted) {
  Mailbox mailbox(0, 2, 1 << 20);
  const std::string text = "abcdefghi";
  const auto bring = [&](std::uint64_t offset) {
    const Piece piece{1, 5, 0, 9, offset, 3};
    std::byte* at = mailbox.begin(piece);
    std::memcpy(at, text.data() + offset, 3);
    mailbox.end(piece);
  };
  bring(6);
  EXPECT_GT(mailbox.waiting_bytes(1), 3u);
  EXPECT_EQ(mailbox.any(5), 1);
  const Piece under_way{1, 5, 0, 9, 0, 3};
  // Its bytes are still in transfer when the receive is posted.
  std::byte* early = mailbox.begin(under_way);
  std::string in(9, '.');
  Operation operation;
  Receipt receipt{{1, std::as_writable_bytes(std::span(in))}, &operation};
  mailbox.post(5, receipt);
  std::memcpy(early, text.data(), 3);
  mailbox.end(under_way);
  EXPECT_FALSE(receipt.done);
  bring(3);
  EXPECT_TRUE(receipt.done);
  EXPECT_EQ(operation.pending, 0);
  EXPECT_EQ(in, text);
  EXPECT_EQ(mailbox.waiting_bytes(1), 0u);
}

TEST(Mailbox, AnEmptyMessageIsCompleteOnlyAfterItsSinglePiece) {
  Mailbox mailbox(0, 2, 1000);
  const Piece piece{.peer = 1, .channel = 5};
  mailbox.begin(piece);
  Operation operation;
  Receipt receipt{{1, {}}, &operation};
  mailbox.post(5, receipt);
  EXPECT_FALSE(receipt.done);
  mailbox.end(piece);
  EXPECT_TRUE(receipt.done);
  EXPECT_EQ(operation.pending, 0);
  EXPECT_EQ(mailbox.waiting_bytes(1), 0u);
}

TEST(Mailbox, LimitsUnexpectedMessagesButNotExpectedOnes) {
  Mailbox mailbox(0, 2, 1000);
  mailbox.begin({1, 5, 0, 1000, 0, 1000});
  EXPECT_FALSE(mailbox.has_room({1, 5, 1, 10, 0, 10}));
  EXPECT_FALSE(mailbox.has_room({1, 5, 1, 0, 0, 0}));  // a flood of empty messages takes memory too
  std::array<std::byte, 10> in;
  Operation operation;
  Receipt receipt{{1, in}, &operation};
  mailbox.post(6, receipt);
  EXPECT_TRUE(mailbox.has_room({1, 6, 0, 10, 0, 10}));
  EXPECT_FALSE(mailbox.has_room({1, 6, 1, 10, 0, 10}));
  mailbox.wait_for(1, true);  // for the receive
  EXPECT_TRUE(mailbox.has_room({1, 6, 1, 10, 0, 10}));
  mailbox.wait_for(1, false);
  EXPECT_FALSE(mailbox.has_room({1, 6, 1, 10, 0, 10}));
}

TEST(Mailbox, ContradictoryPiecesAreCorruptAndNeverWriteOutsideOfABuffer) {
  std::mt19937_64 random(5);
  int errors = 0;
  for (int round = 0; round < 3000; ++round) {
    Mailbox mailbox(0, 2, 1 << 20);
    std::vector<std::byte> in(16);
    Operation operation;
    Receipt receipt{{1, in}, &operation};
    if (round % 2 == 0) mailbox.post(0, receipt);
    try {
      for (int i = 0; i < 12; ++i) {
        const std::uint64_t total = random() % 8 ? 16 : random() % 20,
                            offset = random() % (total + 1);
        const Piece piece{1,     0,      random() % 2,
                          total, offset, total == offset ? 0 : 1 + random() % (total - offset)};
        std::byte* at = mailbox.begin(piece);
        for (std::size_t b = 0; b < piece.length; ++b) at[b] = std::byte{1};
        mailbox.end(piece);
      }
    } catch (const Error& error) {
      ++errors;
      EXPECT_TRUE(error.code() == Errc::kCorrupt || error.code() == Errc::kInvalidArgument)
          << error.what();
    }
  }
  EXPECT_GT(errors, 1000);
}

TEST(Tcp, ListensOnLoopbackByDefaultAndRejectsAWildcardWithoutASecret) {
  std::string mine;
  TcpOptions options;
  options.exchange = [&](const std::string& address) {
    mine = address;
    return std::vector<std::string>{address};
  };
  connect_tcp(options);
  EXPECT_THAT(mine, testing::StartsWith("127.0.0.1:"));
  options.interface = "lo";
  connect_tcp(options);
  EXPECT_THAT(mine, testing::StartsWith("127.0.0.1:"));
  for (const char* any : {"0.0.0.0", "::"}) {
    options.interface = any;
    const Error error = error_of([&] { connect_tcp(options); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("secret"));
  }
  options.interface = "no-such-interface";
  EXPECT_EQ(error_of([&] { connect_tcp(options); }).code(), Errc::kInvalidArgument);
}

TEST(Tcp, RaisesTheSoftLimitOfOpenFilesIfItsConnectionsDoNotFit) {
  const auto succeeds = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = open_descriptors() + 16;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const Group group = make_tcp(4);
    ::_exit(0);
  };
  EXPECT_EXIT(succeeds(), ::testing::ExitedWithCode(0), "");
}

TEST(Tcp, KeepsTheSoftLimitOfOpenFilesIfItsConnectionsFit) {
  const auto succeeds = [] {
    rlimit limit{}, after{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = open_descriptors() + 200;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const Group group = make_tcp(2);
    ::getrlimit(RLIMIT_NOFILE, &after);
    ::_exit(after.rlim_cur == limit.rlim_cur ? 0 : 1);
  };
  EXPECT_EXIT(succeeds(), ::testing::ExitedWithCode(0), "");
}

TEST(Tcp, NamesTheRanksThatDidNotConnectInTime) {
  TcpOptions options;
  options.world = 3;
  options.connect_timeout = 30ms;
  options.exchange = [](const std::string& mine) { return std::vector<std::string>{mine, "", ""}; };
  const Error error = error_of([&] { connect_tcp(options); });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 (it has not connected to 127.0.0.1:"));
  EXPECT_THAT(error.what(), HasSubstr("rank 2 ("));
}

TEST(Tcp, NamesTheUnreachableAddressAndTheReason) {
  const Fd silent = listen_on("127.0.0.1", 0);  // never accepts
  std::string closed;
  {
    const Fd gone = listen_on("127.0.0.1", 0);
    closed = join_address("127.0.0.1", bound_port(gone));
  }
  const std::string mute = join_address("127.0.0.1", bound_port(silent));
  TcpOptions options;
  options.world = 3;
  options.rank = 2;
  options.connect_timeout = 100ms;
  options.exchange = [&](const std::string& mine) {
    return std::vector<std::string>{closed, mute, mine};
  };
  const Error error = error_of([&] { connect_tcp(options); });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 at " + closed + " ("));
  EXPECT_THAT(error.what(), HasSubstr("Connection refused"));
  EXPECT_THAT(error.what(), HasSubstr("rank 1 at " + mute + " (no answer)"));
}

TEST(Tcp, SpeaksIpv6) {
  try {
    listen_on("::1", 0);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  TcpOptions options;
  options.interface = "::1";
  Group group = make_tcp(2, options);
  std::vector<std::byte> out(1'000'003, std::byte{3}), in(out.size());
  run_ranks(2, [&](int rank) {
    if (rank == 0) group[0]->send(1, 1, out, Deadline::in(20s));
    if (rank == 1) group[1]->recv(0, 1, in, Deadline::in(20s));
  });
  EXPECT_TRUE(in == out);
}

TEST(Tcp, NamesTheAddressThatIsInUse) {
  const Fd taken = listen_on("127.0.0.1", 0);
  TcpOptions options;
  options.port = bound_port(taken);
  options.exchange = [](const std::string& mine) { return std::vector<std::string>{mine}; };
  const Error error = error_of([&] { connect_tcp(options); });
  EXPECT_EQ(error.code(), Errc::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(options.port)));
  EXPECT_THAT(error.what(), HasSubstr("in use"));
}

TEST(Tcp, StripesOverAnyNumberOfStreams) {
  for (const int streams : {1, 5}) {
    TcpOptions options;
    options.streams = streams;
    options.spin = 0us;
    Group group = make_tcp(2, options);
    std::vector<std::byte> out(2'000'003, std::byte{3}), in(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7 + i / 1000);
    run_ranks(2, [&](int rank) {
      if (rank == 0) group[0]->send(1, 1, out, Deadline::in(20s));
      if (rank == 1) group[1]->recv(0, 1, in, Deadline::in(20s));
    });
    EXPECT_TRUE(in == out);
  }
}

TEST(Tcp, LeavesNoDescriptorBehind) {
  const auto before = open_descriptors();
  make_tcp(3);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace tcp_test
}  // namespace weft::net::internal
