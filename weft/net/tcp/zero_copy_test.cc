// Tests messages that the kernel sends directly from the caller's memory. Both ends are on one
// host, where the kernel copies in the end and reports that. So the tests cover everything except
// the saved copy.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <fstream>
#include <random>

#include "weft/base/testing/in_time.h"
#include "weft/net/tcp/internal/connection.h"
#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net::internal {
namespace zero_copy_test {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(ZeroCopySends, CompleteInAnyOrderAndAcrossNumberWrapAround) {
  const std::uint64_t first = (std::uint64_t{1} << 32) - 2;
  ZeroCopySends sends(ZeroCopy::kAlways, first);
  for (int i = 0; i < 6; ++i) sends.count_sent();  // numbers 2^32-2, 2^32-1, 0, 1, 2, 3
  sends.count_completed(1, 2, false);
  EXPECT_EQ(sends.completed(), first);
  sends.count_completed(0xfffffffe, 0xfffffffe, false);
  EXPECT_EQ(sends.completed(), first + 1);
  sends.count_completed(0xffffffff, 0, false);
  EXPECT_EQ(sends.completed(), first + 5);
  EXPECT_TRUE(sends.outstanding());
  sends.count_completed(3, 3, false);
  EXPECT_FALSE(sends.outstanding());
  EXPECT_EQ(sends.sent(), first + 6);
  EXPECT_EQ(error_of([&] { sends.count_completed(4, 4, false); }).code(), Errc::kInternal);
}

TEST(ZeroCopySends, StopIfTheKernelCopiesUnlessForced) {
  for (const auto mode : {ZeroCopy::kWhereItHelps, ZeroCopy::kAlways}) {
    ZeroCopySends sends(mode);
    sends.count_sent();
    sends.count_sent();
    sends.count_completed(0, 0, false);
    EXPECT_TRUE(sends.on());
    sends.count_completed(1, 1, true);
    EXPECT_EQ(sends.on(), mode == ZeroCopy::kAlways);
  }
  EXPECT_FALSE(ZeroCopySends(ZeroCopy::kNever).on());
}

TEST(ZeroCopySends, StopAfterConsecutiveRefusalsOnly) {
  ZeroCopySends sends(ZeroCopy::kWhereItHelps);
  for (int i = 0; i < 10 * ZeroCopySends::kRefusals; ++i) {
    sends.refused();
    if (i % 2 == 0) sends.count_sent();
  }
  EXPECT_TRUE(sends.on());
  for (int i = 0; i < ZeroCopySends::kRefusals; ++i) sends.refused();
  EXPECT_FALSE(sends.on());
}

// One stream between two connections. If `narrow`, the receiver's kernel buffers about 10 KB.
struct Wire {
  explicit Wire(ZeroCopy mode, bool narrow = false)
      : listener(listen_on("127.0.0.1", 0)),
        out(dial(listener, narrow), 1, 0),
        in(take(listener), 1, 0) {
    out.allow_zero_copy(mode);
  }

  static Fd dial(const Fd& listener, bool narrow) {
    const int bytes = 4096;
    if (narrow)
      // Accepted sockets inherit it.
      ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    Fd fd = begin_connect(join_address("127.0.0.1", bound_port(listener)));
    set_options(fd, 10s);
    return fd;
  }
  static Fd take(const Fd& listener) {
    wait_for(listener.get(), POLLIN);
    std::string from;
    int error = 0;
    return accept_on(listener, from, error);
  }
  static void wait_for(int fd, short what) {
    pollfd waiting{fd, what, 0};
    if (::poll(&waiting, 1, 10'000) <= 0) throw Error(Errc::kTimeout, "nothing moves");
  }

  // Writes the frame to the socket, as far as it accepts it.
  void begin(std::span<const std::byte> payload) {
    out.out().push({.total = payload.size()}, payload);
    out.mark_zero_copy(payload);
    flush();
  }
  void flush() {
    std::size_t frames = 0;
    ASSERT_NE(out.flush(frames), Connection::Io::kClosed) << out.cause();
    if (frames > 0) out.mark_zero_copy({});
  }
  // Sends the rest of the frame, and returns the result.
  std::vector<std::byte> receive() {
    std::vector<std::byte> got;
    for (;;) {
      switch (in.in().take()) {
        case FrameReader::Input::kHeader:
          got.resize(in.in().header().length);
          in.in().place(got.data());
          break;
        case FrameReader::Input::kFrame: return got;
        case FrameReader::Input::kNeedBytes: {
          flush();
          wait_for(in.fd(), POLLIN);
          bool drained = false;
          if (in.fill(drained) == Connection::Io::kClosed) throw Error(Errc::kPeerLost, in.cause());
          out.collect();
        }
      }
    }
  }
  void collect_all() {
    // Errors are always reported.
    for (; out.zero_copy_sends().outstanding(); out.collect()) wait_for(out.fd(), 0);
  }

  Fd listener;
  Connection out, in;
};

TEST(LentPayload, BelongsToTheKernelUntilThePeerHasAcknowledgedIt) {
  Wire wire(ZeroCopy::kAlways, true);
  const auto payload = pattern(kMaxPayload, 3);
  wire.begin(payload);
  wire.out.collect();
  EXPECT_GT(wire.out.zero_copy_sends().sent(), 0u);
  EXPECT_TRUE(wire.out.zero_copy_sends().outstanding());
  EXPECT_TRUE(wire.receive() == payload);
  wire.collect_all();
  EXPECT_TRUE(wire.out.out().empty());
  EXPECT_TRUE(wire.out.zero_copy_sends().on());
}

TEST(LentPayload, IsCopiedAfterTheKernelHasCopiedOne) {
  Wire wire(ZeroCopy::kWhereItHelps);
  const auto payload = pattern(kMaxPayload, 4);
  wire.begin(payload);
  EXPECT_TRUE(wire.receive() == payload);
  wire.collect_all();
  EXPECT_FALSE(wire.out.zero_copy_sends().on());
  const auto sends = wire.out.zero_copy_sends().sent();
  EXPECT_GT(sends, 0u);
  const auto next = pattern(kMaxPayload, 5);
  wire.begin(next);
  EXPECT_TRUE(wire.receive() == next);
  EXPECT_EQ(wire.out.zero_copy_sends().sent(), sends);
}

TEST(LentPayload, BelongsToTheCallerAgainWhenTheConnectionIsCut) {
  Wire wire(ZeroCopy::kAlways, true);
  auto payload = pattern(kMaxPayload, 6);
  wire.begin(payload);
  ASSERT_TRUE(wire.out.zero_copy_sends().outstanding());
  wire.out.cut();
  wire.collect_all();
  std::fill(payload.begin(), payload.end(), std::byte{0xee});
  std::vector<std::byte> got(kMaxPayload);
  const Error error = error_of([&] {
    for (bool drained = false;;) {
      while (wire.in.in().take() == FrameReader::Input::kHeader) wire.in.in().place(got.data());
      Wire::wait_for(wire.in.fd(), POLLIN);
      if (wire.in.fill(drained) == Connection::Io::kClosed)
        throw Error(Errc::kPeerLost, wire.in.cause());
    }
  });
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  const auto sent = pattern(kMaxPayload, 6);
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(got[i] == sent[i] || got[i] == std::byte{}) << i;
}

// Runs `body` in its own network namespace, where the kernel has this many bytes for notifications
// about sends. Returns false if that is not possible.
bool with_optmem(int bytes, const std::function<void()>& body) {
  bool had = false;
  std::exception_ptr error;
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::snprintf(request.ifr_name, sizeof(request.ifr_name), "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) return;
    if (!(std::ofstream("/proc/sys/net/core/optmem_max") << bytes).flush()) return;
    had = true;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return had;
}

void exchange_all_sizes(const TcpOptions& options);

TEST(LentPayload, IsCopiedIfTheKernelRefusesIt) {
  std::uint64_t few = 0;
  const auto send_with = [](std::uint64_t& made) {
    Wire wire(ZeroCopy::kAlways);
    const auto payload = pattern(kMaxPayload, 7);
    wire.begin(payload);
    EXPECT_TRUE(wire.receive() == payload);
    made = wire.out.zero_copy_sends().sent();
    wire.collect_all();
  };
  const auto none_at_all = [&] {
    std::uint64_t made = 1;
    send_with(made);
    EXPECT_EQ(made, 0u);
    exchange_all_sizes({.zero_copy = ZeroCopy::kAlways});
  };
  if (!with_optmem(1, none_at_all))
    GTEST_SKIP()
        << "needs root, and a kernel where optmem_max is a network namespace's own (Linux 6.8)";
  const auto one_at_a_time = [&] {
    send_with(few);
    exchange_all_sizes({.zero_copy = ZeroCopy::kAlways});
  };
  with_optmem(1500, one_at_a_time);
  EXPECT_GT(few, 0u);
}

// Messages of all sizes, several at a time, both ways.
void exchange_all_sizes(const TcpOptions& options) {
  Group group = make_tcp(2, options);
  const std::size_t sizes[] = {0, 1, 4096, 40'000, kMaxPayload, kMaxPayload + 1, 3'000'017};
  run_ranks(2, [&](int rank) {
    std::mt19937 random(5);  // the same on both ranks
    for (int round = 0; round < 4; ++round) {
      std::vector<std::vector<std::byte>> out, in;
      std::vector<Send> sends;
      std::vector<Recv> recvs;
      for (int i = 0; i < 6; ++i) {
        out.push_back(pattern(sizes[random() % std::size(sizes)], 100 * round + 10 * i + rank));
        in.emplace_back(out.back().size());
      }
      for (int i = 0; i < 6; ++i) {
        sends.push_back({1 - rank, out[static_cast<std::size_t>(i)]});
        recvs.push_back({1 - rank, in[static_cast<std::size_t>(i)]});
      }
      group[rank]->exchange(1, sends, recvs, soon());
      // After completion, the memory belongs to the caller.
      for (auto& bytes : out) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
      for (int i = 0; i < 6; ++i) {
        EXPECT_TRUE(
            in[static_cast<std::size_t>(i)] ==
            pattern(in[static_cast<std::size_t>(i)].size(), 100 * round + 10 * i + 1 - rank));
      }
    }
  });
}

TEST(ZeroCopySends, CarryMessagesOfAllSizesOverAnyNumberOfStreams) {
  for (const int streams : {1, 2, 5}) {
    exchange_all_sizes({.zero_copy = ZeroCopy::kAlways, .streams = streams});
    exchange_all_sizes({.zero_copy = ZeroCopy::kWhereItHelps, .streams = streams});
  }
  exchange_all_sizes({.zero_copy = ZeroCopy::kNever});
}

// A frame begins as a zero-copy send, the kernel reports a copy, and the rest is sent by copying.
// The kernel does not report the zero-copy send again.
TEST(ZeroCopySends, SwitchedOffWithinAFrameComplete) {
  const std::size_t bytes = 12'500'000;
  for (int i = 0; i < 3; ++i) {
    Group group = make_tcp(2);
    run_ranks(2, [&](int rank) {
      const auto out = pattern(bytes, rank);
      std::vector<std::byte> in(bytes);
      const Send send{1 - rank, out};
      const Recv recv{1 - rank, in};
      group[rank]->exchange(1, {&send, 1}, {&recv, 1}, soon());
      EXPECT_TRUE(in == pattern(bytes, 1 - rank));
    });
  }
}

TEST(ZeroCopySends, WithoutAReceiverEndAtTheirDeadlineAndReleaseTheMemory) {
  Group group = make_tcp(2, {.zero_copy = ZeroCopy::kAlways, .room = 1 << 16});
  auto out = std::make_unique<std::vector<std::byte>>(32 << 20);
  const Send send{1, *out};
  const Error error = error_of([&] { group[0]->exchange(1, {&send, 1}, {}, Deadline::in(50ms)); });
  EXPECT_EQ(error.code(), Errc::kTimeout) << error.what();
  EXPECT_EQ(error.context().peer, 1);
  out.reset();
  std::byte byte{};
  const Error theirs = error_of([&] { group[1]->recv(0, 2, {&byte, 1}, soon()); });
  EXPECT_EQ(theirs.code(), Errc::kAborted) << theirs.what();
  EXPECT_THAT(theirs.what(), HasSubstr("not complete before the deadline"));
}

TEST(ZeroCopySendsTiming, ToAPeerThatEndsReportALostPeerWithinTwoSeconds) {
  expect_within(2s, [](SlowestRank& slowest) {
    Group group = make_tcp(2, {.zero_copy = ZeroCopy::kAlways, .room = 1 << 16});
    run_ranks(2, [&](int rank) {
      if (rank == 1) {
        std::byte byte{};
        group[1]->recv(0, 2, {&byte, 1}, soon());  // the other rank is about to send
        group[1].reset();
        return;
      }
      const std::vector<std::byte> out(32 << 20);
      const Send sends[] = {{1, std::span(out).first(1)}};
      const auto begin = Deadline::Clock::now();
      group[0]->exchange(2, sends, {}, soon());
      const Send send{1, out};
      const Error error = error_of([&] { group[0]->exchange(1, {&send, 1}, {}, soon()); });
      slowest.report_since(begin);
      EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
      EXPECT_EQ(error.context().peer, 1);
    });
  });
}

TEST(ZeroCopySends, OfAnAbandonedFlowEndTheGroup) {
  Group group = make_tcp(2, {.zero_copy = ZeroCopy::kAlways, .room = 1 << 16});
  {
    const std::vector<std::byte> out(32 << 20);
    const auto flow = group[0]->flow(1);
    flow->send({1, out}, 0);
  }
  ASSERT_TRUE(group[0]->failure());
  EXPECT_EQ(group[0]->failure()->code(), Errc::kAborted);
}

}  // namespace zero_copy_test
}  // namespace weft::net::internal
